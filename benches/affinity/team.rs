//! Threads that live as long as the computation, like those of OpenMP: the calling thread is the first of them.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

type Job = Arc<dyn Fn(usize) + Send + Sync>;

/// A team of threads. It ends when it is dropped.
pub struct Team {
    jobs: Vec<Sender<Job>>,
    done: Receiver<()>,
}

impl Team {
    /// Starts a team of `threads` threads, of which the calling thread is one.
    pub fn start(threads: usize) -> Team {
        let (say, done) = channel();
        let worker = |thread: usize| {
            let (job, jobs) = channel::<Job>();
            let say = say.clone();
            let body = move || {
                while let Ok(job) = jobs.recv() {
                    job(thread);
                    // The team may have been dropped.
                    let _ = say.send(());
                }
            };
            std::thread::Builder::new().name("kernel".into()).spawn(body).expect("a thread starts");
            job
        };
        Team { jobs: (1..threads).map(worker).collect(), done }
    }

    /// Does a job on all threads, each with its number, and returns when all are done.
    pub fn run(&self, job: impl Fn(usize) + Send + Sync + 'static) {
        let job: Job = Arc::new(job);
        self.jobs.iter().for_each(|thread| thread.send(job.clone()).expect("it lives"));
        job(0);
        self.jobs.iter().for_each(|_| self.done.recv().expect("all live"));
    }
}
