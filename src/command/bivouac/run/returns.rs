//! Which of the silent hosts answer again while an attempt runs. Such hosts are useful to a job that may have more ranks.
#![forbid(unsafe_code)]

use super::probe::{Answer, Probe};
use crate::hosts::Host;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

/// Between two rounds of questions, this many times the probe's time-out passes.
const EVERY: u32 = 6;

/// Asks silent hosts again from time to time, without waiting for them.
#[derive(Default)]
pub struct Returns {
    /// The round that is under way; it delivers the hosts that answer.
    asked: Option<Receiver<Vec<String>>>,
    /// When the next round begins.
    next: Option<Instant>,
}

impl Returns {
    /// Returns the hosts that have answered again since the last call. Begins a round if one is due and any host is silent. The thread that
    /// asks ends at the time-out of the probe, and nobody waits for it.
    pub fn look(&mut self, probe: &Probe, silent: impl FnOnce() -> Vec<Host>) -> Vec<String> {
        let now = Instant::now();
        if let Some(asked) = &self.asked {
            let answer = match asked.try_recv() {
                Err(TryRecvError::Empty) => return Vec::new(),
                answer => answer.unwrap_or_default(),
            };
            self.asked = None;
            return answer;
        }
        let every = probe.timeout.saturating_mul(EVERY);
        if now < *self.next.get_or_insert(now + every) {
            return Vec::new();
        }
        self.next = Some(now + every);
        let hosts = silent();
        if hosts.is_empty() {
            return Vec::new();
        }
        let ((answer, asked), probe) = (channel(), probe.clone());
        let ask = move || {
            let up = hosts.iter().zip(probe.ask(&hosts)).filter(|(_, answer)| *answer == Answer::Up);
            // The attempt may be over, and then nobody wants the answer.
            let _ = answer.send(up.map(|(host, _)| host.name.clone()).collect());
        };
        // If no thread can be started, the round is left out.
        let started = std::thread::Builder::new().name("bivouac-returns".into()).spawn(ask);
        self.asked = started.ok().map(|_| asked);
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;
    use crate::run::probe::Method;
    use std::time::Duration;

    #[test]
    fn hosts_that_answer_again_are_told_once_a_round() {
        let probe = Probe { method: Method::Command("test {host} = b".into()), timeout: Duration::from_millis(500) };
        let mut returns = Returns::default();
        let began = Instant::now();
        let mut look = |list: &str| returns.look(&probe, || parse_list(list).unwrap_or_default());
        let told = loop {
            let told = look("a:2,b:2");
            if !told.is_empty() {
                break told;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "nothing was told");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(told, ["b"]);
        assert!(began.elapsed() >= probe.timeout * EVERY, "they had answered a moment ago");
        assert!(look("").is_empty() && look("b").is_empty(), "the next round is not due");
    }
}
