//! The small files that a session shares with its supervisor.
//!
//! The files are hints, not data: a file is replaced by a rename, so that a reader sees the old file or the new one, and
//! nothing is synced. Anybody may have put a file there, so only a regular file of bounded size that belongs to this user
//! or to root is trusted.
#![forbid(unsafe_code)]

use super::ours::{self, Trust};
use crate::format::events::{EVENTS_MAX, Event, events_file, events_of};
use crate::format::supervision::{
    ATTEMPTS_FILE, Attempt, FILE_MAX, HALT_FILE, Halt, Status, is_status_file, status_file,
};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Locked while a process changes the halt conditions.
const LOCK_FILE: &str = "halt.lock";
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const LOCK_ATTEMPTS: u32 = 500;

/// A run directory.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// The directory at `path`, whether or not it exists.
    pub fn at(path: impl Into<PathBuf>) -> RunDirectory {
        RunDirectory { path: path.into() }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory, private to this user, if it does not exist. Anyone else who may write to it could make a
    /// supervisor believe anything.
    ///
    /// # Errors
    /// The system's error, or the owner of the directory, with the path.
    pub fn create(&self) -> io::Result<()> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|error| named(&self.path, "create", &error))?;
        ours::open(&self.path, Trust::Ours).map(drop).map_err(|error| named(&self.path, "use", &error))
    }

    /// Replaces a file as a whole.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // Processes of several groups, their threads, and `bivouac halt` as well as the supervisor write at the same time.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let temp = self.path.join(format!(".{name}.{}-{}-{number}.tmp", host(), std::process::id()));
        let path = self.path.join(name);
        let written = write_new(&temp, bytes).and_then(|()| fs::rename(&temp, &path));
        written.map_err(|error| {
            // What is left of the file is of no use. The first error is the one to report.
            let _ = fs::remove_file(&temp);
            named(&path, "write", &error)
        })
    }

    /// Reads a file as a whole; `None` if there is none.
    ///
    /// # Errors
    /// The system's error, or why the file is not trusted, with the path.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.read_within(name, FILE_MAX)
    }

    /// As [`RunDirectory::read`], for a file of at most `max` bytes.
    fn read_within(&self, name: &str, max: u64) -> io::Result<Option<Vec<u8>>> {
        let path = self.path.join(name);
        match read_trusted(&path, max) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(&path, "read", &error)),
        }
    }

    /// Appends to a file, which may then have at most `max` bytes. `false` if it would be longer; the file is then left as it is.
    ///
    /// # Errors
    /// The system's error, or why the file is not ours, with the path.
    pub fn append(&self, name: &str, max: u64, bytes: &[u8]) -> io::Result<bool> {
        let path = self.path.join(name);
        let append = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
            let file = ours::open_file_to(&path, flags)?;
            if file.metadata()?.len() + bytes.len() as u64 > max {
                return Ok(false);
            }
            io::Write::write_all(&mut &file, bytes).map(|()| true)
        };
        append().map_err(|error| named(&path, "write", &error))
    }

    /// The events of a rank of a group; none if there is no file.
    ///
    /// # Errors
    /// The system's error, or why the file is not trusted, with the path.
    pub fn read_events(&self, group: &str, rank: u32) -> io::Result<Vec<Event>> {
        let bytes = self.read_within(&events_file(group, rank), EVENTS_MAX)?;
        Ok(bytes.map(|bytes| Event::decode_all(&bytes)).unwrap_or_default())
    }

    /// The groups and ranks that have event files here, in ascending order.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn events(&self) -> io::Result<Vec<(String, u32)>> {
        let names = self.names().map_err(|error| named(&self.path, "list", &error))?;
        let found = names.filter_map(|name| events_of(&name).map(|(group, rank)| (group.to_owned(), rank)));
        let mut found: Vec<_> = found.collect();
        found.sort();
        Ok(found)
    }

    /// The names of the directory's entries, except names that are not text.
    fn names(&self) -> io::Result<impl Iterator<Item = String> + use<>> {
        let entries = fs::read_dir(&self.path)?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()))
    }

    /// The halt conditions; none if there is no file.
    ///
    /// # Errors
    /// Why the file cannot be used, with its path.
    pub fn read_halt(&self) -> Result<Halt, String> {
        let Some(bytes) = self.read(HALT_FILE).map_err(|error| error.to_string())? else { return Ok(Halt::default()) };
        Halt::decode(&bytes).map_err(|error| format!("{}: {error}", self.path.join(HALT_FILE).display()))
    }

    /// Changes the halt conditions while nobody else does; removes the file if no conditions are left. `change` gets what
    /// the file says, or why the file cannot be used.
    ///
    /// # Blocking
    /// At most five seconds, while another process changes them.
    ///
    /// # Errors
    /// The error of `change`; the system's error, with the path.
    pub fn change_halt(
        &self,
        change: impl FnOnce(Result<Halt, String>) -> Result<Halt, String>,
    ) -> Result<Halt, String> {
        let path = self.path.join(LOCK_FILE);
        let lock = open_lock(&path).map_err(|error| named(&path, "open", &error).to_string())?;
        // Without a lock, one of two changes at the same instant may be lost. That is no reason to keep a job from halting,
        // neither on a file system without locks nor when somebody holds the lock for ever.
        for _ in 0..LOCK_ATTEMPTS {
            match lock.try_lock() {
                Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                _ => break,
            }
        }
        let halt = change(self.read_halt())?;
        self.write_halt(&halt).map_err(|error| error.to_string())?;
        Ok(halt)
    }

    fn write_halt(&self, halt: &Halt) -> io::Result<()> {
        if !halt.conditions.is_empty() {
            return self.replace(HALT_FILE, &halt.encode());
        }
        let path = self.path.join(HALT_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(&path, "remove", &error)),
            _ => Ok(()),
        }
    }

    /// The status of a group.
    ///
    /// # Errors
    /// Why the file cannot be used, with its path.
    pub fn read_status(&self, group: &str) -> Result<Option<Status>, String> {
        self.read_status_file(&status_file(group))
    }

    fn read_status_file(&self, name: &str) -> Result<Option<Status>, String> {
        let Some(bytes) = self.read(name).map_err(|error| error.to_string())? else { return Ok(None) };
        Status::decode(&bytes).map(Some).map_err(|error| format!("{}: {error}", self.path.join(name).display()))
    }

    /// The attempts that have ended, the oldest first; none if there is no file.
    ///
    /// # Errors
    /// Why the file cannot be used, with its path.
    pub fn read_attempts(&self) -> io::Result<Vec<Attempt>> {
        Ok(self.read(ATTEMPTS_FILE)?.map(|bytes| Attempt::decode_all(&bytes)).unwrap_or_default())
    }

    /// The status of every group, in the order of the groups' names, and what is wrong with files that cannot be used.
    pub fn read_statuses(&self) -> (Vec<Status>, Vec<String>) {
        let names = match self.names() {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (Vec::new(), Vec::new()),
            Err(error) => return (Vec::new(), vec![named(&self.path, "list", &error).to_string()]),
        };
        let mut names: Vec<String> = names.filter(|name| is_status_file(name)).collect();
        names.sort();
        let (mut statuses, mut problems) = (Vec::new(), Vec::new());
        for name in names {
            match self.read_status_file(&name) {
                Ok(status) => statuses.extend(status),
                Err(problem) => problems.push(problem),
            }
        }
        (statuses, problems)
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn named(path: &Path, action: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

fn open_lock(path: &Path) -> io::Result<fs::File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(fs::File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?))
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The file was left behind by a process that had our number, or put there so that we would write into it.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    io::Write::write_all(&mut &file, bytes)
}

fn read_trusted(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    ours::open_file(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::supervision::{Condition, When};

    fn directory() -> (tempfile::TempDir, RunDirectory) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::at(folder.path().join("a/run"));
        run.create().unwrap();
        (folder, run)
    }

    #[test]
    fn threads_that_replace_a_file_at_the_same_time_leave_it_whole() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::at(folder.path());
        let text = |thread: u8| vec![thread; 1000];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let directory = &directory;
                scope.spawn(move || (0..200).for_each(|_| directory.replace("file", &text(thread)).unwrap()));
            }
            for _ in 0..200 {
                if let Some(bytes) = directory.read("file").unwrap() {
                    assert!(bytes.len() == 1000 && bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                }
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "temp files were left");
    }

    #[test]
    fn files_are_replaced_as_a_whole_and_nothing_else_is_left() {
        let (_folder, run) = directory();
        assert_eq!(run.read("halt.json").unwrap(), None);
        run.replace("halt.json", b"one").unwrap();
        run.replace("halt.json", b"two").unwrap();
        assert_eq!(run.read("halt.json").unwrap().unwrap(), b"two");
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    fn threads_that_replace_one_file_do_not_get_in_each_others_way() {
        let (_folder, run) = directory();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let run = &run;
                scope.spawn(move || {
                    (0..200).for_each(|_| run.replace("status-x.json", format!("{thread}").as_bytes()).unwrap());
                });
            }
        });
        assert_eq!(run.read("status-x.json").unwrap().unwrap().len(), 1);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    fn conditions_are_kept_and_no_condition_means_no_file() {
        let (_folder, run) = directory();
        assert_eq!(run.read_halt().unwrap(), Halt::default());
        let condition =
            Condition { when: When::Now, set_by: "me".into(), set_at: 1.0, of_supervisor: true, resize: None };
        let halt = Halt { conditions: vec![condition], ..Halt::default() };
        run.change_halt(|_| Ok(halt.clone())).unwrap();
        assert_eq!(run.read_halt().unwrap(), halt);
        assert_eq!(run.change_halt(|_| Err("no".into())).unwrap_err(), "no");
        run.change_halt(|before| Ok(before.map(|_| Halt::default()).unwrap())).unwrap();
        run.change_halt(|before| Ok(before.unwrap())).unwrap();
        assert!(!run.path().join(HALT_FILE).exists());
    }

    #[test]
    fn strange_files_are_refused_by_path_and_never_waited_for() {
        let (_folder, run) = directory();
        let path = run.path().join(HALT_FILE);
        let refused = |word: &str| {
            let problem = run.read_halt().unwrap_err();
            assert!(problem.contains(word) && problem.contains("halt.json"), "{problem}");
        };
        fs::write(&path, "{\"schema\":1,").unwrap();
        refused("EOF");
        fs::write(&path, vec![b' '; FILE_MAX as usize + 1]).unwrap();
        refused("larger");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("not a regular file");
        fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        refused("cannot read");
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        refused("not a regular file");
    }

    #[test]
    fn statuses_of_all_groups_are_found_and_strange_ones_named() {
        let (_folder, run) = directory();
        for group in ["world", "sub-2"] {
            let status = Status { group: group.into(), ..Status::new() };
            run.replace(&status_file(group), &status.encode()).unwrap();
        }
        run.replace("status-x.json", b"hello").unwrap();
        let (statuses, problems) = run.read_statuses();
        let groups: Vec<&str> = statuses.iter().map(|status| status.group.as_str()).collect();
        assert_eq!(groups, ["sub-2", "world"]);
        assert!(problems.len() == 1 && problems[0].contains("status-x.json"), "{problems:?}");
    }
}
