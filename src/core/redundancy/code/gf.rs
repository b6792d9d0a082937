//! The field with 256 elements: bytes as polynomials over {0, 1}, modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d).
//!
//! Addition is exclusive or. This module handles only single values: coefficients, and values in tests.
#![forbid(unsafe_code)]

/// The low byte of the polynomial, to which x^8 reduces.
const REDUCTION: u8 = 0x1d;

/// x times the value.
pub(super) const fn double(value: u8) -> u8 {
    let carry = if value & 0x80 != 0 { REDUCTION } else { 0 };
    (value << 1) ^ carry
}

/// The product.
pub(super) const fn multiply(a: u8, b: u8) -> u8 {
    let (mut sum, mut power, mut rest) = (0, a, b);
    while rest != 0 {
        if rest & 1 != 0 {
            sum ^= power;
        }
        power = double(power);
        rest >>= 1;
    }
    sum
}

/// The inverse, by which the value is multiplied to give 1. Zero has no inverse, and gives zero.
pub(super) const fn inverse(value: u8) -> u8 {
    // The 255 nonzero values form a group, so value^254 times value is 1. 254 is 2 + 4 + … + 128.
    let (mut product, mut power, mut step) = (1, value, 0);
    while step < 7 {
        power = multiply(power, power);
        product = multiply(product, power);
        step += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_the_one_of_the_format() {
        // Known products and powers of x modulo 0x11d.
        assert_eq!((multiply(2, 0x80), multiply(0x80, 0x80), multiply(0x53, 0xca)), (0x1d, 0x13, 0x8f));
        assert_eq!((inverse(0), inverse(1), inverse(2)), (0, 1, 0x8e));
        let mut powers = [1u8; 255];
        for at in 1..255 {
            powers[at] = double(powers[at - 1]);
        }
        assert_eq!(double(powers[254]), 1, "x has order 255");
        let distinct: std::collections::BTreeSet<_> = powers.into_iter().collect();
        assert_eq!(distinct.len(), 255);
        for (at, a) in powers.into_iter().enumerate() {
            for (offset, b) in powers.into_iter().enumerate() {
                assert_eq!(multiply(a, b), powers[(at + offset) % 255]);
            }
            assert_eq!(multiply(a, inverse(a)), 1);
            assert_eq!((multiply(a, 0), multiply(0, a)), (0, 0));
        }
    }
}
