//! What a checkpoint has reached so far, shared between the engine and the application's `Pending`.

use crate::base::{CheckpointKey, Level};
use crate::coordination::{Culprit, join};
use crate::tier::{TierId, TierSet};

/// How one checkpoint ended at one level, as reported to the application. For each tier that was wanted but cannot be used, one report says
/// that nothing reaches its level ([`LevelVerdict::Off`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the series; empty for a tier.
    pub name: String,
    /// The checkpoint's key; for a tier, the empty key.
    pub key: CheckpointKey,
    /// The level; `Captured` stands for the call itself.
    pub level: Level,
    /// The verdict.
    pub verdict: LevelVerdict,
}

/// The ranks' verdict on a level.
#[derive(Clone, Debug, PartialEq)]
pub enum LevelVerdict {
    /// All ranks have reached the level.
    Committed,
    /// These ranks did not reach the level.
    Abandoned(Vec<Culprit>),
    /// The root could not be reached; recovery will show the outcome.
    Unknown(String),
    /// No checkpoint reaches this level in this session: these ranks cannot use its tier.
    Off(Vec<Culprit>),
}

impl LevelVerdict {
    /// The reason why the level is not committed, in words.
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
    /// The tiers that the checkpoint goes to, once all ranks have agreed on the call.
    pub plan: Option<TierSet>,
    /// Verdicts so far, in the order in which they were heard. Without a tier: on the call itself.
    pub heard: Vec<(Option<TierId>, LevelVerdict)>,
    /// All levels have ended.
    pub finished: bool,
}

/// The state of a wait for a level.
#[derive(Clone, Debug, PartialEq)]
pub enum Waited {
    /// Nothing is decided yet.
    Open,
    /// This level, which is at least the one waited for, is committed.
    Reached(Level),
    /// The level cannot be reached any more; the verdicts say why (empty: no such level was planned).
    Failed(Vec<(Level, LevelVerdict)>),
}

impl Progress {
    /// The tiers on which all ranks are known to have the checkpoint.
    fn committed(&self) -> impl Iterator<Item = TierId> {
        self.heard.iter().filter(|(_, verdict)| *verdict == LevelVerdict::Committed).filter_map(|(tier, _)| *tier)
    }

    /// Verdicts so far, by level, in the order in which they were heard.
    pub fn verdicts(&self) -> Vec<(Level, LevelVerdict)> {
        self.heard.iter().map(|(tier, verdict)| (level_of(*tier), verdict.clone())).collect()
    }

    /// The highest level committed so far.
    pub fn level(&self) -> Level {
        self.committed().map(TierId::level).max().unwrap_or(Level::Captured)
    }

    /// Has exactly one tier committed the checkpoint so far?
    pub fn is_first_commit(&self) -> bool {
        self.committed().count() == 1
    }

    /// Has `level` or a higher level been reached, or can none of them be reached any more?
    pub fn waited(&self, level: Level) -> Waited {
        let reached = self.level();
        let Some(plan) = &self.plan else {
            let failed = |verdict: &(Level, LevelVerdict)| verdict.1 != LevelVerdict::Committed;
            let failures: Vec<_> = self.verdicts().into_iter().filter(failed).collect();
            return if failures.is_empty() && !self.finished { Waited::Open } else { Waited::Failed(failures) };
        };
        if reached >= level {
            return Waited::Reached(reached);
        }
        let is_open = |tier: TierId| tier.level() >= level && !self.heard.iter().any(|(of, _)| *of == Some(tier));
        if plan.iter().any(is_open) && !self.finished { Waited::Open } else { Waited::Failed(self.verdicts()) }
    }
}

/// The level to which a verdict refers: that of a tier, or that of the call.
pub(super) fn level_of(tier: Option<TierId>) -> Level {
    tier.map_or(Level::Captured, TierId::level)
}
