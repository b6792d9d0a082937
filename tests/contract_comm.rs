//! The contract of `Comm` on the implementations that need no MPI: threads, streams, and the fault wrapper with no faults.

#[path = "contract/comm.rs"]
mod contract;
#[path = "common/limit.rs"]
mod limit;

use bivouac_core::base::rng::Rng;
use bivouac_core::comm::Comm;
use bivouac_core::comm::faulty::{FaultCounts, FaultPlan, Faulty};
use bivouac_core::comm::sockets::{Opened, SocketComm, Wish};
use bivouac_core::comm::threads::{ThreadComm, world};

/// Opens streams between the ranks of a world.
fn streams(comm: &mut dyn Comm) -> Box<SocketComm> {
    match SocketComm::open(comm, Wish::Need, limit::LIMIT).expect("the world is whole") {
        Opened::Streams(streams) => streams,
        Opened::NotWanted => panic!("they are needed"),
        Opened::Unreachable(why) => panic!("{why}"),
    }
}

/// Runs each body on worlds of several sizes, with one thread per rank. A panic of a rank fails the test.
fn on_threads(wrap: impl Fn(ThreadComm) -> Box<dyn Comm> + Sync) {
    for (name, body) in contract::BODIES {
        for nodes in [&[0][..], &[5, 5], &[1, 0, 1], &[0, 0, 1, 1, 2, 2, 3, 3]] {
            println!("{name} on {} ranks", nodes.len());
            std::thread::scope(|scope| {
                for comm in world(nodes) {
                    let wrap = &wrap;
                    scope.spawn(move || body(wrap(comm)));
                }
            });
        }
    }
}

#[test]
fn threads_keep_the_contract() {
    on_threads(|comm| Box::new(comm));
}

#[test]
fn streams_keep_the_contract() {
    on_threads(|mut comm| streams(&mut comm));
}

#[test]
fn the_fault_wrapper_without_faults_keeps_the_contract() {
    on_threads(|comm| Box::new(Faulty::new(comm, FaultPlan::NONE, Rng::new(1))));
}

#[test]
fn delays_that_keep_the_order_are_within_the_contract_of_exchanges() {
    // The left-out bodies ask whether a message has arrived at a certain call, which late messages do not allow.
    let patient = [
        "every_rank_reaches",
        "messages_of_one_sender",
        "many_senders",
        "bytes_may_be",
        "an_empty_message",
        "parcels_of_one_sender",
        "parcels_go_all_ways",
        "messages_go_beside",
    ];
    let plan = FaultPlan { delay: 200, hold_calls: 30, ..FaultPlan::NONE };
    let bodies: Vec<_> =
        contract::BODIES.iter().filter(|(name, _)| patient.iter().any(|start| name.starts_with(start))).collect();
    assert_eq!(bodies.len(), patient.len());
    for (_, body) in bodies {
        std::thread::scope(|scope| {
            for comm in world(&[0, 0, 1, 1]) {
                let seed = u64::from(comm.rank().0);
                let comm = Box::new(Faulty::new(comm, plan, Rng::new(seed)));
                assert_eq!(comm.counts(), FaultCounts::default());
                scope.spawn(move || body(comm));
            }
        });
    }
}
