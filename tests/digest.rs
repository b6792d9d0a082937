//! A part of the digest's battery (`cargo bench --bench digest -- battery` runs all of it): both halves of the digest see structured
//! changes of structured blocks, and truncated digests collide as often as chance predicts.
#![forbid(unsafe_code)]

#[path = "../benches/digest/battery.rs"]
mod battery;
#[path = "../benches/digest/families.rs"]
mod families;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../mpi-examples/heat2d/plate.rs"]
mod plate;
#[path = "../benches/digest/states.rs"]
mod states;
#[allow(dead_code)]
#[path = "../mpi-examples/rtm/stencil.rs"]
mod stencil;

use std::collections::BTreeMap;

/// Blocks for each state and kind of change. They give 20,000 pairs each, and with the 500 of `ci/test.sh whole`, 125,000.
fn draws() -> usize {
    std::env::var("BIVOUAC_TEST_DRAWS").map_or(200, |text| text.parse().expect("BIVOUAC_TEST_DRAWS is a number"))
}

#[test]
fn no_structured_change_is_missed_by_either_half_and_truncations_collide_as_chance_does() {
    let draws = draws();
    let mut blocks_of_family = BTreeMap::new();
    for (index, state) in states::all().iter().enumerate() {
        for (name, found) in battery::families(state, draws, 100 + index as u64) {
            *blocks_of_family.entry(name).or_insert(0) += found.blocks;
            assert!(
                found.is_good(),
                "{}, {name}: {} pairs agree in a half, {} deviations from chance, of {} blocks",
                state.name,
                found.equal_halves,
                found.deviations,
                found.blocks
            );
        }
    }
    // Some changes leave some blocks as they are: for example, swaps of equal elements do.
    for (name, blocks) in blocks_of_family {
        assert!(blocks > 5 * draws as u64, "{name}: only {blocks} different blocks");
    }
}

#[test]
fn a_flipped_bit_flips_each_bit_of_the_digest_as_chance_would() {
    for (index, state) in states::all().iter().enumerate() {
        let deviations = battery::avalanche(state, 20_000, index as u64);
        assert!(deviations <= battery::DEVIATIONS_MAX, "{}: {deviations}", state.name);
    }
}

#[test]
fn units_moved_between_small_numbers_are_seen() {
    for changes in [&[1, -1, -1, 1][..], &[1, -2, 1], &[1, -1]] {
        assert_eq!(battery::small_number_pairs(changes, 200_000, 9), 0, "{changes:?}");
    }
}

#[test]
fn one_step_of_a_program_is_seen() {
    for (name, differs) in battery::consecutive(&states::all()) {
        assert!(differs, "{name}");
    }
}
