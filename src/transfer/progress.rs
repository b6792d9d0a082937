//! What a checkpoint has reached so far, shared between the engine and the application's `Pending`.

use super::stats::level_of;
use crate::base::{CheckpointKey, Level};
use crate::coordination::{Culprit, join};
use crate::policy::Plan;
use crate::tier::TierKind;

/// How one checkpoint ended at one level, as it is reported to the application; or, once for each tier that was wanted and
/// cannot be used, that nothing reaches its level ([`LevelVerdict::Off`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the series; empty for a tier.
    pub name: String,
    /// Which checkpoint; the empty key for a tier.
    pub key: CheckpointKey,
    /// At which level; `Captured` for the call itself.
    pub level: Level,
    /// The verdict.
    pub verdict: LevelVerdict,
}

/// The ranks' verdict on a level.
#[derive(Clone, Debug, PartialEq)]
pub enum LevelVerdict {
    /// All ranks have it.
    Committed,
    /// These ranks did not make it.
    Abandoned(Vec<Culprit>),
    /// The root could not be reached; recovery will tell.
    Unknown(String),
    /// Nothing reaches it in this session: these ranks cannot use its tier.
    Off(Vec<Culprit>),
}

impl LevelVerdict {
    /// Why it is not committed, in words.
    pub fn reason(&self) -> Option<String> {
        match self {
            LevelVerdict::Committed => None,
            LevelVerdict::Abandoned(culprits) => Some(format!("abandoned ({})", join(culprits))),
            LevelVerdict::Unknown(reason) => Some(format!("unknown ({reason})")),
            LevelVerdict::Off(culprits) => Some(format!("off since the session was opened ({})", join(culprits))),
        }
    }
}

/// The state of one checkpoint as the application sees it.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The plan, once all ranks have agreed on the call.
    pub plan: Option<Plan>,
    /// Verdicts so far, in the order in which they were heard.
    pub verdicts: Vec<(Level, LevelVerdict)>,
    /// All levels have come to an end.
    pub finished: bool,
}

/// Where a wait for a level stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Waited {
    /// Nothing is decided yet.
    Open,
    /// This level, which is at least the one waited for, is committed.
    Reached(Level),
    /// It cannot be reached any more; the verdicts say why (empty: no such level was planned).
    Failed(Vec<(Level, LevelVerdict)>),
}

impl Progress {
    /// The highest level committed so far.
    pub fn level(&self) -> Level {
        let committed = self.verdicts.iter().filter(|(_, verdict)| *verdict == LevelVerdict::Committed);
        committed.map(|(level, _)| *level).max().unwrap_or(Level::Captured)
    }

    /// At how many levels it is committed so far.
    pub fn levels_committed(&self) -> usize {
        self.verdicts.iter().filter(|(_, verdict)| *verdict == LevelVerdict::Committed).count()
    }

    /// Has `level`, or a higher one, been reached, or can it not be reached any more?
    pub fn waited(&self, level: Level) -> Waited {
        let reached = self.level();
        let Some(plan) = &self.plan else {
            let failed = |verdict: &&(Level, LevelVerdict)| verdict.1 != LevelVerdict::Committed;
            let failures: Vec<_> = self.verdicts.iter().filter(failed).cloned().collect();
            return if failures.is_empty() && !self.finished { Waited::Open } else { Waited::Failed(failures) };
        };
        if reached >= level {
            return Waited::Reached(reached);
        }
        let wanted = [
            (TierKind::Memory, plan.process),
            (TierKind::Local, plan.local),
            (TierKind::Peers, plan.peers),
            (TierKind::Global, plan.global),
        ];
        let open = wanted.iter().any(|(tier, planned)| {
            let at = level_of(*tier);
            *planned && at >= level && !self.verdicts.iter().any(|(decided, _)| *decided == at)
        });
        if open && !self.finished { Waited::Open } else { Waited::Failed(self.verdicts.clone()) }
    }
}
