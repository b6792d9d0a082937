//! Runs other programs to ask them for something, each for no longer than a time limit.
#![forbid(unsafe_code)]

use rustix::fs::{Access, AtFlags, CWD};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// At most this much of an answer is read.
const ANSWER_BYTES: u64 = 64 << 10;

/// What a command has said by its end.
pub struct Said {
    /// How the command ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// The path of a command.
pub fn find(name: &str) -> Option<PathBuf> {
    let is_program =
        |path: &PathBuf| path.is_file() && rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::empty()).is_ok();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(is_program)
}

/// Runs a command to its end.
///
/// # Errors
/// The command cannot be started, or it takes too long.
pub fn run(command: &mut Command, limit: Duration) -> Result<Said, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
    let reader = |stream: Option<Box<dyn Read + Send>>| {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error is still useful.
            let _ = stream.map(|stream| stream.take(ANSWER_BYTES).read_to_end(&mut bytes));
            tell.send(String::from_utf8_lossy(&bytes).into_owned())
        });
        told
    };
    let out = reader(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let err = reader(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                // The child process is ours and has used up its time. The readers end with it, or with the processes that it started;
                // nobody waits for them.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} did not answer within {} s", limit.as_secs()));
            }
            Err(error) => return Err(format!("cannot wait for {name}: {error}")),
        }
    };
    // A process that the command has started may keep its output open.
    let rest = |told: mpsc::Receiver<String>| {
        let text = told.recv_timeout(limit.saturating_sub(began.elapsed()));
        text.map_err(|_| format!("{name} ended ({status}), but its output did not end within {} s", limit.as_secs()))
    };
    Ok(Said { status, out: rest(out)?, err: rest(err)? })
}

/// Returns what a command prints if it ends successfully within the limit.
///
/// # Errors
/// Those of [`run`]; or the command failed: how it ended, and the first line of its standard error.
pub fn answer(command: &mut Command, limit: Duration) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Said { status, out, err } = run(command, limit)?;
    match status.success() {
        true => Ok(out),
        false => Err(format!("{name} ended with {status}: {}", err.lines().next().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_or_fails_or_is_not_there_is_an_error() {
        let limit = Duration::from_millis(50);
        assert!(answer(Command::new("sleep").arg("1000"), limit).unwrap_err().contains("did not answer"));
        assert!(answer(&mut Command::new("false"), Duration::from_secs(10)).unwrap_err().contains("exit status"));
        assert!(
            answer(&mut Command::new("no-such-command"), Duration::from_secs(10)).unwrap_err().contains("cannot start")
        );
        assert_eq!(answer(Command::new("echo").arg("yes"), Duration::from_secs(10)).unwrap(), "yes\n");
    }
}
