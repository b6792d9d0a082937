//! Codes as a whole: golden coefficients, every loss that a set must survive, and losses that cannot be repaired.
#![forbid(unsafe_code)]

use super::*;
use crate::base::rng::Rng;
use proptest::prelude::*;

fn code(data: u32, parity: u32) -> Code {
    Code::new(data, parity).unwrap_or_else(|| panic!("{data}+{parity}"))
}

fn coefficients(code: Code) -> Vec<Vec<u8>> {
    (0..code.parity()).map(|p| (0..code.data()).map(|d| code.coefficient(p, d)).collect()).collect()
}

/// All members of a set with random data of different lengths; parity is as long as the longest.
fn members(code: Code, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut members: Vec<Vec<u8>> = (0..code.data())
        .map(|at| (0..len.saturating_sub(at as usize % 3)).map(|_| rng.next_u64() as u8).collect())
        .collect();
    let mut parity = vec![vec![0; len]; code.parity() as usize];
    for (at, data) in members.iter().enumerate() {
        let factors: Vec<_> = (0..code.parity()).map(|p| Factor::new(code.coefficient(p, at as u32))).collect();
        let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|sum| &mut sum[..]).collect();
        add_to_all(&factors, data, &mut targets);
    }
    members.append(&mut parity);
    members
}

/// Rebuilds each absent member from the present ones and compares.
fn check_recovery(code: Code, members: &[Vec<u8>], present: &[u32]) {
    for missing in 0..code.members() {
        let terms = code.recovery(present, missing).unwrap_or_else(|| panic!("{code:?} {present:?} {missing}"));
        assert!(terms.is_sorted() && terms.iter().all(|(member, factor)| present.contains(member) && *factor != 0));
        let len = members.iter().map(Vec::len).max().unwrap();
        let mut sum = vec![0; len];
        for (member, factor) in terms {
            Factor::portable(factor).add_to(&members[member as usize], &mut sum);
        }
        let wanted = &members[missing as usize];
        assert_eq!(&sum[..wanted.len()], &wanted[..], "{code:?} {present:?} {missing}");
        assert!(sum[wanted.len()..].iter().all(|byte| *byte == 0), "a shorter member ends in zeros");
    }
}

fn present(code: Code, pattern: u32) -> Vec<u32> {
    (0..code.members()).filter(|member| pattern & (1 << member) != 0).collect()
}

#[test]
fn the_coefficients_are_those_of_the_format() {
    assert_eq!(coefficients(code(4, 1)), [[1, 1, 1, 1]]);
    assert_eq!(coefficients(code(1, 3)), [[1], [142], [244]]);
    assert_eq!(coefficients(code(2, 2)), [[1, 1], [245, 143]]);
    assert_eq!(coefficients(code(4, 2)), [[1, 1, 1, 1], [166, 70, 187, 123]]);
    assert_eq!(coefficients(code(8, 2)), [[1; 8], [156, 172, 153, 220, 171, 60, 151, 92]]);
    assert_eq!(coefficients(code(3, 3)), [[1, 1, 1], [201, 83, 122], [244, 142, 186]]);
    // One checksum over all codes of the configuration and the largest ones. Its expected value comes from another
    // program, in another language, which evaluates the formula of the document.
    let mut all = Vec::new();
    for parity in 1..=8 {
        for data in (1..=64 - parity).chain([256 - parity]) {
            all.extend(coefficients(code(data, parity)).concat());
        }
    }
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &all);
    assert_eq!((all.len(), checksum), (71_382, 0xb64f_4698));
}

#[test]
fn a_coefficient_is_what_the_document_says() {
    for (data, parity) in [(1, 1), (5, 3), (64, 8), (192, 64), (255, 1), (1, 255)] {
        let code = code(data, parity);
        for p in 0..parity {
            for d in 0..data {
                let product = gf::multiply(code.coefficient(p, d), ((data + p) ^ d) as u8);
                assert_eq!(product, (data ^ d) as u8);
                assert_ne!(product, 0);
            }
        }
    }
}

#[test]
fn the_first_parity_is_the_exclusive_or_of_the_data() {
    for parity in 1..=8 {
        for data in 1..=248 {
            assert!((0..data).all(|at| code(data, parity).coefficient(0, at) == 1));
        }
    }
    let code = code(5, 1);
    for missing in 0..6 {
        let present: Vec<u32> = (0..6).filter(|member| *member != missing).collect();
        let expected: Vec<(u32, u8)> = present.iter().map(|member| (*member, 1)).collect();
        assert_eq!(code.recovery(&present, missing), Some(expected));
    }
}

#[test]
fn every_loss_of_a_small_set_is_repaired_and_nothing_more_is_promised() {
    for data in 1..=6 {
        for parity in 1..=4 {
            let code = code(data, parity);
            let members = members(code, 13, u64::from(data * 10 + parity));
            for pattern in 0..1u32 << code.members() {
                let present = present(code, pattern);
                if present.len() >= data as usize {
                    check_recovery(code, &members, &present);
                } else {
                    let is_known = |missing: &u32| code.recovery(&present, *missing).is_some();
                    let known: Vec<u32> = (0..code.members()).filter(is_known).collect();
                    assert_eq!(known, present, "{code:?}");
                }
            }
        }
    }
}

#[test]
fn data_is_preferred_to_parity_and_exclusive_or_to_products() {
    let code = code(4, 2);
    assert_eq!(code.recovery(&[5, 4, 3, 2, 1], 0), Some(vec![(1, 1), (2, 1), (3, 1), (4, 1)]));
    assert_eq!(code.recovery(&[0, 1, 2, 3], 4), Some(vec![(0, 1), (1, 1), (2, 1), (3, 1)]));
    assert_eq!(code.recovery(&[3, 2, 1, 0, 4], 2), Some(vec![(2, 1)]));
    assert_eq!(code.recovery(&[5], 5), Some(vec![(5, 1)]));
}

#[test]
fn what_is_no_member_is_no_help() {
    let code = code(2, 1);
    assert_eq!(code.recovery(&[0, 0, 0, 7, u32::MAX], 1), None);
    assert_eq!(code.recovery(&[0, 1, 2], 3), None);
    assert_eq!(code.recovery(&[], 0), None);
    assert_eq!(code.recovery(&[2, 0, 2, 99], 1), Some(vec![(0, 1), (2, 1)]));
}

#[test]
fn sizes_that_make_no_code_are_refused() {
    for (data, parity) in [(0, 1), (1, 0), (0, 0), (256, 1), (1, 256), (u32::MAX, u32::MAX), (u32::MAX, 1)] {
        assert_eq!(Code::new(data, parity), None, "{data}+{parity}");
    }
    assert_eq!((code(255, 1).members(), code(56, 8).members()), (256, 64));
}

proptest! {
    #[test]
    fn any_loss_up_to_the_parity_is_repaired(
        (data, parity) in (1u32..=56, 1u32..=8),
        len in prop_oneof![Just(0usize), Just(1), 2usize..200],
        seed in any::<u64>(),
    ) {
        let code = code(data, parity);
        let members = members(code, len, seed);
        let mut rng = Rng::new(!seed);
        let mut present: Vec<u32> = (0..code.members()).collect();
        for _ in 0..rng.next_u64() % u64::from(parity + 1) {
            present.remove((rng.next_u64() % present.len() as u64) as usize);
        }
        check_recovery(code, &members, &present);
    }

    #[test]
    fn the_largest_sets_are_repaired(parity in 1u32..=255, seed in any::<u64>()) {
        let code = code(256 - parity, parity);
        let mut rng = Rng::new(seed);
        let mut present: Vec<u32> = (0..256).collect();
        while present.len() > code.data() as usize {
            present.remove((rng.next_u64() % present.len() as u64) as usize);
        }
        let missing = (0..256).find(|member| !present.contains(member)).unwrap();
        // One byte per member suffices: the sum over the terms must be the member.
        let data: Vec<u8> = (0..code.data()).map(|_| rng.next_u64() as u8).collect();
        let value = |member: u32| (0..code.data()).fold(0, |sum, at| sum ^ gf::multiply(code.entry(member, at), data[at as usize]));
        let terms = code.recovery(&present, missing).unwrap();
        let sum = terms.into_iter().fold(0, |sum, (member, factor)| sum ^ gf::multiply(factor, value(member)));
        prop_assert_eq!(sum, value(missing));
    }

    #[test]
    fn hostile_questions_get_an_answer(
        (data, parity) in (1u32..=10, 1u32..=10),
        present in proptest::collection::vec(0u32..30, 0..40),
        missing in 0u32..30,
    ) {
        let code = code(data, parity);
        if let Some(terms) = code.recovery(&present, missing) {
            prop_assert!(missing < code.members() && terms.iter().all(|(member, _)| present.contains(member)));
        }
    }
}
