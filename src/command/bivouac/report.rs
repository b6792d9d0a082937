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
  bivouac report bivouac-run events -o heat.html   also what all ranks wrote to events (events.directory)
  bivouac report events --timeline trace.json      a trace for ui.perfetto.dev, and no page
  bivouac report bivouac-run --json | jq '.groups[].account'

The root rank of a session writes its events to run.directory, which `bivouac run` sets. If events.directory
(BIVOUAC_EVENTS_DIRECTORY) is set, every rank writes its events there. You can name both directories, and the
directories of several nodes. The page needs no network. Times, bytes and rates are those of the ranks that have
written events; missing ranks are named.

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
        let named: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
        complain(&format!(
            "no session has written events to {}: bivouac run has the root rank write them; without it set run.directory, or \
             events.directory for all ranks, before the job starts",
            named.join(", ")
        ));
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
