//! Finds the facts: reads /proc and /sys, asks commands for their versions, and writes one small file in each directory.
//!
//! Nothing is left behind, nothing waits without a bound, and facts that cannot be found out are left open.
#![forbid(unsafe_code)]

use super::facts::{
    Allocation, Directory, Facts, Launcher, Library, Limits, Memory, Objects, Ranks, Slurm, Store, Trial,
};
use crate::asking::{answer, find};
use crate::batch;
use crate::living::claimed;
use crate::memory::{self, Stock};
use crate::places::{local_directories, orphans, store_of};
use bivouac_core::Config;
use bivouac_core::base::calendar::unix_now;
use bivouac_core::base::{CheckpointKey, Incarnation};
use bivouac_core::config::Direct;
use bivouac_core::format::manifest;
use bivouac_core::live::Watch;
use bivouac_core::segment::available_memory;
use bivouac_core::session::place::local_name;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::object;
use bivouac_core::tier::ours::{self, Trust};
use bivouac_core::tier::posix::PosixStorage;
use bivouac_core::tier::storage::Storage;
use bivouac_core::tier::{Around, Tier, TierError, TierId};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long a command may take to print its version.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long the ranks of a job may take to find each other.
const RANKS_LIMIT: Duration = Duration::from_secs(120);
/// The program that initialises MPI, next to this one. It is a separate program so that this one needs no MPI to start.
const PROBE: &str = "bivouac-mpi-probe";

/// Finds all facts, if `with_ranks` together with the other ranks of an MPI job. `None` on all ranks except the first.
pub fn gather(with_ranks: bool) -> Option<Facts> {
    let read = Config::from_env();
    let file = std::env::var_os("BIVOUAC_CONFIG").filter(|file| !file.is_empty());
    let configuration = match (&read, file) {
        (Err(error), _) => Err(error.to_string()),
        (Ok(_), Some(file)) => Ok(format!("{}, and BIVOUAC_ variables", Path::new(&file).display())),
        (Ok(_), None) => Ok("defaults, and BIVOUAC_ variables".into()),
    };
    let config = read.unwrap_or_default();
    let root = std::path::absolute(&config.job.global_directory).unwrap_or(config.job.global_directory.clone());
    let ranks = match with_ranks.then(|| ask_ranks(&root)) {
        None => None,
        Some(Ok((_, rank))) if rank != 0 => return None,
        Some(Ok((ranks, _))) => ranks.map(Ok),
        Some(Err(why)) => Some(Err(why)),
    };
    let storage = PosixStorage::new(Direct::Off);
    let store = store_of(&storage, &root);
    let id = store.as_ref().ok().copied().flatten();
    let local = local_directories(&config, &root, id, None).unwrap_or_default().into_iter().next();
    let local = local.or_else(|| config.node.local_directory.clone()).unwrap_or_else(|| private_local(id));
    let store = match store {
        Ok(None) => None,
        Ok(Some(_)) => Some(look_into_store(&root)),
        Err(why) => Some(Err(why)),
    };
    Some(Facts {
        configuration,
        launchers: ["mpirun", "mpiexec", "srun"].into_iter().filter_map(launcher).collect(),
        is_root: rustix::process::geteuid().is_root(),
        root_may_launch: ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
            .into_iter()
            .all(|name| std::env::var_os(name).is_some()),
        ranks,
        memory: memory(&config),
        local: directory(&std::path::absolute(&local).unwrap_or(local)),
        orphans: orphans(&config, &root, id).unwrap_or_default().into_iter().filter(|orphan| orphan.is_gone).collect(),
        global: directory(&root),
        store,
        objects: config.job.object_url.is_some().then(|| look_into_objects(&config)),
        limits: limits(),
        slurm: slurm(),
        allocation: allocation(),
        libraries: libraries(),
        numa_nodes: numa_nodes(Path::new("/sys/devices/system/node")),
        watch: Watch::open().map(|_| ()).map_err(|why| why.to_string()),
        kernel: kernel(&rustix::system::uname().release().to_string_lossy()),
        now: SystemTime::now(),
        config,
    })
}

/// Where a session creates the local tier if it does not exist. The name depends on the store, which the session creates as well.
fn private_local(store: Option<Incarnation>) -> PathBuf {
    let user = ours::user();
    std::env::temp_dir().join(match store {
        Some(id) => local_name(Some(id), "", user),
        None => format!("bivouac-{user}-…"),
    })
}

// ------------------------------------------------------------------------------------------- commands

fn launcher(name: &'static str) -> Option<Launcher> {
    let path = find(name)?;
    let said = answer(Command::new(&path).arg("--version"), ANSWER_LIMIT).ok();
    let lines =
        said.map(|said| said.lines().filter(|line| !line.trim().is_empty()).take(3).collect::<Vec<_>>().join("\n"));
    Some(Launcher { name, path, version: lines })
}

/// Runs the probe, which meets the other ranks. Returns what they found, on rank 0, and the rank of this process.
fn ask_ranks(global: &Path) -> Result<(Option<Ranks>, u32), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let probe = own.with_file_name(PROBE);
    if !probe.is_file() {
        return Err(format!(
            "{} does not exist: this bivouac was built without MPI (build it with cargo build --features mpi)",
            probe.display()
        ));
    }
    let said = answer(Command::new(&probe).arg(global), RANKS_LIMIT)?;
    read_probe(&said).ok_or_else(|| format!("{} gave an unexpected answer: {said:?}", probe.display()))
}

fn read_probe(said: &str) -> Option<(Option<Ranks>, u32)> {
    // The MPI library may print warnings of its own.
    let line = said.lines().find(|line| line.starts_with('{'))?;
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64()?).ok();
    let numbers = |value: &serde_json::Value| value.as_array()?.iter().map(number).collect::<Option<Vec<u32>>>();
    let rank = number(&value["rank"])?;
    if rank != 0 {
        return Some((None, rank));
    }
    let blind = match value["failure"].as_str() {
        Some(failure) => Err(failure.to_owned()),
        None => Ok(numbers(&value["blind"])?),
    };
    let ranks = Ranks {
        size: number(&value["size"])?,
        per_node: numbers(&value["per_node"])?,
        thread_level: value["thread_level"].as_str()?.to_owned(),
        cut_off: value["cut_off"].as_str().map(str::to_owned),
        library: value["library"].as_str()?.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned(),
        blind,
    };
    Some((Some(ranks), rank))
}

// ------------------------------------------------------------------------------------------- tiers

fn memory(config: &Config) -> Memory {
    let directory = &config.node.memory_directory;
    let available = available_memory(directory).map_err(|error| error.to_string()).and_then(|available| {
        let denied = |errno| format!("{}: this user may not write there: {errno}", directory.display());
        rustix::fs::accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty()).map_err(denied)?;
        Ok(available)
    });
    let names = memory::names(directory).unwrap_or_default();
    let stocks: Vec<Stock> = names.iter().filter_map(|name| Stock::open(directory, name).ok()).collect();
    let dead: Vec<u64> = stocks.iter().filter(|stock| !stock.is_alive).map(|stock| stock.memory_bytes).collect();
    Memory {
        available,
        is_memory: rustix::fs::statfs(directory).is_ok_and(|fs| is_memory(fs.f_type as u64)),
        total: rustix::fs::statvfs(directory).map_or(0, |fs| fs.f_blocks.saturating_mul(fs.f_frsize)),
        huge: std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
            .ok()
            .as_deref()
            .and_then(in_brackets),
        dead: (dead.len(), dead.iter().sum()),
        alive: stocks.iter().filter(|stock| stock.is_alive).count(),
    }
}

/// The chosen word of `always [never] deny`.
fn in_brackets(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// The kind of a file system by its number, and whether several nodes see such a file system.
fn kind_of(number: u64) -> (&'static str, Option<bool>) {
    match number {
        0x0102_1994 => ("tmpfs", Some(false)),
        0x8584_58f6 => ("ramfs", Some(false)),
        0xef53 => ("ext4", Some(false)),
        0x5846_5342 => ("xfs", Some(false)),
        0x9123_683e => ("btrfs", Some(false)),
        0x794c_7630 => ("overlay", Some(false)),
        0x6969 => ("nfs", Some(true)),
        0x0bd0_0bd0 => ("lustre", Some(true)),
        0x4750_4653 => ("gpfs", Some(true)),
        0x1983_0326 => ("beegfs", Some(true)),
        0x00c3_6400 => ("ceph", Some(true)),
        0xff53_4d42 | 0xfe53_4d42 => ("smb", Some(true)),
        0xaad7_aaea => ("panfs", Some(true)),
        0x2003_0528 => ("orangefs", Some(true)),
        0x2fc1_2fc1 => ("zfs", None),
        0x6573_5546 => ("fuse", None),
        0x0102_1997 => ("9p", None),
        _ => ("another file system", None),
    }
}

fn is_memory(number: u64) -> bool {
    matches!(kind_of(number).0, "tmpfs" | "ramfs")
}

fn directory(path: &Path) -> Directory {
    let exists = path.is_dir();
    let nearest = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let trial = match exists.then(|| ours::open(path, Trust::Ours)) {
        Some(Err(error)) => Err(error.to_string()),
        _ => try_out(nearest, exists),
    };
    Directory { path: path.to_owned(), exists, trial }
}

/// Examines a directory. Writes a small file to it if `is_it`: a tier is going to use this directory; otherwise makes
/// and removes a folder in it.
fn try_out(path: &Path, is_it: bool) -> Result<Trial, String> {
    let failed = |action: &str, error: &dyn std::fmt::Display| format!("cannot {action} {}: {error}", path.display());
    if !path.is_dir() {
        return Err(format!("{} is not a directory", path.display()));
    }
    rustix::fs::accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty())
        .map_err(|errno| failed("write to", &errno))?;
    let number = rustix::fs::statfs(path).map_err(|errno| failed("ask about", &errno))?.f_type as u64;
    let room = rustix::fs::statvfs(path).map_err(|errno| failed("ask about", &errno))?;
    let metadata = path.metadata().map_err(|error| failed("look at", &error))?;
    let direct = match is_it {
        true => Some(write_a_file(path).map_err(|error| failed("write a file in", &error))?),
        false => {
            make_a_folder(path)
                .map_err(|error| format!("cannot be created: cannot create a folder in {}: {error}", path.display()))?;
            None
        }
    };
    let (kind, is_shared) = kind_of(number);
    Ok(Trial {
        kind,
        is_memory: is_memory(number),
        is_shared,
        device: metadata.dev(),
        total: room.f_blocks.saturating_mul(room.f_frsize),
        free: room.f_bavail.saturating_mul(room.f_frsize),
        direct,
    })
}

/// Makes and removes a folder. File systems such as /proc let nobody do that, although their permissions do not say so.
fn make_a_folder(parent: &Path) -> std::io::Result<()> {
    let unique = bivouac_core::base::rng::incarnation()?;
    let path = parent.join(format!(".bivouac-doctor-{unique}"));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    std::fs::remove_dir(&path)
}

/// Writes, syncs and removes a file of one page. Returns true if the file could be opened around the page cache, too.
fn write_a_file(folder: &Path) -> std::io::Result<bool> {
    let unique = bivouac_core::base::rng::incarnation()?;
    let path = folder.join(format!(".bivouac-doctor-{unique}"));
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = file.write_all(&[0; 4096]).and_then(|()| file.sync_all());
    let direct = rustix::fs::open(&path, OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).is_ok();
    let removed = std::fs::remove_file(&path);
    written.and(removed).map(|()| direct)
}

fn look_into_store(root: &Path) -> Result<Store, String> {
    let tier = DirectoryTier::new(TierId::GLOBAL, Arc::new(PosixStorage::new(Direct::Off)), root.to_owned());
    let mut store = Store::default();
    let all = tier.all_series().map_err(|error| error.to_string())?;
    let jobs: BTreeSet<(&String, &String)> = all.iter().map(|series| (&series.job, &series.group)).collect();
    for (job, group) in jobs {
        let living = claimed(&tier, job, group, "bivouac doctor");
        store.living.extend(living.map(|why| format!("{job}/{group}: {why}")));
    }
    for series in &all {
        for (generation, version, operation) in tier.folders(series).map_err(|error| error.to_string())? {
            let key = CheckpointKey { generation, version, operation, ..Default::default() };
            let entries = tier.list(&tier.folder_path(series, &key)).unwrap_or_default();
            let is_recorded = entries.iter().any(|entry| entry.name == manifest::FILE_NAME);
            store.folders = (store.folders.0 + 1, store.folders.1 + usize::from(!is_recorded));
            store.temps += entries.iter().filter(|entry| entry.name.ends_with(".tmp")).count();
        }
    }
    Ok(store)
}

/// Finds out whether the object store can be read and written, and can say which of two writers came first. A small
/// object is written and removed.
fn look_into_objects(config: &Config) -> Result<Objects, String> {
    let storage: Arc<dyn Storage> = Arc::new(PosixStorage::new(Direct::Off));
    let tier = object::make(&Around { config, directory: Path::new("."), storage: &storage })?;
    let has_store = tier.find_store().map_err(|error| error.to_string())?.is_some();
    let probe = tier.root().join(format!("doctor-{}", std::process::id()));
    let failed = |action, source| TierError::io(tier.kind(), action, tier.root(), source).to_string();
    tier.put(&probe, b"doctor").map_err(|source| failed("write below", source))?;
    tier.remove_file(&probe).map_err(|source| failed("delete below", source))?;
    Ok(Objects { has_store, can_fence: tier.can_fence() })
}

// ------------------------------------------------------------------------------------------- the rest of the machine

fn limits() -> Limits {
    Limits {
        files: getrlimit(Resource::Nofile).current,
        locked: getrlimit(Resource::Memlock).current,
        core: getrlimit(Resource::Core).current,
    }
}

/// Reads the first two numbers of `6.1.0-13-amd64`.
fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn numa_nodes(folder: &Path) -> usize {
    let is_node = |name: OsString| {
        name.to_str().and_then(|name| name.strip_prefix("node")).is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| is_node(entry.file_name())).count().max(1)
}

/// Looks for libraries where the dynamic linker would look, without loading any.
fn libraries() -> Vec<Library> {
    let cache = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .into_iter()
        .find_map(|name| answer(Command::new(name).arg("-p"), ANSWER_LIMIT).ok())
        .unwrap_or_default();
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&variable).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let usual =
        ["/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/local/lib"];
    folders.extend(usual.map(PathBuf::from));
    let names = ["libhwloc", "libnuma", "libisal"];
    names.map(|name| Library { name, path: in_cache(&cache, name).or_else(|| in_folders(&folders, name)) }).into()
}

/// Finds a library in the output of `ldconfig -p`, which has lines such as
/// `libnuma.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnuma.so.1`.
fn in_cache(cache: &str, name: &str) -> Option<PathBuf> {
    let is_it = |line: &&str| line.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with(".so"));
    cache.lines().find(is_it)?.split_once("=> ").map(|(_, path)| PathBuf::from(path.trim()))
}

fn in_folders(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    let start = format!("{name}.so");
    let files = |folder: &PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&start)))
    };
    folders.iter().find_map(files)
}

// ------------------------------------------------------------------------------------------- batch systems

fn allocation() -> Option<Allocation> {
    let system = batch::here()?;
    let left = system.end_time().map(|end| Duration::from_secs(end.saturating_sub(unix_now() as u64)));
    Some(Allocation { system, left })
}

fn slurm() -> Option<Slurm> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let job = variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID"))?;
    let missing: Vec<&'static str> = ["scontrol", "srun"].into_iter().filter(|name| find(name).is_none()).collect();
    let shown = match missing.contains(&"scontrol") {
        true => None,
        false => answer(Command::new("scontrol").args(["-o", "show", "job", &job]), ANSWER_LIMIT).ok(),
    };
    Some(Slurm {
        nodes: variable("SLURM_JOB_NUM_NODES")
            .or_else(|| variable("SLURM_NNODES"))
            .and_then(|nodes| nodes.parse().ok()),
        tasks_per_node: variable("SLURM_TASKS_PER_NODE"),
        requeue: shown.as_deref().and_then(requeue),
        array_task: variable("SLURM_ARRAY_TASK_ID"),
        missing,
        job,
    })
}

/// Finds `Requeue=1` among the words of `scontrol -o show job`.
fn requeue(shown: &str) -> Option<bool> {
    let value = shown.split_whitespace().find_map(|word| word.strip_prefix("Requeue="))?;
    Some(value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requeue_is_found_among_the_words() {
        assert_eq!(requeue("JobId=7 Requeue=1 Restarts=0"), Some(true));
        assert_eq!(requeue("JobId=7 Requeue=0"), Some(false));
        assert_eq!(requeue("slurm_load_jobs error: Invalid job id"), None);
    }

    #[test]
    fn libraries_are_found_in_the_linkers_cache_and_in_folders() {
        let cache = "3 libs found\n\tlibnumaX.so (libc6) => /x\n\tlibnuma.so.1 (libc6,x86-64) => /lib/libnuma.so.1\n";
        assert_eq!(in_cache(cache, "libnuma"), Some("/lib/libnuma.so.1".into()));
        assert_eq!(in_cache(cache, "libisal"), None);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libisal.so.2"), "").unwrap();
        assert_eq!(in_folders(&[folder.path().into()], "libisal"), Some(folder.path().join("libisal.so.2")));
        assert_eq!(in_folders(&["/none".into()], "libisal"), None);
    }

    #[test]
    fn kernels_and_choices_are_read() {
        assert_eq!([kernel("6.1.0-13-amd64"), kernel("5.14"), kernel("odd")], [Some((6, 1)), Some((5, 14)), None]);
        assert_eq!(in_brackets("always within_size [advise] never\n").as_deref(), Some("advise"));
        assert_eq!(in_brackets("always"), None);
    }

    #[test]
    fn numa_nodes_are_counted_and_one_is_the_least() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(numa_nodes(folder.path()), 1);
        for name in ["node0", "node1", "node12", "nodes", "online", "power"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!([numa_nodes(folder.path()), numa_nodes(Path::new("/none"))], [3, 1]);
    }

    #[test]
    fn what_the_probe_says_is_read_with_care() {
        let said = "warning: something\n{\"rank\":0,\"size\":2,\"per_node\":[2],\"thread_level\":\"MPI_THREAD_MULTIPLE\",\"cut_off\":\"no route\",\"library\":\"Open MPI\",\"blind\":[1]}\n";
        let (ranks, rank) = read_probe(said).unwrap();
        let ranks = ranks.unwrap();
        assert_eq!((rank, ranks.size, ranks.per_node, ranks.blind), (0, 2, vec![2], Ok(vec![1])));
        assert_eq!(ranks.cut_off.as_deref(), Some("no route"));
        assert_eq!(read_probe("{\"rank\":3}").unwrap(), (None, 3));
        for bad in ["", "hello", "{", "{\"rank\":0}", "{\"rank\":-1}"] {
            assert!(read_probe(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_judged_by_its_ancestor_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let found = directory(&path);
        assert!(!found.exists && found.trial.is_ok_and(|trial| trial.direct.is_none()));
        assert!(!folder.path().join("a").exists());
        let found = directory(folder.path());
        assert!(found.exists && found.trial.is_ok_and(|trial| trial.direct.is_some()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(directory(&file.join("x")).trial.unwrap_err().contains("not a directory"));
    }
}
