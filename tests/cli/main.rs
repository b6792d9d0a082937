//! The command line, and what it does to stores that real sessions have written: what it shows, what it finds, what it refuses.
//!
//! A [`Store`](store::Store) is made by a group of ranks that are threads of this process, with the real file system below and a node
//! segment in a folder of its own. No MPI is needed, neither here nor by the command. One program, because each would compile and link
//! the library's generic code again.

mod bench;
mod clean;
mod dealt;
mod diff;
mod doctor;
mod drain;
mod drain_sweep;
mod export;
mod extract;
mod general;
mod inspect;
mod job;
#[path = "../common/limit.rs"]
mod limit;
mod other_users;
mod plan;
mod rebuild;
mod report;
mod status;
#[path = "../store/mod.rs"]
mod store;
mod topo;
#[path = "../topo/mod.rs"]
mod topologies;
