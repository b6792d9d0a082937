//! Decides which ranks cover which others. Pure: it makes sets and partners from the node of each rank and the failure
//! domain of each node, with the same result on every rank.
//!
//! Both ways to cover start from the same order: all ranks sorted by failure domain, then node, then rank. In this
//! order, the ranks of a domain (and of a node) are neighbours, so ranks that are far apart are in different domains.
//!
//! * *Sets* (`xor`, `rs`): with `G` sets, the rank at place `i` goes to set `i mod G`. Sizes differ by at most one, and a
//!   domain of up to `G` ranks has at most one rank in each set. `G` is at first the number of ranks divided by the size
//!   that the scheme asks for, rounded down: leftover ranks make sets larger rather than smaller, so that parity takes no
//!   more memory than requested. If domains hold more than `G` ranks, more and smaller sets are made, down to one data
//!   member each, provided that they then survive more.
//! * *Partners*: the copies of the rank at place `i` are at places `i + h`, `i + 2h`, …, in a circle, with the largest step
//!   `h` that keeps all of them apart: ranks / (copies + 1). Each rank holds exactly as many copies as others hold for it.
//!   If a domain is larger than that step, holders are chosen one by one, from the domains and nodes that hold the fewest
//!   copies so far.
//!
//! **Guarantee.** With `P` ranks, and `m` losses that the scheme promises to survive, all ranks of a set, or a rank and
//! its holders, are in different domains if no domain has more than `P / (m + 1)` ranks, rounded down. No placement could
//! do better for sets: each set has at least `m + 1` members, so there are at most `P / (m + 1)` sets, and a larger
//! domain must have two ranks in one of them. Partners are in different domains whenever there are at least `m + 1`
//! domains; some ranks may then hold more copies than others. [`Placement::lost`] says in words what could not be
//! achieved.
#![forbid(unsafe_code)]

use super::code::MEMBERS_MAX;
use crate::base::Rank;
use crate::config::Scheme;
use std::collections::{BTreeMap, BTreeSet};

/// A cover of all ranks, and the losses that it survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The ranks that cover each other.
    pub cover: Cover,
    /// The number of whole failure domains that may be lost at once, no matter which. Zero: not even one.
    pub tolerates: u32,
    /// The number of whole nodes that may be lost at once, no matter which; never less than [`Placement::tolerates`].
    /// Zero: checkpoints do not survive the loss of a node.
    pub tolerates_nodes: u32,
    /// Requirements that could not be met, and the consequences: a few plain sentences of bounded length.
    pub lost: Vec<String>,
    set_of: Vec<usize>,
}

/// The ranks that cover each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cover {
    /// No rank is covered.
    None,
    /// For each rank, the ranks that hold a copy of its shard, nearest step first. There are fewer holders than the scheme
    /// asks for if more would share nodes, and so be lost together.
    Partners(Vec<Vec<Rank>>),
    /// Sets that share parity. Each rank is in exactly one set; members are in ascending order. The scheme says how
    /// many members of a set are parity; all others are data. There are no sets if there are too few ranks for one.
    Sets(Vec<Vec<Rank>>),
}

impl Placement {
    /// The ranks that hold a copy of the rank's shard. There are none unless the scheme is `partner`.
    pub fn targets(&self, rank: Rank) -> &[Rank] {
        match &self.cover {
            Cover::Partners(holders) => holders.get(rank.index()).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// The ranks of whose shards this rank holds a copy, in ascending order: the inverse of [`Placement::targets`]. This
    /// goes through all ranks.
    pub fn sources(&self, rank: Rank) -> Vec<Rank> {
        match &self.cover {
            Cover::Partners(holders) => {
                (0u32..).zip(holders).filter(|(_, held)| held.contains(&rank)).map(|(owner, _)| Rank(owner)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The set to which the rank belongs: its index, and its members in ascending order. `None` unless there are sets.
    pub fn set_of(&self, rank: Rank) -> Option<(usize, &[Rank])> {
        let Cover::Sets(sets) = &self.cover else { return None };
        let index = *self.set_of.get(rank.index())?;
        sets.get(index).map(|members| (index, members.as_slice()))
    }
}

/// Places ranks: `nodes` gives the node of each rank, and `domains` the failure domain of each node. A node that is not
/// in `domains` is a domain of its own, so an empty slice means that nodes fail one by one.
///
/// Takes time proportional to `P log P` for `P` ranks. The result is deterministic.
pub fn place(nodes: &[u32], domains: &[u32], scheme: Scheme) -> Placement {
    let ranks = Ranks::new(nodes, domains);
    match scheme {
        Scheme::None => {
            Placement { cover: Cover::None, tolerates: 0, tolerates_nodes: 0, lost: Vec::new(), set_of: Vec::new() }
        }
        Scheme::Partner { copies } => partners(&ranks, copies, scheme),
        Scheme::Xor { .. } | Scheme::Rs { .. } => sets(&ranks, scheme),
    }
}

/// Where a rank is. Ordered by domain first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Site {
    /// The domain. Nodes that belong to no domain come after those that belong to one.
    domain: (bool, u32),
    node: u32,
}

/// All ranks with their places.
struct Ranks {
    /// The site of each rank.
    sites: Vec<Site>,
    /// Ranks by domain, node and number.
    order: Vec<usize>,
    /// The number of ranks in each domain, largest first.
    domain_sizes: Vec<usize>,
    /// The number of ranks on each node, largest first.
    node_sizes: Vec<usize>,
}

impl Ranks {
    fn new(nodes: &[u32], domains: &[u32]) -> Ranks {
        let domain = |node: u32| domains.get(node as usize).map_or((true, node), |domain| (false, *domain));
        let sites: Vec<Site> = nodes.iter().map(|node| Site { domain: domain(*node), node: *node }).collect();
        let mut order: Vec<usize> = (0..sites.len()).collect();
        order.sort_by_key(|rank| (sites[*rank], *rank));
        let sizes = |is_same: fn(&Site, &Site) -> bool| {
            let runs = order.chunk_by(|a, b| is_same(&sites[*a], &sites[*b]));
            let mut sizes: Vec<usize> = runs.map(<[usize]>::len).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            sizes
        };
        let domain_sizes = sizes(|a, b| a.domain == b.domain);
        let node_sizes = sizes(|a, b| a == b);
        Ranks { sites, order, domain_sizes, node_sizes }
    }

    fn count(&self) -> usize {
        self.sites.len()
    }

    fn domain(&self, rank: Rank) -> (bool, u32) {
        self.sites[rank.index()].domain
    }

    fn node(&self, rank: Rank) -> u32 {
        self.sites[rank.index()].node
    }
}

fn rank(index: usize) -> Rank {
    // Ranks come from MPI, which represents them as C integers.
    Rank(index as u32)
}

// ------------------------------------------------------------------------------------------------ sets

fn sets(ranks: &Ranks, scheme: Scheme) -> Placement {
    let parity = scheme.parity() as usize;
    let smallest = parity + 1;
    let count = ranks.count();
    if count < smallest {
        let lost =
            vec![format!("{scheme} needs at least {smallest} ranks, but there are {count}: nothing is protected.")];
        return Placement {
            cover: Cover::Sets(Vec::new()),
            tolerates: 0,
            tolerates_nodes: 0,
            lost,
            set_of: Vec::new(),
        };
    }
    // A set can get up to twice the wanted size if the ranks are too few for two sets.
    let wanted = (scheme.members() as usize).clamp(smallest, MEMBERS_MAX as usize / 2);
    let groups = number_of_sets(ranks, wanted, parity);
    let mut sets = vec![Vec::with_capacity(count / groups + 1); groups];
    let mut set_of = vec![0; count];
    for (place, index) in ranks.order.iter().enumerate() {
        sets[place % groups].push(rank(*index));
        set_of[*index] = place % groups;
    }
    sets.iter_mut().for_each(|members| members.sort_unstable());

    let weakest = |site: &dyn Fn(Rank) -> (bool, u32)| {
        sets.iter().map(|members| domains_survived(members, site, parity)).min().unwrap_or(0)
    };
    let tolerates = weakest(&|rank| ranks.domain(rank));
    let tolerates_nodes = weakest(&|rank| (true, ranks.node(rank)));
    let mut lost = Vec::new();
    lost.extend(odd_sizes(&sets, wanted, parity, scheme, count));
    lost.extend(shared_sites(ranks, &sets, parity, tolerates, tolerates_nodes));
    Placement { cover: Cover::Sets(sets), tolerates, tolerates_nodes, lost, set_of }
}

/// The smallest number of sets that survives as many domains, and then as many nodes, as any number of sets does, but
/// not less than the number of sets of the wanted size.
fn number_of_sets(ranks: &Ranks, wanted: usize, parity: usize) -> usize {
    let fewest = (ranks.count() / wanted).max(1);
    let most = ranks.count() / (parity + 1);
    // More sets never hold more ranks of the same domain per set, so both figures grow with the number of sets.
    let survives = |groups| {
        (surely_survived(&ranks.domain_sizes, groups, parity), surely_survived(&ranks.node_sizes, groups, parity))
    };
    let best = survives(most);
    let (mut low, mut high) = (fewest, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if survives(middle) == best { high = middle } else { low = middle + 1 }
    }
    low
}

/// The number of domains of these sizes (the largest first) that may be lost in the worst case, if each is distributed
/// over `groups` sets.
fn surely_survived(sizes: &[usize], groups: usize, parity: usize) -> usize {
    let mut left = parity;
    sizes
        .iter()
        .take_while(|size| {
            let members = size.div_ceil(groups);
            let fits = members <= left;
            left = left.saturating_sub(members);
            fits
        })
        .count()
}

/// The number of sites that may be lost before the set has lost more members than it has parity, if the sites with the
/// most members are lost first.
fn domains_survived(members: &[Rank], site: &dyn Fn(Rank) -> (bool, u32), parity: usize) -> u32 {
    let mut sites: Vec<_> = members.iter().map(|rank| site(*rank)).collect();
    sites.sort_unstable();
    let mut sizes: Vec<usize> = sites.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    surely_survived(&sizes, 1, parity) as u32
}

/// A sentence about sets that do not have the requested size.
fn odd_sizes(sets: &[Vec<Rank>], wanted: usize, parity: usize, scheme: Scheme, count: usize) -> Option<String> {
    let smallest = sets.iter().map(Vec::len).min().unwrap_or(wanted);
    let largest = sets.iter().map(Vec::len).max().unwrap_or(wanted);
    let sizes = if smallest == largest { format!("{smallest}") } else { format!("{smallest} or {largest}") };
    let percent = |members: usize| 100.0 * parity as f64 / (members - parity) as f64;
    if smallest < wanted {
        let reason = if count < wanted {
            format!("there are only {count} ranks")
        } else {
            "larger ones would survive less".into()
        };
        Some(format!(
            "Sets of {scheme} have {sizes} members instead of {wanted}, since {reason}: parity takes up to {:.0} % of a \
             shard instead of {:.0} %.",
            percent(smallest),
            percent(wanted)
        ))
    } else if largest > wanted {
        Some(format!(
            "Sets of {scheme} have {sizes} members instead of {wanted}, since {count} ranks are not a multiple of {wanted}: a \
             larger set survives no more losses than a smaller one."
        ))
    } else {
        None
    }
}

/// Sentences about members of a set that are lost together.
fn shared_sites(ranks: &Ranks, sets: &[Vec<Rank>], parity: usize, tolerates: u32, tolerates_nodes: u32) -> Vec<String> {
    let mut lost = Vec::new();
    if (tolerates_nodes as usize) < parity {
        lost.extend(sharing(sets, "node", &|rank| (true, ranks.node(rank)), tolerates_nodes, parity));
    }
    if (tolerates as usize) < parity && tolerates != tolerates_nodes {
        lost.extend(sharing(sets, "failure domain", &|rank| ranks.domain(rank), tolerates, parity));
    }
    lost
}

/// One sentence about the sets in which ranks share a site, with the first such set as an example.
fn sharing(
    sets: &[Vec<Rank>],
    word: &str,
    site: &dyn Fn(Rank) -> (bool, u32),
    tolerates: u32,
    parity: usize,
) -> Option<String> {
    let example = |members: &Vec<Rank>| {
        let mut by_site: BTreeMap<(bool, u32), Vec<Rank>> = BTreeMap::new();
        members.iter().for_each(|rank| by_site.entry(site(*rank)).or_default().push(*rank));
        // The largest group and, among equal ones, the first.
        by_site
            .into_iter()
            .filter(|(_, group)| group.len() > 1)
            .max_by_key(|(site, group)| (group.len(), !site.0, !site.1))
    };
    let mut examples = sets.iter().filter_map(example);
    let ((_, number), group) = examples.next()?;
    let others = examples.count();
    let more = match others {
        0 => String::new(),
        1 => "; so do ranks of one more set".to_owned(),
        _ => format!("; so do ranks of {others} more sets"),
    };
    Some(format!(
        "Ranks {} cover each other and share {word} {number}{more}: they survive the loss of {} instead of {parity}.",
        listed(&group),
        numbered(tolerates, word),
    ))
}

/// `no node`, `1 node`, `2 nodes`.
fn numbered(count: u32, word: &str) -> String {
    match count {
        0 => format!("no {word}"),
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

/// The maximum number of ranks that a sentence names.
const NAMED_MAX: usize = 8;

fn listed(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks.iter().take(NAMED_MAX).map(Rank::to_string).collect();
    match ranks.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

// ------------------------------------------------------------------------------------------------ partners

fn partners(ranks: &Ranks, copies: u32, scheme: Scheme) -> Placement {
    let copies = copies as usize;
    let step = ranks.count() / (copies + 1);
    let largest = ranks.domain_sizes.first().copied().unwrap_or(0);
    let holders = if largest <= step { in_a_circle(ranks, copies, step) } else { one_by_one(ranks, copies) };

    // A shard is lost when the last site that holds it is lost.
    let sites_of = |owner: usize, site: &dyn Fn(Rank) -> (bool, u32)| {
        let all = holders[owner].iter().copied().chain([rank(owner)]);
        all.map(site).collect::<BTreeSet<_>>().len() as u32
    };
    let weakest = |site: &dyn Fn(Rank) -> (bool, u32)| {
        (0..ranks.count()).map(|owner| sites_of(owner, site) - 1).min().unwrap_or(0)
    };
    let domain = |rank| ranks.domain(rank);
    let tolerates = weakest(&domain);
    let tolerates_nodes = weakest(&|rank| (true, ranks.node(rank)));

    let mut lost = Vec::new();
    let short: Vec<Rank> = (0..ranks.count()).filter(|owner| holders[*owner].len() < copies).map(rank).collect();
    if !short.is_empty() {
        lost.push(format!(
            "{scheme} needs {} nodes, but there are {}: ranks {} have fewer copies, and survive the loss of {}.",
            copies + 1,
            ranks.node_sizes.len(),
            listed(&short),
            numbered(tolerates_nodes, "node"),
        ));
    }
    // There are fewer domains than nodes that hold a shard. This is so for all ranks alike.
    if tolerates < tolerates_nodes {
        lost.push(format!(
            "{scheme} needs {} failure domains, but there are {}: the copies of each rank share some, and survive the \
             loss of {}.",
            copies + 1,
            ranks.domain_sizes.len(),
            numbered(tolerates, "failure domain"),
        ));
    }
    let mut held = vec![0usize; ranks.count()];
    holders.iter().flatten().for_each(|holder| held[holder.index()] += 1);
    if let Some((fullest, most)) = held.into_iter().enumerate().max_by_key(|(rank, held)| (*held, usize::MAX - rank))
        && most > copies
    {
        lost.push(format!(
            "One failure domain has {largest} of {} ranks, so the others hold more copies than they have: rank {fullest} \
             holds {most} instead of {copies}.",
            ranks.count()
        ));
    }
    Placement { cover: Cover::Partners(holders), tolerates, tolerates_nodes, lost, set_of: Vec::new() }
}

/// Holders at equal steps: each rank holds as many copies as others hold for it.
fn in_a_circle(ranks: &Ranks, copies: usize, step: usize) -> Vec<Vec<Rank>> {
    let count = ranks.count();
    let mut holders = vec![Vec::new(); count];
    for (place, owner) in ranks.order.iter().enumerate() {
        let places = (1..=copies).map(|copy| (place + copy * step) % count);
        holders[*owner] = places.map(|place| rank(ranks.order[place])).collect();
    }
    holders
}

/// The ranks of a site, and the number of copies that they hold together.
struct Held<T> {
    parts: T,
    ranks: u64,
    copies: u64,
}

impl<T> Held<T> {
    /// The number of copies per rank, as a number that can be sorted.
    fn load(&self) -> u64 {
        (self.copies << 20) / self.ranks.max(1)
    }
}

/// The nodes of a domain: their indices in the list of nodes, ordered by load.
struct DomainParts {
    by_load: BTreeSet<(u64, usize)>,
}

/// Holders for each rank in turn. Domains that hold none of its copies come first, then nodes that hold none. Among
/// equals, the one with the fewest copies per rank comes first.
fn one_by_one(ranks: &Ranks, copies: usize) -> Vec<Vec<Rank>> {
    let mut store = Store::new(ranks);
    let mut holders = vec![Vec::new(); ranks.count()];
    for owner in &ranks.order {
        let (mut used_domains, mut used_nodes) = (vec![store.domain_of[*owner]], vec![store.node_of[*owner]]);
        for _ in 0..copies {
            let Some((domain, node)) = store.best(&used_domains, &used_nodes) else { break };
            holders[*owner].push(store.put(domain, node));
            used_domains.push(domain);
            used_nodes.push(node);
        }
    }
    holders
}

/// The copies that every domain and node holds so far.
struct Store {
    domains: Vec<Held<DomainParts>>,
    domains_by_load: BTreeSet<(u64, usize)>,
    /// The ranks of each node.
    nodes: Vec<Held<Vec<Rank>>>,
    domain_of: Vec<usize>,
    node_of: Vec<usize>,
}

impl Store {
    fn new(ranks: &Ranks) -> Store {
        let count = ranks.count();
        let mut store = Store {
            domains: Vec::new(),
            domains_by_load: BTreeSet::new(),
            nodes: Vec::new(),
            domain_of: vec![0; count],
            node_of: vec![0; count],
        };
        for domain in ranks.order.chunk_by(|a, b| ranks.sites[*a].domain == ranks.sites[*b].domain) {
            let mut parts = DomainParts { by_load: BTreeSet::new() };
            for node in domain.chunk_by(|a, b| ranks.sites[*a] == ranks.sites[*b]) {
                for index in node {
                    (store.domain_of[*index], store.node_of[*index]) = (store.domains.len(), store.nodes.len());
                }
                parts.by_load.insert((0, store.nodes.len()));
                let members: Vec<Rank> = node.iter().map(|index| rank(*index)).collect();
                store.nodes.push(Held { ranks: members.len() as u64, parts: members, copies: 0 });
            }
            store.domains_by_load.insert((0, store.domains.len()));
            store.domains.push(Held { parts, ranks: domain.len() as u64, copies: 0 });
        }
        store
    }

    /// The domain and the node for the next copy. This looks at no more than one entry beyond the used ones.
    fn best(&self, used_domains: &[usize], used_nodes: &[usize]) -> Option<(usize, usize)> {
        let free_node = |domain: usize| {
            self.domains[domain].parts.by_load.iter().find(|(_, node)| !used_nodes.contains(node)).copied()
        };
        let free_domain = self.domains_by_load.iter().find(|(_, domain)| !used_domains.contains(domain));
        match free_domain {
            Some((_, domain)) => free_node(*domain).map(|(_, node)| (*domain, node)),
            // All domains are used, so there are only a few.
            None => {
                let nodes = (0..self.domains.len()).filter_map(|domain| Some((free_node(domain)?, domain)));
                nodes.min().map(|((_, node), domain)| (domain, node))
            }
        }
    }

    /// Gives the node one more copy, and returns the rank that holds it.
    fn put(&mut self, domain: usize, node: usize) -> Rank {
        let held = &mut self.nodes[node];
        let before = held.load();
        let holder = held.parts[(held.copies % held.ranks) as usize];
        held.copies += 1;
        let after = held.load();
        let held = &mut self.domains[domain];
        held.parts.by_load.remove(&(before, node));
        held.parts.by_load.insert((after, node));
        let before = held.load();
        held.copies += 1;
        self.domains_by_load.remove(&(before, domain));
        self.domains_by_load.insert((held.load(), domain));
        holder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn xor(members: u32) -> Scheme {
        Scheme::Xor { members }
    }

    fn rs(data: u32, parity: u32) -> Scheme {
        Scheme::Rs { data, parity }
    }

    fn partner(copies: u32) -> Scheme {
        Scheme::Partner { copies }
    }

    /// The node of each rank if nodes of these sizes are filled one after the other.
    fn filled(sizes: &[usize]) -> Vec<u32> {
        (0u32..).zip(sizes).flat_map(|(node, size)| vec![node; *size]).collect()
    }

    fn sets_of(placement: &Placement) -> Vec<Vec<u32>> {
        match &placement.cover {
            Cover::Sets(sets) => sets.iter().map(|set| set.iter().map(|rank| rank.0).collect()).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn holders_of(placement: &Placement) -> Vec<Vec<u32>> {
        match &placement.cover {
            Cover::Partners(all) => all.iter().map(|held| held.iter().map(|rank| rank.0).collect()).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn figures(placement: &Placement) -> (u32, u32, usize) {
        (placement.tolerates, placement.tolerates_nodes, placement.lost.len())
    }

    #[test]
    fn a_set_has_one_rank_of_each_node() {
        let placement = place(&filled(&[2; 4]), &[], xor(4));
        assert_eq!(sets_of(&placement), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(figures(&placement), (1, 1, 0));
        assert_eq!(placement.set_of(Rank(5)), Some((1, &[Rank(1), Rank(3), Rank(5), Rank(7)][..])));
        assert_eq!((placement.set_of(Rank(8)), placement.targets(Rank(0))), (None, &[][..]));
        // The ranks are distributed over the nodes instead of filling one node after the other.
        let placement = place(&[0, 1, 2, 3, 0, 1, 2, 3], &[], rs(2, 2));
        assert_eq!(sets_of(&placement), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(figures(&placement), (2, 2, 0));
    }

    #[test]
    fn sets_become_smaller_rather_than_put_two_ranks_on_one_node() {
        let placement = place(&filled(&[2; 4]), &[], xor(8));
        assert_eq!(sets_of(&placement), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(figures(&placement), (1, 1, 1));
        assert_eq!(
            placement.lost[0],
            "Sets of xor(8) have 4 members instead of 8, since larger ones would survive less: parity takes up to 33 % of \
             a shard instead of 14 %."
        );
    }

    #[test]
    fn leftover_ranks_join_the_sets() {
        let placement = place(&filled(&[1; 11]), &[], xor(4));
        assert_eq!(sets_of(&placement), [vec![0, 2, 4, 6, 8, 10], vec![1, 3, 5, 7, 9]]);
        assert_eq!(figures(&placement), (1, 1, 1));
        assert!(placement.lost[0].contains("5 or 6 members instead of 4, since 11 ranks"), "{:?}", placement.lost);
        let placement = place(&filled(&[1; 3]), &[], rs(4, 2));
        assert_eq!(sets_of(&placement), [[0, 1, 2]]);
        let text = &placement.lost[0];
        assert!(text.contains("only 3 ranks") && text.contains("up to 200 % of a shard instead of 50 %"), "{text}");
        assert_eq!(figures(&placement), (2, 2, 1));
    }

    #[test]
    fn parity_for_two_survives_a_node_that_has_two_members() {
        let placement = place(&filled(&[4, 4]), &[], rs(2, 2));
        assert_eq!(sets_of(&placement), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(figures(&placement), (1, 1, 1));
        assert_eq!(
            placement.lost[0],
            "Ranks 0, 2 cover each other and share node 0; so do ranks of one more set: they survive the loss of 1 node \
             instead of 2."
        );
    }

    #[test]
    fn only_sets_whose_members_share_a_node_are_counted_as_such() {
        let placement = place(&filled(&[4, 2]), &[], xor(2));
        assert_eq!(sets_of(&placement), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(
            placement.lost,
            ["Ranks 0, 3 cover each other and share node 0: they survive the loss of no node instead of 1."]
        );
    }

    #[test]
    fn of_groups_of_one_size_one_in_a_domain_that_was_named_is_the_example() {
        // One domain has two nodes with a rank each, and a node outside all domains has two ranks.
        let placement = place(&filled(&[1, 1, 2, 1, 1]), &[0, 0], rs(3, 3));
        assert_eq!((placement.tolerates, placement.tolerates_nodes), (1, 2));
        assert!(
            placement.lost[1].starts_with("Ranks 0, 1 cover each other and share failure domain 0:"),
            "{:?}",
            placement.lost
        );
    }

    #[test]
    fn no_set_has_more_members_than_the_code_takes() {
        for members in [127, 128, 200, 255] {
            for set in sets_of(&place(&filled(&[1; 300]), &[], xor(members))) {
                assert!(set.len() <= MEMBERS_MAX as usize, "xor({members}): {} members", set.len());
            }
        }
    }

    #[test]
    fn one_node_survives_nothing() {
        let placement = place(&[7; 20], &[], xor(8));
        assert_eq!(figures(&placement), (0, 0, 2));
        let text = &placement.lost[1];
        assert!(text.contains("share node 7") && text.contains("and 2 more") && text.contains("no node"), "{text}");
        let placement = place(&[0; 4], &[], partner(2));
        assert_eq!(holders_of(&placement), [[0u32; 0]; 4]);
        assert_eq!(figures(&placement), (0, 0, 1));
        assert!(placement.lost[0].contains("needs 3 nodes, but there are 1"), "{:?}", placement.lost);
    }

    #[test]
    fn too_few_ranks_for_a_set_make_none() {
        for count in 0..3 {
            let placement = place(&filled(&vec![1; count]), &[], rs(2, 2));
            assert_eq!((sets_of(&placement).len(), figures(&placement)), (0, (0, 0, 1)));
            assert_eq!(placement.set_of(Rank(0)), None);
        }
        for scheme in [Scheme::None, partner(1), xor(2)] {
            assert_eq!(place(&[], &[], scheme).tolerates, 0);
        }
    }

    #[test]
    fn racks_are_kept_apart_and_nodes_where_racks_cannot_be() {
        // There are two racks of two nodes with two ranks each, so pairs are formed across the racks.
        let (nodes, racks) = (filled(&[2; 4]), [0, 0, 1, 1]);
        let placement = place(&nodes, &racks, xor(8));
        assert_eq!(sets_of(&placement), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!((placement.tolerates, placement.tolerates_nodes), (1, 1));
        // There is one rack. Sets still survive the loss of a node, which is reported separately.
        let placement = place(&nodes, &[3; 4], xor(8));
        assert_eq!(sets_of(&placement), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(figures(&placement), (0, 1, 2));
        assert!(placement.lost[1].contains("share failure domain 3"), "{:?}", placement.lost);
        // There are two copies but only two racks, so the second copy is at least on another node.
        let placement = place(&nodes, &racks, partner(2));
        assert_eq!((placement.tolerates, placement.tolerates_nodes), (1, 2));
        assert!(placement.lost[0].contains("needs 3 failure domains, but there are 2"), "{:?}", placement.lost);
    }

    #[test]
    fn copies_are_dealt_out_evenly_and_far_away() {
        let placement = place(&filled(&[2; 4]), &[], partner(1));
        assert_eq!(holders_of(&placement), [[4], [5], [6], [7], [0], [1], [2], [3]]);
        assert_eq!(figures(&placement), (1, 1, 0));
        assert_eq!(placement.targets(Rank(6)), [Rank(2)]);
        assert_eq!(placement.sources(Rank(6)), [Rank(2)]);
        assert_eq!((placement.set_of(Rank(0)), placement.targets(Rank(99))), (None, &[][..]));
        let placement = place(&filled(&[2; 3]), &[], partner(2));
        assert_eq!(holders_of(&placement), [[2, 4], [3, 5], [4, 0], [5, 1], [0, 2], [1, 3]]);
        assert_eq!(figures(&placement), (2, 2, 0));
    }

    #[test]
    fn a_large_node_is_covered_by_small_ones() {
        let placement = place(&filled(&[4, 1, 1]), &[], partner(1));
        assert_eq!((placement.tolerates, placement.tolerates_nodes), (1, 1));
        let held = |rank| placement.sources(Rank(rank)).len();
        assert_eq!([0, 1, 2, 3, 4, 5].map(held), [1, 1, 0, 0, 2, 2]);
        assert!(placement.lost[0].contains("4 of 6 ranks"), "{:?}", placement.lost);
    }

    #[test]
    fn a_hundred_thousand_ranks_are_placed() {
        let nodes: Vec<u32> = (0..100_000).map(|rank| rank / 64).collect();
        let racks: Vec<u32> = (0..1600).map(|node| node / 40).collect();
        for scheme in [xor(8), rs(12, 4), partner(2)] {
            let placement = place(&nodes, &racks, scheme);
            assert_eq!((placement.tolerates, placement.tolerates_nodes), (scheme.parity(), scheme.parity()));
        }
        // One node holds half of the ranks, so holders are chosen rank by rank.
        let nodes: Vec<u32> = (0..100_000u32).map(|rank| rank.saturating_sub(50_000).div_ceil(50)).collect();
        let placement = place(&nodes, &[], partner(8));
        assert_eq!(placement.tolerates, 8);
    }

    // -------------------------------------------------------------------------------------------- properties

    fn scheme() -> impl Strategy<Value = Scheme> {
        prop_oneof![
            (1u32..=8).prop_map(partner),
            (2u32..=64).prop_map(xor),
            (1u32..=9, 1u32..=8).prop_map(|(data, parity)| rs(data, parity)),
        ]
    }

    /// Sets of ranks that must not be lost together, and the number of ranks in each that may be lost: a common view of
    /// both kinds of cover.
    fn losses_allowed(placement: &Placement, scheme: Scheme) -> Vec<(Vec<Rank>, usize)> {
        match &placement.cover {
            Cover::None => Vec::new(),
            Cover::Partners(holders) => {
                let with_owner = |(owner, held): (usize, &Vec<Rank>)| {
                    let all: Vec<Rank> = held.iter().copied().chain([rank(owner)]).collect();
                    let allowed = all.len() - 1;
                    (all, allowed)
                };
                holders.iter().enumerate().map(with_owner).collect()
            }
            Cover::Sets(sets) => sets.iter().map(|set| (set.clone(), scheme.parity() as usize)).collect(),
        }
    }

    /// Tests every choice of `count` sites.
    fn survives(groups: &[(Vec<Rank>, usize)], site: &dyn Fn(Rank) -> u32, count: usize) -> bool {
        let all: BTreeSet<u32> = groups.iter().flat_map(|(ranks, _)| ranks).map(|rank| site(*rank)).collect();
        let all: Vec<u32> = all.into_iter().collect();
        (0u32..1 << all.len()).filter(|choice| choice.count_ones() as usize == count).all(|choice| {
            let lost: Vec<u32> = (0..all.len()).filter(|at| choice & (1 << at) != 0).map(|at| all[at]).collect();
            groups
                .iter()
                .all(|(ranks, allowed)| ranks.iter().filter(|rank| lost.contains(&site(**rank))).count() <= *allowed)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn placements_keep_what_they_promise(
            nodes in proptest::collection::vec(0u32..9, 0..60),
            domains in prop_oneof![Just(Vec::new()), proptest::collection::vec(0u32..9, 0..10)],
            scheme in scheme(),
        ) {
            let placement = place(&nodes, &domains, scheme);
            prop_assert_eq!(&placement, &place(&nodes, &domains, scheme));
            let promised = scheme.parity() as usize;
            let count = nodes.len();
            let node = |rank: Rank| nodes[rank.index()];
            let domain = |rank: Rank| domains.get(node(rank) as usize).map_or(100 + node(rank), |domain| *domain);
            let groups = losses_allowed(&placement, scheme);

            // Every rank is covered exactly once.
            match &placement.cover {
                Cover::None => prop_assert!(false),
                Cover::Sets(sets) => {
                    let mut all: Vec<Rank> = sets.concat();
                    all.sort_unstable();
                    let expected = if count > promised { count } else { 0 };
                    prop_assert_eq!(all, (0..expected).map(rank).collect::<Vec<_>>());
                    let sizes: Vec<usize> = sets.iter().map(Vec::len).collect();
                    if let (Some(least), Some(most)) = (sizes.iter().min(), sizes.iter().max()) {
                        prop_assert!(most - least <= 1 && *least > promised && *most < MEMBERS_MAX as usize);
                        prop_assert!(*most < 2 * scheme.members() as usize);
                    }
                    for (index, set) in sets.iter().enumerate() {
                        prop_assert!(set.is_sorted());
                        prop_assert!(set.iter().all(|rank| placement.set_of(*rank) == Some((index, &set[..]))));
                    }
                }
                Cover::Partners(holders) => {
                    prop_assert_eq!(holders.len(), count);
                    for (owner, held) in holders.iter().enumerate() {
                        let sites: BTreeSet<u32> = held.iter().map(|rank| node(*rank)).collect();
                        prop_assert!(sites.len() == held.len() && !sites.contains(&nodes[owner]), "copies on one node");
                        let nodes_there: BTreeSet<&u32> = nodes.iter().collect();
                        prop_assert_eq!(held.len(), promised.min(nodes_there.len() - 1));
                        prop_assert!(held.iter().all(|holder| placement.sources(*holder).contains(&rank(owner))));
                    }
                }
            }

            // Domains must differ whenever the module says so.
            let mut sizes = BTreeMap::new();
            (0..count).for_each(|index| *sizes.entry(domain(rank(index))).or_insert(0usize) += 1);
            let largest = sizes.values().max().copied().unwrap_or(0);
            let is_partner = matches!(scheme, Scheme::Partner { .. });
            let possible = largest <= count / (promised + 1) || is_partner && sizes.len() > promised;
            if count > 0 && possible {
                prop_assert_eq!(placement.tolerates as usize, promised);
                for (ranks, _) in &groups {
                    let sites: BTreeSet<u32> = ranks.iter().map(|rank| domain(*rank)).collect();
                    prop_assert_eq!(sites.len(), ranks.len());
                }
            } else {
                prop_assert!(!placement.lost.is_empty() || count == 0, "nothing is told");
            }
            if is_partner && largest <= count / (promised + 1) {
                let even = (0..count).all(|index| placement.sources(rank(index)).len() == promised);
                prop_assert!(even && placement.lost.is_empty());
            }
            prop_assert!(placement.lost.len() <= 3 && placement.lost.iter().all(|text| text.len() < 300));

            // The figures are exact: this many may be lost, and one more is too many.
            for (figure, site) in [
                (placement.tolerates, &domain as &dyn Fn(Rank) -> u32),
                (placement.tolerates_nodes, &node as &dyn Fn(Rank) -> u32),
            ] {
                if !groups.is_empty() {
                    prop_assert!(survives(&groups, site, figure as usize));
                    prop_assert!(!survives(&groups, site, figure as usize + 1));
                }
            }
            prop_assert!(placement.tolerates <= placement.tolerates_nodes);
        }
    }
}
