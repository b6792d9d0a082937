//! The names of the files and folders of checkpoints, which are the same on every tier.
#![forbid(unsafe_code)]

use crate::base::Rank;
use crate::format::Content;

/// The file of one rank on the local tier (and on the global tier when a rank writes alone).
pub fn rank_file(rank: Rank) -> String {
    format!("r{:06}.bvs", rank.0)
}

/// The file of the parity that a rank keeps for its redundancy set.
pub fn parity_file(rank: Rank) -> String {
    format!("p{:06}.bvp", rank.0)
}

/// The rank and content for which a file name made by [`rank_file`] or [`parity_file`] stands.
pub fn parse_rank_file(name: &str) -> Option<(Rank, Content)> {
    let (stem, content) = match (name.strip_suffix(".bvs"), name.strip_suffix(".bvp")) {
        (Some(stem), _) => (stem.strip_prefix('r')?, Content::Shard),
        (_, Some(stem)) => (stem.strip_prefix('p')?, Content::Parity),
        _ => return None,
    };
    let is_plain = stem.len() >= 6 && stem.bytes().all(|byte| byte.is_ascii_digit());
    Some((Rank(stem.parse().ok().filter(|_| is_plain)?), content))
}

/// The file of several ranks, named after the first.
pub fn node_file(first: Rank) -> String {
    format!("c{:06}.bvc", first.0)
}

/// Is it the name of a container of one rank?
pub fn is_rank_file(name: &str) -> bool {
    name.ends_with(".bvs")
}

/// Is it the name of a container of several ranks?
pub fn is_node_file(name: &str) -> bool {
    name.ends_with(".bvc")
}

/// Is it the name of a container of one rank's parity part?
pub fn is_parity_file(name: &str) -> bool {
    name.ends_with(".bvp")
}

/// Which job, group and series a tier is asked about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Series {
    /// Job key: one path component.
    pub job: String,
    /// Group within the job: one path component.
    pub group: String,
    /// The application's name: one path component.
    pub name: String,
}

/// May `name` be one component of a path, on any system and in any listing?
pub fn is_component(name: &str) -> bool {
    let plain = |c: char| !c.is_control() && c != '/' && c != '\\';
    !name.is_empty() && name.len() <= 128 && name.chars().all(plain) && !name.starts_with('.') && name != "claims"
}
