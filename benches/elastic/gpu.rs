//! Loads from node memory into one GPU that all ranks share, against uploads of as many bytes from pinned memory.

use super::{Bench, Mine, Options, median, value};
use bivouac_core::Level;
use bivouac_core::device::cuda::CudaDevice;
use bivouac_core::device::{Device, DeviceSpan, HostRange, Pinned, Priority, Stream};
use mpi::traits::CommunicatorCollectives;
use std::sync::Arc;
use std::time::Instant;

const PAGE: u64 = 4096;

/// The GPU, and as many bytes of pinned memory as a rank loads.
struct Gpu {
    device: CudaDevice,
    stream: Arc<dyn Stream>,
    _pinned: Box<dyn Pinned>,
    source: &'static [u8],
    target: DeviceSpan,
}

impl Gpu {
    fn new(bytes: u64) -> Gpu {
        let device = CudaDevice::open(0).expect("a GPU");
        let stream = device.stream(Priority::High).expect("a stream");
        let room: &'static mut [u8] = Box::leak(vec![1u8; (bytes.next_multiple_of(PAGE) + PAGE) as usize].into());
        let skipped = room.as_ptr().align_offset(PAGE as usize);
        let pages = &mut room[skipped..][..bytes.next_multiple_of(PAGE) as usize];
        let (range, pages) = HostRange::leaked(pages);
        let pinned = device.pin(&range).expect("pinned");
        let target = device.allocate(bytes).expect("room");
        Gpu { device, stream, _pinned: pinned, source: &pages[..bytes as usize], target }
    }

    fn upload(&self) {
        self.stream.upload(&[(self.source, self.target.clone())], None).expect("uploaded");
    }

    /// Are the elements of a box where they belong, and nothing else anywhere?
    fn check(&self, span: &DeviceSpan, mine: &Mine, halo: [u64; 3]) {
        let mut bytes = vec![0u8; span.bytes() as usize];
        self.stream.download(&mut [(span.clone(), &mut bytes)], None).expect("downloaded");
        let found: &[f64] = bytemuck::cast_slice(&bytes);
        let all: [u64; 3] = [0, 1, 2].map(|dim| mine.extent[dim] + 2 * halo[dim]);
        let mut elements = mine.indices();
        for (index, found) in (0u64..).zip(found) {
            let at = [index / (all[1] * all[2]), index / all[2] % all[1], index % all[2]];
            let is_inside = (0..3).all(|dim| (halo[dim]..halo[dim] + mine.extent[dim]).contains(&at[dim]));
            let expected = if is_inside { elements.next().map(value) } else { Some(-1.0) };
            assert_eq!(Some(*found), expected, "element {index}");
        }
    }

    /// Memory for a box and its margin, filled with another value.
    fn memory(&self, mine: &Mine, halo: [u64; 3]) -> DeviceSpan {
        let elements = [0, 1, 2].map(|dim| mine.extent[dim] + 2 * halo[dim]).iter().product::<u64>();
        let span = self.device.allocate(elements * 8).expect("room");
        let fill = vec![-1.0f64; elements as usize];
        self.stream.upload(&[(bytemuck::cast_slice(&fill), span.clone())], None).expect("uploaded");
        span
    }
}

/// The name of a halo in the figures.
fn called(halo: [u64; 3]) -> &'static str {
    if halo == [0; 3] { "no halo" } else { "halo" }
}

/// Loads on the decomposition that the array was saved on.
pub fn same(bench: &Bench) {
    let from = u64::from(bench.options.from);
    let bytes = bench.options.mib << 20;
    for (halo, row) in [([0; 3], 512), ([1; 3], 512), ([1; 3], 64)] {
        let Some((_, session)) = bench.open(bench.options.from, true) else { continue };
        let gpu = Gpu::new(bytes);
        let mine = Mine::of([from * bytes / 8 / row / 16, 16, row], [from, 1, 1], u64::from(bench.rank()));
        let on = session.decompose(mine.boxes(halo)).expect("it tiles");
        let data: Vec<f64> = mine.indices().map(value).collect();
        let plain = session.decompose(mine.boxes([0; 3])).expect("it tiles");
        let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
        checkpoint.save_on("t", &plain, &data).expect("saved");
        checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
        let target = gpu.memory(&mine, halo);
        let (mut ours, mut reference) = (Vec::new(), Vec::new());
        for round in 0..=bench.options.rounds {
            let load = |r: &mut bivouac_core::Attempt| {
                ours.push(bench.timed(|| r.load_device_on::<f64>("t", &on, &target, &*gpu.stream).expect("loaded")));
                reference.push(bench.timed(|| gpu.upload()));
                Ok(())
            };
            session.begin_restore("heat").run(load).expect("restored");
            if round == 0 {
                gpu.check(&target, &mine, halo);
                ours.clear();
                reference.clear();
            }
        }
        let what = format!("same decomposition into a GPU, {}, rows of {} B", called(halo), 8 * row);
        bench.print(&what, median(ours), ("upload from pinned memory", median(reference)), bytes);
        drop(session);
    }
}

/// Loads on another decomposition, on another number of ranks.
pub fn other(bench: &Bench) {
    let Options { from, to, mib, rounds, .. } = bench.options.clone();
    let bytes = u64::from(from) * (mib << 20) / u64::from(to);
    let (shape, _, cuts) = bench.cuts();
    bench.save();
    let gpu = (bench.rank() < to).then(|| Gpu::new(bytes));
    for halo in [[0; 3], [1; 3]] {
        let mut all: [Vec<f64>; 3] = Default::default();
        for round in 0..=rounds {
            let mut times = [0.0; 2];
            if let (Some((some, session)), Some(gpu)) = (bench.open(to, false), &gpu) {
                let mine = Mine::of(shape, cuts, u64::from(bench.rank()));
                let on = session.decompose(mine.boxes(halo)).expect("it tiles");
                let target = gpu.memory(&mine, halo);
                let load = |r: &mut bivouac_core::Attempt| {
                    for (name, time) in ["first", "second"].into_iter().zip(&mut times) {
                        some.barrier();
                        let start = Instant::now();
                        r.load_device_on::<f64>(name, &on, &target, &*gpu.stream).expect("loaded");
                        *time = start.elapsed().as_secs_f64();
                        if round == 0 {
                            gpu.check(&target, &mine, halo);
                        }
                    }
                    Ok(())
                };
                session.begin_restore("heat").run(load).expect("restored").expect("it is there");
                drop(session);
            }
            let [first, second] = times.map(|time| bench.slowest(time));
            let reference = bench.timed(|| gpu.iter().for_each(Gpu::upload));
            if round > 0 {
                all.iter_mut().zip([first, second, reference]).for_each(|(all, one)| all.push(one));
            }
        }
        let [first, second, reference] = all.map(median);
        for (which, took) in [("first", first), ("next", second)] {
            let what = format!("into a GPU, {}, {which} region", called(halo));
            bench.print(&what, took, ("upload from pinned memory", reference), bytes);
        }
    }
}
