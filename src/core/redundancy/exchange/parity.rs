//! The protocol of sets with parity: the chunks of all shards are sent to the first parity member of their stripe, which adds up all
//! parities and passes on all but the first.
#![forbid(unsafe_code)]

use super::super::code::{Code, Factor, add_to_all};
use super::super::stripes::SetInfo;
use super::{CHUNK, CREDIT, Exchange, Outgoing, OutputState, PARITY};
use crate::base::Digest;
use crate::base::digest::{copy_digest, store_fence};
use crate::base::sync::{Lock, Order};
use crate::base::units::page_ceil;
use crate::comm::{SharedBytes, Slice};
use crate::format::Content;
use crate::format::shard::{Layout, encode_head};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The parities of one segment, while chunks are being added.
pub(super) struct Sum {
    parities: Vec<Vec<u8>>,
    missing: usize,
}

/// The code of a set, in the form of factors.
pub(super) struct CodeInUse {
    /// `factors[data][parity]`.
    factors: Vec<Vec<Factor>>,
}

/// A buffer that returns to its pool when the message layer releases it.
struct Pooled {
    bytes: Vec<u8>,
    pool: Arc<Lock<Vec<Vec<u8>>>>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.lock().push(std::mem::take(&mut self.bytes));
    }
}

impl Exchange {
    /// The chunks to send to the first parity members. Each chunk has a different receiver.
    pub(super) fn plan_chunks(&self, set: &SetInfo) -> Vec<VecDeque<Outgoing>> {
        let mut plan = vec![VecDeque::new(); set.data() as usize];
        let Some(me) = set.place(self.rank()) else { return plan };
        for segment in 0..set.chunk().div_ceil(self.segment) {
            for data in 0..set.data() {
                let range = set.shard_range(me, data, self.segment_range(set, segment));
                if range.is_empty() {
                    continue;
                }
                let stripe = set.place_of_chunk(me, data).stripe;
                let to = set.members[set.parity_member(stripe, 0)].0;
                let label = [CHUNK, self.spec.operation, segment, u64::from(data), 0, 0];
                plan[data as usize].push_back(Outgoing { to, label, range });
            }
        }
        plan
    }

    /// The range of a chunk that a segment covers.
    pub(super) fn segment_range(&self, set: &SetInfo, segment: u64) -> Range<u64> {
        let start = segment * self.segment;
        start..(start + self.segment).min(set.chunk())
    }

    pub(super) fn begin_parity(
        &self,
        state: &mut OutputState,
        set: &SetInfo,
        layout: Layout,
        encoded: &[u8],
    ) -> Result<(), String> {
        let header = &self.header;
        let mut part_header =
            layout.header(header.key, header.agreement, header.group_size, header.rank, header.origin);
        part_header.content = Content::Parity;
        let mut digests = vec![Digest::default(); layout.block_count as usize];
        let slot = state.slot.as_mut().ok_or("the slot is gone")?.as_mut_slice();
        let region = &layout.meta.regions[0];
        let start = (layout.body_offset + region.offset) as usize;
        let body = &mut slot[start..start + page_ceil(region.bytes) as usize];
        body.fill(0);
        let block = layout.block_size as usize;
        for (index, (from, to)) in encoded.chunks(block).zip(body.chunks_mut(block)).enumerate() {
            digests[index] = copy_digest(from, &mut to[..from.len()]);
        }
        state.left = u64::from(set.parity) * set.chunk().div_ceil(self.segment);
        state.layout = Some((layout, part_header, digests));
        Ok(())
    }

    /// The number of shards that extend into a segment of the stripe whose first parity member is this rank.
    pub(super) fn contributions(&self, set: &SetInfo, me: usize, segment: u64) -> usize {
        let range = self.segment_range(set, segment);
        let reaches = |data: &u32| !set.shard_range(set.data_member(me, *data), *data, range.clone()).is_empty();
        (0..set.data()).filter(reaches).count()
    }

    pub(super) fn add_chunk(&self, segment: u64, data: u32, mut bytes: Vec<u8>) -> Result<(), String> {
        let set = self.lock().set.clone().ok_or("a chunk came before the set was known")?;
        let me = set.place(self.rank()).ok_or("this rank is not in its set")?;
        let code = self.code.as_ref().ok_or("a chunk came to a rank without parity")?;
        let range = self.segment_range(&set, segment);
        let length = (range.end.saturating_sub(range.start)) as usize;
        if data >= set.data() || range.start >= set.chunk() {
            return Err("a chunk arrived that belongs nowhere".into());
        }
        let expected = set.shard_range(set.data_member(me, data), data, range);
        if expected.end - expected.start != bytes.len() as u64 {
            return Err("a chunk arrived with another length than planned".into());
        }
        let entry = {
            let mut inner = self.lock();
            let missing = self.contributions(&set, me, segment);
            inner
                .sums
                .entry(segment)
                .or_insert_with(|| Arc::new(Lock::at(Order::Outer, Sum { parities: Vec::new(), missing })))
                .clone()
        };
        let mut sum = entry.lock();
        let mut spent = None;
        if sum.parities.is_empty() && set.parity == 1 {
            // With a single parity, which is a plain sum, the first chunk becomes the sum.
            bytes.resize(length, 0);
            sum.parities.push(bytes);
        } else {
            if sum.parities.is_empty() {
                sum.parities = (0..set.parity).map(|_| self.zeroed(length)).collect();
            }
            let mut targets: Vec<&mut [u8]> =
                sum.parities.iter_mut().map(|parity| &mut parity[..bytes.len()]).collect();
            code.add(data, &bytes, &mut targets);
            spent = Some(bytes);
        }
        sum.missing = sum.missing.saturating_sub(1);
        let parities = if sum.missing == 0 { Some(std::mem::take(&mut sum.parities)) } else { None };
        drop(sum);
        self.lock().spent.extend(spent);
        match parities {
            Some(parities) => self.end_segment(&set, me, segment, parities),
            None => Ok(()),
        }
    }

    pub(super) fn add_zero(&self, segment: u64) -> Result<(), String> {
        let set = self.lock().set.clone().ok_or("the set is not known")?;
        let me = set.place(self.rank()).ok_or("this rank is not in its set")?;
        let range = self.segment_range(&set, segment);
        let parities = (0..set.parity).map(|_| self.zeroed((range.end - range.start) as usize)).collect();
        self.end_segment(&set, me, segment, parities)
    }

    pub(super) fn zeroed(&self, length: usize) -> Vec<u8> {
        let kept = self.buffers.lock().pop();
        let mut buffer = kept.unwrap_or_default();
        buffer.clear();
        buffer.resize(length, 0);
        buffer
    }

    /// Ends a segment whose chunks have all been added: keeps the first parity, passes on the others, and lets the
    /// members continue.
    pub(super) fn end_segment(
        &self,
        set: &SetInfo,
        me: usize,
        segment: u64,
        parities: Vec<Vec<u8>>,
    ) -> Result<(), String> {
        let operation = self.spec.operation;
        let mut parcels = Vec::new();
        for (parity, bytes) in (0u32..).zip(parities) {
            if parity == 0 {
                self.store_parity(0, segment, &bytes)?;
                if set.parity == 1 {
                    self.lock().spent.push(bytes);
                } else {
                    self.buffers.lock().push(bytes);
                }
                continue;
            }
            let length = bytes.len();
            let shared: SharedBytes = Arc::new(Pooled { bytes, pool: self.buffers.clone() });
            let slice = Slice::new(shared, 0..length).unwrap_or_else(Slice::empty);
            let to = set.members[set.parity_member(me, parity)].0;
            parcels.push((to, [PARITY, operation, segment, u64::from(parity), 0, 0], slice));
        }
        let mut inner = self.lock();
        inner.sums.remove(&segment);
        inner.segments_done += 1;
        let credit = [CREDIT, operation, inner.segments_done, 0, 0, 0];
        for data in 0..set.data() {
            parcels.push((set.members[set.data_member(me, data)].0, credit, Slice::empty()));
        }
        inner.out.extend(parcels);
        Ok(())
    }

    /// Stores a finished segment of a parity in the slot.
    pub(super) fn store_parity(&self, parity: u32, segment: u64, bytes: &[u8]) -> Result<(), String> {
        let (output, set) = {
            let inner = self.lock();
            let output = inner.outputs.first().cloned().ok_or("the exchange has ended")?;
            (output, inner.set.clone().ok_or("the set is not known")?)
        };
        let range = self.segment_range(&set, segment);
        if parity >= set.parity || range.start >= set.chunk() || range.end - range.start != bytes.len() as u64 {
            return Err("a parity came that belongs nowhere".into());
        }
        let mut guard = output.state.lock();
        let OutputState { slot, layout, left, .. } = &mut *guard;
        let (Some(memory), Some((layout, header, digests))) = (slot.as_mut(), layout.as_mut()) else {
            return Err("a parity came before there was room for it".into());
        };
        let region = &layout.meta.regions[1 + parity as usize];
        let start = (layout.body_offset + region.offset + range.start) as usize;
        let target = &mut memory.as_mut_slice()[start..start + bytes.len()];
        let block = layout.block_size as usize;
        let first = (region.first_block + range.start / layout.block_size) as usize;
        for (index, (from, to)) in bytes.chunks(block).zip(target.chunks_mut(block)).enumerate() {
            digests[first + index] = copy_digest(from, to);
        }
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        encode_head(layout, header, digests, &mut memory.as_mut_slice()[..layout.body_offset as usize]);
        store_fence();
        let sealed = self.seal(&mut guard)?;
        drop(guard);
        self.lock().finished.push(sealed);
        Ok(())
    }
}

impl CodeInUse {
    pub(super) fn new(members: u32, parity: u32) -> Result<CodeInUse, String> {
        let data = members.checked_sub(parity).filter(|data| *data > 0).ok_or("the set is smaller than its parity")?;
        let code = Code::new(data, parity).ok_or("the set has more members than a code can have")?;
        let row = |d: u32| (0..parity).map(|p| Factor::new(code.coefficient(p, d))).collect();
        Ok(CodeInUse { factors: (0..data).map(row).collect() })
    }

    fn add(&self, data: u32, bytes: &[u8], targets: &mut [&mut [u8]]) {
        add_to_all(&self.factors[data as usize], bytes, targets);
    }
}
