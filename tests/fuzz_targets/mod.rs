//! The fuzz targets: one function per decoder of bytes that somebody else may have written.
//!
//! `tests/fuzz_smoke.rs` (stable, no dependencies, in CI) and the targets of `cargo fuzz` in `fuzz/` share them. Each
//! function takes any bytes, must not panic and must not allocate much. It uses the decoded value as the library would,
//! and returns how far the bytes got, so that a fuzzer that never passes a checksum is noticed.
#![allow(dead_code)] // Each program uses a part of this.

use bivouac_core::Config;
use bivouac_core::affinity::machine::{Cpu, Machine, Node};
use bivouac_core::affinity::mapping::{Mapping, Now, Target};
use bivouac_core::affinity::record::{Record, RegionPlace};
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::rng::Rng;
use bivouac_core::coordination::core::Message;
use bivouac_core::decomposition::{self, Identity, PackedParts, Rule, View};
use bivouac_core::format::container::{FOOTER_LEN, Footer};
use bivouac_core::format::frames::Expander;
use bivouac_core::format::packed::{Outline, Packing, Stored, regions_of};
use bivouac_core::format::profile::{FIGURES_MAX, Profile, ProfileError};
use bivouac_core::format::shard::Head;
use bivouac_core::format::{Container, ElementType, FormatError, Manifest, Region, RegionKind, codec};
use bivouac_core::planner::{presets, profiled};
use bivouac_core::redundancy::domains::{Topology, TopologyError, domains_of};
use bivouac_core::redundancy::part::{parity_region, set_of};
use bivouac_core::segment::{OldSegment, SegmentError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far the bytes got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    /// Refused by length, magic, version, byte order or checksum.
    Frame,
    /// Refused by a rule that is checked after the checksum.
    Rules,
    /// Decoded.
    Value,
}

fn reached(error: &FormatError) -> Reached {
    // A refusal can also be printed.
    assert!(!error.to_string().is_empty());
    if matches!(error, FormatError::Invalid { .. }) { Reached::Rules } else { Reached::Frame }
}

/// The head of a shard: header, region table, block index.
pub fn shard_head(bytes: &[u8]) -> Reached {
    let head = match Head::decode(bytes) {
        Ok(head) => head,
        Err(error) => return reached(&error),
    };
    let header = &head.header;
    assert!(header.body_offset <= bytes.len() as u64 && header.rank.0 < header.group_size);
    assert_eq!(head.digests.len() as u64, header.block_count);
    for region in &head.meta.regions {
        assert!(header.body_offset + region.offset + region.bytes <= header.total_len);
        assert!(region.blocks(u64::from(header.block_size)) <= header.block_count);
    }
    assert_eq!(head.blocks().count() as u64, header.block_count);
    assert!(head.blocks().all(|(at, length, _)| length > 0 && at + length <= header.total_len));
    Reached::Value
}

/// A parity part: a head, and the set in its first region.
pub fn parity_part(bytes: &[u8]) -> Reached {
    let head = match Head::decode(bytes) {
        Ok(head) => head,
        Err(error) => return reached(&error),
    };
    let body = head.region("set").map(|region| head.header.body_offset + region.offset).unwrap_or(0);
    let length = head.region("set").map_or(0, |region| region.bytes);
    let Some(encoded) = bytes.get(body as usize..(body + length) as usize) else { return Reached::Rules };
    match set_of(&head, encoded) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Reached::Rules
        }
        Ok((set, place)) => {
            assert_eq!(set.place(head.header.rank), Some(place));
            assert!(set.data() >= 1 && set.chunk().is_multiple_of(4096));
            for chunk in 0..set.data() {
                let stripe = set.place_of_chunk(place, chunk).stripe;
                assert_eq!(set.data_member(stripe, chunk), place);
                assert!(set.shard_range(place, chunk, 0..set.chunk()).end <= set.members[place].1);
            }
            assert!((0..set.parity).all(|parity| parity_region(&head, parity).is_some()));
            Reached::Value
        }
    }
}

/// A packed shard: its head, and the contents of its first four regions.
pub fn packed_shard(bytes: &[u8]) -> Reached {
    let head = match Head::decode(bytes) {
        Ok(head) => head,
        Err(error) => return reached(&error),
    };
    let Ok([first, sources, extents, frames, own]) = regions_of(&head) else { return Reached::Rules };
    let body = |region: &Region| {
        let start = head.header.body_offset + region.offset;
        bytes.get(start as usize..(start + region.bytes) as usize)
    };
    let bodies = [first, sources, extents, frames].map(body);
    let [Some(first), Some(sources), Some(extents), Some(frames)] = bodies else { return Reached::Rules };
    let outline = Outline::decode(&head, first.to_vec(), sources);
    match outline.and_then(|outline| Packing::decode(&head, outline, [extents, frames])) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Reached::Rules
        }
        Ok(packing) => {
            let whole = &packing.outline.head.header;
            assert!(packing.extents.iter().all(|extent| extent.end() <= whole.total_len - whole.body_offset));
            assert!(packing.extents.windows(2).all(|pair| pair[0].end() <= pair[1].at));
            let in_all: u64 = packing.extents.iter().map(|extent| extent.length).sum();
            assert_eq!(in_all, packing.outline.head.meta.regions.iter().map(|region| region.bytes).sum::<u64>());
            for extent in &packing.extents {
                assert_eq!(packing.extents_in(extent.at..extent.end()), [*extent]);
                let own = packing.own_range(extent.at..extent.end());
                assert_eq!(own, (extent.stored == Stored::Own).then_some(extent.own_before));
                assert!(own.is_none_or(|from| from + extent.length <= packing.own_bytes()));
            }
            expand_frames(&packing, bytes.get((head.header.body_offset + own.offset) as usize..).unwrap_or_default());
            Reached::Value
        }
    }
}

/// Expands all frames of a packed shard that has these own bytes.
fn expand_frames(packing: &Packing, own: &[u8]) {
    let mut expander = Expander::new().expect("there is memory");
    for frame in packing.frames.iter().filter(|frame| frame.is_compressed()) {
        assert_eq!(packing.frames_in(frame.at..frame.at + frame.bytes).len(), 1);
        let mut bytes = vec![0; frame.bytes as usize];
        if let Some(stored) = own.get(frame.stored_at as usize..(frame.stored_at + frame.stored) as usize) {
            let _ = expander.expand(stored, frame.element, &mut bytes);
        }
    }
}

/// A container file: footer, index, and the heads of all shards.
pub fn container_tail(bytes: &[u8]) -> Reached {
    let decode = || {
        let footer =
            Footer::decode(bytes.get(bytes.len().saturating_sub(FOOTER_LEN)..).unwrap_or(&[]), bytes.len() as u64)?;
        let tail = &bytes[footer.index_offset as usize..];
        assert_eq!(tail.len(), footer.tail_len());
        Container::decode(&footer, tail)
    };
    match decode() {
        Err(error) => reached(&error),
        Ok(container) => {
            for entry in &container.entries {
                shard_head(&bytes[entry.offset as usize..(entry.offset + entry.length) as usize]);
            }
            Reached::Value
        }
    }
}

/// A manifest.
pub fn manifest(bytes: &[u8]) -> Reached {
    match Manifest::decode(bytes) {
        Err(error) => reached(&error),
        Ok(manifest) => {
            // Flags that a reader may ignore can differ.
            let again = manifest.encode().expect("what was read can be written");
            assert_eq!((&again[48..], again.len()), (&bytes[48..], bytes.len()));
            let operation = manifest.key.operation;
            assert!(manifest.sources.iter().all(|source| source.key.operation < operation));
            for container in &manifest.containers {
                assert!(!container.file.contains('/') && !container.file.is_empty());
                assert!(container.ranks.iter().all(|rank| manifest.container_of(*rank) == Some(container)));
            }
            Reached::Value
        }
    }
}

/// A message between ranks.
pub fn message(bytes: &[u8]) -> Reached {
    match codec::decode::<Message>("message", bytes) {
        Err(error) => reached(&error),
        Ok(message) => {
            assert_eq!(codec::encode("message", &message).expect("what was read can be written"), bytes);
            Reached::Value
        }
    }
}

/// The text of a configuration file.
pub fn config_toml(bytes: &[u8]) -> Reached {
    let Ok(text) = std::str::from_utf8(bytes) else { return Reached::Frame };
    match Config::from_toml(text) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Reached::Rules
        }
        Ok(config) => {
            config.check().expect("what was read from text passes the check");
            Reached::Value
        }
    }
}

/// The text of a topology: a file in Bivouac's form, or the output of SLURM.
pub fn topology(bytes: &[u8]) -> Reached {
    let Ok(text) = std::str::from_utf8(bytes) else { return Reached::Frame };
    let ours: Vec<String> = ["node1", "node02", "NODE17.example", "x", ""].map(str::to_owned).to_vec();
    let read = |topology: Result<Topology, TopologyError>| match topology.and_then(|read| domains_of(&ours, &read)) {
        Err(error) => {
            assert!((1..4000).contains(&error.to_string().len()));
            let is_frame = matches!(error, TopologyError::Syntax { .. } | TopologyError::Nothing { .. });
            if is_frame { Reached::Frame } else { Reached::Rules }
        }
        Ok(domains) => {
            assert_eq!(domains.of_node.len(), ours.len());
            assert!(domains.of_node.iter().all(|domain| (*domain as usize) < domains.names.len()));
            Reached::Value
        }
    };
    match (read(Topology::from_toml(text)), read(Topology::from_slurm(text))) {
        (Reached::Frame, other) => other,
        (file, _) => file,
    }
}

/// The text of a machine profile: decoded, and used for a plan.
pub fn profile(bytes: &[u8]) -> Reached {
    let Ok(text) = std::str::from_utf8(bytes) else { return Reached::Frame };
    let profile = match Profile::decode(text) {
        Ok(profile) => profile,
        Err(error) => {
            assert!((1..4000).contains(&error.to_string().len()));
            return if matches!(error, ProfileError::Key { .. }) { Reached::Rules } else { Reached::Frame };
        }
    };
    assert!(profile.figures.len() <= FIGURES_MAX);
    assert_eq!(Profile::decode(&profile.encode()).as_ref(), Ok(&profile));
    let machine = presets::named("laptop").expect("known");
    for (_, costs) in profiled::levels(&profile, &machine).levels {
        let numbers = [costs.fixed, costs.blocking, costs.latency, costs.slowdown, costs.recovery, costs.rate];
        assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{costs:?}");
        assert!((0.0..=1.0).contains(&costs.volume.share(100.0)), "{costs:?}");
    }
    Reached::Value
}

/// An affinity record: decoded, and mapped to a small machine as in a restart.
pub fn affinity_record(bytes: &[u8]) -> Reached {
    let record = match Record::decode(bytes) {
        Ok(record) => record,
        Err(error) => return reached(&error),
    };
    let machine = Machine {
        cpus: (0..8)
            .map(|number| Cpu { number, core: number, cache: number / 4, package: 0, node: number / 4 })
            .collect(),
        nodes: (0..2).map(|number| Node { number, bytes: 1 << 30 }).collect(),
        ..Machine::default()
    };
    let (allowed, gpus) = ((1..7).collect(), [String::from("0000:17:00.0")]);
    let (machine, neighbours) = (&machine, &record.neighbours[..]);
    let now = Now {
        machine,
        whole: machine,
        allowed: &allowed,
        neighbours,
        has_strangers: false,
        rank: 1,
        gpus: &gpus,
        cpus: None,
    };
    let back = Mapping::new(&record, &Now { has_strangers: true, ..now });
    assert!(record.threads.iter().filter_map(|thread| back.cpus_for(thread)).all(|cpus| cpus.is_subset(&allowed)));
    let mapping = Mapping::new(&record, &now);
    for thread in &record.threads {
        let cpus = mapping.cpus_for(thread);
        assert!(cpus.is_none_or(|cpus| !cpus.is_empty() && cpus.is_subset(&allowed)));
    }
    assert!(mapping.losses().iter().all(|loss| (1..1 << 16).contains(&loss.to_string().len())));
    for (_, place) in &record.regions {
        let RegionPlace::Host { pages, .. } = place else { continue };
        for node in pages.counts().into_keys().flatten() {
            assert!(matches!(mapping.node_for(node), Target::Node(0 | 1) | Target::Spread(_)));
        }
        // A map that does not belong to the region is ignored; a map that does is moved to the region's present place.
        let bytes = pages.pages() * 4096 - u64::from(pages.offset).min(pages.pages() * 4096);
        if bytes < 1 << 40 && pages.check(bytes).is_ok() {
            let wanted = mapping.place(pages, bytes, 0x7000_0123);
            assert_eq!(wanted.check(bytes), Ok(()));
            wanted.mixed_blocks(0x7000_0123).iter().for_each(|block| assert_eq!(block % (2 << 20), 0));
        }
    }
    Reached::Value
}

/// A decomposition record: decoded and encoded again, read both in place and unpacked, and checked against regions of all kinds.
pub fn decomposition_record(bytes: &[u8]) -> Reached {
    let record = match decomposition::Record::decode(bytes) {
        Ok(record) => record,
        Err(error) => return reached(&error),
    };
    assert_eq!(record.encode(), bytes);
    for (_, parts) in &record.decompositions {
        assert!(parts.own().iter().all(|own| parts.whole().contains(own)));
        let first = parts.own().iter().find(|own| !own.is_empty());
        assert!(first.is_none_or(|own| parts.whole().common(own) == Some(*own)));
        assert!(parts.own().iter().take(8).all(|own| (3..1000).contains(&own.shown(parts.dims()).to_string().len())));
    }
    // First come regions that fit the record, if they can be that long, and then some that may be anything.
    let count = record.rules.last_key_value().map_or(0, |(last, _)| last.saturating_add(1)).min(64);
    let count = count.max(record.decompositions.len()).max(record.rows.len());
    let with_lists = count + record.lists.len();
    let mut regions: Vec<Region> = (0..count).map(|place| fitting_region(&record, place)).collect();
    regions.extend(record.lists.iter().take(64).enumerate().map(|(place, (_, list))| {
        let bytes = list.count.saturating_mul(2);
        Region::of_bytes(decomposition::ids::region_name(place), RegionKind::Value, bytes)
    }));
    let is_all_there = record.rules.keys().all(|place| *place < count);
    let can_be = record.decompositions.iter().all(|(_, parts)| parts.elements().checked_mul(8).is_some());
    let rows = |place: &usize| record.rows_of(*place).is_none_or(|of| row_elements(of).checked_mul(8).is_some());
    let lists = record.lists.iter().all(|(_, list)| list.count.checked_mul(8).is_some());
    let can_be = can_be && lists && record.rules.keys().all(rows);
    if is_all_there && can_be && regions.len() == with_lists {
        assert_eq!(record.check(&regions), Ok(()));
    }
    look_at(&record, bytes, &regions);
    let seed = u64::from_le_bytes(digest_bytes(bytes).0[..8].try_into().expect("eight bytes"));
    let mut rng = Rng::new(seed);
    for _ in 0..4 {
        regions.iter_mut().for_each(|region| change(&mut rng, region));
        regions.truncate(rng.below(regions.len() as u64 + 1) as usize);
        look_at(&record, bytes, &regions);
    }
    Reached::Value
}

fn fitting_region(record: &decomposition::Record, place: usize) -> Region {
    let on = record.of_region(place).map(|(_, parts)| parts.elements()).or(record.rows_of(place).map(row_elements));
    let on = on.or(record.list_of(place).map(|(_, (_, list))| list.count));
    let (kind, elements) = on.map_or((RegionKind::Value, 2), |elements| (RegionKind::Array, elements));
    let bytes = elements.saturating_mul(8);
    let name = match record.rules.get(&place) {
        Some(decomposition::Rule::Rows { set, .. }) => format!("s{set}/r{place}"),
        _ => format!("r{place}"),
    };
    Region { element: ElementType::F64, ..Region::of_bytes(name, kind, bytes) }
}

fn row_elements((rows, width): (&decomposition::RowSet, u32)) -> u64 {
    rows.count.saturating_mul(u64::from(width))
}

fn change(rng: &mut Rng, region: &mut Region) {
    match rng.below(8) {
        0 => region.bytes = rng.next_u64(),
        1 => region.bytes = region.bytes.wrapping_add(rng.below(3)).wrapping_sub(1),
        2 => region.kind = RegionKind::Array,
        3 => region.kind = RegionKind::Value,
        4 => region.element = ElementType::Record(rng.next_u64() as u32),
        5 => region.element = ElementType::U8,
        _ => {}
    }
}

/// Reading the record in place gives the same as reading it unpacked.
fn look_at(record: &decomposition::Record, bytes: &[u8], regions: &[Region]) {
    let checked = record.check(regions);
    assert!(checked.as_ref().err().is_none_or(|error| !error.to_string().is_empty()));
    let view = match View::of(bytes, regions) {
        Ok(view) => view,
        Err(error) => {
            let most = record.decompositions.len().max(record.rules.len()).max(record.rows.len());
            let most = most.max(record.lists.len());
            let has_too_many = most > regions.len();
            return assert!(has_too_many || checked == Err(error));
        }
    };
    assert_eq!((checked, &view.rules, &view.rows), (Ok(()), &record.rules, &record.rows));
    assert_eq!(view.lists, record.lists);
    assert_eq!(view.decompositions.len(), record.decompositions.len());
    for ((identity, packed), (same, parts)) in view.decompositions.iter().zip(&record.decompositions) {
        assert_eq!((identity, packed.elements(), packed.shape()), (same, parts.elements(), parts.shape()));
        assert!(packed.boxes().eq(parts.own().iter().copied()));
        assert_eq!(Identity::of_packed(packed.bytes(), 1, 3), Identity::of_rank(parts, 1, 3));
    }
    for (place, rule) in &view.rules {
        assert_eq!(record.of_region(*place).is_some(), matches!(rule, Rule::On(_)));
    }
}

/// The largest file that a header may request here. The file is sparse and takes no memory.
const FILE_MAX: u64 = 1 << 36;

/// A memory segment that starts with these bytes and is as long as its header says.
pub fn segment_header(bytes: &[u8]) -> Reached {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = Path::new("/dev/shm");
    let name = format!("bivouac-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = folder.join(&name);
    let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.expect("/dev/shm is writable");
    file.write_all(bytes).expect("/dev/shm has room");
    let claimed = bytes.get(104..112).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
    if claimed > bytes.len() as u64 && claimed <= FILE_MAX {
        file.set_len(claimed).expect("a sparse file may be long");
    }
    let opened = OldSegment::open(folder, &name);
    std::fs::remove_file(&path).expect("our own file");
    match opened {
        Err(SegmentError::Damaged { source, .. }) => reached(&source),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Reached::Frame
        }
        Ok(segment) => {
            for slot in segment.slots() {
                // A hole or a torn slot is refused; bytes that are returned can be read and decoded.
                if let Ok(bytes) = segment.bytes(slot) {
                    assert_eq!(bytes.len() as u64, slot.length);
                    shard_head(bytes);
                }
            }
            assert!(!segment.is_alive().expect("nobody locks it"));
            Reached::Value
        }
    }
}

/// A list of numbers after its total and its count from the record: read block by block, and as boxes.
pub fn id_list(bytes: &[u8]) -> Reached {
    let Some((head, packed)) = bytes.split_first_chunk::<16>() else { return Reached::Rules };
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let (total, count) = (word(0).min(decomposition::ELEMENTS_MAX), word(8));
    let mut reader = decomposition::ids::list::Reader::new(total, count);
    let mut numbers = Vec::new();
    let taken = reader.take(packed, |at, some| {
        assert_eq!(at, numbers.len() as u64);
        numbers.extend_from_slice(some);
    });
    assert!(numbers.len() <= packed.len() && numbers.iter().all(|number| *number < total));
    let is_one = taken.is_some() && reader.is_through();
    let head = decomposition::ids::Listed { total, is_sparse: true, count };
    let parts = decomposition::ids::as_parts(head, packed);
    assert_eq!(parts.is_some(), is_one);
    let Some(parts) = parts else { return Reached::Rules };
    let parts = PackedParts::of(&parts).expect("they were packed just now");
    assert!(parts.boxes().flat_map(|own| own.from[0]..own.to[0]).eq(numbers));
    Reached::Value
}
