//! What the links move next.
//!
//! *Down and Out* flush. What will be used latest goes first: consumed copies, then unhinted ones in the order of
//! admission, then those with the farthest hints. A version that may be discarded is not flushed once it is consumed
//! (HPDC'23, condition 5) or claimed on the device, where it stays until it is read. Otherwise, Down is eager. After
//! `start_prefetch`, it is still eager where it takes from the host only what is needed later; beyond that, it works when
//! an append or a prefetch lacks room. Out is eager for what persists. For the rest, it is eager until `start_prefetch`
//! if the memory tiers are not expected to hold everything; otherwise, it works only when room is lacking, and never
//! while host memory is still being mapped.
//!
//! *Up and In* prefetch, after `start_prefetch`, in the restore order. A link considers only the first hinted version that
//! is not where the link would bring it, so nothing overtakes this version to take its room. Both look ahead as long as
//! the tiers above could hold all that is hinted before the version, and evict only what is needed later.
#![forbid(unsafe_code)]

use super::books::{Cache, Flight};
use super::entry::Copy;
use super::evict::Use;
use super::room::{Room, Terms};
use super::{EntryId, IN_FLIGHT_MAX, Keep, Link, Owner, Piece, Step, TRIES_MAX, Tier};
use std::collections::BTreeSet;
use std::time::Duration;

/// Bytes to move from one tier to a neighbour. [`runs`](super::runs) cuts it into single copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Which job: no two have the same.
    pub ticket: u64,
    /// What is moved.
    pub id: EntryId,
    /// Over which link.
    pub link: Link,
    /// How many bytes.
    pub bytes: u64,
    /// Where they lie.
    pub from: Vec<Piece>,
    /// Where they go.
    pub to: Vec<Piece>,
}

/// What a prefetching link finds at the first place of the restore order that needs it.
#[derive(Clone, Copy, Debug)]
enum Want {
    Nothing,
    /// It can be moved.
    Ready(EntryId, Use),
    /// There is no room for it.
    Starved(Use),
}

impl Cache {
    /// The next job of a link; `None` if there is nothing that it should or can do now.
    pub fn next(&mut self, link: Link, now: Duration) -> Option<Job> {
        if self.flights.values().filter(|flight| flight.link == link).count() >= IN_FLIGHT_MAX {
            return None;
        }
        let (id, terms) = match link {
            Link::Down | Link::Out => self.flush_choice(link)?,
            // While an append waits for room, all room is for it.
            Link::Up | Link::In if !self.waiting.is_empty() => return None,
            Link::Up | Link::In => match self.want(link) {
                Want::Ready(id, limit) => (id, Terms { later_than: Some(limit), ..Terms::NOW }),
                Want::Nothing | Want::Starved(_) => return None,
            },
        };
        // The source is held, so that room for the version is not made at its own expense.
        let entry = self.entries.get_mut(&id).expect("what is chosen exists");
        let source = entry.copy_mut(link.from()).expect("what is chosen has a source");
        source.users += 1;
        let (bytes, from) = (entry.bytes, self.entries[&id].copy(link.from())?.pieces.clone());
        let Room::Now(to) = self.make_room(link.to(), bytes, Owner::Entry(id), terms, now) else {
            unreachable!("there was room when it was chosen, and its source is not in the target's tier");
        };
        let step = if link.to() > link.from() { Step::Write } else { Step::Fetch };
        let entry = self.entries.get_mut(&id).expect("what is chosen exists");
        entry.copies[link.to() as usize] = Some(Copy::new(to.clone(), step));
        entry.flying[link as usize] = true;
        self.residents[link.to() as usize].insert(id);
        self.requeue(id);
        self.tickets += 1;
        self.flights.insert(self.tickets, Flight { id, link, bytes, started: now });
        self.debug_check();
        Some(Job { ticket: self.tickets, id, link, bytes, from, to })
    }

    /// Ends a job. `ok`: all bytes are there and right. If not, the target is given up, the source stays, and the version
    /// is tried again, [`TRIES_MAX`] times in all. A job that was ended before is ignored.
    pub fn done(&mut self, job: &Job, ok: bool, _now: Duration) {
        let Some(Flight { id, link, .. }) = self.flights.remove(&job.ticket) else { return };
        let entry = self.entries.get_mut(&id).expect("a version stays while a job uses it");
        entry.flying[link as usize] = false;
        if !ok {
            entry.failures[link as usize] += 1;
            self.failures[link as usize] += 1;
        }
        for tier in [link.from(), link.to()] {
            entry.copy_mut(tier).expect("a copy stays while a job uses it").users -= 1;
        }
        let target = entry.copy_mut(link.to()).expect("a copy stays while a job uses it");
        if !ok {
            target.doomed = true;
        } else if !target.doomed {
            target.step(if link.to() > link.from() { Step::Written } else { Step::Fetched });
        }
        self.after_change(id);
        self.debug_check();
    }

    /// Whether a job of this link is under way.
    pub fn is_moving(&self, link: Link) -> bool {
        self.flights.values().any(|flight| flight.link == link)
    }

    /// Whether no flush is under way, none would be started now, and none waits for host memory that is announced.
    pub fn is_flushed(&self) -> bool {
        let flushes = [Link::Down, Link::Out];
        flushes
            .into_iter()
            .all(|link| !self.is_moving(link) && self.flush_choice(link).is_none() && !self.awaits_host(link))
    }

    /// Whether a link has something to flush into host memory that is announced, or spares the file because of it.
    fn awaits_host(&self, link: Link) -> bool {
        self.tiers[Tier::Host as usize].mapping
            && self.flush_queue(link).any(|id| link == Link::Down || self.is_spared(id, link))
    }

    /// Whether a version is kept out of the file while host memory is still to come.
    fn is_spared(&self, id: EntryId, link: Link) -> bool {
        link == Link::Out && self.entries[&id].keep == Keep::UntilRead
    }

    /// How many jobs of a link have failed.
    pub fn failures(&self, link: Link) -> u64 {
        self.failures[link as usize]
    }

    /// Whether anything is under way, or could start at once, that ends by itself and may make room. To be asked while an
    /// append waits: then no new prefetch starts, and what is left to flush is finite.
    pub(super) fn is_flowing(&self) -> bool {
        !self.flights.is_empty() || [Link::Down, Link::Out].into_iter().any(|link| self.flush_choice(link).is_some())
    }

    /// What a link has to flush, in the order in which it does so.
    pub(super) fn flush_queue(&self, link: Link) -> impl Iterator<Item = EntryId> {
        let queue = &self.queues[usize::from(link == Link::Out)];
        let all = queue.iter(|history, when| self.use_at(history, when)).map(|(_, id)| id);
        all.filter(move |id| self.could_fit(link.to(), self.entries[id].bytes))
    }

    /// What a link flushes next, and on which terms: the first in the queue that may be flushed now and finds room.
    fn flush_choice(&self, link: Link) -> Option<(EntryId, Terms)> {
        let mut queue = self.flush_queue(link).peekable();
        queue.peek()?;
        // If the shortest version has no room on any terms, none has.
        let (shortest, _) = self.lengths.first_key_value()?;
        let unread = Terms { unread: true, ..Terms::NOW };
        let has_room = |terms| self.has_room(link.to(), *shortest, terms);
        if !has_room(Terms::NOW) && (self.waiting.is_empty() || !has_room(unread)) {
            return None;
        }
        let starved = self.starved(link);
        let lazy = link == Link::Out && self.is_file_spared();
        // The length that did not fit: on the same terms, nothing larger does.
        let mut too_large = u64::MAX;
        for id in queue {
            let bytes = self.entries[&id].bytes;
            let Some(terms) = self.flush_terms(id, link, starved, lazy) else { continue };
            let limited = terms.later_than.is_some();
            if !limited && bytes >= too_large {
                continue;
            }
            let fits = |terms: &Terms| self.has_room(link.to(), bytes, *terms);
            let unread = Terms { unread: !self.waiting.is_empty(), ..terms };
            if let Some(terms) = [terms, unread].into_iter().find(fits) {
                return Some((id, terms));
            }
            if limited {
                // The next ones are used earlier, and might be flushed, but what is lacking is room for this one.
                return None;
            }
            too_large = bytes;
        }
        None
    }

    /// What a flush may take room from; `None` if it should not happen now.
    fn flush_terms(&self, id: EntryId, link: Link, starved: Option<Use>, lazy: bool) -> Option<Terms> {
        let next = self.next_use(id);
        // Host memory that is still to come is faster than the file, which would be read again later.
        if self.tiers[Tier::Host as usize].mapping && self.is_spared(id, link) {
            return None;
        }
        let pressed = !self.waiting.is_empty() || starved.is_some_and(|limit| next > limit);
        let started = self.histories.get(&id.history).is_some_and(|history| history.started);
        if pressed || self.entries[&id].keep == Keep::All || (!started && !lazy) {
            return Some(Terms::NOW);
        }
        match link {
            Link::Down => Some(Terms { later_than: Some(next), ..Terms::NOW }),
            _ => None,
        }
    }

    /// Is it certain that the memory tiers will hold everything, so that nothing needs to go to the file for room? What
    /// is hinted and not written yet counts as twice the largest version so far, because sizes tend to grow; without such
    /// hints, the file is spared until half of host memory is used.
    fn is_file_spared(&self) -> bool {
        let bytes = |tier: Tier| self.tiers[tier as usize].space.bytes();
        let free = self.tiers[Tier::Host as usize].space.free_bytes();
        let hints: u64 = self.histories.values().map(|history| history.order.len() as u64).sum();
        let to_come = hints.saturating_sub(self.entries.len() as u64);
        if to_come == 0 {
            return 2 * free >= bytes(Tier::Host);
        }
        self.entry_bytes + to_come * 2 * self.largest <= bytes(Tier::Device) + bytes(Tier::Host)
    }

    /// When the version that a prefetch finds no room for will be used; if there are several, the nearest use. Out helps
    /// a prefetch that lacks room in the host; Out and Down both help one that lacks room on the device.
    fn starved(&self, link: Link) -> Option<Use> {
        let links = if link == Link::Down { &[Link::Up][..] } else { &[Link::Up, Link::In][..] };
        let starved = links.iter().filter_map(|link| match self.want(*link) {
            Want::Starved(next) => Some(next),
            _ => None,
        });
        starved.min()
    }

    /// What a prefetching link finds to do: the version that is read soonest of all started histories.
    fn want(&self, link: Link) -> Want {
        let firsts = self.histories.keys().filter_map(|history| self.first_to_move(*history, link));
        let Some((next, id)) = firsts.min() else { return Want::Nothing };
        let terms = Terms { later_than: Some(next), ..Terms::NOW };
        match self.has_room(link.to(), self.entries[&id].bytes, terms) {
            true => Want::Ready(id, next),
            false => Want::Starved(next),
        }
    }

    /// The first version in a history's restore order that needs a prefetching link.
    fn first_to_move(&self, history: u32, link: Link) -> Option<(Use, EntryId)> {
        let order = self.histories.get(&history).filter(|history| history.started && !history.closed)?;
        if self.residents[Tier::Device as usize].len() == self.entries.len() {
            return None;
        }
        let bytes = |tier: Tier| self.tiers[tier as usize].space.bytes();
        let mut horizon = bytes(Tier::Device).saturating_sub(self.staged_bytes);
        if link == Link::In {
            horizon += bytes(Tier::Host);
        }
        let (mut ahead, mut seen) = (0, BTreeSet::new());
        for version in order.order.iter() {
            let id = EntryId { history, version };
            let Some(entry) = self.entries.get(&id).filter(|entry| !entry.leaving) else { continue };
            if !seen.insert(version) {
                continue;
            }
            ahead += entry.bytes;
            if ahead > horizon {
                return None;
            }
            if self.can_move_up(id, link) {
                return Some((self.next_use(id), id));
            }
        }
        None
    }

    /// Whether a version is at the lower end of a prefetching link and could be at the upper end, with nothing in
    /// the way but a lack of room.
    pub(super) fn can_move_up(&self, id: EntryId, link: Link) -> bool {
        let entry = &self.entries[&id];
        entry.best() == Some(link.from())
            && Tier::ALL.into_iter().all(|tier| tier >= link.from() || entry.copy(tier).is_none())
            && !entry.has_readers()
            && entry.failures[link as usize] < TRIES_MAX
            && self.could_fit(link.to(), entry.bytes)
    }
}
