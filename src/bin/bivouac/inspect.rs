//! `bivouac inspect`: what a checkpoint, container, manifest or segment holds, without reading bodies.
#![forbid(unsafe_code)]

use crate::Ending;
use crate::memory::{self, Slot, Stock};
use crate::output::{self, SCHEMA, complain, plain, print, print_json, table};
use crate::survey::{self, Checkpoint, State, is_known, survey};
use crate::target::{Target, tier_of};
use bivouac::base::Origin;
use bivouac::format::shard::Head;
use bivouac::format::{Manifest, RegionKind};
use bivouac::segment::SlotState;
use bivouac::tier::directory::DirectoryTier;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What `inspect` is asked.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac inspect bivouac/heat2d-0c7a11f2/world/heat/g000001-v0000000070-o000007
  bivouac inspect c000000.bvc manifest        single files, also away from their folder
  bivouac inspect /dev/shm/bivouac-51b3a0c4-0f1e2d3c-g000002
  bivouac inspect --json r000002.bvs | jq '.containers[].shards[].regions[] | [.name, .shape]'

Heads and checksums are checked, bodies are not read: `bivouac verify` does that. The agreement is a hash of what all ranks
agreed on; it is equal in all shards of a checkpoint.")]
pub struct Args {
    /// Directories, container files, manifests or memory segments
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// One JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// The document of `inspect --json`.
#[derive(Serialize)]
struct Document {
    schema: u32,
    command: &'static str,
    checkpoints: Vec<CheckpointView>,
    /// Container files that were named themselves.
    containers: Vec<ContainerView>,
    /// Manifests that were named themselves.
    manifests: Vec<ManifestView>,
    segments: Vec<SegmentView>,
    problems: Vec<String>,
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

/// The checkpoint that a run had restored last, and with which of its operations.
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
    job: String,
    group: String,
    name: String,
    generation: u64,
    version: u64,
    operation: u64,
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
}

/// The head of a shard or parity part.
#[derive(Serialize)]
struct ShardView {
    /// `shard`, or `parity`: what the rank keeps for its redundancy set.
    content: &'static str,
    job: String,
    group: String,
    name: String,
    generation: u64,
    version: u64,
    operation: u64,
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

/// Shows.
pub fn run(args: &Args) -> Ending {
    let mut document = Document {
        schema: SCHEMA,
        command: "inspect",
        checkpoints: Vec::new(),
        containers: Vec::new(),
        manifests: Vec::new(),
        segments: Vec::new(),
        problems: Vec::new(),
    };
    for path in &args.paths {
        if let Err(problem) = add(&mut document, path) {
            document.problems.push(problem);
        }
    }
    document.problems.iter().for_each(|problem| complain(problem));
    if args.json {
        print_json(&document);
    } else {
        print(&text(&document));
    }
    let is_sound = |container: &ContainerView| container.why.is_none();
    let is_good = document.problems.is_empty()
        && document.containers.iter().all(is_sound)
        && document.checkpoints.iter().all(|c| c.state != State::Damaged && c.containers.iter().all(is_sound));
    if is_good { Ending::Good } else { Ending::Trouble }
}

fn add(document: &mut Document, path: &Path) -> Result<(), String> {
    match Target::of(path).map_err(|error| error.to_string())? {
        Target::Scope(scope) => {
            let (found, problems) = survey(&scope).map_err(|error| error.to_string())?;
            document.checkpoints.extend(found.iter().map(checkpoint_view));
            document.problems.extend(problems);
        }
        Target::Container(path) => document.containers.push(container_view(&tier_of(&path), &path)),
        Target::Manifest(path) => document.manifests.push(read_manifest(&path)?),
        Target::Segment(folder, name) => document.segments.push(segment_view(&folder, &name)?),
        Target::Segments(folder) => {
            for name in memory::names(&folder).map_err(|error| error.to_string())? {
                match segment_view(&folder, &name) {
                    Ok(view) => document.segments.push(view),
                    Err(problem) => document.problems.push(problem),
                }
            }
        }
    }
    Ok(())
}

fn checkpoint_view(found: &Checkpoint) -> CheckpointView {
    let containers = found.files.iter().filter(|file| file.is_container() || file.is_part());
    let manifest_path = found.path.join(bivouac::format::manifest::FILE_NAME);
    CheckpointView {
        tier: found.tier.kind().name(),
        path: found.path.display().to_string(),
        state: found.state.clone(),
        why: found.why.clone(),
        manifest: found.manifest.as_ref().map(|manifest| manifest_view(&manifest_path, manifest)),
        containers: containers.map(|file| container_view(&found.tier, &found.path.join(&file.name))).collect(),
        strangers: found.files.iter().filter(|file| !is_known(file)).map(|file| file.name.clone()).collect(),
    }
}

fn container_view(tier: &DirectoryTier, path: &Path) -> ContainerView {
    let (shards, why) = match survey::heads(tier, path) {
        Ok(shards) => (shards.iter().map(|shard| shard_view(shard.head())).collect(), None),
        Err(error) => (Vec::new(), Some(survey::without_path(&error))),
    };
    ContainerView { path: path.display().to_string(), shards, why }
}

fn read_manifest(path: &Path) -> Result<ManifestView, String> {
    let manifest = crate::verify::decode_manifest(path).map_err(|finding| finding.message)?;
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
        job: manifest.job.clone(),
        group: manifest.group.clone(),
        name: manifest.name.clone(),
        generation: manifest.key.generation.0,
        version: manifest.key.version,
        operation: manifest.key.operation,
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
    let region = |region: &bivouac::format::Region| RegionView {
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
        job: head.meta.job.clone(),
        group: head.meta.group.clone(),
        name: head.meta.name.clone(),
        generation: header.key.generation.0,
        version: header.key.version,
        operation: header.key.operation,
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
    }
}

fn segment_view(folder: &Path, name: &str) -> Result<SegmentView, String> {
    let stock = Stock::open(folder, name).map_err(|error| error.to_string())?;
    let header = stock.segment.header();
    let sealed = stock.segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
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
        shards: sealed.filter_map(|slot| stock.head(slot).ok()).map(|head| shard_view(&head)).collect(),
        slots: stock.slots(),
    })
}

// ------------------------------------------------------------------------------------------- for people

fn text(document: &Document) -> String {
    let mut parts: Vec<String> = document.checkpoints.iter().map(checkpoint_text).collect();
    parts.extend(document.containers.iter().map(container_text));
    parts.extend(document.manifests.iter().map(manifest_text));
    parts.extend(document.segments.iter().map(segment_text));
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
                "its run had restored version {} of generation {} (operation {}) with its operation {}",
                origin.version, origin.generation, origin.operation, origin.restart
            )
        }
    }
}

fn manifest_text(view: &ManifestView) -> String {
    let mut text = String::new();
    let ManifestView { job, group, name, generation, version, operation, .. } = view;
    line!(text, "manifest {}", plain(&view.path));
    line!(text, "  of        {}/{}/{}", plain(job), plain(group), plain(name));
    line!(
        text,
        "  version   {version} of generation {generation}, operation {operation}, incarnation {}",
        view.incarnation
    );
    line!(text, "  commits   level {}, {} ranks, agreement {}", view.level, view.group_size, view.agreement);
    line!(text, "  origin    {}", origin_text(&view.origin));
    for container in &view.containers {
        let ranks = output::ranks(container.ranks.iter().copied());
        line!(text, "  container {}: ranks {ranks}, {}", plain(&container.file), output::bytes(container.bytes));
    }
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
    let ShardView { job, group, name, generation, version, operation, .. } = view;
    let what = if view.content == "parity" { "parity part" } else { "shard" };
    line!(text, "  {what} of rank {} of {}, {}", view.rank, view.group_size, output::bytes(view.bytes));
    line!(text, "    of      {}/{}/{}", plain(job), plain(group), plain(name));
    line!(
        text,
        "    version {version} of generation {generation}, operation {operation}, incarnation {}",
        view.incarnation
    );
    line!(text, "    agreed  {}; {}", view.agreement, origin_text(&view.origin));
    line!(
        text,
        "    blocks  {} of {}; head {}",
        view.blocks,
        output::bytes(u64::from(view.block_size)),
        output::bytes(view.head_bytes)
    );
    let shape = |region: &RegionView| region.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
    let cells = |region: &RegionView| {
        vec![
            plain(&region.name),
            region.kind.into(),
            region.element.clone(),
            shape(region),
            region.bytes.to_string(),
            region.blocks.to_string(),
            region.offset.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = view.regions.iter().map(cells).collect();
    let heads = ["REGION", "KIND", "TYPE", "SHAPE", "BYTES", "BLOCKS", "OFFSET"];
    for row in table(&heads, &[4, 5, 6], &rows).lines() {
        line!(text, "    {row}");
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
