//! What the device layer costs: ratios against the driver's bare copies, taken in the same run.
//!
//! `cargo bench --bench device` prints JSON lines on a machine with a GPU. Stream time is measured between events
//! around the call, host time from before the call until its end is known. All figures are medians of 25 runs, after
//! five that do not count.

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("SKIPPED: built without the feature `cuda`");
}

#[cfg(feature = "cuda")]
fn main() {
    match bivouac_core::device::cuda::CudaDevice::open(0) {
        Ok(device) => gpu::all(&device),
        Err(error) => eprintln!("SKIPPED: {error}; run it on a machine with a GPU: cargo bench --bench device"),
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use bivouac_core::device::cuda::CudaDevice;
    use bivouac_core::device::{Device, DeviceSpan, HostRange, Priority, Run, Stream};
    use cudarc::driver::result;
    use cudarc::driver::sys::CUevent_flags;
    use std::time::Instant;

    const MIB: u64 = 1 << 20;

    pub fn all(device: &CudaDevice) {
        eprintln!("{:?}", device.info());
        blocks(device);
        regions(device);
        links(device);
        pinning(device);
        mapping(device);
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    /// Median stream and host seconds of `work`.
    fn timed(device: &CudaDevice, mut work: impl FnMut(&dyn Stream)) -> (f64, f64) {
        let raw = device.context().new_stream().expect("stream");
        let stream = device.adopt(&raw).expect("own context");
        let event = || device.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).expect("event");
        let (mut on_stream, mut on_host) = (Vec::new(), Vec::new());
        for round in 0..30 {
            let (begin, end) = (event(), event());
            raw.synchronize().expect("works");
            let started = Instant::now();
            begin.record(&raw).expect("works");
            work(&*stream);
            end.record(&raw).expect("works");
            end.synchronize().expect("works");
            let host = started.elapsed().as_secs_f64();
            if round >= 5 {
                on_stream.push(f64::from(begin.elapsed_ms(&end).expect("works")) / 1e3);
                on_host.push(host);
            }
        }
        (median(on_stream), median(on_host))
    }

    /// A region copied with digests, against a bare copy.
    fn blocks(device: &CudaDevice) {
        for mib in [1, 16, 128, 1024] {
            let bytes = mib * MIB;
            let (from, to) = (device.allocate(bytes).expect("room"), device.allocate(bytes).expect("room"));
            let bare = timed(device, |stream| stream.copy(&from, &to).expect("works"));
            for block in [64 << 10, 256 << 10, 1 << 20] {
                let runs = vec![Run::whole(from.clone(), Some(to.clone()), 0)];
                let ours = timed(device, |stream| {
                    stream.copy_blocks(runs.clone(), block).expect("works").wait().expect("works");
                });
                let check = timed(device, |stream| {
                    let runs = vec![Run::whole(from.clone(), None, 0)];
                    stream.copy_blocks(runs.clone(), block).expect("works").wait().expect("works");
                });
                println!(
                    "{{\"figure\": \"copy with digests\", \"mib\": {mib}, \"block_kib\": {}, \"bare_us\": {:.1}, \"ours_us\": {:.1}, \
                     \"ratio\": {:.3}, \"bare_host_us\": {:.1}, \"ours_host_us\": {:.1}, \"host_difference_us\": {:.1}, \"digests_only_us\": {:.1}}}",
                    block >> 10,
                    bare.0 * 1e6,
                    ours.0 * 1e6,
                    ours.0 / bare.0,
                    bare.1 * 1e6,
                    ours.1 * 1e6,
                    (ours.1 - bare.1) * 1e6,
                    check.0 * 1e6,
                );
            }
        }
    }

    /// 128 MiB in many regions, or scattered over many pieces.
    fn regions(device: &CudaDevice) {
        let bytes = 128 * MIB;
        let (from, to) = (device.allocate(bytes).expect("room"), device.allocate(bytes).expect("room"));
        let bare = timed(device, |stream| stream.copy(&from, &to).expect("works"));
        for kib in [64, 256, 2048, 16384] {
            let length = kib << 10;
            let cut = |span: &DeviceSpan, at: u64| span.part(at, length).expect("inside");
            let each = |at: u64| {
                Run::whole(cut(&from, at), Some(cut(&to, at)), (at / length * length.div_ceil(256 << 10)) as u32)
            };
            let runs: Vec<Run> = (0..bytes / length).map(|index| each(index * length)).collect();
            // Made in advance: a program has its runs already.
            let mut prepared = vec![runs; 30];
            let ours = timed(device, |stream| {
                let runs = prepared.pop().expect("one for each round");
                stream.copy_blocks(runs, 256 << 10).expect("works").wait().expect("works");
            });
            println!(
                "{{\"figure\": \"copy of many regions with digests\", \"mib\": 128, \"region_kib\": {kib}, \"bare_us\": {:.1}, \"ours_us\": {:.1}, \
                 \"ratio\": {:.3}, \"bare_host_us\": {:.1}, \"ours_host_us\": {:.1}}}",
                bare.0 * 1e6,
                ours.0 * 1e6,
                ours.0 / bare.0,
                bare.1 * 1e6,
                ours.1 * 1e6,
            );
        }
    }

    /// Page-aligned host memory that has been touched.
    fn host(bytes: u64) -> (HostRange, &'static mut [u8]) {
        let memory = vec![1u8; bytes as usize + 4096].leak();
        let skip = memory.as_ptr().align_offset(4096);
        HostRange::leaked(&mut memory[skip..skip + bytes as usize])
    }

    /// Pinned and pageable transfers: in one large piece, and in pieces as a cache makes them, with and without a gate.
    fn links(device: &CudaDevice) {
        let bytes = 512 * MIB;
        let span = device.allocate(bytes).expect("room");
        let stream = device.stream(Priority::Low).expect("stream");
        let (range, memory) = host(bytes);
        let once = |work: &mut dyn FnMut()| {
            let mut times = Vec::new();
            for round in 0..13 {
                let started = Instant::now();
                work();
                if round >= 3 {
                    times.push(started.elapsed().as_secs_f64());
                }
            }
            bytes as f64 / median(times) / 1e9
        };
        let pageable = once(&mut || {
            stream.download(&mut [(span.clone(), &mut *memory)], None).expect("works");
        });
        let pageable_up = once(&mut || {
            stream.upload(&[(&*memory, span.clone())], None).expect("works");
        });
        let raw = device.context().new_stream().expect("stream");
        let driver = once(&mut || {
            // SAFETY: both have that many bytes, and the copy's end is waited for.
            unsafe { result::memcpy_dtoh_async(&mut *memory, span.address(), raw.cu_stream()) }.expect("works");
            raw.synchronize().expect("works");
        });
        println!(
            "{{\"figure\": \"memory that is not pinned\", \"mib\": 512, \"down_gb_s\": {pageable:.1}, \"up_gb_s\": {pageable_up:.1}, \
             \"driver_down_gb_s\": {driver:.1}}}"
        );
        let pinned = device.pin(&range).expect("pin");
        for (name, piece) in [
            ("one piece", bytes),
            ("pieces of 16 MiB", 16 * MIB),
            ("pieces of 2 MiB", 2 * MIB),
            ("pieces of 64 KiB", 64 << 10),
        ] {
            for gated in [false, true] {
                let mut gate = |_bytes: u64| {};
                let mut parts: Vec<(DeviceSpan, &mut [u8])> = Vec::new();
                let mut at = 0;
                for slice in memory.chunks_mut(piece as usize) {
                    parts.push((span.part(at, slice.len() as u64).expect("inside"), slice));
                    at += piece;
                }
                let down = once(&mut || {
                    stream.download(&mut parts, gated.then_some(&mut gate as &mut dyn FnMut(u64))).expect("works");
                });
                drop(parts);
                let mut at = 0;
                let mut parts: Vec<(&[u8], DeviceSpan)> = Vec::new();
                for slice in memory.chunks(piece as usize) {
                    parts.push((slice, span.part(at, slice.len() as u64).expect("inside")));
                    at += piece;
                }
                let up = once(&mut || {
                    stream.upload(&parts, gated.then_some(&mut gate as &mut dyn FnMut(u64))).expect("works");
                });
                println!(
                    "{{\"figure\": \"link\", \"mib\": 512, \"how\": \"{name}\", \"gate\": {gated}, \"pinned_down_gb_s\": {down:.1}, \"pinned_up_gb_s\": {up:.1}}}"
                );
            }
        }
        drop(pinned);
    }

    /// How fast memory is pinned in parts, and how long one part blocks.
    fn pinning(device: &CudaDevice) {
        for mib in [2, 4, 8, 16, 32, 64, 256] {
            let (range, _) = host(512 * MIB);
            let (mut pinned, mut longest) = (Vec::new(), 0f64);
            let started = Instant::now();
            for at in (0..range.bytes()).step_by((mib * MIB) as usize) {
                let part = range.part(at, mib * MIB).expect("inside");
                let began = Instant::now();
                pinned.push(device.pin(&part).expect("pin"));
                longest = longest.max(began.elapsed().as_secs_f64());
            }
            let took = started.elapsed().as_secs_f64();
            println!(
                "{{\"figure\": \"pinning touched memory in parts\", \"part_mib\": {mib}, \"gb_s\": {:.1}, \"longest_ms\": {:.2}}}",
                range.bytes() as f64 / took / 1e9,
                longest * 1e3
            );
        }
    }

    /// Device memory, mapped in steps.
    fn mapping(device: &CudaDevice) {
        for mib in [2, 16, 64, 256, 1024] {
            let range = device.reserve(4096 * MIB).expect("addresses");
            let started = Instant::now();
            for at in (0..4096 * MIB).step_by((mib * MIB) as usize) {
                range.map(at, mib * MIB).expect("map");
            }
            let took = started.elapsed().as_secs_f64();
            println!(
                "{{\"figure\": \"mapping device memory in steps\", \"step_mib\": {mib}, \"gb_s\": {:.0}, \"step_us\": {:.1}}}",
                4096.0 * MIB as f64 / took / 1e9,
                took * 1e6 / (4096 / mib) as f64
            );
        }
    }
}
