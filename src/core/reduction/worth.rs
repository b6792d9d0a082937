//! Decides whether compressing pays on a tier, from the results so far.

/// The number of files that are written uncompressed before compression is tried again.
const PASSES: u32 = 15;
/// Earlier measurements count for half as much after every file.
const FADE: f64 = 0.5;

/// The results of compressing so far, for one rank.
#[derive(Clone, Copy, Default, Debug)]
pub struct Worth {
    bytes: f64,
    stored: f64,
    seconds: f64,
    passes: u32,
}

impl Worth {
    /// Notes that compressing a file of `bytes` took `seconds` and left `stored` bytes.
    pub fn measured(&mut self, bytes: u64, stored: u64, seconds: f64) {
        self.passes = 0;
        self.bytes = self.bytes * FADE + bytes as f64;
        self.stored = self.stored * FADE + stored as f64;
        self.seconds = self.seconds * FADE + seconds;
    }

    /// Is the next file written sooner if it is compressed, on a tier that takes this many bytes a second? The answer is yes while the
    /// bandwidth or the results are unknown, and again after a series of negative answers, so that compression is tried again.
    pub fn pays(&mut self, bandwidth: Option<f64>) -> bool {
        let Some(bandwidth) = bandwidth.filter(|_| self.bytes > 0.0) else { return true };
        let pays = self.seconds + self.stored / bandwidth < self.bytes / bandwidth;
        self.passes = if pays { 0 } else { (self.passes + 1) % (PASSES + 1) };
        pays || self.passes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halving 1 GB at 0.5 GB/s takes as long as a tier of 0.25 GB/s needs for the bytes saved.
    fn worth(seconds: f64) -> Worth {
        let mut worth = Worth::default();
        worth.measured(1 << 30, 1 << 29, seconds);
        worth
    }

    #[test]
    fn slow_tiers_get_less_to_write_and_fast_ones_all() {
        let bandwidth = |share: f64| Some(share * f64::from(1 << 29));
        assert!(worth(2.0).pays(bandwidth(0.4)) && !worth(2.0).pays(bandwidth(0.6)));
        assert!(worth(1.0).pays(bandwidth(0.9)) && !worth(1.0).pays(bandwidth(1.1)));
    }

    #[test]
    fn what_is_not_known_is_tried_and_what_was_no_use_is_tried_again() {
        assert!(Worth::default().pays(Some(1e12)) && worth(1.0).pays(None));
        let mut worth = worth(1.0);
        let tried: Vec<usize> = (0..40).filter(|_| worth.pays(Some(1e12))).collect();
        assert_eq!(tried, [15, 31]);
        // A file that now shrinks to almost nothing counts more than one that did not.
        worth.measured(1 << 30, 1 << 30, 1.0);
        assert!(!worth.pays(Some(1.0)) || worth.stored < worth.bytes);
        (0..20).for_each(|_| worth.measured(1 << 30, 1, 1e-3));
        assert!(worth.pays(Some(1e10)));
    }
}
