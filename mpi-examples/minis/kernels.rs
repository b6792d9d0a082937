//! The kernels for a machine without a GPU: as in `kernels.cu`, which says what they compute.
#![forbid(unsafe_code)]

/// A kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    Fill,
    Relax,
    Matrix,
    Multiply,
    Dot,
    Correct,
    Turn,
    Lattice,
    Drift,
    Force,
    Refine,
    Sweep,
    Settle,
    Wave,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 14] = [
        Kernel::Fill,
        Kernel::Relax,
        Kernel::Matrix,
        Kernel::Multiply,
        Kernel::Dot,
        Kernel::Correct,
        Kernel::Turn,
        Kernel::Lattice,
        Kernel::Drift,
        Kernel::Force,
        Kernel::Refine,
        Kernel::Sweep,
        Kernel::Settle,
        Kernel::Wave,
    ];

    /// Its name in `kernels.cu`.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The arguments of a kernel besides its arrays.
#[derive(Clone, Copy, Default, Debug)]
pub struct Numbers {
    /// Threads.
    pub items: u64,
    pub at: u64,
    pub width: u64,
    pub height: u64,
    pub step: u32,
    pub value: f32,
}

/// A number from 0 to 1 for an index.
pub fn noise(index: u64, seed: u32) -> f32 {
    let mut x = index.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(seed));
    x ^= x >> 31;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 29;
    (x >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// Runs a kernel on arrays as bytes; there are as many arrays as it has parameters in `kernels.cu`.
pub fn run(kernel: Kernel, n: Numbers, arrays: &mut [&mut [u8]]) {
    let items = n.items as usize;
    match (kernel, arrays) {
        (Kernel::Fill, [a]) => {
            let (a, at) = (floats(a), n.at as usize);
            (at..at + items).for_each(|index| a[index] = noise(index as u64, n.step) * n.value);
        }
        (Kernel::Relax, [a]) => relax(n, floats(a)),
        (Kernel::Matrix, [a, b]) => matrix(n, floats(a), words(b)),
        (Kernel::Multiply, [a, b, c, d]) => {
            let (a, b, c, d) = (floats(a), words(b), floats(c), floats(d));
            for item in 0..items {
                d[item] = (0..27).map(|k| a[k * items + item] * c[b[k * items + item] as usize]).sum();
            }
        }
        (Kernel::Dot, [a, b, c]) => dot(n, floats(a), floats(b), bytemuck::cast_slice_mut(c)),
        // The product of one vector with itself.
        (Kernel::Dot, [a, c]) => {
            let a: &[f32] = floats(a);
            dot(n, a, a, bytemuck::cast_slice_mut(c));
        }
        (Kernel::Correct, [a, b, c, d]) => {
            let (a, b, c, d) = (floats(a), floats(b), floats(c), floats(d));
            for item in 0..items {
                a[item] += n.value * c[item];
                b[item] -= n.value * d[item];
            }
        }
        (Kernel::Turn, [a, b]) => {
            let (a, b) = (floats(a), floats(b));
            (0..items).for_each(|item| a[item] = b[item] + n.value * a[item]);
        }
        (Kernel::Lattice, [a]) => lattice(n, words(a)),
        (Kernel::Drift, [a, b, c]) => {
            let (a, b, c) = (floats(a), floats(b), floats(c));
            for i in 0..3 * items {
                b[i] += n.value * c[i];
                a[i] += n.value * b[i];
            }
        }
        (Kernel::Force, [a, b, c]) => force(n, floats(a), floats(b), words(c)),
        (Kernel::Refine, [a]) => {
            let at = n.at as usize;
            for (cell, value) in floats(a).iter_mut().enumerate().skip(at).take(items) {
                let heat = 0.01 * noise(cell as u64 % n.width + u64::from(n.step), 3);
                *value = *value + 0.2 * (n.value - *value) + heat;
            }
        }
        (Kernel::Sweep, [a, b, c, d]) => sweep(n, floats(a), floats(b), floats(c), floats(d)),
        (Kernel::Settle, [a, b]) => {
            let (a, b) = (floats(a), floats(b));
            a[..items].copy_from_slice(&b[..items]);
            b[..items].fill(0.0);
        }
        (Kernel::Wave, [a, b, c]) => wave(n, floats(a), floats(b), floats(c)),
        (kernel, arrays) => panic!("{kernel:?} with {} arrays", arrays.len()),
    }
}

fn floats<'a>(bytes: &'a mut &mut [u8]) -> &'a mut [f32] {
    bytemuck::cast_slice_mut(bytes)
}

fn words<'a>(bytes: &'a mut &mut [u8]) -> &'a mut [u32] {
    bytemuck::cast_slice_mut(bytes)
}

fn relax(n: Numbers, a: &mut [f32]) {
    let (width, height) = (n.width as usize, n.height as usize);
    let half = width / 2;
    for item in 0..n.items as usize {
        let y = n.at as usize + item / half;
        let x = 2 * (item % half) + ((y + n.step as usize) & 1);
        if x == 0 || x + 1 == width || y == 0 || y + 1 >= height {
            continue;
        }
        let cell = y * width + x;
        let around = a[cell - 1] + a[cell + 1] + a[cell - width] + a[cell + width];
        a[cell] = 0.25 * around + n.value * noise(cell as u64, 7);
    }
}

fn matrix(n: Numbers, a: &mut [f32], b: &mut [u32]) {
    let (items, side) = (n.items as usize, n.width as i64);
    for item in 0..items {
        let mut sum = 0.0;
        for k in (0..27).filter(|k| *k != 13) {
            let shift = (k % 3 - 1) + (k / 3 % 3 - 1) * side + (k / 9 - 1) * side * side;
            let other = item as i64 + shift;
            let is_there = (0..items as i64).contains(&other);
            let weight = match is_there {
                true => 0.5 + 0.5 * noise((item as i64).min(other) as u64, shift.unsigned_abs() as u32),
                false => 0.0,
            };
            a[k as usize * items + item] = -weight;
            b[k as usize * items + item] = if is_there { other as u32 } else { item as u32 };
            sum += weight;
        }
        a[13 * items + item] = sum + n.value;
        b[13 * items + item] = item as u32;
    }
}

fn dot(n: Numbers, a: &[f32], b: &[f32], c: &mut [f64]) {
    let (items, width) = (n.items as usize, n.width as usize);
    for (item, sum) in c[..items].iter_mut().enumerate() {
        *sum = (item..width).step_by(items).map(|i| f64::from(a[i]) * f64::from(b[i])).sum();
    }
}

fn lattice(n: Numbers, a: &mut [u32]) {
    let (items, side) = (n.items as i64, n.width as i64);
    for item in 0..items {
        let mut found = 0;
        for k in 0..27 {
            let (x, y, z) = (k % 3 - 1, k / 3 % 3 - 1, k / 9 - 1);
            if !matches!(x * x + y * y + z * z, 1 | 2) {
                continue;
            }
            let other = (item + x + y * side + z * side * side + 2 * items) % items;
            a[(found * items + item) as usize] = other as u32;
            found += 1;
        }
    }
}

fn force(n: Numbers, a: &[f32], b: &mut [f32], c: &[u32]) {
    let items = n.items as usize;
    for item in 0..items {
        let mut sum = [0.0; 3];
        for k in 0..18 {
            let other = c[k * items + item] as usize;
            for (axis, sum) in sum.iter_mut().enumerate() {
                let apart = a[axis * items + other] - a[axis * items + item];
                *sum += apart + n.value * apart * apart * apart;
            }
        }
        (0..3).for_each(|axis| b[axis * items + item] = sum[axis]);
    }
}

fn sweep(n: Numbers, a: &mut [f32], b: &[f32], c: &mut [f32], d: &[f32]) {
    let (items, width) = (n.items as usize, n.width as usize);
    for item in 0..items {
        for group in 0..n.height as usize {
            let mut incoming = 0.0;
            for plane in 0..width {
                let x = if n.step & 1 == 1 { width - 1 - plane } else { plane };
                let cell = x * items + item;
                let own = group * width * items + cell;
                let source = n.value + 0.1 * b[cell] + 0.3 * a[own];
                incoming = (source + 2.0 * incoming) / (2.3 + d[cell]);
                a[own] = incoming;
                c[cell] += 0.125 * incoming;
            }
        }
    }
}

fn wave(n: Numbers, a: &mut [f32], b: &[f32], c: &[f32]) {
    let (width, height) = (n.width as usize, n.height as usize);
    for cell in n.at as usize..(n.at + n.items) as usize {
        let (x, y) = (cell % width, cell / width);
        if x == 0 || x + 1 == width || y == 0 || y + 1 >= height {
            continue;
        }
        let around = b[cell - 1] + b[cell + 1] + b[cell - width] + b[cell + width] - 4.0 * b[cell];
        let source = if x == width / 2 && y == height / 2 { n.value } else { 0.0 };
        a[cell] = 0.9999 * (2.0 * b[cell] - a[cell] + c[cell] * around) + source;
    }
}
