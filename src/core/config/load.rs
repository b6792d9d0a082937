//! Makes a checked configuration from a source, the environment and the settings of a program.

use super::error::{ConfigError, Problems};
use super::keys;
use super::origin::Origin;
use super::redundancy::PartStore;
use super::text;
use super::values::{Config, Interval};
use std::ffi::OsString;
use std::path::Path;

/// A key with the value that takes effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// Section and name: `global.keep_last`.
    pub key: &'static str,
    /// The value as a TOML literal.
    pub value: String,
    /// Where the value was written; `None` if it is the default.
    pub origin: Option<Origin>,
    /// All ranks must share it.
    pub is_job: bool,
}

/// The source of a configuration, before the environment.
#[derive(Clone, Copy, Debug)]
pub enum ConfigSource<'a> {
    /// The file that `BIVOUAC_CONFIG` names, if it is set.
    Environment,
    /// A file.
    File(&'a Path),
    /// TOML text.
    Text(&'a str),
}

impl Config {
    /// Reads a source, then the environment, then the program's `settings`: pairs of a `section.key` and a value as in an environment
    /// variable. Later sources take precedence.
    ///
    /// ```
    /// use bivouac::config::{Config, ConfigSource};
    ///
    /// let settings = [("global.keep_last".to_owned(), "7".to_owned())];
    /// let config = Config::with_settings(ConfigSource::Text("[global]\nkeep_last = 5"), &settings)?;
    /// assert_eq!(config.job.global.keep_last, 7);
    /// # Ok::<(), bivouac::config::ConfigError>(())
    /// ```
    ///
    /// # Blocking
    /// May read one file of at most 1 MiB.
    ///
    /// # Errors
    /// All problems of these sources together: see [`ConfigError`].
    pub fn with_settings(source: ConfigSource<'_>, settings: &[(String, String)]) -> Result<Self, ConfigError> {
        let passed_over = match source {
            ConfigSource::Environment | ConfigSource::Text(_) => None,
            ConfigSource::File(path) => passed_over(path),
        };
        let config = text::resolve_here(source, settings)?;
        Ok(Config { notes: passed_over.into_iter().collect(), ..config })
    }

    /// The result of [`Config::from_env`] or [`Config::load`], key by key in the order of `config/bivouac.toml`: the value, and where it
    /// was written.
    ///
    /// ```
    /// use bivouac::config::{Config, ConfigSource, Origin};
    ///
    /// let effective = Config::effective(ConfigSource::Text("[global]\nkeep_last = 5"))?;
    /// let keep = effective.iter().find(|setting| setting.key == "global.keep_last").unwrap();
    /// assert_eq!((keep.value.as_str(), &keep.origin), ("5", &Some(Origin::Text { line: 2 })));
    /// # Ok::<(), bivouac::config::ConfigError>(())
    /// ```
    ///
    /// # Blocking
    /// May read one file of at most 1 MiB.
    ///
    /// # Errors
    /// All problems of all sources together: see [`ConfigError`].
    pub fn effective(source: ConfigSource<'_>) -> Result<Vec<Effective>, ConfigError> {
        text::resolve_here(source, &[]).map(|config| config.settings())
    }

    /// Every setting, in the form that [`Config::effective`] returns. A value that is not the default and was not read from text has
    /// [`Origin::Program`].
    pub fn settings(&self) -> Vec<Effective> {
        let default = Config::default();
        let effective = |key: &keys::Key| {
            let value = (key.show)(self).to_string();
            let by_program = || (value != (key.show)(&default).to_string()).then_some(Origin::Program);
            let origin = self.origins.get(key.name).cloned().or_else(by_program);
            Effective { key: key.name, value, origin, is_job: key.is_job }
        };
        keys::KEYS.iter().map(effective).collect()
    }

    /// Reads the file at `path`, and then the environment, which takes precedence.
    ///
    /// `BIVOUAC_CONFIG` is ignored, because the program has named its file. The session reports this.
    ///
    /// # Blocking
    /// Reads one file of at most 1 MiB.
    ///
    /// # Errors
    /// All problems of the file and of the environment together: see [`ConfigError`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Config::with_settings(ConfigSource::File(path.as_ref()), &[])
    }

    /// Takes the defaults, then the file that `BIVOUAC_CONFIG` names if it is set, then the environment.
    ///
    /// # Blocking
    /// May read one file of at most 1 MiB.
    ///
    /// # Errors
    /// All problems of the file and of the environment together: see [`ConfigError`].
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(std::env::vars_os())
    }

    /// Reads as [`Config::from_env`] does, with the environment as pairs of name and value.
    ///
    /// # Blocking
    /// May read one file of at most 1 MiB.
    ///
    /// # Errors
    /// All problems of the file and of the variables together: see [`ConfigError`].
    pub fn from_variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        let variables: Vec<_> = variables.into_iter().collect();
        match text::file_variable(variables.iter().cloned()) {
            Some(path) => text::resolve(text::Source::File(Path::new(&path)), variables),
            None => text::resolve(text::Source::Nothing, variables),
        }
    }

    /// Reads TOML text and nothing else: no file, no environment.
    ///
    /// # Errors
    /// All problems of the text together: see [`ConfigError`].
    pub fn from_toml(toml: &str) -> Result<Self, ConfigError> {
        text::resolve(text::Source::Text(toml), [])
    }

    /// Checks values that the program set itself, according to the rules that hold for text.
    ///
    /// # Errors
    /// All values that are not allowed, with [`Origin::Program`]; [`ConfigError::NoTier`] if no tier is enabled;
    /// [`ConfigError::NoPartStore`] if the tier for copies and parity is not enabled; [`ConfigError::NoInterval`] if the lower bound of the
    /// interval is above the upper bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        let mut checked = Config::default();
        for key in keys::KEYS {
            let raw = (key.show)(self);
            if (key.read)(&mut checked, &raw).is_none() {
                problems.push(|| key.refusal(&raw, Origin::Program));
            }
        }
        self.check_together(&mut problems);
        problems.into_result()
    }

    pub(super) fn check_together(&self, problems: &mut Problems) {
        let Interval { least, most, .. } = self.job.interval;
        if least > most {
            problems.push(|| ConfigError::NoInterval { least, most });
        }
        if !(self.job.memory_enabled || self.job.has_files()) {
            problems.push(|| ConfigError::NoTier);
        }
        // Copies and parity are kept in memory by default, so `store` matters only once something is protected.
        let store = self.job.redundancy.store;
        let scheme = self.job.redundancy.first_scheme();
        let has_store = match store {
            PartStore::Memory => self.job.memory_enabled || scheme.is_none(),
            PartStore::Local => self.job.local_enabled,
        };
        if !has_store {
            problems.push(|| ConfigError::NoPartStore { store, scheme: scheme.unwrap_or_default() });
        }
    }
}

/// A note if the environment names one file and the program another.
fn passed_over(path: &Path) -> Option<String> {
    let other = text::file_variable(std::env::vars_os()).filter(|other| Path::new(other) != path)?;
    let name = text::FILE_VARIABLE;
    Some(format!(
        "event=variable-ignored name={name} value={other:?} file={path:?}: the program itself names a configuration file"
    ))
}
