//! Exit statuses: all commands tell *done* (0), *damage* (1), *trouble* (2) and *nothing there* (3) apart in the same way.
#![forbid(unsafe_code)]

use crate::store::{Ran, Store, bivouac, command, ran, with_path};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs a command from some folder, with this global directory in the environment.
fn configured(store: &Store, args: &[&str]) -> Ran {
    let mut command = command();
    command.args(args).current_dir(store.disk.path());
    command.env("BIVOUAC_GLOBAL_DIRECTORY", store.global()).env("BIVOUAC_LOCAL_DIRECTORY", store.local());
    command.env("BIVOUAC_MEMORY_DIRECTORY", store.memory.path());
    ran(command)
}

/// The text of both streams.
fn said(ran: &Ran) -> String {
    format!("{}{}", ran.out, ran.err)
}

#[track_caller]
fn expect(ran: &Ran, status: i32, words: &[&str]) {
    let said = said(ran);
    assert!(ran.status == status && words.iter().all(|word| said.contains(word)), "{status} {words:?}: {ran:?}");
}

#[test]
fn a_place_without_a_store_is_not_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, arguments) = (folder.path(), ["ls", "inspect", "verify", "topo"]);
    for command in arguments {
        expect(&with_path(&[command], path), 3, &["holds no checkpoint", "global.directory"]);
    }
    expect(&with_path(&["rm", "--yes", "--force"], path), 3, &["holds no checkpoint"]);
    let document = with_path(&["ls", "--json"], path).json();
    assert!(document["problems"][0].as_str().is_some_and(|text| text.contains("holds no checkpoint")), "{document}");
    let verified = with_path(&["verify"], path);
    assert!(verified.out.starts_with("nothing was checked") && !verified.out.contains("good"), "{verified:?}");
}

#[test]
fn a_store_one_folder_below_is_named() {
    let store = Store::with(&[10]);
    let beside = store.disk.path().join("work");
    std::fs::create_dir(&beside).expect("made");
    std::fs::rename(store.global(), beside.join("bivouac")).expect("moved");
    for command in [&["ls"][..], &["inspect"], &["verify"], &["topo"], &["rm", "--yes", "--force"]] {
        let below = beside.join("bivouac");
        expect(&with_path(command, &beside), 3, &["is not a store, but", below.to_str().expect("UTF-8"), "is one"]);
    }
    assert!(beside.join("bivouac/store").exists());
    expect(&with_path(&["ls"], &beside.join("bivouac")), 0, &["committed"]);
}

#[test]
fn a_store_without_checkpoints_is_nothing_too() {
    let store = Store::with(&[10]);
    let memory = format!("--memory={}", store.memory.path().display());
    expect(&with_path(&["rm", "--yes", "--force", &memory], &store.global()), 0, &["removed"]);
    expect(&with_path(&["rm", "--yes", "--force", &memory], &store.global()), 3, &["a store without checkpoints"]);
    expect(&with_path(&["ls"], &store.global()), 3, &["no checkpoints\n", "a store without checkpoints"]);
}

#[test]
fn one_empty_place_among_others_does_not_hide() {
    let store = Store::with(&[10]);
    let empty = tempfile::tempdir().expect("a folder");
    let paths = [empty.path(), &store.global()].map(|path| path.to_str().expect("UTF-8").to_owned());
    expect(&bivouac(&["ls", &paths[0], &paths[1]]), 3, &["holds no checkpoint", "committed"]);
}

#[test]
fn a_job_that_nobody_knows_is_nothing_there() {
    let store = Store::with(&[10]);
    for args in [
        &["drain", "--job", "nosuch"][..],
        &["reset", "--job", "nosuch", "--yes"],
        &["clean", "--job", "nosuch", "--yes"],
    ] {
        expect(&configured(&store, args), 3, &["nothing of a job \"nosuch\"", "bivouac ls"]);
    }
    expect(&configured(&store, &["drain", "--name", "nosuch"]), 3, &["no series \"nosuch\""]);
    // The store knows the job, and the node has nothing to drain or to clean: the status is *done*.
    store.wipe(0);
    expect(&configured(&store, &["drain", "--job", "cli"]), 0, &["nothing to drain"]);
    expect(&configured(&store, &["drain", "--job", "cli", "--name", "heat"]), 0, &["nothing to drain"]);
    expect(&configured(&store, &["drain"]), 0, &["nothing to drain"]);
    expect(&configured(&store, &["clean", "--job", "cli", "--yes"]), 0, &["nothing was removed"]);
}

#[test]
fn rebuild_and_halt_in_a_wrong_place_are_nothing_there() {
    let store = Store::with(&[10]);
    let empty = tempfile::tempdir().expect("a folder");
    let path = empty.path().to_str().expect("UTF-8");
    let global = store.global().to_str().expect("UTF-8").to_owned();
    expect(&bivouac(&["rebuild", path, "--global", &global, "--job", "nosuch"]), 3, &["nothing was found", path]);
    for option in ["--list", "--clear"] {
        expect(&bivouac(&["halt", path, option]), 3, &["not the run directory of a job"]);
    }
    assert_eq!(empty.path().read_dir().expect("there").count(), 0);
    // Conditions may be set before the job starts, and are then listed.
    expect(&bivouac(&["halt", path, "--now"]), 0, &["nobody reads"]);
    expect(&bivouac(&["halt", path, "--list"]), 0, &["halt"]);
}

#[test]
fn without_a_path_the_configured_global_directory_is_meant() {
    let store = Store::with(&[10]);
    for command in ["ls", "inspect", "verify"] {
        let (bare, named) = (configured(&store, &[command]), with_path(&[command], &store.global()));
        assert_eq!((bare.status, bare.out), (0, named.out), "{command}");
    }
    let gone = store.disk.path().join("gone");
    std::fs::rename(store.global(), &gone).expect("moved");
    for command in ["ls", "inspect", "verify"] {
        expect(&configured(&store, &[command]), 3, &["it is not there", "BIVOUAC_GLOBAL_DIRECTORY"]);
    }
}

#[test]
fn damage_has_one_status_in_all_commands() {
    let store = Store::with(&[10]);
    let folder = store.folders(&store.global())[0].clone();
    let container = folder.join("c000000.bvc");
    let good = std::fs::read(&container).expect("read");
    std::fs::write(&container, &good[..good.len() - 4096]).expect("written");
    for command in ["ls", "inspect", "verify", "topo"] {
        assert_eq!(with_path(&[command], &folder).status, 1, "{command}");
    }
    assert_eq!(with_path(&["inspect"], &container).status, 1);
    std::fs::write(&container, &good).expect("written");
    std::fs::write(folder.join("manifest"), "garbage").expect("written");
    for path in [&folder, &folder.join("manifest")] {
        assert_eq!(with_path(&["inspect"], path).status, 1, "{}", path.display());
    }
    let garbage = store.memory.path().join("bivouac-00000000-00000000-g000001");
    std::fs::write(&garbage, vec![7; 1 << 16]).expect("written");
    std::fs::set_permissions(&garbage, std::fs::Permissions::from_mode(0o600)).expect("changed");
    for command in ["ls", "inspect", "verify", "topo"] {
        assert_eq!(with_path(&[command], &garbage).status, 1, "{command}");
    }
}

#[test]
fn help_says_what_the_statuses_mean() {
    for command in
        ["ls", "inspect", "verify", "export", "extract", "rm", "clean", "drain", "rebuild", "reset", "halt", "topo"]
    {
        let help = bivouac(&[command, "--help"]).out;
        assert!(help.contains("Exit status: 0") && (help.contains(" 3 ") || help.contains("\n3 ")), "{help}");
    }
    let help = bivouac(&["--help"]).out;
    assert!(help.contains("3 nothing found"), "{help}");
    let page = Path::new(env!("WORKSPACE_ROOT")).join("docs/RECOVERY.md");
    let page = std::fs::read_to_string(page).expect("read");
    assert!(page.contains("| 3 | nothing found"), "docs/RECOVERY.md");
}
