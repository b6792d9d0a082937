//! The part of MPI's C interface that the `mpi` crate and this project use.
//!
//! The package of this name on crates.io makes its bindings in every build, for which it needs libclang: clusters seldom have that. These were
//! made once, for each kind of MPI that there is: `bindings/openmpi.rs` for Open MPI 4 and 5, `bindings/mpich.rs` for MPICH 4 and whatever has
//! its binary interface (Intel MPI, Cray MPICH, MVAPICH). `build.rs` sees which one `mpicc` belongs to; the C compiler then checks every size, offset
//! and constant in them against the installed `mpi.h` (`shim.c`). `tests/mpi_bindings.rs` makes them anew and compares.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(missing_docs, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
