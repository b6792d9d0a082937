//! Who owns a root directory: the id of the store at the global directory, and the store that a local directory belongs to.
//!
//! Each of them is kept in a file that the first process writes, once.

use super::ours::Trust;
use super::storage::{Create, Storage, WriteFile};
use super::{TierError, TierId};
use crate::base::{Clock, Incarnation};
use std::fmt::{self, Display};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The file that says to which store a local directory belongs: [`LocalOwner`]'s fields, one per line.
pub const OWNER_FILE: &str = "of-store";

/// The file that holds the id of a store.
pub const STORE_FILE: &str = "store";
/// An id is 32 digits and a newline.
pub const STORE_MAX: u64 = 4096;

/// The id in the bytes of a [`STORE_FILE`].
pub fn id_of(bytes: &[u8]) -> Option<Incarnation> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

/// How often a file that somebody else is writing is looked at, once every 50 ms. A busy disk can need seconds for a few bytes.
const ATTEMPTS: u32 = 600;
const FILE_MAX: u64 = 64 << 10;

/// Opens the store at `root`, creating it if it does not exist, and reads its id or creates one: 32 hexadecimal digits in
/// `<root>/store`.
///
/// # Errors
/// [`TierError::Io`] if the root cannot be created, read or written, or is not ours, or if the file holds no id while
/// another process may still be writing it.
///
/// # Blocking
/// Up to half a minute, if somebody else has begun to write the id.
pub fn store_id(
    storage: &dyn Storage,
    root: &Path,
    fresh: Incarnation,
    clock: &dyn Clock,
) -> Result<Incarnation, TierError> {
    let wrap = |source| TierError::io(TierId::GLOBAL, "use", root, source);
    storage.create_dir_all(root).and_then(|()| storage.hold(root, Trust::Ours)).map_err(wrap)?;
    settle(storage, TierId::GLOBAL, &root.join(STORE_FILE), &fresh, |text| text.parse().ok(), clock)
}

/// The store to which a directory of the local tier belongs, which is the first store that used it. Copies of another
/// store must not be restored or overwritten, because the runs of both stores count their checkpoints from one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalOwner {
    /// The name of a folder that belongs to that store alone, as the session derives it from the store.
    pub name: String,
    /// The global directory; empty if there is none.
    pub global: String,
}

impl Display for LocalOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.name, self.global)
    }
}

impl LocalOwner {
    fn parse(text: &str) -> Option<LocalOwner> {
        let (name, global) = text.split_once('\n').unwrap_or((text, ""));
        name.starts_with("bivouac-").then(|| LocalOwner { name: name.to_owned(), global: global.to_owned() })
    }

    /// Is that another store? The answer is no if the store was lost and made again in the same place: its local copies may be all
    /// that is left. For a job without a global directory, this cannot be determined, and the answer is no.
    pub fn is_another(&self, than: &LocalOwner) -> bool {
        let is_known = !self.global.is_empty() && !than.global.is_empty();
        self.name != than.name && is_known && self.global != than.global
    }

    /// What a directory says about its owner; `None` if it says nothing.
    pub fn of(storage: &dyn Storage, root: &Path) -> Option<LocalOwner> {
        let bytes = storage.read_all(&root.join(OWNER_FILE), FILE_MAX).ok()?;
        LocalOwner::parse(std::str::from_utf8(&bytes).ok()?.trim())
    }

    /// Makes this store the owner of an existing directory, unless the directory already has an owner. Returns the owner.
    ///
    /// # Errors
    /// As [`store_id`].
    ///
    /// # Blocking
    /// As [`store_id`].
    pub fn settle(&self, storage: &dyn Storage, root: &Path, clock: &dyn Clock) -> Result<LocalOwner, TierError> {
        settle(storage, TierId::LOCAL, &root.join(OWNER_FILE), self, LocalOwner::parse, clock)
    }
}

/// Returns the content of a file in an existing directory that is written once: `fresh`, unless another process wrote it first. A
/// file that another process may be writing is never overwritten.
fn settle<T: Clone + Display>(
    storage: &dyn Storage,
    tier: TierId,
    path: &Path,
    fresh: &T,
    parse: impl Fn(&str) -> Option<T>,
    clock: &dyn Clock,
) -> Result<T, TierError> {
    let wrap = |action, source| TierError::io(tier, action, path, source);
    let text = format!("{fresh}\n");
    let bytes = || storage.read_all(path, FILE_MAX).map_err(|source| wrap("read", source));
    let said = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.strip_suffix('\n').and_then(&parse);
    // An empty file was made a moment ago, perhaps by somebody who has not closed it yet: it keeps its inode.
    let write_into = |file: Box<dyn WriteFile>| {
        let root = path.parent().unwrap_or(Path::new("."));
        file.write_at(0, text.as_bytes()).and_then(|()| file.sync()).and_then(|()| storage.sync_dir(root))
    };
    for _ in 0..ATTEMPTS {
        let made = match storage.open_write(path, Create::New) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(error) => return Err(wrap("create", error)),
        };
        if made.is_none()
            && let Some(found) = said(&bytes()?)
        {
            return Ok(found);
        }
        // The process that writes the file holds the lock. If that process died, or the power failed, the file says
        // nothing and has no lock.
        match (storage.try_lock(path), made) {
            (Ok(Some(_lock)), _) => {
                let found = bytes()?;
                if let Some(found) = said(&found) {
                    return Ok(found);
                }
                let written = match found.is_empty() {
                    true => storage.open_write(path, Create::Shared).and_then(write_into),
                    false => storage.write_all(path, text.as_bytes()),
                };
                return written.map(|()| fresh.clone()).map_err(|source| wrap("write", source));
            }
            // Another process has written the file since we opened it.
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {}
            // There are no locks here: the process that created the file writes it.
            (Err(_), Some(file)) => {
                write_into(file).map_err(|source| wrap("write", source))?;
                return Ok(fresh.clone());
            }
            (Ok(None) | Err(_), _) => clock.sleep(Duration::from_millis(50)),
        }
    }
    // Writing something else would turn one store into two: only the process that is writing the file knows its id.
    let why = "it has not said for half a minute who owns the directory: remove it, unless a run is just starting";
    Err(wrap("use", io::Error::new(io::ErrorKind::InvalidData, why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::SystemClock;
    use crate::tier::posix::PosixStorage;
    use crate::tier::wrappers::{Call, Observer, Watched};

    /// A clock for which all waiting ends at once.
    struct AtOnce;

    impl Clock for AtOnce {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) {}
    }

    #[test]
    fn a_store_file_that_somebody_is_writing_is_never_written_over() {
        let root = tempfile::tempdir().expect("a folder");
        let storage = PosixStorage::new(crate::config::Direct::Off);
        let (path, clock) = (root.path().join("store"), AtOnce);
        let id = |byte| store_id(&storage, root.path(), Incarnation([byte; 16]), &clock);
        std::fs::write(&path, "").expect("written");
        let writing = storage.try_lock(&path).expect("locks").expect("free");
        let refused = id(1).expect_err("somebody else will write an id").to_string();
        assert!(refused.contains("remove it") && refused.contains("store"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("there"), b"", "nothing was written");
        drop(writing);
        // Its writer has died.
        assert_eq!((id(2).expect("written"), id(3).expect("read")), (Incarnation([2; 16]), Incarnation([2; 16])));
    }

    #[test]
    fn a_local_directory_belongs_to_the_store_that_came_first() {
        let root = tempfile::tempdir().expect("a folder");
        let storage = PosixStorage::new(crate::config::Direct::Off);
        let owner = |name: &str, global: &str| LocalOwner { name: name.into(), global: global.into() };
        let (first, second) = (owner("bivouac-7-a", "/scratch/one"), owner("bivouac-7-b", ""));
        assert_eq!(LocalOwner::of(&storage, root.path()), None);
        assert_eq!(first.settle(&storage, root.path(), &AtOnce).expect("written"), first);
        assert_eq!(second.settle(&storage, root.path(), &AtOnce).expect("read"), first);
        assert_eq!(LocalOwner::of(&storage, root.path()), Some(first));
        let other = tempfile::tempdir().expect("a folder");
        assert_eq!(second.settle(&storage, other.path(), &AtOnce).expect("written"), second);
        assert_eq!(LocalOwner::of(&storage, other.path()), Some(second.clone()));
        let (moved, remade) = (owner("bivouac-7-a", "/scratch/two"), owner("bivouac-7-b", "/scratch/one"));
        let first = owner("bivouac-7-a", "/scratch/one");
        assert_eq!([&moved, &remade, &second].map(|other| first.is_another(other)), [false; 3]);
        assert!(first.is_another(&owner("bivouac-7-b", "/scratch/two")));
    }

    /// Somebody else writes an id after this process has made the file and before it locks the file.
    struct Quicker(std::path::PathBuf);

    impl Observer for Quicker {
        fn before(&self, call: Call, path: &Path, _: u64) -> io::Result<()> {
            if call == Call::TryLock && path.ends_with("store") && std::fs::read(path)?.is_empty() {
                PosixStorage::new(crate::config::Direct::Off).write_all(&self.0, format!("{:032x}\n", 7).as_bytes())?;
                // It looks as if the file had been opened before that and locked after it.
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(())
        }
    }

    #[test]
    fn who_has_made_the_file_and_comes_too_late_to_write_it_reads_what_the_other_wrote() {
        let root = tempfile::tempdir().expect("a folder");
        let quicker = Quicker(root.path().join("store"));
        let storage = Watched::new(PosixStorage::new(crate::config::Direct::Off), quicker.into());
        let id = store_id(&storage, root.path(), Incarnation([1; 16]), &AtOnce).expect("there is one");
        assert_eq!(id.to_string(), format!("{:032x}", 7));
    }

    /// No file is replaced or removed while another process uses it.
    #[test]
    fn of_many_that_come_at_once_all_hear_the_same() {
        for round in 0..100 {
            let root = tempfile::tempdir().expect("a folder");
            let begin = std::sync::Barrier::new(6);
            let one = |byte: u8| {
                let storage = PosixStorage::new(crate::config::Direct::Auto);
                begin.wait();
                store_id(&storage, root.path(), Incarnation([byte; 16]), &SystemClock::default()).expect("settled")
            };
            let heard: Vec<Incarnation> = std::thread::scope(|scope| {
                let one = &one;
                let all: Vec<_> = (1..7).map(|byte| scope.spawn(move || one(byte))).collect();
                all.into_iter().map(|one| one.join().expect("no panic")).collect()
            });
            let written = std::fs::read_to_string(root.path().join("store")).expect("there");
            assert!(heard.iter().all(|id| format!("{id}\n") == written), "round {round}: {written:?}, {heard:?}");
        }
    }
}
