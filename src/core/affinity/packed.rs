//! Lists of numbers in few bytes: each as the difference from the one before it, in as many bytes as that takes. Pure.
#![forbid(unsafe_code)]

/// Seven bits of a number in each byte, the lowest first; the highest bit says that more follow. The sign is the lowest bit.
pub(super) fn pack(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0u64);
    for number in numbers {
        let step = number.wrapping_sub(before) as i64;
        let mut rest = ((step << 1) ^ (step >> 63)) as u64;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        before = number;
    }
    bytes
}

/// The numbers, up to the first that is cut short or too long: `None` in its place.
pub(super) fn unpack(bytes: &[u8]) -> impl Iterator<Item = Option<u64>> + '_ {
    let (mut rest, mut before, mut is_bad) = (bytes, 0u64, false);
    std::iter::from_fn(move || {
        if rest.is_empty() || is_bad {
            return None;
        }
        let length = rest.iter().position(|byte| byte & 0x80 == 0).map_or(usize::MAX, |last| last + 1);
        // Ten bytes hold 70 bits.
        let Some((number, after)) = rest.split_at_checked(length).filter(|_| length <= 10) else {
            is_bad = true;
            return Some(None);
        };
        rest = after;
        let value = number.iter().rev().fold(0u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
        let step = (value >> 1) as i64 ^ -((value & 1) as i64);
        before = before.wrapping_add(step as u64);
        Some(Some(before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_steps_take_a_byte_and_bad_bytes_end_the_list() {
        assert_eq!(pack([60, 61, 0, 63]).len(), 4);
        assert_eq!(unpack(&[0x02, 0x80]).collect::<Vec<_>>(), [Some(1), None]);
        assert_eq!(unpack(&[0x80; 40]).collect::<Vec<_>>(), [None]);
        assert_eq!(unpack(&[]).count(), 0);
    }

    proptest! {
        #[test]
        fn what_was_packed_is_unpacked(numbers in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..300], 0..50)) {
            let unpacked: Option<Vec<u64>> = unpack(&pack(numbers.iter().copied())).collect();
            prop_assert_eq!(unpacked, Some(numbers));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(unpack(&bytes).count() <= bytes.len());
        }
    }
}
