//! Reads files that VELOC itself has written for one rank, to find where each region is in the file. Pure; the bytes may be arbitrary.
//!
//! ```text
//! u64 n | n times: i32 id, u64 size (packed) | the bytes of the regions, in that order
//! ```
//!
//! Numbers have the byte order of the machine. A file may be longer than its regions, because VELOC does not truncate a
//! version that it writes again.
#![forbid(unsafe_code)]

use std::ffi::c_int;

/// The number of bytes of the count at the start.
pub(super) const COUNT_BYTES: usize = 8;
/// The number of bytes of each entry, which consists of a number and a size.
const ENTRY_BYTES: u64 = 12;
/// The maximum number of regions. A larger count is wrong.
const REGIONS_MAX: u64 = 1 << 20;

/// Where a region is in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OldRegion {
    pub id: c_int,
    pub at: u64,
    pub bytes: u64,
}

/// Why a file is not one of VELOC's, or is incomplete.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum OldError {
    #[error("it has {bytes} bytes, too few to hold the number of its regions")]
    Short { bytes: u64 },
    #[error("it lists {count} regions, too many for its {bytes} bytes")]
    Count { count: u64, bytes: u64 },
    #[error("it lists {count} regions, but at most {REGIONS_MAX} can be read")]
    Many { count: u64 },
    #[error("its regions end at byte {end}, but it has only {bytes} bytes: it is incomplete")]
    Truncated { end: u64, bytes: u64 },
    #[error("its regions are larger than a file can be")]
    Sizes,
    #[error("it has two regions with the number {id}")]
    Twice { id: c_int },
}

/// The number of bytes of the list of regions, including the count at its start, in a file of `bytes` bytes.
pub(super) fn list_bytes(count: [u8; COUNT_BYTES], bytes: u64) -> Result<u64, OldError> {
    let count = u64::from_ne_bytes(count);
    let list = count.checked_mul(ENTRY_BYTES).and_then(|list| list.checked_add(COUNT_BYTES as u64));
    let list = list.filter(|list| *list <= bytes).ok_or(OldError::Count { count, bytes })?;
    if count > REGIONS_MAX { Err(OldError::Many { count }) } else { Ok(list) }
}

/// The regions of a file of `bytes` bytes that begins with `list` (the count and the list, or more).
pub(super) fn decode(list: &[u8], bytes: u64) -> Result<Vec<OldRegion>, OldError> {
    let count = list.first_chunk().ok_or(OldError::Short { bytes })?;
    let list_end = list_bytes(*count, bytes)?;
    let entries = usize::try_from(list_end).ok().and_then(|end| list.get(COUNT_BYTES..end));
    let entries = entries.ok_or(OldError::Count { count: u64::from_ne_bytes(*count), bytes })?;
    let (mut at, mut regions) = (list_end, Vec::new());
    for entry in entries.chunks_exact(ENTRY_BYTES as usize) {
        let (id, size) = entry.split_at(4);
        let id = c_int::from_ne_bytes(id.try_into().unwrap_or_default());
        let size = u64::from_ne_bytes(size.try_into().unwrap_or_default());
        regions.push(OldRegion { id, at, bytes: size });
        at = at.checked_add(size).ok_or(OldError::Sizes)?;
    }
    let mut ids: Vec<c_int> = regions.iter().map(|region| region.id).collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(OldError::Twice { id: twice[0] });
    }
    if at > bytes {
        return Err(OldError::Truncated { end: at, bytes });
    }
    Ok(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(regions: &[(c_int, u64)]) -> Vec<u8> {
        let mut out = (regions.len() as u64).to_ne_bytes().to_vec();
        for (id, size) in regions {
            out.extend(id.to_ne_bytes());
            out.extend(size.to_ne_bytes());
        }
        out
    }

    #[test]
    fn regions_follow_each_other_behind_the_list() {
        let list = encode(&[(7, 100), (-1, 0), (3, 5)]);
        let end = 8 + 3 * 12;
        let at = |id, at, bytes| OldRegion { id, at, bytes };
        let found = vec![at(7, end, 100), at(-1, end + 100, 0), at(3, end + 100, 5)];
        assert_eq!(decode(&list, end + 105), Ok(found.clone()));
        assert_eq!(decode(&list, end + 999), Ok(found), "longer than needed: an older version was longer");
        assert_eq!(decode(&list, end + 104), Err(OldError::Truncated { end: end + 105, bytes: end + 104 }));
        assert_eq!(decode(&encode(&[]), 8), Ok(vec![]));
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        assert_eq!(decode(&[1, 2, 3], 3), Err(OldError::Short { bytes: 3 }));
        assert!(matches!(decode(&u64::MAX.to_ne_bytes(), 8), Err(OldError::Count { .. })));
        assert!(matches!(decode(&encode(&[(1, 1)])[..19], 1000), Err(OldError::Count { .. })));
        assert_eq!(list_bytes((1u64 << 40).to_ne_bytes(), u64::MAX), Err(OldError::Many { count: 1 << 40 }));
        assert_eq!(decode(&encode(&[(1, u64::MAX), (2, u64::MAX)]), 1000), Err(OldError::Sizes));
        assert_eq!(decode(&encode(&[(1, 2), (5, 0), (1, 2)]), 1000), Err(OldError::Twice { id: 1 }));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_lead_outside_of_the_file(
            list in proptest::collection::vec(any::<u8>(), 0..200),
            count in proptest::option::of(0u64..20),
            bytes in prop_oneof![0u64..400, any::<u64>()],
        ) {
            let mut list = list;
            if let (Some(count), Some(first)) = (count, list.first_chunk_mut::<8>()) {
                *first = count.to_ne_bytes();
            }
            for region in decode(&list, bytes).unwrap_or_default() {
                prop_assert!(region.at.checked_add(region.bytes).is_some_and(|end| end <= bytes));
            }
        }

        #[test]
        fn what_was_written_is_read(sizes in proptest::collection::btree_map(any::<c_int>(), 0u64..1 << 40, 0..30)) {
            let pairs: Vec<(c_int, u64)> = sizes.into_iter().collect();
            let list = encode(&pairs);
            let bytes = list.len() as u64 + pairs.iter().map(|(_, size)| size).sum::<u64>();
            let found: Vec<(c_int, u64)> =
                decode(&list, bytes).unwrap().iter().map(|region| (region.id, region.bytes)).collect();
            prop_assert_eq!(found, pairs);
        }
    }
}
