//! Sends what readers pack to the ranks that want it, and no more at once than these ranks can take.

use super::super::access::ShardAccess;
use super::super::load_error::LoadError;
use super::packet::{self, CREDIT, DATA};
use super::packing::Sink;
use super::reading::{Parcels, Reading};
use super::together::{Together, plainly};
use crate::base::Rank;
use crate::coordination::Payload;
use crate::coordination::posts::Posts;
use crate::transfer::posting::{Handled, Next};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The approximate maximum size of a packet, in bytes.
const PACKET: usize = 512 << 10;
/// The maximum until it is known how much the receiver takes at once.
const FIRST_PACKET: usize = 64 << 10;
/// The smallest packet that is worth a message.
const PACKET_MIN: usize = 4 << 10;

/// What one rank knows about who sends what.
pub(super) struct Carrier<'c> {
    pub together: &'c Together<'c>,
    /// The ranks from which this one receives something.
    pub senders: &'c [Rank],
    /// The number of ranks that receive something from this one.
    pub receivers: usize,
}

impl Carrier<'_> {
    /// Sends what this rank reads for others, and takes what it receives; what it reads for itself is put in its place at once. Without a
    /// `target`, the rank takes nothing, and `failure` says why.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Blocking
    /// On the tiers that hold the shards, and until everything that was sent has been taken.
    ///
    /// # Errors
    /// [`LoadError::Others`], the same on all ranks, even if a rank had already failed before.
    pub fn send<'p, P: Parcels<'p>, S: Sink<P::Way>>(
        &'p self,
        mut shards: Vec<&mut ShardAccess>,
        parcels: &'p P,
        target: Option<&mut S>,
        failure: Option<LoadError>,
    ) -> Result<(), LoadError> {
        let together = self.together;
        let target = RefCell::new(target);
        // How much each receiver takes from this rank at once.
        let credits: RefCell<BTreeMap<Rank, usize>> = RefCell::default();
        let failure = RefCell::new(failure);
        // The maximum number of bytes that this rank may have under way, and that all readers together may send it before it takes them.
        let window = usize::try_from(together.engine.config().node.restart_window).unwrap_or(usize::MAX);
        // Packets are so short that several for each receiver fit into the window.
        let most = (window / (4 * self.receivers.max(1))).clamp(PACKET_MIN, PACKET);
        let limit = |to: Rank| match credits.borrow().get(&to) {
            Some(credit) => most.min(credit / 2).max(PACKET_MIN),
            None => most.min(FIRST_PACKET),
        };
        let mut here = |way: &P::Way, from: usize, bytes: &[u8]| match &mut *target.borrow_mut() {
            Some(target) => target.put(way, from, bytes),
            None => true,
        };
        let share = (window / self.senders.len().max(1)) as u64;
        let credit = [&[CREDIT], &share.to_le_bytes()[..]].concat();
        let mut grants = self.senders.iter().map(|sender| (*sender, credit.clone()));
        let mut ready: Option<(Rank, Vec<u8>)> = None;
        std::thread::scope(|scope| {
            let mut reading = Reading::new(together, parcels, scope);
            let mut next = |posts: &Posts| {
                if let Some((to, body)) = grants.next() {
                    return Next::Post(to, body);
                }
                loop {
                    if let Some((to, body)) = ready.take() {
                        let credit = credits.borrow().get(&to).copied().unwrap_or(FIRST_PACKET);
                        // One packet may always be under way.
                        let is_over = |out: usize, most: usize| out > 0 && out + body.len() > most;
                        if is_over(posts.all_outstanding(), window) || is_over(posts.outstanding(to), credit) {
                            ready = Some((to, body));
                            return Next::Later;
                        }
                        return Next::Post(to, body);
                    }
                    match reading.next(&mut shards, &limit, &mut here) {
                        Ok(Some(packet)) => ready = Some(packet),
                        Ok(None) => return Next::Done,
                        Err(error) => {
                            failure.borrow_mut().get_or_insert(error);
                            return Next::Done;
                        }
                    }
                }
            };
            let mut on_post = |from: Rank, bytes: &[u8]| {
                match bytes.split_first() {
                    Some((&CREDIT, share)) => {
                        let share: [u8; 8] = share.try_into().map_err(|_| "it is truncated")?;
                        credits.borrow_mut().insert(from, u64::from_le_bytes(share) as usize);
                    }
                    Some((&DATA, packet)) => {
                        let portions = packet::checked(packet)?;
                        if let Some(target) = &mut *target.borrow_mut() {
                            target.take(portions)?;
                        }
                    }
                    _ => return Err("it is empty".to_owned()),
                }
                Ok(Handled::default())
            };
            let vote = |_| together.failed(together.ballot("elements", Payload::None), failure.borrow().as_ref());
            together.exchange(&mut next, &mut on_post, vote, plainly).map(|_| ())
        })
    }
}
