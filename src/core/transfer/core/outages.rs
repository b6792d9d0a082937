//! What is logged about a level that is refused again and again: a full disk causes one line when the outage begins and one when it ends,
//! however many checkpoints are refused in between. Pure.
#![forbid(unsafe_code)]

use crate::base::Level;
use std::collections::BTreeMap;

/// The levels that were refused last time.
#[derive(Default)]
pub struct Outages(BTreeMap<Level, Outage>);

struct Outage {
    /// The reason without its digits, because paths, versions and operations differ from one checkpoint to the next.
    words: String,
    refused: u64,
}

impl Outages {
    /// A checkpoint was refused at `level` for `reason`. True if that is news: the previous checkpoint was not refused, or was refused for
    /// another reason.
    pub fn on_refused(&mut self, level: Level, reason: &str) -> bool {
        let words: String = reason.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        let outage = self.0.entry(level).or_insert(Outage { words: String::new(), refused: 0 });
        outage.refused += 1;
        std::mem::replace(&mut outage.words, words) != outage.words
    }

    /// A checkpoint has reached `level`. Returns how many checkpoints in a row had not, if their refusal was reported.
    pub fn on_committed(&mut self, level: Level) -> Option<u64> {
        self.0.remove(&level).map(|outage| outage.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_news_when_it_begins_when_its_reason_changes_and_when_it_ends() {
        let mut outages = Outages::default();
        let full = |version: u64| format!("all 4 ranks: cannot write to /g/v{version:06}: no space left (os error 28)");
        assert!(outages.on_refused(Level::System, &full(3)));
        assert!(!outages.on_refused(Level::System, &full(4)));
        // Each level has its own outages.
        assert!(outages.on_refused(Level::NodeReboot, &full(4)));
        assert!(outages.on_refused(Level::System, "rank 2: /g is gone"));
        assert!(!outages.on_refused(Level::System, "rank 3: /g is gone"));
        assert!(outages.on_refused(Level::System, &full(7)));
        assert_eq!(outages.on_committed(Level::System), Some(5));
        assert_eq!((outages.on_committed(Level::System), outages.on_committed(Level::Process)), (None, None));
        assert!(outages.on_refused(Level::System, &full(9)), "it has begun anew");
    }
}
