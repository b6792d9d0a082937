//! Where everything is in a segment file: the header, and the arithmetic of the areas after it. No I/O.
//!
//! ```text
//! 0            header                      4096 bytes, 128 of them used
//! 4096         slot directories            node_ranks x 64 entries x 128 bytes
//!              boards                      (node_ranks + 1) x 64 entries x 32 bytes; the last is the node's
//!              extent table                extent_count x 16 bytes
//!              tokens                      17 x 128 bytes: 16 links and the pinning token; at a multiple of 128
//!              wishes                      node_ranks x 256 bytes
//! data_offset  extents                     extent_count x extent_size; data_offset is a multiple of 2 MiB
//! ```
//!
//! Everything before `data_offset` is the *control area*: 64-bit words, read and written as atomics only. The
//! area's pages are reserved when the segment is created, so touching them can never fail.
//!
//! The header (little-endian):
//!
//! ```text
//!   0 magic "BVKSEGM1"      40 generation u64          88 extent_count u64
//!   8 format version u32    48 incarnation 16 bytes    96 data_offset u64
//!  12 byte-order mark u32   64 budget u64             104 file_len u64
//!  16 checksum u64          72 node_ranks u32         112 slots per rank u32
//!  24 job u64               76 group_size u32         116 operations per board u32
//!  32 group u64             80 extent_size u64        120 store u64
//! ```
//!
//! A slot entry is 16 words; those that are not named are zero:
//!
//! ```text
//!  0 state (low 8 bits) and use count (the rest)    4 version
//!  1 offset in the file                             5 hash of the checkpoint's name
//!  2 length in bytes                                6 committed level (low 8 bits) and the check word's other bits
//!  3 operation                                      7 check word: checksum of words 1 to 5, use count, rank and index
//! ```
//!
//! A token is 16 words, a rank's wishes are 32 words, one for each token (`token.rs` says what the words hold):
//!
//! ```text
//! token   0-7 holders   8 tickets drawn   9 rank that was served last, + 1   10 capacity, 0 means 1   11-15 zero
//! wishes  0-15 for the links   16 for pinning   17-31 zero
//! ```
#![forbid(unsafe_code)]

use super::SegmentSpec;
use super::state::SlotState;
use crate::base::ids::{Generation, Incarnation, Level};
use crate::base::units::{MIB, page_ceil};
use crate::format::{self, Fields, FormatError, checksum, put_u32, put_u64};

/// Length of the header that is read, checked and written.
pub(super) const HEADER_LEN: usize = 128;
/// Slots that one rank can have in use at once.
pub const SLOTS_PER_RANK: u32 = 64;
/// Operations that a board holds; an operation replaces the one whose number is lower by this many.
pub const BOARD_OPERATIONS: u64 = 64;
/// Shared links for which a node has a token.
pub const TOKEN_LINKS: u32 = 16;
/// Ranks that can hold a token at once, if its capacity allows it.
pub const TOKEN_HOLDERS_MAX: u32 = 8;
/// The smallest extent, the alignment of the data area and the size of a huge page.
pub const EXTENT_MIN: u64 = 2 * MIB;

/// About how many extents a segment is cut into when its budget is large. With this number, the owner table takes 256 KiB.
const EXTENTS_AIM: u64 = 16384;
/// The maximum number of ranks on one node that a header may state; a larger number marks the header as garbage.
pub(super) const NODE_RANKS_MAX: u32 = 16384;
/// The largest budget: 64 TiB keeps all offsets far from overflow.
pub(super) const BUDGET_MAX: u64 = 1 << 46;

const MAGIC: &[u8; 8] = b"BVKSEGM1";
const WHAT: &str = "memory segment";
const HEADER_AREA: u64 = 4096;
const SLOT_BYTES: u64 = 128;
const BOARD_ENTRY_BYTES: u64 = 32;
const EXTENT_ENTRY_BYTES: u64 = 16;
const TOKEN_BYTES: u64 = 128;
const WISHES_BYTES: u64 = 256;
/// The tokens of the links and the pinning token.
pub(super) const TOKENS: u32 = TOKEN_LINKS + 1;

const AT_CHECKSUM: usize = 16;
const AT_JOB: usize = 24;
const AT_GROUP: usize = 32;
const AT_GENERATION: usize = 40;
const AT_INCARNATION: usize = 48;
const AT_BUDGET: usize = 64;
const AT_NODE_RANKS: usize = 72;
const AT_GROUP_SIZE: usize = 76;
const AT_EXTENT_SIZE: usize = 80;
const AT_EXTENT_COUNT: usize = 88;
const AT_DATA_OFFSET: usize = 96;
const AT_FILE_LEN: usize = 104;
const AT_SLOTS: usize = 112;
const AT_BOARD: usize = 116;
const AT_STORE: usize = 120;

/// What a segment's header says: to whom the segment belongs and how it is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Hash of the job's key.
    pub job: u64,
    /// Hash of the group's name.
    pub group: u64,
    /// The run that made the segment.
    pub generation: Generation,
    /// That run's random identity.
    pub incarnation: Incarnation,
    /// Hash of the id of that run's store; 0: it had none.
    pub store: u64,
    /// Bytes of data that the ranks of the node may use together.
    pub budget: u64,
    /// Ranks of the group on this node.
    pub node_ranks: u32,
    /// Ranks of the group on all nodes.
    pub group_size: u32,
    /// Size of an extent in bytes, a multiple of 2 MiB.
    pub extent_size: u64,
    /// Number of extents: the whole ones that fit into the budget.
    pub extent_count: u64,
}

impl SegmentHeader {
    /// The header of a new segment. The caller has checked the limits of the specification.
    pub(super) fn of(spec: &SegmentSpec) -> SegmentHeader {
        let extent_size = (spec.budget / EXTENTS_AIM).next_multiple_of(EXTENT_MIN).max(EXTENT_MIN);
        SegmentHeader {
            job: spec.job,
            group: spec.group,
            generation: spec.generation,
            incarnation: spec.incarnation,
            store: spec.store,
            budget: spec.budget,
            node_ranks: spec.node_ranks,
            group_size: spec.group_size,
            extent_size,
            extent_count: spec.budget / extent_size,
        }
    }

    fn slots_offset(&self) -> u64 {
        HEADER_AREA
    }

    fn boards_offset(&self) -> u64 {
        self.slots_offset() + u64::from(self.node_ranks) * u64::from(SLOTS_PER_RANK) * SLOT_BYTES
    }

    fn extents_offset(&self) -> u64 {
        self.boards_offset() + (u64::from(self.node_ranks) + 1) * BOARD_OPERATIONS * BOARD_ENTRY_BYTES
    }

    fn extents_end(&self) -> u64 {
        self.extents_offset() + self.extent_count * EXTENT_ENTRY_BYTES
    }

    fn tokens_offset(&self) -> u64 {
        self.extents_end().next_multiple_of(TOKEN_BYTES)
    }

    fn wishes_offset(&self) -> u64 {
        self.tokens_offset() + u64::from(TOKENS) * TOKEN_BYTES
    }

    /// Length of the control area, in whole pages. The pages between its end and the data area are never touched.
    pub(super) fn control_len(&self) -> u64 {
        page_ceil(self.wishes_offset() + u64::from(self.node_ranks) * WISHES_BYTES)
    }

    /// Start of the first extent in the file.
    pub(super) fn data_offset(&self) -> u64 {
        self.control_len().next_multiple_of(EXTENT_MIN)
    }

    /// Bytes of all extents together.
    pub fn data_len(&self) -> u64 {
        self.extent_count * self.extent_size
    }

    /// Length of the file; most of it consists of holes until it is used.
    pub fn file_len(&self) -> u64 {
        self.data_offset() + self.data_len()
    }

    /// Offset of the first word of a slot entry.
    pub(super) fn slot_offset(&self, node_rank: u32, index: u32) -> u64 {
        self.slots_offset() + (u64::from(node_rank) * u64::from(SLOTS_PER_RANK) + u64::from(index)) * SLOT_BYTES
    }

    /// Offset of the entry of an operation on a board; the board after the last rank's is the node's.
    pub(super) fn board_offset(&self, board: u32, operation: u64) -> u64 {
        let entry = u64::from(board) * BOARD_OPERATIONS + operation % BOARD_OPERATIONS;
        self.boards_offset() + entry * BOARD_ENTRY_BYTES
    }

    /// Offset of the owner word of an extent; the word after it says whether its pages are reserved.
    pub(super) fn extent_offset(&self, extent: u64) -> u64 {
        self.extents_offset() + extent * EXTENT_ENTRY_BYTES
    }

    /// Offset of the first word of a token.
    pub(super) fn token_offset(&self, token: u32) -> u64 {
        self.tokens_offset() + u64::from(token) * TOKEN_BYTES
    }

    /// Offset of the word with a rank's wish for a token.
    pub(super) fn wish_offset(&self, node_rank: u32, token: u32) -> u64 {
        self.wishes_offset() + u64::from(node_rank) * WISHES_BYTES + u64::from(token) * 8
    }

    /// Does `[offset, offset + length)` lie inside the data area?
    pub(super) fn holds_data(&self, offset: u64, length: u64) -> bool {
        offset >= self.data_offset() && offset.checked_add(length).is_some_and(|end| end <= self.file_len())
    }

    /// The bytes of the header, checksum included.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes: [u8; HEADER_LEN] = format::header(MAGIC);
        put_u64(&mut bytes, AT_JOB, self.job);
        put_u64(&mut bytes, AT_GROUP, self.group);
        put_u64(&mut bytes, AT_GENERATION, self.generation.0);
        bytes[AT_INCARNATION..AT_INCARNATION + 16].copy_from_slice(&self.incarnation.0);
        put_u64(&mut bytes, AT_STORE, self.store);
        put_u64(&mut bytes, AT_BUDGET, self.budget);
        put_u32(&mut bytes, AT_NODE_RANKS, self.node_ranks);
        put_u32(&mut bytes, AT_GROUP_SIZE, self.group_size);
        put_u64(&mut bytes, AT_EXTENT_SIZE, self.extent_size);
        put_u64(&mut bytes, AT_EXTENT_COUNT, self.extent_count);
        put_u64(&mut bytes, AT_DATA_OFFSET, self.data_offset());
        put_u64(&mut bytes, AT_FILE_LEN, self.file_len());
        put_u32(&mut bytes, AT_SLOTS, SLOTS_PER_RANK);
        put_u32(&mut bytes, AT_BOARD, BOARD_OPERATIONS as u32);
        let sum = checksum(&bytes);
        put_u64(&mut bytes, AT_CHECKSUM, sum);
        bytes
    }

    /// Reads a header and checks every value, so that all offsets computed from it are within `file_len`.
    pub(super) fn decode(bytes: &[u8]) -> Result<SegmentHeader, FormatError> {
        let fields = Fields::open(WHAT, bytes, HEADER_LEN, MAGIC)?;
        fields.verify(AT_CHECKSUM)?;
        fields.expect_zeros(AT_STORE + 8..HEADER_LEN)?;
        let header = SegmentHeader {
            job: fields.u64(AT_JOB),
            group: fields.u64(AT_GROUP),
            generation: Generation(fields.u64(AT_GENERATION)),
            incarnation: Incarnation(fields.array(AT_INCARNATION)),
            store: fields.u64(AT_STORE),
            budget: fields.u64(AT_BUDGET),
            node_ranks: fields.u32(AT_NODE_RANKS),
            group_size: fields.u32(AT_GROUP_SIZE),
            extent_size: fields.u64(AT_EXTENT_SIZE),
            extent_count: fields.u64(AT_EXTENT_COUNT),
        };
        header.check()?;
        let cut = (fields.u64(AT_DATA_OFFSET), fields.u64(AT_FILE_LEN), fields.u32(AT_SLOTS), fields.u32(AT_BOARD));
        let expected = (header.data_offset(), header.file_len(), SLOTS_PER_RANK, BOARD_OPERATIONS as u32);
        if cut != expected {
            return Err(FormatError::invalid(WHAT, format!("areas at {cut:?}, expected {expected:?}")));
        }
        Ok(header)
    }

    /// The rules that keep the arithmetic above from overflowing.
    fn check(&self) -> Result<(), FormatError> {
        let broken = if self.node_ranks == 0 || self.node_ranks > NODE_RANKS_MAX {
            format!("{} ranks on the node", self.node_ranks)
        } else if self.group_size < self.node_ranks {
            format!("{} ranks on the node, {} in the group", self.node_ranks, self.group_size)
        } else if self.budget > BUDGET_MAX {
            format!("a budget of {} bytes", self.budget)
        } else if self.extent_size < EXTENT_MIN || !self.extent_size.is_multiple_of(EXTENT_MIN) {
            format!("extents of {} bytes", self.extent_size)
        } else if self.extent_count != self.budget / self.extent_size {
            format!("{} extents of {} bytes in {}", self.extent_count, self.extent_size, self.budget)
        } else {
            return Ok(());
        };
        Err(FormatError::invalid(WHAT, broken))
    }
}

/// The words of a slot entry that its check word covers, and the entry's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SlotWords {
    pub(super) uses: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) operation: u64,
    pub(super) version: u64,
    pub(super) name: u64,
}

impl SlotWords {
    /// The check word of an entry with these contents at this place.
    pub(super) fn check_word(&self, node_rank: u32, index: u32) -> u64 {
        let mut bytes = [0u8; 56];
        let place = u64::from(node_rank) << 32 | u64::from(index);
        let words = [self.uses, self.offset, self.length, self.operation, self.version, self.name, place];
        for (at, word) in words.into_iter().enumerate() {
            put_u64(&mut bytes, at * 8, word);
        }
        checksum(&bytes)
    }
}

/// Byte offsets of the words of a slot entry.
pub(super) mod slot_word {
    pub(in super::super) const STATE: u64 = 0;
    pub(in super::super) const OFFSET: u64 = 8;
    pub(in super::super) const LENGTH: u64 = 16;
    pub(in super::super) const OPERATION: u64 = 24;
    pub(in super::super) const VERSION: u64 = 32;
    pub(in super::super) const NAME: u64 = 40;
    pub(in super::super) const LEVEL: u64 = 48;
    pub(in super::super) const CHECK: u64 = 56;
}

/// Byte offsets of the words of a token; the holders come first.
pub(super) mod token_word {
    pub(in super::super) const TICKETS: u64 = 64;
    pub(in super::super) const SERVED: u64 = 72;
    pub(in super::super) const CAPACITY: u64 = 80;
}

/// State and use count in one word.
pub(super) fn pack_state(state: SlotState, uses: u64) -> u64 {
    uses << 8 | state.code()
}

/// State (if the code is one) and use count.
pub(super) fn unpack_state(word: u64) -> (Option<SlotState>, u64) {
    (SlotState::from_code(word & 0xff), word >> 8)
}

/// A bit of the level word: the slot is not itself a level, and is given back when the writes under way are done.
pub(super) const PASSING: u64 = 0x80;

/// The level word: it carries most of the entry's check word, so it is valid only for the entry for which it was made.
pub(super) fn pack_level(level: Level, check: u64) -> u64 {
    let code = match level {
        Level::Captured => 0,
        Level::Process => 1,
        Level::NodeReboot => 2,
        Level::NodeLoss => 3,
        Level::System => 4,
    };
    (check & !0xff) | code
}

/// The level, if the word belongs to the entry that has this check word.
pub(super) fn unpack_level(word: u64, check: u64) -> Option<Level> {
    if word & !0xff != check & !0xff {
        return None;
    }
    let levels = [Level::Captured, Level::Process, Level::NodeReboot, Level::NodeLoss, Level::System];
    levels.into_iter().find(|level| pack_level(*level, check) == word & !PASSING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::GIB;
    use crate::format::AT_VERSION;

    fn spec(budget: u64, node_ranks: u32) -> SegmentSpec {
        SegmentSpec {
            directory: "/dev/shm".into(),
            name: "x".into(),
            job: 1,
            group: 2,
            generation: Generation(3),
            incarnation: Incarnation([4; 16]),
            store: 0,
            budget,
            node_ranks,
            group_size: node_ranks,
        }
    }

    #[test]
    fn headers_read_back() {
        for (budget, ranks) in [(0, 1), (1, 2), (2 * MIB, 1), (GIB, 4), (BUDGET_MAX, NODE_RANKS_MAX)] {
            let header = SegmentHeader::of(&spec(budget, ranks));
            assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
            assert!(header.data_len() <= budget);
            assert!(header.control_len() <= header.data_offset());
            assert_eq!(header.data_offset() % EXTENT_MIN, 0);
        }
    }

    #[test]
    fn a_header_of_another_version_is_refused_by_its_number() {
        let mut other = SegmentHeader::of(&spec(4 * MIB, 2)).encode();
        put_u32(&mut other, AT_VERSION, 2);
        assert_eq!(SegmentHeader::decode(&other), Err(FormatError::Version { what: WHAT, found: 2 }));
    }

    #[test]
    fn words_of_tokens_and_wishes_lie_apart_in_the_control_area() {
        for (budget, ranks) in [(0, 1), (3 * GIB, 3), (BUDGET_MAX, NODE_RANKS_MAX)] {
            let header = SegmentHeader::of(&spec(budget, ranks));
            assert!(header.extent_offset(header.extent_count) <= header.token_offset(0));
            assert!(header.token_offset(TOKENS) <= header.wish_offset(0, 0));
            assert!(header.wish_offset(0, TOKENS) <= header.wish_offset(1, 0));
            assert!(header.wish_offset(ranks - 1, TOKENS) <= header.control_len());
            assert!(u64::from(TOKEN_HOLDERS_MAX) * 8 <= token_word::TICKETS && token_word::CAPACITY + 8 <= TOKEN_BYTES);
        }
    }

    #[test]
    fn large_budgets_keep_the_extent_table_small() {
        let header = SegmentHeader::of(&spec(512 * GIB, 64));
        assert_eq!(header.extent_size, 32 * MIB);
        assert_eq!(header.extent_count, 16384);
    }

    #[test]
    fn any_flipped_bit_of_a_header_is_found() {
        let good = SegmentHeader::of(&spec(GIB, 4)).encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(SegmentHeader::decode(&good[..100]).is_err());
    }

    #[test]
    fn hostile_values_with_a_right_checksum_are_refused() {
        let cases: [(usize, u64); 5] = [
            (AT_BUDGET, u64::MAX),
            (AT_EXTENT_SIZE, 1),
            (AT_EXTENT_COUNT, u64::MAX),
            (AT_DATA_OFFSET, 4096),
            (AT_FILE_LEN, u64::MAX),
        ];
        for (at, value) in cases {
            let mut bytes = SegmentHeader::of(&spec(GIB, 4)).encode();
            put_u64(&mut bytes, at, value);
            put_u64(&mut bytes, AT_CHECKSUM, 0);
            let sum = checksum(&bytes);
            put_u64(&mut bytes, AT_CHECKSUM, sum);
            assert!(matches!(SegmentHeader::decode(&bytes), Err(FormatError::Invalid { .. })), "offset {at}");
        }
    }

    #[test]
    fn a_level_word_counts_for_its_own_entry_only() {
        for level in [Level::Captured, Level::Process, Level::NodeReboot, Level::NodeLoss, Level::System] {
            let word = pack_level(level, 0xdead_beef_0123_4567);
            assert_eq!(unpack_level(word, 0xdead_beef_0123_4567), Some(level));
            assert_eq!(unpack_level(word | PASSING, 0xdead_beef_0123_4567), Some(level));
            assert_eq!(unpack_level(word, 0xdead_beef_0123_9967), None);
        }
        assert_eq!(unpack_level(0xff, 0), None);
    }

    #[test]
    fn the_check_word_depends_on_every_field_and_on_the_place() {
        let words = SlotWords { uses: 1, offset: 2, length: 3, operation: 4, version: 5, name: 6 };
        let base = words.check_word(0, 0);
        let others = [
            SlotWords { uses: 9, ..words }.check_word(0, 0),
            SlotWords { offset: 9, ..words }.check_word(0, 0),
            SlotWords { length: 9, ..words }.check_word(0, 0),
            SlotWords { operation: 9, ..words }.check_word(0, 0),
            SlotWords { version: 9, ..words }.check_word(0, 0),
            SlotWords { name: 9, ..words }.check_word(0, 0),
            words.check_word(1, 0),
            words.check_word(0, 1),
        ];
        assert!(others.iter().all(|other| *other != base));
    }
}
