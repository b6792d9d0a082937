//! The contract of chunk tables, for every device.

use bivouac_core::base::digest::digest_bytes;
use bivouac_core::base::rng::Rng;
use bivouac_core::device::chunks::{ChunkTable, Place, TableSize};
use bivouac_core::device::{Device, DeviceError, Priority, Stream};
use bivouac_core::reduction::{Chunks, Field, Found, Grouping, Home, Question, Stretch, kept};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

/// The versions of a series, and where their bytes are known to be stored.
struct Series {
    rng: Rng,
    /// Names and bytes of the regions.
    regions: Vec<(String, Vec<u8>)>,
    /// The number of pages before the first region, which a host region takes.
    pages: usize,
    /// For each version: the bodies, the table's answer, and the offsets of its regions.
    versions: BTreeMap<u64, (Vec<u8>, Found, Vec<u64>)>,
}

impl Series {
    fn new(seed: u64, lengths: &[u64]) -> Series {
        let mut rng = Rng::new(seed);
        let mut region = |(index, length): (usize, &u64)| (format!("r{index}"), random(&mut rng, *length));
        let regions = lengths.iter().enumerate().map(&mut region).collect();
        Series { rng, regions, pages: 0, versions: BTreeMap::new() }
    }

    /// The offset of each region, and the bodies.
    fn bodies(&self) -> (Vec<u64>, Vec<u8>) {
        let (mut places, mut bodies) = (Vec::new(), vec![0; self.pages * 4096]);
        for (_, bytes) in &self.regions {
            places.push(bodies.len() as u64);
            bodies.extend_from_slice(bytes);
            bodies.resize(bodies.len().next_multiple_of(4096), 0);
        }
        (places, bodies)
    }

    fn question(&self, operation: u64, allowed: Vec<u64>, block: u64) -> Question {
        let (places, _) = self.bodies();
        let field = |((name, bytes), at): (&(String, Vec<u8>), u64)| {
            let blocks = bytes.chunks(block as usize).map(digest_bytes).collect();
            Field { name: name.clone(), at, bytes: bytes.len() as u64, blocks }
        };
        let fields = self.regions.iter().zip(places).map(field).collect();
        Question { operation, allowed, block, fields, kept: None, known: Found::new() }
    }

    /// Makes the previous version store the bytes that it had found in versions that may no longer be referred to.
    fn keep(&mut self, asked: &mut Question) {
        let before = asked.operation - 1;
        let names: Vec<String> = asked.fields.iter().map(|field| field.name.clone()).collect();
        let may = |(_, found, _): &&mut (Vec<u8>, Found, Vec<u64>)| found.len() == names.len();
        if let Some((_, found, starts)) = self.versions.get_mut(&before).filter(may) {
            let parts = kept(found, &names, before, &asked.allowed, self.rng.chance(1, 4));
            for part in &parts {
                // From now on this stretch is found in its own version, whether or not it is a chunk.
                let mut at = 0;
                for stretch in found.get_mut(&names[part.field]).into_iter().flatten() {
                    if at == part.start {
                        stretch.home = Home { operation: before, offset: starts[part.field] + at };
                    }
                    at += stretch.bytes;
                }
            }
            asked.kept = Some((before, parts));
        }
    }

    /// Changes some bytes, fills ranges with zeros, moves ranges, takes some from earlier versions, or does nothing.
    fn change(&mut self) {
        for _ in 0..self.rng.below(6) {
            let Some((_, bytes)) = self.regions.iter_mut().max_by_key(|(_, bytes)| bytes.len()) else { return };
            let length = self.rng.below(bytes.len() as u64 / 3 + 1) as usize;
            let at = self.rng.below((bytes.len() - length + 1) as u64) as usize;
            // Most data moves by whole words.
            let at = if self.rng.chance(3, 4) { at & !31 } else { at };
            match self.rng.below(5) {
                0 => bytes[at..at + length].fill(0),
                1 => {
                    let from = self.rng.below((bytes.len() - length + 1) as u64) as usize & !31;
                    bytes.copy_within(from..from + length, at);
                }
                2 => {
                    let other = self.versions.values().next().map(|(bodies, ..)| bodies);
                    if let Some(other) = other.filter(|other| other.len() > length) {
                        let from = self.rng.below((other.len() - length) as u64) as usize & !31;
                        bytes[at..at + length].copy_from_slice(&other[from..from + length]);
                    }
                }
                _ => {
                    let few = length.min(40);
                    let new = random(&mut self.rng, few as u64);
                    bytes[at..at + few].copy_from_slice(&new);
                }
            }
        }
    }

    /// Checks that bytes that are said to be stored in a version are stored there, by that version itself.
    fn check(&self, asked: &Question, found: &Found) {
        let (_, bodies) = self.bodies();
        let is_own = |operation: u64, offset: u64, bytes: u64| {
            let (known, starts) = match self.versions.get(&operation) {
                Some((_, known, starts)) => (known, starts.clone()),
                None => (found, self.bodies().0),
            };
            let fields = self.regions.iter().zip(starts);
            let mut stretches = fields.flat_map(|((name, _), at)| {
                let mut at = at;
                known[name].iter().map(move |stretch| {
                    let begin = at;
                    at += stretch.bytes;
                    (begin, at, stretch.home)
                })
            });
            // Stretches in between that other versions store would show.
            let mut covered = offset;
            while covered < offset + bytes {
                let Some((begin, end, home)) = stretches.find(|(_, end, _)| *end > covered) else { return false };
                if begin > covered || (home.operation, home.offset) != (operation, begin) {
                    return false;
                }
                covered = end;
            }
            true
        };
        for field in &asked.fields {
            let mut at = field.at;
            for stretch in &found[&field.name] {
                let home = stretch.home;
                let is_now = home.operation == asked.operation;
                assert!(is_now || asked.allowed.contains(&home.operation), "{home:?} may not be referred to");
                let there = if is_now { &bodies } else { &self.versions[&home.operation].0 };
                let (here, from) = (at as usize, home.offset as usize);
                let bytes = stretch.bytes as usize;
                assert!(bodies[here..here + bytes] == there[from..from + bytes], "{stretch:?} of {}", asked.operation);
                assert!(is_own(home.operation, home.offset, stretch.bytes), "{stretch:?} is not stored there");
                at += stretch.bytes;
            }
            assert_eq!(at, field.at + field.bytes);
        }
    }
}

fn random(rng: &mut Rng, length: u64) -> Vec<u8> {
    (0..length).map(|_| rng.next_u64() as u8).collect()
}

/// The regions in a device's memory, with some blocks in two places.
fn places(device: &dyn Device, stream: &dyn Stream, series: &mut Series) -> Vec<Place> {
    let mut places = Vec::new();
    for (field, (_, bytes)) in series.regions.iter().enumerate() {
        let mut start = 0;
        while start < bytes.len() {
            // A block is in at most two places.
            let left = bytes.len() - start;
            let length = if series.rng.chance(1, 2) { left } else { left.min((1 << 20) + 4160) };
            // Some addresses are odd.
            let odd = series.rng.below(2) * series.rng.below(16);
            let span = device.allocate(length as u64 + odd).expect("room").part(odd, length as u64).expect("inside");
            stream.upload(&[(&bytes[start..start + length], span.clone())], None).expect("upload");
            places.push(Place { field, start: start as u64, span });
            start += length;
        }
    }
    places
}

fn on_processor(chunks: &mut Chunks, asked: &Question, series: &Series) -> Found {
    let read = |field: usize, block: u64| {
        let bytes = &series.regions[field].1;
        let from = (block * asked.block) as usize;
        Ok::<_, Infallible>(Cow::Borrowed(&bytes[from..bytes.len().min(from + asked.block as usize)]))
    };
    let Ok(found) = chunks.look(asked, read);
    found
}

/// The answer if the version's own file stores everything.
fn whole(asked: &Question) -> Found {
    let stretch =
        |field: &Field| Stretch { bytes: field.bytes, home: Home { operation: asked.operation, offset: field.at } };
    asked.fields.iter().map(|field| (field.name.clone(), vec![stretch(field)])).collect()
}

/// A table with room for everything that a series contains.
fn table(device: &dyn Device, size: TableSize) -> (Box<dyn ChunkTable>, Chunks) {
    (device.chunk_table(size).expect("room"), size.empty())
}

fn stream(device: &dyn Device) -> Arc<dyn Stream> {
    device.stream(Priority::High).expect("a stream")
}

/// Random changes, all lengths of chunks, blocks and trees, checkpoints that may no longer be referred to, and
/// regions that appear and grow.
pub fn tables_find_what_the_processor_finds(device: &dyn Device) {
    let stream = stream(device);
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let (chunk, block) = (32 << rng.below(8), [4096, 65_536, 262_144, 1 << 20][rng.below(4) as usize]);
        let grouping = [Grouping::List, Grouping::Tree][rng.below(2) as usize];
        let longest = [10_000, 200_000, 3_000_000][rng.below(3) as usize];
        let lengths: Vec<u64> = (0..1 + rng.below(3)).map(|_| rng.below(longest)).collect();
        let mut series = Series::new(seed, &lengths);
        let blocks = 8 + 2 * lengths.iter().map(|length| length.div_ceil(block)).sum::<u64>();
        let size = TableSize::that_fits(blocks, block, grouping, Some(chunk), 1 << 30).expect("it fits");
        // Half of the tables have room for only a few stretches.
        let runs = if rng.chance(1, 2) { (size.leaves() / 4).max(64) } else { size.runs };
        let size = TableSize { entries: 8 * size.entries, runs, ..size };
        let (mut table, mut chunks) = table(device, size);
        for operation in 1..=8 {
            if operation == 6 && rng.chance(1, 3) {
                let bytes = random(&mut rng, 5000);
                series.regions.push(("new".into(), bytes));
                chunks = size.empty();
            }
            // If no earlier version is allowed, this one is stored whole.
            let is_first = rng.chance(1, 8);
            let allowed = (1..operation).filter(|_| !is_first && rng.chance(3, 4)).collect();
            if rng.chance(1, 4) {
                series.pages = rng.below(3) as usize;
            }
            let mut asked = series.question(operation, allowed, block);
            series.keep(&mut asked);
            let places = places(device, &*stream, &mut series);
            let expected = on_processor(&mut chunks, &asked, &series);
            let found = table.look(&asked, &places).expect("the device works");
            let case = format!("seed {seed} operation {operation} {size:?}");
            let runs: usize = expected.values().map(Vec::len).sum();
            match found {
                None => {
                    assert!(runs as u64 > size.runs, "{case}");
                    chunks = size.empty();
                }
                Some(found) => {
                    if operation < 6 || series.regions.len() == lengths.len() {
                        assert!(found == expected, "{case}: {found:?} instead of {expected:?}");
                        series.check(&asked, &found);
                    }
                }
            }
            let (starts, bodies) = series.bodies();
            let stored = if runs as u64 > size.runs { whole(&asked) } else { expected };
            series.versions.insert(operation, (bodies, stored, starts));
            series.change();
        }
    }
}

/// Unchanged data needs no place.
pub fn tables_need_only_what_has_changed(device: &dyn Device) {
    let stream = stream(device);
    let mut series = Series::new(1, &[400_000]);
    let size = TableSize::that_fits(7, 65_536, Grouping::Tree, None, 1 << 24).expect("it fits");
    assert_eq!(size.chunk, 128);
    let (mut table, _) = table(device, size);
    let all = places(device, &*stream, &mut series);
    table.look(&series.question(1, Vec::new(), 65_536), &all).expect("works").expect("few runs");
    series.regions[0].1[70_000] ^= 1;
    let asked = series.question(2, vec![1], 65_536);
    assert!(matches!(table.look(&asked, &[]), Err(DeviceError::Range { .. })), "a block has changed");
    // The table then begins anew, and needs all places.
    let asked = series.question(3, vec![1], 65_536);
    assert!(matches!(table.look(&asked, &[]), Err(DeviceError::Range { .. })));
    let all = places(device, &*stream, &mut series);
    let asked = series.question(4, Vec::new(), 65_536);
    table.look(&asked, &all).expect("works").expect("few runs");
    series.regions[0].1[70_000] ^= 1;
    let span = device.allocate(65_536).expect("room");
    stream.upload(&[(&series.regions[0].1[65_536..131_072], span.clone())], None).expect("upload");
    let asked = series.question(5, vec![4], 65_536);
    let found = table.look(&asked, &[Place { field: 0, start: 65_536, span }]).expect("works").expect("few runs");
    let own: u64 = found["r0"].iter().filter(|stretch| stretch.home.operation == 5).map(|stretch| stretch.bytes).sum();
    assert_eq!(own, 128, "{found:?}");
}

/// A full table costs duplicates, but its answers are never wrong.
pub fn a_full_table_finds_less_and_nothing_wrong(device: &dyn Device) {
    let stream = stream(device);
    for grouping in [Grouping::List, Grouping::Tree] {
        let mut series = Series::new(7, &[600_000, 20_000]);
        let size = TableSize::that_fits(16, 65_536, grouping, Some(64), 1 << 30).expect("it fits");
        let (mut table, _) = table(device, TableSize { entries: 4000, ..size });
        for operation in 1..=30 {
            let allowed = (operation.max(4) - 3..operation).collect();
            let asked = series.question(operation, allowed, 65_536);
            let places = places(device, &*stream, &mut series);
            // In a list, each chunk of zeros is a stretch.
            let found = table.look(&asked, &places).expect("the device works").unwrap_or_else(|| whole(&asked));
            series.check(&asked, &found);
            let (starts, bodies) = series.bodies();
            series.versions.insert(operation, (bodies, found, starts));
            series.change();
        }
    }
}

pub fn wrong_questions_are_refused(device: &dyn Device) {
    let stream = stream(device);
    let mut series = Series::new(3, &[100_000]);
    let size = TableSize::that_fits(2, 65_536, Grouping::Tree, Some(128), 1 << 30).expect("it fits");
    let (mut table, _) = table(device, size);
    let all = places(device, &*stream, &mut series);
    let good = series.question(1, Vec::new(), 65_536);
    let mut refused = |asked: &Question, places: &[Place]| {
        let answer = table.look(asked, places);
        assert!(matches!(answer, Err(DeviceError::Range { .. })), "{answer:?}");
    };
    refused(&series.question(1, Vec::new(), 4096), &all);
    let mut asked = good.clone();
    asked.fields[0].at = 17;
    refused(&asked, &all);
    asked = good.clone();
    let one = asked.fields[0].blocks[0];
    asked.fields[0].blocks.push(one);
    refused(&asked, &all);
    let span = all[0].span.clone();
    refused(&good, &[Place { field: 1, start: 0, span: span.clone() }]);
    refused(&good, &[Place { field: 0, start: 64, span: span.part(0, 100_000 - 64).expect("inside") }]);
    refused(&good, &[Place { field: 0, start: 0, span: span.part(0, 1000).expect("inside") }]);
    refused(&good, &[Place { field: 0, start: 1 << 40, span }]);
    series.regions[0].1.resize(300_000, 1);
    refused(&series.question(1, Vec::new(), 65_536), &all);
    let none = TableSize { blocks: 0, ..size };
    assert!(device.info().kind == "host" || device.chunk_table(none).is_err());
    assert_eq!(TableSize::that_fits(1 << 20, 65_536, Grouping::Tree, None, 1 << 20), None);
}
