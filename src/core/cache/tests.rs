//! Properties of the whole planner: random workloads against a plain model, with every byte followed, and the number of
//! prefetches against the optimum.
#![forbid(unsafe_code)]

use super::*;
use crate::base::rng::Rng;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What lies in one byte of a tier: which write of which version, and which byte of it.
type Byte = Option<(EntryId, u64, u64)>;

/// What the model knows about a version.
#[derive(Clone, Debug)]
struct Version {
    bytes: u64,
    keep: Keep,
    /// Which write it was: versions can be written again after they have gone.
    write: u64,
    read: bool,
    /// One or more reads of it have failed, so its last copy may have been given up.
    hurt: bool,
}

/// The planner with the doers and the application around it, in turns that a seed decides.
struct World {
    cache: Cache,
    rng: Rng,
    now: Duration,
    /// How many jobs in a hundred fail.
    failing: u64,
    memory: [Vec<Byte>; 3],
    jobs: Vec<Job>,
    versions: BTreeMap<EntryId, Version>,
    hints: BTreeMap<u32, Vec<u64>>,
    gone: BTreeSet<EntryId>,
    lost: BTreeSet<EntryId>,
    writes: u64,
    /// Spans that are not there yet, or were released.
    unmapped: Vec<(Tier, Piece)>,
    releasing: Vec<(Tier, Piece)>,
    shards: BTreeSet<u64>,
    /// Bytes that each link has moved.
    moved: [u64; 4],
}

fn options(sizes: [u64; 3]) -> Options {
    let tier = |capacity| TierOptions { unit: 1, capacity };
    Options { device: tier(sizes[0]), host: tier(sizes[1]), store: tier(sizes[2]) }
}

fn id(history: u32, version: u64) -> EntryId {
    EntryId { history, version }
}

impl World {
    fn new(sizes: [u64; 3], seed: u64, failing: u64) -> World {
        let mut unmapped = Vec::new();
        for tier in [Tier::Device, Tier::Host] {
            let quarter = sizes[tier as usize].div_ceil(4);
            for at in 0..4 {
                let (offset, end) = (at * quarter, ((at + 1) * quarter).min(sizes[tier as usize]));
                if offset < end {
                    unmapped.push((tier, Piece { offset, bytes: end - offset }));
                }
            }
        }
        unmapped.reverse();
        World {
            cache: Cache::new(options(sizes)),
            rng: Rng::new(seed),
            now: Duration::ZERO,
            failing,
            memory: sizes.map(|bytes| vec![None; bytes as usize]),
            jobs: Vec::new(),
            versions: BTreeMap::new(),
            hints: BTreeMap::new(),
            gone: BTreeSet::new(),
            lost: BTreeSet::new(),
            writes: 0,
            unmapped,
            releasing: Vec::new(),
            shards: BTreeSet::new(),
            moved: [0; 4],
        }
    }

    fn mapped(sizes: [u64; 3]) -> World {
        let mut world = World::new(sizes, 1, 0);
        while world.map_more() {}
        world
    }

    /// Adds a span, and says when it was the last one of its tier.
    fn map_more(&mut self) -> bool {
        let Some((tier, range)) = self.unmapped.pop() else { return false };
        self.cache.add_span(tier, range.offset, range.bytes);
        for tier in [Tier::Device, Tier::Host] {
            self.cache.set_fully_mapped(tier, !self.unmapped.iter().any(|(other, _)| *other == tier));
        }
        true
    }

    fn claimed(&self) -> Vec<EntryId> {
        let claimed = |id: &&EntryId| self.cache.states(**id)[0] == Some(State::ReadComplete);
        self.versions.keys().filter(claimed).copied().collect()
    }

    /// Asserts that none of the prefetches `before` has left the device, unless `may_drop` is set and there is a copy below.
    fn keeps(&self, before: &[EntryId], may_drop: bool) {
        for id in before {
            let states = self.cache.states(*id);
            let below = states[1..].iter().flatten().any(|state| state.is_whole());
            assert!(states[0].is_some() || (may_drop && below), "{id:?} was prefetched and is evicted unread");
        }
    }

    /// Who has a copy on a tier, and when that will be used.
    fn uses(&self, tier: Tier) -> BTreeMap<EntryId, super::evict::Use> {
        let here = self.versions.keys().filter(|id| self.cache.states(**id)[tier as usize].is_some());
        here.map(|id| (*id, self.cache.use_of_copy(*id, tier))).collect()
    }

    fn start(&mut self, link: Link) -> bool {
        let before = self.claimed();
        let here = self.uses(link.to());
        let Some(job) = self.cache.next(link, self.now) else { return false };
        if matches!(link, Link::Up | Link::In) {
            // A prefetch takes no room from what is needed before it.
            let (next, still) = (self.cache.next_use(job.id), self.uses(link.to()));
            for (id, other) in here.iter().filter(|(id, _)| !still.contains_key(*id)) {
                assert!(*other > next, "{id:?}, {other:?}, made room for {:?}, {next:?}", job.id);
            }
        }
        self.keeps(&before, !self.cache.waiting.is_empty() && link.to() == Tier::Host);
        self.cache.check();
        // Whoever else uses the target finds garbage.
        self.fill(link.to(), &job.to, None);
        self.jobs.push(job);
        true
    }

    fn finish(&mut self, at: usize) {
        let job = self.jobs.swap_remove(at);
        let ok = !self.rng.chance(self.failing, 100);
        if ok {
            self.moved[job.link as usize] += job.bytes;
            for (from, to, bytes) in runs(&job.from, &job.to, job.bytes) {
                for at in 0..bytes {
                    self.memory[job.link.to() as usize][(to + at) as usize] =
                        self.memory[job.link.from() as usize][(from + at) as usize];
                }
            }
        }
        let before = self.claimed();
        self.cache.done(&job, ok, self.now);
        self.keeps(&before, false);
        self.cache.check();
    }

    fn fill(&mut self, tier: Tier, pieces: &[Piece], content: Byte) {
        for piece in pieces {
            self.memory[tier as usize][piece.offset as usize..piece.end() as usize].fill(content);
        }
    }

    /// One turn of a doer; false if all links are idle.
    fn turn(&mut self) -> bool {
        self.now += Duration::from_millis(1);
        self.poll_releases();
        if !self.jobs.is_empty() && self.rng.chance(1, 2) {
            let at = self.rng.below(self.jobs.len() as u64) as usize;
            self.finish(at);
            return true;
        }
        let first = self.rng.below(4) as usize;
        if (0..4).any(|at| self.start(Link::ALL[(first + at) % 4])) {
            return true;
        }
        let any = !self.jobs.is_empty();
        if any {
            self.finish(0);
        }
        any
    }

    fn turns(&mut self, count: u64) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Lets the doers work until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the links never come to rest");
    }

    /// What a waiting application may count on: something moves, or more memory comes.
    fn wait(&mut self, what: &str) {
        assert!(self.turn() || self.map_more(), "{what} waits, and nothing is under way");
    }

    fn poll_releases(&mut self) {
        for (tier, range) in std::mem::take(&mut self.releasing) {
            let before = self.claimed();
            let vacant = self.cache.release(tier, range);
            self.keeps(&before, true);
            match vacant {
                true => {
                    self.fill(tier, &[range], None);
                    self.unmapped.push((tier, range));
                }
                false => self.releasing.push((tier, range)),
            }
        }
    }

    /// The application appends a version; false if there is no place for it.
    fn append(&mut self, id: EntryId, bytes: u64, keep: Keep, ok: bool) -> bool {
        if let Some(version) = self.versions.get(&id) {
            // One that was lost can be written again, which would take the model's secret from it.
            if version.hurt {
                return false;
            }
            assert_eq!(self.cache.admit(id, bytes, keep, self.now), Admission::Never(Reason::Exists));
            return false;
        }
        let mut answer = None;
        for _ in 0..10_000 {
            let before = self.claimed();
            let admission = self.cache.admit(id, bytes, keep, self.now);
            self.keeps(&before, true);
            self.cache.check();
            match admission {
                Admission::Wait { .. } => self.wait("an append"),
                Admission::Device(pieces) => answer = Some((Tier::Device, pieces)),
                Admission::Host(pieces) => answer = Some((Tier::Host, pieces)),
                Admission::Store(pieces) => answer = Some((Tier::Store, pieces)),
                Admission::Never(reason) => {
                    self.refused(bytes, reason);
                    return false;
                }
            }
            if answer.is_some() {
                break;
            }
        }
        let (tier, pieces) = answer.expect("an append is answered in the end");
        self.fill(tier, &pieces, None);
        let turns = self.rng.below(4);
        self.turns(turns);
        self.writes += 1;
        if ok {
            let mut at = 0;
            for (_, to, run) in runs(&[Piece { offset: 0, bytes }], &pieces, bytes) {
                for byte in to..to + run {
                    self.memory[tier as usize][byte as usize] = Some((id, self.writes, at));
                    at += 1;
                }
            }
            let version = Version { bytes, keep, write: self.writes, read: false, hurt: false };
            self.versions.insert(id, version);
            self.gone.remove(&id);
            self.lost.remove(&id);
        }
        self.cache.written(id, ok);
        true
    }

    /// A refusal is true: no tier has room, or nothing could ever be placed.
    fn refused(&mut self, bytes: u64, reason: Reason) {
        let fits = |tier: Tier| self.cache.could_fit(tier, bytes);
        match reason {
            Reason::TooLarge => assert!(!Tier::ALL.into_iter().any(fits)),
            Reason::NoRoom => {
                assert!(Tier::ALL.into_iter().any(fits));
                for tier in Tier::ALL.into_iter().filter(|tier| fits(*tier)) {
                    assert!(!self.cache.has_room(tier, bytes, super::room::Terms::NOW));
                }
                // Nothing has to be waited for.
                assert!(self.jobs.is_empty());
            }
            Reason::Exists | Reason::Closed => panic!("{reason:?}"),
        }
    }

    fn hint(&mut self, id: EntryId) {
        self.cache.hint(id);
        self.hints.entry(id.history).or_default().push(id.version);
    }

    /// Where a version can be read, after all waiting; `None` if the application is rightly told that it cannot be read.
    fn find(&mut self, id: EntryId) -> Option<(Tier, Vec<Piece>)> {
        for _ in 0..10_000 {
            let answer = self.cache.read(id);
            self.cache.check();
            let version = self.versions.get(&id);
            match answer {
                Read::Device(pieces) => return Some((Tier::Device, pieces)),
                Read::Host(pieces) => return Some((Tier::Host, pieces)),
                Read::Store(pieces) => return Some((Tier::Store, pieces)),
                Read::Wait => {
                    self.wait("a read");
                    continue;
                }
                Read::Unknown => assert!(version.is_none() && !self.gone.contains(&id), "{id:?} is unknown"),
                Read::Gone => assert!(version.is_none() && self.gone.contains(&id), "{id:?} is gone"),
                Read::Lost => {
                    assert!(self.lost.contains(&id) || version.is_some_and(|version| version.hurt), "{id:?} is lost");
                    self.versions.remove(&id);
                    self.lost.insert(id);
                }
            }
            return None;
        }
        panic!("a read is answered in the end");
    }

    /// The application reads a version and gets what was written, or is told the truth.
    fn read(&mut self, id: EntryId, ok: bool) {
        let Some((tier, pieces)) = self.find(id) else { return };
        let turns = self.rng.below(4);
        self.turns(turns);
        self.finds(id, tier, &pieces);
        let version = self.versions.get_mut(&id).expect("it is there");
        match ok {
            true => version.read = true,
            false => version.hurt = true,
        }
        self.cache.read_done(id, tier, ok);
        self.cache.check();
        if ok {
            let hints = self.hints.entry(id.history).or_default();
            if let Some(at) = hints.iter().position(|hinted| *hinted == id.version) {
                hints.remove(at);
            }
            let hinted = hints.contains(&id.version);
            if self.versions[&id].keep == Keep::UntilRead && !hinted {
                self.versions.remove(&id);
                self.gone.insert(id);
            }
        }
    }

    /// Something other than the application's reading looks at a version, which remains to be read.
    fn peek(&mut self, id: EntryId, ok: bool) {
        let (before, order) = (self.cache.states(id), self.cache.prefetch_distance(id.history));
        let (tier, pieces) = match self.cache.peek(id) {
            Read::Device(pieces) => (Tier::Device, pieces),
            Read::Host(pieces) => (Tier::Host, pieces),
            Read::Store(pieces) => (Tier::Store, pieces),
            Read::Lost => return assert!(self.lost.contains(&id) || self.versions.get(&id).is_some_and(|v| v.hurt)),
            Read::Wait => {
                // The copy that was best has been given up while another one is on its way.
                assert!(self.versions.get(&id).is_some_and(|version| version.hurt), "no version is being written");
                self.wait("a look");
                return self.peek(id, ok);
            }
            Read::Gone | Read::Unknown => return assert!(!self.versions.contains_key(&id), "{id:?} is there"),
        };
        assert_eq!((self.cache.states(id), self.cache.prefetch_distance(id.history)), (before, order));
        let turns = self.rng.below(8);
        self.turns(turns);
        self.finds(id, tier, &pieces);
        match ok {
            true => self.cache.read_undone(id, tier),
            false => {
                self.versions.get_mut(&id).expect("it is there").hurt = true;
                self.cache.read_done(id, tier, false);
            }
        }
        self.cache.check();
    }

    /// Asserts that these places hold what was written.
    fn finds(&self, id: EntryId, tier: Tier, pieces: &[Piece]) {
        let version = self.versions.get(&id).expect("what can be read was written");
        let mut at = 0;
        for (from, _, run) in runs(pieces, &[Piece { offset: 0, bytes: version.bytes }], version.bytes) {
            for byte in from..from + run {
                let found = self.memory[tier as usize][byte as usize];
                assert_eq!(found, Some((id, version.write, at)), "byte {at} of {id:?} on {tier:?}");
                at += 1;
            }
        }
    }

    fn close(&mut self, history: u32) {
        self.cache.close(history);
        self.versions.retain(|id, _| id.history != history);
        self.gone.retain(|id| id.history != history);
        self.lost.retain(|id| id.history != history);
        self.hints.remove(&history);
        // A history can be used again when the last of its versions has left.
        while self.cache.histories.get(&history).is_some_and(|history| history.closed) {
            assert!(self.turn(), "a closed history stays");
        }
    }

    /// Everything that is wanted can still be read; when everything is closed, all space is free again.
    fn end(&mut self) {
        self.settle();
        for id in self.versions.keys().copied().collect::<Vec<_>>() {
            self.read(id, true);
        }
        (0..3).for_each(|history| self.close(history));
        std::mem::take(&mut self.shards).into_iter().for_each(|shard| self.cache.unstage(shard));
        self.settle();
        self.poll_releases();
        assert!(self.releasing.is_empty());
        for tier in Tier::ALL {
            let (bytes, free) = self.cache.bytes(tier);
            assert_eq!(bytes, free, "{tier:?}");
        }
    }
}

// ---------------------------------------------------------------------------------------- random workloads

#[derive(Clone, Debug)]
enum Op {
    Append {
        history: u32,
        bytes: u64,
        keep: Keep,
        ok: bool,
    },
    /// Hints one of the versions of a history, or the one just beyond.
    Hint {
        history: u32,
        pick: u64,
    },
    HintAll {
        history: u32,
        reverse: bool,
    },
    Start {
        history: u32,
    },
    ReadNext {
        history: u32,
    },
    ReadAny {
        pick: u64,
        ok: bool,
    },
    Peek {
        pick: u64,
        ok: bool,
    },
    Turns(u64),
    Settle,
    Map,
    Release {
        tier: Tier,
        quarter: u64,
    },
    Stage {
        shard: u64,
        bytes: u64,
    },
    Unstage {
        shard: u64,
    },
    Close {
        history: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let history = || prop_oneof![4 => Just(0u32), 1 => Just(1u32)];
    let keep = prop_oneof![3 => Just(Keep::UntilRead), 2 => Just(Keep::All)];
    let tier = prop_oneof![Just(Tier::Device), Just(Tier::Host)];
    prop_oneof![
        12 => (history(), 0u64..14, keep, 0u8..12).prop_map(|(history, bytes, keep, ok)| Op::Append {
            history, bytes, keep, ok: ok > 0
        }),
        5 => (history(), 0u64..30).prop_map(|(history, pick)| Op::Hint { history, pick }),
        1 => (history(), any::<bool>()).prop_map(|(history, reverse)| Op::HintAll { history, reverse }),
        1 => history().prop_map(|history| Op::Start { history }),
        8 => history().prop_map(|history| Op::ReadNext { history }),
        3 => (any::<u64>(), 0u8..6).prop_map(|(pick, ok)| Op::ReadAny { pick, ok: ok > 0 }),
        3 => (any::<u64>(), 0u8..12).prop_map(|(pick, ok)| Op::Peek { pick, ok: ok > 0 }),
        8 => (1u64..12).prop_map(Op::Turns),
        1 => Just(Op::Settle),
        3 => Just(Op::Map),
        1 => (tier, 0u64..4).prop_map(|(tier, quarter)| Op::Release { tier, quarter }),
        1 => (0u64..2, 1u64..10).prop_map(|(shard, bytes)| Op::Stage { shard, bytes }),
        1 => (0u64..2).prop_map(|shard| Op::Unstage { shard }),
        1 => history().prop_map(|history| Op::Close { history }),
    ]
}

impl World {
    fn appended(&self, history: u32) -> u64 {
        let all = self.versions.keys().chain(&self.gone).filter(|id| id.history == history);
        all.map(|id| id.version + 1).max().unwrap_or(0)
    }

    /// A version that is there, or was, or never was.
    fn pick(&self, pick: u64) -> EntryId {
        let all: Vec<EntryId> = self.versions.keys().chain(&self.gone).copied().collect();
        let count = all.len() as u64;
        all.get((pick % (count + 1)) as usize).copied().unwrap_or(id(2, 7))
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Append { history, bytes, keep, ok } => {
                // Now and then, this is a version that is there, or was.
                let next = self.appended(history);
                let version = if self.rng.chance(1, 6) { self.rng.below(next + 1) } else { next };
                self.append(id(history, version), bytes, keep, ok);
            }
            Op::Hint { history, pick } => {
                let version = pick % (self.appended(history) + 2);
                self.hint(id(history, version));
            }
            Op::HintAll { history, reverse } => {
                let count = self.appended(history) + 2;
                for at in 0..count {
                    self.hint(id(history, if reverse { count - 1 - at } else { at }));
                }
            }
            Op::Start { history } => self.cache.start_prefetch(history),
            Op::ReadNext { history } => {
                let hinted = self.hints.get(&history).and_then(|hints| {
                    hints.iter().copied().find(|version| self.versions.contains_key(&id(history, *version)))
                });
                if let Some(version) = hinted {
                    self.read(id(history, version), true);
                }
            }
            Op::ReadAny { pick, ok } => {
                let id = self.pick(pick);
                self.read(id, ok);
            }
            Op::Peek { pick, ok } => {
                let id = self.pick(pick);
                self.peek(id, ok);
            }
            Op::Turns(count) => self.turns(count),
            Op::Settle => self.settle(),
            Op::Map => {
                self.map_more();
            }
            Op::Release { tier, quarter } => {
                let all = self.memory[tier as usize].len() as u64;
                let bytes = all / 4;
                let range = Piece { offset: quarter * bytes, bytes };
                let whole = all.is_multiple_of(4);
                let asked = self.unmapped.iter().chain(&self.releasing).any(|known| *known == (tier, range));
                if whole && bytes > 0 && !asked {
                    self.releasing.push((tier, range));
                    self.poll_releases();
                }
            }
            Op::Stage { shard, bytes } => self.stage(shard, bytes),
            Op::Unstage { shard } => {
                self.shards.remove(&shard);
                self.cache.unstage(shard);
            }
            Op::Close { history } => self.close(history),
        }
    }

    fn stage(&mut self, shard: u64, bytes: u64) {
        for _ in 0..10_000 {
            let before = self.claimed();
            let answer = self.cache.stage(shard, bytes, self.now);
            self.keeps(&before, true);
            match answer {
                Admission::Wait { .. } => self.wait("a shard"),
                Admission::Device(pieces) => {
                    self.fill(Tier::Device, &pieces, None);
                    self.shards.insert(shard);
                    return;
                }
                Admission::Never(Reason::Exists) => return assert!(self.shards.contains(&shard)),
                Admission::Never(Reason::NoRoom | Reason::TooLarge) => return,
                other => panic!("{other:?}"),
            }
        }
        panic!("a shard is answered in the end");
    }
}

/// Sizes of the tiers; some do not exist.
fn sizes() -> impl Strategy<Value = [u64; 3]> {
    prop_oneof![
        6 => Just([32, 60, 400]),
        2 => Just([24, 24, 400]),
        2 => Just([32, 60, 0]),
        1 => Just([20, 40, 70]),
        1 => Just([32, 0, 0]),
        1 => Just([0, 40, 200]),
        1 => Just([32, 0, 100]),
        1 => Just([0, 0, 100]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn no_version_is_lost_nothing_overlaps_and_nobody_waits_in_vain(
        sizes in sizes(),
        seed: u64,
        failing in prop_oneof![Just(0u64), Just(0), Just(10), Just(50)],
        ops in prop::collection::vec(op(), 1..90),
    ) {
        let mut world = World::new(sizes, seed, failing);
        for op in ops {
            world.apply(op);
        }
        world.end();
    }
}

// ---------------------------------------------------------------------------------------- against the optimum

/// Restore orders of `count` versions: the three of the paper.
fn orders(count: u64) -> [(&'static str, Vec<u64>); 3] {
    let mut irregular: Vec<u64> = (0..count).collect();
    let mut rng = Rng::new(7);
    (1..irregular.len()).rev().for_each(|at| irregular.swap(at, rng.below(at as u64 + 1) as usize));
    [("sequential", (0..count).collect()), ("reverse", (0..count).rev().collect()), ("irregular", irregular)]
}

/// Hints all, writes all, starts, and reads all, with links that take no time. Returns how many bytes went up
/// and in; all reads are hits.
fn replay(tiers: [u64; 3], sizes: &[u64], order: &[u64]) -> [u64; 2] {
    let mut world = World::mapped(tiers);
    order.iter().for_each(|version| world.hint(id(0, *version)));
    for (version, bytes) in sizes.iter().enumerate() {
        assert!(world.append(id(0, version as u64), *bytes, Keep::UntilRead, true));
        world.settle();
    }
    world.cache.start_prefetch(0);
    for version in order {
        world.settle();
        assert_eq!(world.cache.states(id(0, *version))[0], Some(State::ReadComplete));
        world.read(id(0, *version), true);
    }
    world.end();
    [Link::Up, Link::In].map(|link| world.moved[link as usize])
}

#[test]
fn prefetches_are_one_from_the_optimum_for_equal_sizes() {
    // With full hints, the version with the farthest next use leaves first (Belady). What the device holds at the start need
    // not come up, and what the host holds need not come in; one place goes to the version that was written last.
    for (name, order) in orders(100) {
        let [up, came_in] = replay([8 * 4, 24 * 4, 1000], &[4; 100], &order);
        assert!((92 * 4..=93 * 4).contains(&up), "{name}: {up} up");
        assert!((68 * 4..=77 * 4).contains(&came_in), "{name}: {came_in} in");
    }
}

#[test]
fn prefetches_are_near_the_optimum_for_all_sizes() {
    let mut rng = Rng::new(3);
    let sizes: Vec<u64> = (0..100).map(|at| 2 + at / 20 + rng.below(4)).collect();
    let all: u64 = sizes.iter().sum();
    let (device, host) = (48, 144);
    for (name, order) in orders(100) {
        let [up, came_in] = replay([device, host, 2000], &sizes, &order);
        assert!(up <= (all - device) * 106 / 100, "{name}: {up} of {all} up");
        assert!(came_in <= (all - host) * 112 / 100, "{name}: {came_in} of {all} in");
    }
}

// ---------------------------------------------------------------------------------------- single rules

/// A world in which all is mapped, with versions of the given sizes, after the links have come to rest.
fn with_versions(tiers: [u64; 3], sizes: &[u64], keep: Keep) -> World {
    let mut world = World::mapped(tiers);
    for (version, bytes) in sizes.iter().enumerate() {
        assert!(world.append(id(0, version as u64), *bytes, keep, true));
    }
    world.settle();
    world
}

#[test]
fn nothing_is_evicted_before_the_device_is_fully_mapped() {
    let mut world = World::new([16, 64, 0], 1, 0);
    assert!(world.map_more());
    assert!(world.append(id(0, 0), 4, Keep::UntilRead, true));
    world.cache.add_span(Tier::Host, 0, 64);
    world.cache.set_fully_mapped(Tier::Host, true);
    world.settle();
    assert_eq!(world.cache.states(id(0, 0))[0], Some(State::Flushed));
    assert_eq!(world.cache.admit(id(0, 1), 4, Keep::UntilRead, world.now), Admission::Wait { expected: None });
    world.cache.set_fully_mapped(Tier::Device, true);
    assert!(matches!(world.cache.admit(id(0, 1), 4, Keep::UntilRead, world.now), Admission::Device(_)));
}

/// Waiting for flushes includes waiting for the memory that they go to, as long as it is announced.
#[test]
fn what_is_to_go_to_announced_host_memory_is_not_flushed() {
    for comes in [true, false] {
        for keep in [Keep::UntilRead, Keep::All] {
            let mut world = World::new([16, 16, 16], 1, 0);
            world.cache.add_span(Tier::Device, 0, 16);
            world.cache.set_fully_mapped(Tier::Device, true);
            assert!(world.cache.is_flushed(), "there is nothing to flush");
            assert!(world.append(id(0, 0), 8, keep, true));
            world.settle();
            assert_eq!(world.moved, [0; 4]);
            assert!(!world.cache.is_flushed());
            if comes {
                world.cache.add_span(Tier::Host, 0, 16);
                assert!(!world.cache.is_flushed());
            }
            world.cache.set_fully_mapped(Tier::Host, true);
            world.settle();
            assert!(world.cache.is_flushed(), "nothing more is to come");
            assert_eq!(world.moved[Link::Down as usize], if comes { 8 } else { 0 });
        }
    }
}

#[test]
fn a_wait_says_how_long_and_ages() {
    let mut world = World::mapped([8, 64, 0]);
    world.cache.set_rate(Link::Down, 8);
    assert!(world.append(id(0, 0), 8, Keep::UntilRead, true));
    let expected = |world: &mut World, seconds| {
        let answer = world.cache.admit(id(0, 1), 8, Keep::UntilRead, world.now);
        assert_eq!(answer, Admission::Wait { expected: Some(Duration::from_millis(seconds)) });
    };
    expected(&mut world, 1000);
    assert!(world.jobs.is_empty() && world.start(Link::Down));
    world.now += Duration::from_millis(250);
    expected(&mut world, 750);
    world.finish(0);
    assert!(matches!(world.cache.admit(id(0, 1), 8, Keep::UntilRead, world.now), Admission::Device(_)));
}

#[test]
fn an_append_drops_the_prefetch_that_is_read_last_or_goes_around_the_cache() {
    let mut world = with_versions([8, 64, 0], &[4, 4], Keep::UntilRead);
    [0, 1].into_iter().for_each(|version| world.hint(id(0, version)));
    world.cache.start_prefetch(0);
    assert_eq!(world.cache.prefetch_distance(0), 2);
    // Both have a copy on the host, though a consumed one.
    assert!(matches!(world.cache.admit(id(0, 2), 4, Keep::UntilRead, world.now), Admission::Device(_)));
    assert_eq!(world.cache.states(id(0, 0)), [Some(State::ReadComplete), Some(State::Consumed), None]);
    assert_eq!(world.cache.states(id(0, 1)), [None, Some(State::WriteComplete), None]);
    assert!(matches!(world.cache.admit(id(0, 3), 6, Keep::UntilRead, world.now), Admission::Host(_)));
    assert_eq!(world.cache.prefetch_distance(0), 1);
}

#[test]
fn while_an_append_waits_no_prefetch_takes_room() {
    let mut world = with_versions([8, 64, 0], &[8, 8], Keep::UntilRead);
    world.hint(id(0, 0));
    world.cache.start_prefetch(0);
    // Version 1 is on the device and flushed; a third one is written and not flushed yet.
    assert!(world.append(id(1, 0), 8, Keep::UntilRead, true));
    assert!(matches!(world.cache.admit(id(1, 1), 8, Keep::UntilRead, world.now), Admission::Wait { .. }));
    assert!(world.start(Link::Down));
    assert!(!world.start(Link::Up));
    world.finish(0);
    assert!(!world.start(Link::Up));
    // Given up, the room is the prefetch's.
    world.cache.written(id(1, 1), false);
    assert!(world.start(Link::Up));
}

#[test]
fn a_read_waits_for_the_job_that_brings_its_version_and_for_nothing_else() {
    let mut world = with_versions([8, 64, 0], &[8, 8, 8], Keep::UntilRead);
    [0, 1].into_iter().for_each(|version| world.hint(id(0, version)));
    world.cache.start_prefetch(0);
    assert!(world.start(Link::Up));
    assert_eq!(world.cache.read(id(0, 0)), Read::Wait);
    assert!(matches!(world.cache.read(id(0, 1)), Read::Host(_)));
    world.finish(0);
    assert!(matches!(world.cache.read(id(0, 0)), Read::Device(_)));
}

#[test]
fn a_link_that_fails_is_given_up_for_that_version() {
    let mut world = World::mapped([8, 64, 0]);
    world.failing = 100;
    assert!(world.append(id(0, 0), 8, Keep::All, true));
    world.settle();
    assert_eq!(world.cache.failures(Link::Down), u64::from(TRIES_MAX));
    // The device is blocked, and the next version finds its way around it.
    assert!(matches!(world.cache.admit(id(0, 1), 8, Keep::All, world.now), Admission::Host(_)));
}

#[test]
fn after_the_start_what_may_be_discarded_goes_out_only_when_room_is_lacking() {
    let mut world = World::mapped([8, 16, 64]);
    world.cache.start_prefetch(0);
    assert!(world.append(id(0, 0), 8, Keep::UntilRead, true));
    assert!(world.append(id(0, 1), 8, Keep::UntilRead, true));
    world.settle();
    assert_eq!(world.moved[Link::Out as usize], 0);
    // Two more do not fit into the host unless something goes out.
    assert!(world.append(id(0, 2), 8, Keep::UntilRead, true));
    assert!(world.append(id(0, 3), 8, Keep::UntilRead, true));
    assert!(world.moved[Link::Out as usize] > 0);
    world.end();
}

#[test]
fn released_memory_is_vacant_once_what_lies_there_is_flushed() {
    let mut world = World::mapped([16, 64, 0]);
    assert!(world.append(id(0, 0), 16, Keep::UntilRead, true));
    let range = Piece { offset: 8, bytes: 8 };
    assert!(!world.cache.release(Tier::Device, range));
    // What is larger than the rest of the device goes to the host.
    assert!(matches!(world.cache.admit(id(0, 1), 16, Keep::UntilRead, world.now), Admission::Host(_)));
    world.settle();
    assert!(world.cache.release(Tier::Device, range));
    assert_eq!(world.cache.bytes(Tier::Device), (8, 8));
}

#[test]
fn a_copy_that_cannot_be_read_is_replaced_by_the_one_below() {
    let mut world = with_versions([8, 64, 0], &[8], Keep::All);
    assert!(matches!(world.cache.read(id(0, 0)), Read::Device(_)));
    world.cache.read_done(id(0, 0), Tier::Device, false);
    assert_eq!(world.cache.states(id(0, 0)), [None, Some(State::WriteComplete), None]);
    assert!(matches!(world.cache.read(id(0, 0)), Read::Host(_)));
    world.cache.read_done(id(0, 0), Tier::Host, false);
    assert_eq!(world.cache.read(id(0, 0)), Read::Lost);
}

#[test]
fn a_version_that_is_peeked_at_stays_and_is_as_unread_as_before() {
    let mut world = with_versions([8, 64, 0], &[8], Keep::UntilRead);
    let before = world.cache.states(id(0, 0));
    assert_eq!(before, [Some(State::Flushed), Some(State::WriteComplete), None]);
    assert!(matches!(world.cache.peek(id(0, 0)), Read::Device(_)));
    assert_eq!(world.cache.states(id(0, 0)), before);
    let pieces = |bytes| vec![Piece { offset: 0, bytes }];
    let admitted = world.cache.admit(id(0, 1), 8, Keep::UntilRead, Duration::ZERO);
    assert!(matches!(admitted, Admission::Host(_)), "it may not leave while it is looked at: {admitted:?}");
    world.cache.written(id(0, 1), true);
    world.cache.read_undone(id(0, 0), Tier::Device);
    assert_eq!(world.cache.states(id(0, 0)), before);
    let admitted = world.cache.admit(id(0, 2), 8, Keep::UntilRead, Duration::ZERO);
    assert_eq!(admitted, Admission::Device(pieces(8)), "and may afterwards");
}
