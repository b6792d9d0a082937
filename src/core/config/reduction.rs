//! The section `[reduction]`: whether files refer to earlier ones for part of their content.

use super::names::is_name;
use super::raw::Raw;
use std::fmt;
use std::str::FromStr;

/// The maximum number of checkpoints that a checkpoint may refer to, also in files.
pub const SOURCES_MAX: u64 = 32;
/// The shortest chunk.
pub const CHUNK_MIN: u64 = 32;
/// The longest chunk: no longer than the shortest block.
pub const CHUNK_MAX: u64 = 4096;

/// Bytes of a block if a method is set but `job.block` is not.
pub const BLOCK_REDUCED: u64 = 64 << 10;

/// Which parts of a shard a file leaves out because earlier files store them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// Nothing: each file holds whole shards.
    #[default]
    Full,
    /// Blocks that have not changed.
    Basic,
    /// Chunks that have not changed, and chunks that files store at another place.
    List,
    /// The chunks of [`Method::List`], referred to in as few ranges as a tree of their digests allows.
    Tree,
    /// [`Method::Tree`], or [`Method::Basic`] while most of the region changes.
    Auto,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 5] = [Method::Full, Method::Basic, Method::List, Method::Tree, Method::Auto];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Method::Full => "full",
            Method::Basic => "basic",
            Method::List => "list",
            Method::Tree => "tree",
            Method::Auto => "auto",
        }
    }
}

/// The word is not a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reduction method must be full, basic, list, tree or auto")]
pub struct NotMethod;

impl FromStr for Method {
    type Err = NotMethod;

    fn from_str(word: &str) -> Result<Self, NotMethod> {
        Method::ALL.into_iter().find(|method| word.trim() == method.name()).ok_or(NotMethod)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How Bivouac verifies that the bytes to which files refer are the bytes that were captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Verify {
    /// By the digests alone.
    #[default]
    Digest,
    /// By reading them and comparing every byte, before the file is written.
    Bytes,
}

impl Verify {
    /// All ways to verify.
    pub const ALL: [Verify; 2] = [Verify::Digest, Verify::Bytes];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Verify::Digest => "digest",
            Verify::Bytes => "bytes",
        }
    }
}

/// Whether the bytes that files store themselves are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Compress {
    /// None of the bytes are compressed.
    #[default]
    Off,
    /// Bytes are compressed as long as files are written sooner with compression, as measured by this rank on the tier.
    Auto,
    /// Everything that becomes shorter is compressed.
    On,
}

impl Compress {
    /// All choices.
    pub const ALL: [Compress; 3] = [Compress::Off, Compress::Auto, Compress::On];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Compress::Off => "off",
            Compress::Auto => "auto",
            Compress::On => "on",
        }
    }
}

/// The method of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionMethod {
    /// The checkpoint name.
    pub name: String,
    /// The region.
    pub region: String,
    /// Its method.
    pub method: Method,
    /// Bytes of its chunks, if they differ from the general setting.
    pub chunk: Option<u64>,
}

/// Exceptions for single regions, in the order of the text.
///
/// They are written as a TOML table, here on one line, as in an environment variable. Each key consists of the name of the checkpoint, a
/// `/`, and the name of the region:
///
/// ```
/// use bivouac::config::RegionMethods;
///
/// let text = r#"{ "heat/t" = "full", "graph/counts" = { method = "tree", chunk = 128 } }"#;
/// let methods: RegionMethods = text.parse()?;
/// assert_eq!(methods.as_slice()[1].chunk, Some(128));
/// # Ok::<(), bivouac::config::NotRegionMethods>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RegionMethods(Vec<RegionMethod>);

impl RegionMethods {
    /// The exceptions.
    pub fn as_slice(&self) -> &[RegionMethod] {
        &self.0
    }

    pub(super) fn read(raw: &Raw) -> Option<RegionMethods> {
        let table = raw.table()?;
        table.iter().map(|(place, value)| region_method(place, value)).collect::<Option<_>>().map(RegionMethods)
    }

    pub(super) fn show(&self) -> Raw {
        let of = |RegionMethod { name, region, method, chunk }: &RegionMethod| {
            let word = Raw::Text(method.name().to_owned());
            let value = match chunk {
                None => word,
                Some(bytes) => {
                    Raw::Table(vec![("method".to_owned(), word), ("chunk".to_owned(), Raw::Integer((*bytes).into()))])
                }
            };
            (format!("{name}/{region}"), value)
        };
        Raw::Table(self.0.iter().map(of).collect())
    }
}

/// The text is not a table of exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exceptions for regions must be {}", REGIONS_ALLOWED)]
pub struct NotRegionMethods;

/// The form of the table, in words.
pub(super) const REGIONS_ALLOWED: &str = "a table with a key \"checkpoint/region\" for each exception, whose value is a method, or a \
    table with method and, for list, tree and auto, chunk (a power of two from 32 to 4096): { \"heat/t\" = \"full\", \
    \"graph/counts\" = { method = \"tree\", chunk = 128 } }";

impl FromStr for RegionMethods {
    type Err = NotRegionMethods;

    fn from_str(text: &str) -> Result<Self, NotRegionMethods> {
        RegionMethods::read(&Raw::Word(text.to_owned())).ok_or(NotRegionMethods)
    }
}

/// Prints the text that [`RegionMethods::from_str`] reads back.
impl fmt::Display for RegionMethods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.show(), f)
    }
}

fn region_method(place: &str, value: &Raw) -> Option<RegionMethod> {
    let (name, region) = place.split_once('/')?;
    let (mut method, mut chunk) = (None, None);
    match value {
        Raw::Text(_) => method = Some(value.text()?.parse().ok()?),
        Raw::Table(settings) => {
            for (key, value) in settings {
                match key.as_str() {
                    "method" => method = Some(value.text()?.parse().ok()?),
                    "chunk" => chunk = Some(value.integer()?),
                    _ => return None,
                }
            }
        }
        _ => return None,
    }
    let method = method?;
    let has_chunks = matches!(method, Method::List | Method::Tree | Method::Auto);
    let is_sound = chunk.is_none_or(|bytes| has_chunks && is_chunk(bytes)) && is_name(name) && !region.is_empty();
    is_sound.then(|| RegionMethod { name: name.to_owned(), region: region.to_owned(), method, chunk })
}

/// Is this an allowed length of a chunk in bytes?
pub(super) fn is_chunk(bytes: u64) -> bool {
    bytes.is_power_of_two() && (CHUNK_MIN..=CHUNK_MAX).contains(&bytes)
}

/// Whether files refer to earlier ones, and to how many.
#[derive(Clone, Debug, PartialEq)]
pub struct ReductionConfig {
    /// Which parts files leave out because earlier files store them.
    pub method: Method,
    /// Bytes of a chunk, a power of two from 32 to 4096; `None`: the shortest length of 128 or more for which there is room.
    pub chunk: Option<u64>,
    /// Regions with another method.
    pub regions: RegionMethods,
    /// The maximum number of checkpoints that a checkpoint may refer to, 1 to 32.
    pub sources: u64,
    /// The smallest share of a checkpoint's own bytes that must still be in use for files to refer to it, above 0 and up to 1.
    pub live: f64,
    /// Of the checkpoints of a name that go to files, every n-th is whole. Zero: never for that reason.
    pub whole_every: u64,
    /// How references are checked before they are written.
    pub verify: Verify,
    /// Whether the bytes that files store themselves are compressed.
    pub compress: Compress,
}

impl Default for ReductionConfig {
    fn default() -> Self {
        ReductionConfig {
            method: Method::Full,
            chunk: None,
            regions: RegionMethods::default(),
            sources: 8,
            live: 0.25,
            whole_every: 0,
            verify: Verify::Digest,
            compress: Compress::Off,
        }
    }
}

impl ReductionConfig {
    /// May files refer to earlier files for any region?
    pub fn is_on(&self) -> bool {
        self.method != Method::Full || self.regions.0.iter().any(|region| region.method != Method::Full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_for_regions_are_read_as_they_are_written() {
        for text in [
            "{}",
            r#"{ "heat/t" = "full" }"#,
            r#"{ "heat/t" = "full", "graph/counts" = { method = "tree", chunk = 128 } }"#,
            r#"{ "a/b/c: d" = { method = "auto", chunk = 32 }, "a/b" = "basic" }"#,
        ] {
            let methods: RegionMethods = text.parse().expect(text);
            assert_eq!(methods.to_string(), text);
        }
        let methods: RegionMethods = " {'heat/t'={method='full'}} ".parse().expect("with spaces");
        let [RegionMethod { name, region, method, chunk }] = methods.as_slice() else { panic!("{methods}") };
        assert_eq!((name.as_str(), region.as_str(), *method, *chunk), ("heat", "t", Method::Full, None));
    }

    #[test]
    fn what_is_no_table_of_regions_is_refused() {
        for text in [
            "",
            "heat",
            "{ heat = 'full' }",
            "{ 'heat/' = 'full' }",
            "{ '/t' = 'full' }",
            "{ 'heat/t' = 'Full' }",
            "{ 'heat/t' = {} }",
            "{ 'heat/t' = { chunk = 128 } }",
            "{ 'heat/t' = { method = 'tree', chunk = 100 } }",
            "{ 'heat/t' = { method = 'tree', chunk = '128' } }",
            "{ 'heat/t' = { method = 'tree', chunks = 128 } }",
            "{ 'heat/t' = { method = 'full', chunk = 128 } }",
            "{ 'heat/t' = { method = 'basic', chunk = 128 } }",
            "{ 'heat/t' = { method = 'tree', chunk = 8192 } }",
            "{ 'a/b' = 'full', 'a/b' = 'tree' }",
            "{ heat = { t = 'full' } }",
            "heat/t: full",
        ] {
            assert_eq!(text.parse::<RegionMethods>(), Err(NotRegionMethods), "{text}");
        }
    }
}
