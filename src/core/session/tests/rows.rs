//! Rows whose number changes freely: saved on some ranks, and spread over others.

use super::*;
use crate::base::Rank;
use crate::decomposition::Boxes;
use crate::decomposition::rows::even;
use crate::recovery::{Attempt, How, LoadError, RankPart};
use crate::session::{Protected, Rows, RowsMut};
use std::sync::Mutex;

/// The number of particles of each of four ranks.
const COUNTS: [u64; 4] = [5000, 0, 37, 21000];

/// A particle of version 5: its coordinate, velocity, and number.
#[derive(Clone, Debug, PartialEq)]
struct Particle {
    x: u64,
    v: [u32; 3],
    id: u64,
}

fn particle(rank: u32, place: u64) -> Particle {
    let id = u64::from(rank) << 32 | place;
    let bits = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Some of the bit patterns are not numbers.
    Particle { x: bits, v: [bits as u32, (bits >> 32) as u32, (bits >> 16) as u32], id }
}

fn of_rank(rank: u32) -> Vec<Particle> {
    (0..COUNTS[rank as usize]).map(|place| particle(rank, place)).collect()
}

fn all() -> Vec<Particle> {
    (0..4).flat_map(of_rank).collect()
}

/// Takes version 5 on four ranks, which run on `nodes`.
fn take(bed: &Bed, nodes: &[u32], change: impl Fn(&mut Config), level: Level) {
    on_nodes(bed, nodes, change, |rank, session| {
        let own = of_rank(rank);
        let x: Vec<f64> = own.iter().map(|one| f64::from_bits(one.x)).collect();
        let v: Vec<f32> = own.iter().flat_map(|one| one.v.map(f32::from_bits)).collect();
        let id: Vec<u64> = own.iter().map(|one| one.id).collect();
        let mut checkpoint = session.begin_checkpoint("plasma", 5).expect("begun");
        let rows = Rows::new(own.len() as u64).column("x", &x).columns("v", 3, &v).column("id", &id);
        checkpoint.save_rows("electrons", rows.bounds([f64::from(rank)], [f64::from(rank + 1)])).expect("saved");
        checkpoint.save_rows("ions", Rows::new(0).column::<u8>("kind", &[])).expect("saved");
        checkpoint.shared("step", &5u64).expect("saved");
        let end = checkpoint.capture().expect("captured").wait(level).expect("committed");
        assert!(end >= level);
        if level == Level::NodeLoss { drop(session) } else { session.close().expect("closed") }
    });
}

/// The rows of this rank, as the restart gives them.
fn load(r: &mut Attempt, how: How<'_>) -> Result<Vec<Particle>, LoadError> {
    let mut rows = r.load_rows("electrons", how)?;
    let id: Vec<u64> = rows.column("id")?;
    let mut v = vec![0f32; 3 * rows.count() as usize];
    rows.columns_into("v", 3, &mut v)?;
    let x: Vec<f64> = rows.column("x")?;
    assert_eq!((rows.count(), x.len()), (id.len() as u64, id.len()));
    let v = v.chunks_exact(3).map(|v| [v[0].to_bits(), v[1].to_bits(), v[2].to_bits()]);
    Ok(x.into_iter().zip(v).zip(id).map(|((x, v), id)| Particle { x: x.to_bits(), v, id }).collect())
}

/// The rank to which a particle goes.
fn owner(id: u64, ranks: u32) -> u32 {
    (id.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u32 % ranks
}

/// Loads the rows in all ways, and checks everything.
fn load_in_all_ways(session: &Session, rank: u32, ranks: u32, seen: &Mutex<Vec<u64>>) -> (u64, &'static str) {
    let all = all();
    let total = all.len() as u64;
    // The ranges overlap, and leave out some rows.
    let some = u64::from(rank) * 777 % total..(u64::from(rank) * 777 % total + 9000).min(total);
    let restored = session.begin_restore("plasma").run(|r| {
        assert_eq!(r.shared::<u64>("step")?, 5);
        let slice = |rows: std::ops::Range<u64>| &all[rows.start as usize..rows.end as usize];
        assert!(load(r, How::Even)? == slice(even(total, Rank(rank), ranks)), "rank {rank} of {ranks}");
        assert!(load(r, How::Range(some.clone()))? == slice(some.clone()), "rank {rank} of {ranks}");
        assert_eq!(load(r, How::Range(7..7))?, []);
        let by = How::by("id", 1, |ids: &[u64], owners: &mut [u32]| {
            seen.lock().expect("no panic").extend(ids);
            ids.iter().zip(owners).for_each(|(id, of)| *of = owner(*id, ranks));
        });
        let expected: Vec<Particle> = all.iter().filter(|one| owner(one.id, ranks) == rank).cloned().collect();
        assert!(load(r, by)? == expected, "rank {rank} of {ranks}");
        // All rows go to the last rank, as a column of several elements decides.
        let by = How::by("v", 3, |v: &[f32], owners: &mut [u32]| {
            assert_eq!(v.len(), 3 * owners.len());
            owners.fill(ranks - 1);
        });
        assert!(load(r, by)? == if rank + 1 == ranks { all.clone() } else { vec![] });
        let mut ions = r.load_rows("ions", How::Even)?;
        assert_eq!((ions.count(), ions.column::<u8>("kind")?), (0, vec![]));
        Ok(())
    });
    let restored = restored.expect("restored").expect("there is one");
    (restored.version, restored.tier.name())
}

fn each_was_seen_once(seen: Mutex<Vec<u64>>) {
    let mut seen = seen.into_inner().expect("no panic");
    seen.sort_unstable();
    assert!(seen.into_iter().eq(all().into_iter().map(|one| one.id)));
}

#[test]
fn rows_come_to_other_ranks_in_all_ways_and_each_is_asked_for_once() {
    for (level, ranks) in [(Level::Process, 3u32), (Level::Process, 4), (Level::System, 1), (Level::System, 6)] {
        let bed = Bed::new();
        take(&bed, &[0, 0, 1, 1], |_| (), level);
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
        let seen = Mutex::default();
        let ends = on_nodes(
            &bed,
            &nodes,
            |_| (),
            |rank, session| {
                let end = load_in_all_ways(&session, rank, ranks, &seen);
                session.close().expect("closed");
                end
            },
        );
        assert!(ends.iter().all(|(version, _)| *version == 5), "{ends:?}");
        each_was_seen_once(seen);
    }
}

/// Takes and restores rows as part of a described state.
#[test]
fn rows_in_a_state_come_back_on_other_ranks_as_often_as_they_are_asked_for() {
    let bed = Bed::new();
    let columns = |rank: u32| {
        let own = of_rank(rank);
        let v: Vec<u32> = own.iter().flat_map(|one| one.v).collect();
        (own.iter().map(|one| one.id).collect::<Vec<u64>>(), v)
    };
    let take = |rank: u32, session: Session| {
        let (mut id, mut v) = columns(rank);
        let rows = RowsMut::new().column("id", &mut id).columns("v", 3, &mut v).bounds([0.0], [1.0]);
        let mut state = Protected::new();
        state.protect_rows("electrons", rows, How::Own);
        let end =
            session.checkpoint("plasma", 1, &mut state).expect("captured").wait(Level::System).expect("committed");
        assert_eq!(end, Level::System);
        // Vectors of another length get their saved length back.
        let mut changed = (vec![1u64; 3], vec![2u32]);
        let mut state = Protected::new();
        let rows = RowsMut::new().column("id", &mut changed.0).columns("v", 3, &mut changed.1);
        session
            .restore("plasma", state.protect_rows("electrons", rows, How::Own))
            .expect("restored")
            .expect("there is one");
        drop(state);
        assert!(changed == columns(rank), "rank {rank}");
        session.close().expect("closed");
    };
    on_nodes(&bed, &[0, 0, 1, 1], |_| (), take);
    let ranks = 3;
    on_nodes(
        &bed,
        &[0, 1, 2],
        |_| (),
        |rank, session| {
            let (mut id, mut v) = (Vec::<u64>::new(), Vec::<u32>::new());
            let mut calls = 0;
            let by = How::by("id", 1, |ids: &[u64], owners: &mut [u32]| {
                calls += 1;
                ids.iter().zip(owners).for_each(|(id, of)| *of = owner(*id, ranks));
            });
            let mut state = Protected::new();
            state.protect_rows("electrons", RowsMut::new().column("id", &mut id).columns("v", 3, &mut v), by);
            for _ in 0..2 {
                session.restore("plasma", &mut state).expect("restored").expect("there is one");
            }
            drop(state);
            let expected: Vec<Particle> = all().into_iter().filter(|one| owner(one.id, ranks) == rank).collect();
            assert!(id.iter().eq(expected.iter().map(|one| &one.id)), "rank {rank}");
            assert!(v.into_iter().eq(expected.iter().flat_map(|one| one.v)), "rank {rank}");
            assert!(calls % 2 == 0, "rank {rank}: {calls} calls in two restarts");
            session.close().expect("closed");
        },
    );
}

#[test]
fn rows_in_a_state_whose_columns_differ_in_length_are_refused() {
    let bed = Bed::new();
    on_nodes(
        &bed,
        &[0],
        |_| (),
        |_, session| {
            let (mut id, mut v) = (vec![1u64, 2], vec![0f32; 5]);
            let rows = RowsMut::new().column("id", &mut id).columns("v", 3, &mut v);
            let refused = session.checkpoint("plasma", 1, Protected::new().protect_rows("electrons", rows, How::Even));
            let text = refused.err().expect("5 elements are no 2 rows of 3").to_string();
            assert!(text.contains("electrons/v"), "{text}");
            session.close().expect("closed");
        },
    );
}

#[test]
fn rows_of_a_lost_node_are_rebuilt_and_dealt_over_those_that_are_left() {
    for scheme in [Scheme::Xor { members: 4 }, Scheme::Partner { copies: 1 }] {
        let bed = Bed::new();
        let change = |config: &mut Config| {
            config.job.redundancy.scheme = scheme;
            config.job.local_enabled = false;
            config.job.global_enabled = false;
        };
        take(&bed, &[0, 1, 2, 3], change, Level::NodeLoss);
        // The rank on this node has most of the rows.
        let _ = std::fs::remove_dir_all(bed.memory.path().join("node-3"));
        for nodes in [&[0, 1, 2][..], &[1, 0, 0, 2], &[2, 2, 0, 0, 1, 1]] {
            bed.disk.drop_locks();
            let (ranks, seen) = (nodes.len() as u32, Mutex::default());
            let ends = on_nodes(&bed, nodes, change, |rank, session| {
                let end = load_in_all_ways(&session, rank, ranks, &seen);
                drop(session);
                end
            });
            assert!(ends.iter().all(|(version, _)| *version == 5), "{scheme:?} {nodes:?} {ends:?}");
            each_was_seen_once(seen);
        }
    }
}

#[test]
fn as_many_ranks_get_their_own_rows_back_and_others_are_told_what_to_call() {
    let bed = Bed::new();
    take(&bed, &[0, 0, 1, 1], |_| (), Level::Process);
    for ranks in [4u32, 3] {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank / 2).collect();
        on_nodes(
            &bed,
            &nodes,
            |_| (),
            |rank, session| {
                let restored = session.begin_restore("plasma").run(|r| {
                    match load(r, How::Own) {
                        Ok(own) => assert!(ranks == 4 && own == of_rank(rank)),
                        Err(error) => {
                            let text = error.to_string();
                            assert!(ranks == 3 && text.contains("was taken by 4 ranks and this run has 3"), "{text}");
                        }
                    }
                    // Columns can be loaded like other arrays.
                    if ranks == 4 {
                        let mut id = vec![0u64; COUNTS[rank as usize] as usize];
                        r.load("electrons/id", &mut id)?;
                        assert!(id.into_iter().eq(of_rank(rank).into_iter().map(|one| one.id)));
                    }
                    Ok(())
                });
                assert_eq!(restored.expect("restored").expect("there is one").version, 5);
                session.close().expect("closed");
            },
        );
    }
}

#[test]
fn ranks_hear_what_old_ranks_had_of_rows_and_of_arrays() {
    let bed = Bed::new();
    // One of four ranks has more boxes than fit into a page.
    let own = |rank: u32| match rank {
        0 => vec![],
        3 => (0..5000u64).map(|at| (vec![3, at * 2], vec![1, 2])).collect(),
        _ => vec![(vec![u64::from(rank), 0], vec![1, 10_000])],
    };
    on_nodes(
        &bed,
        &[0, 0, 1, 1],
        |_| (),
        |rank, session| {
            let boxes = Boxes::of([4, 10_000]).sparse();
            let boxes = own(rank).into_iter().fold(boxes, |boxes, (origin, extent)| boxes.own(origin, extent));
            let on = session.decompose(boxes).expect("apart");
            let memory: Vec<Vec<u8>> = own(rank).iter().map(|(_, extent)| vec![1; extent[1] as usize]).collect();
            let memory: Vec<&[u8]> = memory.iter().map(|memory| &memory[..]).collect();
            let x = vec![0u8; COUNTS[rank as usize] as usize];
            let mut checkpoint = session.begin_checkpoint("plasma", 5).expect("begun");
            checkpoint.save_boxes_on("t", &on, &memory).expect("saved");
            let low = f64::from(rank);
            let rows = Rows::new(COUNTS[rank as usize]).column("x", &x).bounds([low, -low], [low + 1.0, low]);
            checkpoint.save_rows("electrons", rows).expect("saved");
            checkpoint.shared("step", &5u64).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
        },
    );
    for ranks in [3u32, 4, 6] {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
        on_nodes(
            &bed,
            &nodes,
            |_| (),
            |rank, session| {
                let restored = session.begin_restore("plasma").run(|r| {
                    // One rank asks for nothing, and others ask for more old ranks than there were.
                    let wanted = if rank == 1 { 2..2 } else { rank.min(2)..9 };
                    let asked = || wanted.clone().take_while(|of| *of < 4);
                    let shape = vec![4, 10_000];
                    let boxes = asked().map(|of| RankPart::Boxes { shape: shape.clone(), boxes: own(of) });
                    assert_eq!(r.parts("t", wanted.clone())?, boxes.collect::<Vec<_>>());
                    let rows = asked().map(|of| {
                        let low = f64::from(of);
                        RankPart::Rows { count: COUNTS[of as usize], bounds: vec![[low, low + 1.0], [-low, low]] }
                    });
                    assert_eq!(r.parts("electrons", wanted.clone())?, rows.collect::<Vec<_>>());
                    let text = r.parts("step", 0..1).expect_err("a value").to_string();
                    assert!(text.contains("it has no parts"), "{text}");
                    assert!(r.parts("protons", 0..1).is_err());
                    Ok(())
                });
                assert_eq!(restored.expect("restored").expect("there is one").version, 5);
                session.close().expect("closed");
            },
        );
    }
}

/// The errors that all ranks get from a restart that must fail.
fn refused(bed: &Bed, ranks: u32, load: impl Fn(&mut Attempt, u32) -> Result<(), LoadError> + Sync) -> Vec<String> {
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / 2).collect();
    on_nodes(
        bed,
        &nodes,
        |_| (),
        |rank, session| {
            let end = session.begin_restore("plasma").run(|r| Ok(load(r, rank)?));
            session.close().expect("closed");
            end.expect_err("refused").to_string()
        },
    )
}

#[test]
fn mistakes_are_told_alike_on_all_ranks() {
    let bed = Bed::new();
    take(&bed, &[0, 0, 1, 1], |_| (), Level::Process);
    let all_say = |texts: Vec<String>, says: &str| {
        assert!(texts.iter().all(|text| text.contains(says)), "{says}: {texts:?}");
    };
    for ranks in [3u32, 4] {
        let named = |owner: u32| {
            move |r: &mut Attempt, _: u32| {
                let by = How::by("id", 1, |ids: &[u64], owners: &mut [u32]| {
                    for (id, of) in ids.iter().zip(owners) {
                        match *id == 2 << 32 | 30 {
                            true if owner == u32::MAX => {}
                            bad => *of = if bad { owner } else { 0 },
                        }
                    }
                });
                r.load_rows("electrons", by).map(drop)
            }
        };
        let says = format!(
            "row 30 of rank 2 in region \"electrons/id\" was given to rank 9, but there are only {ranks} ranks"
        );
        all_say(refused(&bed, ranks, named(9)), &says);
        all_say(
            refused(&bed, ranks, named(u32::MAX)),
            "row 30 of rank 2 in region \"electrons/id\" was given to no rank",
        );
        let far = |r: &mut Attempt, rank: u32| {
            let end = if rank == 1 { 26_038 } else { 10 };
            r.load_rows("electrons", How::Range(5..end)).map(drop)
        };
        all_say(refused(&bed, ranks, far), "rank 1: it asks for rows 5 to 26038, but there are only 26037");
        // One rank asks for another way of spreading the rows than the others do.
        let mixed = |r: &mut Attempt, rank: u32| {
            r.load_rows("electrons", if rank == 2 { How::Range(0..1) } else { How::Even }).map(drop)
        };
        all_say(refused(&bed, ranks, mixed), "a range of rows");
        let other = |r: &mut Attempt, _: u32| r.load_rows("electrons", How::Even)?.columns::<f64>("v", 3).map(drop);
        all_say(refused(&bed, ranks, other), "rows of 3 x f32");
        let short = |r: &mut Attempt, rank: u32| {
            let mut rows = r.load_rows("electrons", How::Even)?;
            let mut memory = vec![0u64; rows.count() as usize - usize::from(rank == 1)];
            rows.columns_into("id", 1, &mut memory)
        };
        all_say(refused(&bed, ranks, short), "rank 1: ");
        all_say(refused(&bed, ranks, |r, _| r.load_rows("protons", How::Even).map(drop)), "\"protons\"");
        all_say(
            refused(&bed, ranks, |r, _| r.load_rows("electrons", How::Even)?.column::<u8>("q").map(drop)),
            "electrons/q",
        );
    }
}

#[test]
fn rows_that_cannot_be_are_refused_where_they_are_given() {
    let text = |end: Result<(), Error>| end.expect_err("refused").to_string();
    on_nodes(
        &Bed::new(),
        &[0],
        |_| (),
        |_, session| {
            let x = [1.0f64; 6];
            let mut checkpoint = session.begin_checkpoint("plasma", 1).expect("begun");
            let refused = text(checkpoint.save_rows("a", Rows::new(5).column("x", &x)));
            assert!(refused.contains("column \"a/x\" has 6 elements, but 5 rows of 1 need 5"), "{refused}");
            let refused = text(checkpoint.save_rows("a", Rows::new(3).columns("x", 0, &x)));
            assert!(refused.contains("3 rows of 0 need 0"), "{refused}");
            assert!(text(checkpoint.save_rows("a", Rows::new(6))).contains("rows \"a\": they have no column"));
            assert!(
                text(checkpoint.save_rows("a", Rows::new(6).column("x/y", &x))).contains("\"x/y\" cannot be the name")
            );
            let twice = Rows::new(6).column("x", &x).column("x", &x);
            assert!(text(checkpoint.save_rows("a", twice)).contains("region \"a/x\" is saved twice"));
            let bounds = Rows::new(6).column("x", &x).bounds([0.0; 2], [1.0; 3]);
            assert!(text(checkpoint.save_rows("a", bounds)).contains("bounds of 2 and 3 coordinates"));
            checkpoint.save_rows("a", Rows::new(6).column("x", &x)).expect("saved");
            checkpoint.save_rows("a/b", Rows::new(2).columns("x", 3, &x)).expect("saved");
            assert!(text(checkpoint.save_rows("a", Rows::new(6).column("y", &x))).contains("saved twice"));
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
        },
    );
}

#[test]
fn ranks_with_other_columns_take_no_checkpoint_and_those_with_other_counts_do() {
    on_nodes(
        &Bed::new(),
        &[0, 0],
        |_| (),
        |rank, session| {
            let x = [1.0f32; 12];
            for (version, other, is_one) in [(1, 1, true), (2, 2, false)] {
                let width = if rank == 1 { other } else { 1 };
                let rows =
                    Rows::new(6 * u64::from(rank) / u64::from(width)).columns("x", width, &x[..6 * rank as usize]);
                let mut checkpoint = session.begin_checkpoint("plasma", version).expect("begun");
                checkpoint.save_rows("a", rows).expect("saved");
                let end = checkpoint.capture().expect("captured").wait(Level::Process);
                assert_eq!(end.is_ok(), is_one, "{end:?}");
            }
            session.close().expect("closed");
        },
    );
}
