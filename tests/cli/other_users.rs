//! What other users of a machine can and cannot do to a job: sessions and tools run as one user, and find what another
//! user has put in their way. A thread takes the identity of a user, and so do the threads and processes that it
//! starts. This requires root.
#![forbid(unsafe_code)]

use crate::store::{Ran, Store, entries, field, only_folder, ran, take};
use bivouac_core::Level;
use bivouac_core::config::Config;
use bivouac_core::session::place::segment_prefix;
use bivouac_core::tier::ours::{self, Trust};
use bivouac_core::tier::run_directory::RunDirectory;
use rustix::process::{Gid, Uid};
use serde_json::Value;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const USER: u32 = 20_001;
const OTHER: u32 = 20_002;

/// Does something as a user without privileges.
fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
            rustix::thread::set_thread_groups(&[]).expect("root may");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A machine with two users: a place in which both may make files, like `/tmp`, and a store of the first user.
struct Bed {
    shared: TempDir,
    store: Store,
    program: PathBuf,
}

/// `None`, with a loud note, if the test does not run as root.
fn bed(test: &str) -> Option<Bed> {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "\n*** SKIPPED {test}: it becomes other users. Run it as root: sudo -E cargo nextest run --test cli {test} ***\n"
        );
        return None;
    }
    let shared = tempfile::Builder::new().prefix("bivouac-test-users-").tempdir().expect("a folder");
    mode(shared.path(), 0o1777);
    // The build folder may be closed to others.
    let program = shared.path().join("bivouac");
    std::fs::copy(assert_cmd::cargo::cargo_bin("bivouac"), &program).expect("copied");
    mode(&program, 0o755);
    let mut store = as_user(USER, Store::empty);
    store.temporary = Some(shared.path().to_owned());
    Some(Bed { shared, store, program })
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
}

fn owner(path: &Path) -> u32 {
    path.symlink_metadata().expect("there").uid()
}

/// Gives everything below `path` to another user, and makes it readable by all.
fn give_to(path: &Path, user: u32) {
    if path.is_dir() {
        entries(path).iter().for_each(|path| give_to(path, user));
    }
    chown(path, Some(user), Some(user)).expect("changed");
    mode(path, if path.is_dir() { 0o755 } else { 0o644 });
}

impl Bed {
    /// Runs the command as a user.
    fn bivouac(&self, user: u32, args: &[&str], settings: &[(&str, &str)]) -> Ran {
        let mut command = assert_cmd::Command::new(&self.program);
        command.args(args).env("TMPDIR", self.shared.path()).env("BIVOUAC_MEMORY_DIRECTORY", self.store.memory.path());
        command.envs(settings.iter().copied());
        match user {
            0 => ran(command),
            user => as_user(user, || ran(command)),
        }
    }

    fn global(&self) -> String {
        self.store.global().to_str().expect("UTF-8").to_owned()
    }

    /// The folders of the local tier in the shared place.
    fn private(&self) -> Vec<PathBuf> {
        let all = entries(self.shared.path()).into_iter();
        all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("bivouac-2")))
            .collect()
    }

    /// Runs a job that takes its first version on all tiers, and the others on the local one only.
    fn run(&self, change: impl Fn(&mut Config) + Send + Sync, versions: &[u64]) {
        let (first, later) = versions.split_at(1);
        let settings = |config: &mut Config| {
            config.job.global.every = 1000.into();
            change(config);
        };
        as_user(USER, || {
            self.store.run(settings, |session, rank| {
                take(session, rank, first, Level::System);
                take(session, rank, later, Level::NodeReboot);
            });
        });
        self.forget_memory();
    }

    fn forget_memory(&self) {
        self.store.wipe_memory(0);
    }

    fn restart(&self, change: impl Fn(&mut Config) + Send + Sync) -> Option<u64> {
        let restored = as_user(USER, || self.store.restart_with(change));
        self.forget_memory();
        restored
    }

    /// A store with version 10, and with version 20 only in a folder that belongs to another user and has the name that
    /// a session would take first.
    fn forged(&self) -> PathBuf {
        self.run(|_| (), &[10, 20]);
        let private = self.private();
        assert_eq!(private.len(), 1, "{private:?}");
        give_to(&private[0], OTHER);
        private[0].clone()
    }

    fn versions(&self, root: &Path) -> usize {
        self.store.folders(root).len()
    }
}

// ------------------------------------------------------------------------------------------- the local tier

#[test]
fn a_folder_that_somebody_else_made_first_is_left_alone_and_another_name_serves() {
    let Some(bed) = bed("a_folder_that_somebody_else") else { return };
    let theirs = bed.forged();
    let before = entries(&theirs);
    assert_eq!(bed.restart(|_| ()), Some(10), "what somebody else has put there was believed");
    bed.run(|_| (), &[30, 40]);
    assert_eq!((entries(&theirs), owner(&theirs)), (before, OTHER));
    let ours: Vec<PathBuf> = bed.private().into_iter().filter(|path| owner(path) == USER).collect();
    assert_eq!(ours, [PathBuf::from(format!("{}.1", theirs.display()))]);
    assert_eq!(ours[0].metadata().expect("there").mode() & 0o777, 0o700);
    assert_eq!(bed.restart(|_| ()), Some(40));
}

#[test]
fn a_private_folder_that_was_opened_to_others_is_not_believed() {
    let Some(bed) = bed("a_private_folder") else { return };
    bed.run(|_| (), &[10, 20]);
    let open = bed.private()[0].clone();
    mode(&open, 0o777);
    assert_eq!((bed.restart(|_| ()), bed.private().len()), (Some(10), 2), "another name serves");
    mode(&open, 0o700);
    assert_eq!(bed.restart(|_| ()), Some(20));
}

#[test]
fn a_drain_brings_nothing_from_a_local_folder_of_somebody_else() {
    let Some(bed) = bed("a_drain_brings_nothing") else { return };
    let theirs = bed.forged();
    let global = bed.global();
    for more in [&["--job", "cli"][..], &[]] {
        let ran = bed.bivouac(USER, &[&["drain", "--global", &global, "--even-alive"], more].concat(), &[]);
        assert!(ran.status == 0 && ran.err.contains(&format!("belongs to user {OTHER}")), "{ran:?}");
        assert_eq!(bed.versions(&bed.store.global()), 1, "{ran:?}");
    }
    let named = theirs.to_str().expect("UTF-8");
    // A session would use the folder next to it, and nothing is there.
    let ran = bed.bivouac(USER, &["drain", "--global", &global, "--local", named, "--even-alive"], &[]);
    assert!(ran.status == 0 && ran.err.contains("nothing there"), "{ran:?}");
    assert_eq!(bed.versions(&bed.store.global()), 1, "{ran:?}");
    let inside = only_folder(&theirs);
    let ran = bed.bivouac(USER, &["drain", "--global", &global, "--local", inside.to_str().expect("UTF-8")], &[]);
    assert!(ran.status == 2 && ran.err.contains(&format!("belongs to user {OTHER}, not to user {USER}")), "{ran:?}");
}

/// Without a reset under all names, the next run would restore the data that stayed behind under another name.
#[test]
fn reset_forgets_what_lies_under_another_name_because_somebody_else_had_the_first() {
    let Some(bed) = bed("reset_forgets") else { return };
    let (theirs, place) = (bed.forged(), bed.shared.path().join("fast"));
    let before = entries(&theirs);
    bed.run(|_| (), &[30, 40]);
    as_user(OTHER, || std::fs::create_dir(&place).expect("made"));
    let there = |config: &mut Config| config.node.local_directory = Some(place.clone());
    bed.run(there, &[50, 60]);
    assert_eq!(bed.restart(there), Some(60));
    let reset = |more: &[(&str, &str)]| {
        let global = bed.global();
        let done = bed.bivouac(USER, &["reset", "--job", "cli", "--yes", "--global", &global], more);
        assert_eq!(done.status, 0, "{done:?}");
    };
    reset(&[("BIVOUAC_LOCAL_DIRECTORY", place.to_str().expect("UTF-8"))]);
    assert_eq!(bed.restart(there), None);
    reset(&[]);
    assert_eq!((bed.restart(|_| ()), entries(&theirs)), (None, before));
}

#[test]
fn a_configured_place_that_somebody_else_made_first_is_not_used() {
    let Some(bed) = bed("a_configured_place") else { return };
    let place = bed.shared.path().join("fast");
    let there = |config: &mut Config| config.node.local_directory = Some(place.clone());
    bed.run(there, &[10, 20]);
    assert_eq!(bed.versions(&place), 2);
    give_to(&place, OTHER);
    let before = entries(&place);
    assert_eq!(bed.restart(there), Some(10), "what somebody else has put there was believed");
    bed.run(there, &[30, 40]);
    let own = bed.shared.path().join(format!("fast-{USER}"));
    assert_eq!((entries(&place), bed.versions(&own), owner(&own)), (before, 2, USER));
    // A link that leads nowhere yet would lead to the folder that is about to be made.
    let (dangling, home) = (bed.shared.path().join("dangling"), bed.store.disk.path().join("made"));
    as_user(OTHER, || symlink(&home, &dangling).expect("made"));
    bed.run(|config| config.node.local_directory = Some(dangling.clone()), &[50, 60]);
    assert_eq!((home.exists(), bed.versions(&bed.shared.path().join(format!("dangling-{USER}")))), (false, 2));
    let settings = [("BIVOUAC_LOCAL_DIRECTORY", place.to_str().expect("UTF-8")), ("BIVOUAC_LOCAL_ALLOW_TMPFS", "true")];
    let ran = bed.bivouac(USER, &["doctor", "--json"], &settings);
    let document: Value = serde_json::from_str(&ran.out).expect("a document");
    let checks = document["checks"].as_array().expect("a list");
    let local = checks.iter().find(|check| check["check"] == "local tier").expect("a check");
    assert!(local["found"].as_str().is_some_and(|found| found.starts_with(own.to_str().expect("UTF-8"))), "{local}");
}

#[test]
fn in_a_place_of_all_users_the_local_tier_is_a_folder_of_its_user() {
    let Some(bed) = bed("in_a_place_of_all_users") else { return };
    let there = |config: &mut Config| config.node.local_directory = Some(bed.shared.path().to_owned());
    bed.run(there, &[10]);
    let own = bed.shared.path().join(format!("bivouac-{USER}"));
    assert_eq!((bed.versions(&own), own.metadata().expect("there").mode() & 0o777), (1, 0o700));
    assert_eq!(bed.restart(there), Some(10));
}

#[test]
fn a_link_that_somebody_else_planted_is_not_followed_and_one_of_our_own_is() {
    let Some(bed) = bed("a_link_that_somebody_else") else { return };
    let (planted, own) = (bed.shared.path().join("planted"), bed.shared.path().join("own"));
    let home = bed.store.disk.path();
    as_user(OTHER, || symlink(home, &planted).expect("made"));
    as_user(USER, || symlink(home, &own).expect("made"));
    let open =
        |path: &Path| as_user(USER, || ours::open(path, Trust::Ours).map(drop).map_err(|error| error.to_string()));
    assert_eq!(open(&own), Ok(()));
    let error = open(&planted).expect_err("refused");
    assert!(error.contains(&format!("symbolic link that user {OTHER}")), "{error}");
    assert!(open(&planted.join("below")).is_err_and(|error| error.contains("symbolic link")));
    let error = as_user(OTHER, || ours::open(home, Trust::Ours).map(drop)).expect_err("refused").to_string();
    assert!(error.contains(&format!("belongs to user {USER}, not to user {OTHER}")), "{error}");
}

// ------------------------------------------------------------------------------------------- the global tier

#[test]
fn the_store_of_another_user_is_refused_also_to_root_and_nothing_goes_where_its_links_lead() {
    let Some(bed) = bed("the_store_of_another_user") else { return };
    let outside = TempDir::new().expect("a folder");
    bed.run(|_| (), &[10]);
    let global = bed.global();
    let series = bed.store.series(&bed.store.global());
    // The owner leads root elsewhere, to files whose names end like those of an upload.
    let precious = outside.path().join("r000000.bvs.tmp");
    std::fs::write(&precious, "precious").expect("written");
    let folder = only_folder(&series);
    std::fs::rename(&folder, series.join("away")).expect("renamed");
    symlink(outside.path(), &folder).expect("made");
    let commands: [&[&str]; 6] = [
        &["reset", "--job", "cli", "--yes", "--global", &global],
        &["drain", "--global", &global],
        &["clean", "--all-dead", "--yes", "--global", &global],
        &["clean", "--all-dead", "--yes", &global],
        &["rm", "--yes", "--force", &global],
        &["rebuild", "--global", &global, &global],
    ];
    for args in commands {
        for user in [0, OTHER] {
            let ran = bed.bivouac(user, args, &[]);
            let text = format!("belongs to user {USER}, not to user {user}");
            assert!(ran.status == 2 && (ran.err.contains(&text) || user == OTHER), "{args:?} {ran:?}");
            assert!(user == OTHER || ran.err.contains("runuser"), "{ran:?}");
        }
    }
    assert_eq!(std::fs::read_to_string(&precious).expect("there"), "precious");
    assert_eq!(entries(outside.path()).len(), 1);
    // Commands that only look are allowed, and follow no link either.
    let ran = bed.bivouac(0, &["ls", &global], &[]);
    assert!(ran.status == 3 && !ran.out.contains("r000000"), "{ran:?}");
}

#[test]
fn a_store_that_others_may_write_to_is_refused_with_the_command_that_closes_it() {
    let Some(bed) = bed("a_store_that_others") else { return };
    bed.run(|_| (), &[10]);
    let root = bed.store.global();
    mode(&root, 0o775);
    let ran = bed.bivouac(USER, &["drain", "--global", &bed.global(), "--even-alive"], &[]);
    assert!(ran.status == 2 && ran.err.contains(&format!("chmod go-w {}", root.display())), "{ran:?}");
    let no_other = |config: &mut Config| (config.job.local_enabled, config.job.memory_enabled) = (false, false);
    as_user(USER, || {
        bed.store.run(no_other, |session, rank| {
            let data = field(rank, 20);
            let mut checkpoint = session.begin_checkpoint("heat", 20).expect("a checkpoint");
            checkpoint.save("field", &data).expect("a region");
            let taken = checkpoint.capture().and_then(|pending| pending.wait(Level::System));
            assert!(taken.is_err(), "{taken:?}");
        });
    });
    assert_eq!(bed.versions(&root), 1, "something was written to it");
    mode(&root, 0o755);
    assert_eq!(bed.restart(|_| ()), Some(10), "reading does not change what is restored");
}

// ------------------------------------------------------------------------------------------- memory, and the run directory

#[test]
fn files_under_the_names_of_later_segments_do_not_switch_the_memory_tier_off() {
    let Some(bed) = bed("files_under_the_names") else { return };
    mode(bed.store.memory.path(), 0o1777);
    bed.run(|_| (), &[10]);
    let job = only_folder(&bed.store.global()).file_name().expect("a name").to_string_lossy().into_owned();
    let prefix = segment_prefix(&job, "world");
    let names =
        ["000002", "000003-0123456789abcdef", "999999"].map(|name| bed.store.memory.path().join(prefix.clone() + name));
    as_user(OTHER, || names.iter().for_each(|path| std::fs::write(path, "mine").expect("written")));
    let in_memory =
        |config: &mut Config| (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
    as_user(USER, || {
        bed.store.run_killed(in_memory, |session, rank| {
            assert_eq!(session.generation(), 2, "a number of somebody else's was counted");
            // The first version of a run goes to all tiers.
            take(session, rank, &[20], Level::System);
            take(session, rank, &[30], Level::Process);
            session.versions("heat").expect("verdicts are noted");
            let ours = entries(bed.store.memory.path()).into_iter().filter(|path| owner(path) == USER);
            assert_eq!(ours.count(), 1, "the memory tier is off");
        });
    });
    for path in &names {
        assert_eq!((std::fs::read_to_string(path).expect("there"), owner(path)), ("mine".into(), OTHER));
    }
    assert_eq!(as_user(USER, || bed.store.restart_with(in_memory)), Some(30));
}

#[test]
fn a_run_directory_believes_its_user_and_root_and_nobody_else() {
    let Some(bed) = bed("a_run_directory") else { return };
    let run = RunDirectory::at(bed.shared.path());
    let write = || {
        std::fs::write(bed.shared.path().join("halt.json"), "{").expect("written");
        std::fs::write(bed.shared.path().join("status-world.json"), "{").expect("written");
        mode(&bed.shared.path().join("halt.json"), 0o644);
        mode(&bed.shared.path().join("status-world.json"), 0o644);
    };
    as_user(OTHER, write);
    let refused = format!("belongs to user {OTHER}, not to user {USER} or root");
    let (halt, (statuses, problems)) = as_user(USER, || (run.read_halt(), run.read_statuses()));
    assert!(halt.clone().is_err_and(|error| error.contains(&refused)), "{halt:?}");
    assert!(statuses.is_empty() && problems.len() == 1 && problems[0].contains(&refused), "{problems:?}");
    for name in ["halt.json", "status-world.json"] {
        std::fs::remove_file(bed.shared.path().join(name)).expect("removed");
    }
    for user in [0, USER] {
        if user == 0 {
            write()
        } else {
            as_user(user, write)
        }
        let halt = as_user(USER, || run.read_halt()).expect_err("no JSON");
        assert!(halt.contains("EOF") && !halt.contains("belongs"), "{halt}");
        for name in ["halt.json", "status-world.json"] {
            std::fs::remove_file(bed.shared.path().join(name)).expect("removed");
        }
    }
}

#[test]
fn a_supervisor_uses_no_run_directory_that_others_own_or_may_write_to() {
    let Some(bed) = bed("a_supervisor_uses") else { return };
    let (theirs, own) = (bed.shared.path().join("theirs"), bed.shared.path().join("own"));
    as_user(OTHER, || std::fs::create_dir(&theirs).expect("made"));
    as_user(USER, || std::fs::create_dir(&own).expect("made"));
    for path in [&theirs, &own] {
        mode(path, 0o777);
    }
    let run =
        |path: &Path| bed.bivouac(USER, &["run", "--run-directory", path.to_str().expect("UTF-8"), "--", "true"], &[]);
    for (path, text) in [(&theirs, "belongs to user 20002"), (&own, "others may write")] {
        let ran = run(path);
        assert!(ran.status != 0 && ran.err.contains(text), "{ran:?}");
        assert!(entries(path).is_empty(), "{:?}", entries(path));
    }
    mode(&own, 0o755);
    assert_eq!(run(&own).status, 0);
}
