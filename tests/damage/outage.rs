//! Storage that fails under a running job: file systems that fill up, become read-only, refuse access or vanish, and memory that is too
//! small. The application runs to its end in all cases, and its ranks hear the same verdict.

use crate::bed::{Bed, RANKS, Running, Told, worker};
use crate::case::{copy_tree, files};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// May this process mount file systems in a namespace of its own? Prints a loud note if it may not.
fn can_mount(test: &str) -> bool {
    let script = "mount -t tmpfs -o size=1m bivouac-probe /mnt";
    let tried = Command::new("unshare").args(["-m", "sh", "-c", script]).stderr(Stdio::null()).status();
    let can = is_root() && tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!(
            "\n*** SKIPPED {test}: it mounts a small file system. Run it as root: sudo -E cargo nextest run --test damage {test} ***\n"
        );
    }
    can
}

/// A bed whose jobs run as an ordinary user: as `nobody` if the tests run as root, and otherwise as the user who runs the tests.
fn ordinary_bed() -> Bed {
    let mut bed = Bed::new(&std::env::temp_dir());
    if is_root() {
        let program = bed.folder().join("worker");
        fs::copy(worker(), &program).unwrap();
        bed.program = program;
        for folder in [bed.folder().to_owned(), bed.memory.parent().unwrap().to_owned()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for folder in [&bed.memory, &bed.local, &bed.global] {
            std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let temporary = bed.folder().join("tmp");
        fs::create_dir(&temporary).unwrap();
        std::os::unix::fs::chown(&temporary, Some(NOBODY), Some(NOBODY)).unwrap();
        bed.set("TMPDIR", temporary.to_str().unwrap()).set("HOME", temporary.to_str().unwrap());
        bed.wrapper = as_nobody();
    }
    bed
}

fn as_nobody() -> Vec<String> {
    let id = NOBODY.to_string();
    ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"].map(Into::into).into()
}

/// Gives a bed a small file system of its own at `at` that only the job sees.
fn mount_for(bed: &mut Bed, at: &Path, size: &str) {
    let options = format!("size={size},mode=700,uid={NOBODY},gid={NOBODY}");
    let script = format!("mount -t tmpfs -o {options} bivouac-test \"$0\" && exec \"$@\"");
    let mut wrapper: Vec<String> = ["unshare", "-m", "sh", "-c", &script, at.to_str().unwrap()].map(Into::into).into();
    wrapper.extend(std::mem::take(&mut bed.wrapper));
    bed.wrapper = wrapper;
}

/// Runs a shell command in the job's mount namespace.
fn inside(job: &Running<'_>, script: &str) {
    let target = job.pid().to_string();
    let output = Command::new("nsenter").args(["-t", &target, "-m", "sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

/// The lines that start with `word`, sorted. All ranks must have the same lines, but not in the same order: a rank may hear of one
/// version's level before or after another version's.
fn same<'a>(told: &'a Told, word: &'a str) -> Vec<&'a str> {
    let sorted = |rank| {
        let mut lines = told.lines(rank, word);
        lines.sort_unstable();
        lines
    };
    let first = sorted(0);
    for rank in 1..RANKS {
        assert_eq!(sorted(rank), first, "rank {rank} heard something else than rank 0\n{told:?}");
    }
    first
}

/// The versions that were committed at a level.
fn committed(told: &Told, level: &str) -> Vec<u64> {
    let level = format!("level={level} verdict=committed");
    let lines = same(told, "report version=");
    let ours = lines.iter().filter(|line| line.ends_with(&level));
    let mut versions: Vec<u64> = ours.map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    versions.sort_unstable();
    versions
}

/// The digest with which an undisturbed run of this many versions ends.
fn digest(versions: &str) -> String {
    Bed::in_memory().run(&["run", "--versions", versions]).unwrap().line(0, "digest ").to_owned()
}

/// The tier that fails.
#[derive(Clone, Copy, PartialEq)]
enum Tier {
    Local,
    Global,
}

impl Tier {
    fn name(self) -> &'static str {
        if self == Tier::Local { "local" } else { "global" }
    }

    fn level(self) -> &'static str {
        if self == Tier::Local { "node-reboot" } else { "system" }
    }

    fn other_level(self) -> &'static str {
        if self == Tier::Local { "system" } else { "node-reboot" }
    }

    fn root(self, bed: &Bed) -> PathBuf {
        if self == Tier::Local { bed.local.clone() } else { bed.global.clone() }
    }
}

/// A tier that fails while versions 3 and 4 are taken, and works again for 5 to 7.
///
/// `fail` and `heal` get the job and the tier's directory. `errors` are words of the system's error messages: every
/// verdict during the failure must contain one of them, and a path in the tier.
fn outage(
    bed: &Bed,
    tier: Tier,
    errors: &[&str],
    fail: impl Fn(&Running<'_>, &Path),
    heal: impl Fn(&Running<'_>, &Path),
) {
    let root = tier.root(bed);
    let seen = bed.folder().join("seen");
    let Some(mut job) = bed.start(&["run", "--versions", "7", "--hold", "3,5", "--wait", "process"]) else { return };
    job.wait_for_hold(3);
    fail(&job, &root);
    job.go(3);
    job.wait_for_hold(5);
    heal(&job, &root);
    // This copies what a restart would find now.
    inside_or_here(&job, bed, &root, &seen);
    job.go(5);
    let told = job.finish();

    assert_eq!(told.line(0, "digest "), digest("7"), "the computation itself was disturbed");
    assert_eq!(committed(&told, "process"), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(committed(&told, tier.other_level()), [1, 2, 3, 4, 5, 6, 7], "the other tier was disturbed\n{told:?}");
    assert_eq!(committed(&told, tier.level()), [1, 2, 5, 6, 7], "{told:?}");
    for version in [3, 4] {
        let word = format!("report version={version} level={} verdict=abandoned (", tier.level());
        let verdicts = same(&told, &word);
        assert_eq!(verdicts.len(), 1, "{word}\n{told:?}");
        let path = root.to_str().unwrap();
        assert!(verdicts[0].contains(path) && verdicts[0].contains("os error"), "no path, no errno: {}", verdicts[0]);
        assert!(errors.iter().any(|error| verdicts[0].contains(error)), "{errors:?}: {}", verdicts[0]);
    }
    // Only the root prints the line, and names ranks with the same error together.
    let said = |level: &str| {
        let word = format!("level={level} culprits=");
        told.streams.lines().filter(|line| line.contains("event=abandoned") && line.contains(&word)).count()
    };
    // One line is printed when the outage begins and one when it ends, although two versions were refused.
    assert_eq!((said(tier.level()), said(tier.other_level())), (1, 0), "{told:?}");
    // Versions 5 and 6 may be decided at the same time: the line names the version whose verdict arrives first.
    let again = format!("event=reached-again level={} version=", tier.level());
    let again: Vec<&str> = told.streams.split(&again).skip(1).filter_map(|line| line.lines().next()).collect();
    assert!(again.len() == 1 && ["5 refused=2", "6 refused=2"].contains(&again[0]), "{again:?}\n{told:?}");
    assert!(!told.streams.contains("event=write-failed"), "a line for each rank\n{told:?}");
    let failures = |rank| told.counter(rank, "stats ", &format!("level_failures.{}", tier.name()));
    assert!((0..RANKS).all(|rank| failures(rank) == 2), "{told:?}");

    // Earlier versions are unharmed.
    let mut before = Bed::in_memory();
    let case = before.folder().join("seen");
    copy_tree(&seen, &case.join(tier.name())).unwrap();
    for other in ["memory", "local", "global"] {
        fs::create_dir_all(case.join(other)).unwrap();
    }
    before
        .env
        .extend(bed.env.iter().filter(|(key, _)| key.starts_with("BIVOUAC")).map(|(k, v)| (k.clone(), v.clone())));
    // The job's key contains the user.
    let program = before.folder().join("worker");
    fs::copy(worker(), &program).unwrap();
    before.program = program;
    if is_root() {
        give_to_nobody(before.folder());
        fs::set_permissions(before.folder(), fs::Permissions::from_mode(0o755)).unwrap();
        before.wrapper = as_nobody();
        before.set("TMPDIR", bed.folder().join("tmp").to_str().unwrap());
    }
    let told = before.run(&["restore", case.to_str().unwrap()]).unwrap();
    for rank in 0..RANKS {
        assert_eq!(told.lines(rank, "case=seen verified version="), ["2"], "{told:?}");
    }
}

fn give_to_nobody(folder: &Path) {
    std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => give_to_nobody(&path),
            false => std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap(),
        }
    }
}

fn inside_or_here(job: &Running<'_>, bed: &Bed, root: &Path, seen: &Path) {
    match bed.wrapper.first().is_some_and(|word| word == "unshare") {
        true => inside(job, &format!("cp -a {} {}", root.display(), seen.display())),
        false => copy_tree(root, seen).unwrap(),
    }
}

fn full(tier: Tier) {
    let mut bed = ordinary_bed();
    let root = tier.root(&bed);
    mount_for(&mut bed, &root, "24m");
    let fill = |job: &Running<'_>, root: &Path| {
        inside(job, &format!("head -c 1G /dev/zero > {}/ballast 2>/dev/null; test -s {0}/ballast", root.display()));
    };
    let free = |job: &Running<'_>, root: &Path| inside(job, &format!("rm {}/ballast", root.display()));
    outage(&bed, tier, &["No space left on device (os error 28)"], fill, free);
}

#[test]
fn a_local_file_system_that_fills_up_costs_its_level_and_nothing_else() {
    if can_mount("a_local_file_system_that_fills_up_costs_its_level_and_nothing_else") {
        full(Tier::Local);
    }
}

#[test]
fn a_global_file_system_that_fills_up_costs_its_level_and_nothing_else() {
    if can_mount("a_global_file_system_that_fills_up_costs_its_level_and_nothing_else") {
        full(Tier::Global);
    }
}

fn read_only(tier: Tier) {
    let mut bed = ordinary_bed();
    let root = tier.root(&bed);
    mount_for(&mut bed, &root, "64m");
    // The kernel makes a file system read-only after an error, but refuses such a remount while the run's claim is open
    // for writing. So the test puts a read-only view of the file system on top.
    let over = |job: &Running<'_>, root: &Path| {
        inside(job, &format!("mount --bind {0} {0} && mount -o remount,bind,ro {0}", root.display()));
    };
    // The unmount is lazy, because the run holds the directory that it sees.
    let off = |job: &Running<'_>, root: &Path| inside(job, &format!("umount -l {}", root.display()));
    outage(&bed, tier, &["Read-only file system (os error 30)"], over, off);
}

#[test]
fn a_local_file_system_that_turns_read_only_costs_its_level_and_nothing_else() {
    if can_mount("a_local_file_system_that_turns_read_only_costs_its_level_and_nothing_else") {
        read_only(Tier::Local);
    }
}

#[test]
fn a_global_file_system_that_turns_read_only_costs_its_level_and_nothing_else() {
    if can_mount("a_global_file_system_that_turns_read_only_costs_its_level_and_nothing_else") {
        read_only(Tier::Global);
    }
}

fn forbidden(tier: Tier) {
    let mode = |mode: u32| {
        move |_: &Running<'_>, root: &Path| fs::set_permissions(root, fs::Permissions::from_mode(mode)).unwrap()
    };
    outage(&ordinary_bed(), tier, &["Permission denied (os error 13)"], mode(0o000), mode(0o700));
}

#[test]
fn a_local_directory_that_refuses_costs_its_level_and_nothing_else() {
    forbidden(Tier::Local);
}

#[test]
fn a_global_directory_that_refuses_costs_its_level_and_nothing_else() {
    forbidden(Tier::Global);
}

/// The directory is moved away, and something else takes its place; later the directory returns.
fn gone(tier: Tier) {
    let bed = ordinary_bed();
    let aside = bed.folder().join("aside");
    let fail = |_: &Running<'_>, root: &Path| {
        fs::rename(root, &aside).unwrap();
        fs::write(root, "not a directory").unwrap();
    };
    let heal = |_: &Running<'_>, root: &Path| {
        fs::remove_file(root).unwrap();
        fs::rename(&aside, root).unwrap();
    };
    outage(&bed, tier, &["Not a directory (os error 20)"], fail, heal);
}

#[test]
fn a_local_directory_that_is_replaced_by_a_file_costs_its_level_and_nothing_else() {
    gone(Tier::Local);
}

#[test]
fn a_global_directory_that_is_replaced_by_a_file_costs_its_level_and_nothing_else() {
    gone(Tier::Global);
}

#[test]
fn a_directory_removed_under_us_never_stops_the_application_and_later_versions_are_restorable() {
    for (tier, survivor) in [("local", "global"), ("global", "local")] {
        let bed = Bed::on_disk();
        let Some(mut job) = bed.start(&["run", "--versions", "7", "--hold", "3,5", "--wait", "process"]) else {
            return;
        };
        job.wait_for_hold(3);
        fs::remove_dir_all(bed.folder().join(tier)).unwrap();
        job.go(3);
        job.wait_for_hold(5);
        job.go(5);
        let told = job.finish();
        let vanished = format!("event=directory-vanished path={}:", bed.folder().join(tier).display());
        assert_eq!(told.streams.matches(&vanished).count(), 1, "{told:?}");
        assert_eq!(told.line(0, "digest "), digest("7"));
        same(&told, "report ");
        let level = if survivor == "local" { "node-reboot" } else { "system" };
        assert_eq!(committed(&told, level), [1, 2, 3, 4, 5, 6, 7], "the {survivor} tier was disturbed\n{told:?}");
        let again = bed.run(&["run", "--versions", "7"]).unwrap();
        for rank in 0..RANKS {
            assert_eq!(again.line(rank, "verified version="), "7", "{tier} removed\n{again:?}");
        }
    }
}

#[test]
fn a_memory_segment_removed_under_us_costs_its_level_and_is_told_once() {
    let bed = Bed::on_disk();
    let Some(mut job) = bed.start(&["run", "--versions", "5", "--hold", "3", "--wait", "node-reboot"]) else { return };
    job.wait_for_hold(3);
    for entry in fs::read_dir(&bed.memory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    job.go(3);
    let told = job.finish();
    assert_eq!(told.line(0, "digest "), digest("5"));
    assert_eq!(committed(&told, "process"), [1, 2], "{told:?}");
    assert_eq!(committed(&told, "node-reboot"), [1, 2, 3, 4, 5], "{told:?}");
    assert_eq!(told.streams.matches("event=memory-segment-vanished").count(), 1, "{told:?}");
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory that is too small

/// Takes three versions, is killed, and restores the third from the local tier. Returns the first run's output.
fn three_versions_and_a_kill(bed: &Bed) -> Option<Told> {
    let args = ["run", "--versions", "4", "--hold", "4", "--elements", "400001", "--wait", "node-reboot"];
    let mut job = bed.start(&args)?;
    job.wait_for_hold(4);
    job.kill(&[0, 1, 2, 3]);
    let killed = job.end();
    let again = bed.run(&["run", "--versions", "3", "--elements", "400001"]).unwrap();
    for rank in 0..RANKS {
        assert_eq!(again.line(rank, "restored "), "version=3 generation=1 tier=local");
        assert_eq!(again.line(rank, "verified version="), "3");
    }
    Some(killed)
}

#[test]
fn a_memory_budget_smaller_than_one_shard_captures_to_the_next_tier_and_says_so() {
    for progress in ["auto", "stepped"] {
        let mut bed = Bed::in_memory();
        bed.set("BIVOUAC_MEMORY_BUDGET", "2 MiB").set("BIVOUAC_ENGINE_PROGRESS", progress);
        let Some(killed) = three_versions_and_a_kill(&bed) else { return };
        assert_eq!(committed(&killed, "process"), [0; 0], "{killed:?}");
        assert_eq!(committed(&killed, "node-reboot"), [1, 2, 3]);
        assert_eq!(committed(&killed, "system"), [1, 2, 3]);
        let said: Vec<&str> = killed.streams.lines().filter(|line| line.contains("event=capture-direct")).collect();
        assert!(said.len() == 1 && said[0].contains("all 4 ranks: event=capture-direct"), "{}", killed.streams);
        let calm = bed.run(&["run", "--versions", "6", "--elements", "400001"]).unwrap();
        for rank in 0..RANKS {
            assert_eq!(calm.counter(rank, "stats ", "direct_captures"), 3, "{calm:?}");
        }
    }
}

#[test]
fn a_memory_budget_of_one_to_two_shards_is_a_staging_buffer_and_no_level() {
    for progress in ["auto", "stepped"] {
        let mut bed = Bed::in_memory();
        // Shards of 3.2 MB take 4 MiB, so there is room for one of each rank, and one more.
        bed.set("BIVOUAC_MEMORY_BUDGET", "20 MiB").set("BIVOUAC_ENGINE_PROGRESS", progress);
        let Some(killed) = three_versions_and_a_kill(&bed) else { return };
        assert_eq!(committed(&killed, "process"), [0; 0], "{killed:?}");
        assert_eq!(committed(&killed, "node-reboot"), [1, 2, 3]);
        assert!(!killed.streams.contains("event=capture-direct"), "{}", killed.streams);
        // Without a pause, the buffer is the limit; in any case, all versions reach the durable tiers.
        let args = ["run", "--versions", "20", "--elements", "400001"];
        let pressed = bed.run(&args).unwrap();
        assert_eq!(committed(&pressed, "system"), (4..=20).collect::<Vec<_>>(), "{pressed:?}");
    }
}

#[test]
fn a_lock_limit_of_nothing_is_no_obstacle_for_an_ordinary_user() {
    let mut bed = ordinary_bed();
    let mut wrapper: Vec<String> = ["prlimit", "--memlock=0:0"].map(Into::into).into();
    wrapper.extend(std::mem::take(&mut bed.wrapper));
    bed.wrapper = wrapper;
    let Some(told) = bed.run(&["run", "--versions", "5", "--wait", "process"]) else { return };
    assert_eq!(told.line(0, "digest "), digest("5"));
    assert_eq!(committed(&told, "process"), [1, 2, 3, 4, 5], "{told:?}");
    assert_eq!(committed(&told, "system"), [1, 2, 3, 4, 5], "{told:?}");
}

#[test]
fn shared_memory_too_small_for_a_segment_turns_the_tier_off_and_says_so() {
    if !can_mount("shared_memory_too_small_for_a_segment_turns_the_tier_off_and_says_so") {
        return;
    }
    // First there is room for no segment at all, then for one that holds no shard.
    for (size, word) in [("4k", "memory OFF ("), ("1m", "event=small-memory-directory")] {
        let mut bed = ordinary_bed();
        let memory = bed.memory.clone();
        mount_for(&mut bed, &memory, size);
        let Some(told) = bed.run(&["run", "--versions", "5", "--wait", "node-reboot"]) else { return };
        assert_eq!(told.line(0, "digest "), digest("5"));
        assert_eq!(committed(&told, "process"), [0; 0], "{told:?}");
        assert_eq!(committed(&told, "node-reboot"), [1, 2, 3, 4, 5], "{told:?}");
        assert_eq!(committed(&told, "system"), [1, 2, 3, 4, 5], "{told:?}");
        assert_eq!(told.streams.matches(word).count(), 1, "size {size}\n{}", told.streams);
        for rank in 0..RANKS {
            assert_eq!(told.counter(rank, "stats ", "direct_captures"), 5, "size {size}\n{told:?}");
        }
    }
}

#[test]
fn shared_memory_that_fills_up_under_us_is_no_crash_and_works_again_when_space_returns() {
    if !can_mount("shared_memory_that_fills_up_under_us_is_no_crash_and_works_again_when_space_returns") {
        return;
    }
    let mut bed = ordinary_bed();
    let memory = bed.memory.clone();
    mount_for(&mut bed, &memory, "96m");
    let elements = ["--elements", "400001"];
    let args = ["run", "--versions", "9", "--hold", "1,4", "--wait", "node-reboot", elements[0], elements[1]];
    let Some(mut job) = bed.start(&args) else { return };
    // The session is open, and hardly any pages of the segment are in use.
    job.wait_for_hold(1);
    let ballast = memory.join("ballast");
    inside(&job, &format!("head -c 1G /dev/zero > {} 2>/dev/null; test -s {0}", ballast.display()));
    job.go(1);
    job.wait_for_hold(4);
    inside(&job, &format!("rm {}", ballast.display()));
    job.go(4);
    let told = job.finish();
    assert_eq!(committed(&told, "node-reboot"), (1..=9).collect::<Vec<_>>(), "{told:?}");
    assert_eq!(committed(&told, "system"), (1..=9).collect::<Vec<_>>(), "{told:?}");
    assert!(told.streams.contains("event=capture-direct"), "nothing was said\n{}", told.streams);
    let direct: Vec<u64> = (0..RANKS).map(|rank| told.counter(rank, "stats ", "direct_captures")).collect();
    assert!(direct.iter().any(|count| *count >= 3), "memory was full, and nobody captured directly: {direct:?}");
    assert!(committed(&told, "process").contains(&9), "memory did not work again when space returned\n{told:?}");
    assert!(files(&bed.local, "manifest").len() >= 2);
}
