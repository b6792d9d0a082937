//! Ranks of one host that act as if they were on several nodes.

use bivouac_core::base::Rank;
use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::comm::{Comm, CommError, Label, Parcel, Slice};
use std::time::Duration;

/// MPI's message layer, with nodes that are not those of the host.
pub struct Scattered {
    pub inner: MpiComm,
    /// The node of each rank.
    pub nodes: Vec<u32>,
}

impl Comm for Scattered {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }
    fn size(&self) -> u32 {
        self.inner.size()
    }
    fn nodes(&self) -> &[u32] {
        &self.nodes
    }
    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError> {
        self.inner.send(to, bytes)
    }
    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        self.inner.receive()
    }
    fn put_back(&mut self, from: Rank, bytes: Vec<u8>) {
        self.inner.put_back(from, bytes);
    }
    fn unfinished(&self) -> usize {
        self.inner.unfinished()
    }
    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        self.inner.send_parcel(to, label, body)
    }
    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.inner.receive_parcel()
    }
    fn recycle(&mut self, bytes: Vec<u8>) {
        self.inner.recycle(bytes);
    }
    fn unsent_parcels(&self) -> usize {
        self.inner.unsent_parcels()
    }
    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        Comm::quiesce(&mut self.inner, limit)
    }
    fn cancel(&mut self) {
        self.inner.cancel();
    }
}
