//! What became of pages that were wanted on a node.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

/// Why a page is not where it is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// The system does not let this process ask for pages or move them.
    Forbidden,
    /// There is no such node, it has no memory, or this process may not use it.
    NoNode,
    /// The node had no room.
    NodeFull,
    /// Somebody holds the page where it is: a device that it is registered with, or the system for a moment.
    Held,
    /// A huge page that holds other memory, too, could not be taken apart.
    HugePage,
    /// It belongs to a file, or other processes have it, too.
    NotOwn,
    /// It has no memory.
    Absent,
    /// Nobody knows: it was moved by somebody else, or was not placed at all.
    Elsewhere,
}

impl Reason {
    /// Of a call that failed as a whole.
    pub(super) fn of(error: &io::Error) -> Reason {
        match error.raw_os_error() {
            Some(libc::ENODEV | libc::EACCES) => Reason::NoNode,
            Some(libc::ENOMEM) => Reason::NodeFull,
            Some(libc::EBUSY | libc::EAGAIN | libc::EINVAL) => Reason::Held,
            _ => Reason::Forbidden,
        }
    }

    /// Of the status of one page, which is the negative of an error number.
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
            Reason::Forbidden => "not allowed to this process",
            Reason::NoNode => "no such node",
            Reason::NodeFull => "node full",
            Reason::Held => "held by a device or busy",
            Reason::HugePage => "in a huge page with other memory",
            Reason::NotOwn => "of a file or shared",
            Reason::Absent => "without memory",
            Reason::Elsewhere => "elsewhere",
        })
    }
}

/// Pages of 4 KiB by what became of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlaceReport {
    /// Were wanted on a node.
    pub wanted: u64,
    /// Are there.
    pub right: u64,
    /// Are not, and why.
    pub wrong: BTreeMap<Reason, u64>,
    /// Got memory. Like the following two this counts what was done, whatever came of it.
    pub populated: u64,
    /// Were moved from another node. Each page of a huge page counts.
    pub migrated: u64,
    /// Were dropped, contents and all, because they were wanted elsewhere than the rest of a huge page.
    pub dropped: u64,
}

impl PlaceReport {
    /// The system does not even say where pages are.
    pub(super) fn refused(pages: u64) -> PlaceReport {
        PlaceReport { wanted: pages, wrong: BTreeMap::from([(Reason::Forbidden, pages)]), ..PlaceReport::default() }
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

/// What was done, and which pages were in the way, while the pages are on their way.
#[derive(Default, Debug)]
pub(super) struct Progress {
    noted: Vec<(Range<u64>, Reason)>,
    populated: Vec<Range<u64>>,
    seen: Vec<Range<u64>>,
    pub(super) migrated: u64,
    pub(super) dropped: u64,
}

impl Progress {
    /// Notes why these pages are not where they should be. Neighbours with one reason are one note.
    pub(super) fn note(&mut self, pages: Range<u64>, reason: Reason) {
        match self.noted.last_mut() {
            Some((last, why)) if *why == reason && last.end == pages.start => last.end = pages.end,
            _ => self.noted.push((pages, reason)),
        }
    }

    /// Notes that these pages got memory.
    pub(super) fn populate(&mut self, pages: Range<u64>) {
        match self.populated.last_mut() {
            Some(last) if last.end == pages.start => last.end = pages.end,
            _ => self.populated.push(pages),
        }
    }

    /// Notes that these pages were all found where they are wanted. Nothing that is done about others moves them.
    pub(super) fn see(&mut self, pages: Range<u64>) {
        match self.seen.last_mut() {
            Some(last) if last.end == pages.start => last.end = pages.end,
            _ => self.seen.push(pages),
        }
    }

    /// Were these found so, together? To be asked after [`begin`](Self::begin).
    pub(super) fn has_seen(&self, pages: &Range<u64>) -> bool {
        let next = self.seen.partition_point(|seen| seen.start <= pages.start);
        self.seen[..next].last().is_some_and(|seen| pages.end <= seen.end)
    }

    pub(super) fn add(&mut self, other: Progress) {
        self.noted.extend(other.noted);
        self.seen.extend(other.seen);
        self.populated.extend(other.populated);
        self.migrated += other.migrated;
        self.dropped += other.dropped;
    }

    /// A report of what was done. From now on [`reason`](Self::reason) may be asked.
    pub(super) fn begin(&mut self) -> PlaceReport {
        self.noted.sort_by_key(|(pages, _)| pages.start);
        self.populated.sort_by_key(|pages| pages.start);
        self.seen.sort_by_key(|pages| pages.start);
        let populated = self.populated.iter().map(|pages| pages.end - pages.start).sum();
        PlaceReport { populated, migrated: self.migrated, dropped: self.dropped, ..PlaceReport::default() }
    }

    /// Why a page is wrong that is or is not present, and that is or is not private anonymous memory.
    pub(super) fn reason(&self, page: u64, is_present: bool, is_own: bool) -> Reason {
        let next = self.noted.partition_point(|(pages, _)| pages.start <= page);
        let noted = self.noted[..next].last().filter(|(pages, _)| pages.contains(&page));
        let next = self.populated.partition_point(|pages| pages.start <= page);
        let is_populated = self.populated[..next].last().is_some_and(|pages| pages.contains(&page));
        match noted {
            Some((_, reason)) => *reason,
            None if !is_present => Reason::Absent,
            // Its thread preferred the node, and the system took another.
            None if is_populated => Reason::NodeFull,
            None if !is_own => Reason::NotOwn,
            None => Reason::Elsewhere,
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
        progress.populate(20..22);
        progress.populate(22..24);
        assert_eq!((progress.noted.len(), progress.populated.len()), (2, 1));
        assert_eq!(progress.begin().populated, 4);
        let reasons: Vec<Reason> = [2, 10, 12, 23].iter().map(|page| progress.reason(*page, true, true)).collect();
        assert_eq!(reasons, [Reason::NotOwn, Reason::Held, Reason::Held, Reason::NodeFull]);
        assert_eq!(progress.reason(13, true, true), Reason::Elsewhere);
        assert_eq!(progress.reason(13, true, false), Reason::NotOwn);
        assert_eq!(progress.reason(13, false, true), Reason::Absent);
    }

    #[test]
    fn pages_are_seen_where_they_are_wanted_only_together() {
        let mut progress = Progress::default();
        progress.see(30..40);
        progress.see(0..20);
        progress.begin();
        assert!([0..20, 3..7, 30..31, 39..40].iter().all(|pages| progress.has_seen(pages)));
        assert!([0..21, 20..21, 15..35, 29..31, 40..41].iter().all(|pages| !progress.has_seen(pages)));
        assert!(!Progress::default().has_seen(&(0..1)));
    }

    #[test]
    fn reports_add_up_and_read_well() {
        let mut report = PlaceReport { wanted: 5, right: 2, ..PlaceReport::default() };
        report.wrong(Reason::Held, 2);
        report.wrong(Reason::NodeFull, 1);
        report.add(&PlaceReport::refused(4));
        assert_eq!(
            report.to_string(),
            "pages wanted=9 right=2 wrong=7 (4 not allowed to this process, 1 node full, 2 held by a device or busy)"
        );
        assert_eq!(PlaceReport::default().to_string(), "pages wanted=0 right=0 wrong=0");
        assert_eq!(Reason::of_page(i32::MIN), Reason::Held);
    }
}
