//! The report as one page of HTML, without scripts and without external resources. Pure.
#![forbid(unsafe_code)]

use super::chart::{self, escaped, rate, span};
use super::gather::Gathered;
use super::story::{Run, Story, Unopened};
use bivouac_core::base::calendar::utc;
use bivouac_core::base::units::Bytes;
use bivouac_core::format::events::Event;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The number of rows that a table shows at once; the rest is folded away.
const ROWS_SHOWN: usize = 30;
/// The maximum number of rows in a table.
const ROWS_MAX: usize = 1000;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(stories: &[Story], gathered: &Gathered, now: f64) -> String {
    let title = stories.first().map_or_else(|| "a job".to_owned(), |story| story.job.clone());
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport content='width=device-width, initial-scale=1'>\n\
         <title>{0}: report of Bivouac</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    if stories.len() > 1 {
        let links = stories.iter().map(|story| format!("<a href='#{}'>{}</a>", anchor(story), called(story, gathered)));
        _ = writeln!(text, "<p class=links>Groups: {}</p>", links.collect::<Vec<_>>().join(" · "));
    }
    let none = BTreeMap::new();
    for story in stories {
        _ = writeln!(text, "<section id='{}'>", anchor(story));
        if stories.len() > 1 {
            _ = writeln!(text, "<h1>{}</h1>", called(story, gathered));
        }
        group(&mut text, story, gathered.events.get(&(story.group.clone(), story.job.clone())).unwrap_or(&none));
        _ = writeln!(text, "</section>");
    }
    for problem in &gathered.problems {
        _ = writeln!(text, "<p class=note>Not read: {}</p>", escaped(problem));
    }
    _ = writeln!(
        text,
        "<footer>Written {} by bivouac {}. Times on the axes count from the start of the first run.</footer>\n</main>\n</body>\n</html>",
        utc(now),
        env!("CARGO_PKG_VERSION")
    );
    text
}

/// The name of a group's section in links.
fn anchor(story: &Story) -> String {
    escaped(&format!("{}-{}", story.job, story.group))
}

fn called(story: &Story, gathered: &Gathered) -> String {
    escaped(&gathered.called(&story.group, &story.job))
}

fn group(text: &mut String, story: &Story, ranks: &BTreeMap<u32, Vec<Event>>) {
    heading(text, story);
    tiles(text, story);
    text.push_str("<h2>Where the time went</h2>\n");
    text.push_str(&chart::account(story));
    account(text, story);
    text.push_str("<h2>Runs, and the levels that checkpoints reached</h2>\n");
    text.push_str(&chart::runs(story));
    runs(text, story);
    text.push_str("<h2>How long each checkpoint stopped the program</h2>\n");
    captured(text, story);
    text.push_str(&chart::stopped(story));
    text.push_str("<h2>Tiers</h2>\n");
    tiers(text, story);
    let names: Vec<String> = story.tiers.iter().map(|tier| tier.tier.clone()).collect();
    if !names.is_empty() {
        text.push_str("<h3>What the nodes wrote, and when</h3>\n");
        text.push_str(&chart::nodes(story, ranks, &names));
        legend(text, &names.iter().map(|name| (format!("tier-{name}"), name.as_str())).collect::<Vec<_>>());
    }
    protection(text, story);
    if let Some((drawing, [most, budget])) = chart::memory(story) {
        let (most, budget) = (Bytes(most), Bytes(budget));
        _ = writeln!(
            text,
            "<h2>Node memory in use</h2>\n<p>The node that used the most had up to {most} of {budget} in use.</p>"
        );
        text.push_str(&drawing);
    }
    places(text, story);
    warnings(text, story);
    settings(text, story);
}

fn last(story: &Story) -> Option<&Run> {
    story.runs.last()
}

fn heading(text: &mut String, story: &Story) {
    let Some(run) = last(story) else { return };
    let nodes = run.ranks.iter().map(|rank| rank.node).collect::<std::collections::BTreeSet<_>>().len();
    let unopened = story.unopened.iter().filter(|attempt| attempt.has_failed).count();
    let failures = story.runs.iter().filter(|run| run.failure().is_some()).count() + unopened;
    let what = match story.told {
        told if told >= u64::from(run.opened.ranks) => {
            format!("{} ranks on {}", run.opened.ranks, count(nodes as u64, "node"))
        }
        told => format!("{} ranks, of which {told} wrote down what they did", run.opened.ranks),
    };
    _ = writeln!(
        text,
        "<p class=lead>Group {}: {what}; {} and {} in {}, from {} to {}.</p>",
        escaped(&story.group),
        count(story.runs.len() as u64, "run"),
        match unopened {
            0 => count(failures as u64, "failure"),
            _ => format!("{} ({unopened} before a session was opened)", count(failures as u64, "failure")),
        },
        span(story.ended - story.began),
        utc(story.began),
        utc(story.ended)
    );
    if story.told < u64::from(run.opened.ranks) {
        text.push_str(
            "<p class=note>Bytes, rates and times are those of the ranks that recorded events. Set <code>events.directory</code> \
             (BIVOUAC_EVENTS_DIRECTORY), and all ranks record them.</p>\n",
        );
    }
    if failures > 0 {
        text.push_str("<p class=note>When a process is killed, the record of its last second is lost: the checkpoints and bytes of that \
                       second are not counted.</p>\n");
    }
    if story.runs.iter().any(|run| !run.is_end_known) {
        text.push_str(
            "<p class=note>Nobody noted when a run died. Its end is taken to be its last event, so more work may have been done again than \
             is shown, and less time may have passed without a session. Name the run directory of <code>bivouac run</code> as well, which \
             knows the end.</p>\n",
        );
    }
    for missing in &story.missing {
        _ = writeln!(text, "<p class=note>Events are missing: {}</p>", escaped(missing));
    }
}

/// A number of things.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.2} %", 100.0 * part / whole) } else { "–".into() }
}

fn tiles(text: &mut String, story: &Story) {
    let account = &story.account;
    let captures: usize = story.runs.iter().map(|run| run.captures.len()).sum();
    let refused: usize = story.runs.iter().map(|run| run.refused.len()).sum();
    let won: f64 = story.runs.iter().map(|run| run.won_back).sum();
    let longest = story.runs.iter().flat_map(|run| &run.captures).map(|it| it.seconds[1]).fold(0.0, f64::max);
    let tiles = [
        (percent(account.work, account.total), "of the time was work that counts"),
        (span(won), "of work that restarts won back"),
        (span(account.rework), "of work that was done again"),
        (captures.to_string(), "checkpoints"),
        (span(longest), "the longest that one stopped the program"),
        (refused.to_string(), "levels or checkpoints refused"),
    ];
    text.push_str("<div class=tiles>\n");
    for (number, words) in tiles {
        _ = writeln!(text, "<div><b>{number}</b><span>{words}</span></div>");
    }
    text.push_str("</div>\n");
}

fn legend(text: &mut String, names: &[(String, &str)]) {
    text.push_str("<p class=legend>");
    for (class, name) in names {
        _ = write!(text, "<span><i class='{}'></i>{}</span> ", escaped(class), escaped(name));
    }
    text.push_str("</p>\n");
}

fn account(text: &mut String, story: &Story) {
    let words = [
        "that counts",
        "that stopped the program",
        "done again after a failure",
        "from the opening of a session until it had restored",
        "no session was open",
    ];
    text.push_str("<table class=numbers><tbody>\n");
    for ((part, seconds), words) in story.account.parts().into_iter().zip(words) {
        _ = writeln!(
            text,
            "<tr><td><i class={part}></i>{part}<td class=words>{words}<td class=right>{}<td class=right>{}",
            span(seconds),
            percent(seconds, story.account.total)
        );
    }
    _ = writeln!(text, "<tr><td>all<td><td class=right>{}<td class=right>", span(story.account.total));
    text.push_str("</tbody></table>\n");
}

/// Writes a table whose cells are HTML. Of many rows, some are folded away; of very many, the last are left out.
fn table(text: &mut String, heads: &[&str], right: &[usize], rows: &[Vec<String>]) {
    let class = |column: usize| if right.contains(&column) { " class=right" } else { "" };
    let head = heads.iter().enumerate().map(|(column, head)| format!("<th{}>{head}", class(column)));
    let head: Vec<String> = head.collect();
    let write = |text: &mut String, rows: &[Vec<String>]| {
        _ = writeln!(text, "<div class=wide><table><thead><tr>{}</thead><tbody>", head.join(""));
        for row in rows {
            text.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                _ = write!(text, "<td{}>{cell}", class(column));
            }
            text.push('\n');
        }
        text.push_str("</tbody></table></div>\n");
    };
    write(text, &rows[..rows.len().min(ROWS_SHOWN)]);
    if rows.len() > ROWS_SHOWN {
        let end = rows.len().min(ROWS_MAX);
        _ = writeln!(text, "<details><summary>{} more</summary>", end - ROWS_SHOWN);
        write(text, &rows[ROWS_SHOWN..end]);
        text.push_str("</details>\n");
    }
    if rows.len() > ROWS_MAX {
        _ = writeln!(text, "<p class=note>{} more are left out.</p>", rows.len() - ROWS_MAX);
    }
}

fn runs(text: &mut String, story: &Story) {
    let legends = ["recovering", "work", "rework"].map(|name| (name.to_owned(), name));
    legend(text, &legends);
    let row = |run: &Run| {
        let restored = run.restored.as_ref().map_or_else(
            || "nothing".to_owned(),
            |it| {
                let sources = it.sources.iter().map(|from| format!("{} ({})", from.tier, count(from.ranks, "rank")));
                let what = format!("{:?} version {} of run {}", it.name, it.version, it.generation);
                let from = sources.collect::<Vec<_>>().join(", ");
                format!("{} from {}, {} in {}", escaped(&what), escaped(&from), Bytes(it.bytes), span(it.seconds))
            },
        );
        let ending = match run.failure() {
            Some(failure) => format!("<span class=bad>{}</span>", escaped(&failure)),
            None => run.ending.to_owned(),
        };
        let cells = vec![
            run.run.to_string(),
            span(run.began - story.began),
            span(run.ended - run.began),
            run.opened.ranks.to_string(),
            restored,
            run.captures.len().to_string(),
            ending,
            format!("{}{}", if run.is_end_known { "" } else { "at least " }, span(run.rework)),
            span(run.won_back),
        ];
        (run.began, cells)
    };
    let mut rows: Vec<_> =
        story.runs.iter().map(row).chain(story.unopened.iter().map(|it| unopened(it, story))).collect();
    rows.sort_by(|one, other| one.0.total_cmp(&other.0));
    let rows: Vec<_> = rows.into_iter().map(|(_, cells)| cells).collect();
    let heads = ["run", "began", "took", "ranks", "restored", "checkpoints", "ended", "done again", "won back"];
    table(text, &heads, &[0, 1, 2, 3, 5, 7, 8], &rows);
    let refused = story.runs.iter().flat_map(|run| &run.refused);
    let rows: Vec<Vec<String>> = refused
        .map(|refused| {
            let what = format!("{:?} version {}", refused.name, refused.version);
            vec![span(refused.unix - story.began), escaped(&what), escaped(&refused.level), escaped(&refused.reason)]
        })
        .collect();
    if !rows.is_empty() {
        text.push_str("<h3>Refused</h3>\n");
        table(text, &["when", "checkpoint", "level", "why"], &[0], &rows);
    }
}

/// The row of an attempt in which no session was opened, and its start.
fn unopened(attempt: &Unopened, story: &Story) -> (f64, Vec<String>) {
    let (none, outcome) = ("–".to_owned(), escaped(&attempt.outcome));
    let cells = vec![
        none.clone(),
        span(attempt.began - story.began),
        span(attempt.ended - attempt.began),
        none.clone(),
        "no session was opened".to_owned(),
        none.clone(),
        if attempt.has_failed { format!("<span class=bad>{outcome}</span>") } else { outcome },
        none.clone(),
        none,
    ];
    (attempt.began, cells)
}

/// The number of checkpoints, and their data.
fn captured(text: &mut String, story: &Story) {
    let captures = || story.runs.iter().flat_map(|run| &run.captures);
    let bytes = captures().fold(0u64, |sum, capture| sum.saturating_add(capture.bytes));
    if bytes > 0 {
        let checkpoints = count(captures().count() as u64, "checkpoint");
        _ = writeln!(text, "<p>{checkpoints} with {} of data in all.</p>", Bytes(bytes));
    }
}

fn tiers(text: &mut String, story: &Story) {
    let row = |tier: &super::story::TierFigures| {
        let [slowest, median, fastest] = tier.rates;
        let mut row = vec![
            escaped(&tier.tier),
            tier.writes.to_string(),
            Bytes(tier.bytes).to_string(),
            span(tier.seconds),
            rate(median),
        ];
        if story.told > 1 {
            row.extend([rate(slowest), rate(fastest)]);
        }
        row.push(tier.failures.to_string());
        row
    };
    let mut heads = vec!["tier", "writes", "bytes", "seconds of all ranks"];
    match story.told {
        1 => heads.push("rate"),
        _ => heads.extend(["rate of the median rank", "of the slowest", "of the fastest"]),
    }
    heads.push("failed");
    let right: Vec<usize> = (1..heads.len()).collect();
    match story.tiers.is_empty() {
        true => text.push_str("<p>Nothing was written beyond node memory.</p>\n"),
        false => table(text, &heads, &right, &story.tiers.iter().map(row).collect::<Vec<_>>()),
    }
}

fn protection(text: &mut String, story: &Story) {
    let Some(run) = last(story) else { return };
    text.push_str("<h2>Protection</h2>\n<ul>\n");
    for (tier, place) in &run.opened.tiers {
        _ = writeln!(text, "<li>{}: <code>{}</code>", escaped(tier), escaped(place));
    }
    for (tier, why) in &run.opened.lost {
        _ = writeln!(text, "<li class=bad>{} is off: {}", escaped(tier), escaped(why));
    }
    let schemes = match run.opened.redundancy.is_empty() {
        true => "none".to_owned(),
        false => escaped(&run.opened.redundancy.join(", ")),
    };
    _ = writeln!(text, "<li>redundancy: {schemes}\n</ul>");
}

fn places(text: &mut String, story: &Story) {
    let Some(run) = last(story) else { return };
    let (drawing, notes) = chart::places(&run.ranks);
    text.push_str("<h2>Where ranks ran</h2>\n<p>The CPUs that the ranks of the last run were allowed to use when they opened their \
                   sessions. ");
    text.push_str(
        "A number names the only rank that may run there. <code>bivouac topo</code> draws threads and pages.</p>\n",
    );
    text.push_str(&drawing);
    for note in notes {
        _ = writeln!(text, "<p class=note>{}</p>", escaped(&note));
    }
}

fn warnings(text: &mut String, story: &Story) {
    text.push_str("<h2>Warnings</h2>\n");
    let row = |warning: &super::story::Warning| {
        vec![
            span(warning.unix - story.began),
            escaped(&warning.importance),
            warning.count.to_string(),
            escaped(&warning.text),
        ]
    };
    match story.warnings.is_empty() {
        true => text.push_str("<p>None.</p>\n"),
        false => {
            table(text, &["first", "", "times", "text"], &[0, 2], &story.warnings.iter().map(row).collect::<Vec<_>>())
        }
    }
}

fn settings(text: &mut String, story: &Story) {
    let Some(run) = last(story) else { return };
    let code = |words: &str| format!("<code>{}</code>", escaped(words));
    let (changed, default): (Vec<_>, Vec<_>) =
        run.opened.settings.iter().partition(|(_, _, origin)| !origin.is_empty());
    text.push_str("<h2>Configuration</h2>\n");
    if run.opened.settings.is_empty() {
        text.push_str("<p>Not known: rank 0 did not record it.</p>\n");
        return;
    }
    match changed.is_empty() {
        true => text.push_str("<p>All settings are at their defaults.</p>\n"),
        false => {
            let row = |(key, value, origin): &&(String, String, String)| vec![code(key), code(value), escaped(origin)];
            table(text, &["setting", "value", "from"], &[], &changed.iter().map(row).collect::<Vec<_>>());
        }
    }
    _ = writeln!(text, "<details><summary>{} at their defaults</summary>", count(default.len() as u64, "setting"));
    _ = writeln!(text, "<div class=wide><table><tbody>");
    // All settings are listed, because they are folded away already.
    for (key, value, _) in default {
        _ = writeln!(text, "<tr><td>{}<td>{}", code(key), code(value));
    }
    text.push_str("</tbody></table></div></details>\n");
}
