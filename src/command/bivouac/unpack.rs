//! `bivouac unpack`: makes checkpoints whole whose files refer to earlier ones, so that they can be copied elsewhere.
#![forbid(unsafe_code)]

use crate::ending::{self, Ending, Problem, Problems};
use crate::living::{living_run, memory_directory};
use crate::output::{self, SCHEMA, show};
use crate::places::nothing_in;
use crate::survey::{Checkpoint, State, survey};
use crate::target::Target;
use bivouac_core::recovery::unpack::unpack;
use bivouac_core::tier::names::Series;
use bivouac_core::tier::sources_in;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The arguments of `bivouac unpack`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac unpack bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000050-o000005      one checkpoint
  bivouac unpack --dry-run bivouac                                                   which checkpoints refer to others, and to which

With reduction.method, a checkpoint's files can refer to files of earlier checkpoints (REFERS TO in the output of
`bivouac ls`). This command changes such a checkpoint in place, so that its files hold all of its data and it can be
copied by itself. The command may be killed and started again. A checkpoint is refused if its job has a run that is
alive.

Exit status: 0 done, or all checkpoints are self-contained already; 1 something is damaged or missing; 2 wrong usage,
something cannot be read, or the command refused to act; 3 nothing found.")]
pub struct Args {
    /// Checkpoint folders, or directories with checkpoints
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The folder of this node's memory segments, which show which runs are alive [default: BIVOUAC_MEMORY_DIRECTORY,
    /// or /dev/shm]
    #[arg(long, value_name = "DIR")]
    memory: Option<PathBuf>,
    /// Only say what would be written
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `unpack --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    dry_run: bool,
    checkpoints: Vec<Row>,
    problems: Problems,
}

/// A checkpoint that referred to others.
#[derive(Serialize)]
struct Row {
    path: String,
    /// Folders of the checkpoints that it referred to.
    needed: Vec<String>,
    /// Bytes written.
    bytes: u64,
}

/// Runs `bivouac unpack`.
pub fn run(args: &Args) -> Ending {
    let mut document = Document {
        schema: SCHEMA,
        command: "unpack",
        dry_run: args.dry_run,
        checkpoints: Vec::new(),
        problems: Problems::default(),
    };
    for path in &args.paths {
        if let Err(problem) = add(args, &mut document, path) {
            document.problems.add(problem);
        }
    }
    document.problems.complain();
    show(args.json, &document, text);
    document.problems.ending()
}

fn add(args: &Args, document: &mut Document, path: &Path) -> Result<(), Problem> {
    let Target::Scope(scope) = Target::of(path)? else {
        return Err(format!("{} is not a folder of checkpoints", path.display()).into());
    };
    scope.tier.find_store().map_err(|error| error.to_string())?;
    let (found, problems) = survey(&scope)?;
    if found.is_empty() && problems.is_empty() {
        return Err(nothing_in(path));
    }
    document.problems.extend(problems);
    // The oldest checkpoint comes first: unpacking does not change what it stores itself, to which others refer.
    for checkpoint in found.iter().rev() {
        match make_whole(args, checkpoint) {
            Ok(row) => document.checkpoints.extend(row),
            Err(problem) => document.problems.add(problem),
        }
    }
    Ok(())
}

/// Makes a checkpoint whole if it is not, and if it can be restored.
fn make_whole(args: &Args, checkpoint: &Checkpoint) -> Result<Option<Row>, Problem> {
    let Checkpoint { tier, series, path, state, .. } = checkpoint;
    let Some(manifest) = &checkpoint.manifest else {
        // The next restart may write a manifest.
        return match sources_in(&**tier, path).is_empty() {
            true => Ok(None),
            false => Err(format!("{} is not made whole: it has no manifest that can be read", path.display()).into()),
        };
    };
    if manifest.sources.is_empty() {
        return Ok(None);
    }
    match state {
        State::Held => return Ok(None),
        State::Damaged => {
            let why = checkpoint.why.as_deref().unwrap_or("damaged");
            return Err(Problem::damage(format!("{} is not made whole: {why}", path.display())));
        }
        _ => {}
    }
    let Series { job, group, .. } = series;
    let memory = memory_directory(args.memory.as_deref());
    if let Some(why) = living_run(&**tier, &memory, job, group, "bivouac unpack") {
        return Err(format!("{} is not made whole: {why}", path.display()).into());
    }
    let needed = manifest.sources.iter().map(|source| source.key.folder()).collect();
    let unique = format!("unpack-{}", std::process::id());
    let written = if args.dry_run { Ok(0) } else { unpack(&**tier, series, manifest, &unique) };
    let bytes = written.map_err(|error| Problem {
        ending: ending::of_tier(&error),
        text: format!("{} is not made whole: {error}", path.display()),
    })?;
    Ok(Some(Row { path: path.display().to_string(), needed, bytes }))
}

fn text(document: &Document) -> String {
    if document.checkpoints.is_empty() && document.problems.ending() == Ending::Good {
        return "everything is already whole\n".into();
    }
    let line = |row: &Row| {
        let (path, needed) = (output::plain(&row.path), row.needed.join(", "));
        match document.dry_run {
            true => format!("{path} refers to {needed}\n"),
            false => format!("{path} is whole: {} written; it referred to {needed}\n", output::bytes(row.bytes)),
        }
    };
    document.checkpoints.iter().map(line).collect()
}
