//! Translates VELOC's configuration file into Bivouac's. Pure.
//!
//! The file consists of lines `key = value`. A line that begins with `#` or `;` is a comment, and section headers have no meaning. The
//! environment variable whose name is `VELOC_` and the key in upper case overrides the key. docs/VELOC.md has the table.
#![forbid(unsafe_code)]

use bivouac_core::base::ids::text_hash;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use toml::{Table, Value};

/// The known keys.
const KEYS: [&str; 16] = [
    "scratch",
    "persistent",
    "mode",
    "persistent_interval",
    "ec_interval",
    "max_versions",
    "scratch_versions",
    "failure_domain",
    "verify",
    "bivouac",
    "chksum",
    // The keys from here on have no effect.
    "threaded",
    "meta",
    "aggregated",
    "axl_type",
    "axl_config",
];
/// The index of the first of [`KEYS`] that has no effect.
const WITHOUT_EFFECT: usize = 11;
/// A value for the `every` of a level, which is practically never reached.
const NEVER: i64 = i64::MAX;

/// The settings in the file and in the environment.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Settings {
    /// The directory in node-local storage.
    pub scratch: PathBuf,
    /// The directory in the parallel file system.
    pub persistent: PathBuf,
    /// Whether `Checkpoint_end` waits.
    pub is_sync: bool,
    /// Whether `Restart_test` reads the version that it offers.
    pub verifies: bool,
    /// A file with further settings for Bivouac.
    pub bivouac: Option<PathBuf>,
    /// The configuration for Bivouac.
    pub config: Table,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The keys and values of a text.
fn entries(text: &str, problems: &mut Vec<String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if line.is_empty() || line.starts_with(['#', ';', '[']) {
            continue;
        }
        match line.split_once('=') {
            Some((key, value)) => {
                let value = value.trim();
                let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                found.insert(key.trim().to_ascii_lowercase(), quoted.unwrap_or(value).to_owned());
            }
            None => problems.push(format!("line {number}: {line:?} is not of the form key = value")),
        }
    }
    found
}

/// Reads a configuration; `variable` looks up an environment variable.
///
/// # Errors
/// The text names all mistakes.
pub(super) fn read(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let mut found = entries(text, &mut problems);
    for key in KEYS {
        if let Some(value) = variable(&format!("VELOC_{}", key.to_ascii_uppercase())) {
            found.insert(key.to_owned(), value);
        }
    }
    for key in found.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        notes.push(format!("key {key} is unknown and has no effect"));
    }
    for key in KEYS[WITHOUT_EFFECT..].iter().filter(|key| found.contains_key(**key)) {
        notes.push(format!("key {key} has no effect here"));
    }
    let mut given = Given { found, problems };
    let scratch = given.directory("scratch");
    let persistent = given.directory("persistent");
    let is_sync = match given.text("mode").as_deref() {
        None | Some("sync") => true,
        Some("async") => false,
        Some(other) => given.refuse("mode", other, "sync or async", false),
    };
    let verifies = given.switch("verify").unwrap_or(true);
    if given.switch("chksum") == Some(false) {
        notes.push("chksum = false has no effect here: checksums are always computed and compared".into());
    }
    let persistent_interval = given.number("persistent_interval", -1).unwrap_or(0);
    let ec_interval = given.number("ec_interval", -1).unwrap_or(0);
    let max_versions = given.number("max_versions", 0).unwrap_or(0);
    let scratch_versions = given.number("scratch_versions", 0).unwrap_or(0);
    let domains = match given.text("failure_domain") {
        None => None,
        Some(word) if word == "node" || word == "slurm" || word.contains('/') => Some(word),
        Some(other) => {
            notes.push(format!(
                "failure_domain = {other}: each node counts as a failure domain of its own; groups of nodes are read from a \
                 topology file: failure_domain = /path/to/topology.toml, or slurm"
            ));
            None
        }
    };
    let bivouac = given.text("bivouac").map(PathBuf::from);
    if !given.problems.is_empty() {
        return Err(given.problems.join("; "));
    }

    let mut config = Config::default();
    config.set("job", "name", Value::String(format!("veloc-{:016x}", text_hash(&resolved(&persistent)))));
    config.set("local", "directory", Value::String(scratch.clone()));
    config.set("local", "allow_tmpfs", Value::Boolean(true));
    config.set("global", "directory", Value::String(persistent.clone()));
    // VELOC refuses to start without its two directories.
    config.set("local", "required", Value::Boolean(true));
    config.set("global", "required", Value::Boolean(true));
    config.keep("local", scratch_versions);
    config.keep("global", max_versions);
    if persistent_interval < 0 {
        config.set("global", "enabled", Value::Boolean(false));
    } else {
        config.every("global", persistent_interval);
    }
    if ec_interval >= 0 {
        config.set("redundancy", "scheme", Value::String("xor".into()));
        config.every("redundancy", ec_interval);
    }
    if let Some(domains) = domains {
        config.set("redundancy", "domains", Value::String(domains));
    }
    let (scratch, persistent) = (PathBuf::from(scratch), PathBuf::from(persistent));
    Ok(Settings { scratch, persistent, is_sync, verifies, bivouac, config: config.0, notes })
}

/// The settings while they are being checked.
struct Given {
    found: BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Given {
    fn text(&self, key: &str) -> Option<String> {
        self.found.get(key).filter(|value| !value.is_empty()).cloned()
    }

    fn refuse<T>(&mut self, key: &str, value: &str, allowed: &str, instead: T) -> T {
        self.problems.push(format!("{key} = {value}: it must be {allowed}"));
        instead
    }

    /// A directory that must be given. It is returned as an absolute path, by which everything that uses it finds it
    /// from any working directory.
    fn directory(&mut self, key: &str) -> String {
        let Some(text) = self.text(key) else {
            self.problems.push(format!("{key} is missing: a directory"));
            return String::new();
        };
        // The path is stored without a slash at its end, so that a directory has one name, and therefore one job.
        let absolute = std::path::absolute(Path::new(&text)).ok().map(|path| path.components().collect::<PathBuf>());
        match absolute.as_deref().and_then(Path::to_str) {
            Some(path) => path.to_owned(),
            None => self.refuse(key, &text, "a directory", String::new()),
        }
    }

    fn switch(&mut self, key: &str) -> Option<bool> {
        let text = self.text(key)?;
        Some(match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => true,
            "false" | "0" | "no" | "off" => false,
            _ => self.refuse(key, &text, "true or false", false),
        })
    }

    fn number(&mut self, key: &str, least: i64) -> Option<i64> {
        let text = self.text(key)?;
        let number = text.parse::<i64>().ok().filter(|number| (least..=i64::from(i32::MAX)).contains(number));
        Some(number.unwrap_or_else(|| self.refuse(key, &text, &format!("a number of {least} or more"), 0)))
    }
}

/// Bivouac's configuration while it is being built.
#[derive(Default)]
struct Config(Table);

impl Config {
    fn set(&mut self, section: &str, key: &str, value: Value) {
        let section = self.0.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(section) = section {
            section.insert(key.into(), value);
        }
    }

    /// Sets how many versions are kept; 0 means all.
    fn keep(&mut self, section: &str, versions: i64) {
        match versions {
            0 => self.set(section, "keep_every", Value::Integer(1)),
            some => self.set(section, "keep_last", Value::Integer(some)),
        }
    }

    /// Sets the interval of a level in seconds; 0 means that every checkpoint goes to it.
    fn every(&mut self, section: &str, seconds: i64) {
        if seconds > 0 {
            self.set(section, "every", Value::Integer(NEVER));
            self.set(section, "every_seconds", Value::Integer(seconds));
        }
    }
}

/// Merges a configuration with the text of a Bivouac file. Where both set a key, the file takes precedence.
///
/// # Errors
/// The text is not TOML.
pub(super) fn merged(mut config: Table, text: &str) -> Result<Table, String> {
    let more: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    for (name, value) in more {
        match (config.get_mut(&name), value) {
            (Some(Value::Table(section)), Value::Table(more)) => section.extend(more),
            (_, value) => {
                config.insert(name, value);
            }
        }
    }
    Ok(config)
}

/// A directory by its name in the system, however it was spelt. Links and `..` are resolved in that part of the path which exists.
fn resolved(directory: &str) -> String {
    let path = Path::new(directory);
    let known = path.ancestors().find_map(|known| Some((std::fs::canonicalize(known).ok()?, known)));
    let Some((mut whole, known)) = known else { return directory.to_owned() };
    for part in path.strip_prefix(known).into_iter().flat_map(Path::components) {
        match part {
            Component::ParentDir => _ = whole.pop(),
            other => whole.push(other),
        }
    }
    whole.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::config;
    use bivouac_core::config::{Config as Ours, Scheme};
    use std::time::Duration;

    const LEAST: &str = "scratch = /tmp/s\npersistent = /lus/p\n";

    fn ours(text: &str) -> (Settings, Ours) {
        let settings = read(&format!("{LEAST}{text}"), |_| None).unwrap();
        let config = Ours::from_toml(&settings.config.to_string()).unwrap();
        (settings, config)
    }

    #[test]
    fn a_directory_is_one_however_it_is_spelt() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let spelt = |path: &str| resolved(root.join(path).to_str().unwrap());
        let there = root.join("there/run").display().to_string();
        // The spellings agree before the directory is made, and afterwards.
        assert_eq!([spelt("there/run"), spelt("there/run/"), spelt("there/./x/../run")], [&*there; 3]);
        std::fs::create_dir_all(&there).unwrap();
        std::os::unix::fs::symlink(root.join("there"), root.join("link")).unwrap();
        let all = ["there/run", "there/run/", "link/run", "link/../there/run", "there//run/."];
        assert_eq!(all.map(spelt), [&*there; 5]);
        assert_ne!(spelt("there"), there);
    }

    #[test]
    fn directories_versions_and_intervals_are_ours() {
        let (settings, config) =
            ours("mode = async\nmax_versions = 5\nscratch_versions = 1\npersistent_interval = 600\n");
        assert!(!settings.is_sync && settings.verifies && settings.notes.is_empty(), "{settings:?}");
        assert_eq!(config.node.local_directory, Some(PathBuf::from("/tmp/s")));
        assert_eq!(config.job.global_directory, PathBuf::from("/lus/p"));
        assert!(config.node.local_allow_tmpfs && config.job.global_enabled);
        assert_eq!((config.job.local.keep_last, config.job.local.keep_every), (1, 0));
        assert_eq!((config.job.global.keep_last, config.job.global.keep_every), (5, 0));
        assert_eq!(
            (config.job.global.every, config.job.global.every_seconds),
            ((NEVER as u64).into(), Duration::from_secs(600))
        );
        assert_eq!((config.job.local.every, config.job.redundancy.every), (1.into(), 1.into()));
        assert_eq!(config.job.redundancy.scheme, Scheme::Xor { members: 8 });
    }

    #[test]
    fn zero_versions_are_all_and_minus_one_is_never() {
        let (settings, config) = ours("persistent_interval = -1\nec_interval = -1\nmax_versions = 0\n");
        assert!(settings.is_sync, "without a mode");
        assert!(!config.job.global_enabled);
        assert_eq!((config.job.local.keep_every, config.job.global.keep_every), (1, 1));
        assert_eq!(config.job.redundancy, config::RedundancyConfig::default());
        let (_, config) = ours("ec_interval = 30\nfailure_domain = slurm\n");
        assert_eq!(config.job.redundancy.every_seconds, Duration::from_secs(30));
        assert_eq!(config.job.redundancy.domains, config::DomainSource::Slurm);
    }

    #[test]
    fn remarks_sections_and_quotes_are_read_and_variables_win() {
        let text = "# a\n; b\n[veloc]\n  scratch=\"/tmp/s\" \nPERSISTENT = /lus/p/\nmode = sync\n";
        let variable = |name: &str| (name == "VELOC_MODE").then(|| "async".to_owned());
        let settings = read(text, variable).unwrap();
        assert_eq!((settings.scratch.to_str(), settings.is_sync), (Some("/tmp/s"), false));
        assert_eq!(settings.config, ours("").0.config, "and the same job, however the file is written");
    }

    #[test]
    fn unknown_keys_are_noted_and_all_wrong_values_are_named() {
        let (settings, _) = ours("colour = red\nthreaded = true\nchksum = false\nfailure_domain = rack7\n");
        for word in ["colour", "threaded", "chksum", "rack7"] {
            assert!(settings.notes.iter().any(|note| note.contains(word)), "{word}: {:?}", settings.notes);
        }
        let text = "mode = fast\nmax_versions = -1\npersistent_interval = often\nchksum = maybe\nwhat\n";
        let wrong = read(text, |_| None).unwrap_err();
        let places = [
            "line 5",
            "scratch is missing",
            "persistent is missing",
            "mode = fast",
            "max_versions = -1",
            "often",
            "maybe",
        ];
        for place in places {
            assert!(wrong.contains(place), "{place}: {wrong}");
        }
    }

    #[test]
    fn a_file_of_ours_wins_key_by_key() {
        let (settings, _) = ours("max_versions = 5\n");
        let more = "[global]\nkeep_last = 9\n[memory]\nbudget = \"1 GiB\"\n";
        let both = Ours::from_toml(&merged(settings.config, more).unwrap().to_string()).unwrap();
        assert_eq!((both.job.global.keep_last, both.job.global_directory), (9, PathBuf::from("/lus/p")));
        assert_eq!(both.node.memory_budget, config::Budget::Bytes(1 << 30));
        assert!(merged(Table::new(), "[global").is_err());
    }
}
