//! The planner's state, and what the application is told.
#![forbid(unsafe_code)]

use super::books::{Cache, End, History};
use super::entry::Entry;
use super::life::{State, Step};
use super::queue::QUEUES;
use super::room::{Room, Terms};
use super::{EntryId, Keep, Link, Owner, Piece, Tier};
use std::collections::btree_map;
use std::time::Duration;

/// An answer to [`Cache::admit`] and [`Cache::stage`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Copy it to these places in the device cache.
    Device(Vec<Piece>),
    /// The device cache cannot be used: copy it straight to these places in host memory.
    Host(Vec<Piece>),
    /// Host memory cannot be used either: write it straight to these places in the store.
    Store(Vec<Piece>),
    /// Something is under way that may make room: ask again after the next change.
    Wait {
        /// How long that will take, as far as it can be told.
        expected: Option<Duration>,
    },
    /// Nothing will make room by itself.
    Never(Reason),
}

/// Why there is no room for a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A version of this id is here.
    Exists,
    /// The history is being closed.
    Closed,
    /// It is larger than every tier.
    TooLarge,
    /// All tiers are full of what must stay until the application reads it, closes its history, or gives staged space
    /// back.
    NoRoom,
}

/// An answer to [`Cache::read`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// Copy it from these places in the device cache, and say so with [`Cache::read_done`].
    Device(Vec<Piece>),
    /// Copy it straight from host memory, likewise.
    Host(Vec<Piece>),
    /// Read it straight from the store, likewise.
    Store(Vec<Piece>),
    /// It is being written, or a link is bringing it: ask again after the next change.
    Wait,
    /// No such version was written, or its history was closed.
    Unknown,
    /// It was read and discarded.
    Gone,
    /// Its last copy was given up because it could not be read.
    Lost,
}

/// What [`Cache::note_read`] has noted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Noted {
    /// The position of the hint that the read has taken; `None` if the version was not hinted.
    pub hint: Option<u64>,
    /// The version leaves if its bytes were right.
    pub leaves: bool,
}

impl Cache {
    /// Says how fast a link was measured to be; predictions use it from now on.
    pub fn set_rate(&mut self, link: Link, bytes_per_s: u64) {
        self.rates[link as usize] = bytes_per_s;
    }

    /// How fast a link was last said to be.
    pub fn rate(&self, link: Link) -> Option<u64> {
        Some(self.rates[link as usize]).filter(|rate| *rate > 0)
    }

    /// Adds a range to a tier; parts of units at its ends are left out.
    ///
    /// # Panics
    /// If some of it exists already, or if the tier would be larger than its capacity.
    pub fn add_span(&mut self, tier: Tier, offset: u64, bytes: u64) {
        let seat = &mut self.tiers[tier as usize];
        seat.space.add_span(offset, bytes);
        assert!(seat.space.bytes() <= seat.capacity, "a tier stays within its capacity");
        self.look_again();
        self.debug_check();
    }

    /// Says whether all spans have been added, or more are announced. Until all are there, nothing is evicted from the
    /// device, and appends wait for those to come. Whoever maps memory must therefore say that the tier is fully mapped
    /// even if mapping has failed. At the start, spans are announced for device and host.
    pub fn set_fully_mapped(&mut self, tier: Tier, fully: bool) {
        self.tiers[tier as usize].mapping = !fully;
        self.look_again();
    }

    /// Are no more spans announced?
    pub fn is_fully_mapped(&self, tier: Tier) -> bool {
        !self.tiers[tier as usize].mapping
    }

    /// Takes a free range from a tier. Returns false, and changes nothing, if some of it is used or does not exist.
    pub fn remove_span(&mut self, tier: Tier, range: Piece) -> bool {
        self.look_again();
        self.tiers[tier as usize].space.remove_span(range)
    }

    /// Asks for a range of a tier back. Nothing new is placed there, and everything that may leave does so at once, including prefetches
    /// that have not been read yet if a tier below has them. Returns true when the range is vacant and belongs to the caller. Until then,
    /// ask again, with the same range, after changes. Unread copies that no tier below has leave when they are flushed or read; staged
    /// shards leave when they are given back.
    pub fn release(&mut self, tier: Tier, range: Piece) -> bool {
        self.tiers[tier as usize].space.close_span(range);
        self.evict_range(tier, range);
        let vacant = self.tiers[tier as usize].space.close_span(range);
        self.look_again();
        self.debug_check();
        vacant
    }

    /// Asks for room for a version that the application is about to write. Any answer but `Wait` and `Never` starts that write, which
    /// [`written`](Cache::written) ends.
    ///
    /// After `Wait`, no prefetch takes room until this is asked again and answered otherwise, or until
    /// `written(id, false)` gives the request up.
    pub fn admit(&mut self, id: EntryId, bytes: u64, keep: Keep, now: Duration) -> Admission {
        if self.histories.get(&id.history).is_some_and(|history| history.closed) {
            return Admission::Never(Reason::Closed);
        }
        match self.entries.get(&id) {
            Some(entry) if entry.leaving => return Admission::Wait { expected: None },
            Some(_) => return Admission::Never(Reason::Exists),
            None => {}
        }
        let (tier, pieces) = match self.seat(Owner::Entry(id), bytes, &Tier::ALL, now) {
            Ok(place) => place,
            Err(refusal) => return refusal,
        };
        self.serials += 1;
        self.entries.insert(id, Entry::new(bytes, keep, self.serials, tier, pieces.clone()));
        self.residents[tier as usize].insert(id);
        self.entry_bytes += bytes;
        *self.lengths.entry(bytes).or_default() += 1;
        self.largest = self.largest.max(bytes);
        self.histories.entry(id.history).or_default();
        self.debug_check();
        match tier {
            Tier::Device => Admission::Device(pieces),
            Tier::Host => Admission::Host(pieces),
            Tier::Store => Admission::Store(pieces),
        }
    }

    /// Ends the application's write of a version. If the write has failed, the version is as if it had never been
    /// admitted; the same holds for one that was still waiting to be admitted.
    pub fn written(&mut self, id: EntryId, ok: bool) {
        self.waiting.remove(&Owner::Entry(id));
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(tier) = entry.writing.take() else { return };
        let copy = entry.copy_mut(tier).expect("a copy stays while it is written");
        copy.users -= 1;
        match ok {
            true if copy.doomed => {}
            true => {
                copy.step(Step::Written);
                // There is nothing more to say about an earlier version of this id.
                self.histories.entry(id.history).or_default().ended.remove(&id.version);
            }
            false => self.leave(id, None),
        }
        self.after_change(id);
        self.debug_check();
    }

    /// Asks for device memory for a shard of a collective checkpoint on its way to node memory. It is never evicted.
    /// [`unstage`](Cache::unstage) gives it back, or gives up waiting for it. The answer is `Device`, `Wait` or `Never`.
    pub fn stage(&mut self, shard: u64, bytes: u64, now: Duration) -> Admission {
        if self.staged.contains_key(&shard) {
            return Admission::Never(Reason::Exists);
        }
        match self.seat(Owner::Shard(shard), bytes, &[Tier::Device], now) {
            Err(refusal) => refusal,
            Ok((_, pieces)) => {
                self.staged_bytes += pieces.iter().map(|piece| piece.bytes).sum::<u64>();
                self.staged.insert(shard, pieces.clone());
                self.debug_check();
                Admission::Device(pieces)
            }
        }
    }

    /// Gives a staged shard's device memory back.
    pub fn unstage(&mut self, shard: u64) {
        self.waiting.remove(&Owner::Shard(shard));
        let Some(pieces) = self.staged.remove(&shard) else { return };
        self.staged_bytes -= pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        self.tiers[Tier::Device as usize].space.free(&pieces);
        self.debug_check();
    }

    /// Is all device memory there, and could it hold `bytes` bytes, but not now?
    pub fn lacks_device_room(&self, bytes: u64) -> bool {
        let is_mapped = !self.tiers[Tier::Device as usize].mapping;
        is_mapped && self.could_fit(Tier::Device, bytes) && !self.has_room(Tier::Device, bytes, Terms::NOW)
    }

    /// Finds a place on the first of `tiers` that has one, or a reason to wait, or says that there is none.
    fn seat(
        &mut self,
        owner: Owner,
        bytes: u64,
        tiers: &[Tier],
        now: Duration,
    ) -> Result<(Tier, Vec<Piece>), Admission> {
        // The owner that asks counts as waiting: what flows for it is judged as if it were waiting already.
        self.waiting.insert(owner);
        let answer = self.find_seat(owner, bytes, tiers, now);
        if !matches!(answer, Err(Admission::Wait { .. })) {
            self.waiting.remove(&owner);
        }
        answer
    }

    fn find_seat(
        &mut self,
        owner: Owner,
        bytes: u64,
        tiers: &[Tier],
        now: Duration,
    ) -> Result<(Tier, Vec<Piece>), Admission> {
        let mut flows = None;
        let fitting: Vec<Tier> = tiers.iter().copied().filter(|tier| self.could_fit(*tier, bytes)).collect();
        for &tier in &fitting {
            if let Room::Now(pieces) = self.make_room(tier, bytes, owner, Terms::NOW, now) {
                return Ok((tier, pieces));
            }
            if tier == Tier::Device && self.tiers[tier as usize].mapping {
                return Err(Admission::Wait { expected: None });
            }
            // Host memory that is still to come is faster than the file.
            let next_is_store = tier == Tier::Host && fitting.last() == Some(&Tier::Store);
            if next_is_store && self.tiers[tier as usize].mapping {
                return Err(Admission::Wait { expected: None });
            }
            if *flows.get_or_insert_with(|| self.is_flowing()) {
                let terms = Terms { flushes: true, ..Terms::NOW };
                if let Room::Later(wait) = self.make_room(tier, bytes, owner, terms, now) {
                    let measured = tier.flush().is_some_and(|link| self.rates[link as usize] > 0);
                    return Err(Admission::Wait { expected: measured.then_some(wait) });
                }
            }
            let terms = Terms { unread: true, ..Terms::NOW };
            if let Room::Now(pieces) = self.make_room(tier, bytes, owner, terms, now) {
                return Ok((tier, pieces));
            }
        }
        let announced = fitting.iter().any(|tier| self.tiers[*tier as usize].mapping);
        match (fitting.is_empty(), announced || flows == Some(true)) {
            (true, _) => Err(Admission::Never(Reason::TooLarge)),
            (false, true) => Err(Admission::Wait { expected: None }),
            (false, false) => Err(Admission::Never(Reason::NoRoom)),
        }
    }

    /// Says that a version will be read after all those named earlier. The hint cannot be taken back; a version
    /// that is named twice will be read twice. The version may be written later, or never.
    pub fn hint(&mut self, id: EntryId) {
        let history = self.histories.entry(id.history).or_default();
        if !history.closed {
            history.order.push(id.version);
            self.after_change(id);
        }
        self.debug_check();
    }

    /// Lets the links prefetch what is hinted in a history, now and later.
    pub fn start_prefetch(&mut self, history: u32) {
        self.histories.entry(history).or_default().started = true;
        self.claim_ahead(history);
        self.debug_check();
    }

    /// Asks where to read a version. An answer that names places holds that copy until [`read_done`](Cache::read_done).
    pub fn read(&mut self, id: EntryId) -> Read {
        self.hold(id, true)
    }

    /// Asks where to read a version that remains to be read: nothing is claimed, and the restore order stays as it is. An answer
    /// that names places holds that copy until [`read_undone`](Cache::read_undone), or `read_done` with `false` if it is bad.
    /// `Wait` means that it is still being written.
    pub fn peek(&mut self, id: EntryId) -> Read {
        self.hold(id, false)
    }

    fn hold(&mut self, id: EntryId, claims: bool) -> Read {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.leaving) else {
            let history = self.histories.get(&id.history);
            return match history.and_then(|history| history.ended.get(&id.version)) {
                Some(End::Consumed) => Read::Gone,
                Some(End::Lost) => Read::Lost,
                None => Read::Unknown,
            };
        };
        let Some(tier) = entry.best() else { return Read::Wait };
        let is_coming = |link: Link| entry.is_flying(link) && link.to() < tier;
        if claims && (is_coming(Link::Up) || is_coming(Link::In)) {
            return Read::Wait;
        }
        let copy = entry.copy_mut(tier).expect("the best copy exists");
        if claims && copy.state != State::ReadComplete {
            copy.step(Step::Claim);
        }
        copy.readers += 1;
        let pieces = copy.pieces.clone();
        self.settle(id);
        self.debug_check();
        match tier {
            Tier::Device => Read::Device(pieces),
            Tier::Host => Read::Host(pieces),
            Tier::Store => Read::Store(pieces),
        }
    }

    /// Ends a read from the tier that [`read`](Cache::read) named. If `ok`, the bytes were right: the restore order moves
    /// on, and a version that may be discarded and is not hinted again is gone. If not, this copy is given up, and the
    /// next `read` finds another one or says that the version is lost.
    pub fn read_done(&mut self, id: EntryId, tier: Tier, ok: bool) {
        let noted = if ok { self.note_read(id) } else { Noted::default() };
        self.read_ended(id, tier, ok, noted);
    }

    /// Moves the restore order past a version whose read has not ended; hints from now on are for other reads.
    /// Pass the answer to [`read_ended`](Cache::read_ended), and to [`hint_again`](Cache::hint_again) if the
    /// version's bytes were not right.
    pub fn note_read(&mut self, id: EntryId) -> Noted {
        let Some(entry) = self.entries.get(&id).filter(|entry| !entry.leaving) else { return Noted::default() };
        let keep = entry.keep;
        let hint = self.histories.entry(id.history).or_default().order.take(id.version);
        let leaves = keep == Keep::UntilRead && !self.is_hinted(id);
        self.after_change(id);
        self.debug_check();
        Noted { hint, leaves }
    }

    /// Puts back the hint of a read that was noted and has come to nothing.
    pub fn hint_again(&mut self, id: EntryId, noted: Noted) {
        let history = self.histories.get_mut(&id.history).filter(|history| !history.closed);
        if let (Some(history), Some(position)) = (history, noted.hint) {
            history.order.give_back(id.version, position);
            self.after_change(id);
        }
        self.debug_check();
    }

    /// Ends a read that [`note_read`](Cache::note_read) has noted. In all other respects, this is like [`read_done`](Cache::read_done).
    pub fn read_ended(&mut self, id: EntryId, tier: Tier, ok: bool, noted: Noted) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(copy) = entry.copy_mut(tier).filter(|copy| copy.readers > 0) else { return };
        copy.readers -= 1;
        if !ok {
            copy.doomed = true;
        } else if !copy.doomed && copy.readers == 0 && copy.state == State::ReadComplete {
            copy.step(Step::Consume);
        }
        if ok && !entry.leaving {
            entry.read = true;
            if noted.leaves {
                self.leave(id, Some(End::Consumed));
            }
        }
        self.after_change(id);
        self.debug_check();
    }

    /// Ends a read that came to nothing for the reader's own reasons: the copy is as good as before, and still to be read.
    pub fn read_undone(&mut self, id: EntryId, tier: Tier) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(copy) = entry.copy_mut(tier).filter(|copy| copy.readers > 0) else { return };
        copy.readers -= 1;
        self.after_change(id);
        self.debug_check();
    }

    /// How many versions, starting at the head of the restore order, can be read from the device now (the papers' prefetch distance).
    pub fn prefetch_distance(&self, history: u32) -> u64 {
        let Some(order) = self.histories.get(&history).map(|history| &history.order) else { return 0 };
        let is_here = |version: &u64| {
            let entry = self.entries.get(&EntryId { history, version: *version });
            entry.is_some_and(|entry| entry.good(Tier::Device).is_some())
        };
        order.iter().take_while(is_here).count() as u64
    }

    /// Forgets a history, whatever its versions were kept for: each leaves as soon as nothing uses it. Until the last one
    /// has left, versions of this history are not admitted.
    pub fn close(&mut self, history: u32) {
        let Some(closing) = self.histories.get_mut(&history) else { return };
        *closing = History { closed: true, ..History::default() };
        self.waiting.retain(|owner| !matches!(owner, Owner::Entry(id) if id.history == history));
        let all = EntryId { history, version: 0 }..=EntryId { history, version: u64::MAX };
        let ids: Vec<EntryId> = self.entries.range(all).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.leave(id, None));
        self.forget_if_closed(history);
        self.debug_check();
    }

    /// The states of a version's copies on device, host and store.
    pub fn states(&self, id: EntryId) -> [Option<State>; 3] {
        let entry = self.entries.get(&id).filter(|entry| !entry.leaving);
        Tier::ALL.map(|tier| entry?.copy(tier).filter(|copy| !copy.doomed).map(|copy| copy.state))
    }

    /// Bytes of a tier's spans, and how many of them are free.
    pub fn bytes(&self, tier: Tier) -> (u64, u64) {
        let space = &self.tiers[tier as usize].space;
        (space.bytes(), space.free_bytes())
    }

    // -------------------------------------------------------------------------------------- after a change

    /// Whether a hint for the version is left.
    pub(super) fn is_hinted(&self, id: EntryId) -> bool {
        self.histories.get(&id.history).is_some_and(|history| history.order.distance(id.version).is_some())
    }

    /// Whether a version will be read (again), as far as is known.
    fn is_wanted(&self, id: EntryId) -> bool {
        self.is_hinted(id) || self.entries.get(&id).is_some_and(|entry| !entry.read)
    }

    /// Does what follows from a change of a version's copies or hints.
    pub(super) fn after_change(&mut self, id: EntryId) {
        let is_lost = |entry: &Entry| !entry.leaving && entry.copies.iter().flatten().all(|copy| copy.doomed);
        if self.entries.get(&id).is_some_and(is_lost) {
            self.leave(id, Some(End::Lost));
        }
        self.reap(id);
        self.settle(id);
        let Some(history) = self.histories.get(&id.history) else { return };
        // A version that is hinted after the place where `claim_ahead` stopped changes nothing for it.
        let is_behind = |stop: u64| {
            let position = history.order.position(id.version);
            history.order.is_pending(stop) && position.is_none_or(|position| position > stop)
        };
        if !history.stopped_at.is_some_and(is_behind) {
            self.claim_ahead(id.history);
        }
    }

    /// Brings the states of a version's copies into line.
    pub(super) fn settle(&mut self, id: EntryId) {
        let wanted = self.is_wanted(id);
        if let Some(entry) = self.entries.get_mut(&id).filter(|entry| !entry.leaving) {
            entry.settle(wanted);
        }
        self.requeue(id);
    }

    /// Takes a version out: its copies leave as soon as nothing uses them.
    fn leave(&mut self, id: EntryId, end: Option<End>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.leaving = true;
        entry.copies.iter_mut().flatten().for_each(|copy| copy.doomed = true);
        if let (Some(end), Some(history)) = (end, self.histories.get_mut(&id.history)) {
            history.ended.insert(id.version, end);
        }
        self.reap(id);
    }

    /// Frees what is doomed and not used.
    pub(super) fn reap(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        for tier in Tier::ALL {
            let slot = &mut entry.copies[tier as usize];
            if let Some(copy) = slot.take_if(|copy| copy.doomed && copy.is_idle()) {
                self.tiers[tier as usize].space.free(&copy.pieces);
                self.residents[tier as usize].remove(&id);
            }
        }
        if entry.leaving && entry.copies.iter().all(Option::is_none) {
            let (places, bytes) = (entry.places, entry.bytes);
            self.entries.remove(&id);
            self.entry_bytes -= bytes;
            if let btree_map::Entry::Occupied(mut count) = self.lengths.entry(bytes) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            self.move_in_queues(id, places, [None; QUEUES]);
            self.forget_if_closed(id.history);
        }
        self.requeue(id);
    }

    fn forget_if_closed(&mut self, history: u32) {
        let all = EntryId { history, version: 0 }..=EntryId { history, version: u64::MAX };
        let closed = self.histories.get(&history).is_some_and(|history| history.closed);
        if closed && self.entries.range(all).next().is_none() {
            self.histories.remove(&history);
        }
    }

    /// Other versions may fit now, or no longer fit, so where `claim_ahead` stopped means nothing any more.
    fn look_again(&mut self) {
        self.histories.values_mut().for_each(|history| history.stopped_at = None);
    }

    /// Claims what the prefetcher already finds on the device: everything from the head of the restore order up to the
    /// first version that has to be fetched. Versions after that one may have to make room for it.
    fn claim_ahead(&mut self, history: u32) {
        let Some(started) = self.histories.get(&history).filter(|history| history.started) else { return };
        let (mut claims, mut stopped_at) = (Vec::new(), None);
        for (position, version) in started.order.iter_from(0) {
            let id = EntryId { history, version };
            let Some(entry) = self.entries.get(&id) else { continue };
            let has_to_be_brought =
                || entry.is_flying(Link::In) || self.can_move_up(id, Link::Up) || self.can_move_up(id, Link::In);
            match entry.good(Tier::Device) {
                Some(copy) if copy.state == State::ReadComplete => {}
                Some(_) => claims.push(id),
                None if has_to_be_brought() => {
                    stopped_at = Some(position);
                    break;
                }
                None => {}
            }
        }
        if let Some(started) = self.histories.get_mut(&history) {
            started.stopped_at = stopped_at;
        }
        for id in claims {
            let copy = self.entries.get_mut(&id).and_then(|entry| entry.copy_mut(Tier::Device));
            // A version that is hinted twice is claimed once.
            if let Some(copy) = copy.filter(|copy| copy.state != State::ReadComplete) {
                copy.step(Step::Claim);
            }
            self.settle(id);
        }
    }
}
