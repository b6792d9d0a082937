//! Whether a run of a job is alive, and which jobs a user means.
#![forbid(unsafe_code)]

use crate::ending::Problem;
use crate::memory::Stock;
use crate::output::short;
use bivouac_core::base::Generation;
use bivouac_core::base::clock::SystemClock;
use bivouac_core::base::ids::text_hash;
use bivouac_core::catalog::LedgerEntry;
use bivouac_core::config::Config;
use bivouac_core::segment;
use bivouac_core::session::place::{Place, Workers, job_key, segment_prefix};
use bivouac_core::tier::Tier;
use bivouac_core::tier::claims::{ClaimError, ClaimRecord, Claims};
use bivouac_core::tier::names::Series;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What this process would write into a claim of its own: its random identity, host and boot.
pub fn me(program: &str) -> ClaimRecord {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    ClaimRecord {
        incarnation: bivouac_core::base::rng::incarnation().unwrap_or_default().to_string(),
        host: host(),
        boot: boot.trim().to_owned(),
        process: String::new(),
        pid: std::process::id(),
        program: program.into(),
        group_size: 0,
    }
}

/// The name of this host.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The claims of a job and group on a tier; `None` if no run has ever claimed them there.
pub fn claims(tier: &dyn Tier, job: &str, group: &str) -> Option<Claims> {
    let is_known = tier.list(&tier.root().join(job).join(group).join("claims")).is_ok();
    is_known.then(|| Claims::new(tier.kind(), tier.records(), tier.root(), job, group))
}

/// A claim on this store whose run lives, or why that cannot be told.
pub fn claimed(tier: &dyn Tier, job: &str, group: &str, program: &str) -> Option<String> {
    match claims(tier, job, group)?.refuse_alive(&me(program), &SystemClock::default()) {
        Ok(()) => None,
        Err(ClaimError::Alive { generation, host, pid, program, path, .. }) => Some(format!(
            "its job has a living run, generation {generation}, {program:?} as process {pid} on {host} (claim {}). Wait for it to end",
            path.display()
        )),
        Err(error) => Some(format!("cannot find out whether a run is alive: {error}")),
    }
}

/// The living run of a job and group, if the claims on a tier or the segments of this node show one; or why that cannot be told.
pub fn living_run(tier: &dyn Tier, memory: &Path, job: &str, group: &str, program: &str) -> Option<String> {
    claimed(tier, job, group, program).or_else(|| living_segment(memory, job, group))
}

/// The directory of this node's segments: the named one, or else the one that the environment gives, or else the default.
pub fn memory_directory(named: Option<&Path>) -> PathBuf {
    let variable = || std::env::var_os("BIVOUAC_MEMORY_DIRECTORY").map(PathBuf::from);
    named.map(Path::to_owned).or_else(variable).unwrap_or_else(|| "/dev/shm".into())
}

/// A segment of this job and group on this node whose run lives.
pub fn living_segment(memory: &Path, job: &str, group: &str) -> Option<String> {
    let names = segment::list(memory, &segment_prefix(job, group)).unwrap_or_default();
    let living = |name: &String| Stock::open(memory, name).ok().filter(|stock| stock.is_alive);
    names.iter().find_map(living).map(|stock| {
        let Generation(generation) = stock.segment.header().generation;
        let path = stock.segment.path().display();
        format!("its job has a living run, generation {generation}, with the memory segment {path}. Wait for it to end")
    })
}

/// Is this the job that the user means? A key is a readable name and a hash; the user may give the whole key or only the name.
pub fn is_job(key: &str, meant: &str) -> bool {
    let readable =
        key.rsplit_once('-').filter(|(_, hash)| hash.len() == 8 && hash.chars().all(|c| c.is_ascii_hexdigit()));
    key == meant || readable.is_some_and(|(name, _)| name == meant)
}

/// The message about a job that was not found anywhere.
pub fn no_job(job: &str, places: &str) -> Problem {
    Problem::nothing(format!(
        "there is nothing of a job {:?} in {places}: `bivouac ls` shows the jobs of the global directory. Is the name \
         right, and the global directory that of the job (--global, BIVOUAC_GLOBAL_DIRECTORY, BIVOUAC_CONFIG)?",
        short(job)
    ))
}

/// The hash of the key that a job of this user with this configured name has.
fn key_of(name: &str) -> Option<u64> {
    let mut config = Config::default();
    config.job.name = Some(name.to_owned());
    let place = Place::here(&config, Workers::Inline, String::new()).ok()?;
    Some(text_hash(&job_key(&config, &place)))
}

/// The hashes that segments of the jobs that the user means may have: the hash of the key itself, the hash for a job with this configured
/// name, and the hashes of the keys in `known`. A key contains a hash of the working directory if no name was configured.
pub fn meant_keys<'k>(meant: &str, known: impl IntoIterator<Item = &'k str>) -> BTreeSet<u64> {
    let known = known.into_iter().filter(|key| is_job(key, meant)).map(text_hash);
    [Some(text_hash(meant)), key_of(meant)].into_iter().flatten().chain(known).collect()
}

/// Does a segment belong to a job that the user means? Its shards have the job's key; the segment itself has only a hash of the key.
pub fn is_meant(stock: &Stock, copies: &[LedgerEntry<Series>], keys: &BTreeSet<u64>, meant: &str) -> bool {
    let job = stock.segment.header().job;
    keys.contains(&job)
        || copies.iter().any(|copy| text_hash(&copy.series.job) == job && is_job(&copy.series.job, meant))
}

/// Is this the name of a segment with one of these keys?
pub fn is_segment_of(name: &str, keys: &BTreeSet<u64>) -> bool {
    keys.iter().any(|key| name.starts_with(&format!("bivouac-{:08x}-", *key as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_meant_by_its_key_or_by_its_name() {
        for (meant, is_meant) in
            [("heat-0c7a11f2", true), ("heat", true), ("hea", false), ("0c7a11f2", false), ("", false)]
        {
            assert_eq!(is_job("heat-0c7a11f2", meant), is_meant, "{meant}");
        }
        assert!(is_job("a-b-00000000", "a-b") && !is_job("a-b-00000000", "a"));
        assert!(is_job("plain", "plain") && !is_job("heat-notahash", "heat"));
    }
}
