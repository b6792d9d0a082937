//! The application: what each simulated rank does with the real session.

use super::baton::Seat;
use super::journal::{Data, Entry, Heard, Journal, Restart, contents};
use bivouac_core::base::rng::Rng;
use bivouac_core::base::{Clock, Level};
use bivouac_core::comm::{Comm, CommError, Label, Parcel, Slice};
use bivouac_core::recovery::RestartError;
use bivouac_core::session::place::Place;
use bivouac_core::tier::wrappers::{Call, Observer};
use bivouac_core::{Boxes, Config, Decomposition, Error, How, Ids, LevelVerdict, Pending, Rows, Session};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The series of which applications take checkpoints.
pub const SERIES: [&str; 2] = ["heat", "flow"];

/// One thing that all ranks do, in the same order.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Take the next version of a series.
    Checkpoint { series: usize, wait: Option<Level> },
    /// Begin a checkpoint, and give it up on one rank.
    GiveUp { series: usize, rank: u32 },
    /// Compute for at most this long; each rank takes a different time.
    Compute { millis: u64 },
    /// One rank falls behind by this much.
    Stall { rank: u32, millis: u64 },
    /// List the versions.
    List { series: usize },
    /// Ask whether a checkpoint is due.
    Ask,
}

/// The definition of a run of the application.
#[derive(Clone, Debug)]
pub struct Script {
    pub seed: u64,
    /// The number of the run, which is part of its data and is never used twice.
    pub run: u64,
    pub series: usize,
    pub actions: Vec<Action>,
    /// Go back by this many versions from the newest one, by name.
    pub back: Option<u64>,
    pub large: bool,
    /// If this is set, all data uses a decomposition, so that any number of ranks can continue; the value is the
    /// present number of ranks.
    pub elastic: Option<u32>,
    /// Close normally at the end (otherwise the rank just vanishes).
    pub closes: bool,
}

/// Everything that one rank needs.
pub struct Rank {
    pub rank: u32,
    pub place: Place,
    pub config: Config,
    pub script: Script,
    pub journal: Journal,
    /// The node's memory directory, on its first rank.
    pub memory: Option<(PathBuf, u64)>,
}

/// A message layer that reports each message to the baton.
pub struct Overheard<C> {
    pub inner: C,
    pub seat: Seat,
}

impl<C: Comm> Comm for Overheard<C> {
    fn rank(&self) -> bivouac_core::base::Rank {
        self.inner.rank()
    }
    fn size(&self) -> u32 {
        self.inner.size()
    }
    fn nodes(&self) -> &[u32] {
        self.inner.nodes()
    }
    fn send(&mut self, to: bivouac_core::base::Rank, bytes: &[u8]) -> Result<(), CommError> {
        self.seat.touch();
        self.inner.send(to, bytes)
    }
    fn receive(&mut self) -> Result<Option<(bivouac_core::base::Rank, Vec<u8>)>, CommError> {
        let message = self.inner.receive()?;
        if message.is_some() {
            self.seat.touch();
        }
        Ok(message)
    }
    fn put_back(&mut self, from: bivouac_core::base::Rank, bytes: Vec<u8>) {
        self.inner.put_back(from, bytes);
    }
    fn unfinished(&self) -> usize {
        self.inner.unfinished()
    }
    fn send_parcel(&mut self, to: bivouac_core::base::Rank, label: Label, body: Slice) -> Result<(), CommError> {
        self.seat.touch();
        self.inner.send_parcel(to, label, body)
    }
    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        let parcel = self.inner.receive_parcel()?;
        if parcel.is_some() {
            self.seat.touch();
        }
        Ok(parcel)
    }
    fn recycle(&mut self, bytes: Vec<u8>) {
        self.inner.recycle(bytes);
    }
    fn unsent_parcels(&self) -> usize {
        self.inner.unsent_parcels()
    }
    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        self.inner.quiesce(limit)
    }
    fn cancel(&mut self) {
        self.inner.cancel();
    }
}

/// Makes every storage call a point at which the rank may die or lose its turn.
pub struct Hands {
    pub seat: Seat,
    /// Tells whether the disk has reached the step at which everybody dies.
    pub frozen: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Observer for Hands {
    fn before(&self, _call: Call, _path: &Path, _bytes: u64) -> std::io::Result<()> {
        if self.frozen.as_ref().is_some_and(|frozen| frozen()) {
            self.seat.baton().doom_all();
        }
        self.seat.point();
        Ok(())
    }
}

/// The number of restarts on one rank from a checkpoint that another number of ranks took.
pub static RESIZED: AtomicU64 = AtomicU64::new(0);

/// The array of jobs that any number of ranks can continue.
const SHAPE: [u64; 2] = [41, 23];

/// A rank's part of the array: rows, columns, or single rows in turn, depending on the run.
fn owned(run: u64, rank: u32, ranks: u32) -> Vec<([u64; 2], [u64; 2])> {
    let (rank, ranks) = (u64::from(rank), u64::from(ranks));
    let cut = |extent: u64| (rank * extent / ranks, (rank + 1) * extent / ranks - rank * extent / ranks);
    let ((y, rows), (x, columns)) = (cut(SHAPE[0]), cut(SHAPE[1]));
    match run % 3 {
        0 => vec![([y, 0], [rows, SHAPE[1]])],
        1 => vec![([0, x], [SHAPE[0], columns])],
        _ => (0..SHAPE[0]).filter(|row| row % ranks == rank).map(|row| ([row, 0], [1, SHAPE[1]])).collect(),
    }
}

/// Jobs that any number of ranks can continue have more than a field on boxes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Nothing,
    /// Elements that are identified by numbers.
    Numbers,
    /// Rows, which the program deals by one of their columns.
    Rows,
}

fn more(script: &Script) -> More {
    [More::Nothing, More::Numbers, More::Rows][(script.seed / 4 % 3) as usize]
}

/// The rank that owns the element with this number, depending on the run: neighbours are often on the same rank.
fn owner(run: u64, number: u64, ranks: u32) -> u32 {
    (Rng::new((run << 32) ^ (number / 6)).next_u64() % u64::from(ranks)) as u32
}

/// The numbers of a rank's elements, some of which are not in ascending order.
fn listed(run: u64, rank: u32, ranks: u32) -> Vec<u64> {
    let mut own: Vec<u64> = (0..SHAPE[0] * SHAPE[1]).filter(|number| owner(run, *number, ranks) == rank).collect();
    let third = own.len() / 3;
    own[third..].sort_by_key(|number| Rng::new(run ^ (number << 8)).next_u64());
    own
}

/// The value of the element with this number in a version.
fn numbered(script: &Script, run: u64, series: &str, version: u64, number: u64) -> u64 {
    element(script, run, series, version, number / SHAPE[1], number % SHAPE[1])
}

/// The value of an element in a version.
fn element(script: &Script, run: u64, series: &str, version: u64, y: u64, x: u64) -> u64 {
    let hash = series.bytes().fold(script.seed, |hash, byte| hash.rotate_left(8) ^ u64::from(byte));
    Rng::new(hash ^ run << 40 ^ version << 20 ^ (y * SHAPE[1] + x)).next_u64()
}

/// The memory of a rank's parts, with one ghost cell on each side in every dimension.
fn memory(owned: &[([u64; 2], [u64; 2])], of: impl Fn(u64, u64) -> u64) -> Vec<Vec<u64>> {
    let fill = |([y0, x0], [rows, columns]): &([u64; 2], [u64; 2])| {
        let mut cells = vec![GHOST; ((rows + 2) * (columns + 2)) as usize];
        for y in 0..*rows {
            for x in 0..*columns {
                cells[((y + 1) * (columns + 2) + x + 1) as usize] = of(y0 + y, x0 + x);
            }
        }
        cells
    };
    owned.iter().map(fill).collect()
}

/// The value of ghost cells.
const GHOST: u64 = 0x6060_6060;

struct Application<'a> {
    /// The decomposition of all data, in jobs that any number of ranks can continue.
    on: Option<Decomposition>,
    /// The decomposition of elements with numbers.
    mesh: Option<Decomposition>,
    seat: &'a Seat,
    own: Rank,
    session: Session,
    versions: HashMap<&'static str, u64>,
    pending: Vec<Waiting>,
}

/// The series, the version, the checkpoint itself, and the number of its verdicts that are in the journal.
type Waiting = (&'static str, u64, Pending, usize);

/// Runs the application on one rank.
pub fn run(seat: &Seat, own: Rank, comm: Box<dyn Comm>) {
    let rank = own.rank;
    let session = match Session::open_on(comm, &own.place, own.config.clone()) {
        Ok(session) => session,
        Err(error) => return own.journal.note(rank, Entry::NotOpened { text: error.to_string() }),
    };
    own.journal.note(rank, Entry::Opened { generation: session.generation() });
    let mut application =
        Application { on: None, mesh: None, seat, own, session, versions: HashMap::new(), pending: Vec::new() };
    if application.decompose() && application.restart() {
        application.work();
    }
    application.end();
}

impl Application<'_> {
    fn note(&self, entry: Entry) {
        self.own.journal.note(self.own.rank, entry);
    }

    fn decompose(&mut self) -> bool {
        let Some(ranks) = self.own.script.elastic else { return true };
        let owned = owned(self.own.script.run, self.own.rank, ranks).into_iter();
        let boxes = owned.fold(Boxes::of(SHAPE).halo([1, 1]), |boxes, (origin, extent)| boxes.own(origin, extent));
        let ids = (more(&self.own.script) == More::Numbers).then(|| {
            let numbers = listed(self.own.script.run, self.own.rank, ranks);
            Ids::of(SHAPE[0] * SHAPE[1]).own(numbers)
        });
        let decomposed = self.session.decompose(boxes).and_then(|on| {
            self.on = Some(on);
            self.mesh = ids.map(|ids| self.session.decompose(ids)).transpose()?;
            Ok(())
        });
        decomposed.inspect_err(|error| _ = self.failed("decompose", error)).is_ok()
    }

    /// Returns true if this rank can continue from a restored version, or if there was nothing to restore.
    fn restart(&mut self) -> bool {
        for series in &SERIES[..self.own.script.series] {
            if !self.restart_series(series, None) {
                return false;
            }
            let newest = self.versions[series];
            if let Some(back) = self.own.script.back.filter(|back| newest > *back)
                && !self.restart_series(series, Some(newest - back))
            {
                return false;
            }
        }
        true
    }

    fn restart_series(&mut self, series: &'static str, version: Option<u64>) -> bool {
        let mut run = 0;
        let (rank, script) = (self.own.rank, &self.own.script);
        let (on, mesh) = (self.on.clone(), self.mesh.clone());
        let load = |restorer: &mut bivouac_core::Attempt| {
            if let (Some(on), Some(ranks)) = (&on, script.elastic) {
                run = restorer.shared::<u64>("run")?;
                let version = restorer.version();
                let owned = owned(script.run, rank, ranks);
                let mut found = memory(&owned, |_, _| 0);
                let mut slices: Vec<&mut [u64]> = found.iter_mut().map(|memory| &mut memory[..]).collect();
                restorer.load_boxes_on("field", on, &mut slices)?;
                let expected = memory(&owned, |y, x| element(script, run, series, version, y, x));
                assert!(
                    found == expected,
                    "WRONG DATA: field of {series} version {version} of run {run} of {} ranks on rank {rank} of {ranks}",
                    restorer.saved_ranks()
                );
                let value = |number: &u64| numbered(script, run, series, version, *number);
                let own = listed(script.run, rank, ranks);
                let (mut numbers, mut values) = (own.clone(), vec![0; own.len()]);
                match (more(script), &mesh) {
                    (More::Numbers, Some(mesh)) => restorer.load_on("mesh", mesh, &mut values)?,
                    (More::Rows, _) => {
                        let how = How::by("number", 1, |numbers: &[u64], owners: &mut [u32]| {
                            numbers.iter().zip(owners).for_each(|(number, of)| *of = owner(script.run, *number, ranks));
                        });
                        let mut rows = restorer.load_rows("rows", how)?;
                        (numbers, values) = (rows.column("number")?, rows.column("value")?);
                    }
                    _ => values = numbers.iter().map(value).collect(),
                }
                let mut found = numbers.clone();
                found.sort_unstable();
                let mut expected = own;
                expected.sort_unstable();
                assert!(
                    found == expected && numbers.iter().map(value).eq(values),
                    "WRONG DATA: numbered elements of {series} version {version} of run {run} on rank {rank} of {ranks}"
                );
                RESIZED.fetch_add(u64::from(restorer.saved_ranks() != ranks), Ordering::Relaxed);
                return Ok(());
            }
            run = restorer.value::<u64>("run")?;
            let version = restorer.version();
            let expected = contents(script.seed, run, series, version, rank, script.large);
            for (name, data) in &expected {
                let is_right = match data {
                    Data::Bytes(bytes) => restorer.load_vec::<u8>(name)? == *bytes,
                    Data::Numbers(numbers) => restorer.load_vec::<f64>(name)? == *numbers,
                };
                assert!(
                    is_right,
                    "WRONG DATA: {name} of {series} version {version} of run {run} on rank {rank} from generation {}",
                    restorer.generation()
                );
            }
            let regions = restorer.regions()?.len();
            assert_eq!(regions, expected.len() + 1, "WRONG DATA: rank {rank} restored {regions} regions");
            Ok(())
        };
        let result = match version {
            None => self.session.begin_restore(series).run(load),
            Some(version) => self.session.begin_restore(series).version(version).run(load),
        };
        let outcome = match &result {
            Ok(Some(restored)) => {
                Restart::Restored { key: (restored.generation, restored.version), run, tier: restored.tier.name() }
            }
            Ok(None) => Restart::Nothing,
            Err(Error::Restart(RestartError::Session { reason })) => Restart::Lost(reason.clone()),
            Err(error) => Restart::Refused(error.to_string()),
        };
        self.note(Entry::Restart { series, by_name: version.is_some(), outcome });
        match result {
            Ok(restored) => {
                self.versions.insert(series, restored.map_or(0, |restored| restored.version));
                true
            }
            // Going back may fail without harm, because nothing has changed.
            Err(Error::Restart(RestartError::NoSuchVersion { .. })) => true,
            Err(_) => false,
        }
    }

    fn work(&mut self) {
        for action in self.own.script.actions.clone() {
            let carries_on = match action {
                Action::Checkpoint { series, wait } => self.checkpoint(SERIES[series], wait),
                Action::GiveUp { series, rank } => self.give_up(SERIES[series], rank),
                Action::Compute { millis } => {
                    let micros = 1 + self.seat.below(1000 * millis);
                    self.compute(Duration::from_micros(micros))
                }
                Action::Stall { rank, millis } if rank == self.own.rank => self.compute(Duration::from_millis(millis)),
                Action::Stall { .. } => true,
                Action::List { series } => self.list(SERIES[series]),
                Action::Ask => match self.session.should_checkpoint() {
                    Ok(is_due) => {
                        self.note(Entry::Asked { is_due });
                        true
                    }
                    Err(error) => self.failed("should_checkpoint", &error),
                },
            };
            self.hear();
            self.look_at_memory();
            if !carries_on {
                return;
            }
        }
        self.note(Entry::Ended);
    }

    fn failed(&self, call: &'static str, error: &Error) -> bool {
        self.note(Entry::Failed { call, text: error.to_string() });
        !matches!(error, Error::Failed { .. })
    }

    fn compute(&self, time: Duration) -> bool {
        self.seat.sleep(time);
        true
    }

    fn next_version(&mut self, series: &'static str) -> u64 {
        let version = self.versions.entry(series).or_default();
        *version += 1;
        *version
    }

    fn checkpoint(&mut self, series: &'static str, wait: Option<Level>) -> bool {
        let version = self.next_version(series);
        let script = &self.own.script;
        let data = contents(script.seed, script.run, series, version, self.own.rank, script.large);
        let cells = |ranks| {
            memory(&owned(script.run, self.own.rank, ranks), |y, x| element(script, script.run, series, version, y, x))
        };
        let field = script.elastic.map(cells);
        let numbers = script.elastic.map_or_else(Vec::new, |ranks| listed(script.run, self.own.rank, ranks));
        let of_number = |number: &u64| numbered(script, script.run, series, version, *number);
        let values: Vec<u64> = numbers.iter().map(of_number).collect();
        let captured = self.session.begin_checkpoint(series, version).and_then(|mut checkpoint| {
            if let (Some(on), Some(field)) = (&self.on, &field) {
                let slices: Vec<&[u64]> = field.iter().map(|memory| &memory[..]).collect();
                checkpoint.save_boxes_on("field", on, &slices)?;
                match (more(script), &self.mesh) {
                    (More::Numbers, Some(mesh)) => checkpoint.save_on("mesh", mesh, &values)?,
                    (More::Rows, _) => {
                        let rows = Rows::new(numbers.len() as u64).column("number", &numbers).column("value", &values);
                        checkpoint.save_rows("rows", rows)?;
                    }
                    _ => {}
                }
                checkpoint.shared("run", &script.run)?;
                return checkpoint.capture();
            }
            for (name, data) in &data {
                match data {
                    Data::Bytes(bytes) => checkpoint.save(name, bytes)?,
                    Data::Numbers(numbers) => checkpoint.save(name, numbers)?,
                }
            }
            checkpoint.value("run", &script.run)?;
            checkpoint.capture()
        });
        let pending = match captured {
            Ok(pending) => pending,
            Err(error) => {
                self.note(Entry::NotCaptured { text: error.to_string() });
                return true;
            }
        };
        self.note(Entry::Captured { series, version });
        if let Some(level) = wait {
            // `hear` notes the verdict that this rank heard.
            let waited = pending.wait(level);
            assert!(!matches!(waited, Ok(reached) if reached < level), "waited for {level}, got {waited:?}");
        }
        self.pending.push((series, version, pending, 0));
        true
    }

    fn give_up(&mut self, series: &'static str, rank: u32) -> bool {
        if rank != self.own.rank {
            return self.checkpoint(series, None);
        }
        let version = self.next_version(series);
        match self.session.begin_checkpoint(series, version) {
            Ok(checkpoint) => drop(checkpoint),
            Err(error) => self.note(Entry::NotCaptured { text: error.to_string() }),
        }
        true
    }

    fn list(&self, series: &'static str) -> bool {
        match self.session.versions(series) {
            Ok(versions) => {
                let versions = versions.iter().map(|info| (info.generation, info.version)).collect();
                self.note(Entry::Listed { series, versions });
                true
            }
            Err(error) => self.failed("versions", &error),
        }
    }

    /// Notes the verdicts that arrived since the last call.
    fn hear(&mut self) {
        for waiting in &mut self.pending {
            hear(&self.own.journal, self.own.rank, waiting);
        }
    }

    fn look_at_memory(&self) {
        use std::os::unix::fs::MetadataExt;
        let Some((directory, allowed)) = &self.own.memory else { return };
        let run = format!("-g{:06}-", self.session.generation());
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains(&run) {
                let bytes = entry.metadata().map_or(0, |metadata| metadata.blocks() * 512);
                self.note(Entry::Memory { bytes, allowed: *allowed });
            }
        }
    }

    fn end(mut self) {
        if !self.own.script.closes {
            return;
        }
        let (rank, journal) = (self.own.rank, self.own.journal);
        let result = self.session.close().map_err(|error| error.to_string());
        journal.note(rank, Entry::Closed { result });
        self.pending.iter_mut().for_each(|waiting| hear(&journal, rank, waiting));
    }
}

fn hear(journal: &Journal, rank: u32, (series, version, pending, seen): &mut Waiting) {
    let verdicts = pending.verdicts();
    for (level, verdict) in &verdicts[*seen..] {
        let heard = match verdict {
            LevelVerdict::Committed => Heard::Committed,
            LevelVerdict::Abandoned(culprits) => Heard::Abandoned(format!("{culprits:?}")),
            LevelVerdict::Unknown(_) => Heard::Unknown,
            // This verdict is about tiers, never about checkpoints.
            LevelVerdict::Off(_) => continue,
        };
        journal.note(rank, Entry::Verdict { series, version: *version, level: *level, heard });
    }
    *seen = verdicts.len();
}
