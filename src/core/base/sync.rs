//! Locks that no panic poisons and whose order is checked, and a signal that is never missed.
//!
//! A panic while a lock is held is a bug in Bivouac. The data that the lock guards is still consistent enough to report the panic, and the
//! bug must not end the application. So a [`Lock`] stays usable.
//!
//! # Order
//!
//! A thread that holds a lock takes only locks of a later [`Order`]. Builds with debug assertions, such as those of the tests,
//! check this at each lock.
//!
//! | order | locks | held across |
//! |---|---|---|
//! | `Call` | a session for which C has a handle, for the length of a call: calls from several threads wait for each other | whatever the call does |
//! | `Rebuild` | a lost shard, while it is rebuilt from what others hold | their answers |
//! | `Session` | threads of a session or its caches, which the holder stops and joins; requests of a restart to other ranks | the end of their current work; answers |
//! | `Driver` | the driver of the coordination: the thread that steps it calls MPI | messages |
//! | `File` | a small file that is created or maintained: the status of the run directory, a claim, what a drain makes of a checkpoint | that file |
//! | `Core` | what the engine has decided on, with the effects of each decision | no I/O, no messages |
//! | `Outer` | work of one thread at a time that takes further locks: filling a slot, adding up a parity, changing a segment, waiting for a turn, reading the layout of packed files, enqueuing what is sent from live memory | copying, arithmetic, populating memory, those tables, calls into a driver that do not wait |
//! | `Account` | what one thread at a time knows about slots that belong together: the account of an exchange | nothing; a slot may be given back |
//! | `Leaf` | everything else: the state of one worker | nothing; no other lock either |
#![forbid(unsafe_code)]

#[cfg(debug_assertions)]
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use std::panic::Location;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The place of a lock in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Order {
    /// For the length of a call of the C interface.
    Call,
    /// A shard that is being rebuilt.
    Rebuild,
    /// The threads and requests for which calls of a session wait.
    Session,
    /// The driver of the coordination, which sends messages.
    Driver,
    /// A small file that Bivouac maintains.
    File,
    /// The decisions of the engine.
    Core,
    /// Work that takes leaf locks.
    Outer,
    /// Data that gives slots back when it is dropped.
    Account,
    /// The state of one worker, after which no lock is taken.
    Leaf,
}

/// A mutual exclusion that survives a panic.
#[derive(Debug)]
pub struct Lock<T: ?Sized> {
    /// The lock's place in the order; `None`: it is not checked.
    order: Option<Order>,
    inner: Mutex<T>,
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

impl<T> Lock<T> {
    /// Makes a lock around a value, as the last of its thread's locks.
    pub const fn new(value: T) -> Lock<T> {
        Lock::at(Order::Leaf, value)
    }

    /// Makes a lock around a value, at a place in the order.
    pub const fn at(order: Order, value: T) -> Lock<T> {
        Lock { order: Some(order), inner: Mutex::new(value) }
    }

    /// Makes a lock around a value whose place in the order is not checked. This is needed if coroutines take the lock instead of threads
    /// (in the checker of schedules), because it is known only for threads which locks they hold, or if one thread takes several locks of a
    /// kind, in an order of their own.
    pub const fn unordered(value: T) -> Lock<T> {
        Lock { order: None, inner: Mutex::new(value) }
    }

    /// Takes the value out of the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Lock<T> {
    /// Waits for the lock.
    ///
    /// # Panics
    /// In builds with debug assertions, if the thread holds a lock of this order or a later one.
    #[track_caller]
    pub fn lock(&self) -> Guard<'_, T> {
        let held = Held::next(self.order);
        Guard { inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Takes the lock, unless a thread already has it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { inner, _held: Held::next(self.order) })
    }

    /// Borrows the value, which no other thread can be using.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that this thread holds.
pub struct Guard<'a, T: ?Sized> {
    inner: MutexGuard<'a, T>,
    _held: Held,
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Wakes threads that wait for a change of what a [`Lock`] guards.
#[derive(Default, Debug)]
pub struct Condition(Condvar);

impl Condition {
    /// A condition for which no thread waits.
    pub const fn new() -> Condition {
        Condition(Condvar::new())
    }

    /// Releases the lock, and takes it again after a notification.
    pub fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
        let Guard { inner, _held } = guard;
        Guard { inner: self.0.wait(inner).unwrap_or_else(PoisonError::into_inner), _held }
    }

    /// Does the same as [`Condition::wait`], but waits at most for `limit`.
    pub fn wait_timeout<'a, T>(&self, guard: Guard<'a, T>, limit: Duration) -> Guard<'a, T> {
        let Guard { inner, _held } = guard;
        Guard { inner: self.0.wait_timeout(inner, limit).unwrap_or_else(PoisonError::into_inner).0, _held }
    }

    /// Waits while `is_so` returns true, but at most for `limit`.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: Guard<'a, T>,
        limit: Duration,
        mut is_so: impl FnMut(&mut T) -> bool,
    ) -> Guard<'a, T> {
        // A limit beyond the end of the clock counts as no limit.
        let deadline = Instant::now().checked_add(limit);
        while is_so(&mut guard) {
            let left = deadline.map_or(limit, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            guard = self.wait_timeout(guard, left);
        }
        guard
    }

    /// Waits while `is_so` returns true.
    pub fn wait_while<'a, T>(&self, mut guard: Guard<'a, T>, mut is_so: impl FnMut(&mut T) -> bool) -> Guard<'a, T> {
        while is_so(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Wakes one of the waiting threads.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Tells threads that something has changed, whichever lock guards it.
///
/// A thread reads [`Signal::now`] before it looks for changes. If it finds none, it waits with [`Signal::wait_past`] for a later ring. A
/// change after the look has rung the signal since, and is therefore not missed.
#[derive(Default, Debug)]
pub struct Signal {
    rung: Lock<u64>,
    changed: Condition,
}

impl Signal {
    /// How often the signal has rung.
    pub fn now(&self) -> u64 {
        *self.rung.lock()
    }

    /// Wakes all waiting threads.
    pub fn ring(&self) {
        *self.rung.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until the signal has rung after `seen`, but at most for `limit`.
    pub fn wait_past(&self, seen: u64, limit: Duration) {
        drop(self.changed.wait_timeout_while(self.rung.lock(), limit, |rung| *rung == seen));
    }
}

/// Records that this thread holds a lock.
struct Held {
    #[cfg(debug_assertions)]
    order: Option<Order>,
}

#[cfg(debug_assertions)]
thread_local! {
    /// The locks that this thread holds, and where each was taken.
    static HELD: RefCell<Vec<(Order, &'static Location<'static>)>> = const { RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
impl Held {
    #[track_caller]
    fn next(order: Option<Order>) -> Held {
        let Some(next) = order else { return Held { order } };
        // A thread that is ending may have lost its thread-local values.
        let last = HELD.try_with(|held| held.borrow().last().copied()).ok().flatten();
        if let Some((last, at)) = last.filter(|(last, _)| *last >= next) {
            panic!("lock order: {next:?} is taken behind {last:?}, which was taken at {at}");
        }
        let here = Location::caller();
        _ = HELD.try_with(|held| held.borrow_mut().push((next, here)));
        Held { order }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let Some(ours) = self.order else { return };
        let forget = |held: &mut Vec<(Order, _)>| {
            if let Some(at) = held.iter().rposition(|(order, _)| *order == ours) {
                held.remove(at);
            }
        };
        _ = HELD.try_with(|held| forget(&mut held.borrow_mut()));
    }
}

#[cfg(not(debug_assertions))]
impl Held {
    fn next(_: Option<Order>) -> Held {
        Held {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_does_not_end_a_lock() {
        let lock = Lock::new(1);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let mut guard = lock.lock();
            *guard = 2;
            panic!("in the middle");
        }));
        assert!(broken.is_err());
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.into_inner(), 2);
    }

    #[test]
    fn locks_are_taken_in_their_order_only() {
        let (driver, core, leaf) = (Lock::at(Order::Driver, ()), Lock::at(Order::Core, ()), Lock::at(Order::Leaf, ()));
        let all = (driver.lock(), core.lock(), leaf.lock());
        drop(all);
        for (first, second) in [(&core, &driver), (&leaf, &core), (&leaf, &leaf)] {
            let _first = first.lock();
            let wrong = catch_unwind(AssertUnwindSafe(|| drop(second.lock())));
            assert!(wrong.is_err());
        }
        // Locks may be released in any order.
        let (first, second) = (driver.lock(), core.lock());
        drop(first);
        drop(second);
        drop(driver.lock());
        assert!(driver.try_lock().is_some());
    }

    /// A change between the look and the wait ends the wait at once.
    #[test]
    fn a_ring_after_the_look_is_not_missed() {
        let signal = Signal::default();
        let seen = signal.now();
        signal.ring();
        let begun = Instant::now();
        signal.wait_past(seen, Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::scope(|scope| {
            let seen = signal.now();
            scope.spawn(|| signal.ring());
            signal.wait_past(seen, Duration::from_secs(60));
        });
        assert_eq!(signal.now(), 2);
        signal.wait_past(2, Duration::from_millis(1));
    }
}
