//! Bulk data on its way out, and buffers on their way back to the message layer.
#![forbid(unsafe_code)]

use crate::base::Rank;
use crate::base::sync::Lock;
use crate::comm::{Label, Slice};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The messages that the next step of the coordination sends.
#[derive(Default)]
pub(super) struct Mail(Lock<Inner>);

#[derive(Default)]
struct Inner {
    outgoing: VecDeque<(Rank, Label, Slice)>,
    spent: Vec<Vec<u8>>,
    /// Buffers of posts that were sent, for later posts in the same exchange; `None` if no exchange is under way.
    spares: Option<Vec<Vec<u8>>>,
}

/// The smallest buffer, in bytes, that is worth keeping: the allocator has enough shorter ones.
const SPARE_MIN: usize = 64 << 10;

impl Mail {
    pub fn send(&self, to: Rank, label: Label, body: Slice) {
        self.0.lock().outgoing.push_back((to, label, body));
    }

    pub fn next(&self) -> Option<(Rank, Label, Slice)> {
        self.0.lock().outgoing.pop_front()
    }

    /// How many messages wait to be sent.
    pub fn waiting(&self) -> usize {
        self.0.lock().outgoing.len()
    }

    /// Gives back the buffer of a message.
    pub fn give_back(&self, bytes: Vec<u8>) {
        self.0.lock().spent.push(bytes);
    }

    /// From now on, buffers of posts are kept after they have been sent.
    pub fn begin_spares(&self) {
        self.0.lock().spares = Some(Vec::new());
    }

    /// Buffers are no longer kept, and those that were kept are freed.
    pub fn end_spares(&self) {
        self.0.lock().spares = None;
    }

    /// An empty buffer, which may already have capacity.
    pub fn spare(&self) -> Vec<u8> {
        self.0.lock().spares.as_mut().and_then(Vec::pop).unwrap_or_default()
    }

    fn keep(&self, mut bytes: Vec<u8>) {
        if bytes.capacity() >= SPARE_MIN
            && let Some(spares) = &mut self.0.lock().spares
        {
            bytes.clear();
            spares.push(bytes);
        }
    }

    pub fn take_spent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().spent)
    }
}

/// The body of a post, whose buffer is kept after it has been sent.
pub(super) struct Body {
    bytes: Vec<u8>,
    /// Weak, because the mail itself owns the bodies that were not sent.
    mail: Weak<Mail>,
}

impl Body {
    pub fn new(bytes: Vec<u8>, mail: &Arc<Mail>) -> Body {
        Body { bytes, mail: Arc::downgrade(mail) }
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(mail) = self.mail.upgrade() {
            mail.keep(std::mem::take(&mut self.bytes));
        }
    }
}
