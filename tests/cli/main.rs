//! The command line, and its effects on stores that real sessions have written: what the commands show, find and refuse.
//!
//! A [`Store`](store::Store) is made by a group of ranks that are threads of this process, with the real file system and a node segment in
//! a folder of its own. Neither the tests nor the command need MPI. All tests are in one program, because each program would compile and
//! link the library's generic code again.

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
