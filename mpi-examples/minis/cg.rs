//! Conjugate gradients with a matrix of 27 values per row that is never written to, similar to Nekbone.
//!
//! Each rank has its own system; all take the same path, because the products of vectors are summed over all ranks.
#![forbid(unsafe_code)]

use super::apps::{App, Result, Run};
use super::kernels::{Kernel, Numbers};
use bivouac::device::DeviceSpan;

/// Values and columns of a row, and three vectors that are saved.
const ROW_BYTES: u64 = 27 * 8 + 3 * 4;
/// Sums that the device computes and the processor adds up.
const PARTS: u64 = 1 << 15;

/// Numbers of the write sets.
const SOLUTION: usize = 0;
const DIRECTION: usize = 1;

pub struct Cg {
    rows: u64,
    values: DeviceSpan,
    columns: DeviceSpan,
    x: DeviceSpan,
    r: DeviceSpan,
    p: DeviceSpan,
    /// These need not be saved.
    q: DeviceSpan,
    parts: DeviceSpan,
    /// The square of the residual; negative before the first step.
    square: f64,
}

impl Cg {
    pub fn open(bytes: u64, run: &Run) -> Result<Cg> {
        let rows = (bytes / ROW_BYTES / 64 * 64).clamp(4096, u64::from(u32::MAX) / 2);
        let device = run.machine.device();
        let [values, columns] = [device.allocate(27 * 4 * rows)?, device.allocate(27 * 4 * rows)?];
        let width = (rows as f64).cbrt() as u64;
        let numbers = Numbers { items: rows, width, value: 0.01, ..Numbers::default() };
        run.launch(Kernel::Matrix, &[&values, &columns], numbers)?;
        let [x, r, p, q] =
            [(1, 0.0), (2, 1.0), (2, 1.0), (1, 0.0)].map(|(seed, value)| run.machine.filled(rows, seed, value));
        Ok(Cg { rows, values, columns, x: x?, r: r?, p: p?, q: q?, parts: device.allocate(8 * PARTS)?, square: -1.0 })
    }

    /// The product of one vector with another, or with itself. Collective.
    fn product(&self, vectors: &[&DeviceSpan], run: &Run) -> Result<f64> {
        let arrays: Vec<&DeviceSpan> = vectors.iter().copied().chain([&self.parts]).collect();
        run.launch(Kernel::Dot, &arrays, Numbers { items: PARTS, width: self.rows, ..Numbers::default() })?;
        let mut parts = vec![0f64; PARTS as usize];
        run.machine.stream().download(&mut [(self.parts.clone(), bytemuck::cast_slice_mut(&mut parts))], None)?;
        Ok(run.sum(parts.iter().sum()))
    }
}

impl App for Cg {
    fn fields(&self) -> Vec<(&'static str, DeviceSpan)> {
        let all = [&self.values, &self.columns, &self.x, &self.r, &self.p].map(DeviceSpan::clone);
        ["values", "columns", "x", "r", "p"].into_iter().zip(all).collect()
    }

    fn sets(&self) -> Vec<(String, Vec<DeviceSpan>)> {
        vec![("solution".into(), vec![self.x.clone(), self.r.clone()]), ("direction".into(), vec![self.p.clone()])]
    }

    fn scalar(&mut self) -> &mut f64 {
        &mut self.square
    }

    fn step(&mut self, _step: u64, run: &Run) -> Result<()> {
        let items = Numbers { items: self.rows, ..Numbers::default() };
        if self.square < 0.0 {
            self.square = self.product(&[&self.r], run)?;
        }
        run.launch(Kernel::Multiply, &[&self.values, &self.columns, &self.p, &self.q], items)?;
        let along = self.product(&[&self.p, &self.q], run)?;
        // A residual of zero stays zero.
        let by = |one: f64, other: f64| if other > 0.0 { (one / other) as f32 } else { 0.0 };
        run.before(SOLUTION)?;
        let value = by(self.square, along);
        run.launch(Kernel::Correct, &[&self.x, &self.r, &self.p, &self.q], Numbers { value, ..items })?;
        let square = self.product(&[&self.r], run)?;
        run.before(DIRECTION)?;
        let value = by(square, self.square);
        run.launch(Kernel::Turn, &[&self.p, &self.r], Numbers { value, ..items })?;
        self.square = square;
        Ok(())
    }
}
