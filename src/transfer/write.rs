//! Writing shards to a file of one tier, piece by piece, by any number of threads.
//!
//! A [`WriteJob`] is made once per checkpoint and tier. Threads take pieces from it ([`WriteJob::take`]) and run them
//! ([`WriteJob::run`]): check the blocks against their digests (a tier is crossed here), then one large aligned write.
//! Whoever finishes the last piece also finishes the file: a rank's own container gets its tail, is synced and renamed;
//! in a container that the ranks of a node share, the last rank of the node to arrive does that for all; or one rank writes the shards of all
//! ranks of the node, and the others wait for it.

use super::node::NodeContainer;
use crate::base::Rank;
use crate::format::{ContainerEntry, ContainerInfo, container};
use crate::tier::Upload;
use crate::tier::pieces::{Piece, pieces};
use crate::tier::posix::PageBuffer;
use crate::tier::source::Source;
use crate::tier::{TierError, TierId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a finished write tells the engine.
pub enum Written {
    /// This rank's part is durable under its final name; the container is named where this rank published it.
    Published(Option<ContainerInfo>),
    /// This rank's slice is durable; the last rank of the node publishes the container.
    SliceDone,
    /// It failed.
    Failed(TierError),
}

/// How the ranks of a node write one container.
#[derive(Clone)]
pub enum Together {
    /// Each its own slice.
    Slice(NodeContainer),
    /// This rank for all of them.
    ForAll(NodeContainer),
}

/// Shards on their way to a file of one tier.
pub struct WriteJob {
    /// Which checkpoint.
    pub operation: u64,
    /// Where to.
    pub tier: TierId,
    /// When it began.
    pub started: Duration,
    /// Bytes of the shards.
    pub bytes: u64,
    /// The shards, and where each begins in the file.
    sources: Vec<(Source, u64)>,
    upload: Box<dyn Upload>,
    file: String,
    shared: Option<Together>,
    entries: Vec<ContainerEntry>,
    /// The pieces of all shards: of which, and which.
    pieces: Vec<(usize, Piece)>,
    next: AtomicUsize,
    left: AtomicUsize,
    failure: Mutex<Option<TierError>>,
}

/// Everything that a job is made of.
pub struct WriteSpec {
    /// Which checkpoint.
    pub operation: u64,
    /// Where to.
    pub tier: TierId,
    /// Now.
    pub started: Duration,
    /// The shards, and whose each is.
    pub sources: Vec<(Rank, Source)>,
    /// The open temp file.
    pub upload: Box<dyn Upload>,
    /// Its final name.
    pub file: String,
    /// All shards of the container, in order.
    pub entries: Vec<ContainerEntry>,
    /// The node's shared container, if it is one.
    pub shared: Option<Together>,
    /// Bytes per write.
    pub write_bytes: u64,
}

/// Why a write did not begin, and the file that is to be discarded.
pub type Refused = Box<(TierError, Box<dyn Upload>)>;

impl WriteJob {
    /// Prepares a job; reserves the file's room.
    ///
    /// # Errors
    /// [`TierError::Io`] when there is no room.
    pub fn new(spec: WriteSpec) -> Result<WriteJob, Refused> {
        let end = spec.entries.last().map_or(0, |last| last.offset + last.length);
        let base = |rank: Rank| spec.entries.iter().find(|entry| entry.rank == rank).map_or(0, |entry| entry.offset);
        let sources: Vec<(Source, u64)> = spec.sources.into_iter().map(|(rank, source)| (source, base(rank))).collect();
        if let Err(error) = spec.upload.reserve(end) {
            return Err(Box::new((error, spec.upload)));
        }
        let of = |(at, (source, _)): (usize, &(Source, u64))| {
            pieces(source.head(), spec.write_bytes).into_iter().map(move |piece| (at, piece))
        };
        let pieces: Vec<(usize, Piece)> = sources.iter().enumerate().flat_map(of).collect();
        Ok(WriteJob {
            operation: spec.operation,
            tier: spec.tier,
            started: spec.started,
            bytes: sources.iter().map(|(source, _)| source.head().header.total_len).sum(),
            left: AtomicUsize::new(pieces.len()),
            sources,
            upload: spec.upload,
            file: spec.file,
            shared: spec.shared,
            entries: spec.entries,
            pieces,
            next: AtomicUsize::new(0),
            failure: Mutex::new(None),
        })
    }

    /// The node container that this is a slice of, if it is one.
    pub fn node(&self) -> Option<&NodeContainer> {
        match &self.shared {
            Some(Together::Slice(node)) => Some(node),
            Some(Together::ForAll(_)) | None => None,
        }
    }

    /// The next piece that nobody has taken, if any.
    pub fn take(&self) -> Option<usize> {
        #[allow(deprecated, reason = "its new name, try_update, is not in the oldest Rust that builds this")]
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.pieces.len()).then_some(n + 1)).ok()
    }

    fn failure(&self) -> MutexGuard<'_, Option<TierError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a piece; returns the end of the whole job to whoever ran the last one.
    ///
    /// # Blocking
    /// On the device.
    pub fn run(&self, piece: usize, staging: &mut Option<PageBuffer>) -> Option<Written> {
        if self.failure().is_none()
            && let Err(error) = self.write_piece(piece, staging)
        {
            self.failure().get_or_insert(error);
        }
        (self.left.fetch_sub(1, Ordering::AcqRel) == 1).then(|| self.finish())
    }

    fn write_piece(&self, piece: usize, staging: &mut Option<PageBuffer>) -> Result<(), TierError> {
        let (of, piece) = &self.pieces[piece];
        let (source, base) = &self.sources[*of];
        let length = (piece.bytes.end - piece.bytes.start) as usize;
        let bytes: &[u8] = match source {
            Source::Memory(shard) => shard.part(piece.bytes.start as usize, length)?,
            Source::File(shard) => {
                let buffer = match staging {
                    Some(buffer) if buffer.len() >= length => buffer,
                    _ => staging.insert(PageBuffer::new(length)),
                };
                let part = &mut buffer[..length];
                shard.read_raw(piece.bytes.start, part)?;
                part
            }
        };
        piece.check(source, bytes)?;
        self.upload.write_at(base + piece.bytes.start, bytes)
    }

    fn finish(&self) -> Written {
        let failure = self.failure().take();
        let shared = match &self.shared {
            Some(Together::Slice(node)) => Some(node),
            Some(Together::ForAll(node)) => return self.finish_all(node, failure),
            None => None,
        };
        let Some(shared) = shared else {
            return self.told(failure.map_or_else(|| self.publish(), Err));
        };
        // Each rank syncs what it wrote itself: an error of write-back is reported to the handle that wrote.
        match failure.or_else(|| self.upload.sync().err()) {
            Some(error) => {
                if shared.fail() {
                    self.upload.discard();
                }
                Written::Failed(error)
            }
            None if !shared.arrive() => Written::SliceDone,
            None => self.finish_node(shared),
        }
    }

    /// This rank has written the shards of all ranks of the node, which wait for it.
    fn finish_all(&self, node: &NodeContainer, failure: Option<TierError>) -> Written {
        let published = failure.map_or_else(|| self.publish(), Err);
        node.settle(published.is_ok());
        self.told(published)
    }

    /// The last rank of the node publishes the container, unless some slice is missing.
    fn finish_node(&self, shared: &NodeContainer) -> Written {
        if shared.has_failed() {
            self.upload.discard();
            return Written::SliceDone;
        }
        let published = self.publish();
        shared.settle(published.is_ok());
        self.told(published)
    }

    /// What the engine hears of a file that this rank was to publish. One that was not leaves nothing behind.
    fn told(&self, published: Result<ContainerInfo, TierError>) -> Written {
        match published {
            Ok(info) => Written::Published(Some(info)),
            Err(error) => {
                self.upload.discard();
                Written::Failed(error)
            }
        }
    }

    fn publish(&self) -> Result<ContainerInfo, TierError> {
        let end = self.entries.last().map_or(0, |last| last.offset + last.length);
        let tail = container::encode_tail(&self.entries).map_err(|source| TierError::Format {
            tier: self.tier,
            path: self.upload.path().to_owned(),
            source,
        })?;
        let mut aligned = PageBuffer::new(tail.len());
        aligned.copy_from_slice(&tail);
        self.upload.write_at(end, &aligned)?;
        self.upload.sync()?;
        self.upload.publish()?;
        let mut ranks: Vec<Rank> = self.entries.iter().map(|entry| entry.rank).collect();
        ranks.sort_unstable();
        Ok(ContainerInfo { file: self.file.clone(), bytes: end + tail.len() as u64, ranks })
    }
}
