//! What checkpoints cost our mini-apps on a GPU, and how much of their memory changes. These are numbers of
//! `benches/README.md`; a test compares them with the stored measurements.
//!
//! Costs: measured on an H100 whose link is limited to 4 GB/s, the share of a GPU if 16 GPUs have one processor, as in
//! the paper, with 256 MiB (`benches/results/minis-h100.jsonl`). Changes: measured with the same programs and 16 MiB on
//! the host twin (`volume-2core.jsonl`). In both measurements, all memory is checkpointed, so they belong to the lower
//! half of the paper's figure 12; its upper half needs footprints, which the paper does not print.

/// A way to checkpoint, with the paper's name.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// I: only changes are sent. NB: the program continues meanwhile. F: everything is sent. H: the program is told
    /// what has been sent. FG: blocks of 4 KiB, otherwise 64. D: a buffer on the device, of half the memory.
    pub name: &'static str,
    /// The size in bytes of the blocks that are checked for changes; `None` if everything is sent.
    pub block: Option<u64>,
}

const fn way(name: &'static str, block: Option<u64>) -> Way {
    Way { name, block }
}

const COARSE: u64 = 64 << 10;
const FINE: u64 = 4 << 10;

/// The ways, in the order of [`Program::costs`].
pub const WAYS: [Way; 8] = [
    way("I", Some(COARSE)),
    way("NB+I", Some(COARSE)),
    way("NB+F+H", None),
    way("NB+I+H", Some(COARSE)),
    way("NB+I-FG+H", Some(FINE)),
    way("NB+F+H+D", None),
    way("NB+I+H+D", Some(COARSE)),
    way("NB+I-FG+H+D", Some(FINE)),
];

/// A mini-app.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in `mpi-examples/minis`.
    pub name: &'static str,
    /// The share of its memory that has changed since the last checkpoint but one, in blocks of 64 KiB and of 4 KiB.
    changed: [f64; 2],
    /// The time that a checkpoint of each way adds to the program, as a share of what a blocking copy adds; or [`REST`].
    added: [f64; 8],
}

impl Program {
    /// What checkpoints of each of the [`WAYS`] cost, as a share of the cost of one that copies everything while the
    /// program is stopped. `None` if the cost is not known for a program that keeps changing its memory.
    pub fn costs(&self) -> [Option<f64>; 8] {
        self.added.map(|added| Some(added).filter(|added| !added.is_nan()))
    }

    /// The share of its bytes that a checkpoint moves.
    pub fn volume(&self, way: &Way) -> f64 {
        match way.block {
            None => 1.0,
            Some(FINE) => self.changed[1],
            Some(_) => self.changed[0],
        }
    }
}

/// The values of the program no longer changed when this was measured: far less was sent than `changed` says.
const REST: f64 = f64::NAN;

const fn program(name: &'static str, changed: [f64; 2], added: [f64; 8]) -> Program {
    Program { name, changed, added }
}

/// All programs.
pub const PROGRAMS: [Program; 6] = [
    program("cg", [0.05, 0.05], [0.01, 0.15, 0.32, 0.05, 0.0, 0.87, 0.17, 0.0]),
    program("particles", [0.33, 0.33], [0.36, 1.01, 0.35, 0.34, 0.35, 0.02, 0.01, 0.02]),
    program("rtm", [0.66, 0.67], [0.69, 1.01, 0.71, 0.68, 0.71, 0.49, 0.46, 0.25]),
    program("sweep", [0.98, 0.98], [REST, 1.01, 0.95, REST, 0.99, 0.45, REST, 0.47]),
    program("amr", [1.0, 1.0], [REST, 1.01, 1.01, REST, 1.04, 0.58, REST, 0.54]),
    program("stencil", [1.0, 1.0], [1.02, 1.01, 1.02, 1.02, 1.05, 0.74, 0.74, 0.62]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Of unchanged blocks, one in this many is sent nevertheless, and is not counted as equal.
    const REFRESHED: f64 = 64.0;

    fn rows(file: &str) -> Vec<Value> {
        let path = format!("{}/benches/results/{file}", env!("WORKSPACE_ROOT"));
        let text = std::fs::read_to_string(&path).expect("stored with the source");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn number(row: &Value, key: &str) -> f64 {
        row[key].as_f64().unwrap_or(f64::NAN)
    }

    /// The share of its bytes that is unchanged.
    fn equal(row: &Value) -> f64 {
        number(row, "equal") * REFRESHED / (REFRESHED - 1.0) / number(row, "bytes")
    }

    /// The only row of a way.
    fn row_of<'a>(rows: &'a [Value], program: &str, way: &Way) -> &'a Value {
        let called = match way.name {
            "I" => "wait",
            "NB+I" => "blind",
            _ if way.block.is_none() => "full",
            _ => "mark",
        };
        let is_it = |row: &&Value| {
            row["app"] == program
                && row["way"] == called
                && number(row, "block") == way.block.unwrap_or(COARSE) as f64
                && (number(row, "buffer") > 0.0) == way.name.ends_with("+D")
        };
        let all: Vec<&Value> = rows.iter().filter(is_it).collect();
        assert_eq!(all.len(), 1, "{program}, {}", way.name);
        all[0]
    }

    #[test]
    fn constants_are_what_was_measured() {
        let costs: Vec<Value> =
            rows("minis-h100.jsonl").into_iter().filter(|row| number(row, "link_mib_s") == 3815.0).collect();
        let volumes = rows("volume-2core.jsonl");
        for program in &PROGRAMS {
            let is_its = |row: &&Value| row["app"] == program.name;
            let of_block = |block: u64| {
                let is_it = |row: &&Value| number(row, "block") == block as f64 && number(row, "every") == 8.0;
                1.0 - equal(volumes.iter().filter(is_its).find(is_it).expect("measured"))
            };
            for (ours, block) in program.changed.into_iter().zip([COARSE, FINE]) {
                assert!((ours - of_block(block)).abs() < 0.0051, "{}: {ours}, {}", program.name, of_block(block));
            }
            let copies = costs.iter().filter(is_its).filter(|row| row["way"] == "copy");
            let copied = copies.map(|row| number(row, "added")).fold(f64::MAX, f64::min);
            for (way, ours) in WAYS.iter().zip(program.costs()) {
                let row = row_of(&costs, program.name, way);
                let unchanged = way.block.map_or(0.0, |block| 1.0 - of_block(block));
                let rests = equal(row) > unchanged + 0.1;
                assert_eq!(ours.is_none(), rests, "{}, {}", program.name, way.name);
                // If a way adds nothing, the difference of two medians may be negative.
                let measured = (number(row, "added") / copied).max(0.0);
                let difference = ours.map_or(0.0, |ours| (ours - measured).abs());
                assert!(difference < 0.0051, "{}, {}: {ours:?}, {measured}", program.name, way.name);
            }
        }
    }
}
