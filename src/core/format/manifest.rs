//! The manifest, which lists the parts of a committed checkpoint. It is a small file, written last.
//!
//! A checkpoint is committed when all its shards are present, complete and equal. The manifest records this, and saves
//! a reader from opening every container. Recovery writes a missing manifest from the shards (roll forward).

use super::packed::{SourceKey, check_sources};
use super::{Fields, FormatError, checksum, codec, header, put_u64, verify_checksum};
use crate::base::ids::{CheckpointKey, Level, Origin, Rank};
use serde::{Deserialize, Serialize};

/// The file name of a manifest within a checkpoint's folder.
pub const FILE_NAME: &str = "manifest";

const MAGIC: &[u8; 8] = b"BVKMANI1";
const WHAT: &str = "manifest";
const HEADER_LEN: usize = 48;
const AT_CHECKSUM: usize = 16;
const AT_PAYLOAD_LEN: usize = 24;
const AT_PAYLOAD_CHECKSUM: usize = 32;
const AT_FLAGS: usize = 40;

/// One container file of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContainerInfo {
    /// The name of the file within the checkpoint's folder.
    pub file: String,
    /// The length of the file.
    pub bytes: u64,
    /// The ranks whose shards it holds, ascending.
    pub ranks: Vec<Rank>,
}

/// The content of a manifest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The job key.
    pub job: String,
    /// The group within the job.
    pub group: String,
    /// The application's name for the checkpoint series.
    pub name: String,
    /// The checkpoint.
    pub key: CheckpointKey,
    /// The agreement hash that every shard carries.
    pub agreement: u64,
    /// The number of ranks in the group.
    pub group_size: u32,
    /// The last restart of this series that the run had made, if any.
    pub origin: Option<Origin>,
    /// The level that this manifest commits.
    pub level: Level,
    /// The containers: all of them (global), or those on this node (local).
    pub containers: Vec<ContainerInfo>,
    /// Earlier checkpoints of the run to which files of this one refer, ascending.
    pub sources: Vec<SourceKey>,
}

impl Manifest {
    /// Adds the checkpoints to which one of the manifest's shards refers. This is used when a manifest is assembled
    /// from shards.
    pub fn add_sources(&mut self, sources: &[SourceKey]) {
        self.sources.extend(sources);
        self.sources.sort_unstable();
        self.sources.dedup();
    }

    /// Encodes the file.
    ///
    /// # Errors
    /// [`FormatError`] if the content exceeds the metadata limit, or breaks a rule that a reader will check.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check()?;
        self.frame()
    }

    /// Encodes the header and the body, without checking them.
    fn frame(&self) -> Result<Vec<u8>, FormatError> {
        let payload = codec::encode(WHAT, self)?;
        let mut head: [u8; HEADER_LEN] = header(MAGIC);
        put_u64(&mut head, AT_PAYLOAD_LEN, payload.len() as u64);
        put_u64(&mut head, AT_PAYLOAD_CHECKSUM, checksum(&payload));
        let sum = checksum(&head);
        put_u64(&mut head, AT_CHECKSUM, sum);
        Ok([head.as_slice(), &payload].concat())
    }

    /// Decodes a whole file.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are short, damaged, of another format, or inconsistent.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let fields = Fields::open(WHAT, bytes, HEADER_LEN, MAGIC)?;
        fields.verify(AT_CHECKSUM)?;
        fields.check_flags(AT_FLAGS)?;
        let payload = &bytes[HEADER_LEN..];
        let need = fields.u64(AT_PAYLOAD_LEN);
        if payload.len() as u64 != need {
            return Err(FormatError::Short { what: WHAT, need, have: payload.len() as u64 });
        }
        verify_checksum(WHAT, payload, fields.u64(AT_PAYLOAD_CHECKSUM))?;
        let manifest: Manifest = codec::decode(WHAT, payload)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The container that holds the shard of `rank`.
    pub fn container_of(&self, rank: Rank) -> Option<&ContainerInfo> {
        self.containers.iter().find(|container| container.ranks.binary_search(&rank).is_ok())
    }

    /// Do the containers hold every rank of the group?
    pub fn is_complete(&self) -> bool {
        self.containers.iter().map(|container| container.ranks.len()).sum::<usize>() == self.group_size as usize
    }

    fn check(&self) -> Result<(), FormatError> {
        check_sources(WHAT, &self.key, &self.sources)?;
        if !self.sources.is_sorted() {
            return Err(FormatError::invalid(WHAT, "sources are not in order"));
        }
        let mut seen = std::collections::HashSet::new();
        for container in &self.containers {
            let plain = !container.file.is_empty() && !container.file.contains('/') && !container.file.starts_with('.');
            if !plain {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("file name {:?} points outside its folder", container.file),
                ));
            }
            if !container.ranks.is_sorted() {
                return Err(FormatError::invalid(WHAT, "ranks are not in order"));
            }
            for rank in &container.ranks {
                if rank.0 >= self.group_size || !seen.insert(*rank) {
                    return Err(FormatError::invalid(
                        WHAT,
                        format!("rank {rank} occurs twice or is outside the group"),
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let container = |file: &str, ranks: &[u32]| ContainerInfo {
            file: file.into(),
            bytes: 4096,
            ranks: ranks.iter().map(|r| Rank(*r)).collect(),
        };
        Manifest {
            job: "job".into(),
            group: "world".into(),
            name: "heat".into(),
            key: CheckpointKey::default(),
            agreement: 77,
            group_size: 4,
            origin: None,
            level: Level::System,
            containers: vec![container("c000000.bvc", &[0, 2]), container("c000001.bvc", &[1, 3])],
            sources: Vec::new(),
        }
    }

    /// The bytes that a writer without rules would write.
    fn unchecked(manifest: &Manifest) -> Vec<u8> {
        manifest.frame().unwrap()
    }

    #[test]
    fn a_manifest_reads_back_and_notices_every_flipped_bit_and_truncation() {
        let manifest = sample();
        let mut bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        assert!(manifest.is_complete());
        assert_eq!(manifest.container_of(Rank(3)).unwrap().file, "c000001.bvc");
        for length in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..length]).is_err(), "length {length}");
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_manifest_that_names_a_rank_twice_is_neither_written_nor_read() {
        let mut manifest = sample();
        manifest.containers[1].ranks = vec![Rank(2), Rank(3)];
        assert!(manifest.encode().is_err());
        assert!(Manifest::decode(&unchecked(&manifest)).is_err());
    }

    #[test]
    fn sources_are_earlier_checkpoints_of_the_run_in_order() {
        let at = |operation| CheckpointKey { operation, ..CheckpointKey::default() };
        let sample = |sources: &[CheckpointKey]| {
            let sources = sources.iter().map(|key| SourceKey { key: *key, agreement: 5 }).collect();
            Manifest { key: at(9), sources, ..sample() }
        };
        let other_run = CheckpointKey { incarnation: crate::base::Incarnation([1; 16]), ..at(2) };
        let many: Vec<CheckpointKey> = (0..9).chain(10..40).map(at).collect();
        for bad in [&[at(9)][..], &[at(10)], &[at(2), at(2)], &[at(3), at(2)], &[other_run], &many] {
            assert!(sample(bad).encode().is_err(), "{bad:?}");
            assert!(Manifest::decode(&unchecked(&sample(bad))).is_err(), "{bad:?}");
        }
        let good = sample(&[at(2), at(8)]);
        assert_eq!(Manifest::decode(&good.encode().unwrap()).unwrap(), good);
    }

    #[test]
    fn a_manifest_that_names_files_outside_its_folder_is_refused() {
        for name in ["../x", "a/b", "", ".hidden"] {
            let mut manifest = sample();
            manifest.containers[0].file = name.into();
            assert!(manifest.encode().is_err(), "{name:?}");
            assert!(Manifest::decode(&unchecked(&manifest)).is_err(), "{name:?}");
        }
    }
}
