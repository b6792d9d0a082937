//! The part of MPI's C interface that the `mpi` crate and this project use.
//!
//! The package with this name on crates.io generates its bindings in every build. For this it needs libclang, which clusters seldom have.
//! The bindings in this package were generated once for each kind of MPI: `bindings/openmpi.rs` for Open MPI 4 and 5, and
//! `bindings/mpich.rs` for MPICH 4 and every MPI with its binary interface (Intel MPI, Cray MPICH, MVAPICH). `build.rs` finds out to which
//! kind `mpicc` belongs. The C compiler then checks every size, offset and constant in the bindings against the installed `mpi.h`
//! (`shim.c`). `tests/mpi_bindings.rs` generates the bindings again and compares them.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(missing_docs, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
