//! Decomposed arrays in device memory. They are saved on some ranks, with and without ghost cells around the boxes, and loaded on
//! as many ranks and on other numbers of ranks, into device memory and into host memory. The tests always run on the host twin, and
//! on a GPU if there is one.
#![forbid(unsafe_code)]

mod common;
mod machine;

use bivouac_core::device::DeviceSpan;
use bivouac_core::session::Error;
use bivouac_core::{Boxes, Decomposition, Level, Pending, Session};
use machine::*;

/// The extents of the arrays.
const SHAPE: [u64; 3] = [24, 20, 30];
/// The value of all bytes before anything is loaded; ghost cells keep it.
const GHOST: u8 = 0xee;

type Box3 = ([u64; 3], [u64; 3]);

/// The boxes of a rank: slabs of the slowest or of the fastest dimension, boxes that are cut in two dimensions, single planes in turn, or
/// everything on the last rank.
fn owned(way: usize, rank: u32, ranks: u32) -> Vec<Box3> {
    let (rank, ranks) = (u64::from(rank), u64::from(ranks));
    let slab = |dim: usize, of: u64, at: u64, (mut origin, mut extent): Box3| {
        origin[dim] = at * SHAPE[dim] / of;
        extent[dim] = (at + 1) * SHAPE[dim] / of - origin[dim];
        (origin, extent)
    };
    let all = ([0; 3], SHAPE);
    match way {
        0 => vec![slab(0, ranks, rank, all)],
        1 => vec![slab(2, ranks, rank, all)],
        2 if ranks.is_multiple_of(2) => vec![slab(1, 2, rank % 2, slab(2, ranks / 2, rank / 2, all))],
        2 => vec![slab(1, ranks, rank, all)],
        3 => (0..SHAPE[0]).filter(|z| z % ranks == rank).map(|z| ([z, 0, 0], [1, SHAPE[1], SHAPE[2]])).collect(),
        _ if rank + 1 == ranks => vec![all],
        _ => Vec::new(),
    }
}

/// How a run cuts the arrays: a way of [`owned`], and the ghost cells before and after boxes in each dimension.
#[derive(Clone, Copy, Debug)]
struct Cut {
    way: usize,
    before: [u64; 3],
    after: [u64; 3],
}

impl Cut {
    fn of(way: usize, before: [u64; 3], after: [u64; 3]) -> Cut {
        Cut { way, before, after }
    }

    fn boxes(&self, rank: u32, ranks: u32) -> Boxes {
        let boxes = Boxes::of(SHAPE).margins(self.before, self.after);
        owned(self.way, rank, ranks).into_iter().fold(boxes, |boxes, (origin, extent)| boxes.own(origin, extent))
    }

    /// The memory of a rank's boxes with elements of `size` bytes. If the version is `None`, all elements have the value of ghost cells.
    fn memory(&self, rank: u32, ranks: u32, size: usize, version: Option<u64>) -> Vec<Vec<u8>> {
        let of_box = |(origin, extent): Box3| {
            let all: [u64; 3] = std::array::from_fn(|dim| extent[dim] + self.before[dim] + self.after[dim]);
            let mut bytes = Vec::new();
            for index in 0..all.iter().product() {
                let at: [u64; 3] = [index / (all[1] * all[2]), index / all[2] % all[1], index % all[2]];
                let is_inside = |dim: usize| (self.before[dim]..self.before[dim] + extent[dim]).contains(&at[dim]);
                match version.filter(|_| (0..3).all(is_inside)) {
                    Some(version) => {
                        let [z, y, x] = std::array::from_fn(|dim| origin[dim] + at[dim] - self.before[dim]);
                        bytes.extend_from_slice(&value(version, z, y, x)[..size]);
                    }
                    None => bytes.extend(std::iter::repeat_n(GHOST, size)),
                }
            }
            bytes
        };
        owned(self.way, rank, ranks).into_iter().map(of_box).collect()
    }
}

/// The bytes of an element in a version; short elements are the first bytes of it.
fn value(version: u64, z: u64, y: u64, x: u64) -> [u8; 8] {
    ((((version * 31 + z) * 37 + y) * 41 + x) << 4 | 3).to_le_bytes()
}

/// Adds both arrays: elements of eight bytes on the device and, in every other version, elements of three bytes in host memory.
fn save(rank: &Rank, session: &Session, on: &Decomposition, cut: Cut, ranks: u32, version: u64) -> Pending {
    let caches = rank.caches(session);
    let [wide, narrow] = [8, 3].map(|size| cut.memory(rank.rank, ranks, size, Some(version)));
    let spans = |memory: &[Vec<u8>]| memory.iter().map(|bytes| rank.span(bytes)).collect::<Vec<_>>();
    let (wide_spans, narrow_spans) = (spans(&wide), spans(&narrow));
    let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begun").with_device(&caches, &*rank.stream);
    checkpoint.save_device_boxes_on::<u64>("wide", on, &wide_spans.iter().collect::<Vec<_>>()).expect("saved");
    if version.is_multiple_of(2) {
        let slices: Vec<&[[u8; 3]]> = narrow.iter().map(|bytes| bytemuck::cast_slice(bytes)).collect();
        checkpoint.save_boxes_on::<[u8; 3]>("narrow", on, &slices).expect("saved");
    } else {
        let spans: Vec<_> = narrow_spans.iter().collect();
        checkpoint.save_device_boxes_on::<[u8; 3]>("narrow", on, &spans).expect("saved");
    }
    checkpoint.shared("version", &version).expect("saved");
    let pending = checkpoint.capture().expect("captured");
    // Captured memory may be overwritten at once.
    for span in wide_spans.iter().chain(&narrow_spans) {
        rank.stream.copy(&rank.span(&vec![0xff; span.bytes() as usize]), span).expect("enqueued");
    }
    rank.stream.finish().expect("done");
    pending
}

/// Loads the newest version into device memory and into host memory, and checks every byte. Returns the version and the
/// tier from which it came.
fn load(
    rank: &Rank,
    session: &Session,
    on: &Decomposition,
    cut: Cut,
    ranks: u32,
) -> Result<(u64, &'static str), Error> {
    let fresh = |size| cut.memory(rank.rank, ranks, size, None);
    let spans = |size| fresh(size).iter().map(|bytes| rank.span(bytes)).collect::<Vec<_>>();
    let (wide, narrow, mut host) = (spans(8), spans(3), fresh(8));
    let mut version = 0;
    let restored = session.begin_restore(NAME).run(|r| {
        r.load_device_boxes_on::<u64>("wide", on, &wide, &*rank.stream)?;
        r.load_device_boxes_on::<[u8; 3]>("narrow", on, &narrow, &*rank.stream)?;
        let mut slices: Vec<&mut [u64]> = host.iter_mut().map(|bytes| bytemuck::cast_slice_mut(bytes)).collect();
        r.load_boxes_on("wide", on, &mut slices)?;
        version = r.shared("version")?;
        Ok(())
    })?;
    let restored = restored.expect("there is one");
    assert_eq!(version, restored.version);
    for (spans, size) in [(&wide, 8), (&narrow, 3)] {
        let expected = cut.memory(rank.rank, ranks, size, Some(version));
        for (number, (span, expected)) in spans.iter().zip(&expected).enumerate() {
            assert!(rank.bytes(span) == *expected, "box {number} of rank {} of {ranks}, {cut:?}", rank.rank);
        }
    }
    assert!(host == cut.memory(rank.rank, ranks, 8, Some(version)), "rank {} of {ranks}, {cut:?}", rank.rank);
    Ok((restored.version, restored.tier.name()))
}

/// Each job continues from the version that the previous job took.
fn jobs_go_on(machine: &Machine, tier: &'static str, level: Level, rank: &(impl Fn(u32) -> Rank + Sync)) {
    let none = [0; 3];
    let jobs = [
        (4, Cut::of(0, [1, 1, 1], [1, 1, 1])),
        (3, Cut::of(0, none, none)),
        (3, Cut::of(0, [2, 0, 0], [1, 0, 0])),
        (4, Cut::of(2, [0, 0, 2], [0, 0, 3])),
        (4, Cut::of(2, [1, 2, 1], [1, 2, 1])),
        (2, Cut::of(3, [0, 1, 0], [0, 0, 1])),
        (3, Cut::of(1, none, none)),
        (1, Cut::of(3, none, none)),
        (3, Cut::of(4, [1, 1, 1], [0, 0, 0])),
    ];
    for ((ranks, cut), version) in jobs.into_iter().zip(1u64..) {
        let ends = machine.run(ranks, |here, session| {
            let rank = rank(here.rank);
            let on = session.decompose(cut.boxes(rank.rank, ranks)).expect("it tiles");
            let end = (version > 1).then(|| load(&rank, session, &on, cut, ranks).expect("restored"));
            reaches(Ok(save(&rank, session, &on, cut, ranks, version)), level);
            // A second load finds the shard of this rank itself.
            let again = load(&rank, session, &on, cut, ranks).expect("restored");
            assert_eq!(again.0, version);
            // A rank without boxes reads nothing.
            assert!(on.boxes() == 0 || again.1 == tier, "{again:?}");
            end.map(|(version, _)| version)
        });
        assert_eq!(ends, vec![(version > 1).then(|| version - 1); ranks as usize]);
    }
}

/// Captures go through the GPU cache, past it, and straight to a file.
fn everywhere(rank: impl Fn(u32) -> Rank + Sync) {
    for (device_bytes, memory_enabled) in [(32 * MIB, true), (2 * MIB, true), (32 * MIB, false)] {
        let model = bivouac_core::device::host::HostModel { memory_bytes: 256 * MIB, ..Default::default() };
        let machine = Machine { device_bytes, memory_enabled, local_every: 1, model, ..Machine::new() };
        let (tier, level) = if memory_enabled { ("memory", Level::Process) } else { ("local", Level::NodeReboot) };
        jobs_go_on(&machine, tier, level, &rank);
    }
}

fn twin(rank: u32) -> Rank {
    Rank::new(rank, Machine::new().model)
}

#[test]
fn boxes_in_device_memory_come_back_on_any_number_of_ranks() {
    everywhere(twin);
}

/// The GPU, or `None` with a loud note.
#[cfg(feature = "cuda")]
fn gpu() -> Option<impl Fn(u32) -> Rank + Sync> {
    use bivouac_core::device::{Device, Priority};
    match bivouac_core::device::cuda::CudaDevice::open(0) {
        Ok(gpu) => {
            let gpu = std::sync::Arc::new(gpu);
            Some(move |rank| {
                let stream = gpu.stream(Priority::High).expect("a stream");
                Rank { rank, device: gpu.clone(), twin: None, stream }
            })
        }
        Err(error) => {
            eprintln!("SKIPPED: {error}; on a machine with a GPU: cargo nextest run --test device_dealt");
            None
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn boxes_come_back_on_a_gpu_that_ranks_share() {
    if let Some(rank) = gpu() {
        everywhere(rank);
    }
}

/// One of the ranks has lost its device: the load ends on all ranks, with an error that names that rank.
#[test]
fn a_device_that_fails_in_a_load_by_all_ranks_ends_it_on_all_of_them() {
    let machine = Machine::new();
    let cut = |way| Cut::of(way, [1, 0, 1], [0, 1, 1]);
    machine.run(4, |rank, session| {
        let on = session.decompose(cut(0).boxes(rank.rank, 4)).expect("it tiles");
        reaches(Ok(save(rank, session, &on, cut(0), 4, 1)), Level::Process);
    });
    let ends = machine.run(3, |rank, session| {
        let on = session.decompose(cut(1).boxes(rank.rank, 3)).expect("it tiles");
        if rank.rank == VICTIM {
            let span = rank.span(&cut(1).memory(rank.rank, 3, 8, None)[0]);
            rank.lose_device();
            let stream = &*rank.stream;
            let lost = session.begin_restore(NAME).run(|r| Ok(r.load_device_on::<u64>("wide", &on, &span, stream)?));
            return lost.map(|_| (0, "")).map_err(|error| error.to_string());
        }
        load(rank, session, &on, cut(1), 3).map_err(|error| error.to_string())
    });
    for end in ends {
        let text = end.expect_err("a device was lost");
        assert!(text.contains("rank 1: region \"wide\"") && text.contains("fell off the bus"), "{text}");
    }
}

/// No rank receives a flipped bit: a damaged part is read from the next copy, with as many ranks and with other numbers of ranks.
#[test]
fn a_damaged_copy_is_given_up_and_the_next_one_lands() {
    for (ranks, way) in [(4, 0), (3, 1)] {
        let machine = Machine { local_every: 1, ..Machine::new() };
        let cut = Cut::of(0, [1, 1, 1], [1, 1, 1]);
        machine.run(4, |rank, session| {
            let on = session.decompose(cut.boxes(rank.rank, 4)).expect("it tiles");
            reaches(Ok(save(rank, session, &on, cut, 4, 1)), Level::NodeReboot);
        });
        // This is in the shard of rank 2.
        let row: Vec<u8> = (4..9).flat_map(|x| value(1, 13, 7, x)).collect();
        damage(&machine.folder("memory"), &row);
        let cut = Cut { way, ..cut };
        let ends = machine.run(ranks, |rank, session| {
            let on = session.decompose(cut.boxes(rank.rank, ranks)).expect("it tiles");
            load(rank, session, &on, cut, ranks).expect("restored").0
        });
        assert_eq!(ends, vec![1; ranks as usize]);
    }
}

#[test]
fn device_memory_that_does_not_fit_is_refused_where_it_is_given() {
    Machine::new().run(2, |rank, session| {
        let cut = Cut::of(0, [1, 1, 1], [1, 1, 1]);
        let on = session.decompose(cut.boxes(rank.rank, 2)).expect("it tiles");
        let good = rank.span(&cut.memory(rank.rank, 2, 8, Some(1))[0]);
        let of = |bytes| good.part(0, bytes).expect("inside");
        let (short, odd) = (of(good.bytes() - 8), of(good.bytes() - 3));
        // One rank owns all of this decomposition, and the other owns nothing.
        let other = Cut::of(4, [0; 3], [0; 3]).boxes(1 - rank.rank, 2);
        let all = session.decompose(other).expect("it tiles");
        let whole = rank.span(&[0; 8]);
        let caches = rank.caches(session);
        let mut checkpoint = session.begin_checkpoint(NAME, 1).expect("begun").with_device(&caches, &*rank.stream);
        let cases: [(&[&DeviceSpan], &str); 4] = [
            (&[&short], "the memory for box 0 has"),
            (&[&odd], "not a whole number of elements"),
            (&[], "memory for 0 boxes was given, but this rank owns 1"),
            (&[&good, &good], "memory for 2 boxes"),
        ];
        for (spans, why) in cases {
            let error = checkpoint.save_device_boxes_on::<u64>("t", &on, spans).expect_err("refused").to_string();
            assert!(error.contains("\"t\"") && error.contains(why), "{error}");
        }
        let error = checkpoint.save_device_on::<u64>("t", &all, &whole).expect_err("refused").to_string();
        assert!(error.contains("\"t\""), "{error}");
        checkpoint.save_device_on::<u64>("t", &on, &good).expect("saved");
        reaches(checkpoint.capture(), Level::Process);
        let stream = &*rank.stream;
        session
            .begin_restore(NAME)
            .run(|r| {
                for (span, why) in [(&short, "the memory for box 0 has"), (&odd, "not a whole number of elements")] {
                    let error = r.load_device_on::<u64>("t", &on, span, stream).expect_err("refused").to_string();
                    assert!(error.contains(why), "{error}");
                }
                let error = r.load_device_on::<f64>("t", &on, &good, stream).expect_err("refused").to_string();
                assert!(error.contains("f64") && error.contains("u64"), "{error}");
                Ok(r.load_device_on::<u64>("t", &on, &good, stream)?)
            })
            .expect("restored")
            .expect("there is one");
    });
}

#[cfg(feature = "mpi")]
mod under_mpi {
    use super::*;
    use crate::common::{Worker, run_workers};
    use mpi::Threading;
    use mpi::traits::Communicator;
    use std::path::PathBuf;

    const FOLDER: &str = "BIVOUAC_TEST_FOLDER";

    fn folder() -> PathBuf {
        PathBuf::from(std::env::var_os(FOLDER).expect("set by the test"))
    }

    fn rank_of(rank: u32) -> Rank {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = gpu() {
            return gpu(rank);
        }
        twin(rank)
    }

    /// Four processes save and three continue; on a machine with a GPU, they share it.
    #[test]
    fn four_processes_save_and_three_go_on_on_a_gpu_that_they_share() {
        let machine = Machine::new();
        for folder in ["memory", "local"] {
            std::fs::create_dir_all(machine.folder(folder)).expect("a folder");
        }
        let folder = machine.root.path().to_str().expect("a plain path");
        run_workers(4, "under_mpi::saving_worker", &[(FOLDER, folder)]);
        run_workers(3, "under_mpi::loading_worker", &[(FOLDER, folder)]);
    }

    #[test]
    fn saving_worker() {
        let Some(worker) = Worker::start("under_mpi::saving_worker", Threading::Multiple) else { return };
        let machine = Machine { local_every: 1, ..Machine::new() };
        let session = Session::open(&worker.world(), machine.config_in(&folder())).expect("opens");
        let (rank, cut) = (rank_of(worker.world().rank() as u32), Cut::of(2, [1, 2, 1], [1, 2, 1]));
        let on = session.decompose(cut.boxes(rank.rank, 4)).expect("it tiles");
        reaches(Ok(save(&rank, &session, &on, cut, 4, 1)), Level::NodeReboot);
        session.close().expect("closed");
        worker.finish();
    }

    #[test]
    fn loading_worker() {
        let Some(worker) = Worker::start("under_mpi::loading_worker", Threading::Multiple) else { return };
        let machine = Machine { local_every: 1, ..Machine::new() };
        let session = Session::open(&worker.world(), machine.config_in(&folder())).expect("opens");
        let (rank, cut) = (rank_of(worker.world().rank() as u32), Cut::of(0, [1, 1, 1], [1, 1, 1]));
        let on = session.decompose(cut.boxes(rank.rank, 3)).expect("it tiles");
        assert_eq!(load(&rank, &session, &on, cut, 3).expect("restored").0, 1);
        session.close().expect("closed");
        worker.finish();
    }
}
