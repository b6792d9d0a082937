//! `bivouac ls`: lists checkpoints and memory segments.
#![forbid(unsafe_code)]

use crate::body;
use crate::ending::{Ending, Problem, Problems};
use crate::inspect::dealt::DealtView;
use crate::memory::{self, Slot, Stock};
use crate::output::{self, KeyView, SCHEMA, age, plain, show, table, unix};
use crate::places::{named_or_global, nothing_in};
use crate::standing::{History, Standing, histories};
use crate::survey::{Checkpoint, State, survey};
use crate::target::Target;
use bivouac_core::base::CheckpointKey;
use bivouac_core::tier::names::Series;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The arguments of `bivouac ls`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac ls                                  all checkpoints below the configured global directory
  bivouac ls bivouac                          all checkpoints below a global directory
  bivouac ls bivouac/heat2d-0c7a11f2/world    the checkpoints of one job and group
  bivouac ls /dev/shm                         all your memory segments on this node
  bivouac ls --json /scratch/ckpt | jq '.checkpoints[] | select(.state == \"committed\") | .version'

STATE is one of these: committed; restorable (all shards are there, and the next restart writes the manifest);
incomplete (being written, or left behind by a crash); held (kept only because files of later checkpoints refer to it);
damaged. `bivouac verify` reads the data as well. RANKS shows the number of shards here and the number of ranks that
took the checkpoint. AGE is the time since the last change. REFERS TO lists the versions that are needed to restore the
checkpoint (docs/REDUCTION.md).
OTHER RANKS is shown if some version can be restored on a different number of ranks. For each version, the column says
whether it can, according to one of the version's shards (docs/ELASTIC.md). `bivouac inspect` names the regions that
prevent it.
STANDING, which is judged from this directory alone, is one of these: newest (a restart continues from this
checkpoint, which is removed only when there is a newer one); older (the newest descends from this one, which stays for
as long as keep_last and keep_every say); left behind (a run went back to an earlier checkpoint or started the series
over, and a restart takes this one only if it is asked for by number).
FOR OTHERS counts the shards and parity parts that are kept here for other nodes (partner, xor, rs). CONTENT, in the
table of a segment, is shard or parity.

Exit status: 0 done; 1 something is damaged; 2 wrong usage, or something cannot be read; 3 nothing found.")]
pub struct Args {
    /// Directories or memory segments [default: the configured global directory]
    paths: Vec<PathBuf>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

/// The document of `ls --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    checkpoints: Vec<CheckpointRow>,
    segments: Vec<SegmentRow>,
    problems: Problems,
}

/// A checkpoint folder.
#[derive(Serialize)]
struct CheckpointRow {
    tier: &'static str,
    path: String,
    #[serde(flatten)]
    key: KeyView,
    state: State,
    /// The level that the manifest commits.
    level: Option<&'static str>,
    /// Why it is not committed.
    why: Option<String>,
    /// Why it is still here, if it can be restored.
    standing: Option<Standing>,
    /// The number of ranks whose shards are here.
    ranks: usize,
    /// The number of ranks that took it.
    group_size: Option<u32>,
    /// Can it be restored on a different number of ranks? `None` if it cannot be restored at all, or if its record cannot be read.
    resizable: Option<bool>,
    /// Whole shards that are kept here for ranks of other nodes.
    copies: usize,
    /// Parity parts that are kept here for redundancy sets.
    parts: usize,
    /// Bytes of all files.
    bytes: u64,
    /// Folders of the checkpoints to which its files refer, and without which it cannot be restored.
    needs: Vec<String>,
    /// Folders of the checkpoints whose files refer to it.
    needed_by: Vec<String>,
    /// Last change, in seconds since 1970.
    modified: Option<u64>,
    #[serde(skip)]
    age: String,
}

/// A memory segment.
#[derive(Serialize)]
struct SegmentRow {
    path: String,
    alive: bool,
    generation: u64,
    node_ranks: u32,
    group_size: u32,
    budget_bytes: u64,
    /// The node memory that it takes now.
    memory_bytes: u64,
    modified: Option<u64>,
    slots: Vec<Slot>,
    #[serde(skip)]
    age: String,
}

/// Runs `bivouac ls`.
pub fn run(args: &Args) -> Ending {
    let mut document = Document {
        schema: SCHEMA,
        command: "ls",
        checkpoints: Vec::new(),
        segments: Vec::new(),
        problems: Problems::default(),
    };
    let paths = named_or_global(&args.paths).unwrap_or_else(|problem| {
        document.problems.add(problem);
        Vec::new()
    });
    for path in &paths {
        if let Err(problem) = add(&mut document, path) {
            document.problems.add(problem);
        }
    }
    if document.has_damage() {
        document.problems.note(Ending::Damage);
    }
    document.problems.complain();
    show(args.json, &document, tables);
    document.problems.ending()
}

impl Document {
    /// Does a table show something damaged?
    fn has_damage(&self) -> bool {
        let mut slots = self.segments.iter().flat_map(|segment| &segment.slots);
        self.checkpoints.iter().any(|row| row.state == State::Damaged) || slots.any(Slot::is_damaged)
    }
}

fn add(document: &mut Document, path: &Path) -> Result<(), Problem> {
    match Target::of(path)? {
        Target::Scope(scope) => {
            let (found, problems) = survey(&scope)?;
            if found.is_empty() && problems.is_empty() {
                return Err(nothing_in(path));
            }
            document.problems.extend(problems);
            let histories = histories(&scope, &found)?;
            let row = |one: &Checkpoint| row(one, histories.get(&one.series), needed_by(one, &found));
            document.checkpoints.extend(found.iter().map(row));
        }
        Target::Segment(folder, name) => document.segments.push(segment(&folder, &name)?),
        Target::Segments(folder) => {
            for name in memory::names(&folder)? {
                match segment(&folder, &name) {
                    Ok(row) => document.segments.push(row),
                    Err(problem) => document.problems.add(problem),
                }
            }
        }
        Target::Container(path) | Target::Manifest(path) => {
            let next =
                "bivouac inspect shows what it holds; bivouac ls with its folder shows how complete the checkpoint is";
            return Err(format!("{} is a single file: {next}", path.display()).into());
        }
    }
    Ok(())
}

fn row(found: &Checkpoint, history: Option<&History>, needed_by: Vec<String>) -> CheckpointRow {
    let Series { job, group, name } = &found.series;
    let (generation, version, operation) = found.order;
    let key = CheckpointKey { generation, version, operation, ..CheckpointKey::default() };
    CheckpointRow {
        tier: found.tier.kind().name(),
        path: found.path.display().to_string(),
        key: KeyView::new([job, group, name], &key),
        state: found.state.clone(),
        level: found.manifest.as_ref().map(|manifest| manifest.level.name()),
        why: found.why.clone(),
        standing: history.and_then(|history| history.standing(found)),
        ranks: found.ranks.len(),
        group_size: found.group_size,
        resizable: is_resizable(found),
        copies: found.copies(),
        parts: found.parts(),
        bytes: found.bytes(),
        needs: found.manifest.iter().flat_map(|manifest| &manifest.sources).map(|source| source.key.folder()).collect(),
        needed_by,
        modified: unix(found.modified),
        age: age(found.modified),
    }
}

/// Can the checkpoint be restored on a different number of ranks? One shard answers for all, because the ranks agreed on this.
fn is_resizable(found: &Checkpoint) -> Option<bool> {
    if !matches!(found.state, State::Committed | State::Restorable) {
        return None;
    }
    let path = found.path.join(&found.containers().next()?.name);
    let (index, file) = found.tier.open_container(&path).ok()?;
    let shard = found.tier.open_placed(&found.series, path, file.into(), index.entries.first()?).ok()?;
    let head = shard.head();
    match body::decomposition_record(head, body::of_file(&shard)).ok()? {
        None => Some(false),
        Some(record) => DealtView::of(Ok(record), &head.meta.regions).bound.map(|bound| bound.is_empty()),
    }
}

fn segment(folder: &Path, name: &str) -> Result<SegmentRow, Problem> {
    let stock = Stock::open(folder, name)?;
    let header = stock.segment.header();
    Ok(SegmentRow {
        path: stock.segment.path().display().to_string(),
        alive: stock.is_alive,
        generation: header.generation.0,
        node_ranks: header.node_ranks,
        group_size: header.group_size,
        budget_bytes: header.budget,
        memory_bytes: stock.memory_bytes,
        modified: unix(stock.modified),
        slots: stock.slots(),
        age: age(stock.modified),
    })
}

fn tables(document: &Document) -> String {
    let mut parts = Vec::new();
    if !document.checkpoints.is_empty() {
        let mut heads =
            vec!["JOB", "GROUP", "NAME", "GEN", "VERSION", "OP", "STATE", "STANDING", "RANKS", "BYTES", "AGE"];
        let mut rows: Vec<Vec<String>> = document.checkpoints.iter().map(cells).collect();
        if document.checkpoints.iter().any(|row| !row.needs.is_empty()) {
            heads.push("REFERS TO");
            rows.iter_mut().zip(&document.checkpoints).for_each(|(cells, row)| cells.push(refers_to(row)));
        }
        if document.checkpoints.iter().any(|row| row.resizable == Some(true)) {
            heads.push("OTHER RANKS");
            let word = |row: &CheckpointRow| row.resizable.map_or("?", |is_so| if is_so { "yes" } else { "no" });
            rows.iter_mut().zip(&document.checkpoints).for_each(|(cells, row)| cells.push(word(row).into()));
        }
        if document.checkpoints.iter().any(|row| row.copies + row.parts > 0) {
            heads.push("FOR OTHERS");
            rows.iter_mut().zip(&document.checkpoints).for_each(|(cells, row)| cells.push(for_others(row)));
        }
        parts.push(table(&heads, &[3, 4, 5, 8, 9, 10], &rows));
    }
    for segment in &document.segments {
        parts.push(segment_text(segment));
    }
    if parts.is_empty() && document.problems.ending() == Ending::Nothing {
        parts.push("no checkpoints\n".into());
    }
    parts.join("\n")
}

/// The folders of those checkpoints among `all` whose files refer to `one`.
fn needed_by(one: &Checkpoint, all: &[Checkpoint]) -> Vec<String> {
    let refers = |other: &&Checkpoint| {
        let mut sources = other.manifest.iter().flat_map(|manifest| &manifest.sources);
        other.series == one.series && sources.any(|source| source.key.folder() == one.folder)
    };
    all.iter().filter(refers).map(|other| other.folder.clone()).collect()
}

/// The versions without which a checkpoint cannot be restored.
fn refers_to(row: &CheckpointRow) -> String {
    let version = |folder: &String| CheckpointKey::parse_folder(folder).map(|(_, version, _)| version.to_string());
    row.needs.iter().filter_map(version).collect::<Vec<_>>().join(", ")
}

fn for_others(row: &CheckpointRow) -> String {
    let counts = [(row.copies, "shards"), (row.parts, "parity")];
    let some = counts.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn cells(row: &CheckpointRow) -> Vec<String> {
    let state = match (row.level, &row.why) {
        (Some(level), None) => format!("{} ({level})", row.state.name()),
        (_, Some(why)) => format!("{} ({})", row.state.name(), plain(why)),
        (None, None) => row.state.name().into(),
    };
    let size = row.group_size.map_or("?".into(), |size| size.to_string());
    let standing = row.standing.map_or("-", Standing::name).into();
    let rest = [state, standing, format!("{}/{size}", row.ranks), output::bytes(row.bytes), row.age.clone()];
    row.key.cells().into_iter().chain(rest).collect()
}

fn segment_text(row: &SegmentRow) -> String {
    let alive = if row.alive { "its run is alive" } else { "its run has ended" };
    let mut text = format!(
        "{}: generation {}, {} of {} ranks, {} of {} in use, {alive}, {} old\n",
        plain(&row.path),
        row.generation,
        row.node_ranks,
        row.group_size,
        output::bytes(row.memory_bytes),
        output::bytes(row.budget_bytes),
        row.age
    );
    let cells = |slot: &Slot| {
        let state = match (slot.level, &slot.why) {
            (_, Some(why)) => format!("{} ({})", slot.state, plain(why)),
            (Some(level), None) => format!("{} ({level})", slot.state),
            (None, None) => slot.state.into(),
        };
        let optional = |text: &Option<String>| text.as_deref().map_or("?".into(), plain);
        let rank = slot.rank.map_or("?".into(), |rank| rank.to_string());
        vec![
            format!("{}.{}", slot.node_rank, slot.index),
            optional(&slot.job),
            optional(&slot.group),
            optional(&slot.name),
            slot.version.to_string(),
            slot.operation.to_string(),
            rank,
            slot.content.unwrap_or("?").into(),
            state,
            output::bytes(slot.bytes),
        ]
    };
    let heads = ["SLOT", "JOB", "GROUP", "NAME", "VERSION", "OP", "RANK", "CONTENT", "STATE", "BYTES"];
    let rows: Vec<Vec<String>> = row.slots.iter().map(cells).collect();
    if rows.is_empty() {
        text += "no slot is in use\n";
    } else {
        text += &table(&heads, &[4, 5, 6, 9], &rows);
    }
    text
}
