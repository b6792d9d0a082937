//! States that a program describes once, and then saves and loads.

use super::*;
use crate::decomposition::{Boxes, Decomposition, OnResize};
use crate::recovery::Attempt;
use crate::session::{Checkpoint, Protect, Protected};

#[derive(Clone, PartialEq, Debug, Default)]
struct Plate {
    step: u64,
    name: String,
    temperature: Vec<f64>,
    corners: [[f32; 2]; 4],
    rest: Box<[u8]>,
}

impl Checkpoint for Plate {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        parts.protect("step", &mut self.step).protect("name", &mut self.name);
        parts.protect("temperature", &mut self.temperature).protect("corners", &mut self.corners);
        parts.protect("rest", &mut self.rest);
    }
}

fn plate(version: u64) -> Plate {
    Plate {
        step: version,
        name: format!("plate of version {version}"),
        temperature: (0..1000 + version).map(|at| (at * version) as f64).collect(),
        corners: [[version as f32, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]],
        rest: vec![version as u8; 77].into(),
    }
}

#[test]
fn a_state_is_restored_as_it_was_saved() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let mut empty = Plate { rest: vec![0; 77].into(), ..Plate::default() };
    assert_eq!(session.restore("heat", &mut empty).expect("nothing is there"), None);
    assert_eq!(empty, Plate { rest: vec![0; 77].into(), ..Plate::default() });
    for version in 1..=3 {
        let mut state = plate(version);
        settle(&session.checkpoint("heat", version, &mut state).expect("captured"));
        assert_eq!(state, plate(version));
    }
    for (version, wanted) in [(3, None), (2, Some(2))] {
        // A vector gets the length with which it was saved.
        let mut back = Plate { temperature: vec![9.0; 3], rest: vec![0; 77].into(), ..Plate::default() };
        let restored = match wanted {
            None => session.restore("heat", &mut back),
            Some(version) => session.restore_version("heat", version, &mut back),
        };
        assert_eq!(restored.expect("restores").expect("one").version, version);
        assert_eq!(back, plate(version));
    }
    session.close().expect("closes");
}

#[test]
fn parts_that_are_missing_or_other_end_the_restart() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    settle(&session.checkpoint("heat", 1, &mut plate(1)).expect("captured"));
    let (mut step, mut temperature, mut rest) = (0u64, vec![0.0f64; 7], [0u8; 5]);
    for (parts, says) in [
        (Protected::new().protect("pressure", &mut temperature), "has no region \"pressure\""),
        (Protected::new().protect("rest", &mut rest), "77 x u8"),
        (Protected::new().protect("temperature", &mut step), "a value was requested"),
    ] {
        let error = session.restore("heat", parts).expect_err("another one").to_string();
        assert!(error.contains(says), "{error}");
    }
    // A name that is used twice is refused with the reason, and so is a state without parts. The next checkpoint is taken.
    let (mut one, mut two) = (1u8, 2u8);
    let twice = session.checkpoint("heat", 2, Protected::new().protect("a", &mut one).protect("a", &mut two));
    assert!(twice.err().expect("refused").to_string().contains("twice"));
    assert!(session.checkpoint("heat", 3, &mut Protected::new()).is_err());
    settle(&session.checkpoint("heat", 4, &mut plate(4)).expect("captured"));
    session.close().expect("closes");
}

/// A state is loaded as a part of another state, under its name, beside a region that the program saves and loads itself.
#[test]
fn states_are_put_together_and_loaded_by_hand() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let (mut first, mut second, mut number) = (plate(1), plate(2), 5u32);
    let own = [1.5f64; 9];
    {
        let mut parts = Protected::new();
        parts
            .protect_state("first", &mut first)
            .protect_state("second", &mut second)
            .protect_value("number", &mut number);
        let mut ckpt = session.begin_checkpoint("heat", 1).expect("begun");
        ckpt.save_protected(&parts).expect("added");
        ckpt.save("own", &own).expect("added");
        settle(&ckpt.capture().expect("captured"));
    }
    let (mut back, mut again) = (plate(7), 0u32);
    let load = |attempt: &mut Attempt| {
        assert_eq!(attempt.load_vec::<f64>("own")?, own);
        let mut parts = Protected::new();
        parts.protect_state("second", &mut back).protect_value("number", &mut again);
        Ok(attempt.load_protected(&mut parts)?)
    };
    session.begin_restore("heat").run(load).expect("restores").expect("one");
    assert_eq!((back, again), (plate(2), 5));
    session.close().expect("closes");
}

struct Model {
    grid: Decomposition,
    step: u64,
    seed: u64,
    cells: Vec<u32>,
}

impl Checkpoint for Model {
    fn describe<'a>(&'a mut self, parts: &mut Protected<'a>) {
        parts.protect_shared("step", &mut self.step).protect_on("cells", &self.grid, &mut self.cells);
        parts.protect_per_rank("seed", &mut self.seed, OnResize::Drop);
    }
}

/// The same lines run on four ranks and then on three.
#[test]
fn a_state_on_a_decomposition_is_restored_on_another_number_of_ranks() {
    const CELLS: u64 = 60;
    let bed = Bed::new();
    for ranks in [4u32, 3] {
        let nodes = vec![0u32; ranks as usize];
        on_nodes(
            &bed,
            &nodes,
            |_| (),
            |rank, session| {
                let (first, end) =
                    (CELLS * u64::from(rank) / u64::from(ranks), CELLS * u64::from(rank + 1) / u64::from(ranks));
                let grid = session.decompose(Boxes::of([CELLS]).own([first], [end - first])).expect("it tiles");
                let mut model =
                    Model { grid, step: 0, seed: 100 + u64::from(rank), cells: vec![0; (end - first) as usize] };
                if ranks == 4 {
                    model.step = 9;
                    model.cells = (first..end).map(|cell| cell as u32 * 3).collect();
                    session
                        .checkpoint("model", 9, &mut model)
                        .expect("captured")
                        .wait(Level::System)
                        .expect("committed");
                    model.seed = 0;
                } else {
                    model.seed = 7;
                }
                session.restore("model", &mut model).expect("restores").expect("one");
                assert_eq!(model.step, 9);
                assert_eq!(model.cells, (first..end).map(|cell| cell as u32 * 3).collect::<Vec<_>>());
                assert_eq!(model.seed, if ranks == 4 { 100 + u64::from(rank) } else { 7 });
                session.close().expect("closed");
            },
        );
    }
}

/// All types that can be protected without further information.
#[test]
fn numbers_arrays_and_strings_are_protected_as_they_are() {
    fn takes<T: Protect + ?Sized>() {}
    takes::<bool>();
    takes::<usize>();
    takes::<String>();
    takes::<[i16]>();
    takes::<[[f64; 3]; 2]>();
    takes::<Vec<[u8; 5]>>();
    takes::<Box<[f32]>>();
}
