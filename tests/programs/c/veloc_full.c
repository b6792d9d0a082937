// One checkpoint fits, and for a second one the scratch directory has no room. If persistent storage takes the second one, it is
// a checkpoint like any other; otherwise it exists on no rank, and the first one stays. argv: configuration file, and a word if
// there is such storage.

#include <string.h>

#include "veloc.h"
#include "veloc_check.h"

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, step = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t many = (size_t)4 << 20;
    char *large = calloc(many, 1);
    for (size_t at = 0; at < many; at++) large[at] = (char)(at * 2654435761u >> 13);
    OK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Checkpoint("full", 1));
    OK(VELOC_Checkpoint_wait());
    // Only one rank has more data than fits.
    if (rank == 1) OK(VELOC_Mem_protect(1, large, many, 1));
    step = 2;
    int status = VELOC_Checkpoint("full", 2);
    if (status == VELOC_SUCCESS) status = VELOC_Checkpoint_wait();
    if (argc > 2) {
        OK(status);
        CHECK(VELOC_Restart_test("full", 0) == 2);
        memset(large, 0, many);
        step = 0;
        OK(VELOC_Restart("full", 2));
        CHECK(step == 2);
        for (size_t at = 0; rank == 1 && at < many; at++) CHECK(large[at] == (char)(at * 2654435761u >> 13));
    } else {
        FAILS(status);
        CHECK(VELOC_Restart_test("full", 0) == 1);
    }
    OK(VELOC_Mem_unprotect(0));
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Restart("full", 1));
    CHECK(step == 1);
    VELOC_Finalize(1);
    MPI_Finalize();
    free(large);
    if (rank == 0) printf("full: done\n");
    return 0;
}
