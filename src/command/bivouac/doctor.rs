//! `bivouac doctor`: checks an environment and says what to change.
//!
//! [`gather`] finds the [`facts`], [`judge`] turns them into findings, and this module prints the findings.
#![forbid(unsafe_code)]

mod facts;
mod gather;
mod judge;

use crate::ending::Ending;
use crate::output::{SCHEMA, plain_lines, print, print_json};
use judge::{Finding, Verdict};
use serde::Serialize;

/// The width in columns of the longest verdict, `problem`.
const VERDICT_WIDTH: usize = 8;

/// The arguments of `bivouac doctor`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac doctor                            this node, with the settings of the environment
  BIVOUAC_CONFIG=run.toml bivouac doctor    with a configuration file
  mpirun -np 2 bivouac doctor --mpi         thread level, nodes, and whether all ranks see the same global directory
  srun bivouac doctor --mpi --json          all ranks of a SLURM job; rank 0 reports
  bivouac doctor --json | jq '.checks[] | select(.verdict != \"ok\")'

The output has a line for each check: ok, warning (it works, but not as well as it could) or problem (something that
the settings ask for cannot work), followed by what was found and what to change. Nothing is changed. A small file is
written to the local and the global directory and removed again. If a directory does not exist yet, a folder is made
in the nearest existing folder above it, and removed again.

Exit status: 0 no problems; 1 problems found; 2 wrong usage.")]
pub struct Args {
    /// Initialise MPI, and check it together with the other ranks; start the command with mpirun or srun
    #[arg(long)]
    mpi: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `doctor --json`.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    command: &'static str,
    /// There is no problem; there may be warnings.
    good: bool,
    checks: &'a [Finding],
}

/// Runs `bivouac doctor`.
pub fn run(args: &Args) -> Ending {
    let Some(facts) = gather::gather(args.mpi) else { return Ending::Good };
    let findings = judge::judge(&facts);
    let good = findings.iter().all(|finding| finding.verdict != Verdict::Problem);
    if args.json {
        print_json(&Document { schema: SCHEMA, command: "doctor", good, checks: &findings });
    } else {
        print(&text(&findings));
    }
    if good { Ending::Good } else { Ending::Damage }
}

fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { check, verdict, found, advice } in findings {
        let advice =
            advice.as_ref().map_or_else(String::new, |advice| format!("{}{}", link(found), capitalised(advice)));
        let said = plain_lines(&format!("{found}{advice}"), VERDICT_WIDTH + width + 3);
        text += &format!("{:<VERDICT_WIDTH$} {check:<width$}  {said}\n", verdict.name());
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    text + &format!(
        "{} checks, {} warnings, {} problems\n",
        findings.len(),
        count(Verdict::Warning),
        count(Verdict::Problem)
    )
}

/// The text that is printed between what was found and the advice.
fn link(found: &str) -> &'static str {
    match found.contains('\n') {
        true => "\n",
        false if found.ends_with(['.', '?', '!']) => " ",
        false => ". ",
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
