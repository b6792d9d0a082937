//! The surroundings of a session: clock, storage, threads, and the identity of the process.

use crate::base::ids::text_hash;
use crate::base::{Clock, Generation, Incarnation, clock::SystemClock, rng};
use crate::config::Config;
use crate::tier::Around;
use crate::tier::ours;
use crate::tier::posix::PosixStorage;
use crate::tier::storage::Storage;
use crate::transfer::Later;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which threads work for a session besides the application's own calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workers {
    /// A comm thread and writer threads.
    Threads,
    /// Writer threads. Coordination takes place inside the session's calls.
    Writers,
    /// No threads: all work is done inside the session's calls (simulation).
    Inline,
}

/// The surroundings of one rank.
#[derive(Clone)]
pub struct Place {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The file system of the local tier.
    pub local: Arc<dyn Storage>,
    /// The file system of the global tier.
    pub global: Arc<dyn Storage>,
    /// Which threads work in the background.
    pub workers: Workers,
    /// Stores the shards that captures leave to threads, in place of those threads (simulation).
    pub later: Option<Later>,
    /// The group's name, if the configuration does not give one.
    pub group: String,
    /// A random identity. The root's identity becomes that of the run.
    pub fresh: Incarnation,
    /// Host name.
    pub host: String,
    /// The identity of the host's current boot.
    pub boot: String,
    /// The program's name.
    pub program: String,
    /// Program and arguments.
    pub command: String,
    /// Working directory.
    pub directory: PathBuf,
    /// The parent directory of the local tier if none is configured.
    pub temporary: PathBuf,
    /// The user's number.
    pub user: u32,
    /// Whether the paths belong to a real file system, whose owners and type can be checked.
    pub is_real: bool,
}

impl Place {
    /// What this place offers to tiers that all nodes share.
    pub fn around<'a>(&'a self, config: &'a Config) -> Around<'a> {
        Around { config, directory: &self.directory, storage: &self.global }
    }

    /// The surroundings of this process on the machine on which it runs.
    ///
    /// # Errors
    /// If the system has no random source.
    pub fn here(config: &Config, workers: Workers, group: String) -> std::io::Result<Place> {
        let arguments: Vec<String> =
            std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        let program =
            arguments.first().map(Path::new).and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Place {
            clock: Arc::new(SystemClock::default()),
            local: Arc::new(PosixStorage::new(config.node.local_direct)),
            global: Arc::new(PosixStorage::new(config.node.global_direct)),
            workers,
            later: None,
            group,
            fresh: rng::incarnation()?,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot.trim().to_owned(),
            program: program.unwrap_or_else(|| "program".into()),
            command: arguments.join(" "),
            directory: std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
            temporary: std::env::temp_dir(),
            user: ours::user(),
            is_real: true,
        })
    }
}

/// The key of the job: a path component that is the same after a relaunch but differs between users.
pub fn job_key(config: &Config, place: &Place) -> String {
    let (name, seed) = match &config.job.name {
        Some(name) => (name.clone(), String::new()),
        None => (place.program.clone(), place.directory.display().to_string()),
    };
    let hash = text_hash(&format!("{name}\0{seed}\0{}", place.user));
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let readable: String = name.chars().map(plain).take(64).collect();
    format!("{}-{:08x}", readable.trim_start_matches('.'), hash as u32)
}

/// The name of the local tier's folder if none is configured. The next run and tools can find the folder, because they read the same store
/// id or, without a global tier, know the job's key. Somebody who cannot read the store cannot guess the name. Somebody who sees the name
/// may create the folder first on another node, so the folder is used only through [`crate::tier::ours::private_folder`].
pub fn local_name(store: Option<Incarnation>, job: &str, user: u32) -> String {
    let secret = store.map_or_else(|| job.to_owned(), |store| store.to_string());
    let hash = text_hash(&format!("{secret}\0{user}"));
    format!("bivouac-{user}-{hash:016x}")
}

/// The prefix of the file names of a group's segments. A part that differs from run to run follows it.
pub fn segment_prefix(job: &str, group: &str) -> String {
    format!("bivouac-{:08x}-{:08x}-g", text_hash(job) as u32, text_hash(group) as u32)
}

/// The number by which segments name the store of their run; 0 if the run has no store.
pub fn store_hash(store: Option<Incarnation>) -> u64 {
    store.map_or(0, |store| text_hash(&store.to_string()).max(1))
}

/// The file name of a run's segment. It contains part of the incarnation: anybody may create files in `/dev/shm`, and generations can be
/// counted, so somebody else could otherwise have created the next name first.
pub fn segment_name(job: &str, group: &str, generation: Generation, incarnation: Incarnation) -> String {
    format!("{}{:06}-{:.16}", segment_prefix(job, group), generation.0, incarnation.to_string())
}

/// The generation in the name of a segment that begins with `prefix`.
pub fn segment_generation(name: &str, prefix: &str) -> Option<Generation> {
    name.strip_prefix(prefix)?.split('-').next()?.parse().ok().map(Generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_next_segment_cannot_be_told_from_the_last_one() {
        let prefix = segment_prefix("heat-0c7a11f2", "world");
        let name = |incarnation| segment_name("heat-0c7a11f2", "world", Generation(3), Incarnation(incarnation));
        let (one, other) = (name([1; 16]), name([2; 16]));
        assert_ne!(one, other);
        for name in [one, other] {
            assert_eq!(segment_generation(&name, &prefix), Some(Generation(3)));
            assert_eq!(name.len(), prefix.len() + 6 + 1 + 16, "half of the incarnation is not told: {name}");
        }
        assert_eq!(segment_generation(&format!("{prefix}x"), &prefix), None);
    }
}
