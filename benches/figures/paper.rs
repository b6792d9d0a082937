//! What the paper's methods would write in addition to the new bytes.
//!
//! - *Basic* writes a bitmap, a bit for each block.
//! - *List* has an entry for each chunk, and *Tree* has one for each node of the tree over the chunks. Both cover what is new (*first-time
//!   occurrence*) and what was stored before, but elsewhere (*shifted duplicate*). Whatever has stayed the same since the previous
//!   checkpoint (*fixed duplicate*) takes no entry.
//!
//! The paper does not say how long an entry is. Here, a node of up to 2^32 takes 4 bytes, and a duplicate, which also names the checkpoint
//! and the node there, takes 12. Ranges are cut into as few nodes as possible. A file of ours takes more for whatever is fixed, because it
//! is read with its sources and not with all versions since the first; and its head is counted.

use super::files::{File, Part};
use super::series::Setting;
use bivouac::config::Method;

const FIRST_BYTES: u64 = 4;
const SHIFTED_BYTES: u64 = 12;

/// Bytes of a region that are stored contiguously.
#[derive(Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    /// The operation whose file stores them, and the first byte there.
    operation: u64,
    offset: u64,
    is_own: bool,
}

impl Run {
    fn home(&self, at: u64) -> (u64, u64) {
        (self.operation, self.offset + (at - self.start))
    }
}

/// Where the bytes of a region are stored.
#[derive(Default)]
pub struct Homes {
    is_whole: bool,
    bytes: u64,
    runs: Vec<Run>,
}

impl Homes {
    /// The homes of a region in the shard that a file represents.
    pub fn of(file: &File, name: &str) -> Homes {
        let region = file.shard().region(name).expect("it has the region");
        let is_inside = |part: &Part| (region.offset..region.offset + region.bytes).contains(&part.at);
        let run = |part: Part| {
            let Part { at, length, operation, offset, is_own } = part;
            let start = at - region.offset;
            Run { start, end: start + length, operation, offset, is_own }
        };
        let runs = file.parts().into_iter().filter(is_inside).map(run).collect();
        Homes { is_whole: file.packing.is_none(), bytes: region.bytes, runs }
    }

    /// Parts of runs that were stored elsewhere, or not at all, in the previous version.
    fn changed(&self, before: &Homes) -> Vec<Run> {
        let mut changed = Vec::new();
        let mut old = before.runs.iter().peekable();
        for run in &self.runs {
            let (mut at, mut from) = (run.start, run.start);
            while at < run.end {
                while old.next_if(|old| old.end <= at).is_some() {}
                let (next, is_fixed) = match old.peek() {
                    Some(old) => (old.end.min(run.end), old.home(at) == run.home(at)),
                    None => (run.end, false),
                };
                if is_fixed {
                    changed.push(Run { start: from, end: at, ..*run });
                    from = next;
                }
                at = next;
            }
            changed.push(Run { start: from, end: at, ..*run });
        }
        changed.retain(|run| run.start < run.end);
        changed
    }
}

/// The metadata bytes of a version in a setting, as the paper counts them.
pub fn metadata(setting: &Setting, homes: &Homes, before: &Homes) -> u64 {
    match setting.method {
        _ if homes.is_whole => 0,
        Method::Full => 0,
        Method::Basic => homes.bytes.div_ceil(setting.block).div_ceil(8),
        method => {
            let entries = |run: &Run| {
                let (first, last) = (run.start / setting.chunk, run.end.div_ceil(setting.chunk));
                let entries = if method == Method::List { last - first } else { nodes(first, last) };
                entries * if run.is_own { FIRST_BYTES } else { SHIFTED_BYTES }
            };
            homes.changed(before).iter().map(entries).sum()
        }
    }
}

/// The minimum number of nodes of a binary tree that cover these leaves.
fn nodes(mut first: u64, last: u64) -> u64 {
    let mut count = 0;
    while first < last {
        let largest = 1u64 << (last - first).ilog2();
        first += if first == 0 { largest } else { largest.min(1 << first.trailing_zeros()) };
        count += 1;
    }
    count
}
