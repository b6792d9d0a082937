//! Shared code of the tests in machines with several NUMA nodes: whether machines can be booted,
//! and which tests are slow.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The script that boots a machine.
pub fn script() -> PathBuf {
    Path::new(env!("WORKSPACE_ROOT")).join("tests/numa/machine.sh")
}

/// A program of the build tree.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

/// The whole output of a command.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Can machines be booted here? If not, prints a loud note that `what` was not tested, and how to test it.
pub fn can(what: &str, test: &str) -> bool {
    let output = Command::new(script()).arg("can").stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        eprintln!(
            "\n*** SKIPPED: no machine with several NUMA nodes here, so {what} was not tested.\n{}\
             Run on Debian or Ubuntu, as root: ci/setup.sh --with-tests && cargo build --examples && \
             cargo test --test {test} ***\n",
            text(&output)
        );
    }
    output.status.success()
}

/// Should the slow part run? Prints its name if not. Each machine takes ten seconds or more.
pub fn is_whole(test: &str) -> bool {
    let is_asked = std::env::var_os("BIVOUAC_TEST_NUMA").is_some_and(|word| word == "all");
    if !is_asked {
        eprintln!("\n*** SKIPPED: a slow part. Run: BIVOUAC_TEST_NUMA=all cargo test --test {test} ***\n");
    }
    is_asked
}
