//! The configuration: text that becomes checked values. One part is the same on all ranks; the other may differ from node to node.
//!
//! [`Config`] is the checked value. It is passed in, never stored globally. It comes from the defaults ([`Config::default`]), from a TOML
//! file ([`Config::load`]) and from `BIVOUAC_…` environment variables, which take precedence over the file. `config/bivouac.toml` documents
//! every key. The [`JobConfig`] half must be equal on all ranks: its hash is compared when a session opens. The [`NodeConfig`] half may
//! differ from node to node.
//!
//! # From text to values
//!
//! 1. `text` reads the file and the environment into settings: each has a key, a raw value, and the place where it was written. Unknown
//!    names are found here, and receive a suggestion from `nearest`.
//! 2. `keys` is the table of all keys, each listed once: its name, the field of [`Config`] that it fills, and its kind. Names in files,
//!    names of environment variables, suggestions, [`JobConfig::entries`] and [`Config::check`] are all derived from it.
//! 3. `kinds` defines three things for each kind of value: how raw text becomes a checked value, how the value is printed again, and which
//!    values are allowed, in words.
//! 4. `compare` lists and hashes the job half, and names the keys in which two ranks differ.
//!
//! Reading does not stop at the first mistake: [`ConfigError`] holds all of them, because a user of a batch system may wait an hour for
//! each attempt.
//!
//! # Environment variables
//!
//! Each key `section.name` is overridden by `BIVOUAC_SECTION_NAME`, for example `BIVOUAC_LOCAL_KEEP_LAST=4` or
//! `BIVOUAC_TIMEOUTS_WARN=1min`. `job.log` has the variable `BIVOUAC_LOG`. Any other variable that starts with `BIVOUAC_` is an error,
//! because a misspelt one would otherwise be ignored silently. The following are not configuration keys: `BIVOUAC_CONFIG` (the file
//! that [`Config::from_env`] reads; empty counts as absent), `BIVOUAC_LIBRARY` (the shared library that the Python module loads),
//! variables by which modules of clusters and CMake name an installation (`BIVOUAC_ROOT`, `_DIR`, `_HOME`, `_BASE`, `_INC`, `_LIB`,
//! `_VERSION`), and names that start with `BIVOUAC_TEST_` (left to test programs).
//!
//! # Unset
//!
//! TOML has no word for "nothing". The keys that may have no value (`job.name`, `job.group`, `exit.signal`, `exit.stop_file`,
//! `exit.end_time`, `local.directory`, `object.url`, `object.endpoint`, `affinity.cpus`, `run.directory`, `events.directory`,
//! `plan.profile`) accept the word `unset`, so that an environment variable can also undo a setting of a file.
#![forbid(unsafe_code)]

mod affinity;
mod compare;
mod error;
mod keys;
mod kinds;
mod load;
mod names;
mod nearest;
mod offload;
mod origin;
mod raw;
mod reduction;
mod redundancy;
mod stagger;
mod text;
mod values;

pub use crate::base::log::LogLevel;
pub use affinity::{AffinityConfig, AffinityMode};
pub use compare::KeyDifference;
pub use error::ConfigError;
pub use kinds::OBJECT_SCHEMES;
pub use load::{ConfigSource, Effective};
pub use offload::{HostWrites, OffloadConfig, OffloadMode};
pub use origin::Origin;
pub use reduction::{
    CHUNK_MAX, Compress, Method, NotMethod, NotRegionMethods, ReductionConfig, RegionMethod, RegionMethods,
    SOURCES_MAX, Verify,
};
pub use redundancy::{
    DomainSource, NamePolicies, NamePolicy, NotAScheme, NotNamePolicies, PartStore, RedundancyConfig, Scheme,
};
pub use stagger::{BurstOrder, BurstScope, FlushRate, StaggerConfig};
pub use values::{
    Budget, Choice, Config, Direct, ExitConfig, HistoryConfig, Interval, JobConfig, LevelPolicy, NodeConfig, PinOrder,
    Progress, ThreadCpus, Timeouts, Touch,
};

#[cfg(test)]
mod tests;
