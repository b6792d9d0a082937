//! Rebuilds a lost shard from what is left of its set.
//!
//! [`Rebuilt`] reads like a file: when a range is read, it adds up the other members' chunks and parities that yield the
//! range. Each input checks its bytes against its own digests. An input that finds damage is left out of that segment,
//! and another combination is used if enough inputs are left. The reader checks the result against the digests of the
//! lost shard itself, which are in its head and are rebuilt with it: parity alone is never trusted.

#![forbid(unsafe_code)]

use super::code::{Code, Factor, add_to_all};
use super::stripes::SetInfo;
use crate::base::log;
use crate::base::sync::{Lock, Order};
use crate::base::units::KIB;
use crate::tier::storage::ReadFile;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The number of bytes per unit of work: one read of each input.
const UNIT: u64 = 512 * KIB;
/// The number of units that are requested ahead of the current one.
const AHEAD: u64 = 4;

/// The remaining data of one member.
#[derive(Clone, Default)]
pub struct Input {
    /// Its shard. Reading checks the blocks that are touched.
    pub shard: Option<Arc<dyn ReadFile>>,
    /// Its parity part, and the start of each of its parities.
    pub part: Option<(Arc<dyn ReadFile>, Vec<u64>)>,
}

/// The shard of one lost member.
pub struct Rebuilt {
    set: SetInfo,
    code: Code,
    lost: usize,
    inputs: Vec<Input>,
    progress: Lock<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The most recently computed unit, and its bytes.
    unit: Option<u64>,
    bytes: Vec<u8>,
    input: Vec<u8>,
    /// Units before this one have been requested.
    asked: u64,
    repaired: u64,
    /// Members whose shard (false) or part (true) did not answer, and for which the reader does not wait again.
    silent: BTreeSet<(usize, bool)>,
}

impl Rebuilt {
    /// The shard of member `lost`; `inputs` has an entry for each member.
    ///
    /// # Errors
    /// The reason, in words, if too little is left or the numbers do not fit.
    pub fn new(set: SetInfo, lost: usize, mut inputs: Vec<Input>) -> Result<Rebuilt, String> {
        if !set.is_sound() || lost >= set.size() || inputs.len() != set.size() {
            return Err("the description of the set is invalid".into());
        }
        let code = Code::new(set.data(), set.parity).ok_or("the set has more members than a code can have")?;
        inputs[lost].shard = None;
        let rebuilt = Rebuilt { set, code, lost, inputs, progress: Lock::at(Order::Rebuild, Progress::default()) };
        for chunk in 0..rebuilt.set.data() {
            let stripe = rebuilt.set.place_of_chunk(lost, chunk).stripe;
            let present = rebuilt.present(stripe, &[]);
            if rebuilt.code.recovery(&present, chunk).is_none() {
                return Err(format!(
                    "only {} of the {} members of its set that are needed are left",
                    present.len(),
                    rebuilt.set.data()
                ));
            }
        }
        Ok(rebuilt)
    }

    /// The number of segments of inputs that were found damaged and were not used.
    pub fn repaired(&self) -> u64 {
        self.progress.lock().repaired
    }

    /// The code members of a stripe that exist, except those in `without`.
    fn present(&self, stripe: usize, without: &[u32]) -> Vec<u32> {
        let shard = |data: &u32| self.inputs[self.set.data_member(stripe, *data)].shard.is_some();
        let part = |parity: &u32| self.inputs[self.set.parity_member(stripe, *parity)].part.is_some();
        let data = (0..self.set.data()).filter(shard);
        let parity = (0..self.set.parity).filter(part).map(|parity| self.set.data() + parity);
        data.chain(parity).filter(|member| !without.contains(member)).collect()
    }

    /// The place in the set of a code member of a stripe, and whether the member comes from that place's part.
    fn place_of(&self, stripe: usize, member: u32) -> (usize, bool) {
        match member.checked_sub(self.set.data()) {
            None => (self.set.data_member(stripe, member), false),
            Some(parity) => (self.set.parity_member(stripe, parity), true),
        }
    }

    /// The code members of a stripe that have stopped answering.
    fn silent(&self, stripe: usize, progress: &Progress) -> Vec<u32> {
        let is_silent = |member: &u32| progress.silent.contains(&self.place_of(stripe, *member));
        (0..self.set.size() as u32).filter(is_silent).collect()
    }

    /// The file and the range that hold a code member's bytes for a range of the chunk.
    fn input(&self, stripe: usize, member: u32, range: &Range<u64>) -> Option<(&Arc<dyn ReadFile>, Range<u64>)> {
        let (place, is_part) = self.place_of(stripe, member);
        if !is_part {
            let file = self.inputs[place].shard.as_ref()?;
            return Some((file, self.set.shard_range(place, member, range.clone())));
        }
        let parity = member - self.set.data();
        let (file, offsets) = self.inputs[place].part.as_ref()?;
        let start = *offsets.get(parity as usize)?;
        Some((file, start + range.start..start + range.end))
    }

    fn units_per_chunk(&self) -> u64 {
        self.set.chunk().div_ceil(UNIT)
    }

    /// The chunk of a unit, and its range within the chunk.
    fn unit(&self, unit: u64) -> (u32, Range<u64>) {
        let start = unit % self.units_per_chunk() * UNIT;
        ((unit / self.units_per_chunk()) as u32, start..(start + UNIT).min(self.set.chunk()))
    }

    /// Requests everything that a unit needs.
    fn ask(&self, unit: u64, progress: &Progress) {
        let (chunk, range) = self.unit(unit);
        if chunk >= self.set.data() || self.set.shard_range(self.lost, chunk, range.clone()).is_empty() {
            return;
        }
        let stripe = self.set.place_of_chunk(self.lost, chunk).stripe;
        let present = self.present(stripe, &self.silent(stripe, progress));
        for (member, _) in self.code.recovery(&present, chunk).unwrap_or_default() {
            if let Some((file, range)) = self.input(stripe, member, &range) {
                file.will_read(range);
            }
        }
    }

    fn make(&self, unit: u64, progress: &mut Progress) -> io::Result<()> {
        let (chunk, range) = self.unit(unit);
        let stripe = self.set.place_of_chunk(self.lost, chunk).stripe;
        let mut without = self.silent(stripe, progress);
        let mut first_error = None;
        progress.unit = None;
        'again: loop {
            let present = self.present(stripe, &without);
            let Some(sum) = self.code.recovery(&present, chunk) else {
                let why = first_error.map_or_else(String::new, |error: io::Error| format!(": {error}"));
                return Err(io::Error::other(format!("too little of the set is left{why}")));
            };
            progress.bytes.clear();
            progress.bytes.resize((range.end - range.start) as usize, 0);
            for (member, factor) in sum {
                let Some((file, range)) = self.input(stripe, member, &range) else {
                    without.push(member);
                    continue 'again;
                };
                progress.input.resize((range.end - range.start) as usize, 0);
                if let Err(error) = file.read_at(range.start, &mut progress.input) {
                    log::warn!("event=set-member-unusable stripe={stripe} member={member} error={error}");
                    match error.kind() {
                        io::ErrorKind::TimedOut => _ = progress.silent.insert(self.place_of(stripe, member)),
                        _ => progress.repaired += 1,
                    }
                    first_error.get_or_insert(error);
                    without.push(member);
                    continue 'again;
                }
                let length = progress.input.len();
                add_to_all(&[Factor::new(factor)], &progress.input, &mut [&mut progress.bytes[..length]]);
            }
            progress.unit = Some(unit);
            return Ok(());
        }
    }
}

impl ReadFile for Rebuilt {
    /// The application's thread requests data ahead of time itself, and only that thread may be able to wait for the
    /// answers.
    fn readers(&self) -> usize {
        0
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.set.members[self.lost].1)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let length = self.set.members[self.lost].1;
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut progress = self.progress.lock();
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let (chunk, within) = (at / self.set.chunk(), at % self.set.chunk());
            let unit = chunk * self.units_per_chunk() + within / UNIT;
            if progress.unit != Some(unit) {
                // After a step back, or far ahead, the requests start anew.
                let from = if (unit..=unit + AHEAD).contains(&progress.asked) { progress.asked } else { unit };
                (from..=unit + AHEAD).for_each(|unit| self.ask(unit, &progress));
                progress.asked = unit + AHEAD + 1;
                self.make(unit, &mut progress)?;
            }
            let start = (within % UNIT) as usize;
            let part = (progress.bytes.len() - start).min(buffer.len() - done);
            buffer[done..done + part].copy_from_slice(&progress.bytes[start..start + part]);
            done += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rank;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A file that gives zeros, or does not answer.
    struct Zeros {
        is_silent: bool,
        reads: AtomicU64,
    }

    impl ReadFile for Zeros {
        fn len(&self) -> io::Result<u64> {
            Ok(u64::MAX)
        }

        fn read_at(&self, _offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if self.is_silent {
                return Err(io::ErrorKind::TimedOut.into());
            }
            buffer.fill(0);
            Ok(())
        }
    }

    #[test]
    fn a_member_that_does_not_answer_is_asked_once() {
        let length = 16 * UNIT;
        let set = SetInfo { parity: 2, members: (0..5).map(|rank| (Rank(rank), length)).collect() };
        let file = |is_silent| Arc::new(Zeros { is_silent, reads: AtomicU64::new(0) });
        let silent = [file(true), file(true)];
        let inputs = (0..5).map(|place| match place {
            1 => Input { shard: Some(silent[0].clone()), part: Some((silent[1].clone(), vec![0, length])) },
            _ => Input { shard: Some(file(false)), part: Some((file(false), vec![0, length])) },
        });
        let rebuilt = Rebuilt::new(set, 0, inputs.collect()).expect("enough is left");
        let mut buffer = vec![1; length as usize];
        rebuilt.read_at(0, &mut buffer).expect("rebuilt without it");
        assert!(buffer.iter().all(|byte| *byte == 0));
        let reads = silent.map(|file| file.reads.load(Ordering::Relaxed));
        assert!(reads[0] == 1 && reads[1] <= 1, "{reads:?}");
        assert_eq!(rebuilt.repaired(), 0);
    }
}
