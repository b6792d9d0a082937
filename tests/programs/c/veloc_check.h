// Shared code of the programs for tests/mpi_veloc.rs.
#ifndef VELOC_CHECK_H
#define VELOC_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);             \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                  \
        }                                                                                  \
    } while (0)

#define OK(call) CHECK((call) == VELOC_SUCCESS)
#define FAILS(call) CHECK((call) == VELOC_FAILURE)

#endif
