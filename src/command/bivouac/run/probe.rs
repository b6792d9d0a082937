//! Does a host answer? All hosts are asked at the same time, and never for longer than the time-out.
#![forbid(unsafe_code)]

use crate::hosts::Host;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// The maximum number of hosts that are asked at the same time.
const AT_ONCE: usize = 64;
/// The port of slurmd if SLURM does not report it.
const SLURMD_PORT: u16 = 6818;
/// A living host's kernel accepts a connection at once, however busy the host is; this time leaves room for one lost packet.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How often a running command is checked.
const PAUSE: Duration = Duration::from_millis(5);

/// How hosts are asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Method {
    /// A shell command in which `{host}` stands for the host; success means that it answers.
    Command(String),
    /// The launcher's remote shell, as words, runs `true` there.
    Agent(Vec<String>),
    /// A connection to slurmd; if the connection shows nothing, an empty job step.
    Slurm {
        /// The port of slurmd, if SLURM reports it.
        port: Option<u16>,
    },
}

/// A probe of hosts.
#[derive(Clone, Debug)]
pub struct Probe {
    /// How the hosts are asked.
    pub method: Method,
    /// How long a host may take to answer.
    pub timeout: Duration,
}

/// The answer of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The host answers.
    Up,
    /// The host does not answer, for this reason.
    Down(String),
}

impl Probe {
    /// Asks all hosts, each once. The answers are in the order of the hosts.
    ///
    /// # Blocking
    /// Up to the time-out, for each 64 hosts or part of them.
    pub fn ask(&self, hosts: &[Host]) -> Vec<Answer> {
        let answers: Vec<Mutex<Answer>> = hosts.iter().map(|_| Mutex::new(Answer::Up)).collect();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(host) = hosts.get(index) else { return };
                let answer = self.ask_one(host);
                *answers[index].lock().expect("nobody panics with this lock") = answer;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..hosts.len().min(AT_ONCE) {
                scope.spawn(work);
            }
        });
        answers.into_iter().map(|answer| answer.into_inner().expect("nobody panics with this lock")).collect()
    }

    fn ask_one(&self, host: &Host) -> Answer {
        let deadline = Instant::now() + self.timeout;
        match &self.method {
            Method::Command(text) => {
                let mut command = Command::new("/bin/sh");
                // Host names contain no characters that have a meaning for a shell.
                command.arg("-c").arg(text.replace("{host}", &host.name));
                answer(command, deadline)
            }
            _ if host.is_local() => Answer::Up,
            Method::Agent(agent) => answer(agent_command(agent, &host.name, self.timeout), deadline),
            Method::Slurm { port } => match connect(&host.name, *port, deadline.min(Instant::now() + CONNECT_MAX)) {
                Ok(()) => Answer::Up,
                Err(Silence::Dead(why)) => Answer::Down(why),
                Err(Silence::Unclear(why)) => {
                    let mut command = Command::new("srun");
                    command.args(["-Q", "-N1", "-n1", "--overlap", "-w", &host.name, "true"]);
                    match answer(command, deadline) {
                        Answer::Up => Answer::Up,
                        Answer::Down(step) => Answer::Down(format!("{why}; job step: {step}")),
                    }
                }
            },
        }
    }
}

fn agent_command(agent: &[String], host: &str, timeout: Duration) -> Command {
    let (program, arguments) = agent.split_first().expect("an agent has a program");
    let mut command = Command::new(program);
    command.args(arguments);
    let name = program.rsplit('/').next().unwrap_or(program);
    if name == "ssh" {
        let seconds = timeout.as_secs().max(1);
        command.args(["-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={seconds}")]);
    }
    command.args([host, "true"]);
    command
}

/// The words of the agent that Open MPI or Hydra would use: `ssh : rsh` means ssh, or rsh if there is no ssh.
pub fn agent_words(setting: &str) -> Vec<String> {
    let first = setting.split(':').next().unwrap_or_default();
    let words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() { vec!["ssh".into()] } else { words }
}

enum Silence {
    /// The host is dead.
    Dead(String),
    /// Something answered, or the name is unknown here: this way of asking does not decide.
    Unclear(String),
}

fn connect(host: &str, port: Option<u16>, deadline: Instant) -> Result<(), Silence> {
    let unclear = |why: String| Silence::Unclear(format!("no address for {host}: {why}"));
    // A resolver whose servers are silent has time-outs of its own; nobody waits for it longer than for the host.
    let (tell, told) = mpsc::channel();
    let (name, asked) = (host.to_owned(), port.unwrap_or(SLURMD_PORT));
    std::thread::spawn(move || tell.send((name, asked).to_socket_addrs().map(Vec::from_iter)));
    let addresses = match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(found) => found.map_err(|error| unclear(error.to_string()))?,
        Err(_) => return Err(unclear("no answer within the time-out".into())),
    };
    let mut last = Silence::Unclear(format!("no address for {host}"));
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(silence(ErrorKind::TimedOut, port.is_some(), "no answer within the time-out".into()));
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(_) => return Ok(()),
            Err(error) => last = silence(error.kind(), port.is_some(), format!("{address}: {error}")),
        }
    }
    Err(last)
}

/// What a failed connection means. At a port that is only assumed, a firewall may be silent instead of the host.
fn silence(kind: ErrorKind, is_known_port: bool, why: String) -> Silence {
    if is_known_port && kind != ErrorKind::ConnectionRefused { Silence::Dead(why) } else { Silence::Unclear(why) }
}

/// Runs a command until it ends or its time is over.
fn answer(mut command: Command, deadline: Instant) -> Answer {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Answer::Down(format!("{program}: {error}")),
    };
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Answer::Up,
            Ok(Some(status)) => return Answer::Down(format!("{program}: {status}")),
            Err(error) => return Answer::Down(format!("{program}: {error}")),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Ok(None) => {
                // The whole group is killed, because the command may have started other processes; it may have ended just now.
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                let _ = child.wait();
                return Answer::Down("no answer within the time-out".into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;

    fn ask(command: &str, list: &str, timeout: Duration) -> Vec<Answer> {
        let probe = Probe { method: Method::Command(command.into()), timeout };
        probe.ask(&parse_list(list).unwrap())
    }

    #[test]
    fn every_host_gets_its_own_answer_in_order() {
        let answers = ask("test {host} != b", "a,b,c", Duration::from_secs(30));
        assert_eq!(answers[0], Answer::Up);
        assert!(matches!(&answers[1], Answer::Down(why) if why.contains("exit status: 1")), "{answers:?}");
        assert_eq!(answers[2], Answer::Up);
    }

    #[test]
    fn a_host_that_never_answers_is_down_after_the_time_out_and_its_command_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let command = format!("echo $$ > {}; exec sleep 1000", file.display());
        // On a busy machine, the shell may be killed before it has written its process id.
        let pid = [1, 3, 10, 30].into_iter().find_map(|seconds| {
            let answers = ask(&command, "a", Duration::from_secs(seconds));
            assert_eq!(answers, [Answer::Down("no answer within the time-out".into())]);
            std::fs::read_to_string(&file).ok()?.trim().parse::<i32>().ok()
        });
        let pid = pid.expect("the shell started");
        assert!(nix::sys::signal::kill(Pid::from_raw(pid), None).is_err(), "process {pid} is still there");
    }

    #[test]
    fn many_hosts_are_asked() {
        assert!(ask("true", "n[1-150]", Duration::from_secs(60)).iter().all(|answer| *answer == Answer::Up));
    }

    #[test]
    fn agents_are_read_as_the_launchers_read_them() {
        assert_eq!(agent_words("ssh : rsh"), ["ssh"]);
        assert_eq!(agent_words("/opt/my-ssh -q"), ["/opt/my-ssh", "-q"]);
        assert_eq!(agent_words(""), ["ssh"]);
        let words = |agent: &[&str]| {
            let agent: Vec<String> = agent.iter().map(|word| (*word).to_owned()).collect();
            let command = agent_command(&agent, "n1", Duration::from_secs(7));
            let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        assert_eq!(words(&["ssh", "-q"]), "-q -o BatchMode=yes -o ConnectTimeout=7 n1 true");
        assert_eq!(words(&["/x/agent"]), "n1 true");
    }

    #[test]
    fn this_machine_need_not_be_asked() {
        let probe = Probe { method: Method::Agent(vec!["/nonexistent".into()]), timeout: Duration::from_secs(1) };
        let answers = probe.ask(&parse_list("localhost,elsewhere").unwrap());
        assert_eq!(answers[0], Answer::Up);
        assert!(matches!(&answers[1], Answer::Down(_)));
    }

    #[test]
    fn silence_at_a_port_that_is_only_assumed_leaves_the_question_open() {
        let is_dead = |kind, is_known_port| matches!(silence(kind, is_known_port, String::new()), Silence::Dead(_));
        for kind in [ErrorKind::TimedOut, ErrorKind::HostUnreachable] {
            assert!(is_dead(kind, true) && !is_dead(kind, false), "{kind}");
        }
        assert!(!is_dead(ErrorKind::ConnectionRefused, true));
        let over = connect("127.0.0.2", None, Instant::now());
        assert!(matches!(over, Err(Silence::Unclear(_))));
    }

    #[test]
    fn a_name_without_address_leaves_the_question_open() {
        let deadline = Instant::now() + Duration::from_secs(20);
        assert!(matches!(connect("host.invalid.", Some(SLURMD_PORT), deadline), Err(Silence::Unclear(_))));
    }
}
