//! Bytes to values and back: shards, containers and manifests, exactly as `docs/FORMAT.md` describes them.
//!
//! No function here does I/O. A *shard* ([`shard`]) is one rank's part of a checkpoint: header, region table, block index, page-aligned
//! bodies. The same bytes are stored in a memory slot and in a file. A *container* ([`container`]) is a file of shards with an index and a
//! footer. A *manifest* ([`manifest`]) says which containers hold which ranks of a committed checkpoint. A *packed shard* ([`packed`])
//! represents a shard in a file, and refers to files of earlier checkpoints for the bytes that these files already hold. [`extents`]
//! encodes these references in few bytes. [`frames`] holds the compressed forms of the bytes, and is the only module that calls `zstd`;
//! [`codec`] is the only one that calls `bincode`. [`supervision`] has the JSON files that a session shares with its supervisor, and
//! [`profile`] has the TOML file of a machine's measurements.
//!
//! Every decoder takes hostile bytes: lengths are bounded before anything is allocated, checksums are
//! verified before anything is decoded, and trailing bytes are refused.
#![forbid(unsafe_code)]

pub mod codec;
pub mod companions;
pub mod container;
pub mod events;
pub mod extents;
pub mod frames;
mod index;
pub mod manifest;
pub(crate) mod numbers;
pub mod packed;
pub mod profile;
pub mod shard;
pub mod supervision;

pub use container::{Container, ContainerEntry};
pub use manifest::{ContainerInfo, Manifest};
pub use packed::SourceKey;
pub use shard::{Content, ElementType, Region, RegionKind, ShardHeader, ShardMeta};

/// The version of all three formats; a reader refuses any other.
pub const FORMAT_VERSION: u32 = 1;
/// A mark that is written as a little-endian word. It reads differently on a machine with the other byte order.
pub const ENDIAN_MARK: u32 = 0x0102_0304;

/// The offset of the version in every header.
pub(crate) const AT_VERSION: usize = 8;

/// Why bytes are not what they claim to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Fewer bytes than the structure needs.
    #[error("{what} is cut short: it has {have} of {need} bytes")]
    Short {
        /// The structure.
        what: &'static str,
        /// The number of bytes needed.
        need: u64,
        /// The number of bytes present.
        have: u64,
    },
    /// The magic bytes are absent: this is another kind of file, or its start was overwritten.
    #[error("this is not a Bivouac {what}: the magic bytes are missing")]
    Magic {
        /// The structure.
        what: &'static str,
    },
    /// A format version that this program cannot read.
    #[error("{what} has format version {found}; this program reads version {FORMAT_VERSION}")]
    Version {
        /// The structure.
        what: &'static str,
        /// The version found.
        found: u32,
    },
    /// The bytes were written on a machine with the other byte order.
    #[error("{what} was written with the other byte order: read it on a machine like the one that wrote it")]
    Endian {
        /// The structure.
        what: &'static str,
    },
    /// The bytes changed after they were written.
    #[error("{what} is damaged: checksum {found:016x}, expected {expected:016x}")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// The checksum stored with the bytes.
        expected: u64,
        /// The checksum of the bytes as read.
        found: u64,
    },
    /// The checksum is right, yet a value breaks a rule of the format.
    #[error("{what} breaks the format: {why}")]
    Invalid {
        /// The structure.
        what: &'static str,
        /// The rule that is broken.
        why: String,
    },
}

impl FormatError {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        FormatError::Invalid { what, why: why.into() }
    }
}

/// CRC-64/NVME, the checksum of all headers, tables and footers.
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// Verifies a checksum that was stored with `bytes`.
pub(crate) fn verify_checksum(what: &'static str, bytes: &[u8], expected: u64) -> Result<(), FormatError> {
    let found = checksum(bytes);
    if found == expected { Ok(()) } else { Err(FormatError::Checksum { what, expected, found }) }
}

/// Checks that bytes outside all fields are zero, so that this version does not overlook what a later version stores
/// there.
pub(crate) fn expect_zeros(what: &'static str, bytes: &[u8]) -> Result<(), FormatError> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(FormatError::invalid(what, "bytes that belong to no field are not zero"))
}

/// The little-endian fields at given offsets of a header whose length is checked once, at the start.
pub(crate) struct Fields<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Takes exactly `length` bytes, and checks the magic bytes, the version and the byte order.
    pub(crate) fn open(
        what: &'static str,
        bytes: &'a [u8],
        length: usize,
        magic: &[u8; 8],
    ) -> Result<Self, FormatError> {
        let head =
            bytes.get(..length).ok_or(FormatError::Short { what, need: length as u64, have: bytes.len() as u64 })?;
        let fields = Fields { what, bytes: head };
        if &head[..8] != magic {
            return Err(FormatError::Magic { what });
        }
        match (fields.u32(AT_VERSION), fields.u32(12)) {
            (FORMAT_VERSION, ENDIAN_MARK) => Ok(fields),
            (_, mark) if mark == ENDIAN_MARK.swap_bytes() => Err(FormatError::Endian { what }),
            (found, ENDIAN_MARK) => Err(FormatError::Version { what, found }),
            (_, mark) => Err(FormatError::invalid(what, format!("byte-order mark {mark:#x}"))),
        }
    }

    /// Checks the two words of flags at `at`: this version knows none of the flags that a reader must understand, and ignores those that a
    /// reader may ignore.
    pub(crate) fn check_flags(&self, at: usize) -> Result<(), FormatError> {
        match self.u32(at) {
            0 => Ok(()),
            flags => {
                Err(FormatError::invalid(self.what, format!("it needs a newer version of Bivouac (flags {flags:#x})")))
            }
        }
    }

    /// Checks that the bytes of `range`, which is outside all fields, are zero.
    pub(crate) fn expect_zeros(&self, range: std::ops::Range<usize>) -> Result<(), FormatError> {
        expect_zeros(self.what, &self.bytes[range])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[at..at + N]);
        array
    }

    /// Verifies the checksum stored at `at`. It covers the header, in which the checksum itself counts as zero.
    pub(crate) fn verify(&self, at: usize) -> Result<(), FormatError> {
        let mut copy = self.bytes.to_vec();
        copy[at..at + 8].fill(0);
        verify_checksum(self.what, &copy, self.u64(at))
    }
}

/// Starts a fixed-size header: the magic bytes, the version, the byte order, and zeros.
pub(crate) fn header<const N: usize>(magic: &[u8; 8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..8].copy_from_slice(magic);
    put_u32(&mut bytes, AT_VERSION, FORMAT_VERSION);
    put_u32(&mut bytes, 12, ENDIAN_MARK);
    bytes
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
