//! The threads of this process, and where they may run.
//!
//! Threads start and end while they are listed, and `/proc` may be hidden. What cannot be found out is left out; the calling
//! thread is always listed. Tools list the threads of other processes ([`list_of`]).
#![forbid(unsafe_code)]

use super::cpus::{self, Cpus};
use super::record::{Role, ThreadPlace};
use crate::base::threads::PREFIX;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The folder with the threads of this process, each in a folder named by its number.
const FOLDER: &str = "/proc/self/task";

/// A thread of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its number in the system.
    pub id: i32,
    /// Its name, which the system cuts after 15 bytes.
    pub name: String,
    /// When it was started, in ticks since the machine's start.
    pub started: u64,
    /// The CPUs that it may run on.
    pub cpus: Cpus,
}

/// The number of threads; `None` if it is not known. The call is cheap, so a change can be noticed by asking often.
pub fn count() -> Option<u64> {
    // Two of the links of a folder are its own.
    fs::metadata(FOLDER).ok()?.nlink().checked_sub(2)
}

/// The number of the calling thread.
pub fn own_id() -> i32 {
    gettid().as_raw_pid()
}

/// All threads, the oldest first.
pub fn list() -> Vec<Thread> {
    let mut threads = list_in(FOLDER).unwrap_or_default();
    if !threads.iter().any(|thread| thread.id == own_id()) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        threads.push(Thread { id: own_id(), name, started: 0, cpus: cpus::of_this_thread() });
    }
    threads.sort_by_key(|thread| (thread.started, thread.id));
    threads
}

/// All threads of a process of this node, the oldest first.
///
/// # Errors
/// Those of the system: there is no such process, or its folder in `/proc` is hidden.
pub fn list_of(process: u32) -> io::Result<Vec<Thread>> {
    let mut threads = list_in(&format!("/proc/{process}/task"))?;
    threads.sort_by_key(|thread| (thread.started, thread.id));
    Ok(threads)
}

fn list_in(folder: &str) -> io::Result<Vec<Thread>> {
    let ids = fs::read_dir(folder)?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(ids.filter_map(|id| look(folder, id)).collect())
}

/// What there is to know about a thread; `None` if it has ended.
fn look(folder: &str, id: i32) -> Option<Thread> {
    let stat = fs::read(format!("{folder}/{id}/stat")).ok()?;
    let (name, started) = parse_stat(&String::from_utf8_lossy(&stat))?;
    let set = sched_getaffinity(Some(Pid::from_raw(id)?)).ok()?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    Some(Thread { id, name, started, cpus })
}

/// The name (which may hold anything, even brackets) and the start time in a line of `/proc/PID/stat`.
fn parse_stat(line: &str) -> Option<(String, u64)> {
    let (head, fields) = line.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    // Fields are counted from 1; the first one after the name is the third, the start time is the 22nd.
    Some((name.to_owned(), fields.split(' ').nth(22 - 3)?.parse().ok()?))
}

/// Lets a thread of this process run on those of these CPUs that its control group allows.
///
/// # Errors
/// Those of the system: the thread has ended (`ESRCH`), or may use none of them (`EINVAL`).
pub fn set(id: i32, cpus: &Cpus) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    // Number 0 would mean the calling thread.
    let id = Pid::from_raw(id).ok_or(io::ErrorKind::InvalidInput)?;
    sched_setaffinity(Some(id), &set).map_err(io::Error::from)
}

/// The CPUs on which the threads of this process that are not Bivouac's may run, taken together.
pub fn cpus_of_application() -> Cpus {
    let others = list().into_iter().filter(|thread| !thread.name.starts_with(PREFIX));
    others.flat_map(|thread| thread.cpus).collect()
}

/// To whom a thread belongs, if `main` holds the session.
pub fn role(thread: &Thread, main: i32) -> Role {
    match () {
        () if thread.id == main => Role::Main,
        () if thread.name.starts_with(PREFIX) => Role::Bivouac,
        () => Role::Other,
    }
}

/// Threads (the oldest first) as a record names them. Pure.
pub fn places(threads: &[Thread], main: i32) -> Vec<ThreadPlace> {
    let mut seen: BTreeMap<(Role, &str), u32> = BTreeMap::new();
    let place = |thread: &Thread, order| {
        let (role, name) = (role(thread, main), thread.name.clone());
        ThreadPlace { role, name, order, cpus: thread.cpus.clone() }
    };
    let mut places = Vec::with_capacity(threads.len());
    for thread in threads {
        let next = seen.entry((role(thread, main), &thread.name)).or_default();
        places.push(place(thread, *next));
        *next += 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::limit::wait_until;
    use std::sync::mpsc::channel;

    #[test]
    fn a_line_of_a_thread_is_read_whatever_its_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        for name in ["worker", "a) R (b", ""] {
            assert_eq!(parse_stat(&format!("12 ({name}) {rest}")), Some((name.to_owned(), 4711)));
        }
        for bad in ["", "12 (x", "12 (x) S 1 2", "(x) S"] {
            assert_eq!(parse_stat(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_thread_is_listed_moved_and_forgotten() {
        alone!();
        let (say, hear) = channel::<i32>();
        let (end, wait) = channel::<()>();
        let thread = std::thread::Builder::new().name("bvk-here".into()).spawn(move || {
            say.send(own_id()).unwrap();
            wait.recv().unwrap_err();
            cpus::of_this_thread()
        });
        let id = hear.recv().unwrap();
        let found = list().into_iter().find(|thread| thread.id == id).unwrap();
        assert!(list_of(std::process::id()).unwrap().contains(&found) && list_of(u32::MAX).is_err());
        assert_eq!(found.name, "bvk-here");
        assert_eq!(found.cpus, cpus::of_this_thread());
        assert!(found.started > 0);
        assert_eq!(role(&found, own_id()), Role::Bivouac);
        assert!(count().unwrap() >= 2);
        let one = Cpus::from([*found.cpus.last().unwrap()]);
        set(id, &one).unwrap();
        assert_eq!(list().into_iter().find(|thread| thread.id == id).unwrap().cpus, one);
        assert!(set(id, &Cpus::new()).is_err());
        drop(end);
        assert_eq!(thread.unwrap().join().unwrap(), one);
        // A thread that has been joined may still be listed for a moment.
        wait_until("it has ended", || !list().iter().any(|thread| thread.id == id));
        assert!(set(id, &one).is_err() && set(0, &one).is_err());
        assert!(list().iter().any(|thread| thread.id == own_id()));
    }

    #[test]
    fn the_application_has_the_cpus_of_all_of_its_threads() {
        alone!();
        let before = cpus::of_this_thread();
        let first = Cpus::from([*before.first().unwrap()]);
        let all = cpus_of_application();
        assert!(all.is_superset(&before), "{all:?} of {before:?}");
        let (end, wait) = channel::<()>();
        let (say, hear) = channel();
        let free = std::thread::spawn(move || wait.recv().unwrap_err());
        let bound = std::thread::Builder::new().name("bvk-bound".into()).spawn(move || {
            cpus::run_on(&first);
            say.send((cpus_of_application(), first)).unwrap();
        });
        let (found, first) = hear.recv().unwrap();
        assert!(found.is_superset(&before) && first.is_subset(&found), "not only the asking thread's");
        bound.unwrap().join().unwrap();
        drop(end);
        free.join().unwrap();
    }

    #[test]
    fn threads_of_one_name_are_told_apart_by_age() {
        let thread = |id, name: &str| Thread { id, name: name.into(), started: 0, cpus: Cpus::from([id as usize]) };
        let threads = [thread(5, "app"), thread(6, "app"), thread(7, "bvk-comm"), thread(8, "app")];
        let places = places(&threads, 6);
        let short: Vec<_> = places.iter().map(|place| (place.role, place.order)).collect();
        assert_eq!(short, [(Role::Other, 0), (Role::Main, 0), (Role::Bivouac, 0), (Role::Other, 1)]);
        assert_eq!(places[3].cpus, Cpus::from([8]));
    }
}
