//! Restarts of a version from files, against plain reads of the data that they need, and of a whole file.
//!
//! One region of `--mib` MiB changes between versions: 8 bytes, anywhere, in every ten blocks of 64 KiB. For versions 10, 50 and 100, three
//! things are measured in turn: a restart that loads the version, without node memory; a pass of plain reads over the ranges of the files
//! that the restart needs, extended to whole blocks of 64 KiB, each read once; and plain reads of the first version's file, which is whole.
//! All reads bypass the page cache where the file system can, and do not find the files in it.

use super::Options;
use super::files::File;
use super::series::{Folder, NAME, Setting, config};
use bivouac::config::Method;
use bivouac::{Config, Level, Session};
use bivouac_core::base::rng::Rng;
use mpi::topology::SimpleCommunicator;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// The versions that are restored, if there are that many.
const VERSIONS: [u64; 3] = [10, 50, 100];
/// Reads are rounded to multiples of this many bytes.
const BLOCK: u64 = 64 << 10;
/// One change in this many blocks.
const GROUP: usize = 10;
/// Bytes of a plain read, and threads that read, as in the library.
const READ: u64 = 4 << 20;
const READERS: usize = 2;
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Prints a line for each version.
pub fn measure(options: &Options, comm: &SimpleCommunicator) {
    let (local, memory) = (Folder::new(&options.dir, comm), Folder::new(Path::new("/dev/shm"), comm));
    let setting = Setting::new(Method::Tree);
    let bytes = (options.mib as u64) << 20;
    let config = config(options, &setting, bytes, 1, &memory.path, &local.path);
    let (sources, live) = (config.job.reduction.sources, config.job.reduction.live);
    let known = write(options, comm, config.clone());
    let files: BTreeMap<u64, File> = (1..=options.versions)
        .map(|version| File::find(&local.path, version, 0))
        .map(|file| (file.operation, file))
        .collect();
    let mut away = config;
    away.job.memory_enabled = false;
    let session = Session::open(comm, away).expect("opens");
    let mut values = vec![0u8; bytes as usize];
    let first = files.values().next().expect("there is one");
    let first = [(&*first.path, Vec::from_iter(std::iter::once(0..first.bytes)))];
    for (version, expected) in known {
        let file = files.values().nth(version as usize - 1).expect("it is there");
        let needed = needed(&files, file);
        let (mut restart, mut ranges, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            restart.push(timed(&files, || {
                let restored = session.begin_restore(NAME).version(version).run(|r| Ok(r.load(NAME, &mut values)?));
                let restored = restored.expect("restored").expect("it is there");
                assert_eq!((restored.version, restored.tier.name()), (version, "local"));
            }));
            assert!(values == expected, "version {version} is what it was");
            ranges.push(timed(&files, || read(&needed)));
            whole.push(timed(&files, || read(&first)));
        }
        let [restart, ranges_s, whole] = [restart, ranges, whole].map(median);
        let ranges = || needed.iter().flat_map(|(_, ranges)| ranges);
        let line = json!({
            "figure": "figures restart", "mib": options.mib, "versions": options.versions, "version": version,
            "method": setting.method.name(), "chunk": setting.chunk, "sources": sources, "live": live,
            "direct": is_direct(first[0].0), "files": needed.len(), "ranges": ranges().count(),
            "extents": file.held().2, "needed_bytes": ranges().map(|range| range.end - range.start).sum::<u64>(),
            "restart_s": restart, "ranges_s": ranges_s, "whole_s": whole,
            "restart_over_ranges": restart / ranges_s, "restart_over_whole": restart / whole,
        });
        println!("{line}");
    }
    session.close().expect("closes");
}

/// Takes all versions; returns those that are to be restored, and what they hold.
fn write(options: &Options, comm: &SimpleCommunicator, config: Config) -> Vec<(u64, Vec<u8>)> {
    let (mut rng, mut known) = (Rng::new(options.seed), Vec::new());
    let mut values = vec![0u8; options.mib << 20];
    values.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
    let session = Session::open(comm, config).expect("opens");
    for version in 1..=options.versions {
        let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begun");
        checkpoint.save(NAME, &values).expect("saved");
        let pending = checkpoint.capture().expect("captured");
        assert!(pending.wait(Level::NodeReboot).expect("committed") >= Level::NodeReboot);
        if VERSIONS.contains(&version) {
            known.push((version, values.clone()));
        }
        for group in values.chunks_mut(GROUP * BLOCK as usize) {
            let at = rng.below(group.len() as u64 / 8) as usize * 8;
            group[at..at + 8].copy_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
    session.close().expect("closes");
    known
}

/// The blocks of files that hold the bytes of a shard, each once.
fn needed<'a>(files: &'a BTreeMap<u64, File>, of: &File) -> Vec<(&'a Path, Vec<Range<u64>>)> {
    let mut places: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
    for part in of.parts() {
        let file = &files[&part.operation];
        let place = file.place(part.offset..part.offset + part.length);
        let place = place.start / BLOCK * BLOCK..place.end.next_multiple_of(BLOCK).min(file.bytes);
        places.entry(part.operation).or_default().push(place);
    }
    let joined = |mut places: Vec<Range<u64>>| {
        places.sort_by_key(|place| place.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for place in places {
            match joined.last_mut() {
                Some(last) if place.start <= last.end => last.end = last.end.max(place.end),
                _ => joined.push(place),
            }
        }
        joined
    };
    places.into_iter().map(|(operation, places)| (&*files[&operation].path, joined(places))).collect()
}

/// The time of a call that finds none of the files in the page cache.
fn timed(files: &BTreeMap<u64, File>, call: impl FnOnce()) -> f64 {
    for file in files.values() {
        let file = std::fs::File::open(&file.path).expect("it is there");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
    }
    let begun = Instant::now();
    call();
    begun.elapsed().as_secs_f64()
}

fn is_direct(path: &Path) -> bool {
    OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).is_ok()
}

/// Reads ranges of files that begin and end on pages, or with the file.
fn read(ranges: &[(&Path, Vec<Range<u64>>)]) {
    let flags = if ranges.iter().all(|(path, _)| is_direct(path)) { O_DIRECT } else { 0 };
    let open = |path: &Path| OpenOptions::new().read(true).custom_flags(flags).open(path).expect("it opens");
    let mut pieces = Vec::new();
    let files: Vec<std::fs::File> = ranges.iter().map(|(path, _)| open(path)).collect();
    for (file, (_, ranges)) in files.iter().zip(ranges) {
        for range in ranges {
            let starts = range.clone().step_by(READ as usize);
            pieces.extend(starts.map(|start| (file, start, (range.end - start).min(READ) as usize)));
        }
    }
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let pieces = &pieces;
            scope.spawn(move || {
                let mut buffer = vec![0u8; READ as usize + 4096];
                let at = buffer.as_ptr().align_offset(4096);
                for (file, start, length) in pieces.iter().skip(reader).step_by(READERS) {
                    file.read_exact_at(&mut buffer[at..at + length], *start).expect("it can be read");
                }
            });
        }
    });
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
