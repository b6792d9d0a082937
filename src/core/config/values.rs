//! The checked values.

use super::affinity::{AffinityConfig, AffinityMode};
use super::kinds;
use super::offload::OffloadConfig;
use super::origin::Origin;
use super::reduction::ReductionConfig;
use super::redundancy::RedundancyConfig;
use super::stagger::StaggerConfig;
use crate::base::log::LogLevel;
use crate::base::units::{KIB, MIB};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Checked configuration of a session.
///
/// ```
/// use bivouac::config::{Budget, Config};
///
/// let config = Config::from_toml(
///     r#"
///     [job]
///     name = "heat"
///     [memory]
///     budget = "2 GiB"
///     [global]
///     directory = "/scratch/heat"
///     keep_last = 5
///     "#,
/// )?;
/// assert_eq!(config.job.name.as_deref(), Some("heat"));
/// assert_eq!(config.node.memory_budget, Budget::Bytes(2 << 30));
/// assert_eq!(config.job.local, Config::default().job.local);
///
/// let mistake = Config::from_toml("[global]\nkeep_lsat = 5").unwrap_err();
/// assert!(mistake.to_string().contains("did you mean global.keep_last?"));
/// # Ok::<(), bivouac::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The part that all ranks must share.
    pub job: JobConfig,
    /// The part that a node may choose.
    pub node: NodeConfig,
    /// Notes on settings that have no effect. A session that is opened with this configuration warns of them.
    pub notes: Vec<String>,
    /// Where values were written, by key. Only values that are not the default and were read from text are listed. This is for reports, and
    /// does not affect whether two configurations are equal.
    pub origins: BTreeMap<&'static str, Origin>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        (&self.job, &self.node, &self.notes) == (&other.job, &other.node, &other.notes)
    }
}

/// The part of the configuration that all ranks of a session must share.
#[derive(Clone, Debug, PartialEq)]
pub struct JobConfig {
    /// Job name; `None`: the program's name and a hash of the working directory.
    pub name: Option<String>,
    /// Group name; `None`: `world`, or `sub-N` with the lowest world rank N of a sub-communicator.
    pub group: Option<String>,
    /// Start even if another run of the same job and group seems to be alive. That run is fenced off.
    pub take_over: bool,
    /// Bytes per block digest: a power of two from 4 KiB to 1 MiB. A configuration from text uses 64 KiB if a reduction method is set and
    /// the block length is not.
    pub block_bytes: u64,
    /// Use the node-shared memory tier.
    pub memory_enabled: bool,
    /// The session does not open if a node cannot use the memory tier.
    pub memory_required: bool,
    /// Use the node-local storage tier.
    pub local_enabled: bool,
    /// The session does not open if a rank cannot use the local tier.
    pub local_required: bool,
    /// Use the global tier.
    pub global_enabled: bool,
    /// The session does not open if a rank cannot use the global tier.
    pub global_required: bool,
    /// Directory of the global tier; a relative path starts at the working directory.
    pub global_directory: PathBuf,
    /// The URL of the object tier, for example `s3://bucket/prefix`; `None`: there is none.
    pub object_url: Option<String>,
    /// The session does not open if a rank cannot use the object tier.
    pub object_required: bool,
    /// The server of the object store, if it is not the usual one of its kind.
    pub object_endpoint: Option<String>,
    /// Which checkpoints go to the local tier, and how long they stay.
    pub local: LevelPolicy,
    /// Which checkpoints go to the global tier, and how long they stay.
    pub global: LevelPolicy,
    /// Which checkpoints go to the object tier, and how long they stay.
    pub object: LevelPolicy,
    /// Which checkpoints are protected against the loss of nodes, and how.
    pub redundancy: RedundancyConfig,
    /// Whether files refer to earlier ones for part of their content.
    pub reduction: ReductionConfig,
    /// When `should_checkpoint` says yes.
    pub interval: Interval,
    /// When `should_exit` says yes.
    pub exit: ExitConfig,
    /// Limits on waiting.
    pub timeouts: Timeouts,
    /// How the ranks of a node spread their flushes from device memory.
    pub stagger: StaggerConfig,
    /// How checkpoints are taken of GPU memory for which the GPU has no room.
    pub offload: OffloadConfig,
    /// What is recorded of threads and pages, and what a restart does with it.
    pub affinity: AffinityMode,
}

impl Default for JobConfig {
    fn default() -> Self {
        JobConfig {
            name: None,
            group: None,
            take_over: false,
            block_bytes: 256 * KIB,
            memory_enabled: true,
            memory_required: false,
            local_enabled: true,
            local_required: false,
            global_enabled: true,
            global_required: false,
            global_directory: PathBuf::from("bivouac"),
            object_url: None,
            object_required: false,
            object_endpoint: None,
            local: LevelPolicy::default(),
            global: LevelPolicy { keep_last: 3, ..LevelPolicy::default() },
            object: LevelPolicy { keep_last: 3, ..LevelPolicy::default() },
            redundancy: RedundancyConfig::default(),
            reduction: ReductionConfig::default(),
            interval: Interval::default(),
            exit: ExitConfig::default(),
            timeouts: Timeouts::default(),
            stagger: StaggerConfig::default(),
            offload: OffloadConfig::default(),
            affinity: AffinityMode::default(),
        }
    }
}

/// A value that the configuration fixes, or leaves to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// Chosen by the session from measured costs and failures (`docs/PLANNING.md`).
    Auto,
    /// Fixed.
    Fixed(T),
}

impl<T: Default> Default for Choice<T> {
    fn default() -> Self {
        Choice::Fixed(T::default())
    }
}

impl<T> From<T> for Choice<T> {
    fn from(value: T) -> Self {
        Choice::Fixed(value)
    }
}

impl<T> Choice<T> {
    /// Is it left to the session?
    pub fn is_auto(&self) -> bool {
        matches!(self, Choice::Auto)
    }

    /// The fixed value, if there is one.
    pub fn fixed(self) -> Option<T> {
        match self {
            Choice::Auto => None,
            Choice::Fixed(value) => Some(value),
        }
    }
}

impl JobConfig {
    /// Is an interval, or the `every` of a tier, left to the session?
    pub fn has_auto(&self) -> bool {
        self.interval.seconds.is_auto()
            || [self.local.every, self.global.every, self.redundancy.every].contains(&Choice::Auto)
    }
}

/// Which checkpoints go to a tier, and which of them stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelPolicy {
    /// Every n-th checkpoint of a name goes to this tier (1: all). For the object tier never [`Choice::Auto`].
    pub every: Choice<u64>,
    /// In addition, a checkpoint goes there whenever this long has passed since the last one that did. Zero: never for that reason.
    pub every_seconds: Duration,
    /// The newest n committed checkpoints stay (at least 1).
    pub keep_last: u64,
    /// In addition, each checkpoint whose version is a multiple of this stays for good. Zero: none.
    pub keep_every: u64,
}

/// The policy of the local tier; the global tier keeps one more.
impl Default for LevelPolicy {
    fn default() -> Self {
        LevelPolicy { every: Choice::Fixed(1), every_seconds: Duration::ZERO, keep_last: 2, keep_every: 0 }
    }
}

/// When `should_checkpoint` says yes. The first condition that holds wins; all zero: never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Yes at every n-th call. Zero: not by calls.
    pub steps: u64,
    /// Yes when this long has passed since the last yes. Zero: not by time.
    pub seconds: Choice<Duration>,
    /// The lower bound of [`Interval::seconds`] if that is left to the session.
    pub least: Duration,
    /// The upper bound of [`Interval::seconds`] if that is left to the session.
    pub most: Duration,
    /// The mean time between two failures of the job of any kind, for everything that is left to the session. `None`: estimated.
    pub mtbf: Option<Duration>,
    /// Yes as often as keeps the blocking time of checkpoints at this percentage of the run time. Zero: not by cost.
    pub overhead_percent: f64,
}

impl Default for Interval {
    fn default() -> Self {
        Interval {
            steps: 0,
            seconds: Choice::Fixed(Duration::ZERO),
            least: Duration::from_secs(1),
            most: Duration::from_secs(3600),
            mtbf: None,
            overhead_percent: 0.0,
        }
    }
}

impl Interval {
    /// Does `should_checkpoint` look at the clock or at costs?
    pub fn is_timed(&self) -> bool {
        self.seconds != Choice::Fixed(Duration::ZERO) || self.overhead_percent > 0.0
    }
}

/// When `should_exit` says yes.
#[derive(Clone, Debug, PartialEq)]
pub struct ExitConfig {
    /// A signal by name (`USR1`, `TERM`, …; text with a leading `SIG` is stored without it).
    pub signal: Option<String>,
    /// A file whose existence asks for the end.
    pub stop_file: Option<PathBuf>,
    /// The end of the allocation, in seconds since 1970 UTC.
    pub end_time: Option<u64>,
    /// How long before `end_time` the answer becomes yes.
    pub reserve: Duration,
    /// How often the ranks compare, which is the longest delay of the answer. Zero: at every call.
    pub check_every: Duration,
}

impl Default for ExitConfig {
    fn default() -> Self {
        ExitConfig {
            signal: None,
            stop_file: None,
            end_time: None,
            reserve: Duration::from_secs(120),
            check_every: Duration::from_secs(1),
        }
    }
}

impl ExitConfig {
    /// The number of [`ExitConfig::signal`] on this system. `None` if no signal is configured, or if [`Config::check`] refuses the
    /// configured signal.
    pub fn signal_number(&self) -> Option<i32> {
        kinds::signal(self.signal.as_deref()?).map(|(_, number)| number)
    }
}

/// Bounds on waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a collective operation may lack votes before a warning names the ranks that are missing. A tier on which nothing has moved
    /// for that long is bypassed if another tier will do.
    pub warn: Duration,
    /// How long an operation may take before the root abandons it.
    pub abandon: Duration,
    /// How long `capture` waits for room in the memory tier before it writes to the next tier itself.
    pub room: Duration,
    /// How long `close` waits for flushes in flight.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        Timeouts { warn: Duration::from_secs(30), abandon: minutes(30), room: minutes(10), drain: minutes(30) }
    }
}

/// The part of the configuration that a node may choose.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// The importance of lines that are written to standard error if the program has no logger of its own.
    pub log: LogLevel,
    /// The directory of the node-shared segment: a tmpfs.
    pub memory_directory: PathBuf,
    /// Memory for all ranks of the node together.
    pub memory_budget: Budget,
    /// Directory of the local tier; `None`: a private one under the temporary directory.
    pub local_directory: Option<PathBuf>,
    /// Accept a tmpfs as the local tier, although it does not survive a reboot.
    pub local_allow_tmpfs: bool,
    /// Direct I/O on the local tier.
    pub local_direct: Direct,
    /// Direct I/O on the global tier.
    pub global_direct: Direct,
    /// Bytes per write to local and global tiers.
    pub write_bytes: u64,
    /// Threads of each rank that write to local and global tiers.
    pub writers: u32,
    /// Which thread steps the coordination.
    pub progress: Progress,
    /// GPU memory of each rank for caching, on the device that it uses.
    pub device_budget: Budget,
    /// The part of `device_budget` for blocks that are copied before they are overwritten; a percentage refers to `device_budget`.
    pub offload_buffer: Budget,
    /// Where the threads of the GPU caches run.
    pub device_cpus: ThreadCpus,
    /// The caches of histories.
    pub history: HistoryConfig,
    /// Memory for the tables of chunks of each rank and name; a percentage refers to the rank's equal share of the memory tier.
    pub reduction_budget: Budget,
    /// GPU memory for the tables of chunks of each rank and name, in addition to [`NodeConfig::device_budget`].
    pub device_tables: Budget,
    /// Where threads go after a restart, and how often they are looked at.
    pub affinity: AffinityConfig,
    /// Memory of each rank for elements in transit while arrays are loaded on another decomposition: elements that it has sent but other
    /// ranks have not yet taken, and as much again for elements that other ranks send to it.
    pub restart_window: u64,
    /// Where the group's root rank writes its status and looks for halt conditions; `None`: nowhere. Only the root's value counts.
    /// `bivouac run` sets it.
    pub run_directory: Option<PathBuf>,
    /// Where every rank writes what it does and when, for `bivouac report`; `None`: only the group's root rank writes this, to its run
    /// directory.
    pub events_directory: Option<PathBuf>,
    /// The machine profile that the group's root rank begins with, and writes when the session closes; `None`: there is none. Only the
    /// root's value counts.
    pub profile: Option<PathBuf>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            memory_directory: PathBuf::from("/dev/shm"),
            memory_budget: Budget::default(),
            local_directory: None,
            log: LogLevel::default(),
            local_allow_tmpfs: false,
            local_direct: Direct::Auto,
            global_direct: Direct::Auto,
            write_bytes: 4 * MIB,
            writers: 2,
            progress: Progress::Auto,
            device_budget: Budget::Percent(10.0),
            offload_buffer: Budget::Percent(25.0),
            device_cpus: ThreadCpus::default(),
            history: HistoryConfig::default(),
            reduction_budget: Budget::Percent(5.0),
            device_tables: Budget::Percent(2.0),
            affinity: AffinityConfig::default(),
            restart_window: 64 * MIB,
            run_directory: None,
            events_directory: None,
            profile: None,
        }
    }
}

/// The caches of histories other than the GPU cache: how large they are and how they are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryConfig {
    /// Node memory for the histories of each rank; a percentage refers to the rank's equal share of the memory tier.
    pub host_budget: Budget,
    /// File space for the histories of each rank; a percentage refers to the rank's equal share of the free space on the file system of the
    /// local tier.
    pub store_budget: Budget,
    /// When node memory is touched.
    pub touch: Touch,
    /// How the ranks of a node pin this memory, and checkpoint slots into which a device has written.
    pub pin: PinOrder,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        HistoryConfig {
            host_budget: Budget::Percent(50.0),
            store_budget: Budget::Percent(50.0),
            touch: Touch::default(),
            pin: PinOrder::default(),
        }
    }
}

/// Where background threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThreadCpus {
    /// On the CPUs near the device, among the CPUs that the launcher had for the process. If the process was bound to one core, the threads
    /// may use more than one.
    #[default]
    Near,
    /// On the CPUs that the process itself is bound to.
    Own,
}

/// When node memory is touched for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Touch {
    /// As measured rates suggest.
    #[default]
    Auto,
    /// While flushes are running.
    Beside,
    /// Only while no flush is running.
    Between,
}

/// How the ranks of a node pin host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PinOrder {
    /// One after the other, part by part.
    #[default]
    InTurns,
    /// All at once.
    AtOnce,
    /// Not at all: copies run at the speed of pageable memory.
    Never,
}

/// A memory budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// This many bytes.
    Bytes(u64),
    /// A percentage of the memory that the node has available when the session opens.
    Percent(f64),
}

impl Budget {
    /// The budget in bytes; a percentage refers to `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Budget::Bytes(bytes) => bytes,
            Budget::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

/// A quarter of the memory that is available.
impl Default for Budget {
    fn default() -> Self {
        Budget::Percent(25.0)
    }
}

/// Whether files are written around the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direct {
    /// Where a probe of the directory succeeds.
    #[default]
    Auto,
    /// Always; it is an error if it does not work.
    On,
    /// Never.
    Off,
}

/// Which thread steps the coordination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Progress {
    /// A thread of ours: over MPI if MPI grants `MPI_THREAD_MULTIPLE` and no node has more ranks than processors, otherwise over sockets
    /// between the ranks. If ranks cannot reach each other by sockets, the session's own calls step it.
    #[default]
    Auto,
    /// A thread of ours over sockets between the ranks, whatever MPI grants. If ranks cannot reach each other by sockets, the session's own
    /// calls step it.
    Sockets,
    /// The session's own calls only, over MPI.
    Stepped,
}
