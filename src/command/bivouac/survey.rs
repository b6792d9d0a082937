//! Takes stock of the checkpoints of a directory tier, without reading their bodies.
//!
//! The manifest says what is committed. The lengths of files are compared with it, so that a missing or truncated
//! container is noticed at once. A folder without a manifest is incomplete or, if all shards exist, only not recorded
//! yet: the next restart writes the manifest (roll forward).
#![forbid(unsafe_code)]

use crate::output::list;
use crate::target::{Scope, TargetError, failed};
use bivouac_core::base::{CheckpointKey, Generation};
use bivouac_core::catalog::Candidate;
use bivouac_core::format::{Content, Manifest, manifest};
use bivouac_core::recovery::discover::candidate_of_manifest;
use bivouac_core::tier::names::{Series, is_component, is_node_file, is_parity_file, is_rank_file, parse_rank_file};
use bivouac_core::tier::source::FileShard;
use bivouac_core::tier::storage::{Entry, Stat};
use bivouac_core::tier::{Tier, TierError, sources_in};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// The maximum number of reasons that are given why a checkpoint is not committed: each of a thousand containers may be missing.
const REASONS_MAX: usize = 8;

/// The state of a checkpoint folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There is a manifest, and all files that it names exist in their full length.
    Committed,
    /// All shards exist, but no manifest; the next restart writes the manifest.
    Restorable,
    /// It is being written, or a crash left it behind.
    Incomplete,
    /// Files of other checkpoints refer to it. Something to which it refers itself is gone, so that it can no longer be restored.
    Held,
    /// There is a manifest, but files differ from what it says; or the manifest is unreadable.
    Damaged,
}

impl State {
    /// The word in tables.
    pub fn name(&self) -> &'static str {
        match self {
            State::Committed => "committed",
            State::Restorable => "restorable",
            State::Incomplete => "incomplete",
            State::Held => "held",
            State::Damaged => "damaged",
        }
    }
}

/// One file of a checkpoint folder.
pub struct FileFound {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// It is a folder, or something else that is not a file.
    pub is_odd: bool,
}

impl FileFound {
    /// Does its name say that it is a whole container?
    pub fn is_container(&self) -> bool {
        !self.is_odd && (is_rank_file(&self.name) || is_node_file(&self.name))
    }

    /// Does its name say that it is a parity part? Parity parts belong to no manifest and are nobody's shard.
    pub fn is_part(&self) -> bool {
        !self.is_odd && is_parity_file(&self.name)
    }
}

/// A checkpoint folder.
pub struct Checkpoint {
    /// The tier on which it is.
    pub tier: Arc<dyn Tier>,
    /// Job, group, name.
    pub series: Series,
    /// The folder's name.
    pub folder: String,
    /// Its path.
    pub path: PathBuf,
    /// Generation, version and operation, according to the folder's name.
    pub order: (Generation, u64, u64),
    /// The state of the folder.
    pub state: State,
    /// Why it is in this state, unless it is committed.
    pub why: Option<String>,
    /// The manifest, if it can be read.
    pub manifest: Option<Manifest>,
    /// What a restart would see in it, if it is committed, or lacks only its manifest, which the restart writes.
    pub candidate: Option<Candidate>,
    /// Ranks whose shards are here, ascending.
    pub ranks: Vec<u32>,
    /// Ranks in the group, if that is known.
    pub group_size: Option<u32>,
    /// All files.
    pub files: Vec<FileFound>,
    /// The newest change of a file.
    pub modified: Option<SystemTime>,
}

impl Checkpoint {
    /// Parity parts that are kept here for redundancy sets.
    pub fn parts(&self) -> usize {
        self.files.iter().filter(|file| file.is_part()).count()
    }

    /// Files of ranks that the local manifest does not name: whole shards that are kept here for ranks of other nodes.
    pub fn copies(&self) -> usize {
        let Some(manifest) = self.manifest.as_ref().filter(|_| !self.tier.kind().spec().is_shared) else { return 0 };
        let is_copy = |file: &&FileFound| match parse_rank_file(&file.name) {
            Some((rank, Content::Shard)) => !file.is_odd && manifest.container_of(rank).is_none(),
            _ => false,
        };
        self.files.iter().filter(is_copy).count()
    }

    /// Its containers; those that the manifest names come first, because another copy of a rank's shard may be damaged.
    pub fn containers(&self) -> impl Iterator<Item = &FileFound> {
        let is_named = |file: &FileFound| {
            self.manifest.iter().flat_map(|manifest| &manifest.containers).any(|container| container.file == file.name)
        };
        let (named, others): (Vec<_>, Vec<_>) =
            self.files.iter().filter(|file| file.is_container()).partition(|file| is_named(file));
        named.into_iter().chain(others)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// All checkpoints of a scope, by job, group and name, the newest first; and what could not be examined.
pub fn survey(scope: &Scope) -> Result<(Vec<Checkpoint>, Vec<String>), TargetError> {
    let Scope { tier, parts } = scope;
    let part = |index: usize| parts.get(index).cloned();
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let root = tier.root().to_owned();
    for job in children(tier, root.clone(), part(0))? {
        for group in children(tier, root.join(&job), part(1))? {
            for name in children(tier, root.join(&job).join(&group), part(2))? {
                let series = Series { job: job.clone(), group: group.clone(), name };
                let folders = match part(3) {
                    Some(folder) => Ok(CheckpointKey::parse_folder(&folder).into_iter().collect()),
                    None => tier.folders(&series),
                };
                let first = found.len();
                match folders {
                    Ok(folders) => found.extend(folders.into_iter().filter_map(|order| {
                        look(tier, &series, order, part(3)).map_err(|error| problems.push(error.to_string())).ok()
                    })),
                    Err(error) => problems.push(error.to_string()),
                }
                found[first..].iter_mut().for_each(judge_sources);
            }
        }
    }
    Ok((found, problems))
}

/// The folders in `path` that can be a job, group or series; or just the one that was named.
fn children(tier: &Arc<dyn Tier>, path: PathBuf, named: Option<String>) -> Result<Vec<String>, TargetError> {
    if let Some(name) = named {
        return Ok(vec![name]);
    }
    let entries = tier.list(&path).map_err(failed("list", &path))?.into_iter();
    Ok(entries.filter(|entry| entry.is_dir && is_component(&entry.name)).map(|entry| entry.name).collect())
}

/// Takes stock of one folder.
fn look(
    tier: &Arc<dyn Tier>,
    series: &Series,
    order: (Generation, u64, u64),
    named: Option<String>,
) -> Result<Checkpoint, TargetError> {
    let (generation, version, operation) = order;
    let canonical = CheckpointKey { generation, version, operation, ..Default::default() }.folder();
    let folder = named.unwrap_or(canonical);
    let path = tier.series_path(series).join(&folder);
    let (files, modified) = list_files(tier, &path)?;
    let mut checkpoint = Checkpoint {
        tier: tier.clone(),
        series: series.clone(),
        path,
        order,
        state: State::Incomplete,
        why: None,
        manifest: None,
        candidate: None,
        ranks: Vec::new(),
        group_size: None,
        files,
        modified,
        folder,
    };
    match tier.read_manifest(series, &checkpoint.folder) {
        Ok(manifest) => judge_committed(&mut checkpoint, manifest),
        Err(error) if error.is_absent() => judge_uncommitted(&mut checkpoint),
        Err(error) => {
            judge_uncommitted(&mut checkpoint);
            checkpoint.candidate = None;
            checkpoint.state = State::Damaged;
            checkpoint.why = Some(without_path(&error));
        }
    }
    Ok(checkpoint)
}

fn list_files(
    tier: &Arc<dyn Tier>,
    path: &std::path::Path,
) -> Result<(Vec<FileFound>, Option<SystemTime>), TargetError> {
    let (mut files, mut newest) = (Vec::new(), None);
    for Entry { name, .. } in tier.list(path).map_err(failed("list", path))? {
        let Ok(Stat { bytes, modified, is_odd }) = tier.stat(&path.join(&name)) else { continue }; // Deleted since: a run may be at work here.
        newest = newest.max(Some(modified));
        files.push(FileFound { name, bytes, is_odd });
    }
    if files.is_empty() {
        newest = tier.stat(path).ok().map(|stat| stat.modified);
    }
    Ok((files, newest))
}

fn judge_committed(checkpoint: &mut Checkpoint, manifest: Manifest) {
    let mut wrong = Vec::new();
    for container in &manifest.containers {
        match checkpoint.files.iter().find(|file| file.name == container.file && !file.is_odd) {
            None => wrong.push(format!("{} is missing", container.file)),
            // The file is being made whole, or it was when that was interrupted.
            Some(file) if file.bytes != container.bytes && !is_made_whole(checkpoint, &manifest, file) => {
                wrong.push(format!("{} has {} bytes instead of {}", container.file, file.bytes, container.bytes));
            }
            Some(_) => checkpoint.ranks.extend(container.ranks.iter().map(|rank| rank.0)),
        }
    }
    checkpoint.ranks.sort_unstable();
    if checkpoint.tier.kind().spec().is_shared && !manifest.is_complete() {
        wrong.push("the manifest lacks some ranks".into());
    }
    checkpoint.group_size = Some(manifest.group_size);
    checkpoint.state = if wrong.is_empty() { State::Committed } else { State::Damaged };
    checkpoint.candidate = wrong.is_empty().then(|| candidate_of_manifest(&manifest));
    checkpoint.why = (!wrong.is_empty()).then(|| list(wrong.into_iter(), REASONS_MAX, "; "));
    checkpoint.manifest = Some(manifest);
}

/// Does a file now hold all of its shards, although the manifest still says that they refer to others?
fn is_made_whole(checkpoint: &Checkpoint, manifest: &Manifest, file: &FileFound) -> bool {
    let is_whole = |shard: &FileShard| {
        let header = &shard.head().header;
        header.content == Content::Shard && (header.key, header.agreement) == (manifest.key, manifest.agreement)
    };
    !manifest.sources.is_empty()
        && heads(&checkpoint.tier, &checkpoint.path.join(&file.name)).is_ok_and(|shards| shards.iter().all(is_whole))
}

/// Checks whether the checkpoints exist to which the files of this one refer.
fn judge_sources(checkpoint: &mut Checkpoint) {
    let Some(manifest) = &checkpoint.manifest else { return };
    let series = checkpoint.tier.series_path(&checkpoint.series);
    let is_gone = |key: &CheckpointKey| {
        let stat = checkpoint.tier.stat(&series.join(key.folder()));
        stat.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    let gone: Vec<u64> =
        manifest.sources.iter().filter(|source| is_gone(&source.key)).map(|source| source.key.version).collect();
    if gone.is_empty() {
        return;
    }
    let named = |versions: Vec<u64>| list(versions.iter().map(u64::to_string), REASONS_MAX, ", ");
    let versions = named(gone);
    let by = dependents(&*checkpoint.tier, &checkpoint.series).remove(&checkpoint.folder);
    let (state, why) = match by {
        Some(by) => {
            let by = named(by.iter().map(|key| key.version).collect());
            (State::Held, format!("for version {by}; version {versions}, which it refers to, is gone"))
        }
        None => (State::Damaged, format!("it refers to version {versions}, which is not there")),
    };
    (checkpoint.state, checkpoint.candidate, checkpoint.why) = (state, None, Some(why));
}

/// The folders of a series on a tier to which files of others refer, with those others, the oldest first.
pub fn dependents(tier: &dyn Tier, series: &Series) -> BTreeMap<String, Vec<CheckpointKey>> {
    let mut by: BTreeMap<String, Vec<CheckpointKey>> = BTreeMap::new();
    for (generation, version, operation) in tier.folders(series).unwrap_or_default() {
        let name = CheckpointKey { generation, version, operation, ..Default::default() }.folder();
        let (key, sources) = match tier.read_manifest(series, &name) {
            Ok(manifest) => (manifest.key, manifest.sources),
            // The next restart may write the manifest.
            Err(_) => {
                let key = CheckpointKey { generation, version, operation, ..Default::default() };
                (key, sources_in(tier, &tier.folder_path(series, &key)))
            }
        };
        for source in &sources {
            by.entry(source.key.folder()).or_default().push(key);
        }
    }
    by.values_mut().for_each(|keys| keys.sort_unstable_by_key(|key| (key.generation, key.operation)));
    by
}

/// Finds the shards that exist although there is no manifest.
fn judge_uncommitted(checkpoint: &mut Checkpoint) {
    let (mut ranks, mut broken) = (BTreeSet::new(), Vec::new());
    for file in checkpoint.files.iter().filter(|file| file.is_container()) {
        let path = checkpoint.path.join(&file.name);
        match heads(&checkpoint.tier, &path) {
            Ok(shards) => {
                for shard in shards.iter().filter(|shard| shard.head().header.content != Content::Parity) {
                    ranks.insert(shard.head().header.rank.0);
                    checkpoint.group_size.get_or_insert(shard.head().header.group_size);
                }
            }
            Err(error) => broken.push(format!("{}: {}", file.name, without_path(&error))),
        }
    }
    checkpoint.ranks = ranks.into_iter().collect();
    let is_global = checkpoint.tier.kind().spec().is_shared;
    let reconstruct = || checkpoint.tier.reconstruct(&checkpoint.series, &checkpoint.folder).ok().flatten();
    if let Some(manifest) = is_global.then(reconstruct).flatten() {
        checkpoint.candidate = Some(candidate_of_manifest(&manifest));
        checkpoint.state = State::Restorable;
        checkpoint.why = Some("the manifest is missing; the next restart writes it".into());
        return;
    }
    let mut why = vec![match (checkpoint.ranks.len(), checkpoint.group_size) {
        (_, Some(size)) => {
            format!("no manifest; shards of ranks {} of {size}", crate::output::ranks(checkpoint.ranks.iter().copied()))
        }
        _ => "no manifest, no whole shard".into(),
    }];
    let unfinished = checkpoint.files.iter().filter(|file| file.name.ends_with(".tmp")).count();
    if unfinished > 0 {
        why.push(format!("{unfinished} unfinished"));
    }
    why.extend(broken);
    checkpoint.why = Some(list(why.into_iter(), REASONS_MAX, "; "));
}

/// All shards of a container, with their heads checked.
///
/// # Errors
/// [`TierError`] for the container, or for the first shard that is damaged.
pub fn heads(tier: &Arc<dyn Tier>, path: &std::path::Path) -> Result<Vec<FileShard>, TierError> {
    let (container, file) = tier.open_container(path)?;
    let file: Arc<dyn bivouac_core::tier::storage::ReadFile> = file.into();
    container.entries.iter().map(|entry| FileShard::open_any(tier.kind(), path.into(), file.clone(), entry)).collect()
}

/// What is wrong, for messages that name the file already.
pub fn without_path(error: &TierError) -> String {
    match error {
        TierError::Format { source, .. } => source.to_string(),
        TierError::Foreign { found, expected, .. } => format!("it holds {found}, not {expected}"),
        TierError::Io { action, source, .. } => format!("cannot {action}: {source}"),
        TierError::Source { key, cause, .. } => format!("it refers to {key}: {cause}"),
        TierError::Damaged { .. } => error.to_string(),
    }
}

/// Does the format know a file such as this?
pub fn is_known(file: &FileFound) -> bool {
    !file.is_odd
        && (file.is_container() || file.is_part() || file.name == manifest::FILE_NAME || file.name.ends_with(".tmp"))
}
