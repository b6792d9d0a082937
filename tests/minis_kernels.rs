//! The kernels of `mpi-examples/minis.rs`: they compile, and a GPU computes the same with them as the processor.
//!
//! The example's own files are compiled into this test.
#![deny(unsafe_code)] // The example's modules `card` and `gpu` are exceptions.
#![cfg(feature = "cuda")]

#[allow(dead_code)]
#[path = "../mpi-examples/card.rs"]
mod card;
#[allow(dead_code)]
#[path = "../mpi-examples/minis/kernels.rs"]
mod kernels;
#[allow(dead_code)]
#[path = "../mpi-examples/minis/machine.rs"]
mod machine;

use kernels::{Kernel, Numbers};
use machine::Machine;
use machine::gpu::{Gpu, KERNELS};
use machine::twin::Twin;

#[test]
fn the_kernels_compile() {
    if !card::has_compiler() {
        eprintln!("SKIPPED: no NVRTC on this machine; ci/setup.sh --with-tests gets it");
        return;
    }
    let ptx = card::compile(KERNELS).unwrap_or_else(|error| panic!("{}", card::said(&error)));
    for kernel in Kernel::ALL {
        assert!(ptx.to_src().contains(&format!(".entry {}(", kernel.name())), "{kernel:?}");
    }
}

const ITEMS: u64 = 4096;

/// Each kernel with the lengths of its arrays, in values of four bytes, and its numbers.
fn cases() -> Vec<(Kernel, Vec<u64>, Numbers)> {
    let n = Numbers { items: ITEMS, ..Numbers::default() };
    let table = 27 * ITEMS;
    let plate = Numbers { items: ITEMS / 2, at: 16, width: 64, height: 80, value: 0.1, ..n };
    vec![
        (Kernel::Fill, vec![2 * ITEMS], Numbers { at: 100, step: 5, value: 3.0, ..n }),
        (Kernel::Relax, vec![80 * 64], Numbers { step: 0, ..plate }),
        (Kernel::Relax, vec![80 * 64], Numbers { step: 1, ..plate }),
        (Kernel::Matrix, vec![table, table], Numbers { width: 16, value: 0.01, ..n }),
        (Kernel::Dot, vec![ITEMS, ITEMS, 128], Numbers { items: 64, width: ITEMS, ..n }),
        (Kernel::Dot, vec![ITEMS, 128], Numbers { items: 64, width: ITEMS, ..n }),
        (Kernel::Correct, vec![ITEMS; 4], Numbers { value: 0.7, ..n }),
        (Kernel::Turn, vec![ITEMS; 2], Numbers { value: 0.7, ..n }),
        (Kernel::Lattice, vec![18 * ITEMS], Numbers { width: 16, ..n }),
        (Kernel::Drift, vec![3 * ITEMS; 3], Numbers { value: 0.1, ..n }),
        (Kernel::Refine, vec![2 * ITEMS], Numbers { at: 512, width: 4096, step: 3, value: 0.5, ..n }),
        (
            Kernel::Sweep,
            vec![128 * 64, 1024, 1024, 1024],
            Numbers { items: 128, width: 8, height: 8, step: 0, value: 0.1, ..n },
        ),
        (
            Kernel::Sweep,
            vec![128 * 64, 1024, 1024, 1024],
            Numbers { items: 128, width: 8, height: 8, step: 1, value: 0.1, ..n },
        ),
        (Kernel::Settle, vec![ITEMS; 2], n),
        (Kernel::Wave, vec![80 * 64; 3], Numbers { items: 40 * 64, step: 3, value: 0.4, ..plate }),
    ]
}

/// The arrays that a kernel makes from noise, or the noise if there is no kernel.
fn made(machine: &dyn Machine, kernel: Option<Kernel>, lengths: &[u64], numbers: Numbers) -> Vec<Vec<u8>> {
    let noise = |(seed, count): (usize, &u64)| machine.filled(*count, seed as u32, 1.0).expect("filled");
    let arrays: Vec<_> = lengths.iter().enumerate().map(noise).collect();
    let spans: Vec<_> = arrays.iter().collect();
    if let Some(kernel) = kernel {
        machine.launch(kernel, &spans, numbers).expect("launched");
    }
    let down = |span: &bivouac::device::DeviceSpan| {
        let mut bytes = vec![0; span.bytes() as usize];
        machine.stream().download(&mut [(span.clone(), &mut bytes[..])], None).expect("downloaded");
        bytes
    };
    arrays.iter().map(down).collect()
}

/// Are they equal as words, or, up to rounding, as numbers of single or double precision?
fn alike(kernel: Kernel, one: &[u8], other: &[u8]) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * (1.0 + a.abs());
    let single =
        |bytes: &[u8]| -> Vec<f64> { bytemuck::cast_slice::<u8, f32>(bytes).iter().map(|x| f64::from(*x)).collect() };
    let double = |bytes: &[u8]| -> Vec<f64> { bytemuck::cast_slice(bytes).to_vec() };
    let numbers = if kernel == Kernel::Dot && one.len() == 512 {
        [double(one), double(other)]
    } else {
        [single(one), single(other)]
    };
    one == other || numbers[0].iter().zip(&numbers[1]).all(|(a, b)| near(*a, *b))
}

fn check(gpu: &dyn Machine, twin: &dyn Machine) {
    for (kernel, lengths, numbers) in cases() {
        let before = made(twin, None, &lengths, numbers);
        let (there, here) = (made(gpu, Some(kernel), &lengths, numbers), made(twin, Some(kernel), &lengths, numbers));
        assert!(before.iter().zip(&here).any(|(before, here)| before != here), "{kernel:?} does nothing");
        for (index, (there, here)) in there.iter().zip(&here).enumerate() {
            assert!(alike(kernel, there, here), "{kernel:?} {numbers:?}, array {index}");
        }
    }
}

#[test]
fn a_gpu_computes_what_the_twin_computes() {
    let twin = Twin::open(1 << 28, None).expect("a twin");
    match Gpu::open(0, None) {
        Ok(gpu) => check(&gpu, &twin),
        Err(error) => {
            eprintln!("SKIPPED: {error}; on a machine with a GPU: cargo nextest run --test minis_kernels");
            check(&twin, &twin);
        }
    }
}
