//! The figures of redundancy between nodes: exchange and rebuild, against the time of the scheme's minimum traffic at the
//! rate of `MPI_Sendrecv`, measured in the same run; and the application's blocking time with and without redundancy.
//!
//! Run it through `benches/redundancy.sh`. The ranks run on one host; each counts as a separate node and has a separate
//! memory folder, so that nothing is shared between them but the message layer.
#![forbid(unsafe_code)]

mod nodes;

use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::config::{Budget, Scheme};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::TierId;
use bivouac_core::{Config, Level, Session};
use clap::Parser;
use mpi::collective::SystemOperation;
use mpi::point_to_point::send_receive_into;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use nodes::Scattered;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Options {
    /// Schemes to measure.
    #[arg(long, value_delimiter = ';', default_value = "partner(1);xor(4);rs(2,2)")]
    schemes: Vec<String>,
    /// Data per rank, in MiB.
    #[arg(long, default_value_t = 128)]
    mib: usize,
    /// Rounds that count.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Writer threads per rank.
    #[arg(long, default_value_t = 2)]
    writers: u32,
    /// Directory for everything except node memory, which is in /dev/shm.
    #[arg(long)]
    dir: PathBuf,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bench {
    world: SimpleCommunicator,
    options: Options,
    data: Vec<u64>,
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
    let world = universe.world();
    let rank = world.rank() as u64;
    let data =
        (0..options.mib as u64 * (1 << 17)).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ rank << 40).collect();
    let bench = Bench { world, options, data };
    for scheme in &bench.options.schemes {
        bench.scheme(scheme.parse().expect("a scheme"));
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Bench {
    /// The longest of all ranks' times.
    fn slowest(&self, mine: f64) -> f64 {
        let mut all = 0.0;
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
        all
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/bivouac-bench-{}", std::os::unix::process::parent_id()))
            .join(self.world.rank().to_string())
    }

    fn config(&self, scheme: Scheme) -> Config {
        let mut config = Config::default();
        config.job.name = Some("redundancy".into());
        config.job.take_over = true;
        config.job.redundancy.scheme = scheme;
        config.job.redundancy.names = "{ plain = 'none' }".parse().expect("an exception");
        config.job.local_enabled = false;
        config.job.global_enabled = false;
        config.node.writers = self.options.writers;
        config.node.memory_budget = Budget::Bytes((self.options.mib as u64) << 23);
        config.node.memory_directory = self.folder();
        config.job.global_directory = self.options.dir.join("global");
        config
    }

    fn open(&self, scheme: Scheme) -> Session {
        std::fs::create_dir_all(self.folder()).expect("a folder");
        self.world.barrier();
        let inner =
            MpiComm::duplicate(&self.world, &bivouac_core::config::Timeouts::default()).expect("a communicator");
        let config = self.config(scheme);
        let place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
        let nodes = (0..self.world.size() as u32).collect();
        Session::open_on(Box::new(Scattered { inner, nodes }), &place, config).expect("opens")
    }

    /// Seconds in which all ranks send their data to the next one and receive as much.
    fn sendrecv(&self, target: &mut [u64]) -> f64 {
        let (rank, size) = (self.world.rank(), self.world.size());
        self.world.barrier();
        let start = Instant::now();
        send_receive_into(
            &self.data[..],
            &self.world.process_at_rank((rank + 1) % size),
            target,
            &self.world.process_at_rank((rank + size - 1) % size),
        );
        self.slowest(start.elapsed().as_secs_f64())
    }

    fn capture(&self, session: &Session, name: &str, version: u64, level: Level) -> (f64, f64) {
        self.world.barrier();
        let start = Instant::now();
        let mut checkpoint = session.begin_checkpoint(name, version).expect("begins");
        checkpoint.save("data", &self.data).expect("saves");
        let pending = checkpoint.capture().expect("captured");
        let blocked = self.slowest(start.elapsed().as_secs_f64());
        pending.wait(level).expect("committed");
        while !pending.poll() {
            std::thread::sleep(Duration::from_micros(50));
        }
        (blocked, self.slowest(start.elapsed().as_secs_f64()))
    }

    fn scheme(&self, scheme: Scheme) {
        let session = self.open(scheme);
        let mut target = vec![1u64; self.data.len()];
        let [mut raw, mut exchange, mut commit, mut with, mut without] = [const { Vec::new() }; 5];
        for round in 0..=self.options.rounds as u64 {
            let sendrecv = self.sendrecv(&mut target);
            let before = session.stats().flushed_time[TierId::PEERS];
            let (blocked_with, committed) = self.capture(&session, "covered", round, Level::NodeLoss);
            let took = self.slowest((session.stats().flushed_time[TierId::PEERS] - before).as_secs_f64());
            let (blocked_without, _) = self.capture(&session, "plain", round, Level::Process);
            if round > 0 {
                raw.push(sendrecv);
                exchange.push(took);
                commit.push(committed - blocked_with);
                with.push(blocked_with);
                without.push(blocked_without);
            }
        }
        let members = self.world.size() as f64;
        // What each rank sends and receives, in shards: its own shard once, and m-1 parities of a chunk each.
        let (traffic, rebuild_traffic) = match scheme {
            Scheme::Partner { copies } => (f64::from(copies), 1.0),
            Scheme::Xor { .. } => (1.0, members - 1.0),
            Scheme::Rs { parity, .. } => {
                let data = members - f64::from(parity);
                (1.0 + f64::from(parity - 1) / data, data)
            }
            Scheme::None => return,
        };
        let raw = median(&mut raw);
        self.print(
            &format!("exchange {scheme}"),
            median(&mut exchange),
            raw * traffic,
            "the scheme's minimum of traffic at the MPI_Sendrecv rate",
        );
        self.print(&format!("exchange and commit {scheme}"), median(&mut commit), raw * traffic, "the same");
        self.print(
            &format!("blocking {scheme}"),
            median(&mut with),
            median(&mut without),
            "a series without redundancy in the same run",
        );
        // The session is dropped as a killed process would leave it; then rank 1's node is lost.
        drop(session);
        let mut rebuild = Vec::new();
        for _ in 0..self.options.rounds.min(5) {
            self.world.barrier();
            if self.world.rank() == 1 {
                std::fs::remove_dir_all(self.folder()).expect("its memory goes");
            }
            let session = self.open(scheme);
            self.world.barrier();
            let start = Instant::now();
            let mut loading = 0.0;
            let restored = session
                .begin_restore("covered")
                .run(|restorer| {
                    let begin = Instant::now();
                    restorer.load("data", &mut target)?;
                    loading = begin.elapsed().as_secs_f64();
                    Ok(())
                })
                .expect("restarts")
                .expect("something is there");
            let all = start.elapsed().as_secs_f64();
            assert!(target == self.data, "wrong data");
            let (mut from, peers) = (0u64, session.stats().restored_bytes[TierId::PEERS]);
            self.world.all_reduce_into(&peers, &mut from, SystemOperation::sum());
            assert_eq!(from, self.data.len() as u64 * 8, "one shard came from the peers, as {}", restored.tier);
            rebuild.push((self.slowest(loading), self.slowest(all)));
            drop(session);
        }
        let mut loads: Vec<f64> = rebuild.iter().map(|(load, _)| *load).collect();
        let mut whole: Vec<f64> = rebuild.iter().map(|(_, all)| *all).collect();
        let load = median(&mut loads);
        self.print(
            &format!("rebuild {scheme}"),
            load,
            raw * rebuild_traffic,
            "its minimum of traffic into one rank at the MPI_Sendrecv rate",
        );
        self.print(&format!("elect, rebuild and load {scheme}"), median(&mut whole), 1.0, "one second");
        drop(std::fs::remove_dir_all(self.folder()));
    }

    fn print(&self, what: &str, ours: f64, reference: f64, against: &str) {
        if self.world.rank() == 0 {
            let line = json!({
                "what": what, "mib_per_rank": self.options.mib, "ranks": self.world.size(), "writers": self.options.writers,
                "seconds": ours, "reference_seconds": reference, "against": against, "ratio": ours / reference,
            });
            println!("{line}");
        }
    }
}
