//! The figures of restarts on a different number of ranks: each is a ratio of two things measured in turn, in one run, on as many bytes.
//!
//! Run it through `benches/elastic.sh`. One mpirun has as many ranks as the greater number; the others stay idle where fewer load or save.
//! Every line that rank 0 prints is one JSON object.
#![forbid(unsafe_code)]

#[cfg(feature = "cuda")]
#[path = "elastic/gpu.rs"]
mod gpu;
mod nodes;
#[path = "elastic/numbers.rs"]
mod numbers;

use bivouac_core::base::ids::text_hash;
use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::config::{Budget, Scheme, Timeouts};
use bivouac_core::decomposition::Boxes;
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::posix::PageBuffer;
use bivouac_core::{Config, Level, Session};
use clap::Parser;
use mpi::collective::SystemOperation;
use mpi::point_to_point::send_receive_into;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives};
use nodes::Scattered;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
/// Bytes of a raw read, and the threads per rank that read.
const READ: usize = 4 << 20;
const READERS: usize = 4;
/// The node that dies.
const DEAD: u32 = 1;

#[derive(Parser, Clone)]
struct Options {
    /// What to measure.
    #[arg(value_parser = ["blocking", "same", "memory", "hosts", "lost", "files", "decompose", "numbers", "gpu-same", "gpu"])]
    figure: String,
    /// How the array is cut: along its slowest dimension, into boxes with rows of 512 bytes, or saved along one dimension and loaded along the other.
    #[arg(long, default_value = "slab", value_parser = ["slab", "box", "turned"])]
    cut: String,
    /// Ranks that save.
    #[arg(long, default_value_t = 2)]
    from: u32,
    /// Ranks that load.
    #[arg(long, default_value_t = 2)]
    to: u32,
    /// MiB for each rank that saves.
    #[arg(long, default_value_t = 64)]
    mib: u64,
    /// Nodes that the ranks are spread over.
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// Rounds that count.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Directory for the tiers, on the file system to measure.
    #[arg(long)]
    dir: PathBuf,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    env_logger::init();
    let options = Options::parse();
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    // A panic on one rank would leave the others waiting for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        SimpleCommunicator::world().abort(1);
    }));
    let bench = Bench { world: universe.world(), options };
    let folder = bench.folder(0);
    match &*bench.options.figure {
        "blocking" => bench.blocking(),
        "same" => bench.same(),
        "decompose" => bench.decompose(),
        "numbers" => numbers::all(&bench),
        #[cfg(feature = "cuda")]
        "gpu-same" => gpu::same(&bench),
        #[cfg(feature = "cuda")]
        "gpu" => gpu::other(&bench),
        #[cfg(not(feature = "cuda"))]
        "gpu-same" | "gpu" => panic!("this program was built without the feature cuda"),
        _ => bench.resized(),
    }
    bench.world.barrier();
    if bench.world.rank() == 0 {
        drop(std::fs::remove_dir_all(folder.parent().expect("a parent")));
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The value of an element of the array.
fn value(index: u64) -> f64 {
    f64::from_bits((index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12) | 0x3ff0_0000_0000_0000)
}

/// This many ranks in three dimensions, as evenly as possible, with most of them along the slowest.
fn grid(ranks: u64) -> [u64; 3] {
    let mut best = [ranks, 1, 1];
    for x in 1..=ranks {
        for y in (x..=ranks).filter(|y| ranks.is_multiple_of(x * y)) {
            let z = ranks / (x * y);
            if z >= y && z < best[0] {
                best = [z, y, x];
            }
        }
    }
    best
}

/// The box of one rank: where it begins, and its extents.
struct Mine {
    shape: [u64; 3],
    origin: [u64; 3],
    extent: [u64; 3],
}

impl Mine {
    fn of(shape: [u64; 3], cuts: [u64; 3], rank: u64) -> Mine {
        let place = [rank / (cuts[1] * cuts[2]), rank / cuts[2] % cuts[1], rank % cuts[2]];
        let first = |dim: usize, at: u64| at * shape[dim] / cuts[dim];
        let origin = [0, 1, 2].map(|dim| first(dim, place[dim]));
        let extent = [0, 1, 2].map(|dim| first(dim, place[dim] + 1) - origin[dim]);
        Mine { shape, origin, extent }
    }

    fn elements(&self) -> usize {
        self.extent.iter().product::<u64>() as usize
    }

    fn boxes(&self, halo: [u64; 3]) -> Boxes {
        Boxes::of(self.shape).own(self.origin, self.extent).halo(halo)
    }

    /// All elements, in order, as their places in the array.
    fn indices(&self) -> impl Iterator<Item = u64> + '_ {
        let [_, y, x] = self.shape;
        let [oz, oy, ox] = self.origin;
        let [ez, ey, ex] = self.extent;
        (oz..oz + ez)
            .flat_map(move |a| (oy..oy + ey).flat_map(move |b| (ox..ox + ex).map(move |c| (a * y + b) * x + c)))
    }
}

struct Bench {
    world: SimpleCommunicator,
    options: Options,
}

impl Bench {
    fn rank(&self) -> u32 {
        self.world.rank() as u32
    }

    /// The longest of all ranks' times.
    fn slowest(&self, mine: f64) -> f64 {
        let mut all = 0.0;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
        all
    }

    /// Waits, asleep, until all ranks are here: a rank that waits in MPI spins, and would take a processor from those that load.
    fn rest(&self) {
        let mut barrier = self.world.immediate_barrier();
        while let Err(not_yet) = barrier.test() {
            barrier = not_yet;
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Runs `body` on all ranks at once and returns the slowest rank's time.
    fn timed(&self, body: impl FnOnce()) -> f64 {
        self.world.barrier();
        let start = Instant::now();
        body();
        self.slowest(start.elapsed().as_secs_f64())
    }

    fn print(&self, what: &str, ours: f64, (against, reference): (&str, f64), bytes: u64) {
        if self.rank() == 0 {
            let Options { cut, from, to, mib, rounds, nodes, .. } = &self.options;
            let line = json!({
                "figure": what, "cut": cut, "from": from, "to": to, "mib_per_saver": mib, "nodes": nodes, "rounds": rounds,
                "bytes": bytes, "ours_s": ours, "against": against, "against_s": reference,
                "ratio": (ours / reference * 1000.0).round() / 1000.0,
            });
            println!("{line}");
        }
    }

    /// The node of each of `ranks` ranks. Ranks that load what is in the memory of other hosts are where other ranks were, and no rank is
    /// on a node that has died.
    fn nodes(&self, ranks: u32, are_savers: bool) -> Vec<u32> {
        let Options { figure, nodes, .. } = &self.options;
        let mut all: Vec<u32> = (0..*nodes).collect();
        match (are_savers, &**figure) {
            (false, "hosts") => all.reverse(),
            (false, "lost") => drop(all.remove(DEAD as usize)),
            _ => {}
        }
        (0..ranks).map(|rank| all[rank as usize * all.len() / ranks as usize]).collect()
    }

    fn folder(&self, node: u32) -> PathBuf {
        PathBuf::from(format!("/dev/shm/bivouac-elastic-{:x}", text_hash(&self.options.dir.to_string_lossy())))
            .join(node.to_string())
    }

    fn config(&self, node: u32) -> Config {
        let Options { figure, mib, .. } = &self.options;
        let mut config = Config::default();
        config.job.name = Some("elastic".into());
        config.job.take_over = true;
        config.job.local_enabled = figure == "files";
        config.job.memory_enabled = figure != "files";
        config.job.global_enabled = false;
        if figure == "lost" {
            config.job.redundancy.scheme = Scheme::Xor { members: 4 };
        }
        config.node.memory_budget =
            Budget::Bytes(u64::from(self.options.from.max(self.options.to)) * ((mib << 23) + (64 << 20)));
        config.node.memory_directory = self.folder(node);
        config.node.local_directory = Some(self.options.dir.join("local"));
        config.job.global_directory = self.options.dir.join("global");
        config
    }

    /// The first `ranks` ranks, and a session of theirs; `None` on the others.
    fn open(&self, ranks: u32, are_savers: bool) -> Option<(SimpleCommunicator, Session)> {
        let is_in = self.rank() < ranks;
        let some = self.world.split_by_color(if is_in { Color::with_value(0) } else { Color::undefined() })?;
        let nodes = self.nodes(ranks, are_savers);
        let config = self.config(nodes[self.rank() as usize]);
        std::fs::create_dir_all(&config.node.memory_directory).expect("a folder");
        some.barrier();
        let inner = MpiComm::duplicate(&some, &Timeouts::default()).expect("a communicator");
        let place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
        // Nodes are numbered in the order of their first ranks.
        let mut known: Vec<u32> = Vec::new();
        let mut number = |node: &u32| {
            let place = known.iter().position(|known| known == node);
            place.unwrap_or_else(|| {
                known.push(*node);
                known.len() - 1
            }) as u32
        };
        let nodes = nodes.iter().map(&mut number).collect();
        let session = Session::open_on(Box::new(Scattered { inner, nodes }), &place, config).expect("opens");
        Some((some, session))
    }

    /// The shape of the array, and into how many parts the ranks that save and the ranks that load cut its dimensions.
    fn cuts(&self) -> ([u64; 3], [u64; 3], [u64; 3]) {
        let (from, to) = (u64::from(self.options.from), u64::from(self.options.to));
        let elements = from * self.options.mib * (1 << 17);
        match &*self.options.cut {
            "slab" => ([elements / 8192, 1, 8192], [from, 1, 1], [to, 1, 1]),
            "turned" => ([elements / 8192, 1, 8192], [from, 1, 1], [1, 1, to]),
            _ => {
                let cuts = grid(from);
                let x = 64 * cuts[2];
                let y = 256 * cuts[1];
                ([elements / (x * y), y, x], cuts, grid(to))
            }
        }
    }

    /// Blocking time of `save_on` against that of `save` of the packed bytes.
    fn blocking(&self) {
        let bytes = self.options.mib << 20;
        for (what, row, halo) in
            [("no halo", 8192u64, [0; 3]), ("rows of 4 KiB", 512, [1; 3]), ("rows of 512 B", 64, [1; 3])]
        {
            let Some((_, session)) = self.open(self.options.from, true) else { continue };
            let rows = bytes / 8 / row;
            let shape = [u64::from(self.options.from) * rows / 16, 16, row];
            let mine = Mine::of(shape, [u64::from(self.options.from), 1, 1], u64::from(self.rank()));
            let on = session.decompose(mine.boxes(halo)).expect("it tiles");
            let memory = [0, 1, 2].map(|dim| mine.extent[dim] + 2 * halo[dim]).iter().product::<u64>();
            let dealt: Vec<f64> = (0..memory).map(value).collect();
            let packed: Vec<f64> = (0..mine.elements() as u64).map(value).collect();
            session.prepare(bytes);
            std::thread::sleep(std::time::Duration::from_secs(1));
            let (mut ours, mut reference, mut version) = (Vec::new(), Vec::new(), 0);
            for round in 0..=2 * self.options.rounds {
                for is_dealt in [round % 2 == 0, round % 2 == 1] {
                    version += 1;
                    let mut pending = None;
                    let took = self.timed(|| {
                        let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                        match is_dealt {
                            true => checkpoint.save_on("t", &on, &dealt).expect("saved"),
                            false => checkpoint.save("t", &packed).expect("saved"),
                        };
                        pending = Some(checkpoint.capture().expect("captured"));
                    });
                    pending.expect("captured").wait(Level::Process).expect("committed");
                    if round > 0 {
                        if is_dealt { &mut ours } else { &mut reference }.push(took);
                    }
                }
            }
            self.print(
                &format!("blocking, {what}"),
                median(ours),
                ("save of the packed bytes", median(reference)),
                bytes,
            );
            drop(session);
        }
    }

    /// `load_on` on the decomposition that the array was saved on, against `load` of as many bytes.
    fn same(&self) {
        let bytes = self.options.mib << 20;
        for (what, halo) in [("no halo", [0; 3]), ("halo, rows of 4 KiB", [1; 3])] {
            let Some((_, session)) = self.open(self.options.from, true) else { continue };
            let from = u64::from(self.options.from);
            let shape = [from * bytes / 8 / 512 / 16, 16, 512];
            let mine = Mine::of(shape, [from, 1, 1], u64::from(self.rank()));
            let on = session.decompose(mine.boxes(halo)).expect("it tiles");
            let memory = [0, 1, 2].map(|dim| mine.extent[dim] + 2 * halo[dim]).iter().product::<u64>();
            let mut dealt: Vec<f64> = (0..memory).map(value).collect();
            let mut packed: Vec<f64> = (0..mine.elements() as u64).map(value).collect();
            let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
            checkpoint.save_on("t", &on, &dealt).expect("saved");
            checkpoint.save("u", &packed).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            let (mut ours, mut reference) = (Vec::new(), Vec::new());
            for round in 0..=self.options.rounds {
                session
                    .begin_restore("heat")
                    .run(|r| {
                        ours.push(self.timed(|| r.load_on("t", &on, &mut dealt).expect("loaded")));
                        reference.push(self.timed(|| r.load("u", &mut packed).expect("loaded")));
                        Ok(())
                    })
                    .expect("restored");
                if round == 0 {
                    ours.clear();
                    reference.clear();
                }
            }
            self.print(&format!("same decomposition, {what}"), median(ours), ("load", median(reference)), bytes);
            drop(session);
        }
    }

    fn decompose(&self) {
        let (shape, cuts, _) = self.cuts();
        if let Some((some, session)) = self.open(self.options.from, true) {
            let mine = Mine::of(shape, cuts, u64::from(self.rank()));
            let (mut ours, mut reference) = (Vec::new(), Vec::new());
            for round in 0..=self.options.rounds {
                some.barrier();
                let start = Instant::now();
                session.decompose(mine.boxes([0; 3])).expect("it tiles");
                let took = start.elapsed().as_secs_f64();
                some.barrier();
                let start = Instant::now();
                let mut all = 0u64;
                some.all_reduce_into(&1u64, &mut all, SystemOperation::sum());
                if round > 0 {
                    ours.push(took);
                    reference.push(start.elapsed().as_secs_f64());
                }
            }
            self.print("decompose", median(ours), ("one MPI_Allreduce", median(reference)), 0);
        }
    }

    /// Takes a checkpoint on the ranks that save, which then end as if they were killed.
    fn save(&self) {
        let (shape, cuts, _) = self.cuts();
        let Some((_, session)) = self.open(self.options.from, true) else { return };
        let mine = Mine::of(shape, cuts, u64::from(self.rank()));
        let on = session.decompose(mine.boxes([0; 3])).expect("it tiles");
        let data: Vec<f64> = mine.indices().map(value).collect();
        let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
        checkpoint.save_on("first", &on, &data).expect("saved");
        checkpoint.save_on("second", &on, &data).expect("saved");
        let level = match &*self.options.figure {
            "lost" => Level::NodeLoss,
            "files" => Level::NodeReboot,
            _ => Level::Process,
        };
        let pending = checkpoint.capture().expect("captured");
        pending.wait(level).expect("committed");
        drop(session);
    }

    /// Seconds that the ranks that load take to elect, to load the first region, and to load the second.
    fn load(&self, ranks: u32, data: &mut Vec<f64>, is_checked: bool) -> [f64; 3] {
        let (shape, from, to) = self.cuts();
        let cuts = if ranks == self.options.from && self.options.from != self.options.to { from } else { to };
        let times = self.open(ranks, false).map(|(some, session)| {
            let mine = Mine::of(shape, cuts, u64::from(self.rank()));
            let on = session.decompose(mine.boxes([0; 3])).expect("it tiles");
            data.resize(mine.elements(), 1.0);
            let mut times = [0.0; 3];
            let timed = |body: &mut dyn FnMut()| {
                some.barrier();
                let start = Instant::now();
                body();
                start.elapsed().as_secs_f64()
            };
            some.barrier();
            let start = Instant::now();
            session
                .begin_restore("heat")
                .run(|r| {
                    times[0] = start.elapsed().as_secs_f64();
                    for (name, time) in [("first", 1), ("second", 2)] {
                        times[time] = timed(&mut || r.load_on(name, &on, &mut data[..]).expect("loaded"));
                        if is_checked {
                            assert!(mine.indices().zip(&*data).all(|(at, found)| value(at) == *found), "wrong data");
                        }
                    }
                    Ok(())
                })
                .expect("restored")
                .expect("it is there");
            drop(session);
            times
        });
        self.rest();
        times.unwrap_or_default().map(|time| self.slowest(time))
    }

    fn resized(&self) {
        let Options { figure, from, to, rounds, mib, .. } = self.options.clone();
        if figure == "files" {
            // No file of another run may be left.
            if self.rank() == 0 {
                drop(std::fs::remove_dir_all(self.options.dir.join("local")));
            }
            self.world.barrier();
        }
        self.save();
        let bytes = u64::from(from) * (mib << 20) / u64::from(to);
        let mut data = Vec::new();
        if figure == "lost" {
            self.world.barrier();
            if self.rank() == 0 {
                std::fs::remove_dir_all(self.folder(DEAD)).expect("its memory goes");
            }
        }
        let source: Vec<f64> = (0..bytes / 8).map(value).collect();
        let mut target = source.clone();
        let raw = self.options.dir.join(format!("raw-{}", self.rank()));
        let mut buffers: Vec<PageBuffer> = (0..READERS).map(|_| PageBuffer::new(READ)).collect();
        if figure == "files" && self.rank() < to {
            write_raw(&raw, bytemuck::cast_slice(&source));
        }
        let mut all: [Vec<f64>; 4] = Default::default();
        for round in 0..=rounds {
            if figure == "files" {
                self.drop_caches();
            }
            let ours = self.load(to, &mut data, round == 0);
            let reference = match &*figure {
                "hosts" => self.sendrecv(&source, &mut target),
                // The same number of ranks as before, on their own decomposition.
                "lost" => {
                    let mut own = Vec::new();
                    let same = self.load(from, &mut own, false);
                    same[0] + same[1]
                }
                "files" => {
                    self.drop_caches();
                    self.timed(|| {
                        if self.rank() < to {
                            read_raw(&raw, bytes as usize, &mut buffers);
                        }
                    })
                }
                _ => self.timed(|| {
                    if self.rank() < to {
                        black_box(&mut target).copy_from_slice(black_box(&source));
                    }
                }),
            };
            if round > 0 {
                all.iter_mut().zip([ours[0], ours[1], ours[2], reference]).for_each(|(all, one)| all.push(one));
            }
        }
        let whole: Vec<f64> = all[0].iter().zip(&all[1]).map(|(elect, load)| elect + load).collect();
        let [elect, first, second, reference] = all.map(median);
        let against = match &*figure {
            "hosts" => "MPI_Sendrecv of as much",
            "lost" => "elect and load on as many ranks as saved it",
            "files" => "raw O_DIRECT reads of 4 MiB by 4 threads",
            _ => "memcpy into touched private memory",
        };
        if figure == "lost" {
            self.print("elect, plan and load", median(whole), (against, reference), bytes);
        } else {
            self.print(&format!("{figure}, first region"), first, (against, reference), bytes);
            self.print(&format!("{figure}, next region"), second, (against, reference), bytes);
        }
        self.print(&format!("{figure}, elect"), elect, ("one second", 1.0), bytes);
        drop(std::fs::remove_file(raw));
    }

    fn sendrecv(&self, source: &[f64], target: &mut [f64]) -> f64 {
        let to = self.options.to as i32;
        let rank = self.world.rank();
        self.timed(|| {
            if rank < to {
                let (next, last) = ((rank + 1) % to, (rank + to - 1) % to);
                send_receive_into(source, &self.world.process_at_rank(next), target, &self.world.process_at_rank(last));
            }
        })
    }

    /// Drops the files of the tier from the page cache.
    fn drop_caches(&self) {
        self.world.barrier();
        if self.rank() == 0 {
            let mut folders = vec![self.options.dir.clone()];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                    let path = entry.path();
                    if path.is_dir() {
                        folders.push(path);
                    } else if let Ok(file) = File::open(&path) {
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
                    }
                }
            }
        }
        self.world.barrier();
    }
}

fn write_raw(path: &Path, bytes: &[u8]) {
    let padded = vec![0; bytes.len().next_multiple_of(4096) - bytes.len()];
    std::fs::write(path, [bytes, &padded].concat()).expect("written");
    File::open(path).and_then(|file| file.sync_all()).expect("synced");
}

fn read_raw(path: &Path, bytes: usize, buffers: &mut [PageBuffer]) {
    let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).expect("the raw file opens");
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for buffer in buffers {
            let (file, next) = (&file, &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(READ, std::sync::atomic::Ordering::Relaxed);
                    if at >= bytes {
                        return;
                    }
                    let page = (bytes - at).next_multiple_of(4096);
                    file.read_exact_at(&mut buffer[..READ.min(page)], at as u64).expect("read");
                }
            });
        }
    });
}
