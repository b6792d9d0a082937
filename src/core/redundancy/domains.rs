//! Failure domains: the failure domain of each node, from a topology file or from SLURM's topology. Pure.
//!
//! A [`Topology`] is read from text: a file like `config/topology.toml`, or SLURM's topology (`topology.conf`, or the
//! output of `scontrol show topology`), in which the leaf switch of a node is its domain. [`domains_of`] then looks up the
//! hosts that a job actually has. The text may be hostile, so its size and the number of hosts for which it stands are
//! bounded. Names of hosts outside the job are spelled out one after the other and are not kept.
//!
//! Host names are compared without regard to case. `node1` and `node1.cluster.example` are the same host, unless both
//! the topology and the job distinguish the two names; addresses are compared as a whole.
#![forbid(unsafe_code)]

mod hosts;

pub use hosts::{HostList, HostListError};

use hosts::shown;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use toml::{Table, Value};

/// The maximum length of a topology's text in bytes: 64 bytes for each of 65536 switches.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// The maximum number of hosts that a topology may list in all its sections. About 100 bytes are kept for each host.
pub const HOSTS_MAX: u64 = 1_000_000;

/// Groups of hosts that fail together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    domains: Vec<Domain>,
    notes: Vec<String>,
}

/// A failure domain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Domain {
    name: String,
    hosts: Vec<HostList>,
}

/// Why there is no topology, or no answer from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The text is too long to be a topology.
    #[error("the topology has {bytes} bytes, more than {TEXT_BYTES_MAX}; is it the right file?")]
    TooLarge {
        /// The length of the text.
        bytes: usize,
    },
    /// The text is not TOML.
    #[error("line {line}: {message}")]
    Syntax {
        /// The line; the first one is 1.
        line: usize,
        /// The message of the TOML parser.
        message: String,
    },
    /// A value does not have the form that the format requires.
    #[error("{place} must be {expected}")]
    Form {
        /// Section and key.
        place: String,
        /// The form that is required.
        expected: &'static str,
    },
    /// The key `domain` is missing but needed to choose a section, or it names a section that does not exist.
    #[error(
        "domain must name the section to use{}; the sections are: {}",
        .named.as_ref().map(|name| format!("; there is no [{name}]")).unwrap_or_default(), .sections.join(", ")
    )]
    Section {
        /// The name that the key gives; `None` if the key is missing.
        named: Option<String>,
        /// The first few sections.
        sections: Vec<String>,
    },
    /// A list of hosts that cannot be read.
    #[error("{place}: {source}")]
    Hosts {
        /// Section and key, or the line.
        place: String,
        /// The mistake.
        source: HostListError,
    },
    /// No hosts are grouped: there is no section, or no switch with nodes.
    #[error("the topology lists no hosts: {hint}")]
    Nothing {
        /// A hint on what to look for.
        hint: &'static str,
    },
    /// A host of the job is in two domains.
    #[error("host {host} is listed in {first} and in {second}; a host may have only one failure domain")]
    TwoDomains {
        /// The host.
        host: String,
        /// The domain that lists it first.
        first: String,
        /// Another domain that lists it.
        second: String,
    },
}

/// The failure domain of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domains {
    /// The domain of each node, in the form in which [`super::placement::place`] takes it.
    pub of_node: Vec<u32>,
    /// The name of each domain.
    pub names: Vec<String>,
    /// Deviations from what was expected, in plain sentences: hosts that are not listed, and lines that were not
    /// understood.
    pub notes: Vec<String>,
}

impl Topology {
    /// Reads a topology file; `config/topology.toml` documents the format.
    ///
    /// # Errors
    /// The mistake in the text, with its place.
    pub fn from_toml(text: &str) -> Result<Topology, TopologyError> {
        check_size(text)?;
        let mut sections: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = &text.as_bytes()[..error.span().map_or(0, |span| span.start).min(text.len())];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            TopologyError::Syntax { line, message: shown(error.message()) }
        })?;
        let chosen = match sections.remove("domain") {
            None => None,
            Some(Value::String(name)) => Some(name),
            Some(_) => return Err(TopologyError::Form { place: "domain".into(), expected: "the name of a section" }),
        };
        // All sections are read, so that a mistake in a section is found even if the section is not chosen.
        let mut left = HOSTS_MAX;
        let read = sections.iter().map(|(name, value)| Ok((name.as_str(), section(name, value, &mut left)?)));
        let mut read: BTreeMap<&str, Vec<Domain>> = read.collect::<Result<_, TopologyError>>()?;
        let name = match (&chosen, read.len()) {
            (_, 0) => {
                return Err(TopologyError::Nothing {
                    hint: "it needs a section like [rack] with lines like rack-1 = \"node[01-16]\"",
                });
            }
            (Some(name), _) => Some(name.as_str()),
            (None, 1) => read.keys().next().copied(),
            (None, _) => None,
        };
        match name.and_then(|name| read.remove(name)) {
            Some(domains) => Ok(Topology { domains, notes: Vec::new() }),
            None => {
                let sections = read.keys().take(NAMED_MAX).map(|name| shown(name)).collect();
                Err(TopologyError::Section { named: chosen.map(|name| shown(&name)), sections })
            }
        }
    }

    /// Reads SLURM's `topology.conf` or the output of `scontrol show topology`: the leaf switches of `topology/tree`, or
    /// the blocks of `topology/block`.
    ///
    /// # Errors
    /// A list of nodes cannot be read, or there is no list at all.
    pub fn from_slurm(text: &str) -> Result<Topology, TopologyError> {
        check_size(text)?;
        let mut domains = Vec::new();
        let mut left = HOSTS_MAX;
        let (mut strange, mut strange_first) = (0, 0);
        for (number, line) in logical_lines(text) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<(&str, &str)> =
                line.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
            let value =
                |key: &str| words.iter().find(|(word, _)| word.eq_ignore_ascii_case(key)).map(|(_, value)| *value);
            let Some((first, _)) = words.first() else { continue };
            let Some(name) = value("SwitchName").or_else(|| value("BlockName")) else {
                let is_known = ["BlockSizes", "AggregatedBlock"].iter().any(|word| word.eq_ignore_ascii_case(first));
                if !is_known {
                    strange_first = if strange == 0 { number } else { strange_first };
                    strange += 1;
                }
                continue;
            };
            // `scontrol` also lists the nodes of upper switches, to which other switches are connected.
            let (Some(nodes), None) = (value("Nodes"), value("Switches")) else { continue };
            let hosts = host_list(nodes, &mut left, || format!("line {number}"))?;
            domains.push(Domain { name: shown(name), hosts: vec![hosts] });
        }
        if domains.is_empty() {
            return Err(TopologyError::Nothing {
                hint: "no line has SwitchName= (or BlockName=) and Nodes= without Switches=; `scontrol show config` says \
                       under TopologyPlugin whether SLURM knows a topology",
            });
        }
        let notes = match strange {
            0 => Vec::new(),
            _ => vec![format!("{strange} lines were not understood; the first is line {strange_first}.")],
        };
        Ok(Topology { domains, notes })
    }

    /// The number of domains that are listed.
    pub fn count(&self) -> usize {
        self.domains.len()
    }
}

fn check_size(text: &str) -> Result<(), TopologyError> {
    if text.len() <= TEXT_BYTES_MAX { Ok(()) } else { Err(TopologyError::TooLarge { bytes: text.len() }) }
}

/// Reads a section: a line for each domain.
fn section(name: &str, value: &Value, left: &mut u64) -> Result<Vec<Domain>, TopologyError> {
    let Value::Table(lines) = value else {
        return Err(TopologyError::Form {
            place: shown(name),
            expected: "a section with a line for each failure domain",
        });
    };
    let domain = |(key, value): (&String, &Value)| {
        let place = || format!("[{}] {}", shown(name), shown(key));
        let form = || TopologyError::Form {
            place: place(),
            expected: "a list of hosts as a string, or an array of such strings",
        };
        let texts: Vec<&str> = match value {
            Value::String(text) => vec![text],
            Value::Array(texts) => texts.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(form)?,
            _ => return Err(form()),
        };
        let hosts = texts.into_iter().map(|text| host_list(text, left, place)).collect::<Result<_, _>>()?;
        Ok(Domain { name: shown(key), hosts })
    };
    lines.iter().map(domain).collect()
}

/// Reads a list and subtracts its hosts from `left`.
fn host_list(text: &str, left: &mut u64, place: impl Fn() -> String) -> Result<HostList, TopologyError> {
    let list = HostList::parse(text, *left).map_err(|source| {
        // The limit in the message is that of all lists together.
        let source = match source {
            HostListError::TooMany { .. } => HostListError::TooMany { limit: HOSTS_MAX },
            other => other,
        };
        TopologyError::Hosts { place: place(), source }
    })?;
    *left -= list.count();
    Ok(list)
}

/// Joined lines, each with the number of its first physical line: a backslash at the end of a line joins the next line
/// to it.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, Cow<'_, str>)> {
    let mut lines = (1..).zip(text.lines());
    std::iter::from_fn(move || {
        let (number, first) = lines.next()?;
        let mut line = Cow::Borrowed(first);
        while line.ends_with('\\') {
            let line = line.to_mut();
            line.pop();
            line.push_str(lines.next().map_or("", |(_, next)| next));
        }
        Some((number, line))
    })
}

/// The maximum number of hosts or sections that a message names.
const NAMED_MAX: usize = 8;

/// The failure domain of each node, by the name of its host. A host that the topology does not list is a domain of its
/// own, and a note says so. Nodes with the same host name are in the same domain.
///
/// # Errors
/// [`TopologyError::TwoDomains`].
pub fn domains_of(hosts: &[String], topology: &Topology) -> Result<Domains, TopologyError> {
    let mut ours = Ours::new(hosts);
    for (number, domain) in (0u32..).zip(&topology.domains) {
        for list in &domain.hosts {
            let clash = list.visit(&mut |name| ours.listed(name, number));
            if let (ControlFlow::Break(()), Some((host, other))) = (clash, ours.clash) {
                return Err(TopologyError::TwoDomains {
                    host: shown(&hosts[host]),
                    first: topology.domains[other as usize].name.clone(),
                    second: domain.name.clone(),
                });
            }
        }
    }
    let mut names: Vec<String> = topology.domains.iter().map(|domain| domain.name.clone()).collect();
    let mut alone: BTreeMap<&str, u32> = BTreeMap::new();
    let mut of_node = Vec::with_capacity(hosts.len());
    for (full, found) in ours.full.iter().zip(&ours.found) {
        let domain = match found {
            Some(found) => found.domain,
            None => *alone.entry(full).or_insert_with(|| {
                names.push(shown(full));
                names.len() as u32 - 1
            }),
        };
        of_node.push(domain);
    }
    let mut notes = topology.notes.clone();
    if !alone.is_empty() {
        let named: Vec<String> = alone.keys().take(NAMED_MAX).map(|name| shown(name)).collect();
        let more = match alone.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        notes.push(format!(
            "The topology does not list {}{more}: each of them counts as a separate failure domain.",
            named.join(", ")
        ));
    }
    Ok(Domains { of_node, names, notes })
}

/// Where a host was found.
#[derive(Clone, Copy)]
struct Found {
    domain: u32,
    /// The full names are equal, and not only their first labels.
    is_exact: bool,
}

/// The hosts of the job, by their names.
struct Ours {
    /// Lower-case names.
    full: Vec<String>,
    by_full: BTreeMap<String, Vec<usize>>,
    /// Hosts whose names have a domain part, by their first label.
    by_short: BTreeMap<String, Vec<usize>>,
    found: Vec<Option<Found>>,
    /// A host in two domains: its index, and the domain in which it was found first.
    clash: Option<(usize, u32)>,
}

impl Ours {
    fn new(hosts: &[String]) -> Ours {
        let full: Vec<String> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        let (mut by_full, mut by_short) =
            (BTreeMap::<String, Vec<usize>>::new(), BTreeMap::<String, Vec<usize>>::new());
        for (index, name) in full.iter().enumerate() {
            by_full.entry(name.clone()).or_default().push(index);
            if let Some(short) = short(name) {
                by_short.entry(short.to_owned()).or_default().push(index);
            }
        }
        Ours { found: vec![None; hosts.len()], full, by_full, by_short, clash: None }
    }

    /// Records a host that the topology lists. Breaks at the first host of the job that is in two domains.
    fn listed(&mut self, name: &str, domain: u32) -> ControlFlow<()> {
        let name = name.to_ascii_lowercase();
        let none = Vec::new();
        let exact = self.by_full.get(&name).unwrap_or(&none);
        let loose = match short(&name) {
            Some(short) => self.by_full.get(short),
            None => self.by_short.get(&name),
        };
        let hits =
            exact.iter().map(|host| (*host, true)).chain(loose.unwrap_or(&none).iter().map(|host| (*host, false)));
        for (host, is_exact) in hits {
            match &mut self.found[host] {
                Some(before) if before.is_exact && !is_exact => {}
                Some(before) if before.is_exact == is_exact && before.domain != domain => {
                    self.clash = Some((host, before.domain));
                    return ControlFlow::Break(());
                }
                found => *found = Some(Found { domain, is_exact }),
            }
        }
        ControlFlow::Continue(())
    }
}

/// The part before the first dot, if there is a dot and the name is not an address.
fn short(name: &str) -> Option<&str> {
    if name.parse::<IpAddr>().is_ok() { None } else { name.split_once('.').map(|(short, _)| short) }
}

#[cfg(test)]
mod tests;
