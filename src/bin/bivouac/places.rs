//! Where the tiers of a node are, when nobody says so: as a session would find them.
#![forbid(unsafe_code)]

use crate::output::complain;
use bivouac::Config;
use bivouac::base::Incarnation;
use bivouac::session::place::local_name;
use bivouac::tier::directory::DirectoryTier;
use bivouac::tier::ours::{self, Trust};
use bivouac::tier::storage::Storage;
use bivouac::tier::{TierError, TierKind};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store id is 32 digits and a newline.
const STORE_MAX: u64 = 4096;

/// The id of the store at `root`; `None` if there is none.
///
/// # Errors
/// The file is there and cannot be read, or holds something else.
pub fn store_of(storage: &dyn Storage, root: &Path) -> Result<Option<Incarnation>, String> {
    let path = root.join("store");
    match storage.read_all(&path, STORE_MAX) {
        // Somebody is just making it, or died doing so: whoever may make one goes on from there.
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => {
            let id = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
            let wrong = || format!("{} holds no store id: is {} a global directory?", path.display(), root.display());
            id.map(Some).ok_or_else(wrong)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// What to say of a directory without a store id.
pub fn no_store(root: &Path) -> String {
    format!(
        "{} is no global directory of Bivouac (it has no file \"store\"). Is its file system mounted? Give --global DIR",
        root.display()
    )
}

/// The directories of the local tier: the configured one, or those where runs put it when none is configured.
///
/// # Errors
/// What stands there belongs to somebody else.
pub fn local_directories(
    config: &Config,
    store: Option<Incarnation>,
    job: Option<&str>,
) -> Result<Vec<PathBuf>, String> {
    if let Some(directory) = &config.node.local_directory {
        return own_local(directory);
    }
    let (temporary, user) = (std::env::temp_dir(), ours::user());
    let of_store = store.map(|store| local_name(Some(store), "", user));
    // A job without a global tier has no store, and its key took the place of the id.
    let of_job = job.map(|job| local_name(None, job, user));
    private_folders(&temporary, of_store.into_iter().chain(of_job))
}

/// Where a session puts the local tier if this directory is configured.
///
/// # Errors
/// It belongs to somebody else.
pub fn own_local(directory: &Path) -> Result<Vec<PathBuf>, String> {
    ours::own_places(directory).map_err(|source| TierError::io(TierKind::Local, "use", directory, source).to_string())
}

/// A tier whose files are going to be believed or changed: it has to be this user's. One that does not exist is
/// nobody's yet.
///
/// # Errors
/// It belongs to somebody else, or others may write to it.
pub fn own_tier(kind: TierKind, storage: Arc<dyn Storage>, root: PathBuf) -> Result<DirectoryTier, String> {
    match storage.hold(&root, Trust::Ours) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(TierError::io(kind, "use", &root, source).to_string())
        }
        _ => Ok(DirectoryTier::new(kind, storage, root)),
    }
}

/// All directories of the local tier on this node: where runs put it if one is configured, or those that this user's runs have made where
/// none is, also for stores that are gone.
///
/// # Errors
/// What is configured belongs to somebody else, or the shared place cannot be looked into.
pub fn all_local_directories(config: &Config) -> Result<Vec<PathBuf>, String> {
    if let Some(directory) = &config.node.local_directory {
        return Ok(own_local(directory)?.into_iter().filter(|directory| directory.is_dir()).collect());
    }
    let (temporary, prefix) = (std::env::temp_dir(), format!("bivouac-{}-", ours::user()));
    let first_name = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Where somebody else had taken the first name, it has a number behind it.
        let hash = name.strip_prefix(&prefix)?.split('.').next()?;
        let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| format!("{prefix}{hash}"))
    };
    let names: BTreeSet<String> =
        std::fs::read_dir(&temporary).into_iter().flatten().flatten().filter_map(first_name).collect();
    private_folders(&temporary, names)
}

/// The folders that runs of this user have made under these names in a place that others share.
fn private_folders(place: &Path, names: impl IntoIterator<Item = String>) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for name in names {
        let (found, taken) = ours::private_folders(place, &name)
            .map_err(|error| format!("cannot look into {}: {error}", place.display()))?;
        taken.iter().for_each(|taken| complain(&format!("left alone: {taken}")));
        all.extend(found);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac::config::Direct;
    use bivouac::tier::posix::PosixStorage;

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
