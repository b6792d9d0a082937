//! Tests that move and count the threads of their process each run alone in a process. Among other tests, whose threads start
//! and end at any time, each would find and move the threads of the others.
#![forbid(unsafe_code)]

use std::process::Command;

const VARIABLE: &str = "BIVOUAC_TEST_ALONE";

/// To be the first line of such a test: if this is not the test's own process, runs the test in one, and returns
/// when it has passed there.
macro_rules! alone {
    () => {{
        fn here() {}
        if !$crate::affinity::alone::is_alone(std::any::type_name_of_val(&here)) {
            return;
        }
    }};
}

/// Is this the process of one test? If not, runs the test in a process of its own, where it must pass. `path` is the path of
/// a function inside the test.
pub fn is_alone(path: &str) -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let (_, name) = path.rsplit_once("::").and_then(|(test, _)| test.split_once("::")).expect("crate::test::here");
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(VARIABLE, "");
    let output = command.output().expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {}\n{text}", output.status);
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    false
}
