//! The engine's threads: started together, stopped together. The module's table lists them.

use super::engine::Engine;
use crate::affinity::{cpus, given};
use crate::base::log;
use crate::base::threads::spawn;
use crate::tier::TierSet;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a writer sleeps when there is nothing to do.
const WRITER_IDLE: Duration = Duration::from_millis(500);
/// The comm thread's sleep after something has moved. It doubles, up to a limit that depends on whether bulk data is under way, something
/// is being written or agreed on, or the engine is at rest. Each wake-up takes a little time from the application.
const COMM_BUSY: Duration = Duration::from_micros(50);
const COMM_BULK: Duration = Duration::from_micros(200);
const COMM_AWAITS: Duration = Duration::from_millis(1);
const COMM_IDLE: Duration = Duration::from_millis(2);
/// The comm thread's sleep at rest if arrivals wake it: time-outs are checked at this interval.
const COMM_LISTENS: Duration = Duration::from_millis(50);
/// How long the comm thread polls without sleeping after bulk data has last moved.
const BULK_PATIENCE: Duration = Duration::from_millis(2);

/// The running threads of one engine.
pub struct Threads {
    engine: Arc<Engine>,
    comm: Option<JoinHandle<()>>,
    /// The threads that may wait for file systems.
    workers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts the writers, and the comm thread if asked for.
    ///
    /// # Errors
    /// The system's answer if a thread cannot be started; those already running are stopped.
    pub fn start(engine: &Arc<Engine>, with_comm: bool) -> io::Result<Threads> {
        let mut threads = Threads { engine: engine.clone(), comm: None, workers: Vec::new() };
        let cpus = given::for_background("");
        let start = |name: String, body: Box<dyn FnOnce(&Engine) + Send>| {
            let (engine, cpus) = (engine.clone(), cpus.clone());
            spawn(name, move || {
                cpus::run_on(&cpus);
                body(&engine);
            })
        };
        for index in 0..engine.config().node.writers {
            threads
                .workers
                .push(start(format!("bvk-write-{index}"), Box::new(|engine| write_loop(engine, TierSet::ALL)))?);
        }
        for (name, tiers) in engine.guards() {
            threads.workers.push(start(name, Box::new(move |engine| write_loop(engine, tiers)))?);
        }
        if engine.is_root() {
            threads.workers.push(start("bvk-claim".into(), Box::new(Engine::guard_claim))?);
        }
        if with_comm {
            threads.comm = Some(start("bvk-comm".into(), Box::new(comm_loop))?);
        }
        Ok(threads)
    }

    /// Stops and joins the comm thread. Afterwards, only the caller calls MPI.
    pub fn stop_comm(&mut self) {
        self.engine.request_stop();
        join(self.comm.take());
    }

    /// Stops all threads, and marks the end of the run where others look for it. Returns when that is done, or after
    /// `limit`: threads that still wait for a file system then end later, and do not begin anything new.
    ///
    /// # Blocking
    /// For the pieces of I/O under way, at most for `limit`.
    pub fn finish(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.stop_comm();
        let engine = self.engine.clone();
        let farewell = spawn("bvk-farewell".into(), move || {
            engine.close_claim();
            engine.tell_closed();
            engine.write_profile();
        });
        match farewell {
            Ok(farewell) => self.workers.push(farewell),
            Err(error) => log::warn!("event=no-farewell error={error}"),
        }
        for worker in self.workers.drain(..) {
            while !worker.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            match worker.is_finished() {
                true => join(Some(worker)),
                false => log::warn!(
                    "event=thread-left name={:?} reason=\"it waits for a file system\"",
                    worker.thread().name()
                ),
            }
        }
    }
}

impl Drop for Threads {
    /// Joins the comm thread, so that MPI is not called after the session has ended; writers end later without being joined.
    fn drop(&mut self) {
        self.stop_comm();
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(Err(_)) = thread.map(JoinHandle::join) {
        log::error!("event=thread-panicked");
    }
}

fn write_loop(engine: &Engine, tiers: TierSet) {
    let mut staging = None;
    loop {
        // Read before the check for the end, because a request to stop signals in the same way as work.
        let seen = engine.work_seen();
        if engine.is_stopping() {
            return;
        }
        if !engine.work(tiers, &mut staging) {
            engine.wait_for_work(tiers, seen, WRITER_IDLE);
        }
    }
}

fn comm_loop(engine: &Engine) {
    let mut pause = COMM_BUSY;
    let mut moved = Instant::now();
    let mut is_in_vain = false;
    loop {
        let seen = engine.seen();
        if engine.is_stopping() {
            return;
        }
        if engine.step() {
            (pause, moved, is_in_vain) = (COMM_BUSY, Instant::now(), false);
            continue;
        }
        let (is_busy, has_bulk) = (engine.is_busy(), engine.has_bulk());
        let longest = match (is_busy, has_bulk) {
            (_, true) => COMM_BULK,
            (true, false) => COMM_AWAITS,
            (false, false) => COMM_IDLE,
        };
        // Without this, arrivals that cannot be taken yet would wake the thread forever.
        if !is_in_vain && let Some(has_come) = engine.listen(if is_busy { longest } else { COMM_LISTENS }) {
            is_in_vain = has_come;
            continue;
        }
        is_in_vain = false;
        // Long messages only move inside MPI calls: a sleep would hold up both ends of a transfer.
        if has_bulk && moved.elapsed() < BULK_PATIENCE {
            std::thread::yield_now();
            continue;
        }
        engine.pause(seen, pause);
        pause = (pause * 2).min(longest);
    }
}
