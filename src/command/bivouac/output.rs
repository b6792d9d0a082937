//! Tables for people, documents for programs.
#![forbid(unsafe_code)]

use bivouac_core::base::CheckpointKey;
pub use bivouac_core::base::text::{list, message, most, plain, plain_lines, short};
use bivouac_core::base::units::{Bytes, MIB};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, SystemTime};

/// The number that every JSON document carries as `schema`.
pub const SCHEMA: u32 = 1;
/// A progress bar is worth its flicker from this many bytes.
const LONG_BYTES: u64 = 256 * MIB;

/// Identifies a checkpoint in documents, as fields of the structure that contains this one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct KeyView {
    job: String,
    group: String,
    /// Name of the series.
    pub name: String,
    generation: u64,
    /// Version.
    pub version: u64,
    operation: u64,
}

impl KeyView {
    /// The checkpoint `key` of the series job, group, name.
    pub fn new(series: [&str; 3], key: &CheckpointKey) -> KeyView {
        let [job, group, name] = series.map(str::to_owned);
        KeyView { job, group, name, generation: key.generation.0, version: key.version, operation: key.operation }
    }

    /// The series as text for people.
    pub fn series(&self) -> String {
        plain(&format!("{}/{}/{}", self.job, self.group, self.name))
    }

    /// The checkpoint within its series, as text for people.
    pub fn words(&self) -> String {
        format!("version {} of generation {}", self.version, self.generation)
    }

    /// The checkpoint within its series, for cases in which version and generation do not identify it.
    pub fn all_words(&self) -> String {
        format!("{}, operation {}", self.words(), self.operation)
    }

    /// The cells of a table: job, group, name, generation, version, operation.
    pub fn cells(&self) -> [String; 6] {
        let [generation, version, operation] = [self.generation, self.version, self.operation].map(|it| it.to_string());
        [plain(&self.job), plain(&self.group), plain(&self.name), generation, version, operation]
    }
}

/// Prints a document, as JSON or as the text that `text` makes of it for people.
pub fn show<D: Serialize>(is_json: bool, document: &D, text: impl FnOnce(&D) -> String) {
    match is_json {
        true => print_json(document),
        false => print(&text(document)),
    }
}

/// Prints text to standard output. A reader that has gone away (`| head`) is not an error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        complain(&format!("cannot write to standard output: {error}"));
    }
}

/// Prints a document.
pub fn print_json(document: &impl Serialize) {
    let text = serde_json::to_string_pretty(document).expect("our documents have text keys and finite numbers");
    print(&(text + "\n"));
}

/// A progress bar over `total` bytes, hidden if nobody looks or if the work is short.
pub fn bar(total: u64, is_hidden: bool) -> ProgressBar {
    let is_shown = total >= LONG_BYTES && !is_hidden && std::io::stderr().is_terminal();
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// How many files are read or written at the same time if the user does not say so.
pub fn jobs_default() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(4))
}

/// Prints one line to standard error.
pub fn complain(text: &str) {
    // Standard error may be closed; then nobody is left to tell.
    let _ = writeln!(std::io::stderr(), "bivouac: {}", message(text));
}

/// A table whose columns are as wide as their widest cell. The cells of the columns in `right` are aligned to the right.
pub fn table(heads: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heads.iter().map(|head| head.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heads = heads.iter().map(|head| head.to_string()).collect::<Vec<_>>();
    let mut text = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let fill = " ".repeat(width - cell.chars().count());
            line += &if right.contains(&column) { format!("{fill}{cell}  ") } else { format!("{cell}{fill}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A byte count with its unit.
pub fn bytes(count: u64) -> String {
    Bytes(count).to_string()
}

/// How long ago a time was, in a unit that fits.
pub fn age(modified: Option<SystemTime>) -> String {
    let Some(modified) = modified else { return "?".into() };
    let Ok(passed) = SystemTime::now().duration_since(modified) else { return "in the future".into() };
    span(passed)
}

fn span(passed: Duration) -> String {
    let seconds = passed.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// Seconds since 1970, for programs.
pub fn unix(time: Option<SystemTime>) -> Option<u64> {
    time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|since| since.as_secs())
}

/// Ranks as ranges: `0-3,7`.
pub fn ranks(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    self::ranges(&ranges)
}

/// The maximum number of ranges of ranks that are shown.
const RANGES_MAX: usize = 32;

/// Formats ranges, each given by its first and last rank, as text. A range for every second rank of a large job would fill pages, so the
/// text ends with the number of ranks that it leaves out.
pub fn ranges(ranges: &[(u32, u32)]) -> String {
    let text = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let (shown, left) = ranges.split_at(ranges.len().min(RANGES_MAX));
    let shown = shown.iter().map(text).collect::<Vec<_>>().join(",");
    let count: u64 = left.iter().map(|(first, last)| u64::from(last.saturating_sub(*first)) + 1).sum();
    if count == 0 { shown } else { format!("{shown} and {count} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "10".into()], vec!["long".into(), "9".into()]];
        assert_eq!(table(&["name", "n"], &[1], &rows), "name   n\na     10\nlong   9\n");
    }

    #[test]
    fn ranks_are_ranges() {
        assert_eq!(ranks([0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranks([]), "");
        let even = ranks((0..200).map(|rank| 2 * rank));
        assert!(even.ends_with(",60,62 and 168 more"), "{even}");
        assert_eq!(ranks([u32::MAX, u32::MAX]), format!("{0},{0}", u32::MAX));
    }

    #[test]
    fn ages_have_a_fitting_unit() {
        let text = |seconds| span(Duration::from_secs(seconds));
        assert_eq!([text(5), text(600), text(8000), text(400_000)], ["5 s", "10 min", "2 h", "4 d"]);
    }
}
