// Shared code of the programs for tests/mpi_c.rs.
#ifndef BVK_CHECK_H
#define BVK_CHECK_H

#include <bivouac.h>
#include <stdio.h>

static int rank;

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "rank %d, line %d: %s; last error: %s\n", rank, __LINE__, #condition, bvk_error()); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                       \
        }                                                                                                       \
    } while (0)
#define IS(call, status) CHECK((call) == (status))

#endif
