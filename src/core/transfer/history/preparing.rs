//! Memory prepared in the background: GPU memory mapped, node memory leased and touched, and pinned. [`super::ways`] decides when host
//! memory is touched.
#![forbid(unsafe_code)]

use super::shared::Shared;
use super::ways::Ways;
use crate::base::log;
use crate::base::sync::Guard;
use crate::base::units::{MIB, PAGE};
use crate::cache::{Link, Tier};
use crate::config::{PinOrder, Touch};
use crate::device::DeviceError;
use crate::segment::{Order, SegmentError, SlotMut, Token, TokenGuard};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Slots with fewer bytes from the device are not worth a registration.
const SLOT_BYTES_MIN: u64 = MIB;
/// The size of the steps in which device memory is mapped after the first step.
pub(super) const MAP_STEP_BYTES: u64 = 256 << 20;
/// How long a thread sleeps between tries.
const PAUSE: Duration = Duration::from_millis(1);
/// How long a thread sleeps at first while other ranks pin: a turn takes some milliseconds.
const TURN_PAUSE: Duration = Duration::from_micros(100);
/// How long the lease of a line waits at most for a moment without a flush, if that way is only being tried.
const TRIAL: Duration = Duration::from_millis(10);
/// The smallest number of bytes that is leased at a time.
const LINE_BYTES_MIN: u64 = 4 << 20;
/// How long a thread that has nothing to do sleeps: the first history wakes the memory thread, a slot wakes the pinning one.
const IDLE: Duration = Duration::from_secs(10);
/// How many slots in a row may fail to be pinned before no more are tried.
const SLOT_FAILURES_MAX: u32 = 3;
/// How long the memory thread waits, when others hold node memory, before it looks again.
const LEASE_PAUSE: Duration = Duration::from_millis(200);

impl Shared {
    /// Maps a step of device memory and makes it known to the planner.
    ///
    /// # Errors
    /// Any error that the device reports.
    pub(super) fn map_step(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let begun = Instant::now();
        self.range.map(offset, bytes)?;
        let mut books = self.lock();
        books.cache.add_span(Tier::Device, offset, bytes);
        books.trace.span("map", 0, bytes, begun, self.started);
        self.changed(books);
        Ok(())
    }

    fn fully_mapped(&self, tier: Tier) {
        let mut books = self.lock();
        books.cache.set_fully_mapped(tier, true);
        self.changed(books);
    }

    /// Is anything being copied from the device?
    fn is_flushing(&self) -> bool {
        let books = self.lock();
        books.staged > 0 || books.cache.is_moving(Link::Down)
    }

    /// The measurements on preparing memory.
    pub(super) fn ways(&self) -> Guard<'_, Ways> {
        self.ways.lock()
    }
}

/// Prepares memory: first the rest of the GPU cache, then host memory, lease by lease, each touched.
pub(super) fn memory_loop(shared: &Shared, mapped: u64) {
    let mut at = mapped;
    while at < shared.range.bytes() && !shared.is_shrinking.load(Ordering::Acquire) && !shared.is_stopping() {
        let step = MAP_STEP_BYTES.min(shared.range.bytes() - at);
        if let Err(error) = shared.map_step(at, step) {
            log::warn!("event=gpu-cache-smaller mapped={at} wanted={} error={error}", shared.range.bytes());
            break;
        }
        at += step;
    }
    shared.fully_mapped(Tier::Device);
    if let Err(error) = shared.device.make_ready(shared.range.bytes()) {
        log::debug!("event=no-pinned-buffers error={error}");
    }
    while shared.histories.load(Ordering::Relaxed) == 0 && !shared.is_stopping() {
        std::thread::park_timeout(IDLE);
    }
    // Only whole pages, because nothing else can be pinned.
    let (all, line) = (shared.config.host_bytes / PAGE * PAGE, shared.config.line_bytes.next_multiple_of(PAGE));
    let (mut leased, mut step) = (0, line.max(PAGE));
    while leased < all && !shared.is_stopping() {
        let bytes = step.min(all - leased);
        match lease(shared, bytes) {
            Ok(true) => leased += bytes,
            Ok(false) if step > LINE_BYTES_MIN => step = shorter(step),
            Ok(false) => {
                // Others hold the memory: continue without it, and look again later, when they may have given some back.
                shared.fully_mapped(Tier::Host);
                std::thread::park_timeout(LEASE_PAUSE);
            }
            Err(error) if step > LINE_BYTES_MIN => {
                log::debug!("event=no-lease bytes={bytes} error={error}");
                step = shorter(step);
            }
            Err(error) => {
                log::warn!("event=no-lease bytes={bytes} error={error}");
                break;
            }
        }
    }
    shared.fully_mapped(Tier::Host);
    shared.is_leased.store(true, Ordering::Release);
}

/// How much to ask for if there was no room for `step` bytes.
fn shorter(step: u64) -> u64 {
    (step / 2).next_multiple_of(PAGE).max(LINE_BYTES_MIN)
}

/// Pins the lines as they arrive, then slots, until pinning does not work any more.
pub(super) fn pin_loop(shared: &Shared) {
    if shared.config.pin == PinOrder::Never {
        return;
    }
    shared.registered.worker.get_or_init(std::thread::current);
    let mut order = shared.config.pin;
    let (mut is_said, mut slots_failed) = (false, 0);
    while !shared.is_stopping() {
        // Read before the lines: the last line may be added between the two looks.
        let is_leased = shared.is_leased.load(Ordering::Acquire);
        if let Some(line) = shared.unpinned_line() {
            if !pin(shared, line, &mut order) {
                break;
            }
        } else if let Some(slot) = shared.registered.next_slot() {
            match pin(shared, slot, &mut order) {
                true => slots_failed = 0,
                false if slots_failed + 1 == SLOT_FAILURES_MAX => break,
                false => slots_failed += 1,
            }
        } else {
            // The next lines or slots wait for their turns again.
            order = shared.config.pin;
            if is_leased && !std::mem::replace(&mut is_said, true) {
                log::debug!("event=host-memory-ready {:?}", shared.ways());
            }
            std::thread::park_timeout(match (is_leased, shared.lines.places().is_empty()) {
                (true, _) => IDLE,
                (false, true) => LEASE_PAUSE,
                (false, false) => 5 * PAUSE,
            });
        }
    }
    shared.registered.give_up();
}

/// Leases more memory, touches it, and makes it known to the planner; false if there is no room now.
fn lease(shared: &Shared, bytes: u64) -> Result<bool, SegmentError> {
    let Some(segment) = &shared.segment else { return Ok(false) };
    let patience = match shared.config.touch {
        Touch::Beside => Duration::ZERO,
        Touch::Between => Duration::MAX,
        Touch::Auto if shared.ways().touches_beside() => Duration::ZERO,
        Touch::Auto => TRIAL,
    };
    let asked = Instant::now();
    while asked.elapsed() < patience && shared.is_flushing() && !shared.is_stopping() {
        std::thread::park_timeout(PAUSE);
    }
    let begun = Instant::now();
    shared.ways().on_touch(shared.now());
    let leased = segment.lease_in_background(bytes);
    shared.ways().on_touched(if matches!(leased, Ok(Some(_))) { bytes } else { 0 }, shared.now());
    let Some(lease) = leased? else { return Ok(false) };
    let offset = shared.lines.add(lease);
    let mut books = shared.lock();
    books.cache.add_span(Tier::Host, offset, bytes);
    books.trace.span("touch", 0, bytes, begun, shared.started);
    shared.changed(books);
    Ok(true)
}

/// Pins the parts of `place` that are not pinned yet, one after the other, each in its turn; false if pinning does not work here. When a
/// turn has not come in time, the remaining parts are pinned at once, without turns.
pub(super) fn pin(shared: &Shared, place: Range<u64>, order: &mut PinOrder) -> bool {
    let Some(segment) = &shared.segment else { return false };
    for part in shared.registered.missing(place) {
        let bytes = part.end - part.start;
        let in_turns = *order == PinOrder::InTurns && segment.node_ranks() > 1;
        let turn = if in_turns { turn(shared, bytes) } else { None };
        if shared.is_stopping() {
            return false;
        }
        let begun = Instant::now();
        if let Err(error) = shared.registered.pin(part, segment, &*shared.device) {
            // Copies continue at the speed of pageable memory.
            log::warn!("event=not-pinned bytes={bytes} error={error}");
            return false;
        }
        if in_turns && turn.is_none() {
            *order = PinOrder::AtOnce;
        }
        shared.lock().trace.span("pin", 0, bytes, begun, shared.started);
    }
    true
}

/// Waits for this rank's turn to pin. `None` if turns are not available, or if no turn has come within the patience of staggering: a
/// process that hangs is not robbed of its turn.
fn turn(shared: &Shared, bytes: u64) -> Option<TokenGuard> {
    let segment = shared.segment.as_ref()?;
    let begun = Instant::now();
    while !shared.is_stopping() {
        match segment.try_take(Token::Pinning, bytes, Order::RoundRobin) {
            Ok(Some(guard)) => return Some(guard),
            Ok(None) if begun.elapsed() < shared.bursts.patience => {
                std::thread::park_timeout((begun.elapsed() / 100).clamp(TURN_PAUSE, PAUSE))
            }
            Ok(None) => {
                log::warn!("event=pinning-without-token waited={:?}", begun.elapsed());
                break;
            }
            Err(error) => {
                log::debug!("event=pinning-without-token error={error}");
                return None;
            }
        }
    }
    if let Err(error) = segment.withdraw(Token::Pinning) {
        log::debug!("event=wish-not-withdrawn error={error}");
    }
    None
}

impl Shared {
    /// A line that is not completely pinned.
    pub(super) fn unpinned_line(&self) -> Option<Range<u64>> {
        let is_unpinned = |place: &Range<u64>| self.registered.bytes(place.clone()) < place.end - place.start;
        self.lines.places().into_iter().find(is_unpinned)
    }

    /// Bytes of all lines, and how many of them are pinned.
    pub(super) fn host_bytes(&self) -> (u64, u64) {
        let places = self.lines.places();
        let all = places.iter().map(|place| place.end - place.start).sum();
        (all, places.into_iter().map(|place| self.registered.bytes(place)).sum())
    }

    /// `bytes` bytes went from the device into a slot, or will do so: the slot is pinned in the background, for the next time.
    pub(super) fn pin_soon(&self, slot: &SlotMut, bytes: u64) {
        if bytes < SLOT_BYTES_MIN || self.config.pin == PinOrder::Never {
            return;
        }
        let place = slot.offset()..slot.offset() + slot.len() as u64 / PAGE * PAGE;
        self.registered.pin_soon(place);
    }
}
