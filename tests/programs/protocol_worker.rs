//! The program that `tests/protocol.rs` runs under `mpirun`: one scenario per argument.
//!
//! A scenario makes calls as an application would, sometimes wrong ones on some ranks, and prints the answers.
//! The test compares the lines. A line is `LABEL rank=R TEXT`; labels are unique within a run unless the
//! scenario says otherwise.
//!
//! | variable | meaning |
//! |---|---|
//! | `BIVOUAC_TEST_THREADS` | how MPI is initialised: `single`, `funneled`, `serialized`, `multiple` (default), or `raw` for a plain `MPI_Init` |
//! | `BIVOUAC_TEST_DIR` | a folder for files through which the test and the job communicate |
#[path = "protocol/decisions.rs"]
mod decisions;
#[path = "protocol/disagreement.rs"]
mod disagreement;
#[path = "protocol/ending.rs"]
mod ending;
#[path = "protocol/groups.rs"]
mod groups;
#[path = "../common/limit.rs"]
mod limit;
#[path = "protocol/restarts.rs"]
mod restarts;
#[path = "protocol/support.rs"]
mod support;

use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use support::Job;

fn main() {
    let mut args = std::env::args().skip(1);
    let scenario = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let universe = support::initialize();
    let world = SimpleCommunicator::world();
    support::start_log(world.rank());
    support::abort_on_panic();
    let job = Job { rank: world.rank(), size: world.size(), world };
    let word = |index: usize| rest.get(index).map_or("", String::as_str);
    let number =
        |index: usize| word(index).parse().unwrap_or_else(|_| panic!("{scenario}: no number {:?}", word(index)));
    match scenario.as_str() {
        "disagree" => disagreement::disagree(&job),
        "late" => disagreement::late(&job, &rest),
        "late-root" => disagreement::late_root(&job),
        "close-early" => disagreement::close_early(&job),
        "config" => disagreement::configuration(&job, word(0)),
        "open" => disagreement::open_only(&job),
        "from-env" => disagreement::from_env(&job),
        "open-without" => disagreement::open_without(&job, number(0)),
        "names" => disagreement::names(&job),
        "step" => restarts::step(&job, word(0), number(1)),
        "without-calls" => restarts::without_calls(&job),
        "look" => restarts::look(&job),
        "mismatch" => restarts::mismatch(&job),
        "go-back" => restarts::go_back(&job, number(0), number(1)),
        "roll-back" => restarts::roll_back(&job),
        "split" => groups::split(&job, word(0)),
        "reordered" => groups::reordered(&job, word(0)),
        "two-sessions" => groups::two_sessions(&job),
        "serve" => groups::serve(&job, number(0)),
        "decide" => decisions::decide(&job),
        "end" => return ending::end(job, universe, word(0), number(1)),
        "end-marked" => return ending::end_marked(job, universe, word(0), word(1), number(2)),
        "signals" => ending::signals(&job),
        "after-close" => ending::after_close(&job),
        other => panic!("no scenario {other:?}"),
    }
    drop(universe);
    support::finalize_if_needed();
}
