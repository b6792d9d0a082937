//! Finds the tiers of a node if nobody says where they are, as a session would find them.
#![forbid(unsafe_code)]

use crate::ending::Problem;
use crate::output::complain;
use crate::target::{object_tier, object_url};
use bivouac_core::Config;
use bivouac_core::base::Incarnation;
use bivouac_core::config::Direct;
use bivouac_core::session::place::local_name;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::ours::{self, Trust};
use bivouac_core::tier::owner::{LocalOwner, OWNER_FILE};
use bivouac_core::tier::owner::{STORE_FILE, STORE_MAX, id_of};
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::storage::Storage;
use bivouac_core::tier::{Tier, TierError, TierId};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The id of the store at `root`; `None` if there is none.
///
/// # Errors
/// The file of the id exists but cannot be read, or it holds something else.
pub fn store_of(storage: &dyn Storage, root: &Path) -> Result<Option<Incarnation>, String> {
    let path = root.join(STORE_FILE);
    match storage.read_all(&path, STORE_MAX) {
        // Somebody is making the store now, or died doing so: the next process that may make a store continues from there.
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => {
            let wrong = || format!("{} holds no store id: is {} a global directory?", path.display(), root.display());
            id_of(&bytes).map(Some).ok_or_else(wrong)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// The message about a directory without a store id.
pub fn no_store(root: &Path) -> String {
    format!(
        "{} is not a global directory of Bivouac (it has no file \"store\"). Is its file system mounted? Give --global DIR",
        root.display()
    )
}

/// The maximum number of folders that are examined to find a store below one that is none.
const LOOK_MAX: usize = 1000;

/// What a command looks at: the paths that the user has named, or else the global directory of the configuration.
///
/// # Errors
/// The configuration is wrong, or its directory does not exist.
pub fn named_or_global(named: &[PathBuf]) -> Result<Vec<PathBuf>, Problem> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let config = Config::from_env().map_err(|error| error.to_string())?;
    let directory = named_or_configured(&config);
    if object_url(&directory).is_some() {
        return Ok(vec![directory]);
    }
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    match directory.exists() {
        true => Ok(vec![directory]),
        false => Err(Problem::nothing(format!(
            "the global directory of the configuration is {}, and it is not there: name a path, or set BIVOUAC_GLOBAL_DIRECTORY or \
             BIVOUAC_CONFIG as for the program",
            directory.display()
        ))),
    }
}

/// Where the store of a configuration is.
pub fn named_or_configured(config: &Config) -> PathBuf {
    match (config.job.global_enabled, &config.job.object_url) {
        (false, Some(url)) => url.into(),
        _ => config.job.global_directory.clone(),
    }
}

/// The message about a folder in which a command has found nothing.
pub fn nothing_in(path: &Path) -> Problem {
    let shown = path.display();
    if object_url(path).is_some() {
        return Problem::nothing(format!("{shown} holds no checkpoint"));
    }
    let is_store = |path: &Path| matches!(store_of(&PosixStorage::new(Direct::Off), path), Ok(Some(_)));
    if is_store(path) {
        return Problem::nothing(format!("{shown} is a store without checkpoints"));
    }
    let folders = std::fs::read_dir(path).into_iter().flatten().flatten().take(LOOK_MAX).map(|entry| entry.path());
    let mut stores: Vec<PathBuf> = folders.filter(|path| path.is_dir() && is_store(path)).collect();
    stores.sort();
    Problem::nothing(match stores.first() {
        Some(store) => {
            let more = if stores.len() > 1 { format!(" (and {} more)", stores.len() - 1) } else { String::new() };
            format!("{shown} is not a store, but {} is one{more}: name that", store.display())
        }
        None => format!(
            "{shown} holds no checkpoint and no memory segment. Look for the directory in the configuration: global.directory, \
             local.directory, memory.directory"
        ),
    })
}

/// The directories in which runs on the store at `root` put the local tier: the configured directory, unless it belongs to another store,
/// and folders of the store at `root` in that directory or, if none is configured, in the temporary directory.
///
/// # Errors
/// A directory belongs to somebody else.
pub fn local_directories(
    config: &Config,
    root: &Path,
    store: Option<Incarnation>,
    job: Option<&str>,
) -> Result<Vec<PathBuf>, String> {
    let names = local_names(store, job);
    let Some(directory) = &config.node.local_directory else { return folders_in(&std::env::temp_dir(), &names) };
    let storage = PosixStorage::new(Direct::Off);
    // Without a store, nobody can tell to whom a directory belongs.
    let owner = store.map(|store| owner(root, store));
    let is_of_it = |local: &Path| {
        let both = owner.as_ref().zip(LocalOwner::of(&storage, local));
        both.is_none_or(|(ours, theirs)| !ours.is_another(&theirs))
    };
    let found = own_local(directory, &names)?;
    Ok(found.into_iter().filter(|local| is_of_it(local)).collect())
}

/// The owner that runs on the store at `root` record in local directories.
fn owner(root: &Path, store: Incarnation) -> LocalOwner {
    let global = store_root(root).unwrap_or_else(|_| root.to_owned()).display().to_string();
    LocalOwner { name: local_name(Some(store), "", ours::user()), global }
}

/// The names of local-tier folders that belong to this store alone. A job without a global tier has no store; then its key takes
/// the place of the id.
pub fn local_names(store: Option<Incarnation>, job: Option<&str>) -> Vec<String> {
    let of_store = store.map(|store| local_name(Some(store), "", ours::user()));
    let of_job = job.map(|job| local_name(None, job, ours::user()));
    of_store.into_iter().chain(of_job).collect()
}

fn folders_in(place: &Path, names: &[String]) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for name in names {
        let (found, taken) = ours::private_folders(place, name)
            .map_err(|error| format!("cannot look into {}: {error}", place.display()))?;
        taken.iter().for_each(|taken| complain(&format!("left alone: {taken}")));
        all.extend(found);
    }
    Ok(all)
}

/// Where sessions put the local tier if this directory is configured: in the folders of these names inside it, if there are any; otherwise
/// in the directory itself. Such a folder exists if the directory belonged to another store when a session came.
///
/// # Errors
/// The directory or a folder belongs to somebody else.
pub fn own_local(directory: &Path, names: &[String]) -> Result<Vec<PathBuf>, String> {
    let roots = ours::own_places(directory)
        .map_err(|source| TierError::io(TierId::LOCAL, "use", directory, source).to_string())?;
    let mut all = Vec::new();
    for root in roots {
        let inner = folders_in(&root, names)?;
        all.extend(if inner.is_empty() { vec![root] } else { inner });
    }
    Ok(all)
}

/// A tier whose files will be trusted or changed: it must belong to this user. A tier that does not exist belongs to nobody yet.
///
/// # Errors
/// The tier belongs to somebody else, or others may write to it.
pub fn own_tier(kind: TierId, storage: Arc<dyn Storage>, root: PathBuf) -> Result<DirectoryTier, String> {
    match storage.hold(&root, Trust::Ours) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(TierError::io(kind, "use", &root, source).to_string())
        }
        _ => Ok(DirectoryTier::new(kind, storage, root)),
    }
}

/// The location of a store in the form in which runs name it: an absolute path, or a URL unchanged.
///
/// # Errors
/// There is no working directory.
pub fn store_root(root: &Path) -> std::io::Result<PathBuf> {
    match object_url(root) {
        Some(url) => Ok(url.trim_end_matches('/').into()),
        None => std::path::absolute(root),
    }
}

/// The store at a place whose files will be trusted or changed. A store that does not exist belongs to nobody yet.
///
/// # Errors
/// The store belongs to somebody else, or others may write to it.
pub fn own_store(root: &Path, config: &Config) -> Result<Arc<dyn Tier>, String> {
    if let Some(url) = object_url(root) {
        return object_tier(url);
    }
    let storage = Arc::new(PosixStorage::new(config.node.global_direct));
    Ok(Arc::new(own_tier(TierId::GLOBAL, storage, root.to_owned())?))
}

/// All directories of the local tier on this node, including those of stores that are gone: the configured directory, and the folders that
/// this user's runs have made in it or, if none is configured, in the temporary directory.
///
/// # Errors
/// The configured directory belongs to somebody else, or the shared place cannot be read.
pub fn all_local_directories(config: &Config) -> Result<Vec<PathBuf>, String> {
    let configured = match &config.node.local_directory {
        Some(directory) => own_local(directory, &[])?.into_iter().filter(|directory| directory.is_dir()).collect(),
        None => Vec::new(),
    };
    let places = if config.node.local_directory.is_some() { configured.clone() } else { vec![std::env::temp_dir()] };
    let mut all = configured;
    for place in places {
        // If somebody else had taken the first name, a number follows the name.
        let first_name = |entry: std::fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            is_local_name(&name).then(|| name.split('.').next().unwrap_or_default().to_owned())
        };
        let names: BTreeSet<String> =
            std::fs::read_dir(&place).into_iter().flatten().flatten().filter_map(first_name).collect();
        all.extend(folders_in(&place, &names.into_iter().collect::<Vec<_>>())?);
    }
    Ok(all)
}

/// Is this the name of a local-tier folder that belongs to one store alone?
pub fn is_local_name(name: &str) -> bool {
    let rest = name.strip_prefix(&format!("bivouac-{}-", ours::user())).unwrap_or_default();
    let hash = rest.split('.').next().unwrap_or_default();
    hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A directory of the local tier that belongs to a store other than the one that is examined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orphan {
    /// The directory.
    pub path: PathBuf,
    /// The global directory of its store.
    pub global: String,
    /// Is that store gone? Also true of a store whose file system is not mounted here.
    pub is_gone: bool,
    /// Bytes of all files.
    pub bytes: u64,
}

/// What the local tier of this node holds for stores other than the one at `root`. Runs on the store at `root` neither
/// restore nor remove it.
///
/// # Blocking
/// Walks the directories.
///
/// # Errors
/// As [`all_local_directories`].
pub fn orphans(config: &Config, root: &Path, store: Option<Incarnation>) -> Result<Vec<Orphan>, String> {
    let storage = PosixStorage::new(Direct::Off);
    let ours = owner(root, store.unwrap_or_default());
    let all = all_local_directories(config)?.into_iter();
    let others = all.filter_map(|path| LocalOwner::of(&storage, &path).map(|owner| (path, owner)));
    let orphans = others
        .filter(|(_, owner)| ours.is_another(owner))
        .map(|(path, owner)| Orphan {
            is_gone: !is_at(&storage, &owner),
            bytes: bytes_below(&path),
            global: owner.global,
            path,
        })
        .filter(|orphan| orphan.bytes > 0);
    Ok(orphans.collect())
}

/// Does the store of that directory still exist where it was?
fn is_at(storage: &dyn Storage, owner: &LocalOwner) -> bool {
    let store = store_of(storage, Path::new(&owner.global)).ok().flatten();
    store.is_some_and(|store| local_names(Some(store), None).contains(&owner.name))
}

/// Bytes of the files below a folder, except those in other local directories; links are not followed.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() && !is_local_name(&entry.file_name().to_string_lossy()) => {
                bytes_below(&entry.path())
            }
            Ok(found) if found.is_file() && entry.file_name() != OWNER_FILE => found.len(),
            _ => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_just_being_made_is_none_yet_and_rubbish_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let storage = PosixStorage::new(Direct::Off);
        assert_eq!(store_of(&storage, root.path()), Ok(None));
        std::fs::write(root.path().join("store"), "").expect("written");
        assert_eq!(store_of(&storage, root.path()), Ok(None));
        std::fs::write(root.path().join("store"), "a list of things to buy").expect("written");
        assert!(store_of(&storage, root.path()).is_err_and(|error| error.contains("no store id")));
    }
}
