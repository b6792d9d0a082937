//! `bivouac report` on events that are made up here: for few ranks and for thousands, for strange files, and in a browser. `run/mpi.rs`
//! checks the report of a real job.
#![forbid(unsafe_code)]

use crate::store;
use crate::store::{Ran, command, ran};
use bivouac_core::format::events::{Event, Opened, What, events_file};
use bivouac_core::format::supervision::{Status, status_file};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const START: f64 = 1_790_000_000.0;

/// The events of one rank of a job that runs for 600 s, dies twice, and takes `steps` checkpoints in each run, one every 9 s.
fn told(rank: u32, ranks: u32, steps: u32) -> Vec<Event> {
    let mut events = Vec::new();
    for (run, from) in [(1, 0.0), (2, 200.0), (3, 430.0)] {
        let at = |seconds: f64, what| Event { unix: START + from + seconds, run, what };
        let node = rank / 8 * 8;
        let settings = vec![
            ("job.name".to_owned(), "\"heat\"".to_owned(), "bivouac.toml:2".to_owned()),
            ("log.level".to_owned(), "\"warn\"".to_owned(), String::new()),
        ];
        let opened = Opened {
            job: "heat-0c7a11f2".into(),
            group: "world".into(),
            rank,
            ranks,
            node,
            host: format!("node{:04}", node / 8),
            cpus: format!("{}-{}", rank % 8 * 2, rank % 8 * 2 + 1),
            tiers: ["memory", "local", "peers", "global"].map(|tier| (tier.to_owned(), format!("/{tier}"))).to_vec(),
            redundancy: vec!["rs(2,2)".into()],
            settings: if rank == 0 { settings } else { Vec::new() },
            ..Opened::default()
        };
        events.push(at(0.0, What::Opened(opened.into())));
        if run > 1 {
            let (version, generation) = if run == 2 { (18, 1) } else { (38, 2) };
            let (name, tier) = ("t<i>".to_owned(), if rank == 1 { "global" } else { "local" }.to_owned());
            let restored =
                What::Restored { name, version, generation, tier, bytes: 1 << 20, seconds: 2.0, elect_seconds: 0.1 };
            events.push(at(3.0, restored));
        }
        for step in 20 - steps..20 {
            let (version, operation) = (u64::from(step) + if run == 1 { 0 } else { run * 20 - 20 }, u64::from(step));
            let seconds = 10.0 + f64::from(step) * 9.0;
            let blocked = 0.02 + f64::from(rank % 5) * 0.001;
            events.push(at(
                seconds,
                What::Captured { name: "t<i>".into(), version, operation, bytes: 1 << 20, seconds: blocked },
            ));
            for (tier, took) in [("local", 0.2), ("peers", 0.4), ("global", 2.0)] {
                let tier = tier.to_owned();
                events.push(at(seconds + took, What::Written { operation, tier, bytes: 1 << 20, seconds: took }));
            }
            if rank == 0 {
                for (level, later) in [("process", 0.01), ("node-reboot", 0.3), ("node-loss", 0.5), ("system", 2.1)] {
                    let (name, level) = ("t<i>".to_owned(), level.to_owned());
                    events.push(at(seconds + later, What::Committed { name, version, operation, level }));
                }
            }
        }
        events.push(at(12.0, What::Memory { used: 3 << 20, budget: 8 << 20 }));
        if run == 3 {
            events.push(at(190.0, What::Closed));
        }
        events.sort_by(|one, other| one.unix.total_cmp(&other.unix));
    }
    if rank == 0 {
        let text = "event=redundancy-reduced <script>alert(1)</script> & more".to_owned();
        events.push(Event { unix: START + 1.0, run: 1, what: What::Warned { importance: "WARN".into(), text } });
        let (name, level, reason) =
            ("t<i>".to_owned(), "system".to_owned(), "abandoned (rank 3: no space left)".to_owned());
        let refused = What::Refused { name, version: 7, operation: 7, level, reason };
        events.push(Event { unix: START + 90.0, run: 1, what: refused });
    }
    events
}

fn folder_of(ranks: u32, steps: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for rank in 0..ranks {
        let bytes: Vec<u8> = told(rank, ranks, steps).iter().flat_map(Event::encode).collect();
        fs::write(folder.path().join(events_file("world", rank)), bytes).expect("written");
    }
    folder
}

fn report(folder: &Path, args: &[&str]) -> Ran {
    let mut command = command();
    command.arg("report").arg(folder).args(args).current_dir(folder);
    ran(command)
}

#[test]
fn a_document_says_what_the_events_say() {
    let folder = folder_of(16, 20);
    let ran = report(folder.path(), &["--json"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let document = ran.json();
    let group = &document["groups"][0];
    assert_eq!((&group["job"], &group["told"]), (&"heat-0c7a11f2".into(), &16.into()));
    let runs = group["runs"].as_array().expect("a list");
    let of = |key: &str| runs.iter().map(|run| run[key].as_f64().expect("a number").round()).collect::<Vec<_>>();
    // Version 18 was captured 172 s after the first start, and its last write ended 183 s after it.
    assert_eq!((of("rework"), of("won_back")), (vec![11.0, 11.0, 0.0], vec![172.0, 169.0, 0.0]));
    assert_eq!(
        runs.iter().map(|run| run["ending"].as_str().expect("a text")).collect::<Vec<_>>(),
        ["died", "died", "closed"]
    );
    let counts = |key: &str| runs.iter().map(|run| run[key].as_array().expect("a list").len()).collect::<Vec<_>>();
    assert_eq!((counts("captures"), counts("commits"), counts("refused")), (vec![20; 3], vec![80; 3], vec![1, 0, 0]));
    let tiers = group["tiers"].as_array().expect("a list");
    assert_eq!(
        tiers.iter().map(|tier| tier["tier"].as_str().expect("a text")).collect::<Vec<_>>(),
        ["local", "peers", "global"]
    );
    assert!(tiers.iter().all(|tier| tier["writes"] == 3 * 20 * 16 && tier["bytes"] == 3 * 20 * 16 * (1 << 20)));
    let account = &group["account"];
    let seconds = |key: &str| account[key].as_f64().expect("a number");
    let parts: f64 = ["work", "checkpoints", "rework", "recovering", "down"].into_iter().map(seconds).sum();
    assert!((parts - seconds("total")).abs() < 1e-6 && (seconds("total") - 620.0).abs() < 1e-6, "{account}");
}

#[test]
fn a_trace_has_a_line_for_each_tier() {
    let folder = folder_of(2, 20);
    let ran = report(folder.path(), &["--timeline", "trace.json"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let trace: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("trace.json")).expect("read")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let lines = events.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == 1);
    let lines: Vec<_> = lines.map(|line| line["args"]["name"].as_str().expect("a text")).collect();
    assert_eq!(lines, ["verdicts", "calls", "device to host", "local", "peers", "global"]);
    assert_eq!(events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 1).count(), 2 * (60 + 2));
    assert!(!folder.path().join("bivouac-report.html").exists(), "no page was asked for");
}

#[test]
fn what_events_say_is_text_on_the_page_and_nothing_else() {
    let folder = folder_of(2, 20);
    // Tiers and levels are also classes of drawn elements.
    let (tier, level, name) = ("x'><script>", "y'><script>", "t".to_owned());
    let whats = [
        What::Written { operation: 1, tier: tier.into(), bytes: 1, seconds: 0.1 },
        What::Committed { name, version: 1, operation: 1, level: level.into() },
    ];
    let bytes: Vec<u8> =
        whats.into_iter().flat_map(|what| Event { unix: START + 5.0, run: 1, what }.encode()).collect();
    let path = folder.path().join(events_file("world", 0));
    let mut file = fs::File::options().append(true).open(path).expect("it is there");
    file.write_all(&bytes).expect("written");
    assert_eq!(report(folder.path(), &[]).status, 0);
    let page = fs::read_to_string(folder.path().join("bivouac-report.html")).expect("written");
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script"));
    assert!(page.contains("t&lt;i&gt;") && !page.contains("t<i>"));
    for elsewhere in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    let restored = "from local (1 rank), global (1 rank)";
    for words in ["rs(2,2)", "bivouac.toml:2", "no space left", "1 setting at their defaults", "2 failures", restored] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn jobs_that_are_named_together_are_told_apart() {
    let (one, other) = (folder_of(2, 20), folder_of(2, 3));
    for rank in 0..2 {
        let path = other.path().join(events_file("world", rank));
        let text = fs::read_to_string(&path).expect("read").replace("heat-0c7a11f2", "cold-1d8b22e3");
        fs::write(&path, text).expect("written");
    }
    let ran = report(one.path(), &[other.path().to_str().expect("text"), "--json", "-o", "page.html"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let document = ran.json();
    let bytes = |group: usize| document["groups"][group]["tiers"][0]["bytes"].as_u64().expect("a number");
    assert_eq!((bytes(0), bytes(1)), ((3 * 3 * 2) << 20, (3 * 20 * 2) << 20), "{document}");
    let page = fs::read_to_string(one.path().join("page.html")).expect("written");
    for job in ["heat-0c7a11f2", "cold-1d8b22e3"] {
        for words in [format!("<section id='{job}-world'>"), format!("href='#{job}-world'>{job}, world</a>")] {
            assert!(page.contains(&words), "{words}");
        }
    }
    // What the nodes wrote is drawn as on the page of each job alone.
    for folder in [&one, &other] {
        assert_eq!(report(folder.path(), &["-o", "alone.html"]).status, 0);
        let alone = fs::read_to_string(folder.path().join("alone.html")).expect("written");
        let (_, drawing) = alone.split_once("aria-label='what the nodes wrote, and when'>").expect("it is there");
        let (drawing, _) = drawing.split_once("</svg>").expect("its end");
        assert!(drawing.contains("<title>local: ") && page.contains(drawing));
    }
}

#[test]
fn events_in_a_directory_of_their_own_are_found_by_the_run_directory() {
    let (events, run) = (folder_of(2, 20), tempfile::tempdir().expect("a folder"));
    let place = events.path().to_str().expect("text").to_owned();
    let status = |job: &str, events: &str| Status {
        job: job.into(),
        group: "world".into(),
        host: "node7".into(),
        events: events.into(),
        ..Status::new()
    };
    let write = |status: Status| fs::write(run.path().join(status_file("world")), status.encode()).expect("written");
    write(status("heat-0c7a11f2", &place));
    let ran = report(run.path(), &["--json"]);
    assert_eq!((ran.status, &ran.json()["groups"][0]["told"]), (0, &2.into()), "{ran:?}");
    // Other jobs use the same directory of events.
    write(status("another-job", &place));
    let ran = report(run.path(), &["--json"]);
    assert!(ran.status == 3 && ran.err.contains("no session has written events"), "{ran:?}");
    // It may be on the disk of a node.
    write(status("heat-0c7a11f2", "/nowhere/events"));
    let ran = report(run.path(), &["--json"]);
    assert!(ran.status == 2 && ran.err.contains("/nowhere/events") && ran.err.contains("node7"), "{ran:?}");
    let ran = report(run.path(), &[&place, "--json"]);
    assert_eq!((ran.status, &ran.json()["groups"][0]["told"]), (0, &2.into()), "{ran:?}");
}

#[test]
fn attempts_in_which_no_session_was_opened_are_on_the_page() {
    let folder = folder_of(1, 20);
    let attempt = |began: f64, ended: f64, outcome: &str, generations: &str| {
        format!(
            "{{\"run_began\":{START},\"began\":{},\"ended\":{},\"outcome\":{outcome:?},\"decision\":\"restart\",\
             \"generations\":{{{generations}}}}}\n",
            START + began,
            START + ended
        )
    };
    let attempts = [
        attempt(-50.0, -40.0, "exit status 3 <b>", ""),
        attempt(-5.0, 195.0, "killed", "\"world\":1"),
        attempt(195.0, 425.0, "killed", "\"world\":2"),
    ];
    fs::write(folder.path().join("attempts.jsonl"), attempts.concat()).expect("written");
    let ran = report(folder.path(), &["--json", "-o", "page.html"]);
    let group = &ran.json()["groups"][0];
    assert_eq!(
        (&group["began"], &group["unopened"][0]["has_failed"]),
        (&(START - 50.0).into(), &true.into()),
        "{group}"
    );
    let page = fs::read_to_string(folder.path().join("page.html")).expect("written");
    for words in ["3 failures (1 before a session was opened)", "no session was opened", "exit status 3 &lt;b&gt;"] {
        assert!(page.contains(words), "{words}");
    }

    let alone = tempfile::tempdir().expect("a folder");
    fs::write(alone.path().join("attempts.jsonl"), attempts[0].as_bytes()).expect("written");
    let ran = report(alone.path(), &[]);
    assert!(ran.status == 3 && ran.err.contains("1 attempt of bivouac run"), "{ran:?}");
    assert!(ran.err.contains("exit status 3"), "{ran:?}");
}

#[test]
fn without_events_it_says_how_to_get_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = report(folder.path(), &[]);
    assert!(ran.status == 3 && ran.err.contains("events.directory"), "{ran:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
    let mut command = command();
    command.arg("report").arg(folder.path().join("absent")).current_dir(folder.path());
    let missing = store::ran(command);
    assert_ne!(missing.status, 0, "{missing:?}");
}

#[test]
fn strange_files_are_named_and_the_rest_is_shown() {
    let folder = folder_of(2, 20);
    fs::write(folder.path().join(events_file("world", 7)), b"\xff\xfe{}\n[]\n").expect("written");
    fs::create_dir(folder.path().join(events_file("world", 8))).expect("made");
    let path = folder.path().join(events_file("world", 1));
    let mut bytes = fs::read(&path).expect("read");
    bytes.truncate(bytes.len() - 20);
    fs::write(&path, bytes).expect("written");
    let ran = report(folder.path(), &["--json", "-o", "page.html"]);
    assert!(ran.status == 2 && ran.err.contains(&events_file("world", 8)), "{ran:?}");
    assert_eq!(ran.json()["groups"][0]["runs"].as_array().map(Vec::len), Some(3));
    let page = fs::read_to_string(folder.path().join("page.html")).expect("written");
    assert!(page.contains("Not read:"));
}

#[test]
fn a_terminal_shows_a_job_until_q_is_pressed() {
    let folder = folder_of(1, 20);
    let status = Status { job: "heat-0c7a11f2".into(), group: "world".into(), ranks: 4, unix: START, ..Status::new() };
    fs::write(folder.path().join(status_file("world")), status.encode()).expect("written");
    let program = command().get_program().to_owned();
    let shown = format!("stty rows 30 cols 100; {} top --every 0.2 {}", program.display(), folder.path().display());
    let mut script = Command::new("script");
    script.args(["-qec", &shown, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().expect("script, of util-linux, starts");
    let (mut keys, mut screen) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains("heat-0c7a11f2") {
        let count = screen.read(&mut buffer).expect("it can be read");
        assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    }
    keys.write_all(b"q").expect("written");
    std::io::copy(&mut screen, &mut std::io::sink()).expect("its last words are read");
    assert!(child.wait().expect("it ends").success());

    let mut command = command();
    command.arg("top").arg(folder.path());
    let ran = ran(command);
    assert!(ran.status == 2 && ran.err.contains("bivouac status"), "{ran:?}");
}

/// A browser that can run without a screen.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&paths).flat_map(|folder| names.map(|name| folder.join(name))).find(|it| it.exists());
    if found.is_none() {
        eprintln!(
            "SKIPPED: no Chromium is here to look at pages: apt-get install chromium, then cargo nextest run --test cli report"
        );
    }
    found
}

/// Opens a page in a window of this width, and returns what a script in a copy of the page found.
fn looked_at(browser: &Path, page: &str, folder: &Path, width: u32) -> String {
    let copy = folder.join(format!("looked-at-{width}.html"));
    let script = "<script>addEventListener('load', () => { const e = document.documentElement; document.title = \
                  [innerWidth, e.scrollWidth, document.querySelectorAll('svg').length, \
                  [...document.querySelectorAll('svg *')].filter(x => [...x.attributes].some(a => /NaN|inf|undefined/.test(a.value))).length, \
                  getComputedStyle(document.body).backgroundColor].join('|'); });</script></body>";
    fs::write(&copy, page.replace("</body>", script)).expect("written");
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    command.arg(format!("--window-size={width},900")).arg(format!("file://{}", copy.display()));
    let output = command.output().expect("it starts");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    title.unwrap_or_else(|| panic!("no title: {dom}\n{}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

#[test]
fn a_browser_shows_it_on_screens_of_any_width() {
    let Some(browser) = browser() else { return };
    for (ranks, steps) in [(4, 20), (4096, 3)] {
        let folder = folder_of(ranks, steps);
        let ran = report(folder.path(), &[]);
        assert_eq!(ran.status, 0, "{ran:?}");
        let page = fs::read_to_string(folder.path().join("bivouac-report.html")).expect("written");
        assert!(page.len() < 8 << 20, "{ranks} ranks: {} bytes", page.len());
        for width in [500, 1300] {
            let title = looked_at(&browser, &page, folder.path(), width);
            let parts: Vec<&str> = title.split('|').collect();
            let number = |at: usize| parts[at].parse::<u32>().unwrap_or_else(|_| panic!("{title}"));
            assert!(number(1) <= number(0), "it is wider than a screen of {width}: {title}");
            assert!(number(2) >= 6 && number(3) == 0, "{title}");
        }
    }
}
