//! `bivouac report`: what became of a job, as a page to look at, a document for programs, or a trace.
//!
//! [`gather`](gather::Gathered) reads what sessions and `bivouac run` have written, [`story`] turns it into runs and sums, [`page`] and
//! [`chart`] make the page, and [`trace`] draws each rank's spans for Perfetto. All except the first are pure.
#![forbid(unsafe_code)]

mod chart;
mod gather;
mod page;
mod story;
mod trace;

use crate::draft::Draft;
use crate::ending::Ending;
use crate::output::{SCHEMA, complain, print, print_json};
use crate::status::here;
use bivouac_core::base::calendar::unix_now;
use gather::Gathered;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use story::{Story, stories};

/// The file to which the page is written if the user names none.
const PAGE: &str = "bivouac-report.html";

/// The arguments of `bivouac report`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac report bivouac-run                       the course of a job under bivouac run, in bivouac-report.html
  bivouac report run-1 run-2 -o heat.html          several run directories, or copies of directories of events
  bivouac report events --timeline trace.json      a trace for ui.perfetto.dev, and no page
  bivouac report bivouac-run --json | jq '.groups[].account'

The root rank of a session writes its events to run.directory, which `bivouac run` sets. If events.directory
(BIVOUAC_EVENTS_DIRECTORY) is set, every rank writes its events there instead, and the run directory says where. Name
that directory as well if it has another path here, or if each node has its own. The page needs no network. Times,
bytes and rates are those of the ranks that have written events; missing ranks are named.

Exit status: 0 done; 2 wrong usage, or something could not be read or written; 3 no events found.")]
pub struct Args {
    /// Run directories and directories of events [default: the configured run.directory, or ./bivouac-run]
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// The file for the page; - means standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a trace for Perfetto to this file
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Print one JSON document, and write no page unless -o asks for it
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    groups: &'a [Story],
    problems: &'a [String],
}

/// Runs `bivouac report`.
pub fn run(args: &Args) -> Ending {
    let directories = match args.directories.is_empty() {
        false => args.directories.clone(),
        true => match here() {
            Ok(directory) => vec![directory],
            Err(problem) => return trouble(&problem),
        },
    };
    let (gathered, now) = (Gathered::of(&directories), unix_now());
    let stories = stories(&gathered, now);
    gathered.problems.iter().for_each(|problem| complain(problem));
    if stories.is_empty() {
        complain(&nothing(&directories, &gathered));
        return if gathered.problems.is_empty() { Ending::Nothing } else { Ending::Trouble };
    }
    if args.json {
        print_json(&Document { schema: SCHEMA, groups: &stories, problems: &gathered.problems });
    }
    if let Some(file) = &args.timeline
        && let Err(problem) = put(file, &trace::trace(&gathered))
    {
        return trouble(&problem);
    }
    let wants_page = !args.json && args.timeline.is_none();
    if let Some(file) = args.output.as_deref().or(wants_page.then_some(Path::new(PAGE))) {
        let page = page::page(&stories, &gathered, now);
        if let Err(problem) = put(file, &page) {
            return trouble(&problem);
        }
    }
    if gathered.problems.is_empty() { Ending::Good } else { Ending::Trouble }
}

/// Why there is nothing to report, and what to do about it.
fn nothing(directories: &[PathBuf], gathered: &Gathered) -> String {
    let named: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
    let named = named.join(", ");
    let attempts: Vec<_> = gathered.attempts.values().flatten().collect();
    match attempts.last() {
        Some(last) => format!(
            "no session was opened in the {} of bivouac run in {named}, so there is nothing to report: the last one ended with {:?}; \
             the output of the job may say why",
            page::count(attempts.len() as u64, "attempt"),
            last.outcome
        ),
        None => format!(
            "no session has written events to {named}: bivouac run has the root rank write them; without it set run.directory, or \
             events.directory for all ranks, before the job starts"
        ),
    }
}

fn trouble(problem: &str) -> Ending {
    complain(problem);
    Ending::Trouble
}

/// Writes a whole file, and prints its name.
fn put(file: &Path, text: &str) -> Result<(), String> {
    if file == Path::new("-") {
        print(text);
        return Ok(());
    }
    let (draft, mut written) = Draft::create(file)?;
    written.write_all(text.as_bytes()).map_err(|error| draft.failed("write", &error))?;
    draft.publish()?;
    complain(&format!("written: {}", file.display()));
    Ok(())
}
