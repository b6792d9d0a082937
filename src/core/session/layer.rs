//! The message layer between the ranks of a session: MPI, or Bivouac's own streams.
#![forbid(unsafe_code)]

#[cfg(feature = "mpi")]
use super::error::Result;
#[cfg(feature = "mpi")]
use super::place::Workers;
#[cfg(any(feature = "mpi", test))]
use crate::base::log;
#[cfg(feature = "mpi")]
use crate::comm::Comm;
#[cfg(feature = "mpi")]
use crate::config::{Config, Timeouts};
use std::time::Duration;

/// How long `close` waits for its last messages to arrive.
pub(super) const GOODBYE_LIMIT: Duration = Duration::from_secs(10);

/// Prepares a rank to wait for the others. It configures what is logged during the wait, such as which ranks have not called, and returns
/// the time limits. A rank without a usable configuration uses the defaults.
#[cfg(feature = "mpi")]
pub fn prepare_to_wait(config: std::result::Result<&Config, &String>) -> Timeouts {
    let default = Config::default();
    let config = config.unwrap_or(&default);
    log::configure(config.node.log);
    config.job.timeouts
}

/// The message layer of a session that is opened on a communicator, and the threads that work for it. The layer is MPI, with or without a
/// comm thread, or Bivouac's own streams, on which a thread does not need MPI's permission.
#[cfg(feature = "mpi")]
pub(super) fn layer(
    mut comm: crate::comm::mpi::MpiComm,
    wanted: crate::config::Progress,
    timeouts: &Timeouts,
) -> Result<(Box<dyn Comm>, Workers)> {
    use crate::comm::sockets::{Opened, SocketComm};
    let is_threaded = comm.is_multiple() && wanted != crate::config::Progress::Stepped;
    let here = comm.nodes()[comm.rank().index()];
    let neighbours = comm.nodes().iter().filter(|node| **node == here).count();
    let wish = wish(wanted, is_threaded, is_crowded(neighbours, processors()));
    let unreachable = match SocketComm::open(&mut comm, wish, timeouts.abandon)? {
        Opened::Streams(streams) => {
            log::debug!("event=streams rank={} reason=\"MPI grants {}\"", comm.rank(), comm.thread_level());
            comm.quiesce(GOODBYE_LIMIT)?;
            comm.cancel();
            return Ok((streams, Workers::Threads));
        }
        Opened::NotWanted => None,
        Opened::Unreachable(why) => Some(why),
    };
    if let (Some(why), true) = (unreachable, comm.rank() == crate::base::Rank::ROOT) {
        let (level, line) = without_streams(&why, wanted, is_threaded, &comm.thread_level().to_string());
        log::log!(level, "{line}");
    }
    Ok((Box::new(comm), if is_threaded { Workers::Threads } else { Workers::Writers }))
}

/// Whether a rank wants streams. This follows from its configuration, and from whether a thread may use MPI and has a processor.
#[cfg(any(feature = "mpi", test))]
pub(super) fn wish(wanted: crate::config::Progress, is_threaded: bool, is_crowded: bool) -> crate::comm::sockets::Wish {
    use crate::comm::sockets::Wish;
    use crate::config::Progress;
    match wanted {
        Progress::Stepped => Wish::Refuse,
        Progress::Auto if is_threaded && !is_crowded => Wish::Whatever,
        Progress::Auto | Progress::Sockets => Wish::Need,
    }
}

/// The root's log line if the ranks cannot reach each other by streams. A comm thread then uses MPI, or only the application's calls do.
#[cfg(any(feature = "mpi", test))]
pub(super) fn without_streams(
    why: &str,
    wanted: crate::config::Progress,
    is_threaded: bool,
    thread_level: &str,
) -> (log::Level, String) {
    if is_threaded {
        let is_said = wanted == crate::config::Progress::Sockets;
        let level = if is_said { log::Level::Warn } else { log::Level::Debug };
        return (level, format!("event=no-streams reason=\"{why}\": ranks communicate over MPI"));
    }
    let line = format!(
        "event=no-comm-thread reason=\"MPI grants {thread_level}, and ranks cannot reach each other without MPI: {why}\": \
         checkpoints are committed only while the application is in a call of the session; {}",
        crate::comm::sockets::INSTEAD
    );
    (log::Level::Warn, line)
}

/// Do ranks share processors? MPI's waiting calls then compete for the processors: with two ranks on each of 16 processors, a vote over MPI
/// took half a second, and a vote over streams a tenth of that.
#[cfg(any(feature = "mpi", test))]
pub(super) fn is_crowded(ranks: usize, processors: Option<usize>) -> bool {
    processors.is_some_and(|processors| ranks > processors)
}

/// The number of processors of this machine, including those that this process may not use: its neighbours use the others.
#[cfg(feature = "mpi")]
fn processors() -> Option<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    crate::base::units::parse_cpus(online.trim()).map(|online| online.len()).filter(|count| *count > 0)
}
