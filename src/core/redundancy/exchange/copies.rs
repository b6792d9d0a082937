//! The protocol of partners: each rank sends its shard to some ranks and keeps copies for others. It checks the digests of the
//! copies as they arrive.
#![forbid(unsafe_code)]

use super::{COPY, Exchange, Outgoing, Step};
use crate::base::Rank;
use crate::base::digest::{copy_digest, copy_streaming, store_fence};
use crate::format::shard::Head;
use crate::tier::pieces::pieces;
use std::collections::VecDeque;
use std::sync::Arc;

impl Exchange {
    /// The parcels to send, in one queue for each partner.
    pub(super) fn plan_copies(&self, to: &[Rank]) -> Vec<VecDeque<Outgoing>> {
        let head = self.spec.source.head();
        let head_len = head.header.body_offset;
        let mut plan = vec![VecDeque::new(); to.len()];
        for piece in pieces(head, self.segment) {
            // The head is a single piece, however long it is, so it is cut here.
            for start in piece.bytes.clone().step_by(self.segment as usize) {
                let end = (start + self.segment).min(piece.bytes.end);
                let range = if piece.blocks.is_empty() { start..end } else { piece.bytes.clone() };
                let label = [COPY, self.spec.operation, range.start, head_len, 0, 0];
                for (queue, to) in plan.iter_mut().zip(to) {
                    queue.push_back(Outgoing { to: *to, label, range: range.clone() });
                }
                if !piece.blocks.is_empty() {
                    break;
                }
            }
        }
        plan
    }

    pub(super) fn take_copy(&self, index: usize, offset: u64, head_len: u64, bytes: Vec<u8>) -> Result<(), String> {
        let output = self.output(index)?;
        let mut guard = output.state.lock();
        let state = &mut *guard;
        let from = output.of.unwrap_or_default();
        let wrong = |what: &str| format!("the copy of rank {from}'s shard arrived {what}");
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= output.length);
        let Some(end) = end else { return Err(wrong("with bytes beyond its end")) };
        let Some(slot) = state.slot.as_mut() else { return Err(wrong("before there was room for it")) };
        let target = &mut slot.as_mut_slice()[offset as usize..end as usize];
        if offset < head_len {
            copy_streaming(&bytes, target);
            state.head_bytes += bytes.len() as u64;
            state.left = state.left.saturating_sub(bytes.len() as u64);
            if state.head_bytes == head_len {
                store_fence();
                let head =
                    Head::decode(&slot.as_mut_slice()[..head_len as usize]).map_err(|error| error.to_string())?;
                let (found, ours) = (&head.header, &self.header);
                let fits = (found.key, found.agreement, found.rank, found.total_len, found.body_offset)
                    == (ours.key, ours.agreement, from, output.length, head_len);
                if !fits {
                    return Err(wrong("but belongs to another checkpoint"));
                }
                let cut = pieces(&head, self.segment);
                state.head = Some((Arc::new(head), Arc::new(cut)));
                let early = std::mem::take(&mut state.early);
                let steps =
                    early.into_iter().map(|(offset, bytes)| Step::Copy { output: index, offset, head_len, bytes });
                self.lock().todo.extend(steps);
            }
        } else if let Some((head, cut)) = state.head.clone() {
            let position =
                cut.binary_search_by_key(&offset, |piece| piece.bytes.start).map_err(|_| wrong("oddly cut"))?;
            let piece = &cut[position];
            if piece.bytes.end != end {
                return Err(wrong("oddly cut"));
            }
            let mut at = 0;
            for block in piece.blocks.clone() {
                let (start, length, expected, region) = head.block_at(block);
                let (start, length) = ((start - offset) as usize, length as usize);
                // Copies the padding between regions.
                target[at..start].copy_from_slice(&bytes[at..start]);
                let found = copy_digest(&bytes[start..start + length], &mut target[start..start + length]);
                if found != expected {
                    let text = format!("damaged: region {region:?} has digest {found}, expected {expected}");
                    return Err(wrong(&text));
                }
                at = start + length;
            }
            target[at..].copy_from_slice(&bytes[at..]);
            store_fence();
            state.left = state.left.saturating_sub(bytes.len() as u64);
        } else {
            state.early.push((offset, bytes));
            return Ok(());
        }
        let sealed = if state.left == 0 { Some(self.seal(state)?) } else { None };
        drop(guard);
        let mut inner = self.lock();
        inner.spent.push(bytes);
        inner.finished.extend(sealed);
        Ok(())
    }
}
