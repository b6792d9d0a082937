//! Ways to end, and the signals and processors that the library's threads leave to the application.

use crate::limit::wait_until;
use crate::support::{Job, NAME, commit, config, restore, take};
use bivouac_core::config::OffloadMode;
use bivouac_core::device::host::{HostDevice, HostModel};
use bivouac_core::device::{Device, DeviceSpan, Priority, Stream};
use bivouac_core::{Level, Offload, Pending, Session};
use mpi::environment::Universe;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Restores, takes versions up to `version`, and ends without a normal close.
pub fn end(job: Job, universe: Option<Universe>, how: &str, version: u64) {
    let session = job.open();
    job.tell("restored", restore(&session, NAME, None, job.rank));
    job.tell("committed", commit(&session, NAME, 1, version, job.rank));
    // One more checkpoint is on its way. Whatever happens to it, nothing may hang or crash.
    let pending = take(&session, NAME, 1, version + 1, job.rank);
    leave(&job, universe, session, pending, how);
    crate::support::finalize_if_needed();
    job.say("ended", how);
}

/// Ends without a normal close.
fn leave(job: &Job, universe: Option<Universe>, session: Session, pending: bivouac_core::Result<Pending>, how: &str) {
    match how {
        "finalize-first" => {
            drop(universe);
            // The comm thread is gone; a call is still answered, if only with an error.
            if let Ok(pending) = pending {
                job.tell("pending", pending.wait(bivouac_core::Level::System));
            }
            job.tell("close", session.close().map(|()| "closed"));
        }
        "drop" => {
            drop(pending);
            drop(session);
            drop(universe);
        }
        "drop-after-finalize" => {
            drop(universe);
            drop(session);
            drop(pending);
        }
        "forget" => {
            std::mem::forget(session);
            drop(universe);
        }
        "kill" => job.die(),
        other => panic!("no end {other:?}"),
    }
}

/// The length of the marked region. It takes a quarter of the bytes that the device's link moves in a second.
const REGION: u64 = 4 << 20;
const LINK: f64 = 16.0 * (1 << 20) as f64;

/// A device with one region, and the stream on which that region is written and marked.
struct Marking {
    stream: Arc<dyn Stream>,
    twin: Arc<HostDevice>,
    region: DeviceSpan,
}

impl Marking {
    /// Gives the region its contents in a version.
    fn write(&self, rank: i32, version: u64) {
        let byte = (rank as u64 + 3 * version) as u8;
        self.twin.compute(&[&self.region], |bytes| bytes[0].fill(byte)).expect("our own memory");
    }

    fn mark(&self, session: &Session, offload: &Offload, version: u64) -> bivouac_core::Result<Pending> {
        let mut checkpoint = session.begin_checkpoint(NAME, version)?.with_offload(offload, &*self.stream);
        checkpoint.save_device::<u8>("region", &self.region)?;
        checkpoint.capture()
    }

    /// Restores the newest version, checks its data, and returns its number as text.
    fn restart(&self, session: &Session, rank: i32) -> bivouac_core::Result<String> {
        let mut bytes = Vec::new();
        let restored = session.begin_restore(NAME).run(|restorer| {
            bytes = restorer.load_vec::<u8>("region")?;
            Ok(())
        })?;
        Ok(restored.map_or_else(
            || "version=0".to_owned(),
            |restored| {
                let byte = (rank as u64 + 3 * restored.version) as u8;
                assert!(bytes.len() as u64 == REGION && bytes.iter().all(|other| *other == byte), "another version's");
                format!("version={}", restored.version)
            },
        ))
    }
}

/// Restores, marks a version that is committed, and ends in one of the ways, or by SIGKILL, while another version is marked and its blocks
/// are in this state.
pub fn end_marked(job: Job, universe: Option<Universe>, how: &str, state: &str, version: u64) {
    let mut config = config();
    config.job.offload.mode = OffloadMode::Always;
    let model = HostModel { memory_bytes: 64 << 20, link_bytes_per_s: Some(LINK), ..HostModel::default() };
    let session = job.open_with(config);
    let twin = Arc::new(HostDevice::new(model));
    let stream = twin.stream(Priority::High).expect("a stream");
    let region = twin.allocate(REGION).expect("room");
    let program = Marking { stream, twin: twin.clone(), region };
    job.tell("restored", program.restart(&session, job.rank));
    let caches = session.caches(twin).expect("caches");
    let offload = session.offload(&caches).expect("an offload");
    offload.prepare(REGION).expect("prepared");
    program.write(job.rank, version);
    let marked = program.mark(&session, &offload, version);
    job.tell("committed", marked.and_then(|pending| pending.wait(Level::Process)));
    offload.settle();
    program.write(job.rank, version + 1);
    let pending = program.mark(&session, &offload, version + 1);
    let declare = |bytes| {
        let part = program.region.part(0, bytes).expect("inside");
        offload.before_write(&part, &*program.stream).expect("declared");
    };
    match state {
        // The blocks are about to be sent, or on their way.
        "undeclared" => {}
        // The buffer has room for this much.
        "doubled" => declare(512 << 10),
        "awaited" => declare(REGION),
        "landed" => offload.settle(),
        other => panic!("no state {other:?}"),
    }
    job.say("state", format!("doubled={}", offload.stats().doubled_bytes > 0));
    let mut marking = Some((offload, caches));
    match how {
        // These are dropped before the session; otherwise they are dropped after it.
        "drop" | "finalize-first" => marking = None,
        "forget" => std::mem::forget(marking.take()),
        _ => {}
    }
    leave(&job, universe, session, pending, how);
    drop(marking);
    crate::support::finalize_if_needed();
    job.say("ended", how);
}

static HANDLED_BY: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(_: i32) {
    // A system call and a store: both are allowed in a handler.
    HANDLED_BY.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
}

/// One line of `/proc/self/task/TID/status`.
fn status(tid: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim().to_owned()
}

fn threads_named(prefix: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has /proc");
    let ids = tasks.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    ids.filter(|tid| status(tid, "Name:").starts_with(prefix)).collect()
}

/// The CPUs in a list such as `0-2,5`.
fn cpus(list: &str) -> BTreeSet<usize> {
    bivouac_core::base::units::parse_cpus(list).expect("a list of CPUs")
}

/// The library's threads take no signals. They run on CPUs on which no process of the job was put, if the launcher had any left, or
/// otherwise on this process's CPUs.
pub fn signals(job: &Job) {
    let action = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::Handler(on_signal),
        nix::sys::signal::SaFlags::SA_RESTART,
        nix::sys::signal::SigSet::empty(),
    );
    // SAFETY: the handler only calls gettid and stores to an atomic.
    unsafe { nix::sys::signal::sigaction(nix::sys::signal::Signal::SIGTERM, &action) }.expect("SIGTERM can be caught");
    let main_mask = status(&std::process::id().to_string(), "Cpus_allowed_list:");
    let session = job.open();
    job.tell("committed", commit(&session, NAME, 1, 1, job.rank));
    // A thread has its name once it runs.
    wait_until("they have their names", || {
        threads_named("bvk-write-").len() > 1 && threads_named("bvk-near").len() == 1
    });
    wait_until("the claim's has", || job.rank != 0 || threads_named("bvk-claim").len() == 1);
    let ours = threads_named("bvk-");
    let launcher = rustix::process::getppid().expect("mpirun").as_raw_pid();
    // All ranks were put on the same CPU.
    let free = &cpus(&status(&launcher.to_string(), "Cpus_allowed_list:")) - &cpus(&main_mask);
    let names: BTreeSet<String> = ours.iter().map(|tid| status(tid, "Name:")).collect();
    job.say("threads", names.into_iter().collect::<Vec<_>>().join(","));
    let wanted = if free.is_empty() { cpus(&main_mask) } else { free };
    // Each thread goes there itself, after it was named.
    let is_there = |tid: &String| cpus(&status(tid, "Cpus_allowed_list:")) == wanted;
    wait_until(&format!("all run on {wanted:?}"), || ours.iter().all(is_there));
    for tid in &ours {
        let blocked = u64::from_str_radix(&status(tid, "SigBlk:"), 16).expect("a mask in hexadecimal digits");
        for signal in nix::sys::signal::Signal::iterator() {
            use nix::sys::signal::Signal::{SIGKILL, SIGSTOP};
            let bit = 1u64 << (signal as u64 - 1);
            assert!(matches!(signal, SIGKILL | SIGSTOP) || blocked & bit != 0, "{signal} is not blocked in {tid}");
        }
    }
    job.say("mask", main_mask);
    for _ in 0..20 {
        HANDLED_BY.store(0, Ordering::SeqCst);
        let pid = rustix::process::getpid();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a process may signal itself");
        wait_until("the application's handler has run", || HANDLED_BY.load(Ordering::SeqCst) != 0);
        let tid = HANDLED_BY.load(Ordering::SeqCst).to_string();
        assert!(!ours.contains(&tid), "a thread of ours ran the application's handler");
    }
    job.say("handled", "20 signals");
    job.tell("close", session.close().map(|()| "closed"));
    // The kernel still lists a thread for a moment after it was joined.
    wait_until("none is left", || threads_named("bvk-").is_empty());
    job.say("left", threads_named("bvk-").len());
}

/// A session that listened for SIGTERM has been closed, so the signal has its earlier effect again.
pub fn after_close(job: &Job) {
    let mut config = config();
    config.job.exit.signal = Some("TERM".into());
    for _ in 0..2 {
        let session = job.open_with(config.clone());
        session.should_exit().expect("all ranks ask");
        session.close().expect("nothing is in flight");
    }
    job.say("closed", "");
    job.barrier();
    let pid = rustix::process::getpid();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a process may signal itself");
    std::thread::sleep(std::time::Duration::from_secs(1));
    job.say("survived", "SIGTERM");
}
