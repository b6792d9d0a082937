//! The program that `tests/damage.rs` runs under `mpirun`. It takes checkpoints of data that every rank can compute again, restores them,
//! checks every byte, and writes its observations to a log. It expects nothing: the test decides.
//!
//! `damage-worker run` restores the newest version, if any, and then takes versions up to `--versions`. `damage-worker restore CASE…`
//! restores from one store after the other, in one MPI job, because starting a job takes longer than restoring. Each case is a folder with
//! `memory`, `local` and `global` in it. `damage-worker digest` prints the digest with which an undisturbed run ends.
//!
//! Rank R appends its lines to `rank-R.log` in `--out`, each with one unbuffered write: the application knew everything
//! in this file, even if it was killed right afterwards.
//!
//! | line | meaning |
//! |---|---|
//! | `pid=P` | first line |
//! | `opened generation=G` | the session is open |
//! | `restored version=V generation=G tier=T` | then either `verified version=V` or `WRONG …` |
//! | `nothing` | there was nothing to restore |
//! | `restart-error TEXT` | the restart failed |
//! | `captured version=V` | `capture` returned |
//! | `capture-error version=V TEXT` | it failed |
//! | `committed version=V level=L` | the application has been told of it |
//! | `silently version=V level=L ms=T at=U` | committed T ms after the capture, while the application made no call; U: seconds since 1970 |
//! | `wait-error version=V TEXT` | the level that the rank waits for will not be reached |
//! | `hold version=V` | everything is settled; the rank continues when the file `go-V` is in `--out` |
//! | `report version=V level=L verdict=…` | a verdict, in the order of operations |
//! | `restart-stats JSON`, `stats JSON` | counters after the restart, and at the end |
//! | `digest HEX` | rank 0: over the final data of all ranks |
//! | `closed` or `close-error TEXT` | then `end` |
//!
//! In `restore` every line begins with `case=NAME `.
#![forbid(unsafe_code)]

use bivouac_core::base::digest::digest_bytes;
use bivouac_core::tier::TierId;
use bivouac_core::{Attempt, Config, Level, LevelVerdict, Pending, Session, Stats};
use clap::{Args, Parser};
use mpi::Threading;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use serde_json::json;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The series of the worker's checkpoints.
const NAME: &str = "damage";

#[derive(Parser)]
enum Command {
    /// Restore, and then take versions.
    Run(Run),
    /// Restore from several stores, one after the other.
    Restore {
        /// Folder for the ranks' logs.
        #[arg(long)]
        out: PathBuf,
        /// Number of elements of the main region.
        #[arg(long, default_value_t = 20_001)]
        elements: usize,
        /// The stores.
        cases: Vec<PathBuf>,
    },
    /// Print the digest with which an undisturbed run ends. Not under mpirun.
    Digest {
        /// Number of ranks of that run.
        #[arg(long)]
        ranks: u64,
        /// Number of versions of that run.
        #[arg(long)]
        versions: u64,
        /// Number of elements of the main region in that run.
        #[arg(long, default_value_t = 20_001)]
        elements: usize,
    },
}

#[derive(Args)]
struct Run {
    /// Folder for the ranks' logs, and for the files that release a hold.
    #[arg(long)]
    out: PathBuf,
    /// Last version to take.
    #[arg(long, default_value_t = 0)]
    versions: u64,
    /// Number of elements (of 8 bytes) of the main region.
    #[arg(long, default_value_t = 20_001)]
    elements: usize,
    /// Wait for this level after every capture.
    #[arg(long, value_parser = level)]
    wait: Option<Level>,
    /// Time between versions.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Compute for this long after each version, without any call of Bivouac or MPI.
    #[arg(long, default_value_t = 0)]
    silent_ms: u64,
    /// Compute in the same way after each version, until this many levels have ended.
    #[arg(long, default_value_t = 0)]
    silent_levels: usize,
    /// Request `MPI_THREAD_SINGLE` from MPI, as `MPI_Init` does, instead of `MPI_THREAD_MULTIPLE`.
    #[arg(long)]
    single: bool,
    /// Settle everything and wait for the file `go-V` before taking these versions.
    #[arg(long, value_delimiter = ',')]
    hold: Vec<u64>,
}

fn level(text: &str) -> Result<Level, String> {
    let level = Level::VOTED.into_iter().find(|level| level.name() == text);
    level.ok_or_else(|| format!("{text:?} is no level"))
}

fn main() {
    let command = Command::parse();
    if let Command::Digest { ranks, versions, elements } = command {
        let parts = (0..ranks).map(|rank| Data::at(rank, elements, versions).digest());
        println!("{}", digest_bytes(parts.collect::<String>().as_bytes()));
        return;
    }
    let is_single = matches!(&command, Command::Run(options) if options.single);
    let threading = if is_single { Threading::Single } else { Threading::Multiple };
    let Some((universe, _)) = mpi::initialize_with_threading(threading) else {
        eprintln!("MPI was already initialised");
        std::process::exit(1);
    };
    let world = universe.world();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        SimpleCommunicator::world().abort(1);
    }));
    let done = match &command {
        Command::Run(options) => run(&world, options),
        Command::Restore { out, elements, cases } => restore_all(&world, out, *elements, cases),
        Command::Digest { .. } => unreachable!("it was answered without MPI"),
    };
    if let Err(error) = done {
        eprintln!("rank {}: {error}", world.rank());
        world.abort(1);
    }
}

/// The file to which one rank writes its lines.
struct Log {
    file: File,
    prefix: String,
}

impl Log {
    fn open(out: &Path, rank: i32) -> std::io::Result<Log> {
        let path = out.join(format!("rank-{rank}.log"));
        Ok(Log { file: OpenOptions::new().create(true).append(true).open(path)?, prefix: String::new() })
    }

    fn line(&mut self, text: impl AsRef<str>) -> std::io::Result<()> {
        let line = format!("{}{}\n", self.prefix, text.as_ref().replace('\n', " "));
        self.file.write_all(line.as_bytes())
    }
}

/// The data of one rank. The main region of a version is computed from that of the previous version, so the effects of a wrong restart last
/// to the end. It can also be computed from the start, which is how a restart is checked.
struct Data {
    rank: u64,
    version: u64,
    main: Vec<u64>,
    bytes: Vec<u8>,
    one: [u8; 1],
    empty: [f64; 0],
    varying: Vec<u32>,
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

impl Data {
    fn start(rank: u64, elements: usize) -> Data {
        // Every rank has a different length.
        let main = (0..elements as u64 + 3 * rank).map(|index| mix(index + (rank << 40) + 1)).collect();
        let mut data = Data { rank, version: 0, main, bytes: vec![0; 4097], one: [0], empty: [], varying: Vec::new() };
        data.derive();
        data
    }

    fn at(rank: u64, elements: usize, version: u64) -> Data {
        let mut data = Data::start(rank, elements);
        (0..version).for_each(|_| data.step());
        data
    }

    fn step(&mut self) {
        self.version += 1;
        let version = self.version;
        self.main.iter_mut().for_each(|x| *x = mix(*x ^ version));
        self.derive();
    }

    /// Fills the regions that depend on rank and version only.
    fn derive(&mut self) {
        let seed = mix((self.rank << 32) + self.version + 77);
        self.bytes.iter_mut().zip(0u64..).for_each(|(byte, index)| *byte = (seed.wrapping_add(index * 131) >> 7) as u8);
        self.one = [seed as u8 | 1];
        let length = 1000 + (self.version * 37 + self.rank * 11) % 500;
        self.varying = (0..length as u32).map(|index| index ^ seed as u32).collect();
    }

    fn load(&mut self, r: &mut Attempt) -> bivouac_core::Result<()> {
        r.load("main", &mut self.main)?;
        r.load("bytes", &mut self.bytes)?;
        r.load("one", &mut self.one)?;
        r.load("empty", &mut self.empty)?;
        self.varying = r.load_vec("varying")?;
        self.version = r.value("step")?;
        Ok(())
    }

    fn capture(&self, session: &Session) -> bivouac_core::Result<Pending> {
        let mut checkpoint = session.begin_checkpoint(NAME, self.version)?;
        checkpoint.save("main", &self.main)?;
        checkpoint.save("bytes", &self.bytes)?;
        checkpoint.save("one", &self.one)?;
        checkpoint.save("empty", &self.empty)?;
        checkpoint.save("varying", &self.varying)?;
        checkpoint.value("step", &self.version)?;
        checkpoint.capture()
    }

    /// The digest of the main region.
    fn digest(&self) -> String {
        let bytes: Vec<u8> = self.main.iter().flat_map(|x| x.to_le_bytes()).collect();
        digest_bytes(&bytes).to_string()
    }

    /// Returns `verified`, or a text that says what is wrong.
    fn check(&self, elements: usize, version: u64) -> String {
        let right = Data::at(self.rank, elements, version);
        let wrong = [
            ("main", self.main != right.main),
            ("bytes", self.bytes != right.bytes),
            ("one", self.one != right.one),
            ("varying", self.varying != right.varying),
            ("step", self.version != version),
        ];
        match wrong.iter().find(|(_, wrong)| *wrong) {
            Some((region, _)) => format!("WRONG region={region} version={version}"),
            None => format!("verified version={version}"),
        }
    }
}

/// Restores, checks and logs the result.
fn restart(session: &Session, data: &mut Data, elements: usize, log: &mut Log) -> std::io::Result<()> {
    match session.begin_restore(NAME).run(|r: &mut Attempt| data.load(r)) {
        Ok(Some(restored)) => {
            let (version, generation, tier) = (restored.version, restored.generation, restored.tier.name());
            log.line(format!("restored version={version} generation={generation} tier={tier}"))?;
            log.line(data.check(elements, version))?;
        }
        Ok(None) => log.line("nothing")?,
        Err(error) => {
            log.line(format!("restart-error {error}"))?;
            *data = Data::start(data.rank, elements);
        }
    }
    log.line(format!("restart-stats {}", stats(&session.stats())))
}

fn stats(stats: &Stats) -> serde_json::Value {
    let tiers = |of: &dyn Fn(TierId) -> u64| -> serde_json::Value {
        TierId::all().map(|tier| (tier.name().to_owned(), of(tier).into())).collect::<serde_json::Map<_, _>>().into()
    };
    json!({
        "captured": stats.captured,
        "abandoned": stats.abandoned,
        "committed": tiers(&|tier| stats.committed[tier]),
        "level_failures": tiers(&|tier| stats.level_failures[tier]),
        "write_failures": tiers(&|tier| stats.write_failures[tier]),
        "restored_bytes": tiers(&|tier| stats.restored_bytes[tier]),
        "damaged": tiers(&|tier| stats.damaged[tier]),
        "direct_captures": stats.direct_captures,
        "room_waits": stats.room_waits,
    })
}

fn close(session: Session, log: &mut Log) -> std::io::Result<()> {
    match session.close() {
        Ok(()) => log.line("closed"),
        Err(error) => log.line(format!("close-error {error}")),
    }
}

fn restore_all(
    world: &SimpleCommunicator,
    out: &Path,
    elements: usize,
    cases: &[PathBuf],
) -> Result<(), Box<dyn Error>> {
    let mut log = Log::open(out, world.rank())?;
    for case in cases {
        log.prefix = format!("case={} ", case.file_name().unwrap_or_default().to_string_lossy());
        let mut config = Config::from_env()?;
        config.node.memory_directory = case.join("memory");
        config.node.local_directory = Some(case.join("local"));
        config.job.global_directory = case.join("global");
        // A prefix in a bucket replaces the global directory.
        if let Ok(endpoint) = std::env::var("BIVOUAC_TEST_OBJECT_ENDPOINT") {
            let name = case.file_name().unwrap_or_default().to_string_lossy();
            config.job.global_enabled = false;
            config.job.object_url = Some(format!("s3://cases/{name}/global"));
            config.job.object_endpoint = Some(endpoint);
        }
        let session = Session::open(world, config)?;
        let mut data = Data::start(world.rank() as u64, elements);
        restart(&session, &mut data, elements, &mut log)?;
        close(session, &mut log)?;
        log.line("end")?;
    }
    Ok(())
}

/// A run, and its checkpoints that are not settled yet.
struct Job<'a> {
    world: &'a SimpleCommunicator,
    session: &'a Session,
    log: Log,
    pending: Vec<(Pending, usize)>,
}

fn run(world: &SimpleCommunicator, options: &Run) -> Result<(), Box<dyn Error>> {
    let mut log = Log::open(&options.out, world.rank())?;
    log.line(format!("pid={}", std::process::id()))?;
    let session = Session::open(world, Config::from_env()?)?;
    log.line(format!("opened generation={}", session.generation()))?;
    let mut data = Data::start(world.rank() as u64, options.elements);
    restart(&session, &mut data, options.elements, &mut log)?;
    let mut job = Job { world, session: &session, log, pending: Vec::new() };
    while data.version < options.versions {
        if options.hold.contains(&(data.version + 1)) {
            job.hold(&options.out, data.version + 1)?;
        }
        data.step();
        job.take(&data, options.wait)?;
        job.compute_silently(Duration::from_millis(options.silent_ms), options.silent_levels)?;
        job.follow_for(Duration::from_millis(options.pause_ms))?;
    }
    job.settle()?;
    job.tell_digest(&data)?;
    let mut log = job.log;
    log.line(format!("stats {}", stats(&session.stats())))?;
    close(session, &mut log)?;
    world.barrier();
    log.line("end")?;
    Ok(())
}

impl Job<'_> {
    /// Takes one version. If a checkpoint fails, this is logged, and the computation continues.
    fn take(&mut self, data: &Data, wait: Option<Level>) -> std::io::Result<()> {
        let version = data.version;
        match data.capture(self.session) {
            Ok(pending) => {
                self.log.line(format!("captured version={version}"))?;
                if let Some(level) = wait
                    && let Err(error) = pending.wait(level)
                {
                    self.log.line(format!("wait-error version={version} {error}"))?;
                }
                self.pending.push((pending, 0));
            }
            Err(error) => self.log.line(format!("capture-error version={version} {error}"))?,
        }
        Ok(())
    }

    /// Logs the changes of checkpoints since the last call.
    fn follow(&mut self) -> std::io::Result<()> {
        let mut open = Vec::new();
        for (pending, told) in std::mem::take(&mut self.pending) {
            let finished = pending.poll();
            let verdicts = pending.verdicts();
            for (level, verdict) in &verdicts[told..] {
                if *verdict == LevelVerdict::Committed {
                    self.log.line(format!("committed version={} level={level}", pending.version()))?;
                }
            }
            if !finished || pending.verdicts().len() > verdicts.len() {
                open.push((pending, verdicts.len()));
            }
        }
        self.pending = open;
        for report in self.session.reports() {
            let (version, level) = (report.key.version, report.level);
            self.log
                .line(format!("report version={version} level={level} verdict={}", verdict_text(&report.verdict)))?;
        }
        Ok(())
    }

    fn follow_for(&mut self, time: Duration) -> std::io::Result<()> {
        let started = Instant::now();
        loop {
            self.follow()?;
            if started.elapsed() >= time {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Computes without a call, and only watches the state of the newest checkpoint.
    fn compute_silently(&mut self, time: Duration, levels: usize) -> std::io::Result<()> {
        let Some((pending, _)) = self.pending.last() else { return Ok(()) };
        let (started, mut told, mut work) = (Instant::now(), 0, 1u64);
        while started.elapsed() < time || told < levels {
            (0..1000).for_each(|_| work = std::hint::black_box(mix(work)));
            let verdicts = pending.verdicts();
            for (level, verdict) in &verdicts[told..] {
                if *verdict == LevelVerdict::Committed {
                    let (version, ms) = (pending.version(), started.elapsed().as_secs_f64() * 1e3);
                    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |at| at.as_secs_f64());
                    self.log.line(format!("silently version={version} level={level} ms={ms:.1} at={at:.4}"))?;
                }
            }
            told = verdicts.len();
        }
        Ok(())
    }

    /// Waits until no checkpoint is in progress.
    fn settle(&mut self) -> std::io::Result<()> {
        while !self.pending.is_empty() {
            self.follow_for(Duration::from_micros(300))?;
        }
        self.follow()
    }

    /// Lets the test act while no checkpoint is in progress on any rank.
    fn hold(&mut self, out: &Path, version: u64) -> std::io::Result<()> {
        self.settle()?;
        self.world.barrier();
        self.log.line(format!("hold version={version}"))?;
        let go = out.join(format!("go-{version}"));
        while !go.exists() {
            self.follow_for(Duration::from_millis(1))?;
        }
        self.world.barrier();
        Ok(())
    }

    fn tell_digest(&mut self, data: &Data) -> std::io::Result<()> {
        let mine = data.digest();
        let mut all = vec![0u8; mine.len() * self.world.size() as usize];
        let root = self.world.process_at_rank(0);
        if self.world.rank() == 0 {
            root.gather_into_root(mine.as_bytes(), &mut all[..]);
            self.log.line(format!("digest {}", digest_bytes(&all)))
        } else {
            root.gather_into(mine.as_bytes());
            Ok(())
        }
    }
}

fn verdict_text(verdict: &LevelVerdict) -> String {
    verdict.reason().unwrap_or_else(|| "committed".into())
}
