//! The kernels of `benches/affinity/` compute what they claim, compared with straightforward references, and give the same bits for any
//! number of threads.
#![forbid(unsafe_code)]

#[path = "../benches/affinity/kernels.rs"]
#[expect(dead_code, reason = "the benchmark uses more of it")]
mod kernels;
#[path = "../benches/affinity/team.rs"]
mod team;

use kernels::{Butterfly, Kernel, Sparse, Stencil, checksum};
use std::f64::consts::TAU;
use std::sync::{Arc, Barrier};
use team::Team;

/// The state in which a kernel starts, and its state after `steps` steps.
fn computed(kernel: Arc<dyn Kernel>, threads: usize, steps: u64) -> (Vec<f64>, Vec<f64>) {
    let (team, barrier) = (Team::start(threads), Barrier::new(threads));
    let starting = kernel.clone();
    team.run(move |thread| starting.start(thread));
    let before = kernel.result(0).joined();
    let stepping = kernel.clone();
    team.run(move |thread| {
        for step in 0..steps {
            stepping.step(thread, step, &barrier);
            barrier.wait();
        }
    });
    (before, kernel.result(steps).joined())
}

/// Compares within rounding.
fn assert_close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() < 1e-11, "number {at}: {found}, not {wanted}");
    }
}

#[test]
fn stencil_is_seven_points() {
    let n = 9;
    let (mut cube, found) = computed(Arc::new(Stencil::new(n, 4)), 4, 5);
    for _ in 0..5 {
        let old = cube.clone();
        let at = |x: usize, y: usize, z: usize| {
            // One less than 0 wraps around, and is more than n as well.
            if x.max(y).max(z) < n { old[(z * n + y) * n + x] } else { 0.0 }
        };
        for (place, new) in cube.iter_mut().enumerate() {
            let (x, y, z) = (place % n, place / n % n, place / n / n);
            let beside = at(x.wrapping_sub(1), y, z)
                + at(x + 1, y, z)
                + at(x, y.wrapping_sub(1), z)
                + at(x, y + 1, z)
                + at(x, y, z.wrapping_sub(1))
                + at(x, y, z + 1);
            *new = 0.4 * at(x, y, z) + 0.1 * beside;
        }
    }
    assert_close(&found, &cube);
    assert!(found.iter().any(|number| *number > 0.1));
}

#[test]
fn sparse_is_a_product_with_the_whole_matrix() {
    let rows = 601;
    let matrix = Sparse::new(rows, 3);
    let mut dense = vec![0.0; rows * rows];
    for row in 0..rows {
        let (columns, values) = (matrix.columns_of(row), matrix.values_of(row));
        assert_eq!(columns.len(), values.len());
        columns.iter().zip(values).for_each(|(column, value)| dense[row * rows + *column as usize] += value);
    }
    let (mut vector, found) = computed(Arc::new(matrix), 3, 4);
    for _ in 0..4 {
        let product = |row: usize| dense[row * rows..][..rows].iter().zip(&vector).map(|(a, b)| a * b).sum::<f64>();
        vector = (0..rows).map(|row| product(row) + Sparse::source(row)).collect();
    }
    assert_close(&found, &vector);
}

#[test]
fn two_steps_of_the_butterfly_are_a_fourier_transform_in_two_dimensions() {
    let side = 16;
    let (before, found) = computed(Arc::new(Butterfly::new(side, 3)), 3, 2);
    let mut wanted = Vec::new();
    for (u, v) in (0..side * side).map(|at| (at / side, at % side)) {
        let (mut real, mut imaginary) = (0.0, 0.0);
        for (y, x) in (0..side * side).map(|at| (at / side, at % side)) {
            let (sine, cosine) = (-TAU * ((u * y + v * x) % side) as f64 / side as f64).sin_cos();
            let at = 2 * (y * side + x);
            real += before[at] * cosine - before[at + 1] * sine;
            imaginary += before[at] * sine + before[at + 1] * cosine;
        }
        wanted.extend([real / side as f64, imaginary / side as f64]);
    }
    assert_close(&found, &wanted);
    // Four transforms give back the original values.
    let (before, found) = computed(Arc::new(Butterfly::new(64, 2)), 2, 8);
    assert_close(&found, &before);
}

#[test]
fn any_number_of_threads_computes_the_same_bits() {
    for name in kernels::NAMES {
        let sum = |threads: usize| {
            let kernel = kernels::of_name(name, 300_000, threads).unwrap();
            let (before, after) = computed(kernel.into(), threads, 7);
            assert_ne!(checksum(&before), checksum(&after), "{name}");
            checksum(&after)
        };
        let alone = sum(1);
        for threads in [2, 3, 8] {
            assert_eq!(sum(threads), alone, "{name}, {threads} threads");
        }
    }
    assert!(kernels::of_name("another", 1000, 1).is_none());
}
