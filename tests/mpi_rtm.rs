//! The migration under a real `mpirun`: the image depends neither on the number of ranks nor on the tiers that the wavefields passed.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

mod common;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

/// The survey has five shots with 150 states of 48 KiB each: 7 MiB per shot.
const SURVEY: [&str; 10] = ["--device", "host", "--grid", "48x32", "--steps", "300", "--every", "2", "--shots", "5"];
/// The budgets, with which the GPU cache and node memory each hold about a quarter of a shot.
const BUDGETS: [(&str, &str); 4] = [
    ("BIVOUAC_DEVICE_BUDGET", "2 MiB"),
    ("BIVOUAC_HISTORY_HOST_BUDGET", "2 MiB"),
    ("BIVOUAC_HISTORY_STORE_BUDGET", "64 MiB"),
    ("BIVOUAC_MEMORY_BUDGET", "64 MiB"),
];

/// The example, which Cargo builds with the tests: `target/<profile>/examples/rtm`.
fn rtm() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/rtm");
    assert!(path.exists(), "{} is missing: cargo build --example rtm", path.display());
    path
}

/// A folder in shared memory, where the memory tier works and nothing outlives the test.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").unwrap()
}

/// Runs the survey. Returns `None` if there is no `mpirun`.
fn run(ranks: u32, folder: &Path, options: &[&str]) -> Option<String> {
    let memory = folder.join("memory");
    std::fs::create_dir_all(&memory).unwrap();
    let job = format!("test-{}", folder.file_name()?.to_str()?);
    let mut env = vec![
        ("BIVOUAC_JOB_NAME", job.as_str()),
        ("BIVOUAC_LOCAL_ALLOW_TMPFS", "true"),
        ("BIVOUAC_MEMORY_DIRECTORY", memory.to_str()?),
    ];
    env.extend(BUDGETS);
    let program = rtm();
    let args = [program.to_str()?].into_iter().chain(SURVEY).chain(["--dir", folder.to_str()?]);
    let args: Vec<&str> = args.chain(options.iter().copied()).collect();
    let output: Output = common::mpirun(ranks, &args, &env)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Some(text)
}

/// The values of `name=` in a text, in order.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).collect()
}

fn numbers(text: &str, name: &str) -> Vec<u64> {
    values(text, name).iter().map(|value| value.parse().unwrap()).collect()
}

/// Fails unless every rank had work, all states were appended and restored, and every link moved some of them.
fn check_all_tiers_were_used(ranks: u32, text: &str) {
    let bytes = 5 * 150 * 128 * 96 * 4;
    for sum in ["appended", "restored"] {
        assert_eq!(numbers(text, sum).iter().sum::<u64>(), bytes, "{sum}\n{text}");
    }
    for link in ["d2h", "h2f", "f2h", "h2d"] {
        let moved = numbers(text, link);
        assert!(moved.len() == ranks as usize && moved.iter().all(|bytes| *bytes > 0), "{link}\n{text}");
    }
}

#[test]
fn the_image_depends_neither_on_the_ranks_nor_on_where_the_wavefields_waited() {
    let Some(reference) = run(1, folder().path(), &["--reference"]) else { return };
    let image = values(&reference, "image");
    assert!(image.len() == 1 && image[0].len() == 32, "{reference}");
    for ranks in [1, 2, 4] {
        let text = run(ranks, folder().path(), &[]).unwrap();
        assert_eq!(values(&text, "image"), image, "{ranks} ranks\n{text}");
        check_all_tiers_were_used(ranks, &text);
    }
}

/// Five shots are spread over two and over four ranks: some ranks have one shot fewer, but must still meet the others.
#[test]
fn ranks_that_meet_at_each_state_make_the_same_image() {
    let Some(reference) = run(3, folder().path(), &["--reference", "--tight"]) else { return };
    for ranks in [2, 4] {
        let text = run(ranks, folder().path(), &["--tight"]).unwrap();
        assert_eq!(values(&text, "image"), values(&reference, "image"), "{ranks} ranks\n{text}");
        check_all_tiers_were_used(ranks, &text);
    }
}

#[test]
fn another_seed_makes_another_image() {
    let Some(first) = run(2, folder().path(), &[]) else { return };
    let second = run(2, folder().path(), &["--seed", "2"]).unwrap();
    assert_ne!(values(&first, "image"), values(&second, "image"));
}

/// The beginning and the end of each of one rank's events that have this category or name.
fn spans(events: &[Value], key: &str, what: &str, rank: i64) -> Vec<(f64, f64)> {
    let is_wanted = |event: &&Value| event["ph"] == "X" && event[key] == what && event["pid"] == rank;
    let time = |event: &Value| {
        let (from, length) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        assert!(from >= 0.0 && length >= 0.0, "{event}");
        (from, from + length)
    };
    events.iter().filter(is_wanted).map(time).collect()
}

#[test]
fn the_timeline_shows_transfers_beside_the_computation_and_the_picture_has_the_ground_s_size() {
    let folder = folder();
    let (trace, picture) = (folder.path().join("trace.json"), folder.path().join("image.png"));
    let options = ["--timeline", trace.to_str().unwrap(), "--out", picture.to_str().unwrap()];
    let Some(_) = run(2, folder.path(), &options) else { return };
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..2 {
        let compute = spans(events, "cat", "compute", rank);
        let states = [3, 2][rank as usize] * 150;
        for call in ["append", "restore"] {
            assert_eq!(spans(events, "name", call, rank).len(), states, "{call} of rank {rank}");
        }
        for link in ["d2h", "h2f", "f2h", "h2d"] {
            let transfers = spans(events, "name", link, rank);
            let beside = |(from, to): &&(f64, f64)| compute.iter().any(|(begin, end)| begin < to && from < end);
            let overlapping = transfers.iter().filter(beside).count();
            assert!(overlapping > 0, "{link} of rank {rank}: none of {} beside the computation", transfers.len());
        }
    }
    let mut reader =
        png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&picture).unwrap())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((frame.width, frame.height, frame.color_type), (48, 32, png::ColorType::Grayscale));
    let (dark, bright) = (pixels.iter().min().unwrap(), pixels.iter().max().unwrap());
    assert!(*dark < 64 && *bright > 192, "{dark} to {bright}");
}
