//! Bulk data on its way out, and buffers on their way back to the message layer.
#![forbid(unsafe_code)]

use crate::base::Rank;
use crate::base::sync::Lock;
use crate::comm::{Label, Slice};
use std::collections::VecDeque;

/// What the next step of the coordination takes along.
#[derive(Default)]
pub(super) struct Mail(Lock<Inner>);

#[derive(Default)]
struct Inner {
    outgoing: VecDeque<(Rank, Label, Slice)>,
    spent: Vec<Vec<u8>>,
}

impl Mail {
    pub fn send(&self, to: Rank, label: Label, body: Slice) {
        self.0.lock().outgoing.push_back((to, label, body));
    }

    pub fn next(&self) -> Option<(Rank, Label, Slice)> {
        self.0.lock().outgoing.pop_front()
    }

    /// How much waits to be sent.
    pub fn waiting(&self) -> usize {
        self.0.lock().outgoing.len()
    }

    /// Gives the buffer of a message back.
    pub fn give_back(&self, bytes: Vec<u8>) {
        self.0.lock().spent.push(bytes);
    }

    pub fn take_spent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().spent)
    }
}
