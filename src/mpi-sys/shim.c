#include "shim.h"

#include <stddef.h>

#define SHIM_DEFINE(type, name, value) const type RSMPI_##name = value;
SHIM_CONSTANTS(SHIM_DEFINE)

MPI_Status *const RSMPI_STATUS_IGNORE = MPI_STATUS_IGNORE;

double RSMPI_Wtime(void) { return MPI_Wtime(); }
double RSMPI_Wtick(void) { return MPI_Wtick(); }
RSMPI_Fint RSMPI_Comm_c2f(MPI_Comm comm) { return MPI_Comm_c2f(comm); }
MPI_Comm RSMPI_Comm_f2c(RSMPI_Fint comm) { return MPI_Comm_f2c(comm); }

/* These checks compare the chosen bindings with this mpi.h: sizes and offsets of structures, and constants. */
#define SHIM_SAME(name, here, kept) \
    _Static_assert((here) == (kept), "the kept bindings are not those of this mpi.h: " name " (see src/mpi-sys/lib.rs)");
#define SHIM_ENOUGH(name, here, kept) \
    _Static_assert((here) <= (kept), "a text of this mpi.h may be longer than the kept bindings have room: " name);
#include SHIM_CHECKS

/* Handles are pointers in Open MPI and numbers in MPICH. */
#ifdef OPEN_MPI
#define SHIM_HANDLE sizeof(void *)
#else
#define SHIM_HANDLE sizeof(int)
#endif
SHIM_SAME("MPI_Comm", sizeof(MPI_Comm), SHIM_HANDLE)
SHIM_SAME("MPI_Datatype", sizeof(MPI_Datatype), SHIM_HANDLE)
SHIM_SAME("MPI_Errhandler", sizeof(MPI_Errhandler), SHIM_HANDLE)
SHIM_SAME("MPI_Group", sizeof(MPI_Group), SHIM_HANDLE)
SHIM_SAME("MPI_Info", sizeof(MPI_Info), SHIM_HANDLE)
SHIM_SAME("MPI_Message", sizeof(MPI_Message), SHIM_HANDLE)
SHIM_SAME("MPI_Op", sizeof(MPI_Op), SHIM_HANDLE)
SHIM_SAME("MPI_Request", sizeof(MPI_Request), SHIM_HANDLE)
SHIM_SAME("MPI_Aint", sizeof(MPI_Aint), sizeof(long))
SHIM_SAME("MPI_Count", sizeof(MPI_Count), 8)
SHIM_SAME("MPI_Fint", sizeof(MPI_Fint), sizeof(int))
