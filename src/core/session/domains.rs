//! Failure domains: the root reads the topology once and sends the domains to all ranks.

use super::error::Result;
use super::open::Bootstrap;
use super::place::Place;
use crate::base::Rank;
use crate::config::{Config, DomainSource};
use crate::coordination::{Ballot, Culprit, Outcome, Payload};
use crate::format::codec;
use crate::redundancy::domains::{Topology, domains_of};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The maximum length in bytes of a topology text. One byte more than is allowed is read, so that the parser refuses a text that is too
/// long.
const TOPOLOGY_MAX: u64 = (4 << 20) + 1;
/// How long SLURM may take to answer.
const SLURM_SECONDS: &str = "10";

/// The failure domain of each node, and messages about them.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct NodeDomains {
    pub domains: Vec<u32>,
    pub notes: Vec<String>,
}

/// Returns the failure domain of each node. If the result is empty, each node fails by itself.
///
/// # Collective
/// All ranks, if the configuration, which is the same on all ranks, asks for redundancy over domains larger than nodes.
///
/// # Errors
/// [`super::Error::Open`]: the topology file cannot be read.
pub(super) fn node_domains(
    bootstrap: &mut Bootstrap<'_>,
    rank: Rank,
    nodes: &[u32],
    place: &Place,
    config: &Config,
) -> Result<NodeDomains> {
    let redundancy = &config.job.redundancy;
    if redundancy.domains == DomainSource::Node || redundancy.schemes().is_empty() {
        return Ok(NodeDomains::default());
    }
    let mine = nodes[rank.index()];
    let is_leader = nodes.iter().position(|node| *node == mine) == Some(rank.index());
    let hosts = if is_leader { vec![(mine, place.host.clone())] } else { Vec::new() };
    let ballot = match Payload::gathered(hosts) {
        Ok(hosts) => Ballot::of(rank, 3, "open", hosts),
        Err(error) => Ballot::of(rank, 3, "open", Payload::None).failed(rank, error.to_string(), false),
    };
    let verdict = bootstrap.agree(ballot, |ballot| {
        let Ok(mut hosts) = ballot.payload.values::<(u32, String)>() else { return (Outcome::Unknown, Vec::new()) };
        hosts.sort_unstable();
        let names: Vec<String> = hosts.into_iter().map(|(_, host)| host).collect();
        match read(&redundancy.domains, place, &names) {
            Ok(read) => Outcome::agreed("failure domains", &read),
            Err(text) => (Outcome::Abandoned(vec![Culprit::of(rank, text)]), Vec::new()),
        }
    })?;
    Ok(codec::decode("failure domains", &verdict.decision).unwrap_or_default())
}

fn read(source: &DomainSource, place: &Place, hosts: &[String]) -> std::result::Result<NodeDomains, String> {
    let topology = match source {
        DomainSource::Node => return Ok(NodeDomains::default()),
        DomainSource::File(path) => {
            let path = place.directory.join(path);
            let wrong = |why: String| format!("redundancy.domains: {}: {why}", path.display());
            let text = read_text(&path).map_err(|error| wrong(error.to_string()))?;
            Topology::from_toml(&text).map_err(|error| wrong(error.to_string()))?
        }
        DomainSource::Slurm => {
            let read = slurm_text().and_then(|text| Topology::from_slurm(&text).map_err(|error| error.to_string()));
            match read {
                Ok(topology) => topology,
                Err(why) => {
                    let note =
                        format!("SLURM reports no topology ({why}): each node counts as a failure domain of its own");
                    return Ok(NodeDomains { domains: Vec::new(), notes: vec![note] });
                }
            }
        }
    };
    let found = domains_of(hosts, &topology).map_err(|error| format!("redundancy.domains: {error}"))?;
    Ok(NodeDomains { domains: found.of_node, notes: found.notes })
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOPOLOGY_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The text of the `topology.conf` beside SLURM's configuration file, otherwise the output of `scontrol`.
fn slurm_text() -> std::result::Result<String, String> {
    let configured = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let beside = configured.as_deref().and_then(Path::parent).unwrap_or(Path::new("/etc/slurm"));
    if let Ok(text) = read_text(&beside.join("topology.conf")) {
        return Ok(text);
    }
    let answer = Command::new("timeout")
        .args([SLURM_SECONDS, "scontrol", "show", "topology"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| format!("scontrol: {error}"))?;
    if !answer.status.success() {
        return Err(format!("scontrol ended with {}", answer.status));
    }
    String::from_utf8(answer.stdout).map_err(|error| error.to_string())
}
