//! Decides by which method each region of a shard is reduced.

use super::chunks::Grouping;
use crate::config::{Method, ReductionConfig};
use std::collections::HashMap;

/// What is searched for in earlier files, for a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// Nothing is searched for.
    Full,
    /// Blocks that have not changed.
    Blocks,
    /// Chunks.
    Chunks {
        /// How the chunks are put together.
        grouping: Grouping,
        /// The length of the chunks; `None`: the shortest one that fits.
        chunk: Option<u64>,
    },
}

impl Way {
    /// The search that belongs to a method, unless most of a region changes.
    pub fn of(method: Method, chunk: Option<u64>) -> Way {
        match method {
            Method::Full => Way::Full,
            Method::Basic => Way::Blocks,
            Method::List => Way::Chunks { grouping: Grouping::List, chunk },
            Method::Tree | Method::Auto => Way::Chunks { grouping: Grouping::Tree, chunk },
        }
    }

    /// Does it look at chunks?
    pub fn is_chunked(self) -> bool {
        matches!(self, Way::Chunks { .. })
    }
}

/// If a larger share of a region's blocks than the first number changes this many times in a row, its chunks are not worth a look until the
/// share falls below [`BELOW`].
const ABOVE: (f64, u32) = (0.6, 2);
const BELOW: f64 = 0.4;

/// How much of a region changes from version to version.
#[derive(Clone, Copy, Default, Debug)]
struct Mood {
    above: u32,
    is_wild: bool,
}

impl Mood {
    fn see(&mut self, changed: f64) {
        self.above = if changed > ABOVE.0 { self.above + 1 } else { 0 };
        self.is_wild = (self.is_wild && changed >= BELOW) || self.above >= ABOVE.1;
    }
}

/// The configured methods, and what has been observed of regions whose method is `auto`.
pub struct Methods {
    config: ReductionConfig,
    moods: HashMap<(String, String), Mood>,
}

impl Methods {
    /// Starts with the configured methods.
    pub fn new(config: &ReductionConfig) -> Methods {
        Methods { config: config.clone(), moods: HashMap::new() }
    }

    /// The method of a region and the length of its chunks; `wish` is what the application has asked for.
    pub fn asked(&self, name: &str, region: &str, wish: Option<Method>) -> (Method, Option<u64>) {
        let is_it = |own: &&crate::config::RegionMethod| own.name == name && own.region == region;
        let own = self.config.regions.as_slice().iter().find(is_it);
        let chunk = own.and_then(|own| own.chunk).or(self.config.chunk);
        (wish.or(own.map(|own| own.method)).unwrap_or(self.config.method), chunk)
    }

    /// What to search for in earlier files, for a region of the next version. `changed` returns the share of its blocks that has changed,
    /// if that is known.
    pub fn way(
        &mut self,
        name: &str,
        region: &str,
        wish: Option<Method>,
        changed: impl FnOnce() -> Option<f64>,
    ) -> Way {
        let (method, chunk) = self.asked(name, region, wish);
        if method != Method::Auto {
            return Way::of(method, chunk);
        }
        let mood = self.moods.entry((name.to_owned(), region.to_owned())).or_default();
        if let Some(changed) = changed() {
            mood.see(changed);
        }
        if mood.is_wild { Way::Blocks } else { Way::of(method, chunk) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_changes_much_twice_is_compared_by_blocks_until_it_calms_down() {
        let config = ReductionConfig { method: Method::Auto, ..ReductionConfig::default() };
        let mut methods = Methods::new(&config);
        let shares = [0.9, 0.5, 0.9, 0.9, 0.5, 0.41, 0.39, 0.7, 0.3, 0.61, 0.61];
        let ways: Vec<bool> = shares.map(|share| methods.way("heat", "t", None, || Some(share)).is_chunked()).to_vec();
        assert_eq!(ways, [true, true, true, false, false, false, true, true, true, true, false]);
        // Each region has its own state.
        assert!(
            methods.way("heat", "u", None, || None).is_chunked()
                && !methods.way("heat", "t", None, || None).is_chunked()
        );
    }

    #[test]
    fn the_application_says_it_before_the_list_and_the_list_before_the_rest() {
        let regions = r#"{ "heat/t" = "full", "graph/counts" = { method = "list", chunk = 64 } }"#.parse().unwrap();
        let config = ReductionConfig { method: Method::Basic, chunk: Some(256), regions, ..ReductionConfig::default() };
        let mut methods = Methods::new(&config);
        let mut way = |name, region, wish| methods.way(name, region, wish, || None);
        assert_eq!((way("heat", "t", None), way("heat", "u", None)), (Way::Full, Way::Blocks));
        let chunks = |grouping, chunk| Way::Chunks { grouping, chunk: Some(chunk) };
        assert_eq!(way("graph", "counts", None), chunks(Grouping::List, 64));
        assert_eq!(way("graph", "counts", Some(Method::Tree)), chunks(Grouping::Tree, 64));
        assert_eq!(way("heat", "t", Some(Method::Tree)), chunks(Grouping::Tree, 256));
    }
}
