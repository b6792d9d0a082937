//! The kernels in Rust, for the twin: the same arithmetic as `wave.cu`.
#![forbid(unsafe_code)]

use super::model::{REACH, SURFACE_ROW, Shape};

/// Coefficients of the second derivative, eighth order, by distance.
const SECOND: [f32; 5] = [-205.0 / 72.0, 8.0 / 5.0, -1.0 / 5.0, 8.0 / 315.0, -1.0 / 560.0];

/// One step of the damped wave equation u_tt + 2σ·u_t = v²·Δu. The field one step before `now` is replaced by the field one
/// step after it. The outermost cells stay as they are.
#[allow(clippy::needless_range_loop, reason = "neighbours are reached by the same index")]
pub fn step(shape: &Shape, courant: &[f32], sponge: &[f32], now: &[f32], before: &mut [f32]) {
    let (width, inner) = (shape.width, shape.width - 2 * REACH);
    let (columns, rows) = sponge.split_at(width);
    for z in REACH..shape.height - REACH {
        let first = z * width + REACH;
        // Equal lengths, which the compiler sees: no bounds are checked in the inner loop.
        let row = |offset: isize| &now[first.wrapping_add_signed(offset)..][..inner];
        let line = width as isize;
        let (centre, courant, columns) = (row(0), &courant[first..][..inner], &columns[REACH..][..inner]);
        let (west, east) = ([row(-1), row(-2), row(-3), row(-4)], [row(1), row(2), row(3), row(4)]);
        let above = [row(-line), row(-2 * line), row(-3 * line), row(-4 * line)];
        let below = [row(line), row(2 * line), row(3 * line), row(4 * line)];
        let target = &mut before[first..][..inner];
        for x in 0..inner {
            let mut laplacian = 2.0 * SECOND[0] * centre[x];
            for distance in 0..REACH {
                let ring = west[distance][x] + east[distance][x] + above[distance][x] + below[distance][x];
                laplacian += SECOND[distance + 1] * ring;
            }
            let damping = columns[x] + rows[z];
            let undamped = 2.0 * centre[x] - (1.0 - damping) * target[x] + courant[x] * laplacian;
            target[x] = undamped / (1.0 + damping);
        }
    }
}

/// Adds the source's amplitude to a cell.
pub fn add_source(courant: &[f32], field: &mut [f32], cell: usize, amplitude: f32) {
    field[cell] += courant[cell] * amplitude;
}

/// Records what the receivers hear after `step` steps: one row of `traces` per step.
pub fn record(shape: &Shape, field: &[f32], traces: &mut [f32], step: usize) {
    let (nx, first) = (shape.grid.nx, shape.index(0, SURFACE_ROW));
    traces[step * nx..(step + 1) * nx].copy_from_slice(&field[first..first + nx]);
}

/// Makes the receivers send what they heard around `step`. What they heard is differentiated in time, which turns the
/// phase back by the quarter period by which a line of sources turns it forward, so that a reflector's image peaks where
/// the reflector is.
pub fn inject(shape: &Shape, courant: &[f32], field: &mut [f32], traces: &[f32], step: usize) {
    let (nx, first) = (shape.grid.nx, shape.index(0, SURFACE_ROW));
    for x in 0..nx {
        let slope = traces[(step - 1) * nx + x] - traces[(step + 1) * nx + x];
        field[first + x] += courant[first + x] * slope;
    }
}

/// Adds the product of two fields to the image, which has the ground's cells only.
pub fn correlate(shape: &Shape, source: &[f32], receivers: &[f32], image: &mut [f32]) {
    for (z, row) in image.chunks_exact_mut(shape.grid.nx).enumerate() {
        let first = shape.index(0, z);
        let pairs = source[first..][..row.len()].iter().zip(&receivers[first..]);
        row.iter_mut().zip(pairs).for_each(|(pixel, (source, receivers))| *pixel += source * receivers);
    }
}
