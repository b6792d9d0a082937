//! Blocks to try the digest on: constants, small numbers, and states of real programs at two times.

use super::model::{Grid, Ground, SURFACE_ROW, Shape, Survey};
use super::plate;
use super::stencil;
use bivouac_core::base::rng::Rng;

/// Bytes of every block of the battery.
pub const BLOCK: usize = 64 << 10;

/// A block of one program, and the same block one step of the program later.
pub struct State {
    /// Which program, and which of its blocks.
    pub name: String,
    /// The block.
    pub now: Vec<u8>,
    /// What the block holds a step later.
    pub later: Vec<u8>,
    /// Bytes of an element.
    pub element: usize,
}

fn state(name: impl Into<String>, element: usize, now: Vec<u8>, later: Vec<u8>) -> State {
    let mut state = State { name: name.into(), now, later, element };
    state.now.resize(BLOCK, 0);
    state.later.resize(BLOCK, 0);
    state
}

/// A block of equal elements: `element` is its bytes.
fn constant(name: &str, element: &[u8]) -> State {
    let bytes = element.repeat(BLOCK / element.len());
    state(name, element.len(), bytes.clone(), bytes)
}

/// A block of whole numbers below 16, `size` bytes each, and a later block of other such numbers.
fn small_numbers(size: usize, seed: u64) -> State {
    let mut rng = Rng::new(seed);
    let mut draw =
        || -> Vec<u8> { (0..BLOCK / size).flat_map(|_| rng.below(16).to_le_bytes()[..size].to_vec()).collect() };
    state(format!("small u{}", 8 * size), size, draw(), draw())
}

fn doubles(values: impl Iterator<Item = f64>) -> Vec<u8> {
    values.take(BLOCK / 8).flat_map(f64::to_le_bytes).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().take(BLOCK / 4).flat_map(|value| value.to_le_bytes()).collect()
}

/// Numbers that a program keeps about itself: counters that grow by one, and indices that move by a row.
fn counting() -> [State; 2] {
    let counters = |step: u64| (0..BLOCK as u64 / 8).flat_map(|at| (at + step).to_le_bytes()).collect();
    let indices =
        |step: u32| (0..BLOCK as u32 / 4).flat_map(|at| (at / 64 * 128 + at % 64 + step).to_le_bytes()).collect();
    [state("counters u64", 8, counters(1000), counters(1001)), state("indices u32", 4, indices(0), indices(128))]
}

/// Particles in a box: position and velocity, as structures of six doubles and as an array of one coordinate.
fn particles() -> [State; 2] {
    let mut rng = Rng::new(77);
    let mut unit = || rng.next_u64() as f64 / u64::MAX as f64;
    let mut all: Vec<[f64; 6]> =
        (0..BLOCK / 8).map(|_| [unit(), unit(), unit(), unit() - 0.5, unit() - 0.5, unit() - 0.5]).collect();
    let mut looks = Vec::new();
    for _ in 0..2 {
        looks.push((doubles(all.iter().flatten().copied()), doubles(all.iter().map(|particle| particle[0]))));
        for particle in &mut all {
            for axis in 0..3 {
                particle[axis] += 0.001 * particle[axis + 3];
                if !(0.0..1.0).contains(&particle[axis]) {
                    particle[axis + 3] = -particle[axis + 3];
                }
            }
        }
    }
    let (later, now) = (looks.remove(1), looks.remove(0));
    [state("particles, structures", 8, now.0, later.0), state("particles, one coordinate", 8, now.1, later.1)]
}

/// The plate of `heat2d`: hot and cold, and its material.
fn heat() -> Vec<State> {
    let grid: plate::Grid = "256x256".parse().expect("a grid");
    let cut = plate::Decomposition::new(grid, 1).expect("one rank");
    let (formula, block) = (plate::Formula(grid), cut.block(0));
    let plane = |value: &dyn Fn(usize, usize) -> f64| plate::Plane::from_fn(&block, value);
    let mut field =
        plate::Field::new(plane(&|x, y| formula.temperature(x, y)), plane(&|x, y| formula.conductivity(x, y)));
    plate::Side::ALL.iter().for_each(|side| field.conductivity.mirror_halo(*side));
    let mut step = |steps: usize| {
        for _ in 0..steps {
            plate::Side::ALL.iter().for_each(|side| field.close_border(*side, plate::Border::Fixed));
            field.step();
        }
        (0..256).flat_map(|y| field.now.row(y).to_vec()).collect::<Vec<f64>>()
    };
    let (now, later) = (step(50), step(1));
    let part = |all: &[f64], index: usize| doubles(all[index * BLOCK / 8..].iter().copied());
    (0..2).map(|index| state(format!("heat2d, block {index}"), 8, part(&now, index), part(&later, index))).collect()
}

/// A wavefield of `rtm`: mostly still zero, and after the wave has passed.
fn waves() -> Vec<State> {
    let grid: Grid = "256x128".parse().expect("a grid");
    let survey = Survey { shape: Shape::new(grid), steps: 300, every: 4, shots: 1 };
    let shape = &survey.shape;
    let seconds = survey.seconds_per_step();
    let (courant, sponge) = (Ground::layered(grid, 5).courant(shape, seconds), shape.sponge(seconds));
    let (mut now, mut before) = (vec![0f32; shape.cells()], vec![0f32; shape.cells()]);
    let source = shape.index(survey.source_column(0), SURFACE_ROW);
    let mut states = Vec::new();
    for step in 1..=survey.steps {
        stencil::step(shape, &courant, &sponge, &now, &mut before);
        std::mem::swap(&mut now, &mut before);
        now[source] += survey.wavelet(step);
        if step == 60 || step == 299 {
            states.push(state(format!("rtm, step {step}"), 4, floats(&now), Vec::new()));
        } else if let Some(last) = states.last_mut().filter(|_| step == 61 || step == 300) {
            last.later = floats(&now);
        }
    }
    states
}

/// All blocks of the battery.
pub fn all() -> Vec<State> {
    let mut rng = Rng::new(5);
    let mut noise = || (0..BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect::<Vec<u8>>();
    let mut states = vec![
        constant("zeros", &0u64.to_le_bytes()),
        constant("ones f64", &1f64.to_le_bytes()),
        constant("0.1 f32", &0.1f32.to_le_bytes()),
        constant("-1 i64", &(-1i64).to_le_bytes()),
        state("noise", 8, noise(), noise()),
        state(
            "ramp f64",
            8,
            doubles((0..).map(|at| f64::from(at) * 0.5)),
            doubles((0..).map(|at| f64::from(at) * 0.5 + 1.0)),
        ),
    ];
    states.extend([1, 2, 4, 8].map(|size| small_numbers(size, 40 + size as u64)));
    states.extend(counting());
    states.extend(particles());
    states.extend(heat());
    states.extend(waves());
    states
}
