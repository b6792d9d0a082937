//! The cache planner: what a decision costs, and what it decides, compared with algorithm 1 of HPDC'23.
//!
//! Prints one JSON object per line, after a line that names the machine:
//!
//! ```text
//! cargo bench --bench cache | tee benches/results/cache-NAME.jsonl
//! ```
//!
//! * `window`, `pieces`: one eviction decision for 32 MB over this many fragments of 1 to 2 MB: gaps (a fifth), copies that can leave at
//!   once, as many that become evictable within a millisecond, and a few that stay. `window` is algorithm 1, for caches in which a version
//!   occupies one range, and may use the gaps that it finds. `pieces` is the planner's own rule, and has used all gaps already. The figures
//!   are the median time of a decision, and the decision itself: the longest wait among its victims, and their bytes.
//! * `nothing can move`: host memory is full, and this many versions wait on the device. The figure is the median time in which a link
//!   finds that it has nothing to do.
//! * `trace`: a simulation of an adjoint computation. 44 GB, in 384 versions that are small at first and large at last, and in 12,288, are
//!   hinted, written and read back at a fixed interval; all links move at fixed rates, one job after the other. The times are simulated, so
//!   they are the same on every machine; only `call_us_mean`, the mean time of a call of the planner, is measured.
#![forbid(unsafe_code)]

#[path = "cache/window.rs"]
mod window;

use bivouac_core::base::rng::Rng;
use bivouac_core::cache::evict::{self, Candidate, Use};
use bivouac_core::cache::{Admission, Cache, EntryId, Job, Keep, Link, Options, Read, Tier, TierOptions};
use serde_json::json;
use std::hint::black_box;
use std::time::{Duration, Instant};
use window::{Fragment, window};

const GB: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;

// ---------------------------------------------------------------------------------------- decisions

fn fragments(count: u64) -> Vec<Fragment> {
    let mut rng = Rng::new(count);
    let fragment = |version| {
        let bytes = MB + rng.below(MB);
        match rng.below(50) {
            0 => return Fragment::Pinned,
            1..=10 => return Fragment::Gap(bytes / 2),
            _ => {}
        }
        let wait = if rng.chance(1, 2) { 0 } else { rng.below(1_000_000) };
        let next = if rng.chance(1, 10) { Use::Unhinted } else { Use::Hinted(rng.below(4 * count)) };
        Fragment::Copy(Candidate { id: EntryId { history: 0, version }, bytes, wait, next })
    };
    (0..count).map(fragment).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn micros(mut decide: impl FnMut()) -> f64 {
    let mut once = || {
        let start = Instant::now();
        decide();
        start.elapsed().as_secs_f64()
    };
    (median((0..301).map(|_| once()).collect()) * 1e8).round() / 100.0
}

fn decisions() {
    let bytes = 32 * MB;
    for count in [100, 1_000, 10_000] {
        let view = fragments(count);
        let candidates: Vec<Candidate> =
            view.iter().filter_map(|f| if let Fragment::Copy(one) = f { Some(*one) } else { None }).collect();
        let say = |name: &str, victims: &[Candidate], us: f64| {
            let wait = victims.iter().map(|victim| victim.wait).max().unwrap_or(0);
            let evicted = victims.iter().map(|victim| victim.bytes).sum::<u64>();
            let (wait, evicted) = (wait as f64 / 1e3, evicted as f64 / MB as f64);
            println!(
                "{}",
                json!({"figure": name, "fragments": count, "us": us, "wait_us": wait, "evicted_mb": evicted})
            );
        };
        let us = micros(|| _ = black_box(window(black_box(&view), bytes)));
        say("window", &window(&view, bytes).expect("there is enough"), us);
        // The list is copied for each decision, as the planner does.
        let us = micros(|| _ = black_box(evict::choose(black_box(&candidates).clone(), bytes)));
        let plan = evict::choose(candidates.clone(), bytes).expect("there is enough");
        let victims: Vec<Candidate> = candidates.into_iter().filter(|one| plan.victims.contains(&one.id)).collect();
        say("pieces", &victims, us);
    }
}

// ---------------------------------------------------------------------------------------- the trace

/// Bytes per second of Down, Out, In and Up, in the order of `Link`.
const RATES: [f64; 4] = [55e9, 2.3e9, 2.7e9, 55e9];
/// Bytes per second inside GPU memory.
const DEVICE_RATE: f64 = 1.9e12;
/// Computing time of the whole simulation, which is spread evenly over the versions.
const COMPUTING: Duration = Duration::from_millis(10 * 384);

/// With 384 versions: from about 25 to about 210 MB, each within a fifth of the trend. Any other number of versions has the same sum.
fn sizes(count: u64) -> Vec<u64> {
    let mut rng = Rng::new(384);
    let size = |version| {
        let trend = (25 * MB + 185 * MB * version / count) * 384 / count;
        trend * 4 / 5 + rng.below(trend * 2 / 5)
    };
    (0..count).map(size).collect()
}

fn orders(count: u64) -> [(&'static str, Vec<u64>); 3] {
    let mut irregular: Vec<u64> = (0..count).collect();
    let mut rng = Rng::new(1);
    (1..irregular.len()).rev().for_each(|at| irregular.swap(at, rng.below(at as u64 + 1) as usize));
    [("sequential", (0..count).collect()), ("reverse", (0..count).rev().collect()), ("irregular", irregular)]
}

fn id(version: u64) -> EntryId {
    EntryId { history: 0, version }
}

/// The planner, links that take time, and the counters.
struct Simulation {
    cache: Cache,
    now: Duration,
    /// When each link has moved all that it was given.
    free_at: [Duration; 4],
    jobs: Vec<(Duration, Job)>,
    moved: [u64; 4],
    pieces: Vec<usize>,
    calls: Vec<f64>,
}

impl Simulation {
    fn new() -> Simulation {
        let tier = |unit, capacity| TierOptions { unit, capacity };
        let options =
            Options { device: tier(64 << 10, 4 * GB), host: tier(4 << 10, 32 * GB), store: tier(4 << 10, 100 * GB) };
        let mut cache = Cache::new(options);
        for (tier, bytes) in [(Tier::Device, 4 * GB), (Tier::Host, 32 * GB)] {
            cache.add_span(tier, 0, bytes);
            cache.set_fully_mapped(tier, true);
        }
        Link::ALL.into_iter().for_each(|link| cache.set_rate(link, RATES[link as usize] as u64));
        let (jobs, pieces, calls) = (Vec::new(), Vec::new(), Vec::new());
        let free_at = [Duration::ZERO; 4];
        Simulation { cache, now: Duration::ZERO, free_at, jobs, moved: [0; 4], pieces, calls }
    }

    /// Calls the planner, and times the call.
    fn ask<T>(&mut self, call: impl FnOnce(&mut Cache, Duration) -> T) -> T {
        let start = Instant::now();
        let answer = call(&mut self.cache, self.now);
        self.calls.push(start.elapsed().as_secs_f64());
        answer
    }

    /// Occupies a link for a transfer that starts as soon as it is free; says when that ends.
    fn occupy(&mut self, link: Link, bytes: u64) -> Duration {
        let start = self.now.max(self.free_at[link as usize]);
        let end = start + Duration::from_secs_f64(bytes as f64 / RATES[link as usize]);
        self.free_at[link as usize] = end;
        end
    }

    /// Gives the links all jobs that they can start.
    fn pump(&mut self) {
        for link in Link::ALL {
            while let Some(job) = self.ask(|cache, now| cache.next(link, now)) {
                if link == Link::Up || link == Link::Down {
                    self.pieces.push(if link == Link::Up { job.to.len() } else { job.from.len() });
                }
                let end = self.occupy(link, job.bytes);
                self.jobs.push((end, job));
            }
        }
    }

    /// Advances to the end of the job that ends first; false if there is none, or if it ends after `limit`.
    fn step(&mut self, limit: Duration) -> bool {
        let first = (0..self.jobs.len()).min_by_key(|at| self.jobs[*at].0);
        let Some(at) = first.filter(|at| self.jobs[*at].0 <= limit) else { return false };
        let (end, job) = self.jobs.swap_remove(at);
        self.now = self.now.max(end);
        self.moved[job.link as usize] += job.bytes;
        self.ask(|cache, now| cache.done(&job, true, now));
        self.pump();
        true
    }

    /// The application computes, or copies, until `end`.
    fn advance(&mut self, end: Duration) {
        self.pump();
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    fn wait(&mut self) {
        self.pump();
        assert!(self.step(Duration::MAX), "the application waits, and nothing is under way");
    }

    fn on_device(&self, bytes: u64) -> Duration {
        self.now + Duration::from_secs_f64(bytes as f64 / DEVICE_RATE)
    }

    fn append(&mut self, version: u64, bytes: u64) -> Tier {
        let tier = loop {
            match self.ask(|cache, now| cache.admit(id(version), bytes, Keep::UntilRead, now)) {
                Admission::Device(_) => break Tier::Device,
                Admission::Host(_) => break Tier::Host,
                Admission::Store(_) => break Tier::Store,
                Admission::Wait { .. } => self.wait(),
                Admission::Never(reason) => panic!("{reason:?}"),
            }
        };
        let end = match tier {
            Tier::Device => self.on_device(bytes),
            Tier::Host => self.occupy(Link::Down, bytes),
            Tier::Store => self.occupy(Link::Out, bytes),
        };
        self.advance(end);
        self.ask(|cache, _| cache.written(id(version), true));
        tier
    }

    /// Reads a version; returns from where, and whether the version was on the device at once.
    fn read(&mut self, version: u64, bytes: u64) -> (Tier, bool) {
        let mut at_once = true;
        let tier = loop {
            match self.ask(|cache, _| cache.read(id(version))) {
                Read::Device(_) => break Tier::Device,
                Read::Host(_) => break Tier::Host,
                Read::Store(_) => break Tier::Store,
                Read::Wait => self.wait(),
                other => panic!("{other:?}"),
            }
            at_once = false;
        };
        let end = match tier {
            Tier::Device => self.on_device(bytes),
            Tier::Host => self.occupy(Link::Up, bytes),
            Tier::Store => self.occupy(Link::In, bytes),
        };
        self.advance(end);
        self.ask(|cache, _| cache.read_done(id(version), tier, true));
        (tier, at_once && tier == Tier::Device)
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 1e4
}

fn trace(name: &str, order: &[u64]) {
    let count = order.len() as u64;
    let (sizes, interval) = (sizes(count), COMPUTING / count as u32);
    let mut simulation = Simulation::new();
    order.iter().for_each(|version| simulation.cache.hint(id(*version)));
    let (mut write, mut around) = (Duration::ZERO, 0);
    for (version, bytes) in sizes.iter().enumerate() {
        simulation.advance(simulation.now + interval);
        let start = simulation.now;
        around += u64::from(simulation.append(version as u64, *bytes) != Tier::Device);
        write += simulation.now - start;
    }
    simulation.cache.start_prefetch(0);
    let (mut read, mut hits, mut direct, mut distances) = (Duration::ZERO, 0, [0u64; 3], 0);
    for version in order {
        simulation.advance(simulation.now + interval);
        distances += simulation.cache.prefetch_distance(0);
        let start = simulation.now;
        let (tier, hit) = simulation.read(*version, sizes[*version as usize]);
        direct[tier as usize] += 1;
        hits += u64::from(hit);
        read += simulation.now - start;
    }
    let gb = |bytes: u64| (bytes as f64 / GB as f64 * 100.0).round() / 100.0;
    let pieces = &simulation.pieces;
    let calls = simulation.calls.len() as f64;
    println!(
        "{}",
        json!({
            "figure": "trace", "order": name, "versions": count,
            "gb": gb(sizes.iter().sum()), "write_blocked_s": seconds(write), "read_blocked_s": seconds(read),
            "blocked_s": seconds(write + read), "hit_rate": (hits as f64 / count as f64 * 1e3).round() / 1e3,
            "writes_around_device": around, "reads_from_device_host_store": direct,
            "prefetch_distance_mean": (distances as f64 / count as f64 * 10.0).round() / 10.0,
            "gb_down_out_in_up": simulation.moved.map(gb),
            "device_pieces_mean": (pieces.iter().sum::<usize>() as f64 / pieces.len() as f64 * 100.0).round() / 100.0,
            "device_pieces_max": pieces.iter().max(),
            "call_us_mean": (simulation.calls.iter().sum::<f64>() / calls * 1e7).round() / 10.0,
        })
    );
}

/// Host memory is full of versions that wait for the file, and this many more wait on the device: what it costs to find that
/// none of them can move.
fn stuck(count: u64) {
    let bytes = 128 * MB;
    let tier = |unit, capacity| TierOptions { unit, capacity };
    let (device, host) = ((count + 1) * 2 * bytes, 32 * bytes);
    let mut cache = Cache::new(Options {
        device: tier(64 << 10, device),
        host: tier(4 << 10, host),
        store: tier(4 << 10, 1 << 60),
    });
    for (tier, bytes) in [(Tier::Device, device), (Tier::Host, host)] {
        cache.add_span(tier, 0, bytes);
        cache.set_fully_mapped(tier, true);
    }
    let now = Duration::ZERO;
    (0..32 + count).rev().for_each(|version| cache.hint(id(version)));
    for version in 0..32 + count {
        assert!(matches!(cache.admit(id(version), bytes, Keep::UntilRead, now), Admission::Device(_)));
        cache.written(id(version), true);
        while let Some(job) = cache.next(Link::Down, now) {
            cache.done(&job, true, now);
        }
    }
    while cache.next(Link::Out, now).is_some() {}
    let us = [Link::Down, Link::Up].map(|link| micros(|| assert!(black_box(cache.next(link, now)).is_none())));
    cache.start_prefetch(0);
    let reading = [Link::Down, Link::Up].map(|link| micros(|| assert!(black_box(cache.next(link, now)).is_none())));
    println!(
        "{}",
        json!({"figure": "nothing can move", "waiting": count, "down_us": us[0], "up_us": us[1],
        "prefetching_down_us": reading[0], "prefetching_up_us": reading[1]})
    );
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cpus} CPUs", model.trim_start_matches(['\t', ' ', ':']))
}

fn main() {
    println!("{}", json!({"machine": machine(), "command": "cargo bench --bench cache"}));
    decisions();
    [25, 250, 2_500].into_iter().for_each(stuck);
    for (name, order) in [384, 12_288].into_iter().flat_map(orders) {
        trace(name, &order);
    }
}
