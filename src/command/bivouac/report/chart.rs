//! Drawings over time, as SVG inside a page. The page's style sheet defines the colours of their classes, for light and dark display. Pure.
#![forbid(unsafe_code)]

use super::story::{Capture, Run, Story};
use bivouac_core::base::Level;
use bivouac_core::base::text::plain;
use bivouac_core::base::units::{Bytes, parse_cpus};
use bivouac_core::format::events::{Event, Opened, What};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
/// The width of the space to the left of the drawing, which holds the names of the rows.
const LEFT: f64 = 120.0;
const RIGHT: f64 = 12.0;
const ROW: f64 = 20.0;
/// The maximum number of marks in a row: of marks that are closer together than the width of a line, only one is drawn.
const COLUMNS: usize = 400;
/// The maximum number of rows for nodes, and of hosts that are drawn: if there are more nodes, several share a row; if
/// there are more hosts, some are left out.
const ROWS_MAX: usize = 48;
const HOSTS_MAX: usize = 16;
const CPUS_MAX: usize = 1024;

/// Escapes text for use in a page.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Formats seconds: `1.25 s`, `3.5 min`.
pub fn span(seconds: f64) -> String {
    match seconds.abs() {
        0.0 => "0 s".into(),
        s if s < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        s if s < 0.1 => format!("{:.1} ms", seconds * 1e3),
        s if s < 10.0 => format!("{seconds:.2} s"),
        s if s < 180.0 => format!("{seconds:.1} s"),
        s if s < 10_800.0 => format!("{:.1} min", seconds / 60.0),
        s if s < 259_200.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}

/// Formats bytes per second.
pub fn rate(rate: f64) -> String {
    if rate > 0.0 { format!("{}/s", Bytes(rate as u64)) } else { "–".into() }
}

/// The time span that the width of a drawing shows.
struct Axis {
    began: f64,
    seconds: f64,
}

impl Axis {
    fn of(story: &Story) -> Axis {
        Axis { began: story.began, seconds: (story.ended - story.began).max(1e-3) }
    }

    fn x(&self, unix: f64) -> f64 {
        let part = ((unix - self.began) / self.seconds).clamp(0.0, 1.0);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    /// Which of the [`COLUMNS`] a time falls into.
    fn column(&self, unix: f64) -> usize {
        let part = ((unix - self.began) / self.seconds).clamp(0.0, 1.0);
        ((part * COLUMNS as f64) as usize).min(COLUMNS - 1)
    }

    /// Draws the lines of the time axis, down to `y`, and the labels below them.
    fn draw(&self, text: &mut String, y: f64) {
        let wanted = self.seconds / 8.0;
        let power = 10f64.powf(wanted.log10().floor());
        let fine = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let coarse = [60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 43_200.0, 86_400.0];
        let step = if wanted < 30.0 { &fine[..] } else { &coarse[..] }.iter().copied().find(|step| *step >= wanted);
        let step = step.unwrap_or((wanted / 86_400.0).ceil() * 86_400.0);
        for at in 0..=(self.seconds / step) as u32 {
            let seconds = f64::from(at) * step;
            let x = self.x(self.began + seconds);
            _ = write!(
                text,
                "<line class=grid x1={x:.1} x2={x:.1} y1=0 y2={y:.1} /><text class=tick x={x:.1} y={:.1}>{}</text>",
                y + 14.0,
                span(seconds)
            );
        }
    }
}

fn svg(label: &str, height: f64, body: &str) -> String {
    format!(
        "<div class=drawing><svg viewBox='0 0 {WIDTH} {height:.0}' role=img aria-label='{}'>{body}</svg></div>\n",
        escaped(label)
    )
}

fn rect(text: &mut String, class: &str, [x, y, width, height]: [f64; 4], title: &str) {
    _ = write!(
        text,
        "<rect class='{}' x={x:.1} y={y:.1} width={:.1} height={height:.1}><title>{}</title></rect>",
        escaped(class),
        width.max(0.8),
        escaped(title)
    );
}

fn name(text: &mut String, y: f64, words: &str) {
    let short: String = words.chars().take(19).collect();
    _ = write!(
        text,
        "<text class=name x={:.0} y={:.1}>{}<title>{}</title></text>",
        LEFT - 8.0,
        y + ROW * 0.7,
        escaped(&short),
        escaped(words)
    );
}

/// Draws a horizontal line and its label.
fn rule(text: &mut String, y: f64, words: &str) {
    _ = write!(
        text,
        "<line class=grid x1={LEFT} x2={:.0} y1={y:.1} y2={y:.1} /><text class=name x={:.0} y={:.1}>{}</text>",
        WIDTH - RIGHT,
        LEFT - 8.0,
        y + 4.0,
        escaped(words)
    );
}

/// A bar that shows where the whole time went.
pub fn account(story: &Story) -> String {
    let (mut body, mut x, total) = (String::new(), 0.0, story.account.total.max(1e-9));
    for (part, seconds) in story.account.parts() {
        let width = seconds / total * WIDTH;
        if width > 0.0 {
            let title = format!("{part}: {} ({:.2} %)", span(seconds), 100.0 * seconds / total);
            rect(&mut body, part, [x, 0.0, width, 26.0], &title);
        }
        x += width;
    }
    // It has no words, so it may be as narrow as the screen.
    let label = "where the time went";
    format!(
        "<div class=bar><svg viewBox='0 0 {WIDTH} 26' preserveAspectRatio=none role=img aria-label='{label}'>{body}</svg></div>\n"
    )
}

/// The runs, how each ended, and the levels that checkpoints have reached.
pub fn runs(story: &Story) -> String {
    let (axis, mut body) = (Axis::of(story), String::new());
    let levels = levels(story);
    let refused = story.runs.iter().any(|run| !run.refused.is_empty());
    let height = ROW * (1 + levels.len() + usize::from(refused)) as f64 + 6.0;
    axis.draw(&mut body, height);
    name(&mut body, 0.0, "runs");
    for run in &story.runs {
        run_bar(&mut body, &axis, run);
    }
    for attempt in story.unopened.iter().filter(|attempt| attempt.has_failed) {
        let title = format!("an attempt ended before a session was opened: {}", attempt.outcome);
        failure(&mut body, axis.x(attempt.ended), &title);
    }
    for (row, level) in levels.iter().enumerate() {
        let y = ROW * (1 + row) as f64;
        name(&mut body, y, level);
        let commits = story.runs.iter().flat_map(|run| &run.commits).filter(|commit| commit.level == *level);
        let commits = commits.map(|commit| (commit.unix, commit.name.as_str(), commit.version));
        marks(&mut body, &axis, y, &format!("at-{level}"), commits, "committed");
    }
    if refused {
        let y = ROW * (1 + levels.len()) as f64;
        name(&mut body, y, "refused");
        let refused = story.runs.iter().flat_map(|run| &run.refused);
        let refused = refused.map(|refused| (refused.unix, refused.name.as_str(), refused.version));
        marks(&mut body, &axis, y, "refused", refused, "refused");
    }
    svg("runs, and the levels that checkpoints reached", height + 20.0, &body)
}

fn run_bar(body: &mut String, axis: &Axis, run: &Run) {
    let [began, work, ended] = [run.began, run.work_began(), run.ended].map(|unix| axis.x(unix));
    let kept = axis.x((run.ended - run.rework).max(run.work_began()));
    let bar = |body: &mut String, class: &str, from: f64, to: f64, title: String| {
        if to > from {
            rect(body, class, [from, 3.0, to - from, ROW - 6.0], &title);
        }
    };
    let number = run.run;
    bar(body, "recovering", began, work, format!("run {number}: recovering, {}", span(run.work_began() - run.began)));
    bar(body, "work", work, kept, format!("run {number}: work that counts, and the checkpoints in it"));
    bar(body, "rework", kept, ended, format!("run {number}: {} of work that was done again", span(run.rework)));
    if let Some(words) = run.failure() {
        failure(body, ended, &format!("run {number} ended: {words}"));
    }
}

/// A cross in the row of the runs.
fn failure(body: &mut String, x: f64, title: &str) {
    _ = write!(
        body,
        "<path class=failure d='M{:.1} 2 l8 {h} m0 -{h} l-8 {h}'><title>{}</title></path>",
        x - 4.0,
        escaped(title),
        h = ROW - 4.0
    );
}

/// What happened to which versions of which series, and when.
fn marks<'a>(
    body: &mut String,
    axis: &Axis,
    y: f64,
    class: &str,
    all: impl Iterator<Item = (f64, &'a str, u64)>,
    what: &str,
) {
    let mut columns: BTreeMap<usize, (u64, &str, u64)> = BTreeMap::new();
    for (unix, series, version) in all {
        let column = columns.entry(axis.column(unix)).or_default();
        *column = (column.0 + 1, series, version);
    }
    let width = (WIDTH - LEFT - RIGHT) / COLUMNS as f64;
    for (column, (count, series, version)) in columns {
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let place = [LEFT + column as f64 * width, y + 4.0, width.max(2.0), ROW - 8.0];
        rect(body, class, place, &format!("{series:?} version {version}{more} {what}"));
    }
}

/// The levels that were reached, the lowest first.
pub fn levels(story: &Story) -> Vec<String> {
    let commits = story.runs.iter().flat_map(|run| &run.commits);
    let found: BTreeSet<&str> = commits.map(|commit| commit.level.as_str()).collect();
    let mut found: Vec<String> = found.into_iter().map(str::to_owned).collect();
    found.sort_by_key(|level| Level::VOTED.iter().position(|known| known.name() == level));
    found
}

/// How long each checkpoint stopped the program.
pub fn stopped(story: &Story) -> String {
    let captures: Vec<&Capture> = story.runs.iter().flat_map(|run| &run.captures).collect();
    let most = captures.iter().map(|capture| capture.seconds[1]).fold(0.0, f64::max);
    if captures.is_empty() {
        return "<p>No checkpoint was handed over.</p>\n".into();
    }
    let (axis, mut body, height) = (Axis::of(story), String::new(), 140.0);
    axis.draw(&mut body, height);
    for part in [0.0, 0.5, 1.0] {
        rule(&mut body, height - part * (height - 10.0), &span(part * most));
    }
    // Of the captures in one column, the one that stopped the program the longest is drawn.
    let mut columns: BTreeMap<usize, &Capture> = BTreeMap::new();
    for capture in captures {
        let longest = columns.entry(axis.column(capture.unix)).or_insert(capture);
        if capture.seconds[1] > longest.seconds[1] {
            *longest = capture;
        }
    }
    for capture in columns.values() {
        let y = |seconds: f64| height - seconds / most.max(1e-12) * (height - 10.0);
        let [least, longest] = capture.seconds;
        let title = match story.told {
            1 => format!("{:?} version {}: {}", capture.name, capture.version, span(longest)),
            _ => format!("{:?} version {}: {} to {}", capture.name, capture.version, span(least), span(longest)),
        };
        let x = axis.x(capture.unix);
        _ = write!(
            body,
            "<g class=stopped><title>{}</title><line x1={x:.1} x2={x:.1} y1={:.1} y2={:.1} /><circle cx={x:.1} cy={:.1} r=3 /></g>",
            escaped(&title),
            y(least),
            y(longest),
            y(longest)
        );
    }
    svg("how long each checkpoint stopped the program", height + 20.0, &body)
}

/// What the ranks of each node wrote, when, and to which tier: the more of them, the darker.
pub fn nodes(story: &Story, ranks: &BTreeMap<u32, Vec<Event>>, tiers: &[String]) -> String {
    let axis = Axis::of(story);
    // The node of each rank in its last session.
    let of_rank = |events: &[Event]| {
        let opened = events.iter().rev().find_map(|event| match &event.what {
            What::Opened(opened) => Some((opened.node, opened.host.clone())),
            _ => None,
        });
        opened.unwrap_or_default()
    };
    let mut nodes: BTreeMap<(u32, String), Vec<&Vec<Event>>> = BTreeMap::new();
    for events in ranks.values() {
        nodes.entry(of_rank(events)).or_default().push(events);
    }
    let each = nodes.len().div_ceil(ROWS_MAX).max(1);
    let nodes: Vec<_> = nodes.into_iter().collect();
    let rows: Vec<&[_]> = nodes.chunks(each).collect();
    let (mut body, height) = (String::new(), ROW * rows.len() as f64 + 6.0);
    axis.draw(&mut body, height);
    for (row, of_row) in rows.iter().enumerate() {
        let y = ROW * row as f64;
        let hosts: Vec<&str> = of_row.iter().map(|((_, host), _)| host.as_str()).collect();
        let title =
            if hosts.len() > 1 { format!("{} to {}", hosts[0], hosts[hosts.len() - 1]) } else { hosts[0].into() };
        name(&mut body, y, &title);
        let ranks = of_row.iter().flat_map(|(_, ranks)| ranks.iter());
        let count = ranks.clone().count();
        written(&mut body, &axis, y, tiers, ranks.flat_map(|events| events.iter()), count);
    }
    svg("what the nodes wrote, and when", height + 20.0, &body)
}

fn written<'a>(
    body: &mut String,
    axis: &Axis,
    y: f64,
    tiers: &[String],
    events: impl Iterator<Item = &'a Event>,
    ranks: usize,
) {
    // Seconds and bytes of all ranks, by column and tier.
    let mut columns: BTreeMap<(usize, usize), (f64, u64)> = BTreeMap::new();
    let width = axis.seconds / COLUMNS as f64;
    for event in events {
        let What::Written { tier, bytes, .. } = &event.what else { continue };
        let tier = tiers.iter().position(|known| known == tier).unwrap_or(tiers.len());
        let (from, to) = (event.unix - event.what.seconds(), event.unix);
        let (first, last) = (axis.column(from), axis.column(to));
        for column in first..=last {
            let begins = axis.began + column as f64 * width;
            let share = (to.min(begins + width) - from.max(begins)).max(0.0);
            let cell = columns.entry((column, tier)).or_default();
            *cell = (cell.0 + share, cell.1.saturating_add(bytes / (last - first + 1) as u64));
        }
    }
    let lanes = (tiers.len() + 1) as f64;
    for ((column, tier), (seconds, bytes)) in columns {
        let strength = (seconds / (width * ranks.max(1) as f64)).clamp(0.15, 1.0);
        let x = LEFT + column as f64 * (WIDTH - LEFT - RIGHT) / COLUMNS as f64;
        let tall = (ROW - 4.0) / lanes;
        let title = format!("{}: {}", tiers.get(tier).map_or("another tier", |tier| tier), Bytes(bytes));
        _ = write!(body, "<g opacity={strength:.2}>");
        let place = [x, y + 2.0 + tier as f64 * tall, (WIDTH - LEFT - RIGHT) / COLUMNS as f64 + 0.4, tall];
        rect(body, &format!("tier-{}", tiers.get(tier).map_or("other", |tier| tier)), place, &title);
        body.push_str("</g>");
    }
}

/// Node memory over time, on the node that used the most. Also returns the most that was used, and the budget.
pub fn memory(story: &Story) -> Option<(String, [u64; 2])> {
    let (axis, mut body, height) = (Axis::of(story), String::new(), 90.0);
    let all = || story.runs.iter().flat_map(|run| &run.memory);
    let budget = all().map(|memory| memory.budget).max()?;
    let most = all().map(|memory| memory.used).max().filter(|most| *most > 0)?;
    axis.draw(&mut body, height);
    for (part, words) in [(0.0, "0".to_owned()), (1.0, Bytes(most).to_string())] {
        rule(&mut body, height - part * (height - 10.0), &words);
    }
    for run in story.runs.iter().filter(|run| !run.memory.is_empty()) {
        // A report holds until the next one of its node, and the last one until the end of the run.
        let mut used: BTreeMap<u32, u64> = BTreeMap::new();
        // Of each column: the most that was in use, and what was in use at its end.
        let mut columns: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
        for memory in &run.memory {
            used.insert(memory.node, memory.used);
            let now = used.values().copied().max().unwrap_or(0);
            let column = columns.entry(axis.column(memory.unix)).or_default();
            *column = [column[0].max(now), now];
        }
        let width = (WIDTH - LEFT - RIGHT) / COLUMNS as f64;
        let y = |used: u64| height - used as f64 / most as f64 * (height - 10.0);
        let (mut path, mut before) = (String::new(), 0);
        for (column, [peak, last]) in columns {
            let x = LEFT + column as f64 * width;
            match path.is_empty() {
                true => _ = write!(path, "M{x:.1} {height:.1}"),
                false => _ = write!(path, "H{x:.1}"),
            }
            let peak = peak.max(before);
            _ = write!(path, "V{:.1}h{width:.1}V{:.1}", y(peak), y(last));
            before = last;
        }
        _ = write!(path, "H{:.1}V{height:.1}Z", axis.x(run.ended));
        let peak = run.memory.iter().map(|memory| memory.used).max().unwrap_or(0);
        _ = write!(
            body,
            "<path class=tier-memory d='{path}'><title>run {}: up to {}</title></path>",
            run.run,
            Bytes(peak)
        );
    }
    Some((svg("node memory in use", height + 20.0, &body), [most, budget]))
}

/// The hosts of a run, their CPUs, and which ranks may run on which.
pub fn places(ranks: &[Opened]) -> (String, Vec<String>) {
    let mut hosts: BTreeMap<&str, Vec<(&Opened, BTreeSet<usize>)>> = BTreeMap::new();
    for rank in ranks {
        hosts.entry(&rank.host).or_default().push((rank, parse_cpus(&rank.cpus).unwrap_or_default()));
    }
    let (mut body, mut notes, mut y) = (String::new(), Vec::new(), 0.0);
    if hosts.len() > HOSTS_MAX {
        notes.push(format!("{} more hosts are not drawn.", hosts.len() - HOSTS_MAX));
    }
    for (host, mut ranks) in hosts.into_iter().take(HOSTS_MAX) {
        ranks.sort_by_key(|(rank, _)| rank.rank);
        let cpus: BTreeSet<usize> = ranks.iter().flat_map(|(_, cpus)| cpus).copied().take(CPUS_MAX).collect();
        name(&mut body, y, host);
        let in_row = 48;
        let size = (WIDTH - LEFT - RIGHT) / in_row as f64;
        for (at, cpu) in cpus.iter().enumerate() {
            let may: Vec<u32> =
                ranks.iter().filter(|(_, cpus)| cpus.contains(cpu)).map(|(rank, _)| rank.rank).collect();
            let class = match &may[..] {
                [one] => format!("rank-{}", one % 8),
                _ => "shared".into(),
            };
            let who: Vec<String> = may.iter().take(12).map(ToString::to_string).collect();
            let more = if may.len() > 12 { " and more" } else { "" };
            let place =
                [LEFT + (at % in_row) as f64 * size, y + (at / in_row) as f64 * ROW + 2.0, size - 1.5, ROW - 4.0];
            rect(&mut body, &class, place, &format!("CPU {cpu}: rank {}{more}", who.join(", ")));
            if let [one] = &may[..] {
                _ = write!(
                    body,
                    "<text class=cpu x={:.1} y={:.1}>{one}</text>",
                    place[0] + size / 2.0,
                    place[1] + ROW * 0.55
                );
            }
        }
        y += ROW * cpus.len().div_ceil(in_row).max(1) as f64 + 6.0;
    }
    (svg("hosts, their CPUs, and the ranks that may run there", y.max(ROW), &body), notes)
}
