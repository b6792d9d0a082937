//! Writing shards to a file of one tier, piece by piece, by any number of threads.
//!
//! A [`WriteJob`] is made once per checkpoint and tier. Threads take pieces from it ([`WriteJob::take`]) and run them ([`WriteJob::run`]):
//! check the blocks against their digests (because a tier is crossed here), then make one large aligned write. Whoever finishes the last
//! piece also finishes the file: a rank's own container gets its tail, is synced and renamed; in a container that the ranks of a node
//! share, the last rank of the node to arrive does that for all, or one rank writes the shards of all ranks of the node, and the others
//! wait for that rank.

use super::node::NodeContainer;
use crate::base::Rank;
use crate::base::sync::{Guard, Lock};
use crate::format::shard::HEADER_LEN;
use crate::format::{ContainerEntry, ContainerInfo, ShardHeader, container};
use crate::tier::Upload;
use crate::tier::pieces::{Piece, pieces};
use crate::tier::posix::PageBuffer;
use crate::tier::source::Source;
use crate::tier::{TierError, TierId};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a finished write reports to the engine.
pub enum Written {
    /// This rank's part is durable under its final name; the container is given if this rank published it.
    Published(Option<ContainerInfo>),
    /// This rank's slice is durable; the last rank of the node publishes the container.
    SliceDone,
    /// The write failed.
    Failed(TierError),
}

/// How the ranks of a node write one container.
#[derive(Clone)]
pub enum Together {
    /// Each rank writes its own slice.
    Slice(NodeContainer),
    /// This rank writes for all of them.
    ForAll(NodeContainer),
}

/// Shards on their way to a file of one tier.
pub struct WriteJob {
    /// The operation of the checkpoint.
    pub operation: u64,
    /// The tier of the file.
    pub tier: TierId,
    /// When the job began.
    pub started: Duration,
    /// Bytes of the shards.
    pub bytes: u64,
    /// The shards, and where each begins in the file.
    sources: Vec<(Source, u64)>,
    upload: Box<dyn Upload>,
    file: String,
    shared: Option<Together>,
    entries: Vec<ContainerEntry>,
    /// The pieces of all shards: the index of the shard, and the piece.
    pieces: Vec<(usize, Piece)>,
    next: AtomicUsize,
    left: AtomicUsize,
    failure: Lock<Option<TierError>>,
}

/// Everything that a job is made of.
pub struct WriteSpec {
    /// The operation of the checkpoint.
    pub operation: u64,
    /// The tier of the file.
    pub tier: TierId,
    /// The time now.
    pub started: Duration,
    /// The shards, and the rank of each.
    pub sources: Vec<(Rank, Source)>,
    /// The open temp file.
    pub upload: Box<dyn Upload>,
    /// The final name of the file.
    pub file: String,
    /// All shards of the container, in order.
    pub entries: Vec<ContainerEntry>,
    /// How the ranks of the node share the container, if they do.
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
        // A packed shard leaves a hole where the whole shard would be, and the hole costs nothing.
        let place = |rank: Rank| spec.entries.iter().find(|entry| entry.rank == rank).map_or(0, |entry| entry.length);
        let fills = |(rank, source): &(Rank, Source)| source.head().header.total_len == place(*rank);
        if spec.sources.iter().all(fills)
            && let Err(error) = spec.upload.reserve(end)
        {
            return Err(Box::new((error, spec.upload)));
        }
        let base = |rank: Rank| spec.entries.iter().find(|entry| entry.rank == rank).map_or(0, |entry| entry.offset);
        let sources: Vec<(Source, u64)> = spec.sources.into_iter().map(|(rank, source)| (source, base(rank))).collect();
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
            failure: Lock::new(None),
        })
    }

    /// Writes a file that nobody else writes to, from the first byte to its final name. `progress` is told about the bytes of each piece.
    ///
    /// # Errors
    /// [`TierError`]; in this case, nothing is left of the file.
    ///
    /// # Blocking
    /// On the device.
    pub fn run_alone(
        spec: WriteSpec,
        staging: &mut Option<PageBuffer>,
        progress: impl Fn(u64),
    ) -> Result<ContainerInfo, TierError> {
        let (kind, path) = (spec.tier, spec.upload.path().to_owned());
        let job = WriteJob::new(spec).map_err(|refused| {
            let (error, upload) = *refused;
            upload.discard();
            error
        })?;
        while let Some(index) = job.take() {
            let ended = job.run(index, staging);
            let bytes = &job.pieces[index].1.bytes;
            progress(bytes.end - bytes.start);
            match ended {
                Some(Written::Published(Some(info))) => return Ok(info),
                Some(Written::Failed(error)) => return Err(error),
                Some(Written::Published(None) | Written::SliceDone) => break,
                None => {}
            }
        }
        Err(TierError::io(kind, "write", &path, io::Error::other("other ranks share it")))
    }

    /// The node container of which this job writes a slice, if it writes one.
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

    fn failure(&self) -> Guard<'_, Option<TierError>> {
        self.failure.lock()
    }

    /// Runs a piece. Whoever runs the last piece receives the outcome of the whole job.
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
        // Each rank syncs its own writes, because a write-back error is reported to the handle that wrote.
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

    /// This rank has written the shards of all ranks of the node, which wait for this.
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
        let published = self.check_slices().and_then(|()| self.publish());
        shared.settle(published.is_ok());
        self.told(published)
    }

    /// Are the slices of all ranks in the file that this rank has open? A run that took over while this node stood still has removed
    /// unfinished files; a rank that began its slice after that created a new file, in which the slices of the others are missing. The file
    /// is opened by its name, and this rank's own slice is looked for as well, which shows that this is the file to which the rank wrote.
    fn check_slices(&self) -> Result<(), TierError> {
        let io = |source| TierError::io(self.tier, "publish", self.upload.path(), source);
        let file = self.upload.read_back().map_err(io)?;
        for entry in &self.entries {
            let mut header = [0; HEADER_LEN];
            file.read_at(entry.offset, &mut header).map_err(io)?;
            let is_there =
                ShardHeader::decode(&header).is_ok_and(|header| (header.key, header.rank) == (entry.key, entry.rank));
            if !is_there {
                let what =
                    format!("the shard of rank {} has been removed from it, by a newer run or by hand", entry.rank);
                return Err(io(io::Error::other(what)));
            }
        }
        Ok(())
    }

    /// The result, for the engine, of publishing a file. A file that was not published leaves nothing behind.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::digest::digest_bytes;
    use crate::base::{CheckpointKey, Generation, Incarnation};
    use crate::format::shard::{Layout, ShardMeta, encode_head};
    use crate::format::{ElementType, Region, RegionKind};
    use crate::segment::{Segment, SegmentSpec};
    use crate::tier::directory::DirectoryTier;
    use crate::tier::names::node_file;
    use crate::tier::simulated::Simulated;
    use crate::tier::source::{MemoryShard, SharedPages};
    use crate::tier::storage::Storage;
    use crate::tier::{Tier, Writers};
    use std::path::Path;
    use std::sync::Arc;

    const FOLDER: &str = "/global/job/world/heat/g000003-v0000000070-o000009";

    fn shard(rank: Rank) -> Source {
        let (job, group, name) = ("job".into(), "world".into(), "heat".into());
        let (kind, element) = (RegionKind::Array, ElementType::U8);
        let region = Region { name: "t".into(), kind, element, shape: vec![8], bytes: 8, offset: 0, first_block: 0 };
        let layout = Layout::new(ShardMeta { job, group, name, regions: vec![region] }, 4096).unwrap();
        let header = layout.header(key(), 5, 2, rank, None);
        let mut bytes = PageBuffer::new(layout.total_len as usize);
        let (head, body) = bytes.split_at_mut(layout.body_offset as usize);
        body[..8].fill(rank.0 as u8 + 1);
        encode_head(&layout, &header, &[digest_bytes(&body[..8])], head);
        Source::Memory(MemoryShard::open_any(Path::new("memory"), Arc::new(SharedPages(bytes))).unwrap())
    }

    fn key() -> CheckpointKey {
        CheckpointKey { generation: Generation(3), version: 70, operation: 9, incarnation: Incarnation([1; 16]) }
    }

    /// Both ranks of a node write their slices; between them, something may happen to the folder.
    fn written_by_two(meanwhile: impl Fn(&Simulated)) -> (Written, Simulated) {
        let directory = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").unwrap();
        let spec = SegmentSpec {
            directory: directory.path().to_owned(),
            name: "segment-g000003".into(),
            job: 1,
            group: 2,
            generation: Generation(3),
            incarnation: Incarnation([1; 16]),
            store: 0,
            budget: 1 << 20,
            node_ranks: 2,
            group_size: 2,
        };
        let segments = [Segment::create(&spec).unwrap(), Segment::attach(&spec, 1).unwrap()].map(Arc::new);
        let storage = Simulated::new();
        let tier = DirectoryTier::new(TierId::GLOBAL, Arc::new(storage.clone()), "/global".into());
        let ranks = [Rank(0), Rank(1)];
        for (segment, rank) in segments.iter().zip(ranks) {
            NodeContainer::post(segment, 9, shard(rank).head().header.total_len);
        }
        let write = |segment: &Arc<Segment>, rank: Rank| {
            let (node, entries) = NodeContainer::of(segment, TierId::GLOBAL, key(), rank, &ranks).unwrap();
            let file = node_file(Rank(0));
            let job = WriteJob::new(WriteSpec {
                operation: 9,
                tier: TierId::GLOBAL,
                started: Duration::ZERO,
                sources: vec![(rank, shard(rank))],
                upload: tier.begin(&Path::new(FOLDER).join(&file), Writers::Node).unwrap(),
                file,
                entries,
                shared: Some(Together::Slice(node.clone())),
                write_bytes: 4096,
            });
            let job = job.unwrap_or_else(|refused| panic!("{}", refused.0));
            let end = std::iter::from_fn(|| job.take()).find_map(|piece| job.run(piece, &mut None)).unwrap();
            (end, node)
        };
        let (first, node) = write(&segments[0], ranks[0]);
        assert!(matches!(first, Written::SliceDone));
        assert_eq!(node.outcome(), None);
        meanwhile(&storage);
        let (last, _) = write(&segments[1], ranks[1]);
        assert_eq!(node.outcome(), Some(matches!(last, Written::Published(_))), "the other rank hears it");
        (last, storage)
    }

    #[test]
    fn the_last_rank_of_a_node_publishes_the_slices_of_all() {
        let (end, storage) = written_by_two(|_| ());
        let Written::Published(Some(info)) = end else { panic!("not published") };
        assert_eq!(info.ranks, [Rank(0), Rank(1)]);
        assert_eq!(storage.list(Path::new(FOLDER)).unwrap()[0].name, "c000000.bvc");
    }

    /// A node stood still while a newer run removed the unfinished file: the rank that wakes up and begins creates a new file.
    #[test]
    fn a_container_in_which_a_slice_is_missing_is_not_published() {
        let temp = Path::new(FOLDER).join("c000000.bvc.tmp");
        let (end, storage) = written_by_two(|storage: &Simulated| storage.remove_file(&temp).unwrap());
        let Written::Failed(error) = end else { panic!("published") };
        for word in ["global tier", "c000000.bvc.tmp", "rank 0", "newer run"] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        assert_eq!(storage.list(Path::new(FOLDER)).unwrap(), []);
    }
}
