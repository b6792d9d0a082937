//! Regions that are written and read as streams of bytes.

use super::*;
use crate::base::units::MIB;
use crate::recovery::LoadError;
use crate::region::RegionError;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};

/// Bytes whose values differ from place to place.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |at: u64| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// Writes in pieces of these lengths, over and over.
fn write_in_pieces(writer: &mut impl Write, bytes: &[u8], pieces: &[usize]) {
    let (mut rest, mut sizes) = (bytes, pieces.iter().cycle());
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(*sizes.next().expect("some")));
        writer.write_all(now).expect("written");
        rest = later;
    }
}

fn read_back(session: &Session, name: &str) -> Vec<u8> {
    let mut all = Vec::new();
    let restored = session.begin_restore("heat").run(|attempt| {
        all.clear();
        attempt.reader(name)?.read_to_end(&mut all).map_err(Error::application)?;
        Ok(())
    });
    restored.expect("restarts").expect("there is something");
    all
}

/// The stream goes to a slot that has room, to slots that become longer, to a file once no slot is long enough, and to a file from the
/// first byte onwards.
#[test]
fn a_stream_is_read_as_it_was_written_wherever_it_went() {
    let long = 23 * MIB as usize + 4321;
    let memory = |mib: u64| (long, Some(mib * MIB), 1);
    let to_files = [16, 20, 27, 34, 41].map(memory);
    let cases = [(MIB as usize, Some(256 * MIB), 0), (long, Some(256 * MIB), 0), (long, None, 1)];
    for (bytes, budget, direct) in cases.into_iter().chain(to_files) {
        let bed = Bed::new();
        let (place, mut config) = (bed.place(), bed.config());
        config.job.memory_enabled = budget.is_some();
        config.node.memory_budget = Budget::Bytes(budget.unwrap_or(MIB));
        let session = bed.open(&place, config.clone());
        let (stream, array) = (content(1, bytes), content(2, 3 * MIB as usize + 5));
        let mut ckpt = session.begin_checkpoint("heat", 1).expect("begun");
        ckpt.save("array", &array).expect("added");
        let mut writer = ckpt.writer("stream").expect("begun");
        write_in_pieces(&mut writer, &stream, &[1, 7, 5000, 300_000, 65_536, 2_000_000]);
        assert_eq!(writer.finish().expect("whole"), bytes as u64);
        // The decomposition of a shared value gets its place after the stream.
        ckpt.shared("step", &17u64).expect("added");
        settle(&ckpt.capture().expect("captured"));
        let stats = session.stats();
        assert_eq!(
            (stats.captured, stats.direct_captures, stats.committed[TierId::GLOBAL]),
            (1, direct, 1),
            "{budget:?}"
        );
        session.close().expect("closes");
        let session = bed.open(&place, config);
        assert!(read_back(&session, "stream") == stream, "{bytes} {budget:?}");
        session
            .begin_restore("heat")
            .run(|attempt| {
                assert!(attempt.load_vec::<u8>("stream")? == stream && attempt.load_vec::<u8>("array")? == array);
                assert_eq!(attempt.shared::<u64>("step")?, 17);
                Ok(())
            })
            .expect("restarts");
        session.close().expect("closes");
    }
}

/// Several streams follow one another, with arrays and values before and between them, and one stream is empty. The second checkpoint
/// begins with the room that the first one needed.
#[test]
fn several_streams_and_arrays_share_a_checkpoint() {
    let bed = Bed::new();
    let (place, mut config) = (bed.place(), bed.config());
    config.node.memory_budget = Budget::Bytes(256 * MIB);
    let session = bed.open(&place, config.clone());
    for version in 1..=3 {
        let streams: Vec<Vec<u8>> = (0..4).map(|at| content(version * 10 + at, at as usize * 5_000_001)).collect();
        let arrays: Vec<Vec<u8>> = (4..7).map(|at| content(version * 10 + at, 70_000)).collect();
        let mut ckpt = session.begin_checkpoint("heat", version).expect("begun");
        for (at, stream) in streams.iter().enumerate() {
            if let Some(array) = arrays.get(at) {
                ckpt.save(&format!("array {at}"), array).expect("added");
                ckpt.shared(&format!("value {at}"), &at).expect("added");
            }
            // Dropping the writer ends the stream.
            write_in_pieces(&mut ckpt.writer(&format!("stream {at}")).expect("begun"), stream, &[123_456]);
        }
        settle(&ckpt.capture().expect("captured"));
        session
            .begin_restore("heat")
            .run(|attempt| {
                for (at, stream) in streams.iter().enumerate() {
                    assert!(attempt.load_vec::<u8>(&format!("stream {at}"))? == *stream, "{at}");
                }
                for (at, array) in arrays.iter().enumerate() {
                    assert!(attempt.load_vec::<u8>(&format!("array {at}"))? == *array, "{at}");
                    assert_eq!(attempt.shared::<usize>(&format!("value {at}"))?, at);
                }
                Ok(())
            })
            .expect("restarts");
    }
    assert_eq!(session.stats().direct_captures, 0);
    session.close().expect("closes");
}

#[test]
fn readers_seek_and_come_to_an_end() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let text: String = (0..100_000u32).map(|line| format!("line {line}\n")).collect();
    let mut ckpt = session.begin_checkpoint("heat", 1).expect("begun");
    ckpt.writer("text").expect("begun").write_all(text.as_bytes()).expect("written");
    ckpt.value("number", &1u8).expect("added");
    settle(&ckpt.capture().expect("captured"));
    session
        .begin_restore("heat")
        .run(|attempt| {
            let mut reader = attempt.reader("text")?;
            assert_eq!(reader.len(), text.len() as u64);
            assert_eq!(reader.by_ref().lines().nth(99_998).expect("one").expect("read"), "line 99998");
            reader.seek(SeekFrom::End(-11)).expect("inside");
            let mut rest = String::new();
            reader.read_to_string(&mut rest).expect("read");
            assert_eq!(rest, "line 99999\n");
            assert_eq!(reader.read(&mut [0; 4]).expect("the end"), 0);
            reader.seek(SeekFrom::Start(5)).expect("inside");
            let mut one = [0; 1];
            reader.read_exact(&mut one).expect("read");
            assert_eq!(&one, b"0");
            reader.seek(SeekFrom::Current(1 << 40)).expect("behind the end");
            assert_eq!(reader.read(&mut one).expect("nothing"), 0);
            assert!(reader.seek(SeekFrom::End(-(1 << 40))).is_err());
            assert!(matches!(attempt.reader("number").err(), Some(LoadError::Mismatch { .. })));
            assert!(matches!(attempt.reader("nobody").err(), Some(LoadError::Missing { .. })));
            Ok(())
        })
        .expect("restarts");
    session.close().expect("closes");
}

#[test]
fn names_are_used_once_and_what_is_given_up_leaves_room() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.node.memory_budget = Budget::Bytes(64 * MIB);
    let session = bed.open(&bed.place(), config);
    let free = || session.engine.memory().expect("it is on").room().expect("asked");
    let before = free();
    let array = [1u8; 100];
    let mut ckpt = session.begin_checkpoint("heat", 1).expect("begun");
    ckpt.save("a", &array).expect("added");
    assert!(matches!(ckpt.writer("a").err(), Some(Error::Region(RegionError::Twice { .. }))));
    assert!(matches!(ckpt.writer("").err(), Some(Error::Region(RegionError::Name { .. }))));
    ckpt.writer("b").expect("begun").write_all(&content(1, 6 * MIB as usize)).expect("written");
    assert!(matches!(ckpt.save("b", &array), Err(Error::Region(RegionError::Twice { .. }))));
    assert!(matches!(ckpt.writer("b").err(), Some(Error::Region(RegionError::Twice { .. }))));
    assert!(free() < before);
    drop(ckpt);
    assert_eq!(free(), before);
    session.close().expect("closes");
}

/// The disk has no room for the rest: the write says so, the capture is refused, and the ranks are told why.
#[test]
fn a_stream_that_fails_is_missed_by_the_capture() {
    let bed = Bed::new();
    let (place, mut config) = (bed.place(), bed.config());
    config.job.memory_enabled = false;
    config.job.local_enabled = true;
    let session = bed.open(&place, config);
    let mut ckpt = session.begin_checkpoint("heat", 1).expect("begun");
    bed.disk.set_capacity(Path::new("/local"), Some(8 * MIB)).expect("there");
    bed.disk.set_capacity(Path::new("/global"), Some(8 * MIB)).expect("there");
    let mut writer = ckpt.writer("stream").expect("begun");
    let error = writer.write_all(&content(1, 64 * MIB as usize)).expect_err("full").to_string();
    assert!(error.contains("ENOSPC") || error.contains("No space"), "{error}");
    assert!(writer.write_all(&[1]).is_err());
    drop(writer);
    ckpt.value("step", &1u64).expect("added");
    let error = ckpt.capture().err().expect("a region is missing").to_string();
    assert!(error.contains("stream is missing"), "{error}");
    session.close().expect("closes");
}

/// The first copy is damaged after the part that was read, and the bytes continue from the next copy. If there is no other copy, all ranks
/// continue with the older version, whichever error the program returns for this.
#[test]
fn damage_on_the_way_is_made_good_by_another_copy_or_an_older_version() {
    for has_other in [true, false] {
        let bed = Bed::new();
        let (place, mut config) = (bed.place(), bed.config());
        config.job.memory_enabled = false;
        config.job.global_enabled = has_other;
        let session = bed.open(&place, config.clone());
        let stream = |version: u64| content(version, 9 * MIB as usize + 77);
        for version in 1..=2 {
            let mut ckpt = session.begin_checkpoint("heat", version).expect("begun");
            ckpt.writer("stream").expect("begun").write_all(&stream(version)).expect("written");
            settle(&ckpt.capture().expect("captured"));
        }
        session.close().expect("closes");
        for path in of_version_2(&bed, "/local", "r000000.bvs") {
            bed.disk.flip_bit(&path, 8 * (8 * MIB + MIB / 2)).expect("there");
        }
        let session = bed.open(&place, config);
        assert!(read_back(&session, "stream") == stream(if has_other { 2 } else { 1 }), "{has_other}");
        session.close().expect("closes");
    }
}
