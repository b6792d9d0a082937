//! Turns the file and the environment into settings, and settings into a checked [`Config`].
//!
//! A setting is a key of the table, a raw value, and the place where the value was written. Settings are applied to the defaults in order,
//! those of the environment last. A setting that is refused is reported and leaves the value unchanged. Unless all settings are right, no
//! configuration is returned.
#![forbid(unsafe_code)]

use super::error::{ConfigError, Problems, shown, shown_name};
use super::keys::{self, KEYS, Key, VARIABLE_PREFIX};
use super::load::ConfigSource;
use super::nearest::nearest;
use super::origin::Origin;
use super::raw::{Raw, by_offset};
use super::reduction::BLOCK_REDUCED;
use super::values::Config;
use crate::base::log;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The variable that names a configuration file.
pub(super) const FILE_VARIABLE: &str = "BIVOUAC_CONFIG";
/// Variables that name the place of an installation. The first names the shared library for the Python module. CMake reads `BIVOUAC_ROOT`,
/// and modules of clusters set this variable and the others.
pub(super) const PLACE_VARIABLES: [&str; 8] = [
    "BIVOUAC_LIBRARY",
    "BIVOUAC_ROOT",
    "BIVOUAC_DIR",
    "BIVOUAC_HOME",
    "BIVOUAC_BASE",
    "BIVOUAC_INC",
    "BIVOUAC_LIB",
    "BIVOUAC_VERSION",
];
/// The prefix of variables that belong to test programs.
const TEST_PREFIX: &str = "BIVOUAC_TEST_";
/// The size of the largest file that is read. The sample with all its comments has about 22 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The source that is read before the environment.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Nothing,
    Text(&'a str),
    File(&'a Path),
}

impl Source<'_> {
    fn origin(&self, line: usize) -> Origin {
        match self {
            Source::File(path) => Origin::File { path: path.to_path_buf(), line },
            Source::Nothing | Source::Text(_) => Origin::Text { line },
        }
    }
}

/// A value for a key, before it is checked.
pub(super) struct Setting {
    pub key: &'static Key,
    pub raw: Raw,
    pub origin: Origin,
}

/// Reads a source and the environment into a checked configuration.
pub(super) fn resolve(
    source: Source<'_>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigError> {
    resolve_all(source, variables, &[])
}

/// Reads the program's source, the environment of this process, and then settings of the program.
pub(super) fn resolve_here(source: ConfigSource<'_>, program: &[(String, String)]) -> Result<Config, ConfigError> {
    let variables: Vec<_> = std::env::vars_os().collect();
    let named = file_variable(variables.iter().cloned());
    let source = match (source, &named) {
        (ConfigSource::Environment, Some(path)) => Source::File(Path::new(path)),
        (ConfigSource::Environment, None) => Source::Nothing,
        (ConfigSource::File(path), _) => Source::File(path),
        (ConfigSource::Text(inline), _) => Source::Text(inline),
    };
    resolve_all(source, variables, program)
}

fn resolve_all(
    source: Source<'_>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    program: &[(String, String)],
) -> Result<Config, ConfigError> {
    let mut problems = Problems::default();
    let mut settings = match source {
        Source::Nothing => Vec::new(),
        Source::Text(text) => text_settings(text, source, &mut problems),
        Source::File(path) => file_settings(path, source, &mut problems),
    };
    let from_source = settings.len();
    settings.extend(variable_settings(variables, &mut problems));
    settings.extend(program.iter().filter_map(|(name, word)| program_setting(name, word, &mut problems)));
    log::debug!("event=configured source_keys={from_source} variable_keys={}", settings.len() - from_source);

    let mut config = Config::default();
    for Setting { key, raw, origin } in settings {
        match (key.read)(&mut config, &raw) {
            Some(()) => _ = config.origins.insert(key.name, origin),
            None => problems.push(|| key.refusal(&raw, origin)),
        }
    }
    // Smaller blocks find more data that has not changed.
    if config.job.reduction.is_on() && !config.origins.contains_key("job.block") {
        config.job.block_bytes = BLOCK_REDUCED;
    }
    config.check_together(&mut problems);
    problems.into_result().map(|()| config)
}

/// The value of [`FILE_VARIABLE`], unless it is empty.
pub(super) fn file_variable(mut variables: impl Iterator<Item = (OsString, OsString)>) -> Option<OsString> {
    variables.find(|(name, value)| name == FILE_VARIABLE && !value.is_empty()).map(|(_, value)| value)
}

fn file_settings(path: &Path, source: Source<'_>, problems: &mut Problems) -> Vec<Setting> {
    match read_file(path) {
        Ok(text) => text_settings(&text, source, problems),
        Err(problem) => {
            problems.push(|| problem);
            Vec::new()
        }
    }
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: std::io::Error| ConfigError::Unreadable {
        path: path.to_path_buf(),
        // The calls below fail with the system's errors, except for a path that contains a zero byte.
        errno: error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    // The path is checked before it is opened, because opening a pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_path_buf() });
    }
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigError::TooLarge { path: path.to_path_buf(), limit: FILE_BYTES_MAX });
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let line = Lines::of(&error.as_bytes()[..offset]).line(offset);
        ConfigError::NotText { origin: Origin::File { path: path.to_path_buf(), line }, offset }
    })
}

/// The offsets of the ends of lines, for turning an offset into a line number.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &[u8]) -> Self {
        Lines(text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect())
    }

    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|end| *end < offset) + 1
    }
}

/// Reads TOML. Text with syntax mistakes gives no settings, because the parser can only guess at the rest.
pub(super) fn text_settings(text: &str, source: Source<'_>, problems: &mut Problems) -> Vec<Setting> {
    let lines = Lines::of(text.as_bytes());
    let (document, mistakes) = DeTable::parse_recoverable(text);
    for mistake in &mistakes {
        let line = lines.line(mistake.span().map_or(0, |span| span.start));
        problems.push(|| ConfigError::Syntax { origin: source.origin(line), message: shown_name(mistake.message()) });
    }
    if !mistakes.is_empty() {
        return Vec::new();
    }
    let mut found = Found { settings: Vec::new(), problems };
    // The parser sorts entries by name, but people read from top to bottom.
    for (offset, name, value) in by_offset(document.get_ref()) {
        let origin = source.origin(lines.line(offset));
        match (keys::sections().into_iter().find(|section| *section == name), value) {
            (Some(section), DeValue::Table(table)) => {
                for (offset, leaf, value) in by_offset(table) {
                    found.key(section, leaf, value, source.origin(lines.line(offset)));
                }
            }
            (Some(section), _) => found.problems.push(|| ConfigError::NotASection { section, origin }),
            (None, DeValue::Table(_)) => found.problems.push(|| unknown_section(name, origin)),
            (None, _) => found.problems.push(|| unknown_key(None, name, origin)),
        }
    }
    found.settings
}

/// The contents of a text, while it is being read.
struct Found<'a> {
    settings: Vec<Setting>,
    problems: &'a mut Problems,
}

impl Found<'_> {
    fn key(&mut self, section: &'static str, leaf: &str, value: &DeValue<'_>, origin: Origin) {
        match keys::find(section, leaf) {
            Some(key) => self.settings.push(Setting { key, raw: Raw::of(value), origin }),
            None => self.problems.push(|| unknown_key(Some(section), leaf, origin)),
        }
    }
}

fn unknown_section(name: &str, origin: Origin) -> ConfigError {
    let suggestion = nearest(name, keys::sections()).map(|section| format!("[{section}]"));
    ConfigError::UnknownSection { section: shown_name(name), origin, suggestion }
}

/// Looks for a similar name in the same section, then for the same or a similar name in another one.
fn unknown_key(section: Option<&str>, leaf: &str, origin: Origin) -> ConfigError {
    let near = |keys: Vec<&'static Key>| {
        let leaf = nearest(leaf, keys.iter().map(|key| key.leaf()))?;
        keys.into_iter().find(|key| key.leaf() == leaf).map(|key| key.name.to_owned())
    };
    let same_section = || KEYS.iter().filter(|key| Some(key.section()) == section).collect();
    let suggestion = near(same_section()).or_else(|| near(KEYS.iter().collect()));
    let key = match section {
        Some(section) => format!("{section}.{}", shown_name(leaf)),
        None => format!("{} outside any section", shown_name(leaf)),
    };
    ConfigError::UnknownKey { key, origin, suggestion }
}

/// Reads the variables that start with `BIVOUAC_`, in the order of their names.
fn variable_settings(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Problems,
) -> Vec<Setting> {
    let prefix = VARIABLE_PREFIX.as_bytes();
    let ours = variables.into_iter().filter(|(name, _)| name.as_encoded_bytes().starts_with(prefix));
    let mut ours: Vec<_> = ours.map(|(name, value)| (name.to_string_lossy().into_owned(), value)).collect();
    ours.sort();
    let is_key =
        |name: &str| name != FILE_VARIABLE && !PLACE_VARIABLES.contains(&name) && !name.starts_with(TEST_PREFIX);
    ours.retain(|(name, _)| is_key(name));
    ours.into_iter().filter_map(|(name, value)| variable_setting(name, value, problems)).collect()
}

fn program_setting(name: &str, word: &str, problems: &mut Problems) -> Option<Setting> {
    let (section, leaf) = name.split_once('.').unwrap_or(("", name));
    let known = keys::sections().into_iter().find(|known| *known == section);
    match known.and_then(|section| keys::find(section, leaf)) {
        Some(key) => Some(Setting { key, raw: Raw::Word(word.to_owned()), origin: Origin::Program }),
        None if known.is_none() && name.contains('.') => {
            problems.push(|| unknown_section(section, Origin::Program));
            None
        }
        None => {
            problems.push(|| unknown_key(known, leaf, Origin::Program));
            None
        }
    }
}

/// The known variable with the nearest name. The common prefix is not compared.
fn nearest_variable(name: &str) -> Option<String> {
    let known: Vec<String> = KEYS.iter().map(Key::variable).chain([FILE_VARIABLE.to_owned()]).collect();
    let bare = |name: &str| name.strip_prefix(VARIABLE_PREFIX).unwrap_or(name).to_owned();
    nearest(&bare(name), known.iter().map(|known| bare(known))).map(|found| format!("{VARIABLE_PREFIX}{found}"))
}

fn variable_setting(name: String, value: OsString, problems: &mut Problems) -> Option<Setting> {
    let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
        problems.push(|| ConfigError::UnknownVariable { suggestion: nearest_variable(&name), name: shown_name(&name) });
        return None;
    };
    match value.into_string() {
        Ok(word) => Some(Setting { key, raw: Raw::Word(word), origin: Origin::Variable { name } }),
        Err(value) => {
            problems.push(|| ConfigError::VariableNotText {
                name,
                key: key.name,
                value: shown(&format!("{value:?}")),
                allowed: key.allowed,
            });
            None
        }
    }
}
