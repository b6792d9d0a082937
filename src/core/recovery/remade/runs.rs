//! Runs of elements: what a rank sends and receives of a region that is not made of boxes, but of lists of elements.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::packet::{self, Packet};
pub(super) use super::packing::Ways;
use super::packing::{Sink, Way};
use super::reading::{Parcels, Through};
use super::target::Target;
use super::together::Together;
use crate::base::Rank;
pub(super) use crate::decomposition::run::Run;
use std::collections::BTreeMap;

/// The runs of each shard, in the order in which they begin in its region. Some may have elements in common.
pub(super) struct Runs<'p> {
    pub by_shard: &'p BTreeMap<Rank, Vec<Run>>,
    /// The size of an element in bytes.
    pub size: u64,
}

impl<'p> Parcels<'p> for Runs<'p> {
    type Way = RunWay;

    fn of_shard(
        &self,
        access: &mut ShardAccess,
        together: &Together<'_>,
    ) -> Result<Option<Through<'p, RunWay>>, LoadError> {
        let (shard, name, size) = (access.shard(), together.region, self.size);
        let Some(runs) = self.by_shard.get(&shard) else { return Ok(None) };
        let region = access.source(name)?.head().region(name).cloned().ok_or_else(|| access.missing(name))?;
        match ways(runs, size, region.bytes) {
            Some(ways) => Ok(Some((region, ways))),
            None => {
                let bytes = region.bytes;
                let why = format!("it was asked for elements that shard {shard} does not have in its {bytes} bytes");
                Err(together.of_this_rank(why))
            }
        }
    }
}

/// The ways through a region of `length` bytes. `None` if a run is not inside the region, begins before the previous run, or ends beyond
/// any possible memory.
fn ways(runs: &[Run], size: u64, length: u64) -> Option<Ways<'_, RunWay>> {
    let is_inside = |run: &Run| {
        let end = run.at.checked_add(run.count.into()).and_then(|end| end.checked_mul(size));
        let target = run.target.checked_add(run.count.into()).and_then(|end| end.checked_mul(size));
        end.is_some_and(|end| end <= length) && target.is_some()
    };
    let is_fit = runs.is_sorted_by_key(|run| run.at) && runs.iter().all(is_inside);
    let some = runs.iter().filter(|run| run.count > 0);
    let ways = some.map(move |run| RunWay::new(*run, size as usize));
    is_fit.then(|| Box::new(ways) as Ways<'_, RunWay>)
}

/// A run on its way.
pub(super) struct RunWay {
    run: Run,
    /// The size of an element in bytes.
    size: usize,
}

impl RunWay {
    /// The way of a run whose elements have `size` bytes.
    pub fn new(run: Run, size: usize) -> RunWay {
        RunWay { run, size }
    }

    /// The place of the byte with this number in the memory of its rank.
    pub fn target(&self, at: usize) -> usize {
        self.run.target as usize * self.size + at
    }
}

impl Way for RunWay {
    fn to(&self) -> Rank {
        self.run.to
    }

    fn bytes(&self) -> usize {
        self.run.count as usize * self.size
    }

    fn place_of(&self, at: usize) -> usize {
        self.run.at as usize * self.size + at
    }

    fn before(&self, place: usize) -> usize {
        (place - self.place_of(0)).min(self.bytes())
    }

    fn each(&self, from: usize, to: usize, mut take: impl FnMut(usize, usize)) {
        if from < to {
            take(self.place_of(from), to - from);
        }
    }

    fn begin<'b>(&self, packet: &'b mut Packet, from: usize, count: usize) -> &'b mut Vec<u8> {
        packet.begin_run(self.target(from), count)
    }
}

/// For a target with one box without a margin, whose elements lie one after the other.
impl Sink<RunWay> for Target<'_> {
    fn take(&mut self, portions: &[u8]) -> Result<(), String> {
        packet::unpack_runs(portions, |place, bytes| self.put_at(place, bytes))
    }

    fn put(&mut self, way: &RunWay, from: usize, bytes: &[u8]) -> bool {
        self.put_at(way.target(from), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::packing::Packing;
    use super::*;
    use crate::decomposition::Own;
    use proptest::prelude::*;

    const HERE: Rank = Rank(1);

    /// Packs runs of a region that is read in steps of whole blocks, and puts the packets into the memories of all ranks. Returns how many
    /// bytes these memories got.
    fn carried(
        region: &[u8],
        runs: &[Run],
        size: u64,
        (block, limit): (usize, usize),
        memories: &mut [Vec<u8>],
    ) -> u64 {
        let by_shard = BTreeMap::from([(Rank(7), runs.to_vec())]);
        let parcels = Runs { by_shard: &by_shard, size };
        let lines: Vec<Own> = memories.iter().map(|memory| Own::line(memory.len() as u64)).collect();
        let targets = lines.iter().zip(memories).map(|(line, memory)| Target::new(line, vec![memory], 1));
        let mut targets: Vec<Target<'_>> = targets.collect();
        let mut packing = Packing::new(HERE, Box::new(Vec::new));
        let through = ways(&parcels.by_shard[&Rank(7)], parcels.size, region.len() as u64);
        packing.begin(through.expect("inside"));
        while let Some(first) = packing.first() {
            let start = first - first % block;
            let bytes = &region[start..(start + block).min(region.len())];
            let here = &mut targets[HERE.0 as usize];
            let end = start + bytes.len();
            let guess = packing.next_from(end);
            assert!(
                packing.pack((start, bytes), &|_| limit, &mut |way, from, bytes| Sink::put(here, way, from, bytes))
            );
            // Reading ahead begins where something is wanted, or before that.
            assert!(packing.first().is_none_or(|first| guess.is_some_and(|guess| (end..=first).contains(&guess))));
        }
        packing.finish();
        while let Some((to, packet)) = packing.next() {
            assert_ne!(to, HERE, "what is for this rank goes into no packet");
            let portions = packet::checked(&packet[1..]).expect("whole");
            Sink::<RunWay>::take(&mut targets[to.0 as usize], portions).expect("inside");
        }
        targets.into_iter().map(|target| target.finish().expect("the host has no failures")).sum()
    }

    proptest! {
        #[test]
        fn runs_come_to_their_places_however_blocks_and_packets_cut_them(
            wanted in proptest::collection::vec((0u64..300, 0u32..40, 0u32..3), 0..60),
            size in 1u64..20,
            block in 4usize..9,
            limit in 1usize..600,
        ) {
            let region: Vec<u8> = (0..340 * size).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut ends = [0u64; 3];
            let mut runs: Vec<Run> = wanted.into_iter().map(|(at, count, to)| {
                // Each run has its own place; one element is left free between two runs.
                let target = ends[to as usize];
                ends[to as usize] += u64::from(count) + 1;
                Run { at, count, to: Rank(to), target }
            }).collect();
            runs.sort_by_key(|run| run.at);
            let mut memories: Vec<Vec<u8>> = ends.iter().map(|end| vec![0xee; (end * size) as usize]).collect();
            let mut expected = memories.clone();
            for run in &runs {
                let bytes = (u64::from(run.count) * size) as usize;
                expected[run.to.0 as usize][(run.target * size) as usize..][..bytes]
                    .copy_from_slice(&region[(run.at * size) as usize..][..bytes]);
            }
            let delivered = carried(&region, &runs, size, (1 << block, limit), &mut memories);
            prop_assert_eq!(memories, expected);
            prop_assert_eq!(delivered, runs.iter().map(|run| u64::from(run.count) * size).sum::<u64>());
        }
    }

    #[test]
    fn runs_that_cannot_be_are_refused() {
        let run = |at, count, target| Run { at, count, to: Rank(0), target };
        assert!(ways(&[run(0, 10, 0), run(0, 2, 0)], 8, 80).is_some());
        for wrong in
            [run(3, 8, 0), run(u64::MAX, 1, 0), run(u64::MAX / 8, 2, 0), run(0, 1, u64::MAX), run(0, 1, 1 << 62)]
        {
            assert!(ways(&[wrong], 8, 80).is_none(), "{wrong:?}");
        }
        assert!(ways(&[run(2, 1, 0), run(1, 1, 0)], 8, 80).is_none(), "the order of the region");
        let mut memory = [0; 16];
        let line = Own::line(16);
        let mut target = Target::new(&line, vec![&mut memory], 1);
        let mut put = |place: u64, count| {
            let way = RunWay::new(Run { at: 0, count, to: HERE, target: place }, 1);
            Sink::put(&mut target, &way, 0, &vec![1; count as usize])
        };
        assert!(put(8, 8) && !put(9, 8) && !put(u64::MAX, 1));
        assert_eq!(target.finish().expect("the host has no failures"), 8);
    }

    #[test]
    fn a_run_costs_two_bytes_behind_the_one_that_it_follows() {
        let runs: Vec<Run> = (0..1000).map(|at| Run { at, count: 1, to: Rank(0), target: at }).collect();
        let mut packing = Packing::new(HERE, Box::new(Vec::new));
        packing.begin(ways(&runs, 8, 8000).expect("inside"));
        assert!(packing.pack((0, &[0; 8000]), &|_| 1 << 20, &mut |_, _, _| false));
        packing.finish();
        let (_, packet) = packing.next().expect("one");
        assert!(packet.len() <= 8000 + 2 * 1000 + 32, "{} bytes", packet.len());
    }
}
