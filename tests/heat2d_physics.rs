//! The physics of `mpi-examples/heat2d.rs`, without MPI: any cut of the plate computes the same bits.
//!
//! The example's own files are compiled into this test. Here ranks are values in one process, and an exchange of ghost
//! cells is a copy between them, so every decomposition can be compared with the single block.
#![forbid(unsafe_code)]

#[allow(dead_code)]
#[path = "../mpi-examples/heat2d/picture.rs"]
mod picture;
#[allow(dead_code)]
#[path = "../mpi-examples/heat2d/plate.rs"]
mod plate;

use picture::{FieldDigest, Picture, PngOut, TextOut};
use plate::{Border, Decomposition, Field, Formula, Grid, HOTTEST, Plane, Side};
use proptest::prelude::*;

/// Computes `steps` steps on `ranks` ranks and returns the final plate, row by row.
fn compute(grid: Grid, ranks: usize, steps: usize, border: Border) -> Vec<f64> {
    let cut = Decomposition::new(grid, ranks).unwrap();
    let formula = Formula(grid);
    let mut fields: Vec<Field> = (0..ranks)
        .map(|rank| {
            let block = cut.block(rank);
            let now = Plane::from_fn(&block, |x, y| formula.temperature(x, y));
            Field::new(now, Plane::from_fn(&block, |x, y| formula.conductivity(x, y)))
        })
        .collect();
    exchange(&cut, &mut fields, |field| &mut field.conductivity, |field, side| field.conductivity.mirror_halo(side));
    for _ in 0..steps {
        exchange(&cut, &mut fields, |field| &mut field.now, |field, side| field.close_border(side, border));
        fields.iter_mut().for_each(Field::step);
    }
    let mut plate = Vec::new();
    for band in 0..cut.py {
        for y in 0..cut.block(band * cut.px).y.len() {
            for field in &fields[band * cut.px..(band + 1) * cut.px] {
                plate.extend_from_slice(field.now.row(y));
            }
        }
    }
    plate
}

fn exchange(
    cut: &Decomposition,
    fields: &mut [Field],
    plane: fn(&mut Field) -> &mut Plane,
    close: impl Fn(&mut Field, Side),
) {
    for rank in 0..fields.len() {
        for side in Side::ALL {
            match cut.neighbour(rank, side) {
                Some(neighbour) => {
                    let mut edge = Vec::new();
                    plane(&mut fields[neighbour]).copy_edge(side.opposite(), &mut edge);
                    plane(&mut fields[rank]).set_halo(side, &edge);
                }
                None => close(&mut fields[rank], side),
            }
        }
    }
}

fn digest(grid: Grid, plate: &[f64]) -> String {
    let mut digest = FieldDigest::default();
    plate.chunks(grid.nx).for_each(|row| digest.row(row));
    digest.finish()
}

#[test]
fn every_number_of_ranks_computes_the_same_bits() {
    let grid = Grid { nx: 37, ny: 23 };
    for border in [Border::Insulated, Border::Fixed] {
        let alone = digest(grid, &compute(grid, 1, 40, border));
        for ranks in 2..=16 {
            assert_eq!(digest(grid, &compute(grid, ranks, 40, border)), alone, "{ranks} ranks, {border:?}");
        }
    }
}

#[test]
fn an_insulated_plate_keeps_its_heat_and_a_fixed_border_takes_it() {
    let grid = Grid { nx: 30, ny: 40 };
    let heat = |plate: &[f64]| plate.iter().sum::<f64>();
    let start = heat(&compute(grid, 1, 0, Border::Insulated));
    let insulated = heat(&compute(grid, 1, 500, Border::Insulated));
    assert!((insulated / start - 1.0).abs() < 1e-12, "{insulated} of {start}");
    let fixed = heat(&compute(grid, 1, 500, Border::Fixed));
    assert!(fixed < 0.9 * start, "{fixed} of {start}");
}

#[test]
fn temperatures_stay_between_the_coldest_and_the_hottest_and_even_out() {
    let grid = Grid { nx: 24, ny: 24 };
    let spread = |plate: &[f64]| {
        let (low, high) = plate.iter().fold((f64::MAX, f64::MIN), |(low, high), t| (low.min(*t), high.max(*t)));
        assert!((0.0..=HOTTEST).contains(&low) && (0.0..=HOTTEST).contains(&high), "{low} to {high}");
        high - low
    };
    let start = spread(&compute(grid, 1, 0, Border::Insulated));
    let end = spread(&compute(grid, 1, 20_000, Border::Insulated));
    assert!(start > 30.0 && end < 1e-3, "{start} to {end}");
}

proptest! {
    #[test]
    fn blocks_tile_the_plate_and_neighbours_agree(nx in 1usize..60, ny in 1usize..60, ranks in 1usize..40) {
        let grid = Grid { nx, ny };
        let Some(cut) = Decomposition::new(grid, ranks) else {
            // The grid may be refused only if no pair of factors fits it.
            prop_assert!((1..=ranks).all(|px| ranks % px != 0 || px > nx || ranks / px > ny));
            return Ok(());
        };
        prop_assert_eq!(cut.px * cut.py, ranks);
        let mut owners = vec![0; nx * ny];
        for rank in 0..ranks {
            let block = cut.block(rank);
            for y in block.y.clone() {
                for x in block.x.clone() {
                    owners[y * nx + x] += 1;
                }
            }
            for side in Side::ALL {
                if let Some(neighbour) = cut.neighbour(rank, side) {
                    prop_assert_eq!(cut.neighbour(neighbour, side.opposite()), Some(rank));
                    let other = cut.block(neighbour);
                    prop_assert!(block.x == other.x || block.y == other.y);
                }
            }
        }
        prop_assert!(owners.iter().all(|n| *n == 1));
    }
}

#[test]
fn the_digest_is_over_little_endian_rows() {
    let plate: Vec<f64> = (0..12).map(|i| f64::from(i) * 1.5).collect();
    let bytes: Vec<u8> = plate.iter().flat_map(|t| t.to_le_bytes()).collect();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100000001b3);
    let expected = format!("{:016x}", bytes.iter().fold(0xcbf29ce484222325, fnv));
    assert_eq!(digest(Grid { nx: 4, ny: 3 }, &plate), expected);
    assert_eq!(digest(Grid { nx: 3, ny: 4 }, &plate), expected);
    let mut changed = plate.clone();
    changed[7] = f64::from_bits(changed[7].to_bits() ^ 1);
    assert_ne!(digest(Grid { nx: 4, ny: 3 }, &changed), expected);
}

#[test]
fn a_written_picture_is_read_back_as_an_initial_plate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("field.png");
    let grid = Grid { nx: 5, ny: 2 };
    let mut out = PngOut::create(&path, grid).unwrap();
    out.row(&[0.0, 100.0 / 3.0, 200.0 / 3.0, HOTTEST, 2.0 * HOTTEST]).unwrap();
    out.row(&[0.0; 5]).unwrap();
    out.finish().unwrap();
    let picture = Picture::load(&path, Grid { nx: 10, ny: 4 }).unwrap();
    let row: Vec<f64> = (0..10).map(|x| picture.temperature(x, 1)).collect();
    assert!(row.chunks(2).all(|pair| pair[0] == pair[1]), "{row:?}");
    assert!(row.is_sorted() && row[0] == 0.0 && row[9] > 99.0, "{row:?}");
    assert!((0..10).all(|x| picture.temperature(x, 2) == 0.0));
    assert!((0..10).all(|x| (0.1..=1.0).contains(&picture.conductivity(x, 0))));
}

#[test]
fn a_cut_or_damaged_picture_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.png");
    let grid = Grid { nx: 8, ny: 8 };
    let mut out = PngOut::create(&path, grid).unwrap();
    (0..8).for_each(|_| out.row(&[50.0; 8]).unwrap());
    out.finish().unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = Picture::load(&path, grid).err().unwrap();
    assert!(error.contains("damaged.png"), "{error}");
    std::fs::write(&path, b"not a picture").unwrap();
    assert!(Picture::load(&path, grid).is_err());
    assert!(Picture::load(&folder.path().join("absent.png"), grid).is_err());
}

#[test]
fn text_shows_every_column_and_line_once() {
    let grid = Grid { nx: 200, ny: 100 };
    let mut text = TextOut::new(grid);
    (0..100).for_each(|y| text.row(&vec![f64::from(y); 200]));
    let drawing = text.finish();
    let lines: Vec<&str> = drawing.lines().collect();
    assert_eq!(lines.len(), 24);
    assert!(lines.iter().all(|line| line.len() == 72));
    assert!(lines[0].starts_with("  ") && lines[23].starts_with("@@"), "{drawing}");
}

#[test]
fn grids_are_read_as_people_write_them() {
    assert_eq!("1024x768".parse(), Ok(Grid { nx: 1024, ny: 768 }));
    for text in ["", "x", "12", "0x5", "5x0", "-1x5", "9999999999x2", "1x2x3"] {
        assert!(text.parse::<Grid>().is_err(), "{text:?}");
    }
}
