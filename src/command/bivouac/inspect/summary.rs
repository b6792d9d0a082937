//! `inspect --summary`: a checkpoint in a few lines, however many ranks it has. Pure.
#![forbid(unsafe_code)]

use super::{ContainerView, Document, RegionView, ShardView, dealt};
use crate::output::{self, KeyView, most, plain};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The maximum number of regions that are shown one by one.
const REGIONS_MAX: usize = 20;

/// The sum of the shards that one checkpoint has in one place.
#[derive(Serialize)]
pub struct Summary {
    /// Folder, file or segment.
    path: String,
    /// The tier and the state of a checkpoint folder.
    tier: Option<&'static str>,
    state: Option<&'static str>,
    /// The level that the manifest commits.
    level: Option<&'static str>,
    why: Option<String>,
    #[serde(flatten)]
    key: KeyView,
    /// Ranks whose shards are here.
    ranks: usize,
    group_size: u32,
    /// Bytes of their shards.
    bytes: u64,
    /// The regions, in the order of the first rank that has them.
    regions: Vec<RegionSum>,
    /// Regions that bind the checkpoint to the number of ranks that took it, if the program has said how regions are spread over the ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Vec<String>>,
    /// Containers that cannot be read, and why.
    damaged: Vec<[String; 2]>,
}

/// A region over all ranks.
#[derive(Serialize)]
struct RegionSum {
    name: String,
    kind: &'static str,
    element: String,
    /// Ranks that have it.
    ranks: usize,
    /// Bytes on all of them.
    bytes: u64,
}

/// Makes summaries of everything that the document holds.
pub fn summaries(document: &Document) -> Vec<Summary> {
    let mut all = Vec::new();
    for view in &document.checkpoints {
        let shards = view.containers.iter().flat_map(|container| &container.shards);
        let mut found = of_shards(&view.path, shards);
        if found.is_empty() {
            found.push(of_nothing(&view.path));
        }
        for summary in &mut found {
            summary.tier = Some(view.tier);
            summary.state = Some(view.state.name());
            summary.level = view.manifest.as_ref().map(|manifest| manifest.level);
            summary.why = view.why.clone();
            summary.damaged = damaged(&view.containers);
        }
        all.extend(found);
    }
    for view in &document.containers {
        let mut found = of_shards(&view.path, view.shards.iter());
        if found.is_empty() {
            found.push(of_nothing(&view.path));
        }
        found.iter_mut().for_each(|summary| summary.damaged = damaged(std::slice::from_ref(view)));
        all.extend(found);
    }
    all.extend(document.segments.iter().flat_map(|view| of_shards(&view.path, view.shards.iter())));
    all
}

fn damaged(containers: &[ContainerView]) -> Vec<[String; 2]> {
    containers.iter().filter_map(|view| Some([view.path.clone(), view.why.clone()?])).collect()
}

/// The summary of a place in which no shard can be read.
fn of_nothing(path: &str) -> Summary {
    Summary {
        path: path.to_owned(),
        tier: None,
        state: None,
        level: None,
        why: None,
        key: KeyView::default(),
        ranks: 0,
        group_size: 0,
        bytes: 0,
        regions: Vec::new(),
        bound: None,
        damaged: Vec::new(),
    }
}

/// Makes one summary for each checkpoint. If there are two shards of a rank, the first counts; parity parts do not count.
fn of_shards<'a>(path: &str, shards: impl Iterator<Item = &'a ShardView>) -> Vec<Summary> {
    let mut of_key: BTreeMap<_, Vec<&ShardView>> = BTreeMap::new();
    for shard in shards.filter(|shard| shard.content == "shard") {
        of_key.entry(&shard.key).or_default().push(shard);
    }
    of_key.into_values().filter_map(|shards| of_checkpoint(path, shards)).collect()
}

fn of_checkpoint(path: &str, mut shards: Vec<&ShardView>) -> Option<Summary> {
    let mut seen = BTreeSet::new();
    shards.retain(|shard| seen.insert(shard.rank));
    let first = shards.first()?;
    let mut regions: Vec<RegionSum> = Vec::new();
    let mut index: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for RegionView { name, kind, element, bytes, .. } in shards.iter().flat_map(|shard| &shard.regions) {
        let at = *index.entry((name, element)).or_insert_with(|| {
            regions.push(RegionSum { name: name.clone(), kind, element: element.clone(), ranks: 0, bytes: 0 });
            regions.len() - 1
        });
        regions[at].ranks += 1;
        regions[at].bytes = regions[at].bytes.saturating_add(*bytes);
    }
    Some(Summary {
        key: first.key.clone(),
        ranks: shards.len(),
        group_size: first.group_size,
        bytes: shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.bytes)),
        regions,
        // The record says the same in all shards.
        bound: first.dealt.as_ref().and_then(|dealt| dealt.bound.clone()),
        ..of_nothing(path)
    })
}

/// The summary as text for people.
pub fn text(summary: &Summary) -> String {
    let Summary { key, ranks, group_size, regions, .. } = summary;
    let mut lines = Vec::new();
    let level = summary.level.map_or(String::new(), |level| format!(" ({level})"));
    let place = match (summary.tier, summary.state) {
        (Some(tier), Some(state)) => format!(": {tier} tier, {state}{level}"),
        _ => String::new(),
    };
    let why = summary.why.as_deref().map_or(String::new(), |why| format!(" ({})", plain(why)));
    lines.push(format!("{}{place}{why}", plain(&summary.path)));
    if *ranks > 0 {
        lines.push(format!("  {} {}", key.series(), key.all_words()));
        lines.push(format!("  shards of {ranks} of {group_size} ranks, {}", output::bytes(summary.bytes)));
    }
    lines.extend(summary.bound.as_ref().map(|bound| format!("  {}", plain(&dealt::resize(bound, *group_size)))));
    let region = |region: &RegionSum| {
        let RegionSum { name, kind, element, ranks: some, bytes } = region;
        let on = if some == ranks { String::new() } else { format!(" on {some} ranks") };
        let what = if *kind == "value" { "value" } else { element };
        format!("  region {}: {what}, {}{on}", output::short(name), output::bytes(*bytes))
    };
    lines.extend(most(regions.iter().map(region), REGIONS_MAX, "  and", "more regions"));
    let wrong = |[path, why]: &[String; 2]| format!("  {}: {}", plain(path), plain(why));
    lines.extend(most(summary.damaged.iter().map(wrong), REGIONS_MAX, "  and", "more containers"));
    let mut text = String::new();
    lines.iter().for_each(|line| writeln!(text, "{line}").expect("a String takes everything"));
    text
}
