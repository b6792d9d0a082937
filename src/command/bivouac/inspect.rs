//! `bivouac inspect`: what a checkpoint, container, manifest or segment contains, without reading bodies.
#![forbid(unsafe_code)]

pub mod dealt;
mod summary;

use crate::body;
use crate::ending::{self, Ending, Problem, Problems};
use crate::memory::{self, Slot, Stock};
use crate::output::{self, KeyView, SCHEMA, list, most, plain, short, show, table};
use crate::places::{named_or_global, nothing_in};
use crate::survey::{self, Checkpoint, FileFound, State, is_known, survey};
use crate::target::{Target, tier_of};
use bivouac_core::base::{Origin, Rank};
use bivouac_core::format::packed::{Packing, Stored};
use bivouac_core::format::shard::Head;
use bivouac_core::format::{Content, Manifest, RegionKind};
use bivouac_core::region::DECOMPOSITION;
use bivouac_core::segment::{OldSlot, SlotState};
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::{Tier, TierError, join, packing_of};
use dealt::DealtView;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use summary::Summary;

/// The maximum number of regions of a shard that are shown.
const REGIONS_MAX: usize = 50;
/// The maximum number of dimensions of a region that are shown.
const DIMENSIONS_MAX: usize = 8;
/// The maximum number of sources of a packed shard that are shown.
const SOURCES_SHOWN: usize = 8;
/// The maximum number of containers of a manifest that are shown.
const CONTAINERS_MAX: usize = 50;

/// The arguments of `bivouac inspect`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac inspect bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007
  bivouac inspect --summary bivouac           a few lines per checkpoint, whatever its number of ranks
  bivouac inspect --rank 3 bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007
  bivouac inspect c000000.bvc manifest        single files, even outside their folder
  bivouac inspect /dev/shm/bivouac-51b3a0c4-0f1e2d3c-g000002
  bivouac inspect --json r000002.bvs | jq '.containers[].shards[].regions[] | [.name, .shape]'

Heads and checksums are checked, but bodies are not read; `bivouac verify` reads them. The agreement is a hash of what
all ranks agreed on. It is the same in all shards of a checkpoint.

OVER RANKS is shown if the program has said how its regions are spread over the ranks (Session::decompose). Its
entries are: array 0 or list 0 (the rank's part of the array or list that is listed as 0); 100 rows (rows that other
ranks may receive); shared (the same on all ranks); per rank, followed by what happens to the region on a different
number of ranks; its rank's own.

Exit status: 0 done; 1 something is damaged; 2 wrong usage, or something cannot be read; 3 nothing found.")]
pub struct Args {
    /// Directories, container files, manifests or memory segments [default: the configured global directory]
    paths: Vec<PathBuf>,
    /// Show only each checkpoint's name, version, number of ranks, and regions with their total sizes
    #[arg(long, conflicts_with = "rank")]
    summary: bool,
    /// Show only the shard of this rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `inspect --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    checkpoints: Vec<CheckpointView>,
    /// Container files that the user named directly.
    containers: Vec<ContainerView>,
    /// Manifests that the user named directly.
    manifests: Vec<ManifestView>,
    segments: Vec<SegmentView>,
    /// With `--summary`, this replaces the fields above.
    #[serde(skip_serializing_if = "Option::is_none")]
    summaries: Option<Vec<Summary>>,
    problems: Problems,
}

/// A checkpoint folder with all its files.
#[derive(Serialize)]
struct CheckpointView {
    tier: &'static str,
    path: String,
    state: State,
    why: Option<String>,
    manifest: Option<ManifestView>,
    containers: Vec<ContainerView>,
    /// Files and folders that do not belong here.
    strangers: Vec<String>,
}

/// The checkpoint that a run restored last, and which operation of that run restored it.
#[derive(Serialize)]
struct OriginView {
    generation: u64,
    version: u64,
    operation: u64,
    restart: u64,
}

/// A manifest.
#[derive(Serialize)]
struct ManifestView {
    path: String,
    #[serde(flatten)]
    key: KeyView,
    /// The run's random identity.
    incarnation: String,
    agreement: String,
    group_size: u32,
    origin: Option<OriginView>,
    level: &'static str,
    containers: Vec<ManifestEntry>,
}

/// A container as the manifest records it.
#[derive(Serialize)]
struct ManifestEntry {
    file: String,
    bytes: u64,
    ranks: Vec<u32>,
}

/// A container file.
#[derive(Serialize)]
struct ContainerView {
    path: String,
    shards: Vec<ShardView>,
    /// What is wrong with it.
    why: Option<String>,
    /// How bad that is.
    #[serde(skip)]
    ending: Ending,
}

/// The head of a shard, packed shard or parity part.
#[derive(Serialize)]
struct ShardView {
    /// `shard`, `packed` if it refers to others, or `parity`: what the rank keeps for its redundancy set.
    content: &'static str,
    #[serde(flatten)]
    key: KeyView,
    incarnation: String,
    agreement: String,
    rank: u32,
    group_size: u32,
    origin: Option<OriginView>,
    block_size: u32,
    blocks: u64,
    /// Length of header, region table and block index, with the zeros up to the first body.
    head_bytes: u64,
    bytes: u64,
    regions: Vec<RegionView>,
    /// Nothing except the program's declarations kept later writes out of it.
    unaudited: bool,
    /// What a packed shard stands for; the shard's own regions are those of the packing.
    packed: Option<PackedView>,
    /// How the regions are spread over the ranks, if the program has said so.
    dealt: Option<DealtView>,
}

/// The shard that a packed one stands for.
#[derive(Serialize)]
struct PackedView {
    /// Bytes of the whole shard.
    bytes: u64,
    /// Bytes of its bodies that the packed shard stores itself.
    own_bytes: u64,
    /// The number of bytes that these take in the file: fewer if they are compressed.
    stored_bytes: u64,
    /// Bytes of its bodies that equal bytes which it stores elsewhere.
    same_bytes: u64,
    /// The number of ranges.
    extents: usize,
    /// The checkpoints to which it refers, and how many bytes each of them stores for it.
    sources: Vec<SourceView>,
    regions: Vec<RegionView>,
}

/// A checkpoint that a packed shard refers to.
#[derive(Serialize)]
struct SourceView {
    /// Its folder.
    folder: String,
    bytes: u64,
}

/// A region.
#[derive(Serialize)]
struct RegionView {
    name: String,
    /// `array` or `value`.
    kind: &'static str,
    /// Element type.
    element: String,
    shape: Vec<u64>,
    bytes: u64,
    /// Start of the body from the start of the shard.
    offset: u64,
    blocks: u64,
}

/// A memory segment.
#[derive(Serialize)]
struct SegmentView {
    path: String,
    alive: bool,
    /// Hash of the job's key.
    job_hash: String,
    /// Hash of the group's name.
    group_hash: String,
    generation: u64,
    incarnation: String,
    budget_bytes: u64,
    memory_bytes: u64,
    node_ranks: u32,
    group_size: u32,
    extent_bytes: u64,
    extents: u64,
    slots: Vec<Slot>,
    /// Heads of all sealed slots that are sound.
    shards: Vec<ShardView>,
}

/// Runs `bivouac inspect`.
pub fn run(args: &Args) -> Ending {
    let mut document = Document {
        schema: SCHEMA,
        command: "inspect",
        checkpoints: Vec::new(),
        containers: Vec::new(),
        manifests: Vec::new(),
        segments: Vec::new(),
        summaries: None,
        problems: Problems::default(),
    };
    let paths = named_or_global(&args.paths).unwrap_or_else(|problem| {
        document.problems.add(problem);
        Vec::new()
    });
    for path in &paths {
        if let Err(problem) = add(&mut document, path, args.rank.map(Rank)) {
            document.problems.add(problem);
        }
    }
    let shown = document.ending();
    document.problems.note(shown);
    if args.summary {
        document.summarise();
    }
    document.problems.complain();
    show(args.json, &document, text);
    document.problems.ending()
}

impl Document {
    /// Replaces the contents of the document by summaries.
    fn summarise(&mut self) {
        self.summaries = Some(summary::summaries(self));
        self.checkpoints.clear();
        self.containers.clear();
        self.segments.clear();
    }

    /// Adds a container that the user named directly.
    fn add_container(&mut self, path: &Path, rank: Option<Rank>) -> Result<(), Problem> {
        let mut view = container_view(&tier_of(path), path);
        let here = view.keep(rank);
        match view.is_of(rank) {
            false => Err(no_rank(path, rank, here)),
            true => {
                self.containers.push(view);
                Ok(())
            }
        }
    }
    /// How the command ends because of what the document shows.
    fn ending(&self) -> Ending {
        let inside = self.checkpoints.iter().flat_map(|checkpoint| &checkpoint.containers);
        let containers = self.containers.iter().chain(inside).map(|container| container.ending);
        let slots_dealt = self.segments.iter().flat_map(|segment| &segment.shards).map(dealt_ending);
        let is_damaged = |checkpoint: &CheckpointView| checkpoint.state == State::Damaged;
        let mut slots = self.segments.iter().flat_map(|segment| &segment.slots);
        let has_damage = self.checkpoints.iter().any(is_damaged) || slots.any(Slot::is_damaged);
        containers.chain(slots_dealt).chain(has_damage.then_some(Ending::Damage)).max().unwrap_or_default()
    }
}

impl ContainerView {
    /// Keeps only the shards of a rank, if one is given. Returns the ranks whose shards the container had.
    fn keep(&mut self, rank: Option<Rank>) -> BTreeSet<u32> {
        let here = ranks_of(&self.shards);
        keep_rank(&mut self.shards, rank);
        here
    }

    /// Does the container have shards of that rank, or might it have some, because it is damaged?
    fn is_of(&self, rank: Option<Rank>) -> bool {
        rank.is_none() || !self.shards.is_empty() || self.why.is_some()
    }
}

fn ranks_of(shards: &[ShardView]) -> BTreeSet<u32> {
    shards.iter().filter(|shard| is_shard(shard)).map(|shard| shard.rank).collect()
}

fn is_shard(view: &ShardView) -> bool {
    view.content != memory::content(Content::Parity)
}

fn keep_rank(shards: &mut Vec<ShardView>, rank: Option<Rank>) {
    if let Some(Rank(rank)) = rank {
        shards.retain(|shard| shard.rank == rank && is_shard(shard));
    }
}

fn no_rank(path: &Path, rank: Option<Rank>, here: BTreeSet<u32>) -> Problem {
    let rank = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    let here = match here.is_empty() {
        true => "it has no readable shard".to_owned(),
        false => format!("it has those of ranks {}", output::ranks(here)),
    };
    Problem::nothing(format!("{} has no shard{rank}: {here}", path.display()))
}

fn add(document: &mut Document, path: &Path, rank: Option<Rank>) -> Result<(), Problem> {
    match Target::of(path)? {
        Target::Scope(scope) => {
            let (found, problems) = survey(&scope)?;
            if found.is_empty() && problems.is_empty() {
                return Err(nothing_in(path));
            }
            for found in &found {
                match checkpoint_view(found, rank) {
                    Ok(view) => document.checkpoints.push(view),
                    Err(problem) => document.problems.add(problem),
                }
            }
            document.problems.extend(problems);
        }
        Target::Container(path) => document.add_container(&path, rank)?,
        Target::Manifest(path) => document.manifests.push(read_manifest(&path)?),
        Target::Segment(folder, name) => document.segments.push(segment_view(&folder, &name, rank)?),
        Target::Segments(folder) => {
            for name in memory::names(&folder)? {
                match segment_view(&folder, &name, rank) {
                    Ok(view) => document.segments.push(view),
                    Err(problem) => document.problems.add(problem),
                }
            }
        }
    }
    Ok(())
}

fn checkpoint_view(found: &Checkpoint, rank: Option<Rank>) -> Result<CheckpointView, Problem> {
    // The manifest says which file has a rank; then the other files need not be opened.
    let named = rank.and_then(|rank| found.manifest.as_ref()?.container_of(rank)).map(|info| info.file.as_str());
    let is_meant = |file: &&FileFound| {
        (file.is_container() || file.is_part() && rank.is_none()) && named.is_none_or(|named| named == file.name)
    };
    let files = found.files.iter().filter(is_meant);
    let mut containers: Vec<ContainerView> =
        files.map(|file| container_view(&found.tier, &found.path.join(&file.name))).collect();
    let here: BTreeSet<u32> = containers.iter_mut().flat_map(|container| container.keep(rank)).collect();
    containers.retain(|container| container.is_of(rank));
    if rank.is_some() && containers.is_empty() {
        return Err(no_rank(&found.path, rank, here));
    }
    let manifest_path = found.path.join(bivouac_core::format::manifest::FILE_NAME);
    let mut manifest = found.manifest.as_ref().map(|manifest| manifest_view(&manifest_path, manifest));
    if let (Some(manifest), Some(Rank(rank))) = (&mut manifest, rank) {
        manifest.containers.retain(|container| container.ranks.contains(&rank));
    }
    Ok(CheckpointView {
        tier: found.tier.kind().name(),
        path: found.path.display().to_string(),
        state: found.state.clone(),
        why: found.why.clone(),
        manifest,
        containers,
        strangers: found.files.iter().filter(|file| !is_known(file)).map(|file| file.name.clone()).collect(),
    })
}

fn container_view(tier: &Arc<dyn Tier>, path: &Path) -> ContainerView {
    let shards = survey::heads(tier, path);
    let shards = shards.and_then(|shards| shards.iter().map(|shard| file_view(&**tier, shard)).collect());
    let (shards, why, ending): (Vec<ShardView>, _, _) = match shards {
        Ok(shards) => (shards, None, Ending::Good),
        Err(error) => (Vec::new(), Some(survey::without_path(&error)), ending::of_tier(&error)),
    };
    let ending = shards.iter().map(dealt_ending).fold(ending, Ending::max);
    ContainerView { path: path.display().to_string(), shards, why, ending }
}

fn dealt_ending(shard: &ShardView) -> Ending {
    shard.dealt.as_ref().map_or(Ending::Good, |dealt| dealt.ending)
}

fn file_view(tier: &dyn Tier, shard: &FileShard) -> Result<ShardView, TierError> {
    let mut view = shard_view(shard.head());
    match shard.head().header.content {
        Content::Parity => {}
        Content::Shard => view.dealt = dealt_view(shard.head(), body::of_file(shard)),
        Content::Packed => {
            let packing = packing_of(shard)?;
            view.packed = Some(packed_view(&packing));
            if packing.outline.head.region(DECOMPOSITION).is_some() {
                view.dealt = match join(tier, shard.clone()) {
                    Ok(joined) => dealt_view(joined.head(), body::of_file(&joined)),
                    // The data that the shard refers to may be elsewhere; then this file is not damaged.
                    Err(error) => {
                        let problem = Problem { ending: Ending::Good, text: survey::without_path(&error) };
                        Some(DealtView::of(Err(problem), &[]))
                    }
                };
            }
        }
    }
    Ok(view)
}

fn dealt_view(head: &Head, read: impl FnMut(u64, &mut [u8]) -> Result<(), Problem>) -> Option<DealtView> {
    let record = body::decomposition_record(head, read).transpose()?;
    Some(DealtView::of(record, &head.meta.regions))
}

fn packed_view(packing: &Packing) -> PackedView {
    let mut bytes = vec![0; packing.outline.sources.len()];
    let mut same_bytes = 0;
    for extent in &packing.extents {
        match extent.stored {
            Stored::Own => {}
            Stored::In { source, .. } => bytes[source as usize] += extent.length,
            Stored::Same { .. } => same_bytes += extent.length,
        }
    }
    let sources = packing.outline.sources.iter().zip(bytes);
    PackedView {
        bytes: packing.outline.head.header.total_len,
        own_bytes: packing.own_bytes(),
        stored_bytes: packing.stored_bytes(),
        same_bytes,
        extents: packing.extents.len(),
        sources: sources.map(|(source, bytes)| SourceView { folder: source.key.folder(), bytes }).collect(),
        regions: shard_view(&packing.outline.head).regions,
    }
}

fn read_manifest(path: &Path) -> Result<ManifestView, Problem> {
    let manifest = crate::verify::decode_manifest(path)
        .map_err(|finding| Problem { ending: finding.kind.ending(), text: finding.message })?;
    Ok(manifest_view(path, &manifest))
}

fn origin(origin: Option<Origin>) -> Option<OriginView> {
    origin.map(|Origin { generation, version, operation, restart }| OriginView {
        generation: generation.0,
        version,
        operation,
        restart,
    })
}

fn manifest_view(path: &Path, manifest: &Manifest) -> ManifestView {
    ManifestView {
        path: path.display().to_string(),
        key: KeyView::new([&manifest.job, &manifest.group, &manifest.name], &manifest.key),
        incarnation: manifest.key.incarnation.to_string(),
        agreement: format!("{:016x}", manifest.agreement),
        group_size: manifest.group_size,
        origin: origin(manifest.origin),
        level: manifest.level.name(),
        containers: manifest
            .containers
            .iter()
            .map(|container| ManifestEntry {
                file: container.file.clone(),
                bytes: container.bytes,
                ranks: container.ranks.iter().map(|rank| rank.0).collect(),
            })
            .collect(),
    }
}

fn shard_view(head: &Head) -> ShardView {
    let header = &head.header;
    let block = u64::from(header.block_size);
    let region = |region: &bivouac_core::format::Region| RegionView {
        name: region.name.clone(),
        kind: if region.kind == RegionKind::Value { "value" } else { "array" },
        element: region.element.to_string(),
        shape: region.shape.clone(),
        bytes: region.bytes,
        offset: header.body_offset + region.offset,
        blocks: region.blocks(block),
    };
    ShardView {
        content: memory::content(header.content),
        key: KeyView::new([&head.meta.job, &head.meta.group, &head.meta.name], &header.key),
        incarnation: header.key.incarnation.to_string(),
        agreement: format!("{:016x}", header.agreement),
        rank: header.rank.0,
        group_size: header.group_size,
        origin: origin(header.origin),
        block_size: header.block_size,
        blocks: header.block_count,
        head_bytes: header.body_offset,
        bytes: header.total_len,
        regions: head.meta.regions.iter().map(region).collect(),
        unaudited: header.is_unaudited,
        packed: None,
        dealt: None,
    }
}

fn slot_view(stock: &Stock, slot: &OldSlot) -> Option<ShardView> {
    let (head, bytes) = (stock.head(slot).ok()?, stock.segment.bytes(slot).ok()?);
    let mut view = shard_view(&head);
    if head.header.content == Content::Shard {
        view.dealt = dealt_view(&head, body::of_memory(bytes));
    }
    Some(view)
}

fn segment_view(folder: &Path, name: &str, rank: Option<Rank>) -> Result<SegmentView, Problem> {
    let stock = Stock::open(folder, name)?;
    let header = stock.segment.header();
    let sealed = stock.segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
    let mut shards: Vec<ShardView> = sealed.filter_map(|slot| slot_view(&stock, slot)).collect();
    let here = ranks_of(&shards);
    keep_rank(&mut shards, rank);
    if rank.is_some() && shards.is_empty() {
        return Err(no_rank(stock.segment.path(), rank, here));
    }
    let is_meant = |slot: &Slot| rank.is_none_or(|Rank(rank)| slot.rank == Some(rank));
    Ok(SegmentView {
        path: stock.segment.path().display().to_string(),
        alive: stock.is_alive,
        job_hash: format!("{:016x}", header.job),
        group_hash: format!("{:016x}", header.group),
        generation: header.generation.0,
        incarnation: header.incarnation.to_string(),
        budget_bytes: header.budget,
        memory_bytes: stock.memory_bytes,
        node_ranks: header.node_ranks,
        group_size: header.group_size,
        extent_bytes: header.extent_size,
        extents: header.extent_count,
        shards,
        slots: stock.slots().into_iter().filter(is_meant).collect(),
    })
}

// ------------------------------------------------------------------------------------------- for people

fn text(document: &Document) -> String {
    let mut parts: Vec<String> = document.checkpoints.iter().map(checkpoint_text).collect();
    parts.extend(document.containers.iter().map(container_text));
    parts.extend(document.manifests.iter().map(manifest_text));
    parts.extend(document.segments.iter().map(segment_text));
    parts.extend(document.summaries.iter().flatten().map(summary::text));
    parts.join("\n")
}

/// Writing to a `String` cannot fail.
macro_rules! line {
    ($text:expr, $($part:tt)*) => { writeln!($text, $($part)*).expect("a String takes everything") };
}

fn checkpoint_text(view: &CheckpointView) -> String {
    let mut text = String::new();
    let why = view.why.as_deref().map_or(String::new(), |why| format!(" ({})", plain(why)));
    line!(text, "checkpoint {}: {} tier, {}{why}", plain(&view.path), view.tier, view.state.name());
    for stranger in &view.strangers {
        line!(text, "  does not belong here: {}", plain(stranger));
    }
    if let Some(manifest) = &view.manifest {
        text += &manifest_text(manifest);
    }
    view.containers.iter().for_each(|container| text += &container_text(container));
    text
}

fn origin_text(origin: &Option<OriginView>) -> String {
    match origin {
        None => "its run had restored nothing".into(),
        Some(origin) => {
            format!(
                "its run had restored version {} of generation {} (operation {}) in its own operation {}",
                origin.version, origin.generation, origin.operation, origin.restart
            )
        }
    }
}

fn manifest_text(view: &ManifestView) -> String {
    let mut text = String::new();
    line!(text, "manifest {}", plain(&view.path));
    line!(text, "  of        {}", view.key.series());
    line!(text, "  {}, incarnation {}", view.key.all_words(), view.incarnation);
    line!(text, "  commits   level {}, {} ranks, agreement {}", view.level, view.group_size, view.agreement);
    line!(text, "  origin    {}", origin_text(&view.origin));
    let container = |container: &ManifestEntry| {
        let ranks = output::ranks(container.ranks.iter().copied());
        format!("  container {}: ranks {ranks}, {}", plain(&container.file), output::bytes(container.bytes))
    };
    let shown =
        most(view.containers.iter().map(container), CONTAINERS_MAX, "  and", "more containers (--json shows all)");
    shown.iter().for_each(|shown| line!(text, "{shown}"));
    text
}

fn container_text(view: &ContainerView) -> String {
    let mut text = String::new();
    match &view.why {
        Some(why) => line!(text, "container {}: {}", plain(&view.path), plain(why)),
        None => line!(text, "container {}: {}", plain(&view.path), counts(&view.shards)),
    }
    view.shards.iter().for_each(|shard| text += &shard_text(shard));
    text
}

fn counts(shards: &[ShardView]) -> String {
    let parts = shards.iter().filter(|shard| shard.content == "parity").count();
    match (shards.len() - parts, parts) {
        (shards, 0) => format!("{shards} shards"),
        (0, parts) => format!("{parts} parity parts"),
        (shards, parts) => format!("{shards} shards, {parts} parity parts"),
    }
}

fn shard_text(view: &ShardView) -> String {
    let mut text = String::new();
    let what = match view.content {
        "parity" => "parity part",
        "packed" => "packed shard",
        _ => "shard",
    };
    line!(text, "  {what} of rank {} of {}, {}", view.rank, view.group_size, output::bytes(view.bytes));
    line!(text, "    of      {}", view.key.series());
    line!(text, "    {}, incarnation {}", view.key.all_words(), view.incarnation);
    line!(text, "    agreed  {}; {}", view.agreement, origin_text(&view.origin));
    if view.unaudited {
        line!(text, "    UNAUDITED: taken from live memory; it may contain a write that the program did not declare");
    }
    line!(
        text,
        "    blocks  {} of {}; head {}",
        view.blocks,
        output::bytes(u64::from(view.block_size)),
        output::bytes(view.head_bytes)
    );
    if let Some(packed) = &view.packed {
        let sources =
            packed.sources.iter().map(|source| format!("{} of {}", output::bytes(source.bytes), source.folder));
        let times = packed.bytes as f64 / view.bytes.max(1) as f64;
        let (own, whole) = (output::bytes(packed.own_bytes), output::bytes(packed.bytes));
        line!(
            text,
            "    stores  {own} of {whole}, {} of it twice; {times:.1} times smaller",
            output::bytes(packed.same_bytes)
        );
        if packed.stored_bytes < packed.own_bytes {
            line!(text, "    in      {}, compressed", output::bytes(packed.stored_bytes));
        }
        line!(text, "    takes   {}; {} ranges", list(sources, SOURCES_SHOWN, ", "), packed.extents);
    }
    if let Some(dealt) = &view.dealt {
        dealt.lines(view.group_size).iter().for_each(|[label, said]| line!(text, "    {label:<7} {}", plain(said)));
    }
    text + &regions_text(view)
}

/// The table of a shard's regions.
fn regions_text(view: &ShardView) -> String {
    let mut text = String::new();
    let shown = view.packed.as_ref().map_or(&view.regions, |packed| &packed.regions);
    let shape = |region: &RegionView| list(region.shape.iter().map(u64::to_string), DIMENSIONS_MAX, " x ");
    let cells = |region: &RegionView| {
        let mut cells = vec![
            short(&region.name),
            region.kind.into(),
            region.element.clone(),
            shape(region),
            region.bytes.to_string(),
            region.blocks.to_string(),
            region.offset.to_string(),
        ];
        cells.extend(view.dealt.as_ref().map(|dealt| dealt.cell(&region.name)));
        cells
    };
    let rows: Vec<Vec<String>> = shown.iter().take(REGIONS_MAX).map(cells).collect();
    let mut heads = vec!["REGION", "KIND", "TYPE", "SHAPE", "BYTES", "BLOCKS", "OFFSET"];
    heads.extend(view.dealt.is_some().then_some("OVER RANKS"));
    let regions = table(&heads, &[4, 5, 6], &rows);
    regions.lines().for_each(|row| line!(text, "    {row}"));
    if shown.len() > REGIONS_MAX {
        line!(text, "    and {} more regions (--json shows all)", shown.len() - REGIONS_MAX);
    }
    text
}

fn segment_text(view: &SegmentView) -> String {
    let mut text = String::new();
    line!(text, "memory segment {}", plain(&view.path));
    line!(text, "  run      generation {}, incarnation {}", view.generation, view.incarnation);
    line!(text, "  alive    {}", if view.alive { "yes" } else { "no" });
    line!(text, "  hashes   job {}, group {}", view.job_hash, view.group_hash);
    line!(text, "  ranks    {} on this node, {} in the group", view.node_ranks, view.group_size);
    line!(
        text,
        "  memory   {} of {}, in {} extents of {}",
        output::bytes(view.memory_bytes),
        output::bytes(view.budget_bytes),
        view.extents,
        output::bytes(view.extent_bytes)
    );
    for slot in &view.slots {
        let why = slot.why.as_deref().map_or(String::new(), |why| format!(" ({})", plain(why)));
        line!(text, "  slot     {}.{}: {}{why}, {}", slot.node_rank, slot.index, slot.state, output::bytes(slot.bytes));
    }
    view.shards.iter().for_each(|shard| text += &shard_text(shard));
    text
}
