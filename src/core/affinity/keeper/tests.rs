#![forbid(unsafe_code)]

use super::super::pages::{PageMap, Run};
use super::restoring::known_all_over;
use super::*;
use crate::affinity::cpus;
use crate::base::limit::wait_until;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A keeper of a rank that is alone on its node.
fn keeper(config: AffinityConfig) -> Arc<Keeper> {
    Machine::here();
    let settings = Settings { mode: AffinityMode::Full, config, rank: 0, neighbours: vec![0] };
    Arc::new(Keeper::new(settings))
}

fn quiet() -> AffinityConfig {
    AffinityConfig { check_every: Duration::ZERO, ..AffinityConfig::default() }
}

#[test]
fn the_background_alone_sends_bivouacs_threads_out_of_the_way_and_once_more_after_a_checkpoint() {
    alone!();
    let keeper = keeper(quiet());
    assert!(!keeper.has_work());
    keeper.pin(Pin::Launcher);
    for _ in 0..2 {
        assert!(keeper.has_work());
        keeper.work(&mut || true);
        assert!(!keeper.has_work());
        keeper.record([]);
    }
    assert!(!keeper.has_work(), "the second checkpoint changes nothing");
}

#[test]
fn what_another_number_of_ranks_recorded_is_left_alone_and_said_once() {
    let keeper = keeper(quiet());
    for _ in 0..2 {
        keeper.stay(4, 3);
        let losses = keeper.report().losses;
        assert!(
            losses.len() == 1 && losses[0].starts_with("4 ranks took the checkpoint and 3 restore it"),
            "{losses:?}"
        );
    }
    // What would not have been restored does not count as lost.
    for mode in [AffinityMode::Capture, AffinityMode::Off] {
        let settings = Settings { mode, config: quiet(), rank: 0, neighbours: vec![0] };
        let keeper = Keeper::new(settings);
        keeper.stay(4, 3);
        assert_eq!(keeper.report().losses, Vec::<String>::new(), "{mode:?}");
    }
}

/// Two CPUs of this thread, if it has two.
fn two_cpus() -> Option<[Cpus; 2]> {
    let own = cpus::of_this_thread();
    let mut own = own.into_iter().map(|cpu| Cpus::from([cpu]));
    let two = own.next().zip(own.next()).map(|(one, other)| [one, other]);
    if two.is_none() {
        eprintln!("SKIPPED: one CPU only");
    }
    two
}

#[test]
fn what_a_restart_brings_back_has_not_wandered_and_what_goes_then_has() {
    alone!();
    let Some([one, other]) = two_cpus() else { return };
    let free = cpus::of_this_thread();
    let saving = keeper(quiet());
    cpus::run_on(&one);
    let record = saving.record([]);
    cpus::run_on(&free);
    let restoring = keeper(quiet());
    restoring.check(&mut || true);
    restoring.restore(&record);
    assert_eq!((cpus::of_this_thread(), restoring.report().losses), (one, Vec::new()));
    restoring.check(&mut || true);
    assert_eq!((restoring.report().checks, restoring.wandered()), (2, (0, 0)));
    cpus::run_on(&other);
    restoring.check(&mut || true);
    assert_eq!(restoring.wandered(), (1, 0));
}

/// Threads that do nothing until they are dropped. Each of them first binds itself if it has a mask.
struct Pool {
    end: Vec<std::sync::mpsc::Sender<()>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    name: &'static str,
}

impl Pool {
    fn start(name: &'static str, masks: &[Option<&Cpus>]) -> Pool {
        let mut pool = Pool { end: Vec::new(), threads: Vec::new(), name };
        for mask in masks {
            let (end, wait) = std::sync::mpsc::channel();
            let (say, hear) = std::sync::mpsc::channel();
            let mask = mask.cloned();
            let body = move || {
                mask.iter().for_each(cpus::run_on);
                say.send(()).expect("it is heard");
                wait.recv().expect_err("nothing is sent");
            };
            pool.threads.push(std::thread::Builder::new().name(name.into()).spawn(body).expect("a thread"));
            // One after the other, so that their order is known.
            hear.recv().expect("it lives");
            pool.end.push(end);
        }
        pool
    }

    fn ids(&self) -> Vec<i32> {
        threads::list().iter().filter(|thread| thread.name == self.name).map(|thread| thread.id).collect()
    }

    fn masks(&self) -> Vec<Cpus> {
        threads::list().into_iter().filter(|thread| thread.name == self.name).map(|thread| thread.cpus).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end.clear();
        self.threads.drain(..).for_each(|thread| thread.join().expect("no panic"));
        // A thread that has been joined may still be listed for a moment.
        wait_until("they have ended", || self.ids().is_empty());
    }
}

/// A keeper that has just restored a job whose main thread was on `one` and whose pool was on these CPUs.
fn restored(one: &Cpus, pool: &[Option<&Cpus>]) -> Arc<Keeper> {
    let free = cpus::of_this_thread();
    let saving = keeper(quiet());
    let alive = Pool::start("pool", pool);
    cpus::run_on(one);
    let record = saving.record([]);
    cpus::run_on(&free);
    drop(alive);
    let keeper = keeper(quiet());
    keeper.restore(&record);
    keeper
}

#[test]
fn a_pool_that_starts_after_the_restart_gets_its_masks_with_the_next_call_and_more_threads_are_let_out() {
    alone!();
    let Some([one, other]) = two_cpus() else { return };
    let free = cpus::of_this_thread();
    let keeper = restored(&one, &[Some(&other), Some(&one), Some(&other)]);
    let both: Cpus = &one | &other;
    assert_eq!(cpus::of_this_thread(), both, "as many CPUs as the pool had are seen by what starts it");
    let stranger = Pool::start("stranger", &[None]);
    let pool = Pool::start("pool", &[None, None, None, None]);
    assert_eq!(pool.masks(), vec![both; 4]);
    keeper.catch_up();
    assert_eq!(pool.masks(), [&other, &one, &other, &free].map(Clone::clone), "one more than there were");
    assert_eq!((stranger.masks(), cpus::of_this_thread()), (vec![free.clone()], one.clone()));
    // Threads that are started now inherit the main thread's own CPU.
    let late = Pool::start("late", &[None, Some(&other)]);
    assert_eq!(late.masks(), [one.clone(), other.clone()]);
    keeper.catch_up();
    assert_eq!(late.masks(), [free, other], "a thread that has bound itself stays");
    assert_eq!(keeper.report().threads_failed, 0);
}

#[test]
fn fewer_threads_than_before_have_their_places_and_the_rest_is_wanted_still() {
    alone!();
    let Some([one, other]) = two_cpus() else { return };
    let keeper = restored(&one, &[Some(&other), Some(&one), Some(&other)]);
    let pool = Pool::start("pool", &[None]);
    keeper.catch_up();
    assert_eq!((pool.masks(), cpus::of_this_thread()), (vec![other], one));
    let report = keeper.report();
    assert_eq!((report.threads_wanted, report.threads_failed), (4, 0));
}

#[test]
fn a_pool_that_binds_itself_is_put_where_it_was_once() {
    alone!();
    let Some([one, other]) = two_cpus() else { return };
    let keeper = restored(&one, &[Some(&other), Some(&one)]);
    // As with OMP_PROC_BIND, the runtime has bound its threads, in an order of its own, before
    // the session is called again.
    let pool = Pool::start("pool", &[Some(&one), Some(&other)]);
    keeper.catch_up();
    assert_eq!(pool.masks(), [other.clone(), one.clone()]);
    threads::set(pool.ids()[0], &one).expect("it lives");
    let _more = Pool::start("more", &[None]);
    keeper.catch_up();
    assert_eq!(pool.masks(), [one.clone(), one], "what the runtime does afterwards stands");
}

#[test]
fn among_strangers_nothing_is_dealt_and_the_report_says_so() {
    alone!();
    let Some([one, _]) = two_cpus() else { return };
    let free = cpus::of_this_thread();
    let among = |processes, ranks: std::ops::Range<u32>| {
        let settings =
            Settings { mode: AffinityMode::Full, config: quiet(), rank: ranks.start, neighbours: ranks.collect() };
        Arc::new(Keeper { processes, ..Keeper::new(settings) })
    };
    // First more processes than ranks; then several ranks, for which nobody says what they were given together.
    for (processes, ranks) in [(Some(2), 0..1), (None, 0..2)] {
        let keeper = among(processes, ranks.clone());
        for pin in [Pin::Compact, Pin::Scatter] {
            keeper.pin(pin);
            assert_eq!(
                (cpus::of_this_thread(), keeper.report().losses),
                (free.clone(), vec![Loss::Strangers.to_string()])
            );
        }
        cpus::run_on(&one);
        let record = keeper.record([]);
        cpus::run_on(&free);
        let other = among(processes, 7..7 + ranks.len() as u32);
        other.restore(&record);
        let report = other.report();
        assert_eq!((cpus::of_this_thread(), report.losses), (free.clone(), vec![Loss::Strangers.to_string()]));
        assert_eq!((report.threads_wanted, report.threads_failed), (0, 0));
        among(processes, ranks).restore(&record);
        assert_eq!(cpus::of_this_thread(), one, "the same place");
        cpus::run_on(&free);
    }
    let alone = among(Some(1), 0..1);
    alone.pin(Pin::Compact);
    assert!(cpus::of_this_thread().is_subset(&free) && alone.report().losses.is_empty());
    cpus::run_on(&free);
}

#[test]
fn pages_in_short_runs_are_left_to_a_policy_that_deals_them_and_put_together_without_one() {
    let dealt = PageMap::from_nodes(0, (0..8192).map(|page| Some(page % 4)));
    let mapped = Mapped::whole(dealt, 0);
    assert!(mapped.is_dealt(true) && !mapped.is_dealt(false));
    assert_eq!(mapped.coarse.counts(), mapped.map.counts());
    assert_eq!(mapped.coarse.runs.len(), 16);
    let piecewise = PageMap::from_nodes(0, (0..8192).map(|page| Some(page / 16 % 4)));
    let mapped = Mapped::whole(piecewise, 0);
    assert!(!mapped.is_dealt(true) && mapped.coarse == mapped.map);
}

#[test]
fn pages_of_which_nothing_is_known_go_with_their_neighbours() {
    let runs = |list: &[(u64, Option<u32>)]| {
        list.iter().map(|(pages, node)| Run { pages: *pages, node: *node }).collect::<Vec<_>>()
    };
    let map = |list| PageMap { offset: 9, runs: runs(list) };
    let filled = known_all_over(&map(&[(2, None), (1, Some(3)), (4, None), (1, Some(0))]));
    assert_eq!(filled, map(&[(7, Some(3)), (1, Some(0))]));
    assert_eq!(known_all_over(&map(&[(2, None)])), map(&[(2, None)]));
}

/// Between two calls, a library shows that more was given than was known. The policy stands.
#[test]
fn a_policy_is_not_lost_when_more_turns_out_to_be_given() {
    alone!();
    let Some([one, _]) = two_cpus() else { return };
    let free = cpus::of_this_thread();
    let own = Machine::here().cpus.iter().filter(|cpu| free.contains(&(cpu.number as usize)));
    if own.map(|cpu| cpu.core).collect::<BTreeSet<_>>().len() < 2 {
        return eprintln!("SKIPPED: one core only");
    }
    let keeper = keeper(quiet());
    keeper.lock().crew.given = crate::affinity::given::Given { cpus: one, is_jobs: false };
    let wide = Pool::start("wide", &[None]);
    keeper.pin(Pin::Compact);
    assert!(cpus::of_this_thread().len() < free.len(), "{:?}", cpus::of_this_thread());
    assert!(keeper.report().threads_set >= 1, "{:?}", keeper.report());
    drop(wide);
    cpus::run_on(&free);
}

/// The newest version may have no copy that is any good. An older one is then restored, with its record.
#[test]
fn a_second_attempt_knows_the_mask_from_before_the_first() {
    alone!();
    let Some([one, other]) = two_cpus() else { return };
    let free = cpus::of_this_thread();
    let unpinned = keeper(quiet()).record([]);
    let saving = keeper(quiet());
    let keeper = restored(&one, &[Some(&other), Some(&one)]);
    assert_eq!(keeper.report().threads_wanted, 3);
    cpus::run_on(&one);
    let record = saving.record([]);
    keeper.restore(&record);
    let stranger = Pool::start("stranger", &[None]);
    keeper.catch_up();
    assert_eq!((stranger.masks(), cpus::of_this_thread()), (vec![free.clone()], one));
    assert_eq!(keeper.report().threads_set, 1);
    keeper.restore(&unpinned);
    assert_eq!(cpus::of_this_thread(), free, "nothing was pinned then");
}

#[test]
fn threads_are_counted_once() {
    alone!();
    let Some([one, other]) = two_cpus() else { return };
    let keeper = restored(&one, &[Some(&other), Some(&one)]);
    let _strangers = Pool::start("stranger", &[None, None]);
    let _pool = Pool::start("pool", &[None, None]);
    keeper.catch_up();
    let report = keeper.report();
    assert_eq!((report.threads_wanted, report.threads_set), (3, 3), "{report:?}");
}
