//! A bit in the remaining data is wrong while a lost host's shards are rebuilt. The bit is found, repaired if the scheme has enough
//! redundancy left, and never restored.

use crate::bed::{Attempt, Hosts, random};
use crate::checks::{calm_digest, protected, restored_by_all};
use bivouac_core::base::rng::Rng;
use bivouac_core::format::ShardHeader;
use bivouac_core::format::shard::{Content, Head};
use bivouac_core::segment::OldSegment;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

/// The version that is protected everywhere when a host is killed.
const NEWEST: u64 = 7;

/// The data in which a bit is flipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// A rank's own shard, on the rank's host.
    Own { host: &'static str, rank: u32 },
    /// A copy of a rank's shard, on another host.
    Copy { rank: u32 },
    /// The parity that a rank keeps.
    Parity { host: &'static str, rank: u32 },
}

/// Flips one bit in the newest version of a target, in the shared memory of a host.
fn flip(hosts: &Hosts, target: Target, rng: &mut Rng) {
    let (on, rank, content): (&[&str], u32, Content) = match &target {
        Target::Own { host, rank } => (std::slice::from_ref(host), *rank, Content::Shard),
        Target::Copy { rank } => (&["node1", "node2", "node4"], *rank, Content::Shard),
        Target::Parity { host, rank } => (std::slice::from_ref(host), *rank, Content::Parity),
    };
    let mut hits = 0;
    for host in on {
        let directory = hosts.memory(host);
        for entry in fs::read_dir(&directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.starts_with("bivouac-") {
                continue;
            }
            let segment = OldSegment::open(&directory, &name).unwrap();
            for slot in segment.slots().iter().filter(|slot| slot.intact && slot.version == NEWEST) {
                let bytes = segment.bytes(slot).unwrap();
                let header = ShardHeader::decode(bytes).unwrap();
                if (header.content, header.rank.0) != (content, rank) {
                    continue;
                }
                let head = Head::decode(bytes).unwrap();
                let body = if content == Content::Shard { "main" } else { "parity.0" };
                let region = head.region(body).unwrap();
                let at = slot.offset + header.body_offset + region.offset + rng.below(region.bytes / 2);
                let file = OpenOptions::new().read(true).write(true).open(directory.join(&name)).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1 << rng.below(8)], at).unwrap();
                hits += 1;
            }
        }
    }
    assert_eq!(hits, 1, "{target:?}: not exactly one of that");
}

/// node3 (ranks 4 and 5) dies while a bit is wrong elsewhere. There is no local tier, and the global one is old. Returns the version that
/// all ranks restored, and their attempts.
fn host_dies_while_a_bit_is_wrong(scheme: &str, target: Target) -> Option<(u64, Vec<Attempt>)> {
    let hosts = Hosts::up(5)?;
    let mut rng = random();
    let mut job = protected(&hosts, scheme);
    job.set("BIVOUAC_LOCAL_ENABLED", "false");
    let args = ["--versions", "10", "--hold", "8", "--wait", "node-loss"];
    let mut run = job.supervise_worker("run", 5, &["--spares", "1"], &args);
    run.wait_for_hold(&job, NEWEST + 1);
    flip(&hosts, target, &mut rng);
    hosts.strike("node3");
    job.go(NEWEST + 1);
    run.finish();
    let last = job.last_attempts();
    let version = restored_by_all(&last).0;
    assert_eq!(job.digest(), calm_digest(10, 20_001));
    Some((version, last))
}

fn damaged(attempts: &[Attempt]) -> u64 {
    let count = |attempt: &Attempt| {
        ["memory", "local", "peers", "global"]
            .map(|tier| attempt.restart_counter(&format!("damaged.{tier}")))
            .iter()
            .sum::<u64>()
    };
    attempts.iter().map(count).sum()
}

#[test]
fn a_bit_of_a_surviving_member_is_found_and_repaired_by_rs() {
    let target = Target::Own { host: "node2", rank: 2 };
    let Some((version, last)) = host_dies_while_a_bit_is_wrong("rs(2,2)", target) else { return };
    assert_eq!(version, NEWEST, "rs(2,2) has redundancy left for it");
    assert!(damaged(&last) > 0, "nobody noticed");
}

#[test]
fn a_bit_of_the_parity_is_found_and_repaired_by_rs() {
    let target = Target::Parity { host: "node4", rank: 6 };
    let Some((version, _)) = host_dies_while_a_bit_is_wrong("rs(2,2)", target) else { return };
    assert_eq!(version, NEWEST, "rs(2,2) has redundancy left for it");
}

#[test]
fn a_bit_of_a_surviving_member_that_xor_cannot_repair_makes_all_ranks_take_an_older_version() {
    let target = Target::Own { host: "node2", rank: 2 };
    let Some((version, last)) = host_dies_while_a_bit_is_wrong("xor(4)", target) else { return };
    assert!(version < NEWEST, "version {version} cannot be whole");
    assert!(damaged(&last) > 0, "nobody noticed");
}

#[test]
fn a_bit_of_the_parity_that_xor_needs_makes_all_ranks_take_an_older_version() {
    let target = Target::Parity { host: "node4", rank: 6 };
    let Some((version, _)) = host_dies_while_a_bit_is_wrong("xor(4)", target) else { return };
    assert!(version < NEWEST, "version {version} cannot be whole");
}

#[test]
fn a_bit_of_the_only_copy_makes_all_ranks_take_an_older_version() {
    let Some((version, last)) = host_dies_while_a_bit_is_wrong("partner(1)", Target::Copy { rank: 4 }) else { return };
    assert!(version < NEWEST, "version {version} cannot be whole");
    assert!(damaged(&last) > 0, "nobody noticed");
}
