//! The content of the first event of a rank's session, and where its events are written.
#![forbid(unsafe_code)]

use super::place::Place;
use crate::affinity::cpus::of_this_thread;
use crate::base::log;
use crate::base::units::show_cpus;
use crate::config::{Config, Effective};
use crate::coordination::join;
use crate::format::events::{Opened, SCHEMA};
use crate::tier::TierId;
use crate::tier::run_directory::RunDirectory;
use crate::transfer::{Events, Identity, Setup};

/// The directory in which the group's root shares files with a supervisor.
pub(super) fn run_directory(config: &Config, place: &Place) -> Option<RunDirectory> {
    config.node.run_directory.as_ref().map(|path| RunDirectory::at(place.directory.join(path)))
}

/// Where this rank's events are written: to the configured directory; otherwise, on the root only, to its run directory.
pub(super) fn events_of(config: &Config, place: &Place, identity: &Identity) -> Option<Events> {
    let directory = match &config.node.events_directory {
        Some(path) => RunDirectory::at(place.directory.join(path)),
        None => run_directory(config, place).filter(|_| identity.is_root())?,
    };
    if let Err(error) = directory.create() {
        log::warn!("event=events-directory error={error}");
    }
    Some(Events::new(directory, &identity.group, identity.rank.0, identity.generation.0))
}

/// The content of the first event of a session.
pub(super) fn opened_of(setup: &Setup, place: &Place) -> Opened {
    let Setup { identity, config, memory, tiers, lost, protection, .. } = setup;
    let memory = memory.iter().map(|segment| (TierId::MEMORY, segment.path().display().to_string()));
    let files = tiers.iter().map(|tier| (tier.kind(), tier.root().display().to_string()));
    let written = |setting: Effective| {
        let origin = setting.origin.map_or_else(String::new, |origin| origin.to_string());
        (setting.key.to_owned(), setting.value, origin)
    };
    let settings = if identity.is_root() { config.settings() } else { Vec::new() };
    Opened {
        schema: SCHEMA,
        library: env!("CARGO_PKG_VERSION").to_owned(),
        job: identity.job.clone(),
        group: identity.group.clone(),
        rank: identity.rank.0,
        ranks: identity.size,
        node: identity.node_ranks.first().map_or(0, |rank| rank.0),
        incarnation: identity.incarnation.to_string(),
        host: place.host.clone(),
        pid: std::process::id(),
        cpus: show_cpus(&of_this_thread()),
        tiers: memory.chain(files).map(|(tier, place)| (tier.to_string(), place)).collect(),
        lost: lost.iter().map(|(tier, culprits)| (tier.to_string(), join(culprits))).collect(),
        redundancy: protection.schemes().iter().map(ToString::to_string).collect(),
        settings: settings.into_iter().map(written).collect(),
    }
}
