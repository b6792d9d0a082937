//! One thread at a time: the baton that simulated ranks pass to each other, and the clock on which they pass it.
//!
//! Each rank is a separate thread, because the session's calls block. But only the thread that has the baton runs. It passes the baton on
//! when it sleeps on its clock (as every wait of a session does) and at some of its storage calls. A seeded generator picks the next thread
//! and the time at which it continues, so a run depends on its seed alone.
//!
//! The *driver* (the test itself) has the baton first. [`Baton::run`] lends it to the tasks until those of one group
//! have ended. A task that is doomed ends at its next turn by a panic that nobody sees. Then the code runs that would
//! run in `Drop` of a process that is unwinding; the session keeps that code free of messages and file operations.

use bivouac_core::base::Clock;
use bivouac_core::base::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tasks that would wake up within this time may be woken early: the clocks of real machines are not exact either.
const SLACK: Duration = Duration::from_millis(1);
/// How far time advances per turn when nothing happens any more.
const STRIDE: Duration = Duration::from_millis(25);

/// The payload of a doomed task's panic.
struct Killed;

/// Number of a task.
pub type TaskId = usize;

struct Task {
    group: u32,
    wake: Duration,
    finished: bool,
    doomed: bool,
    /// The task ends when it has reached this many points of its own.
    doomed_at: Option<u64>,
    points: u64,
    turn: Arc<Condvar>,
}

struct Turns {
    now: Duration,
    running: Option<TaskId>,
    awaited: u32,
    until: Option<Duration>,
    tasks: Vec<Task>,
    rng: Rng,
    steps: u64,
    steps_max: u64,
    quiet: u64,
    trace: u64,
    failures: Vec<String>,
}

/// See the module's documentation.
pub struct Baton {
    turns: Mutex<Turns>,
    driver: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Baton {
    /// A baton that the driver has. A run of more than `steps_max` turns counts as one that hangs.
    pub fn new(seed: u64, steps_max: u64) -> Arc<Baton> {
        let turns = Turns {
            now: Duration::from_secs(1),
            running: None,
            awaited: 0,
            until: None,
            tasks: Vec::new(),
            rng: Rng::new(seed),
            steps: 0,
            steps_max,
            quiet: 0,
            trace: 0,
            failures: Vec::new(),
        };
        Arc::new(Baton { turns: Mutex::new(turns), driver: Condvar::new(), threads: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task; it runs when the driver lends the baton.
    pub fn spawn(self: &Arc<Baton>, group: u32, body: impl FnOnce(&Seat) + Send + 'static) -> TaskId {
        let turn = Arc::new(Condvar::new());
        let task = {
            let mut turns = self.lock();
            let wake = turns.now;
            turns.tasks.push(Task {
                group,
                wake,
                finished: false,
                doomed: false,
                doomed_at: None,
                points: 0,
                turn: turn.clone(),
            });
            turns.tasks.len() - 1
        };
        let seat = Seat { baton: self.clone(), task };
        let thread = std::thread::Builder::new().name(format!("task-{task}")).stack_size(1 << 20).spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                seat.wait_for_turn(seat.baton.lock());
                body(&seat);
            }));
            seat.finish(result.err());
        });
        self.threads.lock().unwrap().push(thread.expect("the system gives a thread"));
        task
    }

    /// Lends the baton until all tasks of `group` have ended, or until `limit` has passed. Returns true if they have
    /// ended. All other tasks take their turns in the meantime, and stand still afterwards.
    pub fn run(&self, group: u32, limit: Option<Duration>) -> bool {
        let mut turns = self.lock();
        turns.awaited = group;
        turns.until = limit.map(|limit| turns.now + limit);
        turns.quiet = 0;
        turns.pass_on(&self.driver);
        while turns.running.is_some() {
            turns = self.driver.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        turns.tasks.iter().all(|task| task.group != group || task.finished)
    }

    /// Lets all tasks of a group die at their next turn, wherever they are.
    pub fn doom(&self, group: u32) {
        self.lock().tasks.iter_mut().filter(|task| task.group == group).for_each(|task| task.doomed = true);
    }

    /// Lets every task die at its next turn.
    pub fn doom_all(&self) {
        self.lock().tasks.iter_mut().for_each(|task| task.doomed = true);
    }

    /// Lets one task die when it has reached `points` points, which are sleeps and storage calls.
    pub fn doom_at(&self, task: TaskId, points: u64) {
        self.lock().tasks[task].doomed_at = Some(points);
    }

    /// Has this task ended?
    pub fn is_finished(&self, task: TaskId) -> bool {
        self.lock().tasks[task].finished
    }

    /// Ends all tasks of all groups and waits for their threads.
    pub fn end(&self) {
        self.doom_all();
        let groups: std::collections::BTreeSet<u32> = self.lock().tasks.iter().map(|task| task.group).collect();
        for group in groups {
            self.run(group, None);
        }
        for thread in self.threads.lock().unwrap().drain(..) {
            thread.join().expect("a task catches its panics");
        }
    }

    /// The faults in tasks: panics, and the watchdog's complaint.
    pub fn failures(&self) -> Vec<String> {
        self.lock().failures.clone()
    }

    /// The number of turns taken, and a digest of their order and times.
    pub fn trace(&self) -> (u64, u64) {
        let turns = self.lock();
        (turns.steps, turns.trace)
    }
}

impl Turns {
    fn pass_on(&mut self, driver: &Condvar) {
        self.running = self.choose();
        match self.running {
            Some(task) => self.tasks[task].turn.notify_one(),
            None => driver.notify_one(),
        }
    }

    fn choose(&mut self) -> Option<TaskId> {
        self.steps += 1;
        if self.steps == self.steps_max {
            self.failures.push(format!("no end in sight after {} turns, at {:?}", self.steps, self.now));
            self.tasks.iter_mut().for_each(|task| task.doomed = true);
        }
        let awaited = self.awaited;
        let is_over = self.tasks.iter().all(|task| task.group != awaited || task.finished);
        if is_over || self.until.is_some_and(|until| self.now >= until) {
            return None;
        }
        let open = |task: &&(TaskId, &Task)| !task.1.finished;
        let all: Vec<(TaskId, &Task)> = self.tasks.iter().enumerate().collect();
        let soon: Vec<TaskId> = all
            .iter()
            .filter(open)
            .filter(|(_, task)| task.doomed || task.wake <= self.now + SLACK)
            .map(|(id, _)| *id)
            .collect();
        let ripe: Vec<TaskId> = soon.iter().copied().filter(|id| self.tasks[*id].wake <= self.now).collect();
        let among = if ripe.is_empty() || self.rng.chance(1, 8) { soon } else { ripe };
        let chosen = match among.is_empty() {
            false => among[self.rng.below(among.len() as u64) as usize],
            true => all.iter().filter(open).min_by_key(|(_, task)| task.wake).map(|(id, _)| *id)?,
        };
        if !self.tasks[chosen].doomed {
            self.now = self.now.max(self.tasks[chosen].wake);
        }
        self.quiet += 1;
        if self.quiet > 12 * self.tasks.iter().filter(|task| !task.finished).count() as u64 {
            self.now += STRIDE;
        }
        let mix = self.trace ^ (chosen as u64) << 48 ^ self.now.as_nanos() as u64;
        self.trace = Rng::new(mix).next_u64();
        Some(chosen)
    }
}

/// The seat of a task, which is also its clock.
#[derive(Clone)]
pub struct Seat {
    baton: Arc<Baton>,
    task: TaskId,
}

impl Seat {
    fn wait_for_turn(&self, mut turns: MutexGuard<'_, Turns>) {
        let turn = turns.tasks[self.task].turn.clone();
        while turns.running != Some(self.task) {
            turns = turn.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        let doomed = turns.tasks[self.task].doomed;
        drop(turns);
        if doomed {
            resume_unwind(Box::new(Killed));
        }
    }

    fn finish(&self, panic: Option<Box<dyn std::any::Any + Send>>) {
        let mut turns = self.baton.lock();
        turns.tasks[self.task].finished = true;
        turns.quiet = 0;
        if let Some(panic) = panic.filter(|panic| !panic.is::<Killed>()) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            turns.failures.push(text.unwrap_or_else(|| "a task panicked".into()));
            turns.tasks.iter_mut().for_each(|task| task.doomed = true);
        }
        turns.pass_on(&self.baton.driver);
    }

    /// Reports an event for which others may be waiting, so that time advances slowly for a while.
    pub fn touch(&self) {
        self.baton.lock().quiet = 0;
    }

    /// A number below `bound`, from the run's generator.
    pub fn below(&self, bound: u64) -> u64 {
        self.baton.lock().rng.below(bound)
    }

    /// A point at which the task may die; sometimes it also hands the baton on.
    pub fn point(&self) {
        if std::thread::panicking() {
            return;
        }
        let pause = {
            let mut turns = self.baton.lock();
            turns.quiet = 0;
            turns.rng.chance(1, 3).then(|| Duration::from_micros(turns.rng.below(300)))
        };
        match pause {
            Some(pause) => self.sleep(pause),
            None => self.count_point(),
        }
    }

    fn count_point(&self) {
        let doomed = {
            let mut turns = self.baton.lock();
            let task = &mut turns.tasks[self.task];
            task.points += 1;
            task.doomed |= task.doomed_at.is_some_and(|at| task.points >= at);
            task.doomed
        };
        if doomed {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Has this task ended?
    pub fn is_over(&self) -> bool {
        self.baton.is_finished(self.task)
    }

    /// The baton, for adding tasks.
    pub fn shared(&self) -> Arc<Baton> {
        self.baton.clone()
    }

    /// The baton, for dooming tasks.
    pub fn baton(&self) -> &Baton {
        &self.baton
    }
}

impl Clock for Seat {
    fn now(&self) -> Duration {
        self.baton.lock().now
    }

    fn sleep(&self, pause: Duration) {
        if std::thread::panicking() {
            return;
        }
        self.count_point();
        let mut turns = self.baton.lock();
        turns.tasks[self.task].wake = turns.now + pause;
        turns.pass_on(&self.baton.driver);
        self.wait_for_turn(turns);
    }
}

/// The simulated time, for modification times; nobody sleeps on it.
pub struct WallClock(pub Arc<Baton>);

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.lock().now
    }

    fn sleep(&self, _pause: Duration) {}
}
