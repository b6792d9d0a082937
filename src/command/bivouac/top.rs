//! `bivouac top`: a live view of a job in a terminal.
//!
//! It shows what `status` shows, how long the last checkpoints stopped the root, and the root's newest events. [`draw`] is pure; the rest
//! reads the run directory and the keyboard.
#![forbid(unsafe_code)]

use crate::ending::Ending;
use crate::output::{bytes, complain, plain};
use crate::run::duration;
use crate::status::{View, here, span, state};
use bivouac_core::format::events::{Event, What, with_openings};
use bivouac_core::format::supervision::{LevelStatus, Status};
use bivouac_core::tier::run_directory::RunDirectory;
use ratatui::Frame;
use ratatui::crossterm::event::{self, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, List, Paragraph, Row, Sparkline, Table};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The maximum number of events that are listed.
const EVENTS_SHOWN: usize = 200;

/// The arguments of `bivouac top`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac top bivouac-run            the directory of bivouac run, or the configured run.directory

Press q to quit, Tab to show the next group, and the space bar to refresh at once. For scripts, `bivouac status`
prints the same.

Exit status: 0 ended by the user; 2 wrong usage, or standard output is not a terminal.")]
pub struct Args {
    /// A run directory [default: the configured run.directory, or ./bivouac-run]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The time from one refresh to the next
    #[arg(long, value_name = "SECONDS", value_parser = duration, default_value = "1")]
    every: Duration,
}

/// What is shown of a group.
struct Shown {
    view: View,
    /// The events of the root of each group, in the order of the groups.
    events: Vec<Vec<Event>>,
}

/// Shows the view until the user ends it.
pub fn run(args: &Args) -> Ending {
    if !std::io::stdout().is_terminal() {
        complain(
            "standard output is not a terminal: use bivouac status, which prints the same and follows a job with --follow",
        );
        return Ending::Trouble;
    }
    let directory = match args.directory.clone().map_or_else(here, Ok) {
        Ok(directory) => RunDirectory::at(directory),
        Err(problem) => {
            complain(&problem);
            return Ending::Trouble;
        }
    };
    let mut terminal = ratatui::init();
    let ended = follow(&mut terminal, &directory, args.every);
    ratatui::restore();
    match ended {
        Ok(()) => Ending::Good,
        Err(error) => {
            complain(&format!("the terminal: {error}"));
            Ending::Trouble
        }
    }
}

fn follow(terminal: &mut ratatui::DefaultTerminal, directory: &RunDirectory, every: Duration) -> std::io::Result<()> {
    let mut group = 0;
    loop {
        let shown = Shown::of(directory);
        let begun = Instant::now();
        loop {
            terminal.draw(|frame| draw(frame, &shown, group))?;
            let left = every.saturating_sub(begun.elapsed());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            // Anything else, such as a new size of the window, is a reason to draw again.
            let Some(key) = event::read()?.as_key_press_event() else { continue };
            match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Tab => group = (group + 1) % shown.view.groups.len().max(1),
                KeyCode::Char(' ') => break,
                _ => {}
            }
        }
    }
}

impl Shown {
    fn of(directory: &RunDirectory) -> Shown {
        let view = View::read(directory, None);
        let events = view.groups.iter().map(|status| events_of(directory, status)).collect();
        Shown { view, events }
    }
}

/// The events of a group's root, of this job only.
fn events_of(directory: &RunDirectory, status: &Status) -> Vec<Event> {
    let elsewhere = (!status.events.is_empty()).then(|| RunDirectory::at(&status.events));
    let all = elsewhere.as_ref().unwrap_or(directory).read_events(&status.group, 0).unwrap_or_default();
    let of_job = with_openings(&all).into_iter().filter(|(opened, _)| opened.job == status.job);
    of_job.map(|(_, event)| event.clone()).collect()
}

fn draw(frame: &mut Frame<'_>, shown: &Shown, group: usize) {
    let now = shown.view.unix;
    let Some(status) = shown.view.groups.get(group).or(shown.view.groups.first()) else {
        let place = shown.view.directory.display();
        let problems = shown.view.problems.join("\n");
        let words = format!("No status has been written in {place} yet: waiting.\n{problems}");
        frame.render_widget(Paragraph::new(words).block(Block::bordered().title(" bivouac top ")), frame.area());
        return;
    };
    let events = shown.events.get(group).or(shown.events.first()).map_or(&[][..], Vec::as_slice);
    let levels = status.levels.len().max(1) as u16;
    let [head, table, chart, list, foot] = Layout::vertical([
        Constraint::Length(5),
        Constraint::Length(levels + 3),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(status, &shown.view, now), head);
    frame.render_widget(levels_of(status, now), table);
    let blocked: Vec<u64> = stopped(events, chart.width.saturating_sub(2) as usize);
    let title = match last_stop(events) {
        Some((name, version, seconds)) => {
            format!(" stopped the program (last: {:.1} ms, {} {version}) ", seconds * 1e3, plain(name))
        }
        None => " stopped the program ".to_owned(),
    };
    frame.render_widget(Sparkline::default().data(&blocked).block(Block::bordered().title(title)), chart);
    let lines: Vec<Line<'_>> = events.iter().rev().filter_map(|event| words(event, now)).take(EVENTS_SHOWN).collect();
    let title = match (events.is_empty(), status.events.as_str()) {
        (false, _) => " events of the root ".to_owned(),
        (true, "") => format!(" events of the root: none in {} ", plain(&shown.view.directory.display().to_string())),
        (true, place) => {
            format!(" events of the root: none that can be read in {} on {} ", plain(place), plain(&status.host))
        }
    };
    frame.render_widget(List::new(lines).block(Block::bordered().title(title)), list);
    let groups = shown.view.groups.len();
    let keys =
        format!(" q quit · Tab next group ({} of {groups}) · space now", group.min(groups.saturating_sub(1)) + 1);
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn heading<'a>(status: &'a Status, view: &View, now: f64) -> Paragraph<'a> {
    let attempt = view.attempt.map_or_else(String::new, |attempt| format!(", attempt {attempt}"));
    let opened = format!(
        "{} ranks, root on {} (process {}), run {}{attempt}, opened {} ago",
        status.ranks,
        plain(&status.host),
        status.pid,
        status.generation,
        span(now - status.opened)
    );
    let restored = status.restored.as_ref().map_or_else(
        || "nothing was restored".to_owned(),
        |it| {
            format!(
                "restored {} version {} from {} in {:.2} s",
                plain(&it.name),
                it.version,
                plain(&it.tier),
                it.seconds
            )
        },
    );
    let counts = format!(
        "in flight {}, refused {}, blocked {:.3} s in all; {restored}",
        status.in_flight, status.refused, status.root_blocked_seconds
    );
    let trouble = status.trouble.as_ref().map_or_else(String::new, |it| {
        format!(
            "last refusal {} ago: {} version {} at {}: {}",
            span(now - it.unix),
            plain(&it.name),
            it.version,
            it.level,
            plain(&it.reason)
        )
    });
    let title = format!(" {} {}: {} ", plain(&status.job), plain(&status.group), state(status, now));
    Paragraph::new(vec![Line::from(opened), Line::from(counts), Line::from(trouble)])
        .block(Block::bordered().title(title))
}

fn levels_of(status: &Status, now: f64) -> Table<'_> {
    let row = |level: &LevelStatus| {
        let rate = level.root_bytes_per_second;
        let cells = [
            plain(&level.level),
            level.committed.to_string(),
            format!("{} {}", plain(&level.name), level.version),
            format!("{} ago", span(now - level.newest)),
            if rate > 0.0 { format!("{}/s", bytes(rate as u64)) } else { "-".into() },
        ];
        Row::new(cells.map(Cell::from))
    };
    let widths = [14, 10, 26, 12, 14].map(Constraint::Length);
    let heads = Row::new(["level", "committed", "newest", "when", "rate of root"])
        .style(Style::new().add_modifier(Modifier::DIM));
    Table::new(status.levels.iter().map(row), widths).header(heads).block(Block::bordered().title(" levels "))
}

/// Microseconds for which the last `count` checkpoints stopped the root.
fn stopped(events: &[Event], count: usize) -> Vec<u64> {
    let all = events.iter().filter(|event| matches!(event.what, What::Captured { .. }));
    let all: Vec<u64> = all.map(|event| (event.what.seconds() * 1e6) as u64).collect();
    all[all.len().saturating_sub(count)..].to_vec()
}

fn last_stop(events: &[Event]) -> Option<(&str, u64, f64)> {
    events.iter().rev().find_map(|event| match &event.what {
        What::Captured { name, version, .. } => Some((name.as_str(), *version, event.what.seconds())),
        _ => None,
    })
}

/// An event as one line; `None` if it is shown elsewhere.
fn words(event: &Event, now: f64) -> Option<Line<'static>> {
    let words = match &event.what {
        What::Opened(opened) => format!("run {} opened: {} ranks", event.run, opened.ranks),
        What::Committed { name, version, level, .. } => format!("{name} {version} reached {level}"),
        What::Refused { name, version, level, reason, .. } => format!("{name} {version} refused at {level}: {reason}"),
        What::Restored { name, version, tier, seconds, .. } => {
            format!("restored {name} {version} from {tier} in {seconds:.2} s")
        }
        What::Failed { tier, reason } => format!("a copy to {tier} failed: {reason}"),
        What::Warned { importance, text } => format!("{importance} {text}"),
        What::Exit { reason } => format!("asked to end: {reason}"),
        What::Closed => format!("run {} closed", event.run),
        What::Missing { count, reason } => format!("{count} events are missing: {reason}"),
        _ => return None,
    };
    let is_bad =
        matches!(event.what, What::Refused { .. } | What::Failed { .. } | What::Warned { .. } | What::Missing { .. });
    let style = if is_bad { Style::new().red() } else { Style::new() };
    Some(Line::from(format!("{:>9} ago  {}", span(now - event.unix), plain(&words))).style(style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::format::events::Opened;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(shown: &Shown, group: usize, size: (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a terminal");
        terminal.draw(|frame| draw(frame, shown, group)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let row = |y: u16| (0..size.0).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..size.1).map(row).collect::<Vec<_>>().join("\n")
    }

    fn view(groups: Vec<Status>) -> View {
        let (directory, problems) = (PathBuf::from("run"), Vec::new());
        View { schema: 1, directory, attempt: Some(3), last_attempt: None, groups, problems, unix: 100.0 }
    }

    fn shown() -> Shown {
        let level = |level: &str, committed| LevelStatus {
            level: level.into(),
            committed,
            newest: 90.0,
            name: "heat".into(),
            version: 70,
            root_bytes_per_second: 2e9,
            ..LevelStatus::default()
        };
        let group = |group: &str| Status {
            job: "heat-0c7a11f2".into(),
            group: group.into(),
            ranks: 4,
            generation: 3,
            unix: 99.0,
            opened: 40.0,
            levels: vec![level("process", 7), level("system", 2)],
            ..Status::new()
        };
        let event = |unix, what| Event { unix, run: 3, what };
        let captured = |unix, seconds| {
            event(unix, What::Captured { name: "heat".into(), version: 70, operation: 7, bytes: 9, seconds })
        };
        let reason = "abandoned (rank 2: no space left on device)".to_owned();
        let refused = What::Refused { name: "heat".into(), version: 71, operation: 8, level: "system".into(), reason };
        let events = vec![
            event(40.0, What::Opened(Box::new(Opened { ranks: 4, ..Opened::default() }))),
            captured(80.0, 0.004),
            captured(90.0, 0.0125),
            event(95.0, refused),
        ];
        Shown { view: view(vec![group("world"), group("sub-2")]), events: vec![events, Vec::new()] }
    }

    #[test]
    fn levels_stops_and_events_are_shown() {
        let text = drawn(&shown(), 0, (100, 30));
        for words in [
            "heat-0c7a11f2 world: running",
            "run 3",
            "process",
            "system",
            "heat 70",
            "10 s ago",
            "12.5 ms",
            "no space left",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(drawn(&shown(), 1, (100, 30)).contains("sub-2: running"));
    }

    #[test]
    fn small_windows_and_empty_directories_do_no_harm() {
        for size in [(1, 1), (20, 5), (300, 80)] {
            drawn(&shown(), 7, size);
            let empty = Shown { view: view(Vec::new()), events: Vec::new() };
            drawn(&empty, 0, size);
        }
    }
}
