//! How the checkpoints of a series relate to each other, according to one tier: `ls` prints this, and `rm` asks for it.
#![forbid(unsafe_code)]

use crate::survey::{Checkpoint, survey};
use crate::target::{Scope, TargetError};
use bivouac_core::catalog::{self, Candidate, Lineage, Moment};
use bivouac_core::tier::names::Series;
use serde::Serialize;
use std::collections::BTreeMap;

/// Why a checkpoint is (still) here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// A restart continues from it: it is removed only when there is a newer one.
    Newest,
    /// The newest checkpoint descends from it: it stays for as long as `keep_last` and `keep_every` demand.
    Older,
    /// A run went back to an earlier checkpoint, or began the series again: no restart takes this one unless asked to.
    LeftBehind,
}

impl Standing {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Newest => "newest",
            Standing::Older => "older",
            Standing::LeftBehind => "left behind",
        }
    }
}

/// A series, as a restart would see it if this tier were the only one.
#[derive(Default)]
pub struct History {
    newest: Option<Candidate>,
    lineage: Lineage,
}

impl History {
    fn of<'c>(all: impl Iterator<Item = &'c Checkpoint>) -> History {
        let usable: Vec<Candidate> = all.filter_map(|found| found.candidate).collect();
        History { newest: catalog::newest(&usable).copied(), lineage: Lineage::of_newest(&usable, &usable) }
    }

    /// The checkpoint from which a restart would continue.
    pub fn newest(&self) -> Option<Moment> {
        self.newest.map(|newest| Moment::of(&newest.key))
    }

    /// The standing of one of the series's checkpoints; `None` if it cannot be restored.
    pub fn standing(&self, found: &Checkpoint) -> Option<Standing> {
        let candidate = found.candidate?;
        Some(match self.newest {
            Some(newest) if newest == candidate => Standing::Newest,
            _ if self.lineage.contains(&candidate) => Standing::Older,
            _ => Standing::LeftBehind,
        })
    }
}

/// The histories of all series of which a survey of `scope` has `found` something. Each covers the whole series, even if only one
/// checkpoint of it was asked for.
///
/// # Errors
/// The series of that checkpoint cannot be listed.
pub fn histories(scope: &Scope, found: &[Checkpoint]) -> Result<BTreeMap<Series, History>, TargetError> {
    let Scope { tier, parts } = scope;
    let whole;
    let all = match parts.get(..3) {
        Some(series) if parts.len() > 3 => {
            whole = survey(&Scope { tier: tier.clone(), parts: series.to_vec() })?.0;
            &whole[..]
        }
        _ => found,
    };
    let mut series: BTreeMap<&Series, Vec<&Checkpoint>> = BTreeMap::new();
    all.iter().for_each(|checkpoint| series.entry(&checkpoint.series).or_default().push(checkpoint));
    Ok(series.into_iter().map(|(series, all)| (series.clone(), History::of(all.into_iter()))).collect())
}
