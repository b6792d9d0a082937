//! Stores that real sessions have written, for tests of the command line, and helpers that run the command.
//!
//! A [`Store`] is made by a group of ranks that are threads of this process, with the real file system and node segments in folders of
//! their own. Neither the tests nor the command need MPI. Ranks are on one or several nodes; each node has a memory folder and a local
//! directory. A session that is dropped without being closed leaves everything as a killed process would.
#![allow(dead_code)] // Each test program uses a part of this.

use crate::limit::wait_until;
use assert_cmd::Command;
use bivouac_core::base::units::MIB;
use bivouac_core::comm::threads;
use bivouac_core::config::{Budget, Config};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::{Level, Session};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use tempfile::TempDir;

/// The number of ranks of a store on one node.
pub const RANKS: u32 = 2;

/// Directories of a job, removed at the end.
pub struct Store {
    pub disk: TempDir,
    pub memory: TempDir,
    /// The node of each rank.
    pub nodes: Vec<u32>,
    /// The local tier goes to a private folder in this directory, as it does if no local directory is configured.
    pub temporary: Option<PathBuf>,
}

impl Store {
    pub fn empty() -> Store {
        Store::on(&[0; RANKS as usize])
    }

    /// An empty store of a job with one rank per entry; the entry is the rank's node.
    pub fn on(nodes: &[u32]) -> Store {
        let disk = tempfile::Builder::new().prefix("bivouac-test-cli-").tempdir().expect("a temporary directory");
        let memory = tempfile::Builder::new().prefix("bivouac-test-cli-").tempdir_in("/dev/shm").expect("/dev/shm");
        let store = Store { disk, memory, nodes: nodes.to_vec(), temporary: None };
        for node in store.all_nodes() {
            std::fs::create_dir_all(store.memory_of(node)).expect("our own folder");
        }
        store
    }

    /// A store with these versions of the series `heat`, on both directory tiers.
    pub fn with(versions: &[u64]) -> Store {
        let store = Store::empty();
        store.run(|_| (), |session, rank| take(session, rank, versions, Level::System));
        store
    }

    pub fn all_nodes(&self) -> Vec<u32> {
        let mut nodes = self.nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn is_single(&self) -> bool {
        self.all_nodes().len() == 1
    }

    pub fn global(&self) -> PathBuf {
        self.disk.path().join("global")
    }

    pub fn local(&self) -> PathBuf {
        self.local_of(0)
    }

    pub fn local_of(&self, node: u32) -> PathBuf {
        self.disk.path().join(if self.is_single() { "local".into() } else { format!("local-{node}") })
    }

    pub fn memory_of(&self, node: u32) -> PathBuf {
        if self.is_single() {
            return self.memory.path().to_owned();
        }
        self.memory.path().join(format!("node-{node}"))
    }

    fn config(&self, node: u32) -> Config {
        let mut config = Config::default();
        config.job.name = Some("cli".into());
        config.job.block_bytes = 4096;
        config.job.global_directory = self.global();
        config.job.global.keep_last = 100;
        config.job.local.keep_last = 100;
        config.node.local_directory = self.temporary.is_none().then(|| self.local_of(node));
        config.node.local_allow_tmpfs = true;
        config.node.memory_directory = self.memory_of(node);
        config.node.memory_budget = Budget::Bytes(16 * MIB);
        config
    }

    /// Runs a session on every rank and closes it.
    pub fn run(&self, change: impl Fn(&mut Config), work: impl Fn(&Session, u32) + Sync) {
        self.sessions(change, work, true);
    }

    /// Runs a session on every rank and abandons it as a killed process would.
    pub fn run_killed(&self, change: impl Fn(&mut Config), work: impl Fn(&Session, u32) + Sync) {
        self.sessions(change, work, false);
        // The session's threads end after their current work, and the kernel's locks end with them.
        wait_until("nothing of the session is left", || !self.is_held());
    }

    /// Does something while a session is open on every rank. The sessions are then closed, even if a check fails.
    pub fn while_it_runs<T>(&self, change: impl Fn(&mut Config) + Send, work: impl FnOnce() -> T) -> T {
        struct Ends<'b>(&'b Barrier);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.wait();
            }
        }
        let (up, down) = (Barrier::new(self.nodes.len() + 1), Barrier::new(self.nodes.len() + 1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                self.run(change, |_, _| {
                    up.wait();
                    down.wait();
                });
            });
            up.wait();
            let _ends = Ends(&down);
            work()
        })
    }

    /// Does a part of a session still hold a segment or a claim?
    fn is_held(&self) -> bool {
        let segments = self.all_nodes().into_iter().flat_map(|node| entries(&self.memory_of(node)));
        let mut names =
            segments.filter_map(|path| Some((path.parent()?.to_owned(), path.file_name()?.to_str()?.to_owned())));
        let claims =
            std::fs::read_dir(self.global()).into_iter().flatten().flatten().map(|job| job.path().join("world/claims"));
        let mut files = claims.filter(|folder| folder.is_dir()).flat_map(|folder| entries(&folder));
        names.any(|(folder, name)| bivouac_core::segment::is_held(&folder, &name).is_ok_and(|held| held))
            || files.any(|path| std::fs::File::open(path).is_ok_and(|file| file.try_lock().is_err()))
    }

    fn sessions(&self, change: impl Fn(&mut Config), work: impl Fn(&Session, u32) + Sync, closes: bool) {
        let end = Barrier::new(self.nodes.len());
        std::thread::scope(|scope| {
            for (rank, comm) in (0u32..).zip(threads::world(&self.nodes)) {
                let mut config = self.config(self.nodes[rank as usize]);
                change(&mut config);
                let (work, end) = (&work, &end);
                scope.spawn(move || {
                    let mut place = Place::here(&config, Workers::Threads, "world".into()).expect("a place");
                    place.temporary = self.temporary.clone().unwrap_or(place.temporary);
                    let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
                    work(&session, rank);
                    if closes {
                        session.close().expect("closes");
                    } else {
                        // No rank leaves while another still needs its votes.
                        end.wait();
                        drop(session);
                    }
                });
            }
        });
    }

    pub fn series(&self, root: &Path) -> PathBuf {
        let job = only_folder(root);
        job.join("world/heat")
    }

    /// The checkpoint folders of a tier, oldest first.
    pub fn folders(&self, root: &Path) -> Vec<PathBuf> {
        entries(&self.series(root))
    }

    pub fn segment(&self) -> PathBuf {
        self.segment_of(0)
    }

    /// The only segment of a node.
    pub fn segment_of(&self, node: u32) -> PathBuf {
        let segments = entries(&self.memory_of(node));
        assert_eq!(segments.len(), 1, "{segments:?}");
        segments[0].clone()
    }

    /// Empties memory and local storage of a node, as its loss would.
    pub fn wipe(&self, node: u32) {
        self.wipe_memory(node);
        self.wipe_local(node);
    }

    pub fn wipe_memory(&self, node: u32) {
        entries(&self.memory_of(node)).iter().for_each(|path| std::fs::remove_file(path).expect("removed"));
    }

    pub fn wipe_local(&self, node: u32) {
        let path = self.local_of(node);
        if path.exists() {
            std::fs::remove_dir_all(path).expect("removed");
        }
    }

    /// Restarts `heat` in a new run and checks every byte. Returns the version, or `None` if there was nothing to restore.
    pub fn restart(&self) -> Option<u64> {
        self.restart_with(|_| ())
    }

    /// As [`Store::restart`], with other settings.
    pub fn restart_with(&self, change: impl Fn(&mut Config)) -> Option<u64> {
        let found = std::sync::Mutex::new(None);
        self.run(change, |session, rank| {
            let restored = session.begin_restore("heat").run(|r| {
                let version: u64 = r.value("step")?;
                let mut data = field(rank, version);
                data.fill(0.0);
                r.load("field", &mut data)?;
                assert_eq!(data, field(rank, version), "rank {rank}, version {version}");
                Ok(())
            });
            let version = restored.expect("no damage").map(|restored| restored.version);
            *found.lock().expect("no panic") = version;
        });
        found.into_inner().expect("no panic")
    }
}

/// The main region of a rank at a version.
pub fn field(rank: u32, version: u64) -> Vec<f64> {
    (0..1500).map(|i| f64::from(i) + f64::from(rank) + 1e4 * version as f64).collect()
}

/// Takes versions with a region of several blocks, one of less than a block, an empty one, and a value.
pub fn take(session: &Session, rank: u32, versions: &[u64], level: Level) {
    for version in versions {
        let field = field(rank, *version);
        let mut checkpoint = session.begin_checkpoint("heat", *version).expect("a checkpoint");
        checkpoint.save_shaped("field", &field, &[30, 50]).expect("a region");
        checkpoint.save("few", &[7u16, 8, 9]).expect("a region");
        checkpoint.save::<u8>("none", &[]).expect("a region");
        checkpoint.value("step", version).expect("a value");
        let pending = checkpoint.capture().expect("captured");
        assert!(pending.wait(level).expect("committed") >= level);
    }
}

pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = listed.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

pub fn only_folder(folder: &Path) -> PathBuf {
    let folders: Vec<PathBuf> = entries(folder).into_iter().filter(|path| path.is_dir()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders[0].clone()
}

/// All files of committed checkpoints below a root: containers and manifests.
pub fn data_files(root: &Path) -> Vec<PathBuf> {
    let job = only_folder(root);
    entries(&job.join("world/heat")).iter().flat_map(|folder| entries(folder)).collect()
}

/// Every area of a container by name, with its range of bytes.
pub fn areas(container: &[u8]) -> Vec<(&'static str, std::ops::Range<usize>)> {
    let word = |at: usize| u64::from_le_bytes(container[at..at + 8].try_into().expect("eight bytes")) as usize;
    let (meta, blocks, body, total) = (word(104), word(112), word(120), word(128));
    let index = (256 + meta).next_multiple_of(16);
    vec![
        ("header", 0..256),
        ("region table", 256..256 + meta),
        ("block index", index..index + 16 * blocks),
        ("zeros after the index", index + 16 * blocks..body),
        ("body", body..body + 12000),
        ("zeros after a body", body + 12000..body + 12288),
        ("last shard or index", total..container.len() - 64),
        ("footer", container.len() - 64..container.len()),
    ]
}

/// The result of a run of the command.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        let document: Value =
            serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err));
        assert_eq!(document["schema"], 1);
        document
    }
}

/// The command, in an environment without settings of Bivouac.
pub fn command() -> Command {
    let mut command = Command::cargo_bin("bivouac").expect("the command is built");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BIVOUAC_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end, which must not be a crash.
pub fn ran(mut command: Command) -> Ran {
    let output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    Ran { status: output.status.code().unwrap_or_else(|| panic!("a signal: {err}")), out, err }
}

pub fn bivouac<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let mut command = command();
    command.args(args);
    ran(command)
}

pub fn with_path(args: &[&str], path: &Path) -> Ran {
    let path = path.to_str().expect("UTF-8");
    bivouac(&[args, &[path]].concat())
}
