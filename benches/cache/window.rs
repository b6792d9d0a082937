//! Algorithm 1 of HPDC'23, section 4: the counterpart of [`bivouac_core::cache::evict::choose`] for caches in which a version
//! occupies one contiguous range. A window slides over the copies and gaps in the order of their addresses. Of the windows that
//! are large enough, the algorithm takes the one with the shortest wait (the p-score), and among those the one whose copies are
//! used latest (the s-score).
//!
//! It improves on the paper's algorithm in two places. The paper adds up one prefetch distance for each fragment, so that ten
//! near fragments look farther away than a single far one; here each hinted byte is weighted by its nearness. And the paper's
//! loop ends when the window reaches the end of the table, before the windows that start later; here every window is scored.

use bivouac_core::cache::evict::{Candidate, Use};

/// A range of a tier.
#[derive(Clone, Copy, Debug)]
pub enum Fragment {
    /// Free bytes.
    Gap(u64),
    /// A copy that may leave, now or later.
    Copy(Candidate),
    /// Something that stays. No window extends across it.
    Pinned,
}

/// What a window costs, in the order of importance. All values are sums, so that what leaves a window leaves no trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Cost {
    /// The p-score, in nanoseconds.
    wait: u128,
    /// The s-score: hinted bytes, each weighted by its nearness; then the other bytes.
    hinted: u128,
    unhinted: u64,
    consumed: u64,
}

impl Cost {
    fn of(fragment: &Fragment, farthest: u64) -> Cost {
        let Fragment::Copy(Candidate { bytes, wait, next, .. }) = *fragment else { return Cost::default() };
        let mut cost = Cost { wait: u128::from(wait), ..Cost::default() };
        match next {
            Use::Hinted(distance) => cost.hinted = u128::from(bytes) * (u128::from(farthest - distance) + 1),
            Use::Unhinted => cost.unhinted = bytes,
            Use::Consumed => cost.consumed = bytes,
        }
        cost
    }

    fn enter(&mut self, other: Cost) {
        self.wait += other.wait;
        self.hinted += other.hinted;
        self.unhinted += other.unhinted;
        self.consumed += other.consumed;
    }

    fn leave(&mut self, other: Cost) {
        self.wait -= other.wait;
        self.hinted -= other.hinted;
        self.unhinted -= other.unhinted;
        self.consumed -= other.consumed;
    }
}

fn bytes_of(fragment: &Fragment) -> u64 {
    match fragment {
        Fragment::Gap(bytes) | Fragment::Copy(Candidate { bytes, .. }) => *bytes,
        Fragment::Pinned => 0,
    }
}

/// The copies to evict from the consecutive fragments that hold `bytes` at the least cost. `None` if no window is
/// large enough. O(n).
pub fn window(fragments: &[Fragment], bytes: u64) -> Option<Vec<Candidate>> {
    let distance = |fragment: &Fragment| match fragment {
        Fragment::Copy(Candidate { next: Use::Hinted(distance), .. }) => *distance,
        _ => 0,
    };
    let farthest = fragments.iter().map(distance).max()?;
    let (mut start, mut held, mut cost) = (0, 0, Cost::default());
    let mut best: Option<(Cost, std::ops::RangeInclusive<usize>)> = None;
    for (end, fragment) in fragments.iter().enumerate() {
        if matches!(fragment, Fragment::Pinned) {
            (start, held, cost) = (end + 1, 0, Cost::default());
            continue;
        }
        held += bytes_of(fragment);
        cost.enter(Cost::of(fragment, farthest));
        // The shortest window that ends here: a longer one costs no less.
        while held - bytes_of(&fragments[start]) >= bytes && start < end {
            held -= bytes_of(&fragments[start]);
            cost.leave(Cost::of(&fragments[start], farthest));
            start += 1;
        }
        if held >= bytes && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, start..=end));
        }
    }
    let victims = fragments[best?.1].iter().filter_map(|fragment| match fragment {
        Fragment::Copy(candidate) => Some(*candidate),
        _ => None,
    });
    Some(victims.collect())
}
