//! The table of all keys. Each key is listed here and nowhere else.
#![forbid(unsafe_code)]

use super::error::{ConfigError, shown};
use super::kinds::*;
use super::origin::Origin;
use super::raw::Raw;
use super::values::Config;

/// The prefix of all environment variables of Bivouac.
pub(super) const VARIABLE_PREFIX: &str = "BIVOUAC_";

/// The key whose variable has no section in its name, because people expect `BIVOUAC_LOG`.
const LOG: &str = "job.log";

/// A key of the configuration.
pub(super) struct Key {
    /// The section and the name, for example `local.every`.
    pub name: &'static str,
    /// Whether the key belongs to the job part, which all ranks share.
    pub is_job: bool,
    /// The allowed values, in words.
    pub allowed: &'static str,
    /// Checks a raw value and stores it; `None` if it is not allowed.
    pub read: fn(&mut Config, &Raw) -> Option<()>,
    /// The stored value as a raw one, from which `read` stores an equal value.
    pub show: fn(&Config) -> Raw,
}

impl Key {
    /// The section of the key.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name of the key within its section.
    pub fn leaf(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(_, leaf)| leaf)
    }

    /// The environment variable that overrides the key.
    pub fn variable(&self) -> String {
        if self.name == LOG {
            return format!("{VARIABLE_PREFIX}LOG");
        }
        format!("{VARIABLE_PREFIX}{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// The error for a value that `read` refused.
    pub fn refusal(&self, raw: &Raw, origin: Origin) -> ConfigError {
        ConfigError::Value { key: self.name, value: shown(&raw.to_string()), origin, allowed: self.allowed }
    }
}

/// The key with this name (`section.leaf`).
pub(super) fn find(section: &str, leaf: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section() == section && key.leaf() == leaf)
}

/// The names of all sections, each listed once.
pub(super) fn sections() -> Vec<&'static str> {
    let mut names: Vec<_> = KEYS.iter().map(Key::section).collect();
    names.dedup();
    names
}

/// Describes a key by its field and its kind. The first part of the field says whether all ranks must share it.
macro_rules! key {
    ($name:literal, job.$($field:ident).+, $kind:expr) => { key!(@ $name, true, job.$($field).+, $kind) };
    ($name:literal, node.$($field:ident).+, $kind:expr) => { key!(@ $name, false, node.$($field).+, $kind) };
    (@ $name:literal, $is_job:literal, $($field:ident).+, $kind:expr) => {
        Key {
            name: $name,
            is_job: $is_job,
            allowed: $kind.allowed,
            read: |config, raw| {
                config.$($field).+ = ($kind.read)(raw)?;
                Some(())
            },
            show: |config| ($kind.show)(&config.$($field).+),
        }
    };
}

/// All keys, by section in the order of `config/bivouac.toml`.
pub(super) const KEYS: &[Key] = &[
    key!("job.name", job.name, NAME),
    key!("job.group", job.group, NAME),
    key!("job.take_over", job.take_over, SWITCH),
    key!("job.block", job.block_bytes, BLOCK),
    key!("job.log", node.log, LOG_LEVEL),
    key!("interval.steps", job.interval.steps, FROM_ZERO),
    key!("interval.seconds", job.interval.seconds, SPAN_OR_AUTO),
    key!("interval.least", job.interval.least, SPAN),
    key!("interval.most", job.interval.most, LIMIT),
    key!("interval.mtbf", job.interval.mtbf, OPTIONAL_LIMIT),
    key!("interval.overhead_percent", job.interval.overhead_percent, PERCENT),
    key!("exit.signal", job.exit.signal, SIGNAL),
    key!("exit.stop_file", job.exit.stop_file, OPTIONAL_PATH),
    key!("exit.end_time", job.exit.end_time, END_TIME),
    key!("exit.reserve", job.exit.reserve, SPAN),
    key!("exit.check_every", job.exit.check_every, SPAN),
    key!("timeouts.warn", job.timeouts.warn, LIMIT),
    key!("timeouts.abandon", job.timeouts.abandon, LIMIT),
    key!("timeouts.room", job.timeouts.room, SPAN),
    key!("timeouts.drain", job.timeouts.drain, SPAN),
    key!("memory.enabled", job.memory_enabled, SWITCH),
    key!("memory.required", job.memory_required, SWITCH),
    key!("memory.directory", node.memory_directory, PATH),
    key!("memory.budget", node.memory_budget, BUDGET),
    key!("local.enabled", job.local_enabled, SWITCH),
    key!("local.required", job.local_required, SWITCH),
    key!("local.directory", node.local_directory, OPTIONAL_PATH),
    key!("local.every", job.local.every, EVERY),
    key!("local.every_seconds", job.local.every_seconds, SPAN),
    key!("local.keep_last", job.local.keep_last, FROM_ONE),
    key!("local.keep_every", job.local.keep_every, FROM_ZERO),
    key!("local.allow_tmpfs", node.local_allow_tmpfs, SWITCH),
    key!("local.direct", node.local_direct, DIRECT),
    key!("global.enabled", job.global_enabled, SWITCH),
    key!("global.required", job.global_required, SWITCH),
    key!("global.directory", job.global_directory, PATH),
    key!("global.every", job.global.every, EVERY),
    key!("global.every_seconds", job.global.every_seconds, SPAN),
    key!("global.keep_last", job.global.keep_last, FROM_ONE),
    key!("global.keep_every", job.global.keep_every, FROM_ZERO),
    key!("global.direct", node.global_direct, DIRECT),
    key!("object.url", job.object_url, OBJECT_URL),
    key!("object.endpoint", job.object_endpoint, ENDPOINT),
    key!("object.required", job.object_required, SWITCH),
    key!("object.every", job.object.every, FIXED_EVERY),
    key!("object.every_seconds", job.object.every_seconds, SPAN),
    key!("object.keep_last", job.object.keep_last, FROM_ONE),
    key!("object.keep_every", job.object.keep_every, FROM_ZERO),
    key!("redundancy.scheme", job.redundancy.scheme, SCHEME),
    key!("redundancy.every", job.redundancy.every, EVERY),
    key!("redundancy.every_seconds", job.redundancy.every_seconds, SPAN),
    key!("redundancy.names", job.redundancy.names, NAME_POLICIES),
    key!("redundancy.store", job.redundancy.store, PART_STORE),
    key!("redundancy.domains", job.redundancy.domains, DOMAINS),
    key!("reduction.method", job.reduction.method, METHOD),
    key!("reduction.chunk", job.reduction.chunk, CHUNK),
    key!("reduction.regions", job.reduction.regions, REGION_METHODS),
    key!("reduction.host_budget", node.reduction_budget, BUDGET),
    key!("reduction.device_budget", node.device_tables, BUDGET),
    key!("reduction.sources", job.reduction.sources, SOURCES),
    key!("reduction.live", job.reduction.live, LIVE),
    key!("reduction.whole_every", job.reduction.whole_every, FROM_ZERO),
    key!("reduction.verify", job.reduction.verify, VERIFY),
    key!("reduction.compress", job.reduction.compress, COMPRESS),
    key!("engine.write", node.write_bytes, WRITE),
    key!("engine.writers", node.writers, WRITERS),
    key!("engine.progress", node.progress, PROGRESS),
    key!("device.budget", node.device_budget, BUDGET),
    key!("device.cpus", node.device_cpus, THREAD_CPUS),
    key!("history.host_budget", node.history.host_budget, BUDGET),
    key!("history.store_budget", node.history.store_budget, BUDGET),
    key!("history.touch", node.history.touch, TOUCH),
    key!("history.pin", node.history.pin, PIN_ORDER),
    key!("offload.mode", job.offload.mode, OFFLOAD_MODE),
    key!("offload.audit", job.offload.audit, SWITCH),
    key!("offload.host_writes", job.offload.host_writes, HOST_WRITES),
    key!("offload.buffer", node.offload_buffer, BUDGET_OR_NONE),
    key!("stagger.bursts", job.stagger.bursts, BURSTS),
    key!("stagger.scope", job.stagger.scope, BURST_SCOPE),
    key!("stagger.order", job.stagger.order, BURST_ORDER),
    key!("stagger.patience", job.stagger.patience, SPAN),
    key!("stagger.rate", job.stagger.rate, FLUSH_RATE),
    key!("stagger.slowdown", job.stagger.slowdown, FRACTION),
    key!("affinity.mode", job.affinity, AFFINITY_MODE),
    key!("affinity.cpus", node.affinity.cpus, OPTIONAL_CPUS),
    key!("affinity.check_every", node.affinity.check_every, SPAN),
    key!("restart.window", node.restart_window, WINDOW),
    key!("run.directory", node.run_directory, OPTIONAL_PATH),
    key!("events.directory", node.events_directory, OPTIONAL_PATH),
    key!("plan.profile", node.profile, OPTIONAL_PATH),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::text::{FILE_VARIABLE, PLACE_VARIABLES};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut names = BTreeSet::new();
        let mut variables = BTreeSet::new();
        for key in KEYS {
            let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(word(key.section()) && word(key.leaf()), "{}", key.name);
            assert!(names.insert(key.name) && variables.insert(key.variable()), "{}", key.name);
            assert!(!key.variable().starts_with("BIVOUAC_TEST_"), "{}", key.name);
            assert!(key.variable() != FILE_VARIABLE && !PLACE_VARIABLES.contains(&&*key.variable()), "{}", key.name);
        }
        let sections = sections();
        assert_eq!(sections.len(), sections.iter().collect::<BTreeSet<_>>().len(), "a section is split");
    }

    #[test]
    fn each_key_shows_what_it_reads() {
        let config = Config::default();
        for key in KEYS {
            let raw = (key.show)(&config);
            let mut read = Config::default();
            assert_eq!((key.read)(&mut read, &raw), Some(()), "{} refuses its default {raw}", key.name);
            assert_eq!(read, config, "{}", key.name);
        }
    }
}
