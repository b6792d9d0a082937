//! Thousands of marks on a GPU, while kernels and CUDA graphs write from several streams: a restart loads the regions as they were
//! when they were marked.
#![deny(unsafe_code)] // The example's modules `card` and `gpu` are exceptions.
#![cfg(feature = "cuda")]

#[allow(dead_code)]
#[path = "../mpi-examples/card.rs"]
mod card;
#[allow(dead_code)]
#[path = "../mpi-examples/minis/kernels.rs"]
mod kernels;
mod machine;
#[allow(dead_code)]
#[path = "../mpi-examples/minis/machine.rs"]
mod program;

use bivouac_core::base::rng::Rng;
use bivouac_core::config::{HostWrites, OffloadConfig, OffloadMode};
use bivouac_core::device::{DeviceSpan, Moment};
use bivouac_core::{Attempt, Level, Offload, OffloadError, Pending, Session, WriteSet};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use kernels::{Kernel, Numbers};
use machine::{MIB, Machine as Node, NAME, reaches};
use program::Machine;
use program::gpu::Gpu;
use std::sync::Arc;

/// The lengths of the regions in bytes. The second region ends inside a block.
const REGIONS: [u64; 2] = [6 * MIB, MIB + 52];
/// Rounds with each number of streams, unless `BIVOUAC_TEST_ROUNDS` says otherwise.
const ROUNDS: u64 = 500;
/// One version in this many is loaded and compared.
const LOOKED_AT: u64 = 8;

fn rounds() -> u64 {
    std::env::var("BIVOUAC_TEST_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"))
}

/// A CUDA graph of one stream, and the regions to which it writes.
struct Graph {
    graph: cudarc::driver::CudaGraph,
    regions: Vec<usize>,
    set: WriteSet,
}

struct Program {
    rng: Rng,
    streams: Vec<Gpu>,
    graphs: Vec<Vec<Graph>>,
    regions: Vec<DeviceSpan>,
    /// The regions as they were at the last mark.
    shadows: Vec<DeviceSpan>,
    /// Moments after the last work on each region.
    last: Vec<Option<Arc<dyn Moment>>>,
}

impl Program {
    fn new(gpu: &Gpu, streams: usize, offload: &Offload, seed: u64) -> Program {
        let allocate = |bytes: &u64| gpu.device().allocate(*bytes).expect("room");
        let regions: Vec<DeviceSpan> = REGIONS.iter().map(allocate).collect();
        let shadows = REGIONS.iter().map(allocate).collect();
        let streams: Vec<Gpu> = (0..streams).map(|_| gpu.beside().expect("a stream")).collect();
        let mut rng = Rng::new(seed);
        let graphs = streams.iter().map(|stream| (0..3).map(|_| graph(stream, &regions, offload, &mut rng)).collect());
        let graphs = graphs.collect();
        let last = vec![None; regions.len()];
        let program = Program { rng, streams, graphs, regions, shadows, last };
        for region in &program.regions {
            fill(&program.streams[0], region, 1);
        }
        program.streams[0].stream().finish().expect("filled");
        program
    }

    /// Makes later work on a stream wait for the work on these regions.
    fn follow(&self, stream: usize, regions: &[usize]) {
        for last in regions.iter().filter_map(|region| self.last[*region].as_ref()) {
            self.streams[stream].stream().wait_for(&**last).expect("our own moment");
        }
    }

    fn lead(&mut self, stream: usize, regions: &[usize]) {
        let moment = self.streams[stream].stream().moment().expect("a moment");
        regions.iter().for_each(|region| self.last[*region] = Some(moment.clone()));
    }

    /// Declares and enqueues some kernels, or a graph, on some stream.
    fn work(&mut self, offload: &Offload) {
        let stream = self.rng.below(self.streams.len() as u64) as usize;
        if self.rng.chance(1, 3) {
            let which = self.rng.below(self.graphs[stream].len() as u64) as usize;
            let regions = self.graphs[stream][which].regions.clone();
            offload.before(&self.graphs[stream][which].set, self.streams[stream].stream()).expect("declared");
            self.follow(stream, &regions);
            self.graphs[stream][which].graph.launch().expect("launched");
            return self.lead(stream, &regions);
        }
        let region = self.rng.below(self.regions.len() as u64) as usize;
        let part = part(&self.regions[region], &mut self.rng);
        offload.before_write(&part, self.streams[stream].stream()).expect("declared");
        self.follow(stream, &[region]);
        // The work has a random length.
        for _ in 0..1 + self.rng.below(6) {
            fill(&self.streams[stream], &part, self.rng.next_u64() as u32);
        }
        self.lead(stream, &[region]);
    }

    fn mark(&mut self, session: &Session, offload: &Offload, version: u64) -> Pending {
        let stream = self.rng.below(self.streams.len() as u64) as usize;
        self.follow(stream, &[0, 1]);
        for (region, shadow) in self.regions.iter().zip(&self.shadows) {
            self.streams[stream].stream().copy(region, shadow).expect("enqueued");
        }
        let mut checkpoint = session
            .begin_checkpoint(NAME, version)
            .expect("begun")
            .with_offload(offload, self.streams[stream].stream());
        checkpoint.value("version", &version).expect("saved");
        for (name, region) in ["large", "small"].into_iter().zip(&self.regions) {
            checkpoint.save_device::<u8>(name, region).expect("saved");
        }
        checkpoint.capture().expect("marked")
    }

    /// Checks that the restored regions are equal to the shadows.
    fn compare(&self, session: &Session, version: u64) {
        let mut loaded = REGIONS.map(|bytes| vec![0u8; bytes as usize]);
        let restored = session.begin_restore(NAME).run(|restorer: &mut Attempt| {
            restorer.load("large", &mut loaded[0])?;
            restorer.load("small", &mut loaded[1])?;
            Ok(())
        });
        assert_eq!(restored.expect("restarts").map(|restored| restored.version), Some(version));
        for (loaded, shadow) in loaded.iter().zip(&self.shadows) {
            let mut expected = vec![0u8; loaded.len()];
            let stream = self.streams[0].stream();
            stream.download(&mut [(shadow.clone(), &mut expected[..])], None).expect("down");
            assert!(*loaded == expected, "version {version}");
        }
    }
}

fn part(region: &DeviceSpan, rng: &mut Rng) -> DeviceSpan {
    let words = region.bytes() / 4;
    let start = rng.below(words);
    let length = 1 + rng.below(words - start);
    region.part(4 * start, 4 * length).expect("inside")
}

fn fill(stream: &Gpu, part: &DeviceSpan, seed: u32) {
    let numbers = Numbers { items: part.bytes() / 4, step: seed, value: 1.0, ..Numbers::default() };
    stream.launch(Kernel::Fill, &[part], numbers).expect("enqueued");
}

/// Records a graph that writes to parts of regions. During the recording, nothing can be declared.
fn graph(stream: &Gpu, regions: &[DeviceSpan], offload: &Offload, rng: &mut Rng) -> Graph {
    let touched: Vec<usize> = (0..regions.len()).filter(|_| rng.chance(1, 2)).collect();
    let parts: Vec<DeviceSpan> = touched.iter().map(|region| part(&regions[*region], rng)).collect();
    let launches = stream.launches();
    launches.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("recording");
    let refused = offload.before_write(&regions[0], stream.stream());
    assert!(matches!(refused, Err(OffloadError::Recording)), "{refused:?}");
    for part in &parts {
        (0..1 + rng.below(4)).for_each(|seed| fill(stream, part, seed as u32));
    }
    // The driver makes no graph of an empty recording.
    let scratch = stream.device().allocate(4096).expect("room");
    fill(stream, &scratch, 3);
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = launches.end_capture(flags).expect("recorded").expect("a graph");
    // The scratch memory lives as long as the graph: the graph's write set includes it as well, and memory that is not saved is ignored.
    let set = offload.write_set("graph", &[parts, vec![scratch]].concat());
    Graph { graph, regions: touched, set }
}

fn run(gpu: &Gpu, streams: usize, buffer_bytes: u64, audit: bool) {
    let offload = OffloadConfig { mode: OffloadMode::Always, audit, host_writes: HostWrites::Watched };
    let node = Node { offload, buffer_bytes, ..Node::new() };
    node.run(1, |_, session| {
        let caches = session.caches(gpu.device().clone()).expect("caches");
        let offload = session.offload(&caches).expect("an offload");
        offload.prepare(REGIONS.iter().sum()).expect("prepared");
        let mut program = Program::new(gpu, streams, &offload, streams as u64);
        for version in 1..=rounds() {
            for _ in 0..program.rng.below(4) {
                program.work(&offload);
            }
            let pending = program.mark(session, &offload, version);
            for _ in 0..program.rng.below(4) {
                program.work(&offload);
            }
            if version % LOOKED_AT == 0 {
                reaches(Ok(pending), Level::Process);
                program.compare(session, version);
            }
        }
        offload.settle();
        let stats = offload.stats();
        // A few marks find a slot that an older version still uses, and others find one that is not pinned yet: these are copied.
        assert!(stats.marks > rounds() * 9 / 10 && stats.refused == 0, "{stats:?}");
        eprintln!("{streams} streams, a buffer of {buffer_bytes}, audit {audit}: {stats:?}");
    });
    std::fs::remove_dir_all(node.folder("memory")).expect("its memory goes");
}

#[test]
fn thousands_of_rounds_on_a_gpu() {
    let gpu = match Gpu::open(0, None) {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!(
                "SKIPPED: {error}; on a machine with a GPU: BIVOUAC_TEST_ROUNDS=2500 cargo nextest run --test offload_rounds"
            );
            return;
        }
    };
    for (streams, buffer_bytes, audit) in [(1, 8 * MIB, true), (2, MIB, true), (3, 0, true), (4, 2 * MIB, false)] {
        run(&gpu, streams, buffer_bytes, audit);
    }
}
