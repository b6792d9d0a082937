//! Numbers in as few bytes as possible: seven bits in each byte, the lowest first; the highest bit of a byte says that more
//! bytes follow. Pure.
//!
//! A number has only one form, the shortest, so equal values are equal bytes. Every other form is refused.
#![forbid(unsafe_code)]

/// The maximum number of bytes of a number: ten hold 70 bits.
const BYTES_MAX: usize = 10;

/// Appends a number.
pub(crate) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes the first number off the front; `None` if the number is truncated, exceeds 64 bits, or is longer than
/// necessary.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(BYTES_MAX) {
        let part = u64::from(byte & 0x7f);
        number |= part << (7 * at);
        if byte & 0x80 == 0 {
            let is_shortest = at == 0 || part > 0;
            // Only one bit of the tenth byte may be used.
            let has_room = at + 1 < BYTES_MAX || part == 1;
            *bytes = &bytes[at + 1..];
            return (is_shortest && has_room).then_some(number);
        }
    }
    None
}

/// A difference as a number: small differences of either sign give small numbers. The lowest bit is the sign.
pub(crate) fn from_step(step: i64) -> u64 {
    ((step << 1) ^ (step >> 63)) as u64
}

/// The difference from which [`from_step`] made a number.
pub(crate) fn to_step(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn only(mut bytes: &[u8]) -> Option<u64> {
        take(&mut bytes).filter(|_| bytes.is_empty())
    }

    #[test]
    fn a_number_has_one_form() {
        assert_eq!([only(&[0]), only(&[0x7f]), only(&[0x80, 1])], [Some(0), Some(127), Some(128)]);
        let largest = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(only(&largest), Some(u64::MAX));
        for bad in [&[][..], &[0x80], &[0x80, 0], &[0xff, 0x80, 0], &[0x80; 40]] {
            assert_eq!(only(bad), None, "{bad:?}");
        }
        // Values of more than 64 bits, in ten bytes and in eleven.
        for last in [&[2][..], &[0x7f], &[0x81, 0], &[0x80, 1]] {
            assert_eq!(only(&[&[0xff; 9], last].concat()), None, "{last:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_put_is_taken(number in prop_oneof![any::<u64>(), 0u64..300]) {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            prop_assert!(bytes.len() <= BYTES_MAX);
            prop_assert_eq!(only(&bytes), Some(number));
        }

        #[test]
        fn steps_are_numbers(step in prop_oneof![any::<i64>(), -3i64..3]) {
            prop_assert_eq!(to_step(from_step(step)), step);
            prop_assert!(step.unsigned_abs() > 63 || from_step(step) < 128);
        }

        #[test]
        fn whatever_is_taken_was_put(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut rest = &bytes[..];
            if let Some(number) = take(&mut rest) {
                let mut again = Vec::new();
                put(&mut again, number);
                prop_assert_eq!([&again, rest].concat(), bytes);
            }
        }
    }
}
