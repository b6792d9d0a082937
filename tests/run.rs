//! `bivouac run` and `bivouac halt`, and the hooks in the session that they need.
//!
//! `supervised` runs the supervisor on scripts that play a launcher and its job: every outcome can be produced at will, and no MPI is
//! needed. `resize` does the same for jobs whose number of ranks changes. `session` checks what a real session writes and obeys. `mpi`
//! combines both: heat2d under `mpirun`, killed, stopped and halted, and a program in C under plain `MPI_Init` (`BIVOUAC_TEST_KILLS`: how
//! often it is killed; default 3, the whole row 10). `template` runs the scripts of `launch/slurm` with commands that play SLURM. `batch`
//! does the same for other batch systems, and runs the supervisor in their jobs.
#![forbid(unsafe_code)]

#[path = "run/batch.rs"]
mod batch;
#[path = "run/bed.rs"]
mod bed;
#[path = "common/mod.rs"]
mod common;
#[cfg(feature = "mpi")]
#[path = "interfaces/mod.rs"]
mod interfaces;
#[cfg(feature = "mpi")]
#[path = "run/mpi.rs"]
mod mpi;
#[path = "run/resize.rs"]
mod resize;
#[path = "run/session.rs"]
mod session;
#[path = "run/supervised.rs"]
mod supervised;
#[path = "run/template.rs"]
mod template;
