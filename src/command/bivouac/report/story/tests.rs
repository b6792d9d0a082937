use super::*;

fn event(run: u64, unix: f64, what: What) -> Event {
    Event { unix, run, what }
}

fn opened(rank: u32) -> What {
    let tiers = vec![("local".to_owned(), "/l".to_owned()), ("global".to_owned(), "/g".to_owned())];
    What::Opened(Box::new(Opened { job: "heat-1".into(), rank, ranks: 2, tiers, ..Opened::default() }))
}

fn captured(version: u64, seconds: f64) -> What {
    What::Captured { name: "t".into(), version, operation: version, bytes: 100, seconds }
}

fn restored(version: u64, generation: u64) -> What {
    restored_from("local", version, generation)
}

fn restored_from(tier: &str, version: u64, generation: u64) -> What {
    let (name, tier) = ("t".to_owned(), tier.to_owned());
    What::Restored { name, version, generation, tier, bytes: 100, seconds: 1.0, elect_seconds: 0.1 }
}

fn told(ranks: Vec<Vec<Event>>) -> Gathered {
    let ranks = ranks.into_iter().enumerate().map(|(rank, events)| (rank as u32, events)).collect();
    Gathered { events: [(("world".to_owned(), "heat-1".to_owned()), ranks)].into(), ..Gathered::default() }
}

#[test]
fn time_goes_where_it_went() {
    let root = vec![
        event(1, 100.0, opened(0)),
        event(1, 110.0, captured(1, 0.5)),
        event(1, 130.0, captured(2, 1.0)),
        event(1, 131.0, What::Committed { name: "t".into(), version: 2, operation: 2, level: "System".into() }),
        event(1, 145.0, captured(3, 0.5)),
        // The run dies at 150, and the next one continues from version 2.
        event(2, 160.0, opened(0)),
        event(2, 163.0, restored(2, 1)),
        event(2, 180.0, captured(3, 0.5)),
        event(2, 200.0, What::Closed),
    ];
    let other = vec![event(1, 100.5, opened(1)), event(1, 130.5, captured(2, 2.0))];
    let mut gathered = told(vec![root, other]);
    let attempt = |began, ended, outcome: &str| Attempt { began, ended, outcome: outcome.into(), ..Attempt::default() };
    gathered.attempts =
        [("heat-1".to_owned(), vec![attempt(98.0, 150.0, "killed"), attempt(155.0, 201.0, "status 0")])].into();
    let stories = stories(&gathered, 1000.0);
    let story = &stories[0];
    assert_eq!((story.began, story.ended, story.told, story.runs.len()), (98.0, 200.0, 2, 2));
    let [first, second] = &story.runs[..] else { panic!() };
    assert_eq!((first.ending, first.ended, first.failure().as_deref()), ("died", 150.0, Some("killed")));
    assert_eq!((first.rework, first.won_back, second.rework), (19.5, 30.5, 0.0));
    assert_eq!((first.captures[1].unix, first.captures[1].bytes, first.captures[1].seconds), (130.5, 200, [1.0, 2.0]));
    let Account { total, work, checkpoints, rework, recovering, down } = story.account;
    assert_eq!((total, rework, recovering, down), (102.0, 19.5, 3.0, 12.0));
    assert_eq!((checkpoints, work), (3.0, 102.0 - 19.5 - 3.0 - 12.0 - 3.0));
}

#[test]
fn a_run_that_restores_nothing_does_all_again() {
    let events = vec![
        event(1, 0.0, opened(0)),
        event(1, 40.0, captured(1, 0.0)),
        event(2, 50.0, opened(0)),
        event(2, 60.0, What::Closed),
    ];
    let story = &stories(&told(vec![events]), 1000.0)[0];
    assert_eq!((story.runs[0].rework, story.runs[0].won_back), (40.0, 0.0));
    assert_eq!((story.account.work, story.account.down), (10.0, 10.0));
}

#[test]
fn each_rank_may_have_read_from_another_tier() {
    let from = |tier: &str| restored_from(tier, 1, 1);
    let ranks = ["peers", "global", "peers"].iter().enumerate().map(|(rank, tier)| {
        // What a rank restores afterwards does not count.
        vec![event(2, 0.0, opened(rank as u32)), event(2, 1.0, from(tier)), event(2, 5.0, from("object"))]
    });
    let story = &stories(&told(ranks.collect()), 1000.0)[0];
    let restored = story.runs[0].restored.as_ref().expect("something was restored");
    let sources: Vec<_> = restored.sources.iter().map(|source| (source.tier.as_str(), source.ranks)).collect();
    assert_eq!((sources, restored.bytes), (vec![("peers", 2), ("global", 1)], 300));
}

#[test]
fn attempts_without_a_session_are_failures_of_the_job_that_they_belong_to() {
    let events = vec![event(1, 120.0, opened(0)), event(1, 130.0, captured(1, 0.0)), event(1, 140.0, What::Closed)];
    let mut gathered = told(vec![events]);
    let attempt = |run_began, began: f64, decision: &str, generations: &[(&str, u64)]| Attempt {
        run_began,
        began,
        ended: began + 9.0,
        outcome: "status 3".into(),
        decision: decision.into(),
        generations: generations.iter().map(|(group, run)| ((*group).to_owned(), *run)).collect(),
        ..Attempt::default()
    };
    let attempts = vec![
        // Of another run of `bivouac run`, and so of no concern.
        attempt(1.0, 2.0, "restart", &[]),
        attempt(100.0, 101.0, "restart", &[]),
        Attempt { ended: 141.0, ..attempt(100.0, 119.0, "success", &[("world", 1)]) },
        // Another group has opened a session.
        attempt(100.0, 145.0, "restart", &[("sub-2", 2)]),
        attempt(100.0, 160.0, "interrupted", &[]),
    ];
    gathered.attempts = [("heat-1".to_owned(), attempts.clone()), ("other".to_owned(), attempts)].into();
    let story = &stories(&gathered, 1000.0)[0];
    let unopened: Vec<_> = story.unopened.iter().map(|it| (it.began, it.has_failed)).collect();
    assert_eq!(unopened, [(101.0, true), (160.0, false)]);
    assert_eq!((story.began, story.ended), (101.0, 169.0));
    let Account { total, work, down, .. } = story.account;
    assert_eq!((total, work, down), (68.0, 20.0, 48.0));
}

#[test]
fn an_end_that_nobody_noted_is_said_to_be_unknown() {
    let events = vec![
        event(1, 0.0, opened(0)),
        event(1, 10.0, captured(1, 0.0)),
        event(2, 30.0, opened(0)),
        event(2, 30.0, restored(1, 1)),
        event(2, 50.0, What::Closed),
    ];
    let mut gathered = told(vec![events]);
    let known = |gathered: &Gathered| {
        let stories = stories(gathered, 1000.0);
        stories[0].runs.iter().map(|run| (run.is_end_known, run.rework)).collect::<Vec<_>>()
    };
    assert_eq!(known(&gathered), [(false, 0.0), (true, 0.0)]);
    let attempt = Attempt { began: 0.0, ended: 25.0, ..Attempt::default() };
    gathered.attempts = [("heat-1".to_owned(), vec![attempt])].into();
    assert_eq!(known(&gathered), [(true, 15.0), (true, 0.0)]);
}

#[test]
fn later_runs_may_go_back_behind_earlier_ones() {
    let events = vec![
        event(1, 0.0, opened(0)),
        event(1, 10.0, captured(1, 0.0)),
        event(1, 20.0, captured(2, 0.0)),
        event(2, 30.0, opened(0)),
        event(2, 30.0, restored(2, 1)),
        event(2, 50.0, captured(3, 0.0)),
        event(3, 60.0, opened(0)),
        event(3, 60.0, restored(1, 1)),
        event(3, 90.0, What::Closed),
    ];
    let story = &stories(&told(vec![events]), 1000.0)[0];
    let rework: Vec<f64> = story.runs.iter().map(|run| run.rework).collect();
    assert_eq!(rework, [10.0, 20.0, 0.0]);
    let sum: f64 = story.account.parts().iter().map(|(_, seconds)| seconds).sum();
    assert_eq!((sum, story.account.total), (90.0, 90.0));
}

#[test]
fn tiers_and_warnings_are_summed_up() {
    let written = |bytes, seconds| What::Written { operation: 1, tier: "global".into(), bytes, seconds };
    let warned = || What::Warned { importance: "WARN".into(), text: "event=x".into() };
    let one = vec![event(1, 0.0, opened(0)), event(1, 1.0, written(100, 1.0)), event(1, 2.0, warned())];
    let other = vec![
        event(1, 0.0, opened(1)),
        event(1, 1.0, written(100, 2.0)),
        event(1, 1.5, warned()),
        event(1, 2.0, What::Failed { tier: "global".into(), reason: "full".into() }),
        event(1, 3.0, What::Missing { count: 7, reason: "late".into() }),
    ];
    let story = &stories(&told(vec![one, other]), 1000.0)[0];
    let [global] = &story.tiers[..] else { panic!() };
    assert_eq!((global.writes, global.bytes, global.seconds, global.failures), (2, 200, 3.0, 1));
    assert_eq!(global.rates, [50.0, 100.0, 100.0]);
    assert_eq!((story.warnings[0].count, story.warnings[0].unix), (2, 1.5));
    assert!(story.missing[0].contains("rank 1: 7 of run 1"));
}

#[test]
fn runs_of_one_number_on_two_stores_are_told_apart() {
    let opened = |incarnation: &str| {
        What::Opened(Box::new(Opened { incarnation: incarnation.into(), ranks: 1, ..Opened::default() }))
    };
    let events = vec![
        event(1, 0.0, opened("first")),
        event(1, 5.0, captured(1, 0.1)),
        event(1, 9.0, What::Closed),
        event(1, 20.0, opened("second")),
        event(1, 29.0, What::Closed),
    ];
    let runs = &stories(&told(vec![events]), 1000.0)[0].runs;
    assert_eq!(runs.iter().map(|run| run.captures.len()).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn strange_numbers_make_no_strange_story() {
    let strange = vec![
        event(1, 5.0, captured(1, -1e300)),
        event(1, 1e18, opened(0)),
        event(1, -1e18, captured(2, 1e300)),
        event(2, 0.0, restored(9, 9)),
        event(2, 0.0, opened(0)),
    ];
    for story in stories(&told(vec![strange]), 1000.0) {
        assert!(story.account.parts().iter().all(|(_, seconds)| *seconds >= 0.0), "{:?}", story.account.parts());
    }
}
