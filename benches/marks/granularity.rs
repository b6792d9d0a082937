//! Scattered pieces of device memory on their way to pinned host memory, by length and by carrier: figure 9 of ICS'19, and what a program
//! that runs at the same time feels of this.
#![forbid(unsafe_code)]

use super::node::{self, median};
use super::{MIB, say, seconds};
use bivouac_core::device::{
    Carrier, Copied, Device, DeviceSpan, HostRange, Priority, Sending, SentPart, Stream, Target,
};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are sent in one go: every second piece of twice as many.
const BYTES: u64 = 256 * MIB;
/// Bytes that are enqueued in one call, and the number of calls that are in progress at once.
const BATCH: u64 = 16 * MIB;
const AHEAD: usize = 4;
/// The paper gathers this many bytes in a buffer before they are sent to the host.
const GATHERED: u64 = 2 * MIB;
const STEPS: usize = 40;

/// Who carries the pieces.
#[derive(Clone, Copy)]
enum Way {
    /// Bare copies to the host, one by one: the paper's (a).
    Copies,
    /// Bare copies into a buffer on the device: the paper's (b).
    Buffer,
    /// The same, and from the buffer to the host in copies of `GATHERED` bytes: the paper's (c).
    Gathered,
    /// Pieces sent by Bivouac.
    Sent(Carrier),
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::Copies => "copies".into(),
            Way::Buffer => "into a buffer".into(),
            Way::Gathered => "by a buffer".into(),
            Way::Sent(Carrier::Engine) => "engine".into(),
            Way::Sent(Carrier::Kernel(width)) => format!("kernel {width}"),
        }
    }
}

struct Bed {
    device: Arc<dyn Device>,
    from: DeviceSpan,
    buffer: DeviceSpan,
    target: Arc<Target>,
    /// Pinned as well, for bare copies.
    bare: &'static mut [u8],
}

impl Bed {
    /// Where every second piece begins.
    fn pieces(&self, size: u64) -> impl Iterator<Item = u64> {
        (0..2 * BYTES).step_by(2 * size as usize)
    }

    /// Sends everything once; returns when it has arrived.
    fn carry(&mut self, stream: &dyn Stream, way: Way, size: u64) {
        let part = |at| self.from.part(at, size).expect("inside");
        match way {
            Way::Copies => {
                let spans: Vec<DeviceSpan> = self.pieces(size).map(part).collect();
                let mut copies: Vec<_> = spans.into_iter().zip(self.bare.chunks_mut(size as usize)).collect();
                stream.download(&mut copies, None).expect("down");
            }
            Way::Buffer | Way::Gathered => {
                for (index, at) in self.pieces(size).enumerate() {
                    let to = self.buffer.part(index as u64 * size, size).expect("inside");
                    stream.copy(&part(at), &to).expect("enqueued");
                }
                if let Way::Gathered = way {
                    let gathered = (0..BYTES).step_by(GATHERED as usize);
                    let gathered = gathered.map(|at| self.buffer.part(at, GATHERED).expect("inside"));
                    let mut copies: Vec<_> = gathered.zip(self.bare.chunks_mut(GATHERED as usize)).collect();
                    stream.download(&mut copies, None).expect("down");
                }
                stream.finish().expect("done");
            }
            Way::Sent(carrier) => {
                let mut under_way: VecDeque<Box<dyn Copied>> = VecDeque::new();
                let pieces: Vec<u64> = self.pieces(size).collect();
                for some in pieces.chunks((BATCH / size).max(1) as usize) {
                    if under_way.len() == AHEAD {
                        under_way.pop_front().expect("some").wait().expect("sent");
                    }
                    let parts = some.iter().map(|at| SentPart { from: *at, to: at / 2, bytes: size }).collect();
                    let to = self.target.part(0, BYTES).expect("all");
                    let sending = Sending { from: self.from.clone(), to, parts };
                    let block = size.clamp(4 << 10, 64 << 10);
                    under_way.push_back(stream.send(vec![sending], block, carrier).expect("enqueued"));
                }
                under_way.into_iter().for_each(|sent| sent.wait().expect("sent"));
            }
        }
    }
}

/// Memory that stays pinned.
fn pinned(device: &dyn Device) -> &'static mut [u8] {
    let (range, memory) = HostRange::leaked(vec![1u8; BYTES as usize + 4096].leak());
    let skip = range.address().next_multiple_of(4096) - range.address();
    let pinned = device.pin(&range.part(skip as u64, BYTES).expect("inside")).expect("pinned");
    std::mem::forget(pinned);
    &mut memory[skip..skip + BYTES as usize]
}

/// Measures on all ranks at once; the figures are the root's. Collective.
pub fn measure(world: &SimpleCommunicator, rounds: usize) {
    let device: Arc<dyn Device> = node::gpu(world).expect("a GPU");
    let allocate = |bytes| device.allocate(bytes).expect("room");
    let (from, buffer, one, other) = (allocate(2 * BYTES), allocate(BYTES), allocate(512 * MIB), allocate(512 * MIB));
    let target = Target::leaked(pinned(&*device));
    let bare = pinned(&*device);
    let mut bed = Bed { device: device.clone(), from, buffer, target, bare };
    let program = device.stream(Priority::High).expect("a stream");
    let step = || {
        seconds(|| {
            (0..4).for_each(|_| program.copy(&one, &other).expect("enqueued"));
            program.finish().expect("done");
        })
    };
    let widths = [2, 4, 8, 16, 32].map(|width| Way::Sent(Carrier::Kernel(width)));
    let ways = [Way::Copies, Way::Buffer, Way::Gathered, Way::Sent(Carrier::Engine)].into_iter().chain(widths);
    for way in ways {
        for size in [4u64, 16, 64, 256, 1024, 4096, 16384].map(|kib| kib << 10) {
            let ours = bed.device.stream(Priority::Low).expect("a stream");
            world.barrier();
            bed.carry(&*ours, way, size);
            let alone: Vec<f64> = (0..rounds).map(|_| seconds(|| bed.carry(&*ours, way, size))).collect();
            let steps_alone: Vec<f64> = (0..STEPS / 2).map(|_| step()).collect();
            let is_over = AtomicBool::new(false);
            let (mut beside, mut steps_beside) = (Vec::new(), Vec::new());
            std::thread::scope(|scope| {
                let carrying = scope.spawn(|| {
                    let mut times = Vec::new();
                    while !is_over.load(Ordering::Relaxed) || times.is_empty() {
                        times.push(seconds(|| bed.carry(&*ours, way, size)));
                    }
                    times
                });
                steps_beside = (0..STEPS).map(|_| step()).collect();
                is_over.store(true, Ordering::Relaxed);
                beside = carrying.join().expect("no panic");
            });
            let rate = |times: &[f64]| BYTES as f64 / 1e9 / median(times);
            let line = json!({
                "figure": "granularity", "way": way.name(), "piece": size, "gb_s": rate(&alone), "gb_s_beside": rate(&beside),
                "step_of_alone": median(&steps_beside) / median(&steps_alone),
            });
            say(world, line);
        }
    }
}
