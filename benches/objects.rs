//! Checkpoints to an object store against the bare client: the same bytes to the same server, in turn, in one run.
//!
//! ```sh
//! benches/objects.sh --out NAME        # starts a server on this machine
//! cargo bench --features object-store --bench objects -- --endpoint http://HOST:PORT --url s3://bucket/prefix
//! ```
//! One node of `--ranks` ranks, which are threads of this process, has node memory and the object tier alone. A round takes a checkpoint
//! (from the return of `capture` until all ranks know that level `system` is committed), restores one, and moves the same bytes with the
//! client alone. The client makes one upload in parts of 8 MiB, four at once, because the node has one object, and downloads ranges of
//! 4 MiB, eight at once for each rank. The first round is thrown away. Medians are printed, one JSON object per line; ratios are rates,
//! ours over the bare ones.
#![forbid(unsafe_code)]

use bivouac_core::comm::threads::world;
use bivouac_core::config::Budget;
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::Tier;
use bivouac_core::{Config, Level, Session};
use clap::Parser;
use futures_util::StreamExt;
use object_store::ObjectStoreExt;
use object_store::aws::AmazonS3Builder;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use serde_json::json;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

const PART: usize = 8 << 20;
const RANGE: u64 = 4 << 20;
const NAME: &str = "bench";

#[derive(Parser)]
struct Options {
    #[arg(long)]
    endpoint: String,
    #[arg(long, default_value = "s3://bucket/bench")]
    url: String,
    /// Data of each rank, in MiB.
    #[arg(long, default_value_t = 128)]
    mib: usize,
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Rounds that count.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Seconds of each round.
#[derive(Default)]
struct Times {
    ours_up: Vec<f64>,
    ours_down: Vec<f64>,
    bare_up: Vec<f64>,
    bare_down: Vec<f64>,
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn config(options: &Options, memory: &std::path::Path) -> Config {
    let mut config = Config::default();
    config.job.name = Some("bench-objects".into());
    config.job.take_over = true;
    config.job.local_enabled = false;
    config.job.global_enabled = false;
    config.job.object_url = Some(options.url.clone());
    config.job.object_endpoint = Some(options.endpoint.clone());
    config.job.object_required = true;
    config.job.object.keep_last = 1;
    config.node.memory_directory = memory.to_owned();
    config.node.memory_budget = Budget::Bytes(((4 * options.ranks * (options.mib + 16)) as u64) << 20);
    config
}

/// The client alone.
struct Bare {
    runtime: tokio::runtime::Runtime,
    store: Arc<object_store::aws::AmazonS3>,
    key: Key,
}

impl Bare {
    fn new(options: &Options) -> Bare {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let builder = AmazonS3Builder::from_env().with_url(&options.url).with_endpoint(&options.endpoint);
        let store = builder.with_allow_http(true).build().expect("a store");
        Bare { runtime, store: Arc::new(store), key: Key::from("bench/bare") }
    }

    fn upload(&self, bytes: &bytes::Bytes) {
        self.runtime.block_on(async {
            let id = self.store.create_multipart(&self.key).await.expect("begun");
            let (id, store) = (&id, &self.store);
            let parts = (0..bytes.len()).step_by(PART).enumerate().map(|(number, at)| {
                let part = bytes.slice(at..bytes.len().min(at + PART));
                async move { store.put_part(&self.key, id, number, part.into()).await.expect("sent") }
            });
            let done: Vec<_> = futures_util::stream::iter(parts).buffered(4).collect().await;
            self.store.complete_multipart(&self.key, id, done).await.expect("complete");
        });
    }

    fn download(&self, ranks: usize) {
        self.runtime.block_on(async {
            let size = self.store.head(&self.key).await.expect("there").size;
            let ranges = (0..size).step_by(RANGE as usize).map(|at| {
                let store = self.store.clone();
                let key = self.key.clone();
                async move { store.get_range(&key, at..size.min(at + RANGE)).await.expect("read").len() }
            });
            let read: usize = futures_util::stream::iter(ranges)
                .buffer_unordered(8 * ranks)
                .fold(0, |sum, n| async move { sum + n })
                .await;
            assert_eq!(read as u64, size);
        });
    }
}

fn main() {
    env_logger::init();
    let options = Options::parse();
    let memory = tempfile::tempdir_in("/dev/shm").expect("node memory");
    let (times, gate) = (Mutex::new(Times::default()), Barrier::new(options.ranks));
    // This chooses the TLS implementation, which the bare client needs as well.
    let tier = bivouac_core::tier::object::at(&options.url, Some(&options.endpoint)).expect("a tier");
    let bare = Mutex::new(Bare::new(&options));
    let all =
        bytes::Bytes::from((0..(options.ranks * options.mib) << 20).map(|at| (at * 31) as u8).collect::<Vec<u8>>());
    std::thread::scope(|scope| {
        for (rank, comm) in world(&vec![0; options.ranks]).into_iter().enumerate() {
            let (options, times, gate, bare, all) = (&options, &times, &gate, &bare, &all);
            let (tier, memory) = (&tier, memory.path());
            scope.spawn(move || {
                let config = config(options, memory);
                let place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
                let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
                let mut data = vec![rank as f64; options.mib << 17];
                for round in 0..=options.rounds {
                    data.iter_mut().step_by(512).for_each(|value| *value += 1.0);
                    gate.wait();
                    let mut checkpoint = session.begin_checkpoint(NAME, round as u64 + 1).expect("begun");
                    checkpoint.save("data", &data).expect("saved");
                    let pending = checkpoint.capture().expect("captured");
                    let began = Instant::now();
                    pending.wait(Level::System).expect("committed");
                    gate.wait();
                    let up = began.elapsed().as_secs_f64();
                    // Node memory holds the checkpoint as well, and a restart would read that; this reads the copy in the bucket.
                    let down = read_back(&**tier, rank, options.mib);
                    gate.wait();
                    if rank == 0 {
                        let (bare, mut times) = (bare.lock().unwrap(), times.lock().unwrap());
                        let began = Instant::now();
                        bare.upload(all);
                        let bare_up = began.elapsed().as_secs_f64();
                        let began = Instant::now();
                        bare.download(options.ranks);
                        let bare_down = began.elapsed().as_secs_f64();
                        if round > 0 {
                            times.ours_up.push(up);
                            times.bare_up.push(bare_up);
                            times.ours_down.push(down);
                            times.bare_down.push(bare_down);
                        }
                    }
                    gate.wait();
                }
                session.close().expect("closed");
            });
        }
    });
    let times = times.into_inner().unwrap();
    let bytes = (options.ranks * options.mib) as f64 * f64::from(1 << 20);
    for (what, ours, bare) in
        [("checkpoint", &times.ours_up, &times.bare_up), ("read back", &times.ours_down, &times.bare_down)]
    {
        let (ours, bare) = (median(ours), median(bare));
        let line = json!({
            "bench": "objects", "what": what, "ranks": options.ranks, "mib": options.mib, "rounds": options.rounds,
            "ours_s": ours, "bare_s": bare, "ours_gb_s": bytes / ours / 1e9, "ratio": bare / ours,
        });
        println!("{line}");
    }
}

/// Reads this rank's shard from the bucket and checks its digests, as a restart without node memory would; returns the seconds.
fn read_back(tier: &dyn Tier, rank: usize, mib: usize) -> f64 {
    let began = Instant::now();
    let series = tier.all_series().expect("listed").into_iter().find(|series| series.name == NAME).expect("there");
    let newest = tier.folders(&series).expect("listed")[0];
    let key = bivouac_core::base::CheckpointKey {
        generation: newest.0,
        version: newest.1,
        operation: newest.2,
        ..Default::default()
    };
    let rank = bivouac_core::base::Rank(rank as u32);
    let shard = tier.open_shard(&series, &key.folder(), "c000000.bvc", rank).expect("its shard");
    let source = bivouac_core::tier::source::Source::File(shard);
    let region = source.head().region("data").expect("there").clone();
    let mut target = vec![0; mib << 20];
    source.read_region(&region, &mut target).expect("read");
    began.elapsed().as_secs_f64()
}
