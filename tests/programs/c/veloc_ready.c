// VELOC_Mem_protect has node memory made ready before the first checkpoint needs it. argv: a configuration file, and the number of seconds
// after which the program gives up waiting.

#include <stdlib.h>

#include "ready.h"
#include "veloc.h"
#include "veloc_check.h"

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    void *data = malloc(READY_BYTES);
    OK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
    const long long before = allocated();
    MPI_Barrier(MPI_COMM_WORLD);
    OK(VELOC_Mem_protect(1, data, READY_BYTES, 1));
    CHECK(made_ready(before, atof(argv[2])));
    OK(VELOC_Finalize(1));
    MPI_Finalize();
    free(data);
    return 0;
}
