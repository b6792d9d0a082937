//! An open session, and everything that a C program has made from it and not yet ended.

use super::arguments::{number, text};
use super::columns::SavedRows;
use super::gpu::Gpu;
use super::handles::{self, Entry, Id, Part, Shared, lock};
use super::paths::{Known, Paths};
use super::regions::{Region, Regions, Value};
use super::status::{Failure, Outcome, call};
use bivouac_core::config::Method;
use bivouac_core::decomposition::Decomposition;
use bivouac_core::format::ElementType;
use bivouac_core::recovery::{DealtRows, RankPart, Unloaded};
use bivouac_core::session::{CheckpointBuilder, Restart, Session};
use bivouac_core::transfer::Report;
use bivouac_core::transfer::history::History;
use bivouac_core::transfer::offload::{Offload, WriteSet};
use bivouac_core::transfer::stream::ByteStream;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ops::Range;
use std::time::Duration;

/// A session with all that was made from it. Fields are dropped in their order.
pub(super) struct Open {
    pub attempt: Option<Running>,
    pub begun: Vec<(Id, Begun)>,
    /// Dropped before the caches, because it uses a part of them.
    pub offload: Option<Offloading>,
    /// The sets of `bvk_write_set`.
    pub sets: BTreeMap<Id, Writes>,
    pub histories: BTreeMap<Id, Past>,
    /// The boxes of `bvk_boxes`, which the ranks have agreed on.
    pub boxes: BTreeMap<Id, Decomposition>,
    pub gpus: BTreeMap<Option<usize>, Gpu>,
    pub protected: Regions,
    /// Regions on the host are, or were, live.
    pub has_live: bool,
    pub stream: usize,
    /// Each rank saves its own regions.
    pub own_regions: bool,
    /// Bytes of node memory that were made ready for the protected regions.
    pub ready: u64,
    pub reports: VecDeque<Report>,
    pub companions: Vec<Known>,
    /// The process that opened the session.
    pub process: u32,
    pub session: Session,
}

impl Open {
    pub(super) fn new(session: Session) -> Open {
        Open {
            attempt: None,
            begun: Vec::new(),
            offload: None,
            sets: BTreeMap::new(),
            histories: BTreeMap::new(),
            boxes: BTreeMap::new(),
            gpus: BTreeMap::new(),
            protected: Regions::default(),
            has_live: false,
            stream: 0,
            own_regions: false,
            ready: 0,
            reports: VecDeque::new(),
            companions: Vec::new(),
            process: std::process::id(),
            session,
        }
    }

    /// Refuses collective calls while a restart is open: its attempts have to end first.
    pub(super) fn check_no_restart(&self) -> Outcome<()> {
        match &self.attempt {
            None => Ok(()),
            Some(_) => Err(Failure::state("a restart is open on this session: end it with bvk_end_restore first")),
        }
    }

    /// Protects regions. Each of them replaces a region of the same name.
    pub(super) fn protect(&mut self, regions: impl IntoIterator<Item = Region>) {
        for region in regions {
            // The application may free the memory of one that is protected elsewhere from now on.
            self.let_go(self.protected.get(&region.name).filter(|known| {
                // A region that can no longer be live is not waited for later.
                known.range() != region.range() || !region.is_own()
            }));
            self.protected.put(region);
        }
        self.make_ready(self.protected.room());
    }

    /// Makes `bytes` of node memory ready in the background, so that the first checkpoint finds this memory, as later checkpoints do. When
    /// a program protects more regions, more memory is made ready.
    pub(super) fn make_ready(&mut self, bytes: u64) {
        // Out of this rank's share, never out of what the others need.
        if bytes > self.ready && bytes <= self.session.memory_share() {
            self.ready = bytes;
            self.session.prepare(bytes);
        }
    }

    /// Ends everything that was made from the session, and the session.
    pub(super) fn close(self) -> bivouac_core::session::Result<()> {
        let limit = self.session.engine().config().job.timeouts.drain;
        self.close_within(limit)
    }

    /// As [`Open::close`], and waits at most `limit` for checkpoints that are being written.
    pub(super) fn close_within(self, limit: Duration) -> bivouac_core::session::Result<()> {
        let Open { attempt, begun, offload, sets, histories, gpus, session, .. } = self;
        if let Some(running) = attempt {
            running.give_up(&session);
        }
        for (_, begun) in begun {
            begun.give_up(&session);
        }
        // What is marked comes down first.
        drop(offload);
        drop(sets);
        drop(histories);
        drop(gpus);
        session.close_within(limit)
    }
}

/// A checkpoint that was begun and waits for its capture.
pub(super) struct Begun {
    pub name: String,
    pub version: u64,
    /// Regions that `bvk_hold` has copied.
    pub held: Holding,
    /// The region that is being written.
    pub stream: Option<ByteStream>,
    /// Regions that the capture reads.
    pub regions: Regions,
    /// Values, copied already.
    pub values: Vec<Value>,
    /// Rows that the capture reads.
    pub rows: Vec<SavedRows>,
    /// The capture adds all protected regions.
    pub with_protected: bool,
    pub histories: Vec<Id>,
    /// Regions with their own method.
    pub wishes: Vec<(String, Method)>,
    /// The paths of files that the program writes.
    pub paths: Paths,
}

/// The state of a checkpoint on which `bvk_hold` may have been called.
pub(super) enum Holding {
    Nothing,
    /// `bvk_hold` was called, and the other ranks count on this rank.
    Some(Box<CheckpointBuilder<'static>>),
    /// This rank has refused, for this reason, and the other ranks have been told.
    Refused(Failure),
}

impl Begun {
    /// Tells the others that there will be no capture.
    pub(super) fn give_up(self, session: &Session) {
        match self.held {
            // Dropping it without a capture is this rank's no.
            Holding::Nothing => drop(session.begin_checkpoint(&self.name, self.version)),
            Holding::Some(checkpoint) => drop(checkpoint),
            Holding::Refused(_) => {}
        }
    }
}

/// A history and the fields that its versions have from now on.
pub(super) struct Past {
    pub history: History,
    pub gpu: Option<usize>,
    pub fields: Vec<Region>,
}

/// What a session needs to mark regions on its GPU.
pub(super) struct Offloading {
    pub offload: Offload,
    /// The number of the GPU; `None`: the twin in host memory.
    pub gpu: Option<usize>,
}

/// The memory that a piece of work writes to.
pub(super) struct Writes {
    /// All of this memory, wherever it lies. Any host memory in it that is being copied is found by its addresses.
    pub pieces: Vec<Range<usize>>,
    /// The part on the GPU that is offloaded; `None`: the session did not offload yet.
    pub marked: Option<WriteSet>,
}

/// The columns of a set of rows: their names as C sees them, types, and widths.
pub(super) type Columns = Vec<(CString, ElementType, u32)>;

/// What `bvk_parts` has found for consecutive ranks, and the first of these ranks.
pub(super) struct Asked {
    pub first: u32,
    pub parts: Vec<RankPart>,
}

/// A restart, its open attempt, and what went wrong in it on this rank.
pub(super) struct Running {
    pub id: Id,
    pub restart: Restart,
    pub failed: Option<Unloaded>,
    pub rows: BTreeMap<Id, DealtRows>,
    /// The sets of rows with the columns that were asked for.
    pub columns: BTreeMap<String, Columns>,
    pub parts: BTreeMap<Id, Asked>,
    /// The paths of files that were brought back.
    pub paths: Paths,
}

impl Running {
    pub(super) fn new(id: Id, restart: Restart) -> Running {
        let (rows, columns, parts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Running { id, restart, failed: None, rows, columns, parts, paths: Paths::default() }
    }

    /// Closes what was found in the attempt: no other attempt has the same.
    pub(super) fn forget(&mut self) {
        let found: Vec<Id> = self.rows.keys().chain(self.parts.keys()).copied().collect();
        found.into_iter().for_each(|id| self.close(id));
    }

    /// Is this the handle of something that was found in the attempt?
    pub(super) fn keeps(&self, id: Id) -> bool {
        self.rows.contains_key(&id) || self.parts.contains_key(&id)
    }

    /// Closes what was found under this handle.
    pub(super) fn close(&mut self, id: Id) {
        self.rows.remove(&id);
        self.parts.remove(&id);
        handles::remove(id);
    }

    /// Ends the attempt as one that this rank does not count, and every further attempt that the other ranks make.
    pub(super) fn give_up(self, session: &Session) {
        let given_up = Some(Unloaded::Refused("the restart was given up".into()));
        // Whatever the ranks make of it, this session has nothing to do with it any more.
        drop(self.restart.end(session, given_up));
    }
}

/// Runs a call that needs the session.
pub(super) fn with<T>(handle: *mut T, work: impl FnOnce(&mut Open) -> Outcome) -> c_int {
    call(|| work(&mut *lock(&*handles::session(handle)?)?))
}

/// A region from the arguments of a call.
///
/// # Safety
/// As [`bvk_protect_shaped`](super::session::bvk_protect_shaped).
pub(super) unsafe fn described(
    name: *const c_char,
    data: *const c_void,
    kind: c_int,
    dimensions: c_int,
    shape: *const u64,
) -> Outcome<Region> {
    // SAFETY: as the caller says.
    let name = unsafe { text(name, "the name of a region") }?;
    let dimensions = usize::try_from(dimensions).ok().filter(|dimensions| *dimensions <= 32);
    let Some(dimensions) = dimensions.filter(|dimensions| *dimensions == 0 || !shape.is_null()) else {
        return Err(Failure::argument(format!("region {name:?}: give 0 to 32 dimensions and their extents")));
    };
    let mut extents = Vec::with_capacity(dimensions);
    for at in 0..dimensions {
        // SAFETY: there are that many numbers, says the caller.
        extents.push(unsafe { shape.add(at).read_unaligned() });
    }
    Region::new(name, data, kind, &extents)
}

/// The kinds of element numbers, for the size of a region.
pub(super) fn kind_of(region: &bivouac_core::format::Region) -> (u64, c_int) {
    (region.bytes / region.element.bytes().max(1), number(region.element))
}

/// Gives a handle to something that a session keeps.
pub(super) fn insert_part(part: Part, open: &Shared) -> Id {
    handles::insert(Entry::Part(part, open.clone()))
}
