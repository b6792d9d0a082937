//! The contract of every device.

use bivouac_core::base::Digest;
use bivouac_core::base::digest::digest_bytes;
use bivouac_core::device::{
    Carrier, Device, DeviceError, DeviceSpan, HostRange, Pinned, Priority, RowCopy, Rows, Run, Sending, SentPart,
    Staging, Stream, Target,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes that differ from place to place.
fn bytes(count: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

fn stream(device: &dyn Device) -> Arc<dyn Stream> {
    device.stream(Priority::High).expect("stream")
}

fn put(stream: &dyn Stream, span: &DeviceSpan, bytes: &[u8]) {
    stream.upload(&[(bytes, span.clone())], None).expect("upload");
}

fn get(stream: &dyn Stream, span: &DeviceSpan) -> Vec<u8> {
    let mut bytes = vec![0xee; span.bytes() as usize];
    stream.download(&mut [(span.clone(), &mut bytes)], None).expect("download");
    bytes
}

fn digests(data: &[u8], block: u64) -> Vec<Digest> {
    data.chunks(block as usize).map(digest_bytes).collect()
}

/// Copies 40 MiB and a bit: more than a piece, and several transfers in one call.
pub fn bytes_go_down_and_up_unchanged(device: &dyn Device) {
    let stream = stream(device);
    let (one, two) = (device.allocate(40 * MIB + 5).expect("room"), device.allocate(3).expect("room"));
    let (first, second) = (bytes(40 * MIB + 5, 1), bytes(3, 2));
    stream.upload(&[(&first, one.clone()), (&second, two.clone())], None).expect("upload");
    let (mut back, mut small) = (vec![0; first.len()], vec![0; 3]);
    stream.download(&mut [(one, &mut back), (two, &mut small)], None).expect("download");
    assert!(back == first && small == second);
}

/// Tries all block sizes, and lengths around stripes, items and blocks.
pub fn digests_are_those_of_the_definition(device: &dyn Device) {
    let stream = stream(device);
    for block in [4 * KIB, 64 * KIB, 256 * KIB, MIB] {
        for length in [1, 8, 63, 64, 65, 4096, 4097, 65_536, 65_537, 262_144 + 13, 3 * MIB + 64, 3 * MIB + 7] {
            let data = bytes(length, block ^ length);
            let (from, to) = (device.allocate(length).expect("room"), device.allocate(length).expect("room"));
            put(&*stream, &from, &data);
            let copied = stream.copy_blocks(vec![Run::whole(from.clone(), Some(to.clone()), 0)], block).expect("copy");
            assert_eq!(copied.digests().expect("digests"), digests(&data, block), "block {block} length {length}");
            assert!(copied.is_done().expect("done") && copied.seconds().expect("time") >= 0.0);
            assert!(get(&*stream, &to) == data, "block {block} length {length}");
            // The same is computed again without a copy: the first call must have left the scratch memory clean.
            let read = stream.copy_blocks(vec![Run::whole(from, None, 0)], block).expect("digest only");
            assert_eq!(read.digests().expect("digests"), digests(&data, block), "block {block} length {length}");
        }
    }
    let empty = device.allocate(0).expect("room");
    let nothing = stream.copy_blocks(vec![Run::whole(empty.clone(), Some(empty), 0)], 4096).expect("copy");
    assert_eq!(nothing.digests().expect("digests"), []);
}

/// A region may be scattered over pieces that do not end at the borders of blocks or items.
pub fn a_block_may_lie_in_several_runs(device: &dyn Device) {
    let stream = stream(device);
    let (length, block) = (2 * MIB + 333, 256 * KIB);
    let data = bytes(length, 3);
    let (from, to) = (device.allocate(length).expect("room"), device.allocate(length).expect("room"));
    put(&*stream, &from, &data);
    let cuts = [0, 64, 4096 + 64, 64 * KIB, 300 * KIB, 301 * KIB, MIB + 128, 2 * MIB, length];
    let runs: Vec<Run> = cuts
        .windows(2)
        .rev()
        .map(|cut| Run {
            from: from.part(cut[0], cut[1] - cut[0]).expect("inside"),
            to: Some(to.part(cut[0], cut[1] - cut[0]).expect("inside")),
            first_block: 0,
            start: cut[0],
            region_bytes: length,
        })
        .collect();
    for _ in 0..3 {
        let copied = stream.copy_blocks(runs.clone(), block).expect("copy");
        assert_eq!(copied.digests().expect("digests"), digests(&data, block));
    }
    assert!(get(&*stream, &to) == data);
}

/// Applications pass the memory that they have, with any address and any length.
pub fn odd_addresses_and_lengths_are_copied_whole(device: &dyn Device) {
    let stream = stream(device);
    let (source, target) = (device.allocate(MIB).expect("room"), device.allocate(MIB).expect("room"));
    for (from_at, to_at, length) in [(1, 0, 100_000), (8, 16, 70_001), (0, 3, 4096), (8, 8, 65_536 + 24), (5, 5, 17)] {
        put(&*stream, &target, &vec![0xaa; MIB as usize]);
        let data = bytes(length, from_at + length);
        let from = source.part(from_at, length).expect("inside");
        put(&*stream, &from, &data);
        let to = target.part(to_at, length).expect("inside");
        let copied = stream.copy_blocks(vec![Run::whole(from, Some(to.clone()), 0)], 64 * KIB).expect("copy");
        assert_eq!(copied.digests().expect("digests"), digests(&data, 64 * KIB), "{from_at} {to_at} {length}");
        assert!(get(&*stream, &to) == data, "{from_at} {to_at} {length}");
        let all = get(&*stream, &target);
        let outside = all[..to_at as usize].iter().chain(&all[(to_at + length) as usize..]);
        assert!(outside.into_iter().all(|byte| *byte == 0xaa), "nothing else is touched: {from_at} {to_at} {length}");
    }
}

pub fn memory_is_mapped_step_by_step(device: &dyn Device) {
    let stream = stream(device);
    let step = device.info().granularity;
    let range = device.reserve(4 * step).expect("addresses");
    assert_eq!(range.bytes(), 4 * step);
    assert!(matches!(range.span(0, step), Err(DeviceError::Range { .. })));
    range.map(step, step).expect("map");
    range.map(2 * step, step).expect("map");
    // A span may cross steps, and keeps its data.
    let span = range.span(step + 64, 2 * step - 64).expect("mapped");
    let data = bytes(span.bytes(), 4);
    put(&*stream, &span, &data);
    assert!(get(&*stream, &span) == data);
    assert!(matches!(range.span(step, 2 * step + 1), Err(DeviceError::Range { .. })));
    assert!(matches!(range.map(2 * step, step), Err(DeviceError::Range { .. })), "mapped twice");
    assert!(matches!(range.map(3 * step, 2 * step), Err(DeviceError::Range { .. })), "over the end");
    assert!(matches!(range.map(1, step), Err(DeviceError::Range { .. })), "not a multiple");
    drop(span);
    range.unmap(2 * step, step).expect("unmap");
    assert!(matches!(range.unmap(2 * step, step), Err(DeviceError::Range { .. })), "unmapped twice");
    assert!(matches!(range.span(step, 2 * step), Err(DeviceError::Range { .. })));
    let kept = range.span(step + 64, step - 64).expect("still mapped");
    assert!(get(&*stream, &kept) == data[..kept.bytes() as usize]);
}

pub fn ranges_that_are_wrong_are_refused(device: &dyn Device) {
    let stream = stream(device);
    let span = device.allocate(4096).expect("room");
    assert!(matches!(span.part(1, 4096), Err(DeviceError::Range { .. })));
    assert!(matches!(span.part(u64::MAX, 2), Err(DeviceError::Range { .. })));
    let short = span.part(0, 100).expect("inside");
    let refused =
        |runs: &[Run], block| matches!(stream.copy_blocks(runs.to_vec(), block), Err(DeviceError::Range { .. }));
    assert!(refused(&[Run::whole(span.clone(), Some(short.clone()), 0)], 4096), "lengths differ");
    assert!(refused(&[Run::whole(span.clone(), None, 0)], 1000), "block size");
    let run = |start, region_bytes| Run { from: short.clone(), to: None, first_block: 0, start, region_bytes };
    assert!(refused(&[run(1, 101)], 4096), "start");
    assert!(refused(&[run(0, 200)], 4096), "end");
    assert!(refused(&[run(64, 100)], 4096), "over the end of the region");
    assert!(refused(&[Run { first_block: u32::MAX, ..run(0, 100) }], 4096), "blocks");
    let mut host = [0; 99];
    assert!(matches!(stream.download(&mut [(short.clone(), &mut host)], None), Err(DeviceError::Range { .. })));
    assert!(matches!(stream.upload(&[(&host, short.clone())], None), Err(DeviceError::Range { .. })));
    assert!(matches!(stream.copy(&short, &span), Err(DeviceError::Range { .. })));
    // The stream still works as before.
    assert!(stream.copy_blocks(vec![Run::whole(span, None, 0)], 4096).is_ok());
    stream.finish().expect("works");
}

pub fn memory_runs_out_with_an_error(device: &dyn Device) {
    let all = device.info().memory_bytes;
    let step = device.info().granularity;
    assert!(matches!(device.allocate(2 * all), Err(DeviceError::OutOfMemory { .. })));
    let range = device.reserve((2 * all).next_multiple_of(step)).expect("addresses are not memory");
    assert!(matches!(range.map(0, (2 * all).next_multiple_of(step)), Err(DeviceError::OutOfMemory { .. })));
    range.map(0, step).expect("a failed step leaves nothing behind");
    let free = device.free_memory().expect("figure");
    assert!(free < all);
}

pub fn copies_on_a_stream_keep_their_order(device: &dyn Device) {
    let stream = stream(device);
    let (one, two) = (device.allocate(8 * MIB).expect("room"), device.allocate(8 * MIB).expect("room"));
    let (first, second) = (bytes(8 * MIB, 5), bytes(8 * MIB, 6));
    put(&*stream, &one, &first);
    put(&*stream, &two, &second);
    let spare = device.allocate(8 * MIB).expect("room");
    // The copies swap two spans, without waiting in between.
    let copies: Vec<_> = [(&one, &spare), (&two, &one), (&spare, &two)]
        .into_iter()
        .map(|(from, to)| {
            stream.copy_blocks(vec![Run::whole(from.clone(), Some(to.clone()), 0)], 256 * KIB).expect("copy")
        })
        .collect();
    stream.finish().expect("works");
    assert!(copies.iter().all(|copied| copied.is_done().expect("works")));
    assert!(get(&*stream, &one) == second && get(&*stream, &two) == first);
    stream.copy(&one, &two).expect("copy");
    assert!(get(&*stream, &two) == second);
}

/// A region without bytes has no block; its block number is one that another region has.
pub fn empty_regions_may_stand_anywhere(device: &dyn Device) {
    let stream = stream(device);
    let (from, to) = (device.allocate(3 * 4096 + 1).expect("room"), device.allocate(3 * 4096 + 1).expect("room"));
    let data = bytes(from.bytes(), 9);
    put(&*stream, &from, &data);
    let part = |at: u64, bytes: u64| {
        let [from, to] = [&from, &to].map(|span| span.part(at, bytes).expect("inside"));
        (from, Some(to))
    };
    let run = |(from, to): (DeviceSpan, Option<DeviceSpan>), first| Run::whole(from, to, first);
    let (first, second) = (run(part(0, 8192), 0), run(part(8192, 4097), 2));
    let empty = |first| run(part(0, 0), first);
    for runs in [
        vec![empty(0), first.clone(), empty(2), second.clone(), empty(4)],
        vec![first.clone(), empty(0), second.clone()],
        vec![second.clone(), empty(2), first.clone(), empty(2)],
    ] {
        let copied = stream.copy_blocks(runs, 4096).expect("copy");
        let mut expected = digests(&data[..8192], 4096);
        expected.extend(digests(&data[8192..], 4096));
        assert_eq!(copied.digests().expect("digests"), expected);
        assert!(get(&*stream, &to) == data);
    }
    assert!(stream.copy_blocks(vec![empty(3)], 4096).expect("nothing").digests().is_ok());
}

/// Memory may be unmapped, or given to others, only when the copies from and to it have ended.
pub fn spans_may_go_while_a_copy_is_on_its_way(device: &dyn Device) {
    let stream = stream(device);
    let size = 64 * MIB;
    for _ in 0..4 {
        let range = device.reserve(2 * size).expect("addresses");
        range.map(0, 2 * size).expect("room");
        let (from, to) = (range.span(0, size).expect("mapped"), range.span(size, size).expect("mapped"));
        stream.copy(&from, &to).expect("copy");
        drop((from, to, range));
        let (from, to) = (device.allocate(size).expect("room"), device.allocate(size).expect("room"));
        stream.copy(&from, &to).expect("copy");
        drop((from, to));
    }
    stream.finish().expect("no copy has failed");
    device.free_memory().expect("the device is not lost");
}

/// Host memory may be pinned in part. Two threads may use one stream.
pub fn pinned_and_other_memory_mix_in_a_transfer(device: &dyn Device) {
    let stream = stream(device);
    let stream = &*stream;
    std::thread::scope(|scope| {
        for seed in [10, 11] {
            scope.spawn(move || {
                let (first, data) = HostRange::leaked(bytes(50 * MIB + 17, seed).leak());
                let (second, back) = HostRange::leaked(vec![0; data.len()].leak());
                let registrations = [first, second].map(|memory| {
                    let skip = memory.address().next_multiple_of(4096) - memory.address();
                    device.pin(&memory.part(skip as u64, 20 * MIB).expect("inside")).expect("pinned")
                });
                let span = device.allocate(data.len() as u64).expect("room");
                for _ in 0..3 {
                    stream.upload(&[(&*data, span.clone())], None).expect("upload");
                    back.fill(0);
                    stream.download(&mut [(span.clone(), &mut *back)], None).expect("download");
                    assert!(back == data, "{seed}");
                }
                drop(registrations);
            });
        }
    });
}

/// Sets the flag when it is dropped, even by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pinned ranges may overlap, touch each other, have gaps between them, and appear and disappear during transfers. For the host twin this
/// is an ordinary transfer.
pub fn a_transfer_goes_through_whatever_is_pinned(device: &dyn Device) {
    let stream = stream(device);
    let stream = &*stream;
    let size = 48 * MIB;
    let (first, data) = HostRange::leaked(bytes(size + 4096, 12).leak());
    let (second, back) = HostRange::leaked(vec![0; data.len()].leak());
    let span = device.allocate(data.len() as u64).expect("room");
    let [first, second] = [first, second].map(|memory| {
        let skip = memory.address().next_multiple_of(4096) - memory.address();
        memory.part(skip as u64, size).expect("inside")
    });
    let pin = |memory: &HostRange, from: u64, to: u64| {
        device.pin(&memory.part(from * MIB, (to - from) * MIB).expect("inside")).expect("pinned")
    };
    for (skip, bytes) in [(0, 100), (8, 4096)] {
        let memory = first.part(skip, bytes).expect("inside");
        assert!(matches!(device.pin(&memory), Err(DeviceError::Range { .. })), "parts of pages");
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for start in [&first, &second, &first] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let some = [pin(start, 0, 4), pin(start, 4, 20), pin(start, 10, 26)];
                    let more = [pin(start, 0, 30), pin(start, 40, 48)];
                    drop(some);
                    drop(more);
                }
            });
        }
        let _over = Over(&is_over);
        for round in 0..8 {
            stream.upload(&[(&*data, span.clone())], None).expect("upload");
            back.fill(0);
            stream.download(&mut [(span.clone(), &mut *back)], None).expect("download");
            assert!(back == data, "round {round}");
        }
    });
}

/// The memory belongs to the caller again, whatever the gate does, so no part of the transfer may still be under way.
pub fn a_gate_that_panics_leaves_no_copy_under_way(device: &dyn Device) {
    let stream = stream(device);
    let data = bytes(40 * MIB, 21);
    let (range, back) = HostRange::leaked(vec![0; data.len() + 4096].leak());
    let skip = range.address().next_multiple_of(4096) - range.address();
    // Into pinned memory the device writes directly; into other memory it goes through the library's own buffers.
    for pinned in [true, false] {
        let memory = range.part(skip as u64, 40 * MIB).expect("inside");
        let registration = pinned.then(|| device.pin(&memory).expect("pinned"));
        let [span, busy, other] = [40 * MIB, 256 * MIB, 256 * MIB].map(|bytes| device.allocate(bytes).expect("room"));
        stream.upload(&[(&data, span.clone())], None).expect("upload");
        let target = &mut back[skip..skip + data.len()];
        target.fill(0);
        // This work keeps the stream busy, so that the first piece cannot be there by chance.
        (0..60).for_each(|_| stream.copy(&busy, &other).expect("enqueued"));
        let mut pieces = 0;
        let mut gate = |_bytes: u64| {
            pieces += 1;
            assert!(pieces < 2, "a gate that panics");
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stream.download(&mut [(span.clone(), &mut *target)], Some(&mut gate))
        }));
        assert!(panicked.is_err(), "the gate panics at the second piece");
        let left = target.to_vec();
        stream.finish().expect("finished");
        assert!(target == left, "what was under way was waited for");
        // If the device still wrote to a buffer, that buffer would be handed out again here.
        stream.download(&mut [(span, &mut *target)], None).expect("download");
        assert!(target == data);
        drop(registration);
    }
}

pub fn a_gate_sees_every_byte(device: &dyn Device) {
    let stream = stream(device);
    let span = device.allocate(100 * MIB + 1).expect("room");
    let data = bytes(span.bytes(), 7);
    for up in [true, false] {
        let (mut seen, mut largest) = (0, 0);
        let mut gate = |bytes: u64| {
            seen += bytes;
            largest = largest.max(bytes);
        };
        if up {
            stream.upload(&[(&data, span.clone())], Some(&mut gate)).expect("upload");
        } else {
            let mut back = vec![0; data.len()];
            stream.download(&mut [(span.clone(), &mut back)], Some(&mut gate)).expect("download");
            assert!(back == data);
        }
        assert!(seen == span.bytes() && largest <= 16 * MIB, "{seen} {largest}");
    }
}

/// Gathers more runs than fit into kernel arguments.
pub fn many_small_regions_are_gathered(device: &dyn Device) {
    let stream = stream(device);
    let (count, length) = (1000, 10_007);
    let source = device.allocate(count * 2 * length).expect("room");
    let target = device.allocate(count * 10_048).expect("room");
    let data = bytes(source.bytes(), 8);
    put(&*stream, &source, &data);
    let runs: Vec<Run> = (0..count)
        .map(|index| {
            let from = source.part(index * 2 * length, length).expect("inside");
            let to = target.part(index * 10_048, length).expect("inside");
            Run::whole(from, Some(to), 3 * index as u32)
        })
        .collect();
    let copied = stream.copy_blocks(runs.clone(), 4096).expect("copy");
    let found = copied.digests().expect("digests");
    let back = get(&*stream, &target);
    for index in 0..count {
        let at = (index * 2 * length) as usize;
        let region = &data[at..at + length as usize];
        assert_eq!(found[3 * index as usize..3 * (index as usize + 1)], digests(region, 4096), "region {index}");
        let to = (index * 10_048) as usize;
        assert!(&back[to..to + region.len()] == region, "region {index}");
    }
}

/// Some pieces are empty, some are odd, many are small and are gathered, and some among them are large; some memory is pinned.
pub fn pieces_of_all_sizes_come_up_with_their_digests(device: &dyn Device) {
    let stream = stream(device);
    let few = [0, 1, 4096, 100_003];
    let many = (0..3000).map(|at| match at % 500 {
        7 => 700 * KIB + at,
        8 => 0,
        _ => (at * 7919) % (70 * KIB),
    });
    for (lengths, block) in [(few.to_vec(), 4 * KIB), (many.clone().collect(), 4 * KIB), (many.collect(), 256 * KIB)] {
        let total: u64 = lengths.iter().sum();
        let data = bytes(total, block);
        let room = device.allocate(total + lengths.len() as u64 * 16).expect("room");
        let (mut copies, mut expected, mut from, mut to) = (Vec::new(), Vec::new(), 0, 0);
        for length in &lengths {
            let piece = &data[from..from + *length as usize];
            copies.push((piece, room.part(to, *length).expect("inside")));
            expected.extend(digests(piece, block));
            from += *length as usize;
            to += length + 16 - length % 16;
        }
        assert_eq!(stream.upload_blocks(&copies, block).expect("up"), expected, "{} pieces", lengths.len());
        for (piece, span) in copies.iter().step_by(97) {
            assert!(get(&*stream, span) == *piece, "a piece of {}", piece.len());
        }
        // A piece that does not fit its place is refused, whichever piece it is.
        let mut wrong = copies.clone();
        let short = wrong.iter().position(|(piece, _)| piece.len() > 1).expect("one");
        wrong[short].0 = &wrong[short].0[1..];
        assert!(matches!(stream.upload_blocks(&wrong, block), Err(DeviceError::Range { .. })));
    }
}

/// A whole number of pages of memory that stays pinned as long as the returned object lives, and the same memory as a target.
fn lent(device: &dyn Device, bytes: u64) -> (Box<dyn Pinned>, Arc<Target>) {
    let (range, memory) = HostRange::leaked(vec![0x77; bytes as usize + 4096].leak());
    let skip = range.address().next_multiple_of(4096) - range.address();
    let pinned = device.pin(&range.part(skip as u64, bytes).expect("inside")).expect("pinned");
    (pinned, Target::leaked(&mut memory[skip..skip + bytes as usize]))
}

const CARRIERS: [Carrier; 3] = [Carrier::Engine, Carrier::Kernel(1), Carrier::Kernel(8)];

/// Sends blocks from all over a region to all over the target, with a shorter last one; there are more blocks than fit into the
/// arguments of a kernel.
pub fn what_is_sent_arrives_with_its_digests(device: &dyn Device) {
    let stream = stream(device);
    for (block, count) in [(4 * KIB, 300), (64 * KIB, 70), (256 * KIB, 9), (MIB, 3)] {
        let length = block * count - 1000;
        let (data, span) = (bytes(length, block), device.allocate(length).expect("room"));
        put(&*stream, &span, &data);
        for carrier in CARRIERS {
            let (pinned, target) = lent(device, 2 * block * count);
            // Every third block is skipped.
            let parts = (0..count).step_by(3).map(|first| (first * block, (length - first * block).min(2 * block)));
            // They go in two sendings.
            let to = || target.part(0, target.bytes()).expect("all");
            let all: Vec<SentPart> =
                parts.clone().map(|(at, bytes)| SentPart { from: at, to: 2 * at, bytes }).collect();
            let (one, two) = all.split_at(all.len() / 3);
            let sendings =
                [one, two].map(|parts| Sending { from: span.clone(), to: to(), parts: parts.to_vec() }).into();
            let copied = stream.send(sendings, block, carrier).expect("enqueued");
            let found = copied.digests().expect("sent");
            drop(copied);
            let back = target.take_back::<&'static mut [u8]>().expect("nothing is on its way");
            let mut expected = vec![0x77; back.len()];
            let mut wanted = Vec::new();
            for (at, bytes) in parts.map(|(at, bytes)| (at as usize, bytes as usize)) {
                expected[2 * at..2 * at + bytes].copy_from_slice(&data[at..at + bytes]);
                wanted.extend(digests(&data[at..at + bytes], block));
            }
            assert!(*back == expected[..], "{block} {carrier:?}");
            assert!(found == wanted, "{block} {carrier:?}");
            drop(pinned);
        }
    }
}

pub fn what_cannot_be_sent_is_refused(device: &dyn Device) {
    let stream = stream(device);
    let span = device.allocate(MIB).expect("room");
    let (_pinned, target) = lent(device, MIB);
    for carrier in CARRIERS {
        let sending = |from, to, bytes| Sending {
            from: span.clone(),
            to: target.part(0, MIB).expect("all"),
            parts: vec![SentPart { from, to, bytes }],
        };
        for (sendings, block) in [
            (vec![sending(MIB - 8, 0, 9)], 4 * KIB),
            (vec![sending(0, MIB - 8, 9)], 4 * KIB),
            (vec![sending(u64::MAX, 0, 9)], 4 * KIB),
            (vec![sending(0, 0, 8)], 5000),
        ] {
            let refused = stream.send(sendings, block, carrier);
            assert!(matches!(refused, Err(DeviceError::Range { .. })), "{block} {carrier:?}");
        }
        assert_eq!(stream.send(Vec::new(), 4 * KIB, carrier).expect("nothing").digests().expect("nothing"), []);
        // The host twin can write to all memory.
        if device.info().kind == "cuda" {
            let target = Target::leaked(vec![0; 4096].leak());
            let parts = vec![SentPart { from: 0, to: 0, bytes: 4096 }];
            let sending = Sending { from: span.clone(), to: target.part(0, 4096).expect("all"), parts };
            let refused = stream.send(vec![sending], 4 * KIB, carrier).err().expect("refused").to_string();
            assert!(refused.contains("not pinned"), "{refused}");
        }
    }
    assert!(target.part(MIB, 1).is_err());
}

/// Work that is enqueued after a wait for a moment of another stream sees that stream's results; threads do not wait.
pub fn a_stream_waits_for_a_moment_of_another(device: &dyn Device) {
    let (one, two) = (stream(device), stream(device));
    let size = 64 * MIB;
    let [first, second, third, far] = [(); 4].map(|()| device.allocate(size).expect("room"));
    for round in 0..6 {
        let data = bytes(size, 30 + round);
        put(&*one, &first, &data);
        // This takes long enough that the other stream would otherwise be first.
        for _ in 0..20 {
            one.copy(&first, &far).expect("enqueued");
        }
        one.copy(&first, &second).expect("enqueued");
        let moment = one.moment().expect("a moment");
        two.wait_for(&*moment).expect("held back");
        two.copy(&second, &third).expect("enqueued");
        assert!(get(&*two, &third) == data, "{round}");
        assert!(moment.is_done().expect("no error"));
        moment.wait().expect("no error");
        assert!(!one.is_recording().expect("no error"));
    }
    let other = bivouac_core::device::host::HostDevice::new(Default::default());
    let stranger = stream(&other).moment().expect("a moment");
    assert!(matches!(one.wait_for(&*stranger), Err(DeviceError::Foreign { .. })));
}

/// The first byte, the bytes of a row, and, for each dimension, the number of repetitions and their distance.
type Shape = (u64, u64, &'static [(u64, u64)]);

/// Rows of all widths, at addresses and distances of all alignments, in up to three dimensions. A part may begin and end
/// in the middle of a row.
fn some_rows(device: &dyn Device, stream: &dyn Stream) -> Vec<(Rows, Vec<u8>)> {
    let mut all = Vec::new();
    let shapes: [Shape; 11] = [
        (0, 512, &[(100, 544)]),
        (16, 4096, &[(9, 4112), (7, 64 * KIB)]),
        (8, 24, &[(50, 40), (13, 2008), (3, 32 * KIB)]),
        (4, 20, &[(11, 24), (40, 300)]),
        (2, 6, &[(77, 10)]),
        (3, 1, &[(1000, 7)]),
        (1, 33, &[(20, 35), (30, 1000)]),
        (5, 300 * KIB + 7, &[(3, 400 * KIB)]),
        (64, 512 * KIB, &[(3, 513 * KIB)]),
        (32, 100_000, &[]),
        (0, 128, &[(4, 0x1_0000), (1, 1), (2, 4096), (1, 0), (3, 1024), (2, 512), (2, 256)]),
    ];
    for (seed, (first, row, again)) in (0..).zip(shapes) {
        // The slowest dimension comes first.
        let mut again = again.to_vec();
        again.sort_by_key(|(_, distance)| std::cmp::Reverse(*distance));
        let end = first + row + again.iter().map(|(count, distance)| (count - 1) * distance).sum::<u64>();
        let memory = device.allocate(end + 100).expect("room");
        put(stream, &memory, &bytes(end + 100, 70 + seed));
        let whole = get(stream, &memory);
        let rows = Rows::new(memory, first, row, again.clone()).expect("inside");
        let mut packed = Vec::new();
        for mut index in 0..again.iter().map(|(count, _)| count).product() {
            let mut place = first;
            for (count, distance) in again.iter().rev() {
                place += index % count * distance;
                index /= count;
            }
            packed.extend_from_slice(&whole[place as usize..(place + row) as usize]);
        }
        assert_eq!(rows.bytes(), packed.len() as u64);
        all.push((rows, packed));
    }
    all
}

pub fn rows_are_packed(device: &dyn Device) {
    let stream = stream(device);
    let all = some_rows(device, &*stream);
    let whole =
        |(rows, _): &(Rows, Vec<u8>), packed: u64| RowCopy { rows: rows.clone(), at: 0, bytes: rows.bytes(), packed };
    // First the rows go one by one, and parts of them go to places of other alignments.
    for case @ (rows, expected) in &all {
        let to = device.allocate(rows.bytes() + 16).expect("room");
        for (at, bytes, packed) in
            [(0, rows.bytes(), 0), (1, rows.bytes() - 2, 3), (rows.row() / 2, rows.bytes() / 2, 8), (16, 0, 0)]
        {
            put(&*stream, &to, &vec![0x5a; to.bytes() as usize]);
            stream.pack(&[RowCopy { at, bytes, packed, ..whole(case, 0) }], &to).expect("enqueued");
            let found = get(&*stream, &to);
            let (begin, end) = (packed as usize, (packed + bytes) as usize);
            assert!(found[begin..end] == expected[at as usize..(at + bytes) as usize], "{rows:?} from {at}");
            assert!(found[..begin].iter().chain(&found[end..]).all(|byte| *byte == 0x5a), "{rows:?} from {at}");
        }
    }
    // Then many go together, more than fit into kernel arguments.
    let (mut copies, mut expected) = (Vec::new(), Vec::new());
    for case in all.iter().cycle().take(200) {
        copies.push(whole(case, expected.len() as u64));
        expected.extend_from_slice(&case.1);
    }
    let to = device.allocate(expected.len() as u64).expect("room");
    stream.pack(&copies, &to).expect("enqueued");
    drop(copies);
    assert!(get(&*stream, &to) == expected);
    stream.pack(&[], &to).expect("nothing to do");
}

pub fn rows_are_scattered_and_gathered_and_what_is_between_them_stays(device: &dyn Device) {
    let stream = stream(device);
    let all = some_rows(device, &*stream);
    let longest = all.iter().map(|(rows, _)| rows.bytes()).max().expect("some");
    let (mut one, mut two) = (stream.staging(longest).expect("room"), stream.staging(longest).expect("room"));
    for round in 0..3u64 {
        for (rows, _) in &all {
            let before = get(&*stream, rows.span());
            let data = bytes(rows.bytes(), 200 + round);
            one.memory().expect("empty")[..data.len()].copy_from_slice(&data);
            // They go in two parts, the second one first.
            let half = rows.bytes() / 2 + 1;
            let part = |at, bytes| RowCopy { rows: rows.clone(), at, bytes, packed: at };
            one.scatter(&[part(half, rows.bytes() - half), part(0, half)]).expect("enqueued");
            two.gather(&[part(0, rows.bytes())]).expect("enqueued");
            assert!(two.memory().expect("there")[..data.len()] == data, "{rows:?}");
            let mut expected = before;
            let mut done = 0;
            rows.each(0, rows.bytes(), |place, count| {
                expected[place as usize..][..count as usize].copy_from_slice(&data[done..done + count as usize]);
                done += count as usize;
                Ok(())
            })
            .expect("inside");
            assert!(get(&*stream, rows.span()) == expected, "{rows:?}");
        }
    }
    // Many go together, from several threads.
    let (first, _) = &all[0];
    let count = first.bytes() / 64;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (stream, data) = (&stream, bytes(first.bytes(), 300));
            scope.spawn(move || {
                let mut staging: Box<dyn Staging + '_> = stream.staging(first.bytes()).expect("room");
                staging.memory().expect("empty").copy_from_slice(&data);
                let pieces = (0..count).filter(|piece| piece % 4 == thread);
                let copies =
                    pieces.map(|piece| RowCopy { rows: first.clone(), at: piece * 64, bytes: 64, packed: piece * 64 });
                staging.scatter(&copies.collect::<Vec<_>>()).expect("enqueued");
            });
        }
    });
    let to = device.allocate(first.bytes()).expect("room");
    stream.pack(&[RowCopy { rows: first.clone(), at: 0, bytes: first.bytes(), packed: 0 }], &to).expect("enqueued");
    assert!(get(&*stream, &to)[..(count * 64) as usize] == bytes(first.bytes(), 300)[..(count * 64) as usize]);
}

pub fn rows_that_are_wrong_are_refused(device: &dyn Device) {
    let stream = stream(device);
    let (memory, to) = (device.allocate(1000).expect("room"), device.allocate(100).expect("room"));
    let rows = |first, row, again: &[(u64, u64)]| Rows::new(memory.clone(), first, row, again.to_vec());
    assert!(matches!(rows(0, 10, &[(11, 100)]), Err(DeviceError::Range { .. })));
    assert!(matches!(rows(0, 10, &[(1, 1); 8]), Err(DeviceError::Range { .. })));
    assert!(matches!(rows(u64::MAX, 1, &[]), Err(DeviceError::Range { .. })));
    let good = rows(0, 10, &[(10, 100)]).expect("inside");
    let copy = |at, bytes, packed| [RowCopy { rows: good.clone(), at, bytes, packed }];
    let mut staging = stream.staging(100).expect("room");
    for wrong in [copy(0, 101, 0), copy(1, 100, 0), copy(0, 100, 1), copy(u64::MAX, 2, 0), copy(0, 2, u64::MAX)] {
        assert!(matches!(stream.pack(&wrong, &to), Err(DeviceError::Range { .. })));
        assert!(matches!(staging.scatter(&wrong), Err(DeviceError::Range { .. })));
        assert!(matches!(staging.gather(&wrong), Err(DeviceError::Range { .. })));
    }
    assert!(stream.pack(&copy(0, 100, 0), &to).is_ok() && rows(5, 10, &[(0, 7)]).expect("none").bytes() == 0);
}
