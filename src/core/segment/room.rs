//! How much memory the node can still give: tmpfs, free memory and control groups, read from the system.
//!
//! Touching a page of the segment for which there is no room is fatal: a full tmpfs raises SIGBUS, and exceeding a control group's limit
//! wakes the out-of-memory killer. So every population is preceded by a look at [`Gauge::read`]. The figures may change meanwhile, and
//! other ranks populate at the same time. The reserve allows for this: a rank populates at most [`Gauge::batch`] bytes between two looks,
//! so that all ranks of the node together cannot use up more than half of the reserve on one outdated figure.
//!
//! Parsing is pure and separate from reading. Something that cannot be read or parsed sets no limit. But at least one
//! of the three must be known for [`Available::least`] to be more than a guess; the file system's own refusal (ENOSPC)
//! remains the last safeguard.
#![forbid(unsafe_code)]

use super::SegmentError;
use super::layout::EXTENT_MIN;
use crate::base::units::MIB;
use crate::config::Budget;
use std::path::{Path, PathBuf};

/// The maximum number of threads of one rank that populate at once. Two populate 1.7 times as fast as one, four 3 times, eight 5 times (16
/// cores). More are not used, because the application has work for the cores, too.
pub(super) const THREADS_MAX: usize = 4;

/// A file system that has less than one in this many parts of the free memory was not meant for checkpoints.
const SMALL_PART: u64 = 8;

/// How many bytes each source reports as free, each already less its reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Available {
    /// Free in the tmpfs of the segment; `u64::MAX` if it has no limit.
    pub tmpfs: u64,
    /// Free or easily reclaimed memory of the machine; `u64::MAX` if unknown.
    pub mem_available: u64,
    /// The least that is left in a control group of this process; `None` if none has a limit.
    pub cgroup: Option<u64>,
    /// The least of the three.
    pub least: u64,
}

impl Available {
    /// Is it the size of the file system that keeps the segment small, far below the amount of memory? A container with a
    /// `/dev/shm` of 64 MiB is such a case.
    pub fn is_small_file_system(&self) -> bool {
        let memory = self.cgroup.map_or(self.mem_available, |least| least.min(self.mem_available));
        memory != u64::MAX && self.tmpfs < memory / SMALL_PART
    }
}

/// Reads what memory is available to a segment in `directory`.
///
/// # Errors
/// [`SegmentError::Os`] if the directory's file system cannot be queried (for example because it does not exist).
pub fn available_memory(directory: &Path) -> Result<Available, SegmentError> {
    Gauge::new(directory, 1).read()
}

/// A configured budget in bytes; a percentage refers to [`Available::least`].
///
/// Budgets are limited to 64 TiB, and a percentage to what is available.
pub fn budget_bytes(budget: Budget, available: &Available) -> u64 {
    match budget {
        Budget::Bytes(bytes) => bytes,
        Budget::Percent(percent) if percent > 0.0 => {
            let share = percent.min(100.0) / 100.0 * available.least as f64;
            (share as u64).min(available.least)
        }
        Budget::Percent(_) => 0,
    }
    .min(super::layout::BUDGET_MAX)
}

/// Queries the system each time it is read; finds the control groups once.
pub(super) struct Gauge {
    directory: PathBuf,
    groups: Vec<GroupFiles>,
    node_ranks: u32,
}

impl Gauge {
    pub(super) fn new(directory: &Path, node_ranks: u32) -> Gauge {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let groups = group_files(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        Gauge { directory: directory.to_owned(), groups, node_ranks: node_ranks.max(1) }
    }

    /// What is available now. Takes about 50 microseconds, because it reads four to ten small files of /proc and /sys.
    pub(super) fn read(&self) -> Result<Available, SegmentError> {
        let fs = rustix::fs::statvfs(&self.directory)
            .map_err(|errno| SegmentError::os(&self.directory, "statvfs", errno))?;
        let tmpfs = match fs.f_blocks {
            0 => u64::MAX, // mounted without a limit
            blocks => {
                let free = fs.f_bavail.saturating_mul(fs.f_frsize);
                free.saturating_sub(reserve_of_tmpfs(blocks.saturating_mul(fs.f_frsize)))
            }
        };
        let (total, free) = self.memory().unwrap_or((0, u64::MAX));
        let mem_available = if free == u64::MAX { free } else { free.saturating_sub(reserve_of_memory(total)) };
        let cgroup =
            self.groups.iter().filter_map(|group| group.left(&|path| std::fs::read_to_string(path).ok())).min();
        let least = tmpfs.min(mem_available).min(cgroup.unwrap_or(u64::MAX));
        Ok(Available { tmpfs, mem_available, cgroup, least })
    }

    /// Bytes to populate between two looks.
    pub(super) fn batch(&self) -> u64 {
        let total = self.memory().map_or(0, |(total, _)| total);
        batch_of(total, self.node_ranks)
    }

    /// Threads of one rank that populate in the background: at most [`THREADS_MAX`], and at most the rank's share of the processors
    /// that the calling thread may use.
    pub(super) fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (processors / self.node_ranks as usize).clamp(1, THREADS_MAX)
    }

    fn memory(&self) -> Option<(u64, u64)> {
        parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }
}

/// Bytes between two looks: at most half the reserve for all ranks together, at most 32 MiB (a few milliseconds), at least one huge page.
fn batch_of(total: u64, node_ranks: u32) -> u64 {
    let share = reserve_of_memory(total) / 2 / u64::from(node_ranks);
    (share / EXTENT_MIN * EXTENT_MIN).clamp(EXTENT_MIN, 32 * MIB)
}

/// What is left to others in memory and in control groups: 2 %, at least 64 MiB and at most 1 GiB, but never more than a quarter.
fn reserve_of_memory(total: u64) -> u64 {
    (total / 50).clamp(64 * MIB, 1024 * MIB).min(total / 4)
}

/// What is left to others in the tmpfs: 2 %, at most 64 MiB. Message-passing libraries keep their shared memory there,
/// and die of SIGBUS when it is full.
fn reserve_of_tmpfs(total: u64) -> u64 {
    (total / 50).min(64 * MIB)
}

/// `MemTotal` and `MemAvailable` of /proc/meminfo, in bytes.
fn parse_meminfo(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some((field("MemTotal")?, field("MemAvailable")?))
}

/// One control group that can limit memory, by the paths of its files.
#[derive(Clone, PartialEq, Eq, Debug)]
struct GroupFiles {
    folder: PathBuf,
    unified: bool,
}

impl GroupFiles {
    /// Limit less usage less reserve, or `None` if the group has no limit. Page cache that the kernel would drop first
    /// (the inactive file list) does not count as used; shared memory is never on that list.
    fn left(&self, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
        let number = |name: &str| read(&self.folder.join(name)).and_then(|text| text.trim().parse::<u64>().ok());
        let (limit, usage, cache) = if self.unified {
            let limit = [number("memory.max"), number("memory.high")].into_iter().flatten().min()?;
            (limit, number("memory.current")?, "inactive_file")
        } else {
            // Without a limit, version 1 reports the largest page-aligned number.
            let limit = number("memory.limit_in_bytes").filter(|limit| *limit < 1 << 62)?;
            (limit, number("memory.usage_in_bytes")?, "total_inactive_file")
        };
        let stat = read(&self.folder.join("memory.stat")).unwrap_or_default();
        let reclaimable = parse_stat(&stat, cache).unwrap_or(0);
        let used = usage.saturating_sub(reclaimable);
        Some(limit.saturating_sub(used).saturating_sub(reserve_of_memory(limit)))
    }
}

/// The number after a name in memory.stat.
fn parse_stat(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The groups of this process and all their ancestors that are visible, according to /proc/self/cgroup and /proc/self/mountinfo.
fn group_files(cgroup: &str, mountinfo: &str) -> Vec<GroupFiles> {
    let mut groups = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let unified = id == "0" && controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        for mount in mountinfo.lines().filter_map(parse_mount).filter(|mount| mount.unified == unified) {
            groups.extend(ancestors(&mount, path).map(|folder| GroupFiles { folder, unified }));
        }
    }
    groups
}

/// A mounted control group hierarchy that can hold the memory controller.
struct GroupMount {
    /// The group that the mount shows at its top.
    root: String,
    point: PathBuf,
    unified: bool,
}

/// Reads a line of mountinfo: `id parent major:minor root point options [tags] - type source options`.
fn parse_mount(line: &str) -> Option<GroupMount> {
    let (head, tail) = line.split_once(" - ")?;
    let mut tail = tail.split(' ');
    let unified = match tail.next()? {
        "cgroup2" => true,
        "cgroup" if tail.nth(1)?.split(',').any(|option| option == "memory") => false,
        _ => return None,
    };
    let mut head = head.split(' ').skip(3);
    Some(GroupMount { root: unescape(head.next()?), point: PathBuf::from(unescape(head.next()?)), unified })
}

/// Mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// The folders of a group and its ancestors up to the top of the mount. If the group is outside what the mount shows (in a container
/// that sees the host's names), only the top.
fn ancestors(mount: &GroupMount, path: &str) -> impl Iterator<Item = PathBuf> {
    let below = if mount.root == "/" { Some(path) } else { path.strip_prefix(mount.root.as_str()) };
    let below = below.filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or_default();
    let names: Vec<&str> = below.split('/').filter(|name| !name.is_empty() && *name != "..").collect();
    let folders: Vec<PathBuf> =
        (0..=names.len()).rev().map(|depth| mount.point.join(names[..depth].join("/"))).collect();
    folders.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::GIB;
    use std::collections::HashMap;

    #[test]
    fn a_file_system_much_smaller_than_the_memory_is_told() {
        let small =
            |tmpfs, mem_available, cgroup| Available { tmpfs, mem_available, cgroup, least: 0 }.is_small_file_system();
        assert!(small(64 << 20, 24 << 30, None));
        assert!(!small(12 << 30, 24 << 30, None));
        assert!(!small(64 << 20, 24 << 30, Some(128 << 20)), "the control group has no more either");
        assert!(!small(64 << 20, u64::MAX, None), "nobody knows");
    }

    #[test]
    fn meminfo_is_read_and_garbage_is_not() {
        let text = "MemTotal:       24684092 kB\nMemFree:  1 kB\nMemAvailable:   24282136 kB\nSwapTotal: 0 kB\n";
        assert_eq!(parse_meminfo(text), Some((24_684_092 * 1024, 24_282_136 * 1024)));
        for bad in [
            "",
            "MemTotal: 5 kB\n",
            "MemTotal: x kB\nMemAvailable: 4 kB",
            "MemTotal: 5\nMemAvailable: 99999999999999999999 kB",
        ] {
            assert_eq!(parse_meminfo(bad), None, "{bad}");
        }
    }

    fn folders(cgroup: &str, mountinfo: &str) -> Vec<String> {
        group_files(cgroup, mountinfo).iter().map(|group| group.folder.display().to_string()).collect()
    }

    #[test]
    fn a_version_1_group_and_its_ancestors_are_found() {
        let cgroup = "5:devices:/\n4:cpu,memory:/slurm/uid_0/job_7\n0::/elsewhere\n";
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /sys/fs/cgroup/devices rw,relatime shared:4 - cgroup cgroup rw,devices\n";
        assert_eq!(
            folders(cgroup, mounts),
            [
                "/sys/fs/cgroup/memory/slurm/uid_0/job_7",
                "/sys/fs/cgroup/memory/slurm/uid_0",
                "/sys/fs/cgroup/memory/slurm",
                "/sys/fs/cgroup/memory/"
            ]
        );
    }

    #[test]
    fn a_version_2_group_in_a_container_is_found() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/my\\040group rw - cgroup2 cgroup rw\n";
        assert_eq!(folders("0::/docker/abc/job", mounts), ["/sys/fs/my group/job", "/sys/fs/my group/"]);
        assert_eq!(folders("0::/docker/abcd", mounts), ["/sys/fs/my group/"]);
        assert_eq!(folders("0::/../../x", "35 31 0:32 / /g rw - cgroup2 c rw"), ["/g/x", "/g/"]);
        assert!(folders("nonsense", mounts).is_empty());
        assert!(folders("0::/a", "nonsense").is_empty());
    }

    #[test]
    fn the_tightest_ancestor_counts() {
        let files: HashMap<&str, &str> = [
            ("/g/a/memory.max", "max\n"),
            ("/g/a/memory.high", "8589934592\n"),
            ("/g/a/memory.current", "1073741824\n"),
            ("/g/a/memory.stat", "anon 5\ninactive_file 536870912\nactive_file 7\n"),
            ("/g/memory.max", "max"),
            ("/g/memory.current", "17"),
        ]
        .into();
        let read = |path: &Path| files.get(path.to_str()?).map(|text| (*text).to_owned());
        let group = |folder: &str| GroupFiles { folder: folder.into(), unified: true };
        assert_eq!(group("/g/a").left(&read), Some(8 * GIB - GIB / 2 - reserve_of_memory(8 * GIB)));
        assert_eq!(group("/g").left(&read), None);
        assert_eq!(group("/absent").left(&read), None);
    }

    #[test]
    fn a_version_1_limit_counts_and_its_absence_does_not() {
        let with = |limit: &str| {
            let limit = limit.to_owned();
            let group = GroupFiles { folder: "/m".into(), unified: false };
            group.left(&move |path: &Path| match path.file_name()?.to_str()? {
                "memory.limit_in_bytes" => Some(limit.clone()),
                "memory.usage_in_bytes" => Some("2147483648".into()),
                "memory.stat" => Some("inactive_file 1\ntotal_inactive_file 1073741824\n".into()),
                _ => None,
            })
        };
        assert_eq!(with("4294967296\n"), Some(3 * GIB - reserve_of_memory(4 * GIB)));
        assert_eq!(with("1073741824\n"), Some(0));
        assert_eq!(with("9223372036854771712\n"), None);
    }

    #[test]
    fn a_batch_of_all_ranks_stays_within_half_the_reserve() {
        for (total, ranks) in [(24 * GIB, 1), (24 * GIB, 32), (512 * GIB, 128), (2048 * GIB, 4)] {
            let all = batch_of(total, ranks) * u64::from(ranks);
            assert!(all <= reserve_of_memory(total) / 2, "{total} {ranks}");
        }
        assert_eq!(batch_of(0, 1), EXTENT_MIN);
    }

    #[test]
    fn budgets_are_resolved_and_bounded() {
        let available = Available { tmpfs: 1000, mem_available: 2000, cgroup: None, least: 1000 };
        assert_eq!(budget_bytes(Budget::Percent(25.0), &available), 250);
        assert_eq!(budget_bytes(Budget::Percent(1e9), &available), 1000);
        assert_eq!(budget_bytes(Budget::Percent(f64::NAN), &available), 0);
        assert_eq!(budget_bytes(Budget::Percent(-1.0), &available), 0);
        assert_eq!(budget_bytes(Budget::Bytes(77), &available), 77);
        assert_eq!(budget_bytes(Budget::Bytes(u64::MAX), &available), 1 << 46);
    }

    #[test]
    fn this_machine_has_memory() {
        let available = available_memory(Path::new("/dev/shm")).expect("statvfs of /dev/shm");
        assert!(available.least > 0 && available.least <= available.mem_available, "{available:?}");
        assert!(matches!(available_memory(Path::new("/no/such/place")), Err(SegmentError::Os { .. })));
    }
}
