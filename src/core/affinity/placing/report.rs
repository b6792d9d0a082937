//! What happened to pages that were wanted on a node.
#![forbid(unsafe_code)]

use super::Place;
use super::maps::Maps;
use crate::affinity::numa;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

/// Why a page is not on the node on which it is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// The system does not let this process ask about pages or move them.
    Forbidden,
    /// There is no such node, it has no memory, or this process may not use it.
    NoNode,
    /// The node had no room.
    NodeFull,
    /// Something holds the page where it is: a device with which it is registered, or, for a moment, the system.
    Held,
    /// A huge page that also holds other memory could not be taken apart.
    HugePage,
    /// The page belongs to a file, or other processes also have it.
    NotOwn,
    /// The page has no memory.
    Absent,
    /// The reason is unknown: something else moved the page, or it was never placed.
    Elsewhere,
}

impl Reason {
    /// The reason for a call that failed as a whole.
    pub(super) fn of(error: &io::Error) -> Reason {
        match error.raw_os_error() {
            Some(libc::ENODEV | libc::EACCES) => Reason::NoNode,
            Some(libc::ENOMEM) => Reason::NodeFull,
            Some(libc::EBUSY | libc::EAGAIN | libc::EINVAL) => Reason::Held,
            _ => Reason::Forbidden,
        }
    }

    /// The reason for the status of one page, which is the negative of an error number.
    pub(super) fn of_page(status: i32) -> Reason {
        match status.checked_neg() {
            Some(libc::EACCES) => Reason::NotOwn,
            Some(libc::ENOMEM) => Reason::NodeFull,
            Some(libc::ENOENT | libc::EFAULT) => Reason::Absent,
            _ => Reason::Held,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Forbidden => "not allowed for this process",
            Reason::NoNode => "no such node",
            Reason::NodeFull => "node full",
            Reason::Held => "held by a device or busy",
            Reason::HugePage => "in a huge page with other memory",
            Reason::NotOwn => "file-backed or shared",
            Reason::Absent => "without memory",
            Reason::Elsewhere => "elsewhere",
        })
    }
}

/// The number of pages of 4 KiB, by what happened to them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlaceReport {
    /// Pages that were wanted on a node.
    pub wanted: u64,
    /// Pages that are on that node.
    pub right: u64,
    /// Of the pages in `right`, those that count as right because the pages around them are: the system was not asked about them.
    pub assumed: u64,
    /// Pages that are elsewhere, and why.
    pub wrong: BTreeMap<Reason, u64>,
    /// Pages that received memory. Like the following two fields, this counts what was done, whatever came of it.
    pub populated: u64,
    /// Pages that were moved from another node. Each page of a huge page counts.
    pub migrated: u64,
    /// Pages that were dropped, contents and all, because they were wanted on a different node from the rest of their huge page.
    pub dropped: u64,
}

impl PlaceReport {
    /// The system does not even say where pages are.
    pub(super) fn refused(pages: u64) -> PlaceReport {
        PlaceReport { wanted: pages, wrong: BTreeMap::from([(Reason::Forbidden, pages)]), ..PlaceReport::default() }
    }

    /// There was nothing to do.
    pub(super) fn all_right(pages: u64) -> PlaceReport {
        PlaceReport { wanted: pages, right: pages, ..PlaceReport::default() }
    }

    pub(super) fn wrong(&mut self, reason: Reason, pages: u64) {
        *self.wrong.entry(reason).or_default() += pages;
    }

    /// Pages that are not where they are wanted, for whatever reason.
    pub fn wrong_pages(&self) -> u64 {
        self.wrong.values().sum()
    }

    /// Adds what became of other memory.
    pub fn add(&mut self, other: &PlaceReport) {
        self.wanted += other.wanted;
        self.right += other.right;
        self.assumed += other.assumed;
        other.wrong.iter().for_each(|(reason, pages)| self.wrong(*reason, *pages));
        self.populated += other.populated;
        self.migrated += other.migrated;
        self.dropped += other.dropped;
    }
}

impl fmt::Display for PlaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages wanted={} right={} wrong={}", self.wanted, self.right, self.wrong_pages())?;
        for (index, (reason, pages)) in self.wrong.iter().enumerate() {
            write!(f, "{}{pages} {reason}", if index == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.wrong.is_empty() { "" } else { ")" })
    }
}

/// What has been done so far, and which pages were in the way, while pages are being placed.
#[derive(Default, Debug)]
pub(super) struct Progress {
    noted: Vec<(Range<u64>, Reason)>,
    /// Pages that were populated, and why those of them that are elsewhere are there.
    populated: Vec<(Range<u64>, Reason)>,
    pub(super) migrated: u64,
    pub(super) dropped: u64,
    /// Pages that are where they are wanted.
    right: u64,
    /// The pages among them that were not queried.
    assumed: u64,
    /// Pages that are not where they are wanted, and whether they are present.
    wrong: Vec<(Range<u64>, bool)>,
    /// Pages that could not be queried.
    unknown: BTreeMap<Reason, u64>,
    /// Pages that are to be queried at the end, and where they are wanted.
    open: Vec<(Range<u64>, u32)>,
}

/// Adds pages to others; neighbours with the same reason are one entry.
fn push(list: &mut Vec<(Range<u64>, Reason)>, pages: Range<u64>, reason: Reason) {
    match list.last_mut() {
        Some((last, why)) if *why == reason && last.end == pages.start => last.end = pages.end,
        _ => list.push((pages, reason)),
    }
}

/// The reason of the entry that a page is in.
fn find(sorted: &[(Range<u64>, Reason)], page: u64) -> Option<Reason> {
    let next = sorted.partition_point(|(pages, _)| pages.start <= page);
    sorted[..next].last().filter(|(pages, _)| pages.contains(&page)).map(|(_, reason)| *reason)
}

/// The number of pages that are queried at once.
const PART_PAGES: u64 = 4096;

impl Progress {
    /// Counts pages by where they were found at the end.
    pub(super) fn count(&mut self, pages: Range<u64>, found: &[i32], node: u32) {
        for (page, status) in pages.zip(found) {
            let is_present = match u32::try_from(*status) {
                Ok(found) if found == node => {
                    self.right += 1;
                    continue;
                }
                found => found.is_ok(),
            };
            match self.wrong.last_mut() {
                Some((last, was)) if *was == is_present && last.end == page => last.end += 1,
                _ => self.wrong.push((page..page + 1, is_present)),
            }
        }
    }

    /// Counts pages as right, of which only `asked` were queried.
    pub(super) fn count_sampled(&mut self, pages: u64, asked: u64) {
        self.right += pages;
        self.assumed += pages - asked;
    }

    /// Counts as wrong those pages that nobody can query.
    pub(super) fn give_up(&mut self, pages: &Range<u64>, reason: Reason) {
        *self.unknown.entry(reason).or_default() += pages.end - pages.start;
    }

    /// Leaves pages to [`finish`](Self::finish), which queries them.
    pub(super) fn leave_open(&mut self, pages: Range<u64>, node: u32) {
        self.open.push((pages, node));
    }

    /// Queries the pages that are still open, and says what became of all pages.
    pub(super) fn finish(mut self, place: Place, maps: &Maps) -> PlaceReport {
        for (pages, node) in std::mem::take(&mut self.open) {
            for from in pages.clone().step_by(PART_PAGES as usize) {
                let part = from..pages.end.min(from + PART_PAGES);
                match numa::query(&place.addresses(part.clone())) {
                    Ok(found) => self.count(part, &found, node),
                    Err(_) => self.give_up(&part, Reason::Forbidden),
                }
            }
        }
        let mut report = self.begin();
        for (pages, is_present) in &self.wrong {
            for page in pages.clone() {
                let is_own = maps.is_private_anonymous(place.address(page));
                report.wrong(self.reason(page, *is_present, is_own), 1);
            }
        }
        report
    }

    /// Notes why these pages are not where they should be. Neighbours with the same reason are one note.
    pub(super) fn note(&mut self, pages: Range<u64>, reason: Reason) {
        push(&mut self.noted, pages, reason);
    }

    /// Notes that these pages have got memory, and why they are elsewhere if they are.
    pub(super) fn populate(&mut self, pages: Range<u64>, missed: Reason) {
        push(&mut self.populated, pages, missed);
    }

    pub(super) fn add(&mut self, other: Progress) {
        self.noted.extend(other.noted);
        self.populated.extend(other.populated);
        self.migrated += other.migrated;
        self.dropped += other.dropped;
        self.right += other.right;
        self.assumed += other.assumed;
        self.wrong.extend(other.wrong);
        other.unknown.into_iter().for_each(|(reason, pages)| *self.unknown.entry(reason).or_default() += pages);
        self.open.extend(other.open);
    }

    /// A report of what was done, and of the pages that need no reason. From now on, [`reason`](Self::reason) may be called.
    fn begin(&mut self) -> PlaceReport {
        self.noted.sort_by_key(|(pages, _)| pages.start);
        self.populated.sort_by_key(|(pages, _)| pages.start);
        let populated = self.populated.iter().map(|(pages, _)| pages.end - pages.start).sum();
        let wrong: u64 = self.wrong.iter().map(|(pages, _)| pages.end - pages.start).sum();
        PlaceReport {
            wanted: self.right + wrong + self.unknown.values().sum::<u64>(),
            right: self.right,
            assumed: self.assumed,
            wrong: std::mem::take(&mut self.unknown),
            populated,
            migrated: self.migrated,
            dropped: self.dropped,
        }
    }

    /// Why a page is wrong, by whether it is present and whether it is private anonymous memory.
    fn reason(&self, page: u64, is_present: bool, is_own: bool) -> Reason {
        match (find(&self.noted, page), find(&self.populated, page)) {
            (Some(reason), _) => reason,
            (None, _) if !is_present => Reason::Absent,
            (None, Some(missed)) => missed,
            (None, None) if !is_own => Reason::NotOwn,
            (None, None) => Reason::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_wrong_for_what_was_noted_or_else_for_what_it_is() {
        let mut progress = Progress::default();
        progress.note(10..12, Reason::Held);
        progress.note(12..13, Reason::Held);
        progress.note(2..3, Reason::NotOwn);
        progress.populate(20..22, Reason::NodeFull);
        progress.populate(22..24, Reason::NodeFull);
        progress.populate(24..25, Reason::NoNode);
        assert_eq!((progress.noted.len(), progress.populated.len()), (2, 2));
        assert_eq!(progress.begin().populated, 5);
        let reasons: Vec<Reason> = [2, 10, 12, 23, 24].iter().map(|page| progress.reason(*page, true, true)).collect();
        assert_eq!(reasons, [Reason::NotOwn, Reason::Held, Reason::Held, Reason::NodeFull, Reason::NoNode]);
        assert_eq!(progress.reason(13, true, true), Reason::Elsewhere);
        assert_eq!(progress.reason(13, true, false), Reason::NotOwn);
        assert_eq!(progress.reason(13, false, true), Reason::Absent);
    }

    #[test]
    fn threads_count_what_they_have_in_hand() {
        let (mut one, mut other) = (Progress::default(), Progress::default());
        one.count(10..15, &[1, 1, 0, -2, -14], 1);
        one.note(12..13, Reason::Held);
        other.count(0..3, &[2, 0, 0], 2);
        other.populate(1..2, Reason::NodeFull);
        other.give_up(&(3..10), Reason::Forbidden);
        one.add(other);
        let report = one.finish(Place { start: 4096, bytes: 20 * 4096 }, &Maps::none());
        let wrong = [(Reason::Forbidden, 7), (Reason::NodeFull, 1), (Reason::Held, 1), (Reason::NotOwn, 1)];
        let wrong = wrong.into_iter().chain([(Reason::Absent, 2)]).collect();
        assert_eq!(report, PlaceReport { wanted: 15, right: 3, wrong, populated: 1, ..PlaceReport::default() });
    }

    #[test]
    fn reports_add_up_and_read_well() {
        let mut report = PlaceReport { wanted: 5, right: 2, ..PlaceReport::default() };
        report.wrong(Reason::Held, 2);
        report.wrong(Reason::NodeFull, 1);
        report.add(&PlaceReport::refused(4));
        assert_eq!(
            report.to_string(),
            "pages wanted=9 right=2 wrong=7 (4 not allowed for this process, 1 node full, 2 held by a device or busy)"
        );
        assert_eq!(PlaceReport::default().to_string(), "pages wanted=0 right=0 wrong=0");
        assert_eq!(Reason::of_page(i32::MIN), Reason::Held);
    }
}
