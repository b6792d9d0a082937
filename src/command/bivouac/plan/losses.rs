//! What a plan loses, by cause, for different times between two checkpoints. Pure.

use crate::picture::{Look, Picture, Series};
use bivouac_core::policy::intervals::{Best, Conduct, LevelCosts, Pattern, Waste, efficiency, merged};

/// The axis reaches from the best segment divided by this to the best segment times this.
const AROUND: f64 = 5.0;
/// The number of points of a curve.
const POINTS: u32 = 81;

/// Draws the losses of the plan that was found, for other segments and the same counts; `title` says what the plan is for.
pub fn picture(costs: &[LevelCosts], found: &Best, conduct: Conduct, title: String) -> Picture {
    let used = merged(costs, &found.pattern);
    let best = found.pattern.segment;
    let with = |segment: f64| Pattern { segment, ..found.pattern.clone() };
    // A level cannot be used again before its last checkpoint counts.
    let once = with(1.0).intervals();
    let least = used.iter().zip(&once).map(|(level, times)| level.delay(f64::MAX) / times).fold(0.0, f64::max);
    let from = (best / AROUND).max(least).min(best);
    let at = |point: u32| from * (best * AROUND / from).powf(f64::from(point) / f64::from(POINTS - 1));
    let (unit, x) = match best {
        short if short < 200.0 => (1.0, "work between two checkpoints [s]"),
        minutes if minutes < 200.0 * 60.0 => (60.0, "work between two checkpoints [min]"),
        _ => (3600.0, "work between two checkpoints [h]"),
    };
    let point = |segment: f64, share: f64| (segment / unit, share * 100.0);
    let first_order = |segment: f64, cause: fn(&Waste) -> f64| {
        let of = |(level, interval): (&LevelCosts, f64)| cause(&Waste::of(level, interval));
        used.iter().zip(with(segment).intervals()).map(of).sum::<f64>()
    };
    let curve = |name: &str, loss: &dyn Fn(f64) -> f64| {
        let points = (0..POINTS).map(at).map(|segment| point(segment, loss(segment))).collect();
        Series { look: Look::Line, ..Series::new(name, points) }
    };
    let mark = Series::new("best", vec![point(best, 1.0 - found.efficiency)]);
    let series = vec![
        curve("checkpoints", &|segment| first_order(segment, |waste| waste.checkpoints)),
        curve("rework", &|segment| first_order(segment, |waste| waste.rework)),
        curve("recovery", &|segment| first_order(segment, |waste| waste.recovery)),
        curve("all three to first order", &|segment| first_order(segment, Waste::total)),
        curve("exact loss", &|segment| 1.0 - efficiency(costs, &with(segment), conduct)),
        Series { look: Look::Dots, ..mark },
    ];
    Picture { title, x, y: "time that is lost [%]", series, ..Picture::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::planner::presets;
    use bivouac_core::policy::intervals::best;

    fn of(name: &str) -> (Picture, Best) {
        let machine = presets::named(name).expect("known");
        let costs: Vec<LevelCosts> = machine.levels().into_iter().map(|(_, costs)| costs).collect();
        let found = best(&costs, machine.always(), machine.conduct()).expect("a pattern");
        (picture(&costs, &found, machine.conduct(), name.to_owned()), found)
    }

    #[test]
    fn the_mark_is_where_least_is_lost() {
        for name in ["laptop", "node-8gpu", "ics19-0.45ef-16", "ics19-7.2ef-16"] {
            let (picture, found) = of(name);
            let [.., exact, mark] = &picture.series[..] else { panic!("{name}") };
            let lost = mark.points[0].1;
            assert!((lost - (1.0 - found.efficiency) * 100.0).abs() < 1e-9, "{name}");
            assert!(exact.points.iter().all(|(_, loss)| *loss >= lost - 1e-6), "{name}");
            let sides = [exact.points[0], exact.points[exact.points.len() - 1]];
            assert!(sides[0].0 <= mark.points[0].0 && sides[1].0 > mark.points[0].0, "{name}");
        }
    }

    #[test]
    fn causes_add_up() {
        let (picture, _) = of("ics19-3.6ef-16");
        let [checkpoints, rework, recovery, all, ..] = &picture.series[..] else { panic!("six series") };
        for at in 0..all.points.len() {
            let sum = [checkpoints, rework, recovery].map(|series| series.points[at].1).iter().sum::<f64>();
            assert!((sum - all.points[at].1).abs() < 1e-9);
        }
        assert!(checkpoints.points[0].1 > checkpoints.points[40].1 && rework.points[0].1 < rework.points[40].1);
    }
}
