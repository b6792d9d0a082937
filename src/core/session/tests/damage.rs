//! Damage between capture and restart: bits that flip on the way from tier to tier, writes that are lost, slices that fail.

use super::*;
use crate::base::units::PAGE;
use crate::format::shard::Head;
use crate::recovery::Attempt;
use crate::tier::wrappers::Faults;
use std::os::unix::fs::FileExt;

/// The number of `f64` values in a page.
const CELLS: usize = PAGE as usize / 8;
/// A page with equal values at the corners of a rectangle, in every version.
const CORNERS: usize = 7;
/// A page in which two equal values move from version to version.
const MOVING: usize = 9;
/// A page of zeros.
const EMPTY: usize = 11;

/// A field of zeros with a few equal values.
fn sparse(version: u64) -> Vec<f64> {
    let mut field = vec![0.0; 24 * CELLS];
    let moving = if version.is_multiple_of(2) { [13, 21] } else { [5, 29] };
    let cells = [5, 13, 21, 29].map(|cell| CORNERS * CELLS + cell);
    cells.into_iter().chain(moving.map(|cell| MOVING * CELLS + cell)).for_each(|cell| field[cell] = 2.0);
    field
}

/// How a page is damaged.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Loss {
    /// One bit is flipped.
    Flipped,
    /// The page was never written.
    Zeroed,
    /// The page is that of the previous version.
    Stale,
}

impl Loss {
    /// The content of the damaged page.
    fn page(self, version: u64, page: usize) -> Vec<u8> {
        let of = |version| bytemuck::cast_slice(&sparse(version)[page * CELLS..][..CELLS]).to_vec();
        match self {
            Loss::Flipped => {
                let mut bytes: Vec<u8> = of(version);
                bytes[1234] ^= 4;
                bytes
            }
            Loss::Zeroed => vec![0; PAGE as usize],
            Loss::Stale => of(version - 1),
        }
    }
}

/// The offset of a page of the field in `bytes`, if these hold the version's shard.
fn place_of(bytes: &[u8], version: u64, page: usize) -> Option<u64> {
    let mut heads =
        (0..bytes.len()).step_by(PAGE as usize).filter_map(|at| Some((at, Head::decode(&bytes[at..]).ok()?)));
    let (at, head) = heads.find(|(_, head)| head.header.key.version == version)?;
    let region = head.region("field").expect("it was saved");
    Some(at as u64 + head.header.body_offset + region.offset + page as u64 * PAGE)
}

impl Bed {
    /// Damages a page of a version's field on a tier.
    fn damage(&self, tier: &str, version: u64, page: usize, loss: Loss) {
        let lost = loss.page(version, page);
        if tier == "memory" {
            let (path, at) = self.in_memory(version, page);
            std::fs::File::options().write(true).open(path).expect("opens").write_all_at(&lost, at).expect("written");
            return;
        }
        // The manifest may still have its temporary name.
        let is_manifest = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == "manifest");
        let containers = self.files(tier, version).into_iter().filter(|path| !is_manifest(path));
        let [path] = <[PathBuf; 1]>::try_from(containers.collect::<Vec<_>>()).expect("one container");
        let bytes = self.disk.read_all(&path, 1 << 30).expect("read");
        let at = place_of(&bytes, version, page).expect("it has the version");
        self.disk.overwrite(&path, at, &lost).expect("it is that long");
    }

    /// Flips a bit of a region's name in the head of a version's shard in node memory.
    fn damage_head(&self, version: u64) {
        let (path, at) = self.in_memory(version, 0);
        let bytes = std::fs::read(&path).expect("ours");
        let name = bytes[..at as usize].windows(5).rposition(|word| word == b"field").expect("it has a name");
        let file = std::fs::File::options().write(true).open(path).expect("opens");
        file.write_all_at(b"fIeld", name as u64).expect("written");
    }

    /// The segment that holds a version, and the offset of a page of the version's field in it.
    fn in_memory(&self, version: u64, page: usize) -> (PathBuf, u64) {
        let mut paths = std::fs::read_dir(self.memory.path()).expect("ours").map(|entry| entry.expect("ours").path());
        let place = |path: PathBuf| place_of(&std::fs::read(&path).expect("ours"), version, page).map(|at| (path, at));
        paths.find_map(place).expect("a segment has the version")
    }

    /// The files of a version on a tier.
    fn files(&self, tier: &str, version: u64) -> Vec<PathBuf> {
        let folder = format!("-v{version:010}-");
        let all = self.disk.files(&Path::new("/").join(tier)).into_iter().map(|(path, _)| path);
        all.filter(|path| path.to_string_lossy().contains(&folder)).collect()
    }

    /// Opens a session after all processes of the previous session were killed.
    fn open_again(&self, config: &Config) -> Session {
        self.disk.drop_locks();
        self.open(&self.place(), config.clone())
    }
}

fn take_sparse(session: &Session, version: u64) -> Pending {
    let field = sparse(version);
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
    checkpoint.save("field", &field).expect("saved");
    checkpoint.value("step", &version).expect("saved");
    checkpoint.capture().expect("captured")
}

/// Restarts, checks the restored content, and returns the version and the farthest tier from which it came.
fn restart_sparse(session: &Session) -> Option<(u64, &'static str)> {
    let load = |r: &mut Attempt| {
        let (version, field) = (r.value("step")?, r.load_vec::<f64>("field")?);
        assert_eq!(version, r.version());
        assert!(field == sparse(version), "version {version} came back with wrong data");
        Ok(())
    };
    let restored = session.begin_restore("heat").run(load).expect("restarts");
    restored.map(|restored| (restored.version, restored.tier.name()))
}

// --------------------------------------------------------------------------------------------- where a tier is crossed

/// Version 1 reaches all tiers. A bit of version 2 flips on `tier` when the version has reached `level` and no higher one. Returns how the
/// levels of version 2 end.
fn crossed(memory: bool, level: Level, tier: &str) -> (Bed, Config, Vec<(Level, Option<String>)>) {
    let tier_word = format!("{tier} tier");
    let words = [&tier_word, "rank 0", "\"field\"", "digest"];
    crossed_with(memory, level, |bed| bed.damage(tier, 2, EMPTY, Loss::Flipped), &words)
}

/// Does the same as [`crossed`] with any damage. Each refusal must contain `words`.
fn crossed_with(
    memory: bool,
    level: Level,
    damage: impl Fn(&Bed),
    words: &[&str],
) -> (Bed, Config, Vec<(Level, Option<String>)>) {
    let (bed, local, global) = (Bed::new(), Arc::new(Gate::default()), Arc::new(Gate::default()));
    let mut config = bed.config();
    config.job.memory_enabled = memory;
    let place = behind(behind(bed.place(), TierId::LOCAL, &local), TierId::GLOBAL, &global);
    let session = bed.open(&place, config.clone());
    let mut verdicts = Vec::new();
    let work = || {
        take_sparse(&session, 1).wait(Level::System).expect("committed");
        global.close();
        if level < Level::NodeReboot {
            local.close();
        }
        let pending = take_sparse(&session, 2);
        pending.wait(level).expect("it gets that far");
        damage(&bed);
        local.open();
        global.open();
        verdicts = ended(&pending);
    };
    let mut forced = [false; 2];
    forced[0] = local.watch_over(|| forced[1] = global.watch_over(work));
    assert_eq!(forced, [false; 2], "it waited for the storage");
    let damaged = session.stats().damaged;
    let refused = verdicts.iter().filter(|(_, reason)| reason.is_some()).count() as u64;
    assert_eq!(
        (damaged[TierId::MEMORY], damaged[TierId::LOCAL]),
        if memory { (refused, 0) } else { (0, refused) },
        "{verdicts:?}"
    );
    for reason in verdicts.iter().filter_map(|(_, reason)| reason.as_ref()) {
        assert!(words.iter().all(|word| reason.contains(*word)), "{reason}");
    }
    assert!(bed.files("global", 2).is_empty(), "{:?}", bed.files("global", 2));
    // Leaves everything as a killed process would.
    drop(session);
    (bed, config, verdicts)
}

#[test]
fn a_bit_that_flips_in_node_memory_before_the_shard_is_written_comes_to_no_disk() {
    let (bed, config, verdicts) = crossed(true, Level::Process, "memory");
    assert_eq!(levels(&verdicts, true), [Level::Process]);
    assert_eq!(levels(&verdicts, false), [Level::NodeReboot, Level::System]);
    assert!(bed.files("local", 2).is_empty(), "{:?}", bed.files("local", 2));
    let session = bed.open_again(&config);
    assert_eq!(restart_sparse(&session), Some((1, "local")));
    assert!(session.stats().damaged[TierId::MEMORY] > 0);
}

/// The head contains the regions' names and places, and no block digest covers it.
#[test]
fn a_bit_that_flips_in_a_head_in_node_memory_comes_to_no_disk() {
    let words = ["memory tier", "rank 0", "shard region table is damaged"];
    let (bed, config, verdicts) = crossed_with(true, Level::Process, |bed| bed.damage_head(2), &words);
    assert_eq!(levels(&verdicts, true), [Level::Process]);
    assert_eq!(levels(&verdicts, false), [Level::NodeReboot, Level::System]);
    assert!(bed.files("local", 2).is_empty(), "{:?}", bed.files("local", 2));
    let session = bed.open_again(&config);
    assert_eq!(restart_sparse(&session), Some((1, "local")));
}

#[test]
fn a_bit_that_flips_in_node_memory_after_the_local_copy_was_made_does_not_come_to_the_global_tier() {
    let (bed, config, verdicts) = crossed(true, Level::NodeReboot, "memory");
    assert_eq!(levels(&verdicts, true), [Level::Process, Level::NodeReboot]);
    assert_eq!(levels(&verdicts, false), [Level::System]);
    let session = bed.open_again(&config);
    assert_eq!(restart_sparse(&session), Some((2, "local")));
    assert_eq!(session.stats().damaged[TierId::MEMORY], 1);
}

#[test]
fn a_bit_that_flips_on_the_local_disk_does_not_come_to_the_global_tier() {
    let (bed, config, verdicts) = crossed(false, Level::NodeReboot, "local");
    assert_eq!(levels(&verdicts, true), [Level::NodeReboot]);
    assert_eq!(levels(&verdicts, false), [Level::System]);
    let session = bed.open_again(&config);
    assert_eq!(restart_sparse(&session), Some((1, "local")));
    assert!(session.stats().damaged[TierId::LOCAL] > 0);
}

// --------------------------------------------------------------------------------------------- pages that were lost

/// With the first digest function, a field of zeros with four 2.0 at the corners of a rectangle was restored as zeros.
#[test]
fn a_page_of_a_sparse_field_that_was_lost_is_seen_on_every_tier_and_another_copy_is_taken() {
    for (page, loss) in [(CORNERS, Loss::Zeroed), (MOVING, Loss::Zeroed), (MOVING, Loss::Stale)] {
        let bed = Bed::new();
        let config = bed.config();
        let first = bed.open(&bed.place(), config.clone());
        for version in [1, 2] {
            take_sparse(&first, version).wait(Level::System).expect("committed");
        }
        drop(first);
        let check = |what: &str, restored, damaged| {
            let session = bed.open_again(&config);
            assert_eq!(restart_sparse(&session), Some(restored), "page {page} {loss:?}: {what}");
            let found = session.stats().damaged;
            let found = [TierId::MEMORY, TierId::LOCAL, TierId::GLOBAL].map(|tier| found[tier] > 0);
            assert_eq!(found, damaged, "page {page} {loss:?}: {what}");
        };
        // A page that contains only zeros loses nothing.
        bed.damage("memory", 2, EMPTY, Loss::Zeroed);
        check("nothing", (2, "memory"), [false; 3]);
        bed.damage("memory", 2, page, loss);
        check("in memory", (2, "local"), [true, false, false]);
        bed.damage("local", 2, page, loss);
        check("in memory and on the local tier", (2, "global"), [true, true, false]);
        bed.damage("global", 2, page, loss);
        check("everywhere", (1, "local"), [true; 3]);
    }
}

/// The page is a hole in the segment's file, where memory was given back. Nobody calls this damage, and nobody takes it for zeros.
#[test]
fn a_slot_of_which_a_page_was_given_back_is_not_restored_from() {
    for page in [CORNERS, EMPTY] {
        let bed = Bed::new();
        let config = bed.config();
        let first = bed.open(&bed.place(), config.clone());
        take_sparse(&first, 1).wait(Level::System).expect("committed");
        drop(first);
        let (path, at) = bed.in_memory(1, page);
        let file = std::fs::File::options().write(true).open(path).expect("opens");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, at, PAGE).expect("punched");
        let session = bed.open_again(&config);
        assert_eq!(restart_sparse(&session), Some((1, "local")));
        assert_eq!(session.stats().damaged[TierId::MEMORY], 0);
    }
}

// --------------------------------------------------------------------------------------------- slices of one container

/// Rank 1's slice of the second version fails at a call, before or after rank 0's slice has been written. The next run finds the version on
/// no tier, and does not even try the container that was not published.
fn a_slice_fails(call: Call, nth: u64, is_last: bool) {
    let what = format!("{call:?} {nth}, last: {is_last}");
    let (bed, faults) = (Bed::new(), Arc::new(Faults::default()));
    let gates = [(); 2].map(|()| Arc::new(Gate::default()));
    let place = bed.place();
    let [first, second] = [0, 1].map(|rank: usize| behind(place.clone(), TierId::GLOBAL, &gates[rank]));
    let second = behind(second, TierId::GLOBAL, &faults);
    let mut config = bed.config();
    config.job.local_enabled = false;
    config.job.timeouts.abandon = Duration::from_secs(10);
    // Pieces are written in their order, beginning with the head.
    config.node.writers = 1;
    let (together, late) = (Barrier::new(2), usize::from(is_last));
    let forced = gates[late].watch_over(|| {
        on_one_node(&[first, second], &config, |rank, session| {
            take_sparse(&session, 1).wait(Level::System).expect("committed");
            let before = session.stats().flushed_bytes[TierId::GLOBAL];
            if together.wait().is_leader() {
                faults.fail_nth(call, Path::new("/global"), nth, rustix::io::Errno::NOSPC.raw_os_error());
                gates[late].close();
            }
            together.wait();
            let pending = take_sparse(&session, 2);
            if rank != late {
                wait_until("its slice has come to an end", || {
                    let stats = session.stats();
                    pending.poll();
                    stats.write_failures[TierId::GLOBAL] == 1 || stats.flushed_bytes[TierId::GLOBAL] > before
                });
                gates[late].open();
            }
            let verdicts = ended(&pending);
            assert_eq!(levels(&verdicts, true), [Level::Process], "{what}");
            assert_eq!(levels(&verdicts, false), [Level::System], "{what}");
            let reason = verdicts[1].1.as_ref().expect("it failed");
            assert!(reason.contains("rank 1: global tier") && reason.contains("os error 28"), "{what}: {reason}");
            assert_eq!(session.stats().write_failures[TierId::GLOBAL], rank as u64, "{what}");
            together.wait();
        });
    });
    assert!(!forced, "{what}: a slice was waited for");
    assert_eq!(faults.injected(), 1, "{what}");
    assert_eq!(bed.files("global", 2), [] as [PathBuf; 0], "{what}");
    for entry in std::fs::read_dir(bed.memory.path()).expect("ours") {
        std::fs::remove_file(entry.expect("ours").path()).expect("ours");
    }
    bed.disk.drop_locks();
    let place = bed.place();
    on_one_node(&[place.clone(), place], &config, |_, session| {
        assert_eq!(restart_sparse(&session), Some((1, "global")), "{what}");
        assert_eq!(session.stats().damaged[TierId::GLOBAL], 0, "{what}");
        take_sparse(&session, 2).wait(Level::System).expect("committed");
        session.close().expect("closes");
    });
}

#[test]
fn a_slice_that_fails_before_or_after_its_head_keeps_the_container_of_its_node_from_being_published() {
    let steps = [(Call::OpenWrite, 1), (Call::Reserve, 1), (Call::WriteAt, 1), (Call::WriteAt, 2), (Call::Sync, 1)];
    for (call, nth) in steps {
        for is_last in [false, true] {
            a_slice_fails(call, nth, is_last);
        }
    }
    // The rank that finishes last publishes the container for all.
    a_slice_fails(Call::Sync, 2, true);
    a_slice_fails(Call::Rename, 1, true);
}
