//! The job part as a list of keys and values that ranks can hash, send and compare.
#![forbid(unsafe_code)]

use super::keys::KEYS;
use super::values::{Config, JobConfig};
use std::collections::BTreeMap;
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// A key that two ranks set differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDifference {
    /// The key with its section.
    pub key: String,
    /// Its value on the first rank; `None` if that rank does not know the key.
    pub here: Option<String>,
    /// Its value on the second rank; `None` if that rank does not know the key.
    pub there: Option<String>,
}

impl fmt::Display for KeyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        write!(f, "{} is {} here and {} there", self.key, text(&self.here), text(&self.there))
    }
}

impl JobConfig {
    /// Does any tier keep shards in files or objects?
    pub(crate) fn has_files(&self) -> bool {
        self.local_enabled || self.global_enabled || self.object_url.is_some()
    }

    /// Every key of the job part with its value as canonical text, sorted by key.
    ///
    /// Equal values have equal text however they were written (`"1 min"`, `60`), and different values have different text. The text of a
    /// checked value is a TOML literal: `("global.keep_last", "3")`, `("timeouts.warn", "\"30s\"")`.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        // The table reads whole configurations; the node half is not looked at.
        let config = Config { job: self.clone(), ..Config::default() };
        let job_keys = KEYS.iter().filter(|key| key.is_job);
        let mut entries: Vec<_> = job_keys.map(|key| (key.name, (key.show)(&config).to_string())).collect();
        entries.sort_unstable();
        entries
    }

    /// A hash of [`JobConfig::entries`]: equal on all ranks that run the same program with the same job part.
    pub fn hash(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for (key, value) in self.entries() {
            // Lengths go first, so that no two lists run together into the same bytes.
            for text in [key, &value] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        hasher.digest()
    }

    /// The keys in which two lists of [`JobConfig::entries`] differ, sorted by key. Pure.
    pub fn differences<K1, V1, K2, V2>(here: &[(K1, V1)], there: &[(K2, V2)]) -> Vec<KeyDifference>
    where
        K1: AsRef<str>,
        V1: AsRef<str>,
        K2: AsRef<str>,
        V2: AsRef<str>,
    {
        let mut pairs: BTreeMap<&str, (Option<&str>, Option<&str>)> = BTreeMap::new();
        for (key, value) in here {
            pairs.entry(key.as_ref()).or_default().0 = Some(value.as_ref());
        }
        for (key, value) in there {
            pairs.entry(key.as_ref()).or_default().1 = Some(value.as_ref());
        }
        let differing = pairs.into_iter().filter(|(_, (here, there))| here != there);
        differing
            .map(|(key, (here, there))| KeyDifference {
                key: key.to_owned(),
                here: here.map(str::to_owned),
                there: there.map(str::to_owned),
            })
            .collect()
    }
}
