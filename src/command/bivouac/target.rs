//! What a path is: a place in a directory tier, a file of one, or a memory segment.
#![forbid(unsafe_code)]

use bivouac_core::base::CheckpointKey;
use bivouac_core::config::{Config, Direct, OBJECT_SCHEMES};
use bivouac_core::format::manifest;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::{Series, is_node_file, is_parity_file, is_rank_file};
use bivouac_core::tier::object;
use bivouac_core::tier::ours::Trust;
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::storage::Storage;
use bivouac_core::tier::{Tier, TierId};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The prefix of all names of segment files.
pub const SEGMENT_PREFIX: &str = "bivouac-";

/// The maximum number of folders that are examined to find the level of a folder in its store.
const LOOK_MAX: usize = 100_000;

/// A part of a directory tier: everything at or below the named components.
pub struct Scope {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// Those of job, group, name and checkpoint folder that the path names.
    pub parts: Vec<String>,
}

/// What a path turned out to be.
pub enum Target {
    /// A root directory or a folder below one.
    Scope(Scope),
    /// A container file.
    Container(PathBuf),
    /// A manifest.
    Manifest(PathBuf),
    /// A memory segment: folder and file name.
    Segment(PathBuf, String),
    /// A folder of segments.
    Segments(PathBuf),
}

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The path cannot be examined.
    #[error("cannot {action} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is a file of another kind.
    #[error(
        "{} is not a Bivouac file. Give a root directory, a folder or a container file below it, or a memory segment",
        path.display()
    )]
    Unknown {
        /// The path.
        path: PathBuf,
    },
    /// An object store cannot be asked, or does not belong to Bivouac.
    #[error("{0}")]
    Store(String),
    /// The path is not one that text can hold.
    #[error("{} is not a UTF-8 path: Bivouac never creates such a path", path.display())]
    Name {
        /// The path.
        path: PathBuf,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            ". Look for the directory in the configuration: global.directory, local.directory, memory.directory"
        }
        io::ErrorKind::PermissionDenied => ". Checkpoints belong to the user who ran the job: become that user",
        _ => "",
    }
}

/// Names the action and the path of a system error.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TargetError {
    let path = path.to_owned();
    move |source| TargetError::Io { action, path, source }
}

impl Target {
    /// Finds out what `path` is.
    ///
    /// # Errors
    /// [`TargetError`] if it cannot be read or is none of the things that commands work on.
    pub fn of(path: &Path) -> Result<Target, TargetError> {
        if let Some(url) = object_url(path) {
            return of_object_store(url);
        }
        let path = path.canonicalize().map_err(failed("find", path))?;
        let metadata = path.metadata().map_err(failed("look at", &path))?;
        if metadata.is_dir() { of_folder(path) } else { of_file(path) }
    }
}

/// The URL of a path, if it is a place in an object store.
pub fn object_url(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    OBJECT_SCHEMES.iter().any(|scheme| text.starts_with(&format!("{scheme}://"))).then_some(text)
}

/// The tier at a URL, on the server that the configuration names, if it names one.
///
/// # Errors
/// The object store cannot be reached.
pub fn object_tier(url: &str) -> Result<Arc<dyn Tier>, String> {
    let config = Config::from_env().map_err(|error| error.to_string())?;
    object::at(url, config.job.object_endpoint.as_deref())
}

/// Finds the root of a place in an object store: the place itself, or the first one above it that says it is a store.
fn of_object_store(url: &str) -> Result<Target, TargetError> {
    let url = url.trim_end_matches('/');
    let (mut root, mut parts) = (url, Vec::new());
    loop {
        let tier = object_tier(root).map_err(TargetError::Store)?;
        if tier.find_store().map_err(|error| TargetError::Store(error.to_string()))?.is_some() {
            return Ok(Target::Scope(Scope { tier, parts }));
        }
        match root.rsplit_once('/').filter(|(above, _)| parts.len() < 4 && !above.ends_with('/')) {
            Some((above, part)) => {
                parts.insert(0, part.to_owned());
                root = above;
            }
            None => {
                let why = "there is no Bivouac store there or above it: give the URL that is set as object.url";
                return Err(TargetError::Store(format!("{url}: {why}")));
            }
        }
    }
}

fn of_file(path: PathBuf) -> Result<Target, TargetError> {
    if !path.metadata().map_err(failed("look at", &path))?.is_file() {
        return Err(TargetError::Unknown { path });
    }
    let text = |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).map(str::to_owned);
    let (Some(name), Some(folder)) = (text(path.file_name()), path.parent()) else {
        return Err(TargetError::Name { path });
    };
    let folder = folder.to_owned();
    if name.starts_with(SEGMENT_PREFIX) {
        return Ok(Target::Segment(folder, name));
    }
    if name == manifest::FILE_NAME {
        return Ok(Target::Manifest(path));
    }
    if is_rank_file(&name) || is_node_file(&name) || is_parity_file(&name) {
        return Ok(Target::Container(path));
    }
    // The file was renamed or copied: its first bytes say what it is.
    let mut magic = Vec::new();
    let file = File::open(&path).map_err(failed("open", &path))?;
    file.take(8).read_to_end(&mut magic).map_err(failed("read", &path))?;
    match magic.as_slice() {
        b"BVKSHRD1" | b"BVKPRTY1" => Ok(Target::Container(path)),
        b"BVKMANI1" => Ok(Target::Manifest(path)),
        b"BVKSEGM1" => Ok(Target::Segment(folder, name)),
        _ => Err(TargetError::Unknown { path }),
    }
}

/// Finds the level of a folder by its contents: checkpoint folders are always four levels below the root.
fn of_folder(path: PathBuf) -> Result<Target, TargetError> {
    let names = path.iter().map(|part| part.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    let Some(names) = names else { return Err(TargetError::Name { path }) };
    let own = names.last().map_or("", String::as_str);
    let below = if CheckpointKey::parse_folder(own).is_some() { 0 } else { levels_below(&path)? };
    if below > 4 {
        return Ok(Target::Segments(path));
    }
    let depth = (4 - below).min(names.len() - 1);
    let root: PathBuf = names[..names.len() - depth].iter().collect();
    let parts = names[names.len() - depth..].to_vec();
    Ok(Target::Scope(Scope { tier: tier_at(root), parts }))
}

/// Finds out which tier has this root directory: only a global one has a store id.
fn tier_at(root: PathBuf) -> Arc<dyn Tier> {
    let kind = if root.join("store").is_file() { TierId::GLOBAL } else { TierId::LOCAL };
    let storage = PosixStorage::new(Direct::Off);
    // For a look at it, the root may belong to anybody. If it cannot be opened, the code that reads in it says so.
    let _ = storage.hold(&root, Trust::Anybodys);
    Arc::new(DirectoryTier::new(kind, Arc::new(storage), root))
}

/// How far below `path` the nearest checkpoint folder is; 4 if there is none (an empty root), and 5 for a folder of
/// segments.
fn levels_below(path: &Path) -> Result<usize, TargetError> {
    let mut seen = 0;
    let mut level = vec![path.to_owned()];
    for depth in 1..=4 {
        let mut next = Vec::new();
        for folder in &level {
            let entries = match std::fs::read_dir(folder) {
                // Other people's folders below the named folder are no reason to stop.
                Err(_) if depth > 1 => continue,
                other => other.map_err(failed("list", folder))?,
            };
            for entry in entries.flatten() {
                seen += 1;
                let name = entry.file_name();
                let kind = entry.file_type().ok();
                let is_folder = kind.is_some_and(|kind| kind.is_dir());
                match name.to_str() {
                    Some(name) if is_folder && CheckpointKey::parse_folder(name).is_some() => return Ok(depth),
                    Some("store") if depth == 1 && !is_folder => return Ok(4),
                    Some("claims") if is_folder && depth <= 3 => return Ok(depth + 1),
                    Some(name) if depth == 1 && !is_folder && name.starts_with(SEGMENT_PREFIX) => return Ok(5),
                    _ if is_folder && seen < LOOK_MAX => next.push(entry.path()),
                    _ => {}
                }
            }
        }
        level = next;
    }
    Ok(4)
}

/// The series of the checkpoint folder that holds a file, and the folder's name, if the file is in a store.
pub fn place_of(file: &Path) -> Option<(Series, String)> {
    let mut parents = file.ancestors().skip(1).map(|path| path.file_name().and_then(|name| name.to_str()));
    let folder = parents.next()??.to_owned();
    CheckpointKey::parse_folder(&folder)?;
    let (name, group, job) = (parents.next()??.into(), parents.next()??.into(), parents.next()??.into());
    Some((Series { job, group, name }, folder))
}

/// The tier whose root is four levels above a file's folder; a local tier if the file is not in a store.
pub fn tier_of(file: &Path) -> Arc<dyn Tier> {
    let root = file.ancestors().nth(5).unwrap_or(Path::new("/")).to_owned();
    tier_at(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &Path) -> usize {
        match Target::of(path).unwrap() {
            Target::Scope(scope) => scope.parts.len(),
            _ => panic!("{} is no part of a store", path.display()),
        }
    }

    #[test]
    fn a_folder_finds_its_place_in_the_store() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(parts(root.path()), 0, "an empty folder counts as a root");
        let folder = root.path().join("job/world/heat/g000001-v0000000001-o000001");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(root.path().join("job/world/claims")).unwrap();
        for (depth, path) in folder.ancestors().take(5).enumerate() {
            assert_eq!(parts(path), 4 - depth, "{}", path.display());
        }
    }

    #[test]
    fn a_group_without_checkpoints_is_known_by_its_claims() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("job/world");
        std::fs::create_dir_all(group.join("claims")).unwrap();
        assert_eq!([parts(&group), parts(root.path())], [2, 0]);
    }

    #[test]
    fn foreign_files_are_refused_and_renamed_ones_known() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("notes.txt");
        std::fs::write(&file, "hello").unwrap();
        assert!(matches!(Target::of(&file), Err(TargetError::Unknown { .. })));
        std::fs::write(&file, "BVKMANI1").unwrap();
        assert!(matches!(Target::of(&file), Ok(Target::Manifest(_))));
        assert!(matches!(Target::of(&root.path().join("none")), Err(TargetError::Io { .. })));
    }
}
