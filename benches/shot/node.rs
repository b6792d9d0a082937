//! What the benches with GPUs and ranks have in common.

use bivouac_core::base::ids::{Generation, Incarnation};
use bivouac_core::device::cuda::CudaDevice;
use bivouac_core::segment::{Segment, SegmentSpec};
use cudarc::driver::CudaContext;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::sync::Arc;

/// This rank's GPU: the rank's number on the node, modulo the number of GPUs. Where there is none, says so and returns `None`.
pub fn gpu(world: &SimpleCommunicator) -> Option<Arc<CudaDevice>> {
    let first = match CudaDevice::open(0) {
        Ok(first) => first,
        Err(error) => {
            if world.rank() == 0 {
                eprintln!("SKIPPED: {error}; run it on a machine with a GPU: ci/gpu/bundle.sh, out/gpu/run.sh --shots");
            }
            return None;
        }
    };
    match world.rank() as usize % gpus() {
        0 => Some(Arc::new(first)),
        other => Some(Arc::new(CudaDevice::open(other).expect("a GPU that was counted"))),
    }
}

/// The number of GPUs.
pub fn gpus() -> usize {
    CudaContext::device_count().map_or(1, |count| count.max(1) as usize)
}

/// A segment of the ranks, with this many bytes for each. The root closes it last.
pub fn segment(world: &SimpleCommunicator, bytes_of_each: u64) -> Arc<Segment> {
    let (rank, size) = (world.rank() as u32, world.size() as u32);
    let mut name = [u64::from(std::process::id())];
    world.process_at_rank(0).broadcast_into(&mut name);
    let spec = SegmentSpec {
        directory: "/dev/shm".into(),
        name: format!("bivouac-bench-{}", name[0]),
        job: 1,
        group: 1,
        generation: Generation(1),
        incarnation: Incarnation([1; 16]),
        store: 0,
        budget: u64::from(size) * bytes_of_each,
        node_ranks: size,
        group_size: size,
    };
    let made = (rank == 0).then(|| Segment::create(&spec).expect("segment"));
    world.barrier();
    Arc::new(made.unwrap_or_else(|| Segment::attach(&spec, rank).expect("segment")))
}

/// Touches the machine's memory once, with several threads: a virtual machine receives it from its host only then, which is
/// slow and happens once.
pub fn warm(bytes: u64) {
    let mut memory: Vec<u8> = Vec::with_capacity(bytes as usize);
    let parts = memory.spare_capacity_mut().chunks_mut((bytes as usize).div_ceil(8));
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(|| {
                for byte in part.iter_mut().step_by(4096) {
                    byte.write(1);
                }
            });
        }
    });
}

/// The value below which this share of all values lies.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}
