//! `bivouac halt`: sets, lists and clears the conditions under which a run ends with a last checkpoint.
#![forbid(unsafe_code)]

use crate::ending::{Ending, Problem};
use crate::output::{complain, plain, print, print_json};
use crate::run;
use bivouac_core::base::calendar::{UTC_MAX, parse_utc, unix_now};
use bivouac_core::base::units::parse_duration;
use bivouac_core::format::supervision::{Condition, Halt, Status, When};
use bivouac_core::tier::run_directory::RunDirectory;
use std::path::PathBuf;
use std::time::Duration;

/// The arguments of `bivouac halt`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac halt bivouac-run --now                               end with a last checkpoint as soon as the program asks
  bivouac halt bivouac-run --after 2                           after two more committed checkpoints
  bivouac halt bivouac-run --at 2026-01-31T12:00:00Z           or --at +90min
  bivouac halt bivouac-run --before-end 5min                   5 minutes before the end of the allocation
  bivouac halt bivouac-run --resize 6                          end, and relaunch with 6 ranks (under bivouac run --ranks)
  bivouac halt bivouac-run --list
  bivouac halt bivouac-run --clear

The program obeys when it next calls should_exit(), within about exit.check_every. Several conditions can be set; the
first one that is met counts. Conditions stay until --clear. A run that is started while one of them is met ends at once
with exit status 10. The condition that --resize sets is removed when the job is relaunched. --resize is refused, and
nothing is halted, if the --ranks option of `bivouac run` does not allow the number, if the hosts that answer have too
few slots, or if the newest checkpoints can be restored only on the number of ranks that took them. DIR is the
--run-directory of `bivouac run`, or the configured run.directory.

Exit status: 0 done; 2 wrong usage, or the directory cannot be used; 3 with --list or --clear, no job has ever used the directory.")]
pub struct Args {
    /// The run directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// End at once
    #[arg(long)]
    now: bool,
    /// End after N more committed checkpoints
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    after: Option<u64>,
    /// End at this time: seconds since 1970, a UTC time such as 2026-01-31T12:00:00Z, or +2h
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<u64>,
    /// End this long before the end of the allocation
    #[arg(long, value_name = "SECONDS", value_parser = run::duration)]
    before_end: Option<Duration>,
    /// End with a last checkpoint, and have bivouac run --ranks relaunch the job with N ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["now", "after", "at", "before_end"])]
    resize: Option<u32>,
    /// Show the conditions (the default)
    #[arg(long)]
    list: bool,
    /// Remove all conditions before setting new ones
    #[arg(long)]
    clear: bool,
    /// Print the conditions as JSON
    #[arg(long)]
    json: bool,
}

/// Parses a time on the command line into seconds since 1970.
pub fn time(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix('+') {
        Some(span) => parse_duration(span).and_then(|span| {
            let seconds = unix_now() + span.as_secs_f64();
            (seconds <= UTC_MAX as f64).then_some(seconds as u64)
        }),
        None if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        None => parse_utc(text),
    };
    let fits = parsed.filter(|seconds| *seconds <= UTC_MAX);
    fits.ok_or_else(|| "give seconds since 1970, a UTC time such as 2026-01-31T12:00:00Z, or +2h".to_owned())
}

/// A condition that is set now, by this process.
pub fn condition(when: When, of_supervisor: bool) -> Condition {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let user = user.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let set_by = match of_supervisor {
        true => format!("the supervisor, process {} on {host}", std::process::id()),
        false => format!("{user} on {host}"),
    };
    Condition { when, set_by, set_at: unix_now(), of_supervisor, resize: None }
}

/// Sets, lists or clears the conditions.
pub fn run(args: &Args) -> Ending {
    match change(args) {
        Ok(halt) => {
            show(args, &halt);
            Ending::Good
        }
        Err(problem) => {
            complain(&problem.text);
            problem.ending
        }
    }
}

fn change(args: &Args) -> Result<Halt, Problem> {
    let directory = RunDirectory::at(&args.directory);
    if !args.directory.is_dir() {
        return Err(format!(
            "{} is not a directory: name the run directory of a job (bivouac run makes ./bivouac-run)",
            args.directory.display()
        )
        .into());
    }
    let wanted = conditions(args, &directory)?;
    let is_used = run::is_used(&directory);
    if wanted.is_empty() {
        let halt = directory.read_halt();
        if !is_used && halt.as_ref().is_ok_and(|halt| halt.conditions.is_empty()) {
            return Err(Problem::nothing(format!(
                "{} has no halt condition, no record of a supervisor and no status of a session: it is not the run directory of a \
                 job (bivouac run makes ./bivouac-run)",
                args.directory.display()
            )));
        }
        if !args.clear {
            return Ok(halt?);
        }
    } else if !is_used {
        complain(&format!(
            "{} has no record of a supervisor and no status of a session: if it is not the run directory of a job, nobody reads \
             what is set here",
            args.directory.display()
        ));
    }
    if !wanted.is_empty() {
        directory.read_statuses().0.iter().filter_map(deaf).for_each(|text| complain(&text));
    }
    let changed = directory.change_halt(|halt| {
        // Clearing makes an unusable file usable again.
        let mut halt = if args.clear { Halt::default() } else { halt? };
        halt.conditions.extend(wanted);
        Ok(halt)
    });
    Ok(changed?)
}

/// The message about a session whose program has not asked whether to end. Pure.
fn deaf(status: &Status) -> Option<String> {
    let is_deaf = !status.closed && status.calls > 0 && !status.asks_exit;
    is_deaf.then(|| {
        format!(
            "the program of group {} has made {} calls of its session and not asked should_exit() so far (in C: bvk_should_exit): \
             it continues until it does",
            plain(&status.group),
            status.calls
        )
    })
}

fn conditions(args: &Args, directory: &RunDirectory) -> Result<Vec<Condition>, String> {
    let mut wanted = Vec::new();
    if args.now {
        wanted.push(When::Now);
    }
    if let Some(checkpoints) = args.after {
        let (statuses, problems) = directory.read_statuses();
        problems.iter().for_each(|problem| complain(problem));
        let counted = statuses.into_iter().map(|status| (status.group, status.checkpoints_total)).collect();
        wanted.push(When::After { checkpoints, counted });
    }
    if let Some(unix) = args.at {
        wanted.push(When::At { unix });
    }
    if let Some(reserve) = args.before_end {
        let end = run::end_time(directory).ok_or(
            "the end of the allocation is not known: set it with bivouac run --end-time (in a SLURM job, the batch system does), or give \
             --at",
        )?;
        wanted.push(When::BeforeEnd { end, reserve: reserve.as_secs() });
    }
    let mut wanted: Vec<Condition> = wanted.into_iter().map(|when| condition(when, false)).collect();
    if let Some(ranks) = args.resize {
        run::may_resize(directory, ranks)
            .map_err(|why| format!("the job in {} is not resized: {why}", args.directory.display()))?;
        wanted.push(Condition { resize: Some(ranks), ..condition(When::Now, false) });
    }
    Ok(wanted)
}

fn show(args: &Args, halt: &Halt) {
    if args.json {
        print_json(halt);
    } else if halt.conditions.is_empty() {
        print("no halt condition is set\n");
    } else {
        let lines: Vec<String> =
            halt.conditions.iter().map(|condition| plain(&format!("halt {condition}")) + "\n").collect();
        print(&lines.concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_three_ways() {
        assert_eq!(time("1769860800"), Ok(1_769_860_800));
        assert_eq!(time("2026-01-31T12:00:00Z"), Ok(1_769_860_800));
        let before = unix_now();
        let soon = time("+2h").unwrap() as f64;
        let after = unix_now();
        assert!((before + 7199.0..=after + 7200.0).contains(&soon), "{before} {soon} {after}");
        for text in ["", "+", "noon", "+x", "-5", "99999999999999999999", "+9999999999999h", "2026-01-31 12:00"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
