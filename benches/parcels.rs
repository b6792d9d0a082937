//! Parcels against `MPI_Sendrecv`: the same bytes between the same processes, in turn, in one run.
//!
//! ```sh
//! . launch/env.sh
//! cargo bench --no-run --bench parcels    # prints the path of the program
//! "${mpirun_command[@]}" -n 2 PROGRAM
//! ```
//!
//! Every rank sends to all others and receives from all others at once. The reference is one call of `MPI_Sendrecv`
//! for each distance (to rank + d, from rank - d), with all bytes for that peer in one buffer. Rank 0 prints one
//! JSON object per line: the medians, over the rounds, of the slowest rank's seconds, the rate of one rank (GB/s
//! sent, while as much is received), and the ratio of the rates. All buffers are touched beforehand, and the first
//! round is thrown away.
#![forbid(unsafe_code)]

use bivouac_core::base::Rank;
use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::comm::sockets::{Opened, SocketComm, Wish};
use bivouac_core::comm::{Comm, SharedBytes, Slice};
use clap::Parser;
use mpi::collective::SystemOperation;
use mpi::point_to_point::send_receive_into;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Options {
    /// Data that each rank sends, in MiB.
    #[arg(long, default_value_t = 96)]
    mib: usize,
    /// Sizes of the parcels' bodies, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 256, 1024, 4096])]
    kib: Vec<usize>,
    /// Rounds that count.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Use Bivouac's own sockets instead of MPI.
    #[arg(long)]
    sockets: bool,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    env_logger::init();
    let options = Options::parse();
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    // A panic on one rank would leave the others waiting for ever.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        SimpleCommunicator::world().abort(1);
    }));
    let world = universe.world();
    let size = world.size();
    assert!(size > 1, "start it with mpirun -n 2 or more");
    let mut base = MpiComm::duplicate(&world, &bivouac_core::config::Timeouts::default()).expect("MPI is there");
    let wish = if options.sockets { Wish::Need } else { Wish::Refuse };
    let comm: Box<dyn Comm> = match SocketComm::open(&mut base, wish, Duration::from_secs(60)).expect("ranks talk") {
        Opened::Streams(streams) => streams,
        Opened::NotWanted => Box::new(base),
        Opened::Unreachable(why) => panic!("{why}"),
    };
    // The number of bytes is the same for each peer, and makes whole parcels of any size.
    let bytes = (options.mib << 20) / (size as usize - 1) / (4 << 20) * (4 << 20);
    assert!(bytes > 0, "--mib is below 4 MiB for each peer");
    let seed = world.rank() as usize;
    let outgoing = Arc::new((0..bytes).map(|at| (at * 31 + seed) as u8).collect::<Vec<u8>>());
    let mut bench = Bench {
        world,
        comm,
        over: if options.sockets { "sockets" } else { "MPI" },
        rounds: options.rounds,
        outgoing,
        incoming: vec![1; bytes],
    };
    for kib in options.kib {
        bench.exchange(kib << 10);
    }
    bench.idle();
    assert_eq!(bench.comm.quiesce(Duration::from_secs(10)), Ok(true));
    bench.comm.cancel();
}

struct Bench {
    world: SimpleCommunicator,
    comm: Box<dyn Comm>,
    over: &'static str,
    rounds: usize,
    outgoing: Arc<Vec<u8>>,
    incoming: Vec<u8>,
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Bench {
    /// Runs `body` on all ranks at once and returns the slowest rank's time.
    fn timed(&mut self, body: impl FnOnce(&mut Self)) -> f64 {
        self.world.barrier();
        let start = Instant::now();
        body(self);
        let (mine, mut all) = (start.elapsed().as_secs_f64(), 0.0);
        self.world.all_reduce_into(&mine, &mut all, SystemOperation::max());
        all
    }

    fn exchange(&mut self, piece: usize) {
        let (mut ours, mut reference) = (Vec::new(), Vec::new());
        for round in 0..=self.rounds {
            let times = [self.timed(Self::sendrecv), self.timed(|bench| bench.parcels(piece))];
            if round > 0 {
                reference.push(times[0]);
                ours.push(times[1]);
            }
        }
        let (ours, reference) = (median(&mut ours), median(&mut reference));
        let peers = self.world.size() as usize - 1;
        let rate = |seconds: f64| (peers * self.outgoing.len()) as f64 / seconds / 1e9;
        if self.world.rank() == 0 {
            let line = json!({
                "figure": "parcels against MPI_Sendrecv", "over": self.over, "ranks": peers + 1, "kib": piece >> 10,
                "mib_to_each": self.outgoing.len() >> 20, "rounds": self.rounds,
                "ours_s": ours, "against_s": reference, "ours_gb_per_s": (rate(ours) * 100.0).round() / 100.0,
                "against_gb_per_s": (rate(reference) * 100.0).round() / 100.0,
                "ratio_of_rates": (reference / ours * 1000.0).round() / 1000.0, "target": ">= 0.95 from 1024 KiB",
            });
            println!("{line}");
        }
    }

    fn sendrecv(&mut self) {
        let (size, me) = (self.world.size(), self.world.rank());
        for distance in 1..size {
            let to = self.world.process_at_rank((me + distance) % size);
            let from = self.world.process_at_rank((me + size - distance) % size);
            send_receive_into(&self.outgoing[..], &to, &mut self.incoming[..], &from);
        }
    }

    /// Does what the user of parcels does: sends a few, takes one that has arrived, and starts over.
    fn parcels(&mut self, piece: usize) {
        let (size, me) = (self.world.size() as usize, self.world.rank() as usize);
        let pieces = self.outgoing.len() / piece;
        let (mut sent, mut taken) = (0, 0);
        while taken < pieces * (size - 1) || self.comm.unsent_parcels() > 0 {
            while sent < pieces * (size - 1) && self.comm.unsent_parcels() < 32 {
                let (number, distance) = (sent / (size - 1), 1 + sent % (size - 1));
                let bytes: SharedBytes = self.outgoing.clone();
                let body = Slice::new(bytes, number * piece..(number + 1) * piece).expect("it is inside");
                let to = Rank(((me + distance) % size) as u32);
                self.comm.send_parcel(to, [number as u64; 6], body).expect("it is sent");
                sent += 1;
            }
            match self.comm.receive_parcel().expect("it is received") {
                Some(parcel) => {
                    assert_eq!(parcel.bytes.len(), piece);
                    let first = parcel.label[0] as usize * piece * 31 + parcel.from.index();
                    assert_eq!(parcel.bytes[0], first as u8);
                    self.comm.recycle(parcel.bytes);
                    taken += 1;
                }
                // There may be more ranks than processors, so the others must run.
                None => std::thread::yield_now(),
            }
        }
    }

    /// What a call costs when nothing is in transit.
    fn idle(&mut self) {
        const CALLS: u32 = 100_000;
        let messages = self.timed(|bench| (0..CALLS).for_each(|_| assert_eq!(bench.comm.receive(), Ok(None))));
        let parcels = self.timed(|bench| (0..CALLS).for_each(|_| assert_eq!(bench.comm.receive_parcel(), Ok(None))));
        if self.world.rank() == 0 {
            let nanoseconds = |seconds: f64| (seconds / f64::from(CALLS) * 1e9).round();
            let line = json!({
                "figure": "a call when nothing is under way", "ranks": self.world.size(),
                "receive_ns": nanoseconds(messages), "receive_parcel_ns": nanoseconds(parcels),
            });
            println!("{line}");
        }
    }
}
