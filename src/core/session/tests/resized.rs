//! Runs with a different number of ranks: where values go, which parts stay, and what is kept until the new run has committed.

use super::decomposed::{boxes_dealt, dealt, flip, load_all, memory, take_all, value};
use super::*;
use crate::decomposition::{Boxes, Decomposition};

/// The node of each of `ranks` ranks, with `per_node` ranks on each node.
fn nodes(ranks: u32, per_node: u32) -> Vec<u32> {
    (0..ranks).map(|rank| rank / per_node).collect()
}

/// The box of a rank in a grid of blocks, for an array of this shape.
fn block(shape: [u64; 3], grid: [u64; 3], rank: u32) -> ([u64; 3], [u64; 3]) {
    let rank = u64::from(rank);
    let at = [rank / (grid[1] * grid[2]), rank / grid[2] % grid[1], rank % grid[2]];
    let first = |dim: usize, at: u64| at * shape[dim] / grid[dim];
    let origin = std::array::from_fn(|dim| first(dim, at[dim]));
    (origin, std::array::from_fn(|dim| first(dim, at[dim] + 1) - origin[dim]))
}

/// The value of an element in component `of` of a field of coordinates: its own place in the array.
fn coordinate(of: usize, at: [u64; 3]) -> f64 {
    at[of] as f64 + 0.25 * of as f64
}

/// A field of coordinates in a box without ghost cells.
fn coordinates(of: usize, (origin, extent): ([u64; 3], [u64; 3])) -> Vec<f64> {
    let mut field = Vec::new();
    for z in 0..extent[0] {
        for y in 0..extent[1] {
            field.extend((0..extent[2]).map(|x| coordinate(of, [origin[0] + z, origin[1] + y, origin[2] + x])));
        }
    }
    field
}

/// After underworld3#674: with 48 ranks, values were loaded at coordinates other than those at which they had been saved, and nobody
/// noticed. Here, the coordinates are the values.
#[test]
fn a_value_stays_at_its_coordinates() {
    const SHAPE: [u64; 3] = [25, 18, 22];
    const NAMES: [&str; 3] = ["z", "y", "x"];
    let bed = Bed::new();
    let change = |config: &mut Config| {
        (config.job.local_enabled, config.job.global_enabled) = (false, false);
        config.node.writers = 1;
        config.node.memory_budget = Budget::Bytes(64 << 20);
    };
    // Other blocks on the same number of ranks, on fewer ranks and on more ranks.
    let jobs = [[4, 4, 3], [2, 3, 8], [3, 1, 11], [1, 10, 5], [24, 1, 2]];
    for (grid, version) in jobs.into_iter().zip(1u64..) {
        let ranks = (grid[0] * grid[1] * grid[2]) as u32;
        // All runs use the same six nodes, because the data in their memory is needed.
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 6 / ranks).collect();
        on_nodes(&bed, &nodes, change, |rank, session| {
            let own = block(SHAPE, grid, rank);
            let on = session.decompose(Boxes::of(SHAPE).own(own.0, own.1)).expect("it tiles");
            let mut found = NAMES.map(|_| vec![-1.0f64; on.elements() as usize]);
            let restored = session.begin_restore("heat").run(|r| {
                for (name, field) in NAMES.iter().zip(&mut found) {
                    r.load_on(name, &on, field)?;
                }
                Ok(())
            });
            let restored = restored.expect("restored").map(|restored| restored.version);
            assert_eq!(restored, (version > 1).then(|| version - 1));
            if restored.is_some() {
                for (of, field) in found.iter().enumerate() {
                    assert!(*field == coordinates(of, own), "{} of rank {rank} of {ranks}", NAMES[of]);
                }
            }
            let fields = [0, 1, 2].map(|of| coordinates(of, own));
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            for (name, field) in NAMES.iter().zip(&fields) {
                checkpoint.save_on(name, &on, field).expect("saved");
            }
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            drop(session);
        });
        bed.disk.drop_locks();
    }
}

/// Extents that are prime numbers, arrays without elements, arrays of one element, and 100,000 boxes of one element.
#[test]
fn primes_zeros_single_cells_100000_boxes() {
    let bed = Bed::new();
    let slabs = |shape: &[u64], dim: usize, rank: u32, ranks: u32| {
        let first = |rank: u32| u64::from(rank) * shape[dim] / u64::from(ranks);
        let (mut origin, mut extent) = (vec![0; shape.len()], shape.to_vec());
        (origin[dim], extent[dim]) = (first(rank), first(rank + 1) - first(rank));
        Boxes::of(shape).own(origin, extent)
    };
    // Element by element in turn; each of four ranks has 25,000.
    let single = |rank: u32, ranks: u32| {
        let cells = (0..100_000u64).filter(|cell| cell % u64::from(ranks) == u64::from(rank));
        cells.fold(Boxes::of([400, 250]), |boxes, cell| boxes.own([cell / 250, cell % 250], [1, 1]))
    };
    let arrays: [(&str, &[u64]); 5] = [
        ("primes", &[9973]),
        ("prime", &[7, 31, 13]),
        ("nothing", &[0, 13]),
        ("one", &[1, 1, 1]),
        ("cells", &[400, 250]),
    ];
    for (ranks, version) in [(4u32, 1u64), (3, 2), (7, 3), (4, 4)] {
        on_nodes(
            &bed,
            &nodes(ranks, 2),
            |_| (),
            |rank, session| {
                let dim = |shape: &[u64]| (version as usize).min(shape.len() - 1);
                let ons = arrays.map(|(name, shape)| {
                    let boxes = match (name, ranks) {
                        ("cells", 4) => single(rank, ranks),
                        _ => slabs(shape, dim(shape), rank, ranks),
                    };
                    session.decompose(boxes).expect("it tiles")
                });
                // The value of each element is the element's place in the array.
                let places = |on: &Decomposition| -> Vec<Vec<u32>> {
                    let shape = on.shape();
                    let of = |own: &crate::decomposition::Cuboid| {
                        let mut places = vec![0u64];
                        for (dim, extent) in shape.iter().enumerate() {
                            let along = own.from[dim]..own.to[dim];
                            places = places
                                .iter()
                                .flat_map(|place| along.clone().map(move |at| place * extent + at))
                                .collect();
                        }
                        places.into_iter().map(|place| place as u32).collect()
                    };
                    on.own().parts().own().iter().map(of).collect()
                };
                let expected = [0, 1, 2, 3, 4].map(|at: usize| places(&ons[at]));
                let restored = session.begin_restore("heat").run(|r| {
                    for (((name, _), on), expected) in arrays.iter().zip(&ons).zip(&expected) {
                        let mut found: Vec<Vec<u32>> = expected.iter().map(|own| vec![u32::MAX; own.len()]).collect();
                        r.load_boxes_on(name, on, &mut found.iter_mut().map(|own| &mut own[..]).collect::<Vec<_>>())?;
                        assert!(found == *expected, "{name} on rank {rank} of {ranks}");
                    }
                    Ok(())
                });
                let restored = restored.expect("restored").map(|restored| restored.version);
                assert_eq!(restored, (version > 1).then(|| version - 1));
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                for (((name, _), on), own) in arrays.iter().zip(&ons).zip(&expected) {
                    let slices: Vec<&[u32]> = own.iter().map(|own| &own[..]).collect();
                    checkpoint.save_boxes_on(name, on, &slices).expect("saved");
                }
                checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
                session.close().expect("closed");
            },
        );
    }
}

/// Based on firedrake#2457: parts came back in another order after a second cycle on the same number of ranks. Here, boxes are given in
/// the program's own order.
#[test]
fn two_cycles_on_n_keep_each_ranks_parts() {
    let bed = Bed::new();
    // Each of four ranks has every fourth row as its boxes, the last one first; some rows are cut into two boxes in the wrong order.
    let parts = |rank: u32| -> Vec<([u64; 2], [u64; 2])> {
        let rows = (0..96).rev().filter(|row| row % 4 == u64::from(rank));
        let halves = |row: u64| match row % 3 {
            0 => vec![([row, 37], [1, 23]), ([row, 0], [1, 37])],
            _ => vec![([row, 0], [1, 60])],
        };
        rows.flat_map(halves).collect()
    };
    let cycle = |ranks: u32, parts: &(dyn Fn(u32) -> Vec<([u64; 2], [u64; 2])> + Sync), version: u64, is_own: bool| {
        on_nodes(
            &bed,
            &nodes(ranks, 2),
            |_| (),
            |rank, session| {
                let own = parts(rank);
                let boxes = own.iter().fold(Boxes::of([96, 60]), |boxes, (origin, extent)| boxes.own(*origin, *extent));
                let on = session.decompose(boxes).expect("it tiles");
                let mut found = memory(&own, 0, |_, _| 0.0);
                let restored = session.begin_restore("heat").run(|r| {
                    r.load_boxes_on("t", &on, &mut found.iter_mut().map(|own| &mut own[..]).collect::<Vec<_>>())?;
                    Ok(())
                });
                if let Some(restored) = restored.expect("restored") {
                    assert_eq!(restored.version, version - 1);
                    // The elements are in the order of the boxes, as the program gave them.
                    assert!(found == memory(&own, 0, |y, x| value(version - 1, y, x)), "rank {rank} of {ranks}");
                    // A rank reads no more of its own shard than it needs, and nothing of another rank's shard.
                    assert!(!is_own || restored.bytes < on.elements() * 8 + 8192, "{}", restored.bytes);
                } else {
                    assert_eq!(version, 1);
                }
                let next = memory(&own, 0, |y, x| value(version, y, x));
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                checkpoint
                    .save_boxes_on("t", &on, &next.iter().map(|own| &own[..]).collect::<Vec<_>>())
                    .expect("saved");
                checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
                session.close().expect("closed");
            },
        );
    };
    cycle(3, &|rank| dealt(1, rank, 3), 1, false);
    cycle(4, &parts, 2, false);
    cycle(4, &parts, 3, true);
    cycle(4, &parts, 4, true);
    cycle(3, &|rank| dealt(1, rank, 3), 5, false);
}

/// All bits of the state are those that were saved, even those of values that are not numbers or are nearly zero. Sums over the ranks need
/// not be the same: docs/ELASTIC.md says so.
#[test]
fn state_is_equal_and_docs_say_sums_may_not_be() {
    const COUNT: u64 = 1009;
    let bits = |at: u64| match at % 7 {
        0 => f64::NAN.to_bits() | at,
        1 => (-0.0f64).to_bits(),
        2 => at,
        // Ones that are added to such a number one by one are lost in rounding.
        _ if at == 300 => 1e16f64.to_bits(),
        _ if at == 704 => (-1e16f64).to_bits(),
        _ => 1.0f64.to_bits(),
    };
    let bed = Bed::new();
    let mut sums = Vec::new();
    for (ranks, version) in [(4u32, 1u64), (3, 2), (5, 3)] {
        let partial = on_nodes(
            &bed,
            &nodes(ranks, 2),
            |_| (),
            |rank, session| {
                let first = |rank: u32| u64::from(rank) * COUNT / u64::from(ranks);
                let own = first(rank)..first(rank + 1);
                let boxes = Boxes::of([COUNT]).own([own.start], [own.end - own.start]);
                let on = session.decompose(boxes).expect("it tiles");
                let mut state: Vec<f64> = own.clone().map(|at| f64::from_bits(bits(at))).collect();
                if version > 1 {
                    state.fill(7.0);
                    session
                        .begin_restore("heat")
                        .run(|r| Ok(r.load_on("state", &on, &mut state)?))
                        .expect("restored")
                        .expect("one");
                }
                assert!(state.iter().map(|value| value.to_bits()).eq(own.map(bits)), "rank {rank} of {ranks}");
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                checkpoint.save_on("state", &on, &state).expect("saved");
                checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
                session.close().expect("closed");
                state.iter().filter(|value| value.is_normal()).sum::<f64>()
            },
        );
        // Adds as a reduction does: the ranks' sums, one after the other.
        sums.push(partial.into_iter().fold(0.0, |sum, part| sum + part));
    }
    assert!(sums.iter().any(|sum| *sum != sums[0]), "the order of a sum makes no difference here: {sums:?}");
    let says = include_str!("../../../../docs/ELASTIC.md");
    let promise =
        "The loaded state is equal to the saved state, bit for bit. Sums that are computed from it may differ";
    assert!(says.contains(promise), "docs/ELASTIC.md no longer says so");
}

/// A bit is flipped in the memory of the only node, in a block of which each rank reads a part itself. Nothing is sent, so the other ranks
/// learn of the damage only in the last round. If there is another copy, it is read; otherwise, all ranks go back to the previous version.
#[test]
fn a_damaged_block_that_ranks_read_themselves_comes_to_nobody() {
    for is_elsewhere in [true, false] {
        let bed = Bed::new();
        let change = |config: &mut Config| {
            config.node.local_directory = None;
            if !is_elsewhere {
                // The first checkpoint of a run goes to all tiers, and no later one does.
                (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
            }
        };
        on_nodes(&bed, &[0, 0, 0, 0], change, |rank, session| {
            let on = session.decompose(boxes_dealt(0, rank, 4, 0)).expect("it tiles");
            for version in [1, 5] {
                let field = memory(&dealt(0, rank, 4), 0, |y, x| value(version, y, x));
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                checkpoint.save_on("t", &on, &field[0]).expect("saved");
                ended(&checkpoint.capture().expect("captured"));
            }
            drop(session);
        });
        bed.disk.drop_locks();
        assert!(flip(&bed, 0, value(5, 60, 31)) > 0);
        let ends = on_nodes(&bed, &[0, 0, 0], change, |rank, session| {
            let on = session.decompose(boxes_dealt(1, rank, 3, 1)).expect("it tiles");
            let own = dealt(1, rank, 3);
            let (mut found, mut tried) = (memory(&own, 1, |_, _| 0.0), Vec::new());
            let restored = session.begin_restore("heat").run(|r| {
                let mut slices: Vec<&mut [f64]> = found.iter_mut().map(|own| &mut own[..]).collect();
                let loaded = r.load_boxes_on("t", &on, &mut slices);
                tried.push((r.version(), loaded.is_ok()));
                Ok(loaded?)
            });
            let version = restored.expect("restored").expect("there is one").version;
            session.close().expect("closed");
            (tried, found == memory(&own, 1, |y, x| value(version, y, x)))
        });
        for (rank, (tried, is_right)) in ends.into_iter().enumerate() {
            assert!(is_right, "rank {rank} has other elements than were saved: {tried:?}");
            match is_elsewhere {
                true => assert_eq!(tried, [(5, true)]),
                // The load fails on all ranks, not only on the rank that read the block.
                false => {
                    assert_eq!((tried.first(), tried.last()), (Some(&(5, false)), Some(&(1, true))));
                    assert!(tried.iter().all(|(version, is_ok)| (*version == 1) == *is_ok), "{tried:?}");
                }
            }
        }
    }
}

/// Two ranks on two nodes swap their halves of an array, so that each sends its whole half, piece by piece, and reads ahead meanwhile. A
/// bit is flipped in the node's memory, in a piece that is read ahead. The bytes that were read from that copy from there onwards are not
/// used, and the copy on another tier is read.
#[test]
fn a_damaged_block_that_is_read_ahead_comes_to_nobody() {
    const SHAPE: [u64; 2] = [2000, 1000];
    const ROWS: u64 = SHAPE[0] / 2;
    let bed = Bed::new();
    let half = |rank: u32| Boxes::of(SHAPE).own([u64::from(rank) * ROWS, 0], [ROWS, SHAPE[1]]);
    let field =
        |rank: u32| memory(&[([u64::from(rank) * ROWS, 0], [ROWS, SHAPE[1]])], 0, |y, x| value(5, y, x)).remove(0);
    let nowhere = |config: &mut Config| config.node.local_directory = None;
    on_nodes(&bed, &[0, 1], nowhere, |rank, session| {
        let on = session.decompose(half(rank)).expect("it tiles");
        let own = field(rank);
        let mut checkpoint = session.begin_checkpoint("heat", 5).expect("begun");
        checkpoint.save_on("t", &on, &own).expect("saved");
        ended(&checkpoint.capture().expect("captured"));
    });
    bed.disk.drop_locks();
    for (node, row) in [(0, 700), (1, 1999)] {
        assert!(flip(&bed, node, value(5, row, 999)) > 0);
    }
    on_nodes(&bed, &[0, 1], nowhere, |rank, session| {
        let on = session.decompose(half(1 - rank)).expect("it tiles");
        let mut found = vec![0.0f64; (ROWS * SHAPE[1]) as usize];
        let restored = session.begin_restore("heat").run(|r| Ok(r.load_on("t", &on, &mut found)?)).expect("restored");
        assert_eq!(restored.expect("there is one").version, 5);
        assert!(found == field(1 - rank), "rank {rank} has other elements than were saved");
        session.close().expect("closed");
    });
}

/// The folders of version 5 below a directory of the disk that have a manifest.
fn folders_of_5(bed: &Bed, top: &str) -> usize {
    let files = bed.disk.files(Path::new(top)).into_iter();
    files.filter(|(path, _)| path.ends_with("manifest") && path.to_string_lossy().contains("-v0000000005-")).count()
}

/// Takes version 6 in a run with a different number of ranks than version 5's run had, and returns how the version's levels ended.
fn take_6(session: &Session, way: usize, rank: u32, ranks: u32) -> Vec<(Level, Option<String>)> {
    let on = session.decompose(boxes_dealt(way, rank, ranks, 0)).expect("it tiles");
    let next = memory(&dealt(way, rank, ranks), 0, |y, x| value(6, y, x));
    let mut checkpoint = session.begin_checkpoint("heat", 6).expect("begun");
    checkpoint.save_boxes_on("t", &on, &next.iter().map(|own| &own[..]).collect::<Vec<_>>()).expect("saved");
    checkpoint.shared("step", &("six".to_owned(), 6u64)).expect("saved");
    let pending = checkpoint.capture().expect("captured");
    pending.wait(Level::Process).expect("committed");
    ended(&pending)
}

/// A run with fewer ranks is killed before it has taken anything, and the next run is killed after it has committed in node memory alone.
/// Then the memory of one node is lost. What the first run left on the other node remains: slots and parity of its four ranks.
#[test]
fn old_slots_and_parity_stay_until_a_run_of_another_size_has_committed_at_their_level() {
    let bed = Bed::new();
    let alone = |config: &mut Config| {
        config.node.local_directory = None;
        (config.job.local_enabled, config.job.global_enabled) = (false, false);
    };
    let protected = |config: &mut Config| {
        alone(config);
        config.job.redundancy.scheme = Scheme::Xor { members: 2 };
    };
    on_nodes(&bed, &[0, 0, 1, 1], protected, |rank, session| {
        let on = session.decompose(boxes_dealt(0, rank, 4, 0)).expect("it tiles");
        let field = memory(&dealt(0, rank, 4), 0, |y, x| value(5, y, x));
        let mut checkpoint = session.begin_checkpoint("heat", 5).expect("begun");
        checkpoint.save_on("t", &on, &field[0]).expect("saved");
        checkpoint.shared("step", &("five".to_owned(), 5u64)).expect("saved");
        checkpoint.capture().expect("captured").wait(Level::NodeLoss).expect("protected");
        drop(session);
    });
    bed.disk.drop_locks();
    on_nodes(&bed, &[0, 1, 1], protected, |rank, session| {
        assert_eq!(load_all(&session, 1, rank, 3).expect("restored").0, 5);
        drop(session);
    });
    bed.disk.drop_locks();
    // Nothing protects the version that this run takes.
    on_nodes(&bed, &[0, 0, 0, 1, 1, 1], alone, |rank, session| {
        assert_eq!(load_all(&session, 2, rank, 6).expect("restored").0, 5);
        assert_eq!(take_6(&session, 2, rank, 6), [(Level::Process, None)]);
        drop(session);
    });
    bed.disk.drop_locks();
    std::fs::remove_dir_all(bed.memory.path().join("node-0")).expect("our own folder");
    let ends = on_nodes(&bed, &[1, 1], protected, |rank, session| {
        let end = load_all(&session, 0, rank, 2).expect("restored");
        session.close().expect("closed");
        end
    });
    assert!(ends.iter().all(|(version, _)| *version == 5), "{ends:?}");
    assert!(ends.iter().any(|(_, tier)| *tier == "peers"), "{ends:?}");
}

/// The files of four ranks stay while a run of six ranks has committed in node memory only, and are deleted when a run of two ranks has
/// committed at the level of these files.
#[test]
fn old_files_stay_until_a_run_of_another_size_has_committed_at_their_level() {
    let bed = Bed::new();
    let change = |config: &mut Config| {
        (config.job.local.keep_last, config.job.global.keep_last) = (1, 1);
    };
    take_all(&bed, change, Level::System);
    let tops = ["/local-0", "/local-1", "/global"];
    let kept = || tops.map(|top| folders_of_5(&bed, top) > 0);
    assert_eq!(kept(), [true; 3]);
    on_nodes(&bed, &[0, 1, 1], change, |rank, session| {
        assert_eq!(load_all(&session, 1, rank, 3).expect("restored").0, 5);
        drop(session);
    });
    bed.disk.drop_locks();
    assert_eq!(kept(), [true; 3], "after a run that took nothing");
    let later = |config: &mut Config| {
        change(config);
        (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
    };
    on_nodes(&bed, &[0, 0, 0, 1, 1, 1], later, |rank, session| {
        assert_eq!(load_all(&session, 2, rank, 6).expect("restored").0, 5);
        // All ranks have opened their tiers. Now the disks of all tiers are full, so that no tier takes anything more.
        if rank == 0 {
            tops.iter().for_each(|top| bed.disk.inject(Path::new(top), Fault::Full).expect("it is a path"));
        }
        session.agree("the disks are full", crate::coordination::Payload::None, None).expect("together");
        let levels = levels(&take_6(&session, 2, rank, 6), true);
        assert!(levels.contains(&Level::Process) && !levels.contains(&Level::System), "{levels:?}");
        drop(session);
    });
    bed.disk.drop_locks();
    tops.iter().for_each(|top| bed.disk.heal(Path::new(top)).expect("it is a path"));
    assert_eq!(kept(), [true; 3], "after a run that committed in memory alone");
    for node in [0, 1] {
        std::fs::remove_dir_all(bed.memory.path().join(format!("node-{node}"))).expect("our own folder");
    }
    on_nodes(&bed, &[0, 1], change, |rank, session| {
        assert_eq!(load_all(&session, 0, rank, 2).expect("restored").0, 5);
        let verdicts = take_6(&session, 0, rank, 2);
        assert_eq!(levels(&verdicts, false), [], "{verdicts:?}");
        session.close().expect("closed");
    });
    assert_eq!(kept(), [false; 3], "version 6 is there at each of its levels");
}
