//! Lists of numbers in few bytes: each as the difference from the one before it, in as many bytes as that takes ([`numbers`](crate::format::numbers)). Pure.
#![forbid(unsafe_code)]

use crate::format::numbers;

/// The differences, with their signs, as numbers of the format.
pub(super) fn pack(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0u64);
    for number in numbers {
        numbers::put(&mut bytes, numbers::from_step(number.wrapping_sub(before) as i64));
        before = number;
    }
    bytes
}

/// The numbers, up to the first bytes that are not a number, for which there is a `None`.
pub(super) fn unpack(bytes: &[u8]) -> impl Iterator<Item = Option<u64>> + '_ {
    let (mut rest, mut before) = (bytes, 0u64);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(number) = numbers::take(&mut rest) else {
            rest = &[];
            return Some(None);
        };
        before = before.wrapping_add(numbers::to_step(number) as u64);
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
