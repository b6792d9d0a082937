//! `bivouac status`: the state of a job, from the status files that its sessions write.
#![forbid(unsafe_code)]

use crate::ending::Ending;
use crate::output::{SCHEMA, bytes, complain, plain, print, print_json, table};
use crate::run::{duration, record};
use bivouac_core::Config;
use bivouac_core::base::calendar::unix_now;
use bivouac_core::format::supervision::{LevelStatus, NewestStatus, Status, Tuned};
use bivouac_core::tier::run_directory::RunDirectory;
use serde::Serialize;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A session writes about once a second. A status that is this old shows that its session has died or hangs.
const STALE_SECONDS: f64 = 15.0;
/// The directory that `bivouac run` makes if the user names no other.
const DIRECTORY_DEFAULT: &str = "bivouac-run";
const NAME_ONE: &str = "name a run directory, or set run.directory (BIVOUAC_RUN_DIRECTORY) to that of the job";

/// The arguments of `bivouac status`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac status bivouac-run                     the directory of bivouac run, or the configured run.directory
  bivouac status heat                            the job of that name in the configured run.directory
  bivouac status bivouac-run --follow            repeatedly, until every session is closed
  bivouac status bivouac-run --follow --openmetrics /var/lib/node_exporter/bivouac.prom

Sessions write their status to the run directory about once a second. `bivouac run` gives them a run directory.
Without `bivouac run`, set run.directory (BIVOUAC_RUN_DIRECTORY). Rates and bytes are those of each group's root rank.

Exit status: 0 shown; 2 wrong usage, or something cannot be read; 3 no status found.")]
pub struct Args {
    /// A run directory, or the name of a job
    #[arg(value_name = "DIR|JOB")]
    target: Option<String>,
    /// Show the state repeatedly, until every session is closed
    #[arg(long)]
    follow: bool,
    /// The time from one update to the next
    #[arg(long, value_name = "SECONDS", value_parser = duration, default_value = "2")]
    every: Duration,
    /// Write the figures to a file in the OpenMetrics format, for the textfile collector of a node exporter
    #[arg(long, value_name = "FILE")]
    openmetrics: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The contents of a run directory.
#[derive(Serialize)]
pub struct View {
    /// The version of the schema, as in all JSON documents of the command.
    pub schema: u32,
    /// The directory that was read.
    pub directory: PathBuf,
    /// The attempt of the supervisor, from 1; absent without a supervisor.
    pub attempt: Option<u32>,
    /// How the last attempt that has ended ended.
    pub last_attempt: Option<String>,
    /// The groups, by name.
    pub groups: Vec<Status>,
    /// What could not be read.
    pub problems: Vec<String>,
    /// When the directory was read, in seconds since 1970.
    pub unix: f64,
}

/// Shows a run directory, once or repeatedly.
pub fn run(args: &Args) -> Ending {
    let (directory, job) = match place(args.target.as_deref()) {
        Ok(found) => found,
        Err(problem) => {
            complain(&problem);
            return Ending::Trouble;
        }
    };
    loop {
        let view = View::read(&directory, job.as_deref());
        if let Some(file) = &args.openmetrics
            && let Err(error) = replace(file, &openmetrics(&view))
        {
            complain(&format!("cannot write {}: {error}", file.display()));
            return Ending::Trouble;
        }
        let is_screen = args.follow && !args.json && std::io::stdout().is_terminal();
        match args.json {
            true => print_json(&view),
            // The view is drawn from the top left corner, over the previous one.
            false if is_screen => print(&format!("\x1b[H\x1b[2J{}", text(&view))),
            false => print(&text(&view)),
        }
        view.problems.iter().for_each(|problem| complain(problem));
        if view.groups.is_empty() && !args.follow {
            complain(&format!(
                "{} has no status{}: bivouac run gives a job a run directory; without it set run.directory \
                 (BIVOUAC_RUN_DIRECTORY) before the job starts",
                directory.path().display(),
                job.map_or_else(String::new, |job| format!(" of job {job:?}"))
            ));
            return if view.problems.is_empty() { Ending::Nothing } else { Ending::Trouble };
        }
        let is_over = !view.groups.is_empty() && view.groups.iter().all(|group| group.closed);
        if !args.follow || is_over {
            return if view.problems.is_empty() { Ending::Good } else { Ending::Trouble };
        }
        std::thread::sleep(args.every);
    }
}

/// The run directory, and the job if one was named.
fn place(target: Option<&str>) -> Result<(RunDirectory, Option<String>), String> {
    if let Some(path) = target.map(Path::new).filter(|path| path.is_dir()) {
        return Ok((RunDirectory::at(path), None));
    }
    match (configured()?, target) {
        (Some(directory), job) => Ok((RunDirectory::at(directory), job.map(ToOwned::to_owned))),
        (None, Some(target)) => Err(format!(
            "{target:?} is not a directory; to look for a job of that name, set run.directory (BIVOUAC_RUN_DIRECTORY) to that of the job"
        )),
        (None, None) => Err(NAME_ONE.into()),
    }
}

/// The run directory of the configuration, or else the one that `bivouac run` makes here, if it exists.
fn configured() -> Result<Option<PathBuf>, String> {
    let configured = Config::from_env().map_err(|error| error.to_string())?.node.run_directory;
    Ok(configured.or_else(|| Some(PathBuf::from(DIRECTORY_DEFAULT)).filter(|path| path.is_dir())))
}

/// The run directory, if the user named none.
///
/// # Errors
/// There is none; the error says what to name.
pub fn here() -> Result<PathBuf, String> {
    configured()?.ok_or_else(|| NAME_ONE.into())
}

impl View {
    /// Reads a run directory, for all jobs or for one.
    pub fn read(directory: &RunDirectory, job: Option<&str>) -> View {
        let (mut groups, mut problems) = directory.read_statuses();
        groups.retain(|status| job.is_none_or(|job| is_named(&status.job, job)));
        let attempt = match record::read(directory) {
            Ok(record) => record.map(|record| record.attempt),
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        let last_attempt = record::last_outcome(directory);
        let (directory, unix) = (directory.path().to_owned(), unix_now());
        View { schema: SCHEMA, directory, attempt, last_attempt, groups, problems, unix }
    }
}

/// Is this the key of the job with that name? A key is the name and eight digits.
fn is_named(key: &str, name: &str) -> bool {
    key == name || key.rsplit_once('-').is_some_and(|(named, _)| named == name)
}

/// What a group is doing, in one word. Pure.
pub fn state(status: &Status, now: f64) -> String {
    let age = now - status.unix;
    match (&status.failed, status.closed) {
        (Some(why), _) => format!("FAILED: {}", plain(why)),
        (None, true) => "closed".into(),
        (None, false) if age > STALE_SECONDS => format!("NO NEWS for {}: it has died, or hangs", span(age)),
        (None, false) => "running".into(),
    }
}

/// Seconds in words, roughly.
pub fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} d", s / 86400.0),
    }
}

/// The view as text for people. Pure.
fn text(view: &View) -> String {
    let mut text = String::new();
    if let Some(attempt) = view.attempt {
        let last =
            view.last_attempt.as_ref().map_or_else(String::new, |last| format!("; the last one: {}", plain(last)));
        _ = writeln!(text, "attempt {attempt}{last}");
    }
    for status in &view.groups {
        text += &group_text(status, view.unix);
    }
    text
}

fn group_text(status: &Status, now: f64) -> String {
    let mut text = String::new();
    _ = writeln!(
        text,
        "job {} group {}: {} ranks, root on {} (process {}), run {}, opened {} ago, {}",
        plain(&status.job),
        plain(&status.group),
        status.ranks,
        plain(&status.host),
        status.pid,
        status.generation,
        span(now - status.opened),
        state(status, now)
    );
    if let Some(restored) = &status.restored {
        _ = writeln!(
            text,
            "  restored {:?} version {} from {} {} ago: the root loaded {} in {:.2} s",
            restored.name,
            restored.version,
            restored.tier,
            span(now - restored.unix),
            bytes(restored.bytes),
            restored.seconds
        );
    }
    let row = |level: &LevelStatus| {
        let rate = level.root_bytes_per_second;
        vec![
            format!("  {}", plain(&level.level)),
            level.committed.to_string(),
            format!("{:?} version {}", level.name, level.version),
            format!("{} ago", span(now - level.newest)),
            if rate > 0.0 { format!("{}/s", bytes(rate as u64)) } else { "-".into() },
        ]
    };
    let rows: Vec<_> = status.levels.iter().map(row).collect();
    if rows.is_empty() {
        text += "  nothing has been committed yet\n";
    } else {
        text += &table(&["  LEVEL", "COMMITTED", "NEWEST", "WHEN", "RATE OF THE ROOT"], &[1, 4], &rows);
    }
    text += &newest_text(&status.newest);
    _ = writeln!(
        text,
        "  in flight {}, refused {}, blocked {:.3} s at the root",
        status.in_flight, status.refused, status.root_blocked_seconds
    );
    if let Some(tuned) = &status.tuned {
        _ = writeln!(text, "  {}", tuned_text(tuned));
    }
    if let Some(trouble) = &status.trouble {
        _ = writeln!(
            text,
            "  last refusal, {} ago: {:?} version {} at level {}: {}",
            span(now - trouble.unix),
            trouble.name,
            trouble.version,
            plain(&trouble.level),
            plain(&trouble.reason)
        );
    }
    if let Some(why) = &status.exit {
        _ = writeln!(text, "  asked to end: {}", plain(why));
    }
    text
}

/// Who can restore the newest version of each series. Pure.
fn newest_text(all: &[NewestStatus]) -> String {
    let (free, bound): (Vec<_>, Vec<_>) = all.iter().partition(|newest| newest.bound.is_free());
    if bound.is_empty() && !free.is_empty() {
        return "  any number of ranks can restore the newest versions\n".into();
    }
    let line = |newest: &NewestStatus| {
        let NewestStatus { name, version, ranks, bound, .. } = newest;
        format!(
            "  {name:?} version {version} can be restored only by {ranks} ranks, because of {}\n",
            plain(&bound.to_string())
        )
    };
    bound.into_iter().map(line).collect()
}

/// What the session has chosen. Pure.
fn tuned_text(tuned: &Tuned) -> String {
    let levels: Vec<String> =
        tuned.levels.iter().map(|level| format!("{} every {}", plain(&level.level), level.every)).collect();
    format!(
        "chosen: a checkpoint after {:.1} s of work, {}; {:.2} % of the time expected to be lost ({:.2} % before); changed {} times",
        tuned.interval_seconds,
        levels.join(", "),
        tuned.lost[1] * 100.0,
        tuned.lost[0] * 100.0,
        tuned.changes
    )
}

/// The figures in the OpenMetrics format, which the textfile collector of a node exporter reads, too. Pure.
fn openmetrics(view: &View) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        if samples.is_empty() {
            return;
        }
        let suffix = if kind == "counter" { "_total" } else { "" };
        _ = writeln!(text, "# TYPE bivouac_{name} {kind}\n# HELP bivouac_{name} {help}");
        for (labels, value) in samples {
            _ = writeln!(text, "bivouac_{name}{suffix}{{{labels}}} {value}");
        }
    };
    let of = |status: &Status| format!("job=\"{}\",group=\"{}\"", label(&status.job), label(&status.group));
    let each = |value: &dyn Fn(&Status) -> f64| view.groups.iter().map(|status| (of(status), value(status))).collect();
    let levels = |value: &dyn Fn(&LevelStatus) -> f64| {
        let rows = view.groups.iter().flat_map(|status| {
            status.levels.iter().map(move |level| (format!("{},level=\"{}\"", of(status), label(&level.level)), level))
        });
        rows.map(|(labels, level)| (labels, value(level))).collect()
    };
    let is_up = |status: &Status| {
        f64::from(!status.closed && status.failed.is_none() && view.unix - status.unix <= STALE_SECONDS)
    };
    family("up", "gauge", "The session is open, has not failed, and writes its status.", each(&is_up));
    family("ranks", "gauge", "Ranks of the group.", each(&|status| f64::from(status.ranks)));
    family("run", "gauge", "Number of the run on its store.", each(&|status| status.generation as f64));
    family("status_timestamp_seconds", "gauge", "When the session wrote its status.", each(&|status| status.unix));
    family("in_flight", "gauge", "Checkpoints whose levels are not decided.", each(&|status| status.in_flight as f64));
    family("checkpoints", "counter", "Checkpoints committed at some level.", each(&|status| status.checkpoints as f64));
    family("refused", "counter", "Levels and checkpoints that were refused.", each(&|status| status.refused as f64));
    family(
        "root_blocked_seconds",
        "counter",
        "Time for which captures blocked the root.",
        each(&|s| s.root_blocked_seconds),
    );
    let chosen = view.groups.iter().filter_map(|status| Some((of(status), status.tuned.as_ref()?.interval_seconds)));
    family(
        "interval_seconds",
        "gauge",
        "Work between two checkpoints, as the session has chosen it.",
        chosen.collect(),
    );
    family("committed", "counter", "Checkpoints committed at a level.", levels(&|level| level.committed as f64));
    family("newest_version", "gauge", "Newest version committed at a level.", levels(&|level| level.version as f64));
    family(
        "newest_timestamp_seconds",
        "gauge",
        "When the newest version at a level was committed.",
        levels(&|level| level.newest),
    );
    family(
        "root_written_bytes",
        "counter",
        "Bytes that the root wrote at a level.",
        levels(&|level| level.root_bytes as f64),
    );
    let attempts = view.attempt.map(|attempt| (String::new(), f64::from(attempt)));
    family("attempts", "counter", "Attempts of the supervisor.", attempts.into_iter().collect());
    text + "# EOF\n"
}

/// Escapes text for the quotes of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Replaces a whole file: a reader sees either the old one or the new one.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let mut temp = file.as_os_str().to_owned();
    temp.push(format!(".{}.tmp", std::process::id()));
    std::fs::write(&temp, text).and_then(|()| std::fs::rename(&temp, file)).inspect_err(|_| {
        _ = std::fs::remove_file(&temp);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::format::supervision::{Trouble, TunedLevel};

    fn view() -> View {
        let level = LevelStatus {
            level: "system".into(),
            committed: 3,
            newest: 990.0,
            name: "heat".into(),
            version: 30,
            root_bytes: 1 << 20,
            root_bytes_per_second: 2048.0,
            ..LevelStatus::default()
        };
        let trouble = Trouble {
            name: "heat".into(),
            version: 20,
            level: "node-reboot".into(),
            reason: "abandoned (rank 3: local tier: cannot write)".into(),
            unix: 900.0,
        };
        let status = Status {
            job: "heat \"1\"-0c7a11f2".into(),
            group: "world".into(),
            ranks: 8,
            host: "n1".into(),
            unix: 999.0,
            opened: 400.0,
            levels: vec![level],
            refused: 1,
            trouble: Some(trouble),
            in_flight: 2,
            tuned: Some(Tuned {
                interval_seconds: 12.34,
                levels: vec![TunedLevel { level: "system".into(), every: 7, ..TunedLevel::default() }],
                lost: [0.05, 0.0213],
                changes: 3,
            }),
            ..Status::new()
        };
        View {
            schema: SCHEMA,
            directory: "run".into(),
            attempt: Some(2),
            last_attempt: Some("exit status 1".into()),
            groups: vec![status],
            problems: Vec::new(),
            unix: 1000.0,
        }
    }

    #[test]
    fn people_see_levels_refusals_and_attempts() {
        let shown = text(&view());
        for part in [
            "attempt 2; the last one: exit status 1\n",
            "8 ranks, root on n1",
            "running",
            "  system",
            "\"heat\" version 30",
            "10 s ago",
            "2 KiB/s",
            "in flight 2, refused 1",
            "chosen: a checkpoint after 12.3 s of work, system every 7; 2.13 % of the time expected to be lost (5.00 % before); changed 3 times",
            "last refusal, 100 s ago: \"heat\" version 20 at level node-reboot: abandoned (rank 3: local tier: cannot write)",
        ] {
            assert!(shown.contains(part), "{part}:\n{shown}");
        }
    }

    #[test]
    fn a_session_without_news_is_told_from_one_that_runs_failed_or_was_closed() {
        let status = view().groups.remove(0);
        assert_eq!(state(&status, 1000.0), "running");
        assert_eq!(state(&status, 1999.0), "NO NEWS for 17 min: it has died, or hangs");
        assert_eq!(state(&Status { closed: true, ..status.clone() }, 1999.0), "closed");
        assert_eq!(state(&Status { failed: Some("why".into()), ..status }, 1000.0), "FAILED: why");
    }

    #[test]
    fn metrics_have_a_type_a_sample_and_escaped_labels() {
        let text = openmetrics(&view());
        let labels = "job=\"heat \\\"1\\\"-0c7a11f2\",group=\"world\"";
        assert!(text.contains("# TYPE bivouac_refused counter\n"), "{text}");
        assert!(text.contains(&format!("bivouac_refused_total{{{labels}}} 1\n")), "{text}");
        assert!(text.contains(&format!("bivouac_newest_version{{{labels},level=\"system\"}} 30\n")), "{text}");
        assert!(text.contains("bivouac_attempts_total{} 2\n") && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_job_is_found_by_its_name_or_its_key() {
        assert!(is_named("heat-0c7a11f2", "heat") && is_named("heat-0c7a11f2", "heat-0c7a11f2"));
        assert!(!is_named("heat-0c7a11f2", "hea") && !is_named("a-heat-0c7a11f2", "heat"));
    }
}
