//! One rank's part of a checkpoint: header, region table, block index, page-aligned bodies.
//!
//! [`ShardMeta`] describes what the rank saved, [`Layout`] computes where each part goes, and [`ShardHeader`] is the first 256 bytes. A
//! writer first makes a layout, whose size is known before a byte of the bodies is copied. It then fills bodies and digests, and calls
//! [`encode_head`] last. A reader calls [`ShardHeader::decode`] on the first page and [`Head::decode`] on everything before the bodies.

use super::{Fields, FormatError, checksum, codec, expect_zeros, header, put_u32, put_u64, verify_checksum};
use crate::base::digest::{DIGEST_ID, Digest};
use crate::base::ids::{CheckpointKey, Generation, Incarnation, Origin, Rank};
use crate::base::units::{KIB, MIB, PAGE, page_ceil};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// The length of the fixed header.
pub const HEADER_LEN: usize = 256;
/// The smallest block that a digest may cover.
pub const BLOCK_MIN: u64 = 4 * KIB;
/// The largest block that a digest may cover.
pub const BLOCK_MAX: u64 = MIB;
/// The maximum number of zeros between the block index and the bodies, beyond those up to the next page.
pub const SPARE_HEAD_MAX: u64 = MIB;

const MAGIC: &[u8; 8] = b"BVKSHRD1";
const MAGIC_PARITY: &[u8; 8] = b"BVKPRTY1";
const MAGIC_PACKED: &[u8; 8] = b"BVKPACK1";
const WHAT: &str = "shard header";
const WHAT_TABLE: &str = "shard region table";

// Field offsets, as listed in docs/FORMAT.md.
const AT_CHECKSUM: usize = 16;
const AT_GENERATION: usize = 24;
const AT_VERSION: usize = 32;
const AT_OPERATION: usize = 40;
const AT_INCARNATION: usize = 48;
const AT_AGREEMENT: usize = 64;
const AT_GROUP_SIZE: usize = 72;
const AT_RANK: usize = 76;
const AT_DIGEST_ID: usize = 80;
const AT_BLOCK_SIZE: usize = 84;
const AT_ORIGIN_GENERATION: usize = 88;
const AT_ORIGIN_VERSION: usize = 96;
const AT_META_LEN: usize = 104;
const AT_BLOCK_COUNT: usize = 112;
const AT_BODY_OFFSET: usize = 120;
const AT_TOTAL_LEN: usize = 128;
const AT_TABLE_CHECKSUM: usize = 136;
const AT_ORIGIN_OPERATION: usize = 144;
const AT_ORIGIN_RESTART: usize = 152;
const AT_FLAGS: usize = 160;
/// One of the flags that a reader may ignore. The shard was taken from live memory, and only the program's declarations kept
/// later writes out of it.
const FLAG_UNAUDITED: u32 = 1;

/// The element type of a region, checked when it is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum ElementType {
    /// Bytes without further meaning.
    U8,
    /// 8-bit signed integers.
    I8,
    /// 16-bit unsigned integers.
    U16,
    /// 16-bit signed integers.
    I16,
    /// 32-bit unsigned integers.
    U32,
    /// 32-bit signed integers.
    I32,
    /// 64-bit unsigned integers.
    U64,
    /// 64-bit signed integers.
    I64,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// A plain record of the application's own, of this many bytes.
    Record(u32),
}

impl ElementType {
    /// The number of bytes per element.
    pub fn bytes(self) -> u64 {
        match self {
            ElementType::U8 | ElementType::I8 => 1,
            ElementType::U16 | ElementType::I16 => 2,
            ElementType::U32 | ElementType::I32 | ElementType::F32 => 4,
            ElementType::U64 | ElementType::I64 | ElementType::F64 => 8,
            ElementType::Record(bytes) => u64::from(bytes),
        }
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ElementType::Record(bytes) => write!(f, "record of {bytes} bytes"),
            plain => f.write_str(&format!("{plain:?}").to_lowercase()),
        }
    }
}

/// How a region is read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum RegionKind {
    /// An array of elements.
    Array,
    /// A small serde value, encoded with [`codec`].
    Value,
}

/// One entry of the region table. Its body starts at `offset` (a multiple of 4096) from the start of the bodies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// The application's name for the region, unique within the shard.
    pub name: String,
    /// Whether the region is an array or a value.
    pub kind: RegionKind,
    /// The element type.
    pub element: ElementType,
    /// Extent of each dimension in elements; the product is the number of elements.
    pub shape: Vec<u64>,
    /// The length of the body in bytes.
    pub bytes: u64,
    /// The start of the body, relative to the header's body offset.
    pub offset: u64,
    /// The index of the region's first block in the block index.
    pub first_block: u64,
}

impl Region {
    /// A region of plain bytes, which [`Layout::new`] has not placed yet.
    pub fn of_bytes(name: impl Into<String>, kind: RegionKind, bytes: u64) -> Region {
        let (name, element, shape) = (name.into(), ElementType::U8, vec![bytes]);
        Region { name, kind, element, shape, bytes, offset: 0, first_block: 0 }
    }

    /// The number of blocks that cover the region.
    pub fn blocks(&self, block_size: u64) -> u64 {
        self.bytes.div_ceil(block_size)
    }
}

/// The region table, and the names that identify the shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardMeta {
    /// The job key (the configured name or the default).
    pub job: String,
    /// The group within the job.
    pub group: String,
    /// The application's name for the checkpoint series.
    pub name: String,
    /// The regions in the order in which they were saved.
    pub regions: Vec<Region>,
}

/// What the bodies contain. The magic bytes say which, so that a reader that knows only shards refuses everything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Content {
    /// The regions of a rank.
    #[default]
    Shard,
    /// A rank's part of the parity of its redundancy set; the header's rank is the one that holds it.
    Parity,
    /// The part of a rank's regions that no earlier file has ([`super::packed`]).
    Packed,
}

impl Content {
    const ALL: [Content; 3] = [Content::Shard, Content::Parity, Content::Packed];

    fn magic(self) -> &'static [u8; 8] {
        match self {
            Content::Shard => MAGIC,
            Content::Parity => MAGIC_PARITY,
            Content::Packed => MAGIC_PACKED,
        }
    }
}

/// The fixed header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardHeader {
    /// What the bodies contain.
    pub content: Content,
    /// The checkpoint.
    pub key: CheckpointKey,
    /// The hash of what all ranks agreed on; the same in all shards of one checkpoint.
    pub agreement: u64,
    /// The number of ranks in the group.
    pub group_size: u32,
    /// The rank whose data this is.
    pub rank: Rank,
    /// The number of bytes per block.
    pub block_size: u32,
    /// The last restart of this series that this run had made, if any.
    pub origin: Option<Origin>,
    /// The length of the encoded [`ShardMeta`].
    pub meta_len: u64,
    /// The number of digests in the block index.
    pub block_count: u64,
    /// The start of the bodies, counted from the start of the shard; a multiple of 4096.
    pub body_offset: u64,
    /// The length of the whole shard; a multiple of 4096.
    pub total_len: u64,
    /// The checksum of the region table and the block index.
    pub table_checksum: u64,
    /// The shard was taken from live memory, and a write that the program forgot to declare may be in it undetected.
    pub is_unaudited: bool,
}

impl ShardHeader {
    /// Reads and checks the fixed header from the first bytes of a shard.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are short, damaged, of another format, or inconsistent.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let has_magic = |content: &Content| bytes.get(..MAGIC.len()) == Some(content.magic());
        let content = Content::ALL.into_iter().find(has_magic).unwrap_or_default();
        let fields = Fields::open(WHAT, bytes, HEADER_LEN, content.magic())?;
        fields.verify(AT_CHECKSUM)?;
        fields.check_flags(AT_FLAGS)?;
        fields.expect_zeros(AT_FLAGS + 8..HEADER_LEN)?;
        let digest_id = fields.u32(AT_DIGEST_ID);
        if digest_id != DIGEST_ID {
            return Err(FormatError::invalid(WHAT, format!("digest algorithm {digest_id} is not known")));
        }
        let header = ShardHeader {
            content,
            key: CheckpointKey {
                generation: Generation(fields.u64(AT_GENERATION)),
                version: fields.u64(AT_VERSION),
                operation: fields.u64(AT_OPERATION),
                incarnation: Incarnation(fields.array(AT_INCARNATION)),
            },
            agreement: fields.u64(AT_AGREEMENT),
            group_size: fields.u32(AT_GROUP_SIZE),
            rank: Rank(fields.u32(AT_RANK)),
            block_size: fields.u32(AT_BLOCK_SIZE),
            origin: match fields.u64(AT_ORIGIN_GENERATION) {
                0 => None,
                generation => Some(Origin {
                    generation: Generation(generation),
                    version: fields.u64(AT_ORIGIN_VERSION),
                    operation: fields.u64(AT_ORIGIN_OPERATION),
                    restart: fields.u64(AT_ORIGIN_RESTART),
                }),
            },
            meta_len: fields.u64(AT_META_LEN),
            block_count: fields.u64(AT_BLOCK_COUNT),
            body_offset: fields.u64(AT_BODY_OFFSET),
            total_len: fields.u64(AT_TOTAL_LEN),
            table_checksum: fields.u64(AT_TABLE_CHECKSUM),
            is_unaudited: fields.u32(AT_FLAGS + 4) & FLAG_UNAUDITED != 0,
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), FormatError> {
        let rule = |holds: bool, why: &str| if holds { Ok(()) } else { Err(FormatError::invalid(WHAT, why)) };
        rule(self.rank.0 < self.group_size, "the rank is outside the group")?;
        rule(valid_block_size(u64::from(self.block_size)), "the block size is not a power of two from 4 KiB to 1 MiB")?;
        rule(self.meta_len <= codec::LIMIT as u64, "the region table is too long")?;
        rule(self.block_count <= u64::MAX / 32, "the block count overflows")?;
        let tables = index_offset(self.meta_len) + 16 * self.block_count;
        let bodies = page_ceil(tables)..=page_ceil(tables) + SPARE_HEAD_MAX;
        rule(bodies.contains(&self.body_offset), "the body offset does not follow the tables")?;
        rule(self.body_offset.is_multiple_of(PAGE), "the bodies do not begin on a page")?;
        rule(self.total_len.is_multiple_of(PAGE) && self.total_len >= self.body_offset, "the total length is wrong")?;
        // A block is at least a page long or ends its region, which is padded to a whole page. So there are no more
        // blocks than pages of body, and a forged count cannot make a reader allocate more index than 1/256 of the file.
        rule(self.block_count <= (self.total_len - self.body_offset) / PAGE, "there are more blocks than pages")
    }

    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes: [u8; HEADER_LEN] = header(self.content.magic());
        put_u64(&mut bytes, AT_GENERATION, self.key.generation.0);
        put_u64(&mut bytes, AT_VERSION, self.key.version);
        put_u64(&mut bytes, AT_OPERATION, self.key.operation);
        bytes[AT_INCARNATION..AT_INCARNATION + 16].copy_from_slice(&self.key.incarnation.0);
        put_u64(&mut bytes, AT_AGREEMENT, self.agreement);
        put_u32(&mut bytes, AT_GROUP_SIZE, self.group_size);
        put_u32(&mut bytes, AT_RANK, self.rank.0);
        put_u32(&mut bytes, AT_DIGEST_ID, DIGEST_ID);
        put_u32(&mut bytes, AT_BLOCK_SIZE, self.block_size);
        if let Some(origin) = self.origin {
            put_u64(&mut bytes, AT_ORIGIN_GENERATION, origin.generation.0);
            put_u64(&mut bytes, AT_ORIGIN_VERSION, origin.version);
            put_u64(&mut bytes, AT_ORIGIN_OPERATION, origin.operation);
            put_u64(&mut bytes, AT_ORIGIN_RESTART, origin.restart);
        }
        put_u64(&mut bytes, AT_META_LEN, self.meta_len);
        put_u64(&mut bytes, AT_BLOCK_COUNT, self.block_count);
        put_u64(&mut bytes, AT_BODY_OFFSET, self.body_offset);
        put_u64(&mut bytes, AT_TOTAL_LEN, self.total_len);
        put_u64(&mut bytes, AT_TABLE_CHECKSUM, self.table_checksum);
        if self.is_unaudited {
            put_u32(&mut bytes, AT_FLAGS + 4, FLAG_UNAUDITED);
        }
        let sum = checksum(&bytes);
        put_u64(&mut bytes, AT_CHECKSUM, sum);
        bytes
    }
}

/// Is this a block size that the format allows?
pub fn valid_block_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (BLOCK_MIN..=BLOCK_MAX).contains(&bytes)
}

fn index_offset(meta_len: u64) -> u64 {
    (HEADER_LEN as u64 + meta_len).next_multiple_of(16)
}

/// Where each part of a shard goes. A layout is made before any body is copied, and keeps the encoded region table. A
/// clone shares `meta` and the encoded table.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The names and regions, with offsets and first blocks filled in.
    pub meta: Arc<ShardMeta>,
    /// The number of bytes per block.
    pub block_size: u64,
    /// The number of blocks over all regions.
    pub block_count: u64,
    /// The start of the bodies.
    pub body_offset: u64,
    /// The length of the whole shard.
    pub total_len: u64,
    encoded_meta: Arc<[u8]>,
}

impl Layout {
    /// Places the regions of `meta` (their `offset` and `first_block` are overwritten).
    ///
    /// # Errors
    /// [`FormatError::Invalid`] if the block size is not allowed, a name occurs twice, a region's length is not
    /// its shape times its element size, or the whole is larger than 2^63 bytes.
    pub fn new(meta: ShardMeta, block_size: u64) -> Result<Self, FormatError> {
        Layout::behind_head(meta, block_size, 0)
    }

    /// A layout whose bodies begin at `head`, a multiple of 4096, or later if the tables are longer.
    ///
    /// # Errors
    /// The errors of [`Layout::new`], and an error for a `head` that leaves more than [`SPARE_HEAD_MAX`] bytes unused.
    pub fn behind_head(mut meta: ShardMeta, block_size: u64, head: u64) -> Result<Self, FormatError> {
        if !valid_block_size(block_size) {
            return Err(FormatError::invalid(WHAT_TABLE, format!("block size {block_size}")));
        }
        let (mut offset, mut blocks) = (0u64, 0u64);
        for region in &mut meta.regions {
            region.offset = offset;
            region.first_block = blocks;
            blocks += region.blocks(block_size);
            offset = offset
                .checked_add(page_ceil(region.bytes))
                .filter(|end| *end < 1 << 62)
                .ok_or_else(|| FormatError::invalid(WHAT_TABLE, format!("region {:?} is too large", region.name)))?;
        }
        check_regions(&meta, block_size, blocks, offset)?;
        let encoded_meta = codec::encode(WHAT_TABLE, &meta)?;
        let least = page_ceil(index_offset(encoded_meta.len() as u64) + 16 * blocks);
        let body_offset = least.max(page_ceil(head));
        if body_offset - least > SPARE_HEAD_MAX {
            return Err(FormatError::invalid(WHAT_TABLE, format!("the bodies cannot begin at {body_offset}")));
        }
        let (meta, encoded_meta) = (meta.into(), encoded_meta.into());
        Ok(Layout { meta, block_size, block_count: blocks, body_offset, total_len: body_offset + offset, encoded_meta })
    }

    /// The number of additional blocks for which there is room before the bodies, whatever the encoded lengths of the regions are.
    pub fn spare_entries(&self) -> u64 {
        let used = index_offset(self.encoded_meta.len() as u64 + 64) + 16 * self.block_count;
        self.body_offset.saturating_sub(used) / 16
    }

    /// Would [`Layout::behind_head`] make this layout from the same names and these regions? This only compares the regions, whereas
    /// `behind_head` computes everything again.
    pub fn is_of<'r>(&self, regions: impl ExactSizeIterator<Item = &'r Region>, block_size: u64, head: u64) -> bool {
        let is_placed = |(known, region): (&Region, &Region)| {
            (known.kind, known.element, known.bytes) == (region.kind, region.element, region.bytes)
                && known.shape == region.shape
                && known.name == region.name
        };
        let least = page_ceil(index_offset(self.encoded_meta.len() as u64) + 16 * self.block_count);
        self.block_size == block_size
            && self.body_offset == least.max(page_ceil(head))
            && self.meta.regions.len() == regions.len()
            && self.meta.regions.iter().zip(regions).all(is_placed)
    }

    /// The header that belongs to this layout; the table checksum is filled in by [`encode_head`].
    pub fn header(
        &self,
        key: CheckpointKey,
        agreement: u64,
        group_size: u32,
        rank: Rank,
        origin: Option<Origin>,
    ) -> ShardHeader {
        ShardHeader {
            content: Content::Shard,
            key,
            agreement,
            group_size,
            rank,
            block_size: self.block_size as u32,
            origin,
            meta_len: self.encoded_meta.len() as u64,
            block_count: self.block_count,
            body_offset: self.body_offset,
            total_len: self.total_len,
            table_checksum: 0,
            is_unaudited: false,
        }
    }
}

/// Writes header, region table and block index into `head`, the first `layout.body_offset` bytes of the shard. Returns the header as
/// written.
///
/// # Panics
/// If `head` or `digests` do not have the layout's lengths: the caller made both from the same layout.
pub fn encode_head(layout: &Layout, header: &ShardHeader, digests: &[Digest], head: &mut [u8]) -> ShardHeader {
    assert_eq!(head.len() as u64, layout.body_offset, "head length");
    assert_eq!(digests.len() as u64, layout.block_count, "digest count");
    let meta_end = HEADER_LEN + layout.encoded_meta.len();
    let index = index_offset(layout.encoded_meta.len() as u64) as usize;
    let end = index + size_of_val(digests);
    head[HEADER_LEN..meta_end].copy_from_slice(&layout.encoded_meta);
    head[meta_end..index].fill(0);
    head[index..end].copy_from_slice(bytemuck::cast_slice(digests));
    head[end..].fill(0);
    let table_checksum = checksum(&head[HEADER_LEN..]);
    let header = ShardHeader { table_checksum, ..header.clone() };
    head[..HEADER_LEN].copy_from_slice(&header.encode());
    header
}

/// Everything before the bodies, decoded and checked.
#[derive(Clone, Debug)]
pub struct Head {
    /// The fixed header.
    pub header: ShardHeader,
    /// Names and regions.
    pub meta: Arc<ShardMeta>,
    /// One digest per block, in region order.
    pub digests: Vec<Digest>,
    /// The regions by name. The table is made when a region is first requested out of order, because there may be
    /// thousands of regions.
    by_name: OnceLock<Vec<u32>>,
}

impl Head {
    /// The head that [`encode_head`] wrote with `layout` and `digests` when it returned `header`.
    pub fn written(layout: &Layout, header: ShardHeader, digests: Vec<Digest>) -> Self {
        Head { header, meta: layout.meta.clone(), digests, by_name: OnceLock::new() }
    }

    /// Checks that these first bytes of a shard are an undamaged head, and that the head belongs to `header`.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are short or damaged, or belong to another shard.
    pub fn check(bytes: &[u8], header: &ShardHeader) -> Result<(), FormatError> {
        match Head::whole(bytes)? {
            (found, _) if found == *header => Ok(()),
            _ => Err(FormatError::invalid(WHAT, "it belongs to another shard")),
        }
    }

    /// Decodes the header, and returns it with all bytes before the bodies.
    fn whole(bytes: &[u8]) -> Result<(ShardHeader, &[u8]), FormatError> {
        let header = ShardHeader::decode(bytes)?;
        let need = header.body_offset;
        let short = FormatError::Short { what: WHAT_TABLE, need, have: bytes.len() as u64 };
        let head = usize::try_from(need).ok().and_then(|need| bytes.get(..need)).ok_or(short)?;
        verify_checksum(WHAT_TABLE, &head[HEADER_LEN..], header.table_checksum)?;
        Ok((header, head))
    }

    /// Decodes the first `header.body_offset` bytes of a shard.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are short, damaged or inconsistent.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (header, head) = Head::whole(bytes)?;
        let meta_end = HEADER_LEN + header.meta_len as usize;
        let meta: ShardMeta = codec::decode(WHAT_TABLE, &head[HEADER_LEN..meta_end])?;
        check_regions(&meta, u64::from(header.block_size), header.block_count, header.total_len - header.body_offset)?;
        let index = index_offset(header.meta_len) as usize;
        expect_zeros(WHAT_TABLE, &head[meta_end..index])?;
        expect_zeros(WHAT_TABLE, &head[index + 16 * header.block_count as usize..])?;
        let mut digests = Vec::new();
        let no_memory = |_| FormatError::invalid(WHAT_TABLE, "no memory for its digests");
        digests.try_reserve_exact(header.block_count as usize).map_err(no_memory)?;
        digests.extend(head[index..].chunks_exact(16).take(header.block_count as usize).map(|bytes| {
            let mut digest = Digest::default();
            digest.0.copy_from_slice(bytes);
            digest
        }));
        Ok(Head { header, meta: meta.into(), digests, by_name: OnceLock::new() })
    }

    /// Where block `index` of the shard is: its offset, length and digest, and its region.
    pub fn block_at(&self, index: u64) -> (u64, u64, Digest, &str) {
        let after = self.meta.regions.partition_point(|region| region.first_block <= index);
        let region = &self.meta.regions[after - 1];
        let size = u64::from(self.header.block_size);
        let from = (index - region.first_block) * size;
        let offset = self.header.body_offset + region.offset + from;
        (offset, size.min(region.bytes - from), self.digests[index as usize], &region.name)
    }

    /// The region of that name.
    pub fn region(&self, name: &str) -> Option<&Region> {
        let mut nowhere = usize::MAX;
        self.region_near(&mut nowhere, name)
    }

    /// The region of that name. It is found at once if regions are requested in the order in which they were saved. `next` is the index
    /// after the last region found.
    pub fn region_near(&self, next: &mut usize, name: &str) -> Option<&Region> {
        let named = |index: usize| &self.meta.regions[index];
        let is_next = self.meta.regions.get(*next).is_some_and(|region| region.name == name);
        if !is_next {
            let by_name = self.by_name.get_or_init(|| {
                let mut by_name: Vec<u32> = (0..self.meta.regions.len() as u32).collect();
                by_name.sort_by_key(|index| &named(*index as usize).name);
                by_name
            });
            let at = by_name.binary_search_by_key(&name, |index| &named(*index as usize).name).ok()?;
            *next = by_name[at] as usize;
        }
        *next += 1;
        Some(named(*next - 1))
    }

    /// Each block of the shard: offset from the start of the shard, length, digest.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64, Digest)> + '_ {
        self.meta.regions.iter().flat_map(|region| self.region_blocks(region))
    }

    /// The blocks of one region, in the same form.
    pub fn region_blocks<'a>(&'a self, region: &'a Region) -> impl Iterator<Item = (u64, u64, Digest)> + 'a {
        let size = u64::from(self.header.block_size);
        let start = self.header.body_offset + region.offset;
        (0..region.blocks(size)).map(move |block| {
            let from = block * size;
            let digest = self.digests[(region.first_block + block) as usize];
            (start + from, size.min(region.bytes - from), digest)
        })
    }
}

/// Checks the rules for region tables, which hold for both writing and reading.
fn check_regions(meta: &ShardMeta, block_size: u64, block_count: u64, body_len: u64) -> Result<(), FormatError> {
    let mut names = std::collections::HashSet::with_capacity(meta.regions.len());
    let (mut offset, mut blocks) = (0u64, 0u64);
    for region in &meta.regions {
        let bad = |why: &str| FormatError::invalid(WHAT_TABLE, format!("region {:?} {why}", region.name));
        if !names.insert(region.name.as_str()) {
            return Err(bad("occurs twice"));
        }
        let elements = region.shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
        if elements.and_then(|n| n.checked_mul(region.element.bytes())) != Some(region.bytes) {
            return Err(bad("has a length that does not match its shape and element size"));
        }
        if region.offset != offset || region.first_block != blocks {
            return Err(bad("does not begin where the region before it ends"));
        }
        blocks += region.blocks(block_size);
        offset = offset.checked_add(page_ceil(region.bytes)).ok_or_else(|| bad("is too large"))?;
        if offset > body_len || blocks > block_count {
            return Err(bad("reaches past the end of the shard"));
        }
    }
    if offset != body_len || blocks != block_count {
        return Err(FormatError::invalid(WHAT_TABLE, "the regions do not fill the shard"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::digest::digest_bytes;

    fn region(name: &str, element: ElementType, shape: &[u64]) -> Region {
        let bytes = shape.iter().product::<u64>() * element.bytes();
        Region {
            name: name.into(),
            kind: RegionKind::Array,
            element,
            shape: shape.into(),
            bytes,
            offset: 0,
            first_block: 0,
        }
    }

    fn sample() -> (Layout, ShardHeader, Vec<u8>) {
        let meta = ShardMeta {
            job: "job".into(),
            group: "world".into(),
            name: "heat".into(),
            regions: vec![
                region("t", ElementType::F64, &[40, 33]),
                region("empty", ElementType::U8, &[0]),
                region("k", ElementType::I32, &[5]),
            ],
        };
        let layout = Layout::new(meta, 4096).unwrap();
        let key =
            CheckpointKey { generation: Generation(3), version: 70, operation: 9, incarnation: Incarnation([5; 16]) };
        let header = layout.header(
            key,
            0xfeed,
            4,
            Rank(2),
            Some(Origin { generation: Generation(2), version: 60, operation: 12, restart: 3 }),
        );
        let mut bytes = vec![0u8; layout.total_len as usize];
        for (i, byte) in bytes[layout.body_offset as usize..].iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        let mut digests = Vec::new();
        for region in &layout.meta.regions {
            let start = (layout.body_offset + region.offset) as usize;
            digests.extend(bytes[start..start + region.bytes as usize].chunks(4096).map(digest_bytes));
        }
        let body = layout.body_offset as usize;
        encode_head(&layout, &header, &digests, &mut bytes[..body]);
        (layout, header, bytes)
    }

    #[test]
    fn a_layout_is_that_of_the_same_regions_only() {
        let (layout, ..) = sample();
        let regions = layout.meta.regions.clone();
        let is_of = |regions: &[Region], block, head| layout.is_of(regions.iter(), block, head);
        let (block, head) = (layout.block_size, layout.body_offset);
        assert!(is_of(&regions, block, 0) && is_of(&regions, block, head));
        assert!(!is_of(&regions, 2 * block, 0) && !is_of(&regions, block, head + 1) && !is_of(&regions[1..], block, 0));
        // The layout determines the places of the regions.
        let mut unplaced = regions.clone();
        unplaced.iter_mut().for_each(|region| (region.offset, region.first_block) = (7, 7));
        assert!(is_of(&unplaced, block, 0));
        let changes: [fn(&mut Region); 5] = [
            |region| region.name.push('x'),
            |region| region.kind = RegionKind::Value,
            |region| region.element = ElementType::Record(5),
            |region| region.shape.push(1),
            |region| region.bytes += 1,
        ];
        for change in changes {
            let mut other = regions.clone();
            change(&mut other[1]);
            assert!(!is_of(&other, block, 0), "{:?}", other[1]);
        }
    }

    #[test]
    fn there_may_be_room_behind_the_tables_up_to_a_limit() {
        let (tight, header, bytes) = sample();
        let wide = Layout::behind_head((*tight.meta).clone(), 4096, 10 * PAGE).unwrap();
        assert_eq!((tight.body_offset, wide.body_offset), (PAGE, 10 * PAGE));
        let shard = |layout: &Layout, body_offset| {
            let header = ShardHeader { body_offset, total_len: layout.total_len, ..header.clone() };
            let digests: Vec<Digest> = Head::decode(&bytes).unwrap().digests;
            let mut moved = vec![0; layout.total_len as usize];
            moved[layout.body_offset as usize..].copy_from_slice(&bytes[tight.body_offset as usize..]);
            encode_head(layout, &header, &digests, &mut moved[..layout.body_offset as usize]);
            Head::decode(&moved)
        };
        let head = shard(&wide, wide.body_offset).unwrap();
        assert_eq!((&head.meta, head.header.body_offset), (&tight.meta, 10 * PAGE));
        assert!(shard(&wide, wide.body_offset + 512).is_err(), "bodies begin on a page");
        assert!(shard(&tight, 0).is_err(), "bodies come behind the tables");
        let far = tight.body_offset + SPARE_HEAD_MAX;
        assert!(Layout::behind_head((*tight.meta).clone(), 4096, far).is_ok());
        assert!(Layout::behind_head((*tight.meta).clone(), 4096, far + PAGE).is_err());
        let widest = Layout::behind_head((*tight.meta).clone(), 4096, far).unwrap();
        assert!(shard(&widest, far).is_ok());
        let beyond = ShardHeader { body_offset: far + PAGE, total_len: widest.total_len + PAGE, ..header.clone() };
        assert!(beyond.check().is_err(), "a forged head makes nobody allocate more");
    }

    #[test]
    fn a_shard_reads_back_as_it_was_written() {
        let (layout, header, bytes) = sample();
        let head = Head::decode(&bytes).unwrap();
        assert_eq!(head.meta, layout.meta);
        assert_eq!(head.header.key, header.key);
        assert_eq!(head.header.origin, header.origin);
        assert_eq!(head.blocks().count() as u64, layout.block_count);
        for (offset, length, digest) in head.blocks() {
            assert_eq!(digest_bytes(&bytes[offset as usize..(offset + length) as usize]), digest);
        }
    }

    #[test]
    fn every_flipped_bit_before_the_bodies_is_noticed() {
        let (layout, _, mut bytes) = sample();
        for bit in 0..layout.body_offset as usize * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn every_truncation_before_the_bodies_is_noticed() {
        let (layout, _, bytes) = sample();
        for length in 0..layout.body_offset as usize {
            assert!(Head::decode(&bytes[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn layouts_refuse_what_the_format_cannot_hold() {
        let meta = |regions| ShardMeta { job: "j".into(), group: "g".into(), name: "n".into(), regions };
        let twice = vec![region("t", ElementType::U8, &[1]), region("t", ElementType::U8, &[1])];
        assert!(Layout::new(meta(twice), 4096).is_err());
        let mut wrong = region("t", ElementType::F64, &[3]);
        wrong.bytes = 23;
        assert!(Layout::new(meta(vec![wrong]), 4096).is_err());
        let mut huge = region("t", ElementType::U8, &[1]);
        (huge.bytes, huge.shape) = (1 << 63, vec![1 << 63]);
        assert!(Layout::new(meta(vec![huge]), 4096).is_err());
        assert!(Layout::new(meta(vec![]), 5000).is_err());
    }
}
