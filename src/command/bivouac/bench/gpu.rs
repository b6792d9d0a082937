//! Measures the links of GPUs and the pinning of node memory.

use super::Taken;
use std::sync::atomic::AtomicBool;

/// Measures nothing, because this build does not support GPUs.
///
/// # Errors
/// Always, with a message that says so.
#[cfg(not(feature = "cuda"))]
pub fn measure(_: u64, _: &AtomicBool) -> Result<Vec<Taken>, String> {
    Err("this bivouac was built without the feature cuda".into())
}

/// Measures links and pinning: each GPU downloads into its own pinned memory, first alone and then all at once.
///
/// # Errors
/// There is no GPU, or its driver reports an error.
#[cfg(feature = "cuda")]
pub fn measure(size: u64, interrupted: &AtomicBool) -> Result<Vec<Taken>, String> {
    links::measure(size, interrupted)
}

#[cfg(feature = "cuda")]
mod links {
    use super::Taken;
    use bivouac_core::device::cuda::CudaDevice;
    use bivouac_core::device::{Device, DeviceError, DeviceSpan, HostRange, Priority, Stream};
    use bivouac_core::format::profile::Name;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Barrier};
    use std::time::Instant;

    /// The maximum number of GPUs on a node that are looked for.
    const GPUS_MAX: usize = 16;
    /// The rounds that count; the round before them does not count.
    const ROUNDS: usize = 5;
    /// The maximum bytes of a transfer: longer transfers are no faster.
    const BYTES_MAX: u64 = 256 << 20;

    /// One GPU and the memory into which it downloads.
    struct Link {
        stream: Arc<dyn Stream>,
        span: DeviceSpan,
        memory: &'static mut [u8],
    }

    impl Link {
        fn download(&mut self) -> Result<f64, DeviceError> {
            let begun = Instant::now();
            self.stream.download(&mut [(self.span.clone(), &mut *self.memory)], None)?;
            Ok(begun.elapsed().as_secs_f64())
        }
    }

    pub fn measure(size: u64, interrupted: &AtomicBool) -> Result<Vec<Taken>, String> {
        let words = |error: DeviceError| error.to_string();
        let bytes = size.min(BYTES_MAX);
        let mut devices = vec![CudaDevice::open(0).map_err(words)?];
        devices.extend((1..GPUS_MAX).map_while(|ordinal| CudaDevice::open(ordinal).ok()));
        let (mut links, mut pinned, mut pins) = (Vec::new(), Vec::new(), Vec::new());
        for device in &devices {
            // The memory stays allocated until the process ends, as pinned memory must.
            let memory = vec![1u8; bytes as usize + 4096].leak();
            let skip = memory.as_ptr().align_offset(4096);
            let (range, memory) = HostRange::leaked(&mut memory[skip..skip + bytes as usize]);
            let begun = Instant::now();
            pinned.push(device.pin(&range).map_err(words)?);
            pins.push(begun.elapsed().as_secs_f64());
            let span = device.allocate(bytes).map_err(words)?;
            links.push(Link { stream: device.stream(Priority::High).map_err(words)?, span, memory });
        }
        let mut alone = Vec::new();
        for link in &mut links {
            for round in 0..=ROUNDS {
                let took = link.download().map_err(words)?;
                alone.extend((round > 0).then_some(took));
            }
        }
        let mut together = Vec::new();
        for round in 0..=ROUNDS {
            if interrupted.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            let took = at_once(&mut links).map_err(words)?;
            together.extend((round > 0).then_some(took));
        }
        let all = bytes * links.len() as u64;
        Ok(vec![
            Taken { name: Name::Pin, bytes, seconds: pins },
            Taken { name: Name::LinkAlone, bytes, seconds: alone },
            Taken { name: Name::LinkTogether, bytes: all, seconds: together },
        ])
    }

    /// How long the slowest link takes if all links begin together.
    fn at_once(links: &mut [Link]) -> Result<f64, DeviceError> {
        let barrier = Barrier::new(links.len());
        std::thread::scope(|scope| {
            let start = |link| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    Link::download(link)
                })
            };
            let running: Vec<_> = links.iter_mut().map(start).collect();
            running
                .into_iter()
                .map(|one| one.join().expect("a transfer does not panic"))
                .try_fold(0.0f64, |most, took| Ok(most.max(took?)))
        })
    }
}
