//! Live processes of this node, in the form of a checkpoint's ranks: threads and masks, and the nodes of their memory.
#![forbid(unsafe_code)]

use super::gather::{Placed, Snapshot};
use crate::ending::Problems;
use bivouac_core::affinity::machine::{Machine, NODES_MAX};
use bivouac_core::affinity::pages::{PAGE_BYTES, PageMap, Run};
use bivouac_core::affinity::record::{Record, RegionPlace};
use bivouac_core::affinity::{given, threads};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// The name that stands for the memory of a process: nobody can see from outside which part of it is a region.
pub const MEMORY: &str = "anonymous memory";

/// A process as it is named on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// The rank that the process is, if the user says so.
    rank: Option<u32>,
    pid: u32,
}

impl FromStr for Process {
    type Err = String;

    fn from_str(text: &str) -> Result<Process, String> {
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| format!("{text:?} is not a number"));
        match text.split_once('=') {
            Some((rank, pid)) => Ok(Process { rank: Some(number(rank)?), pid: number(pid)? }),
            None => Ok(Process { rank: None, pid: number(text)? }),
        }
    }
}

/// The state of these processes. With `ranks`, those to which the user gave no rank take these ranks, in order.
pub fn snapshot(processes: &[Process], ranks: Option<&[u32]>, problems: &mut Problems) -> Snapshot {
    let mut snapshot = Snapshot { is_live: true, ..Snapshot::new("processes of this machine".to_owned()) };
    let numbers = numbers(processes, ranks);
    let mut seen = BTreeSet::new();
    for (process, number) in processes.iter().zip(numbers) {
        let Some(number) = number.filter(|number| seen.insert(*number)) else {
            problems.add(format!(
                "process {} is not a rank of the checkpoint, or is one that is already there",
                process.pid
            ));
            continue;
        };
        match look(process.pid, problems) {
            Ok((record, bytes)) => {
                snapshot.ranks.push(Placed { number, process: Some(process.pid), record, bytes });
            }
            Err(problem) => problems.add(problem),
        }
    }
    snapshot.ranks.sort_by_key(|placed| placed.number);
    snapshot
}

/// The number of each process: its rank or, without `ranks`, its process id if the user gave no rank.
fn numbers(processes: &[Process], ranks: Option<&[u32]>) -> Vec<Option<u32>> {
    let named: BTreeSet<u32> = processes.iter().filter_map(|process| process.rank).collect();
    let mut left = ranks.unwrap_or_default().iter().copied().filter(|rank| !named.contains(rank));
    let number = |process: &Process| match (process.rank, ranks) {
        (Some(rank), Some(ranks)) => Some(rank).filter(|rank| ranks.contains(rank)),
        (Some(rank), None) => Some(rank),
        (None, Some(_)) => left.next(),
        (None, None) => Some(process.pid),
    };
    processes.iter().map(number).collect()
}

/// Examines one process. If its memory is hidden, this is a problem, but not an error.
fn look(pid: u32, problems: &mut Problems) -> Result<(Record, BTreeMap<String, u64>), String> {
    let unknown = |error: String| format!("cannot look at process {pid}: {error}");
    let threads = threads::list_of(pid).map_err(|error| unknown(error.to_string()))?;
    if threads.is_empty() {
        return Err(unknown("it has ended".to_owned()));
    }
    let main = i32::try_from(pid).map_err(|error| unknown(error.to_string()))?;
    let mut record = Record {
        machine: Machine::here().clone(),
        given: given::given_to(pid, threads.iter().map(|thread| thread.cpus.clone())),
        threads: threads::places(&threads, main),
        ..Record::default()
    };
    let mut bytes = BTreeMap::new();
    match std::fs::read_to_string(format!("/proc/{pid}/numa_maps")) {
        Ok(text) => {
            let nodes = parse_numa_maps(&text);
            let runs = nodes.iter().map(|(node, bytes)| Run { pages: bytes.div_ceil(PAGE_BYTES), node: Some(*node) });
            let place = RegionPlace::Host { pages: PageMap::from_runs(0, runs), age_ms: 0, is_whole: true };
            record.regions.push((MEMORY.to_owned(), place));
            bytes.insert(MEMORY.to_owned(), nodes.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes)));
        }
        Err(error) => problems.add(format!("the memory of process {pid} cannot be seen: {error}")),
    }
    Ok((record, bytes))
}

/// The bytes of memory on each node that are not backed by a file, from the text of `/proc/PID/numa_maps`. That text
/// has lines such as `7f0a00000000 default anon=512 dirty=512 N0=256 N1=256 kernelpagesize_kB=4`.
fn parse_numa_maps(text: &str) -> BTreeMap<u32, u64> {
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.contains(" file=")) {
        let value = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
        let page = value("kernelpagesize_kB=").map_or(PAGE_BYTES, |kilobytes| kilobytes.saturating_mul(1024));
        for (node, pages) in line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('=')) {
            if let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>())
                && (node as usize) < NODES_MAX
            {
                let sum = nodes.entry(node).or_default();
                *sum = sum.saturating_add(pages.saturating_mul(page));
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_file_is_counted_by_node() {
        let text = "5581 default file=/usr/bin/cat mapped=2 N0=2 kernelpagesize_kB=4\n\
                    5582 default heap anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4\n\
                    7f00 bind:1 anon=2 dirty=2 huge N1=2 kernelpagesize_kB=2048\n\
                    7f01 default\nrubbish N9999999=1 N=2 Nx=3 N1=y\n";
        assert_eq!(parse_numa_maps(text), BTreeMap::from([(0, 8192), (1, 4096 + (4 << 20))]));
    }

    #[test]
    fn processes_are_ranks_in_order_unless_it_is_said_otherwise() {
        let process = |text: &str| text.parse::<Process>().expect("a process");
        let some = ["7", "3=8", "9"].map(process);
        assert_eq!(numbers(&some, None), [Some(7), Some(3), Some(9)]);
        assert_eq!(numbers(&some, Some(&[0, 2, 3, 4])), [Some(0), Some(3), Some(2)]);
        assert_eq!(numbers(&some, Some(&[0])), [Some(0), None, None]);
        assert!(["", "x", "1=", "=2", "-1", "1=2=3"].iter().all(|text| text.parse::<Process>().is_err()));
    }

    #[test]
    fn this_process_is_seen() {
        let mut problems = Problems::default();
        let (record, _) = look(std::process::id(), &mut problems).expect("it is here");
        record.check().expect("sound");
        assert!(record.threads.iter().any(|thread| !thread.cpus.is_empty() && thread.cpus.is_subset(&record.given)));
        assert!(look(u32::MAX, &mut problems).is_err_and(|error| error.contains("cannot look at process")));
    }
}
