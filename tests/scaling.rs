//! The cost of agreement as jobs grow: messages per rank and message delays, for 2 to 4096 ranks.
//!
//! The test runs the real coordination core of every rank in one thread; each message takes one delay. A checkpoint on three tiers is three
//! reductions (the call, the local level, the global level). An election that succeeds at once is three as well (look, vote, end). The
//! table is printed; `BIVOUAC_TEST_WRITE_RESULTS=1` also writes it to `benches/results/`:
//!
//! ```text
//! BIVOUAC_TEST_WRITE_RESULTS=1 cargo nextest run --test scaling --no-capture
//! ```
#![forbid(unsafe_code)]

use bivouac_core::base::{CheckpointKey, Generation, Origin, Rank};
use bivouac_core::catalog::{Candidate, WINDOW};
use bivouac_core::config::Timeouts;
use bivouac_core::coordination::core::{Effect, Event, Message};
use bivouac_core::coordination::{Ballot, Core, Outcome, Payload, Phase, Round};
use bivouac_core::format::ContainerInfo;
use bivouac_core::format::codec;
use std::fmt::Write;
use std::time::Duration;

/// The cost of one job on this many ranks.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// The number of messages from the rank that sent the most.
    sent_max: u64,
    /// The total number of messages.
    sent: u64,
    /// The number of message delays from the first vote to the last verdict, for all reductions together.
    delays: u64,
    /// The length of the longest message in bytes.
    bytes_max: u64,
}

struct Job {
    cores: Vec<Core>,
    sent: Vec<u64>,
    cost: Cost,
}

impl Job {
    fn new(ranks: u32, per_node: u32) -> Job {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank / per_node).collect();
        let cores = (0..ranks).map(|rank| Core::new(Rank(rank), &nodes, Timeouts::default())).collect();
        Job { cores, sent: vec![0; ranks as usize], cost: Cost::default() }
    }

    /// Runs one reduction: all ranks vote at once, and messages arrive one delay later, until every rank has the verdict.
    fn reduce(&mut self, round: Round, payload: impl Fn(u32) -> Payload) {
        let votes = (0..self.cores.len() as u32).map(|rank| {
            let ballot = Ballot::of(Rank(rank), 7, "checkpoint \"heat\" version 12 with 3 regions", payload(rank));
            (Rank(rank), Event::Vote(round, ballot))
        });
        let mut events: Vec<(Rank, Event)> = votes.collect();
        let mut settled = 0;
        while !events.is_empty() {
            let mut arriving = Vec::new();
            for (rank, event) in events {
                settled += self.give(rank, event, &mut arriving);
            }
            self.cost.delays += u64::from(!arriving.is_empty());
            events = arriving;
        }
        assert_eq!(settled, self.cores.len(), "every rank hears the verdict once");
    }

    fn give(&mut self, rank: Rank, event: Event, arriving: &mut Vec<(Rank, Event)>) -> usize {
        let mut effects = Vec::new();
        self.cores[rank.index()].on_event(event, Duration::ZERO, &mut effects);
        let mut settled = 0;
        for effect in effects {
            match effect {
                Effect::Send(to, message) => {
                    self.count(rank, &message);
                    arriving.push((to, Event::Message(rank, message)));
                }
                Effect::Decide(round, _) => {
                    let decided = Event::Decided { round, outcome: Outcome::Agreed, decision: vec![1, 2, 3] };
                    settled += self.give(rank, decided, arriving);
                }
                Effect::Settled(verdict) => {
                    assert_eq!(verdict.outcome, Outcome::Agreed);
                    settled += 1;
                }
                Effect::Waiting { .. } => panic!("nobody waits here"),
            }
        }
        settled
    }

    fn count(&mut self, rank: Rank, message: &Message) {
        self.sent[rank.index()] += 1;
        let bytes = codec::encode("message", message).expect("it is short").len() as u64;
        self.cost.bytes_max = self.cost.bytes_max.max(bytes);
    }

    fn cost(self) -> Cost {
        let (sent_max, sent) = (self.sent.iter().copied().max().unwrap_or(0), self.sent.iter().sum());
        Cost { sent_max, sent, ..self.cost }
    }
}

fn checkpoint(ranks: u32, per_node: u32) -> Cost {
    let mut job = Job::new(ranks, per_node);
    job.reduce(Round { operation: 1, phase: Phase::Call }, |_| Payload::Bits { all: 1, any: 1 });
    job.reduce(Round { operation: 1, phase: Phase::Level(1) }, |_| Payload::None);
    job.reduce(Round { operation: 1, phase: Phase::Level(3) }, |rank| {
        // The rank that publishes its node's container names that container.
        let ranks: Vec<Rank> = (rank..rank + per_node).map(Rank).collect();
        let info = ContainerInfo { file: format!("c{rank:06}.bvc"), bytes: 1 << 30, ranks };
        Payload::gathered(if rank % per_node == 0 { vec![info] } else { Vec::new() }).expect("short")
    });
    job.cost()
}

fn election(ranks: u32, per_node: u32) -> Cost {
    let candidates: Vec<Candidate> = (0..WINDOW as u64)
        .rev()
        .map(|version| Candidate {
            key: CheckpointKey { generation: Generation(3), version, operation: version, ..Default::default() },
            agreement: 1,
            group_size: ranks,
            origin: Some(Origin { generation: Generation(2), version: 9, operation: 9, restart: 3 }),
        })
        .collect();
    let mut job = Job::new(ranks, per_node);
    let round = |operation| Round { operation, phase: Phase::Call };
    job.reduce(round(1), |_| Payload::greatest(WINDOW as u32, candidates.iter().map(Candidate::to_bytes)));
    job.reduce(round(2), |_| Payload::Bits { all: u64::MAX, any: 1 });
    job.reduce(round(3), |_| Payload::None);
    job.cost()
}

/// The number of halvings from `n` to 1.
fn log2_ceil(n: u32) -> u64 {
    u64::from(u32::BITS - n.saturating_sub(1).leading_zeros())
}

#[test]
fn a_checkpoint_and_an_election_cost_a_few_messages_per_rank_and_logarithmic_time() {
    let mut table = String::from("ranks,ranks_per_node,operation,messages_per_rank_mean,messages_per_rank_max,");
    table.push_str("delays,delays_bound,longest_message_bytes\n");
    let mut plot =
        String::from("# message delays of one checkpoint (three reductions), 1 # = 1 delay, 16 ranks per node\n");
    for exponent in 1..=12 {
        let ranks = 1u32 << exponent;
        for per_node in [1, 16].into_iter().filter(|per_node| *per_node <= ranks) {
            for (operation, cost) in
                [("checkpoint", checkpoint(ranks, per_node)), ("election", election(ranks, per_node))]
            {
                // A reduction goes up and down a binary tree of nodes and a tree of the node's ranks, and this happens three times.
                let bound = 3 * 2 * (log2_ceil(ranks / per_node + 1) + log2_ceil(per_node + 1));
                let mean = cost.sent as f64 / f64::from(ranks);
                writeln!(
                    table,
                    "{ranks},{per_node},{operation},{mean:.2},{},{},{bound},{}",
                    cost.sent_max, cost.delays, cost.bytes_max
                )
                .expect("memory is there");
                assert!(cost.delays <= bound, "{ranks} ranks: {} delays in a {operation}", cost.delays);
                assert!(cost.sent_max <= 3 * 5, "{ranks} ranks: one rank sent {} messages", cost.sent_max);
                assert_eq!(cost.sent, 3 * 2 * u64::from(ranks - 1), "one vote up, one verdict down");
                if operation == "checkpoint" && per_node == 16 {
                    writeln!(plot, "# {ranks:>5} {}", "#".repeat(cost.delays as usize)).expect("memory is there");
                }
            }
        }
    }
    println!("{table}{plot}");
    if std::env::var_os("BIVOUAC_TEST_WRITE_RESULTS").is_some() {
        let folder = std::path::Path::new(env!("WORKSPACE_ROOT")).join("benches/results");
        std::fs::create_dir_all(&folder).expect("the package's folder is writable");
        std::fs::write(folder.join("scaling_messages.csv"), format!("{table}{plot}")).expect("it is writable");
    }
}
