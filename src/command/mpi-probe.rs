//! Facts that the ranks of an MPI job find out together, for `bivouac doctor --mpi`, which starts this program on every rank.
//!
//! It is a separate program, so that `bivouac` itself starts where there is no MPI library. Its argument is the global directory. Rank 0
//! prints one line of JSON, and the other ranks print their numbers.
//!
//! | field | meaning |
//! |---|---|
//! | `rank`, `size` | the number of this rank, and the number of all ranks |
//! | `per_node` | ranks on each node |
//! | `thread_level` | the thread level that was granted when `MPI_THREAD_MULTIPLE` was asked for |
//! | `cut_off` | why ranks do not reach each other over sockets, or null if they do |
//! | `library` | what the library says about its version |
//! | `blind` | ranks that do not see the file that rank 0 has created in the directory (or in its nearest ancestor that exists) |
//! | `failure` | why rank 0 could not create the file, instead of `blind` |
#![forbid(unsafe_code)]

use bivouac_core::comm::Comm;
use bivouac_core::comm::mpi::MpiComm;
use bivouac_core::comm::sockets::{Opened, SocketComm, Wish};
use mpi::Threading;
use mpi::environment::library_version;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use serde_json::json;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Bytes of the random part of the file's name.
const TOKEN: usize = 16;

fn main() {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!(
            "bivouac-mpi-probe: this is started by bivouac doctor --mpi, with the global directory as its argument"
        );
        std::process::exit(2);
    };
    let Some((universe, granted)) = mpi::initialize_with_threading(Threading::Multiple) else {
        eprintln!("bivouac-mpi-probe: MPI is already initialized");
        std::process::exit(1);
    };
    let world = universe.world();
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        SimpleCommunicator::world().abort(1);
    }));
    if let Err(error) = probe(&world, granted, &directory) {
        eprintln!("bivouac-mpi-probe: rank {}: {error}", world.rank());
        world.abort(1);
    }
}

fn probe(world: &SimpleCommunicator, granted: Threading, directory: &Path) -> Result<(), Box<dyn Error>> {
    let (rank, size) = (world.rank(), world.size());
    let timeouts = bivouac_core::config::Timeouts::default();
    let mut comm = MpiComm::duplicate(world, &timeouts)?;
    let nodes = comm.nodes().to_vec();
    let cut_off = match SocketComm::open(&mut comm, Wish::Need, timeouts.abandon)? {
        Opened::Unreachable(why) => Some(why),
        Opened::Streams(_) | Opened::NotWanted => None,
    };
    comm.cancel();
    let root = world.process_at_rank(0);
    // Nobody can have a file of this name by chance, so a rank that sees it sees this one.
    let mut token = bivouac_core::base::rng::incarnation()?.0;
    let place = |token: &[u8; TOKEN]| {
        let name: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
        let nearest = directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        nearest.join(format!(".bivouac-doctor-{name}"))
    };
    let made = match rank {
        0 => std::fs::File::create_new(place(&token))
            .map(drop)
            .map_err(|error| format!("{}: {error}", place(&token).display())),
        _ => Ok(()),
    };
    let mut is_made = u8::from(made.is_ok());
    root.broadcast_into(&mut token[..]);
    root.broadcast_into(&mut is_made);
    let sees = u8::from(place(&token).exists());
    if rank != 0 {
        root.gather_into(&sees);
        println!("{}", json!({ "rank": rank }));
        return Ok(());
    }
    let mut all = vec![0u8; usize::try_from(size)?];
    root.gather_into_root(&sees, &mut all);
    if made.is_ok() {
        std::fs::remove_file(place(&token))?;
    }
    let blind: Vec<usize> = all.iter().enumerate().filter(|(_, sees)| **sees == 0).map(|(rank, _)| rank).collect();
    let mut per_node = vec![0u32; nodes.iter().max().map_or(0, |last| *last as usize + 1)];
    nodes.iter().for_each(|node| per_node[*node as usize] += 1);
    let level = match granted {
        Threading::Single => "MPI_THREAD_SINGLE",
        Threading::Funneled => "MPI_THREAD_FUNNELED",
        Threading::Serialized => "MPI_THREAD_SERIALIZED",
        Threading::Multiple => "MPI_THREAD_MULTIPLE",
    };
    let mut found = json!({
        "rank": rank,
        "size": size,
        "per_node": per_node,
        "thread_level": level,
        "cut_off": cut_off,
        "library": library_version().unwrap_or_default(),
    });
    match made {
        Ok(()) => found["blind"] = json!(blind),
        Err(failure) => found["failure"] = json!(failure),
    }
    println!("{found}");
    Ok(())
}
