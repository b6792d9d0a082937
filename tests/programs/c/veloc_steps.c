// A program with steps, as it would be written for VELOC: it continues from the newest checkpoint that can be restored, and takes one after
// each step. argv: configuration file, last step, the step after whose checkpoint all ranks kill themselves (0: none), and files to damage
// between the first Restart_test and the restart.

#include <signal.h>
#include <string.h>

#include "veloc.h"
#include "veloc_check.h"

static int rank;

static double value(int step, size_t at) { return 1e6 * rank + 1e3 * step + (double)(at % 1000); }

static void damage(const char *path) {
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    const long length = ftell(file);
    // This damages the data of both ranks if they share a container.
    for (long at = length / 4; at < length; at += length / 2) {
        CHECK(fseek(file, at, SEEK_SET) == 0);
        int byte = getc(file);
        CHECK(byte != EOF && fseek(file, at, SEEK_SET) == 0 && putc(byte ^ 0x10, file) != EOF);
    }
    CHECK(fclose(file) == 0);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int step = 0, last = atoi(argv[2]), kill_after = atoi(argv[3]);
    size_t many = 50000 + 1000 * (size_t)rank;
    double *data = calloc(many, sizeof *data);
    OK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Mem_protect(1, data, many, sizeof *data));
    int version = VELOC_Restart_test("steps", 0);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int at = 4; rank == 0 && at < argc; at++) damage(argv[at]);
    MPI_Barrier(MPI_COMM_WORLD);
    while (version >= 0 && VELOC_Restart("steps", version) != VELOC_SUCCESS) {
        if (rank == 0) printf("refused %d\n", version);
        version = VELOC_Restart_test("steps", version);
    }
    if (version >= 0) {
        CHECK(step == version);
        for (size_t at = 0; at < many; at++) CHECK(data[at] == value(step, at));
    }
    if (rank == 0) printf("from %d\n", version);
    while (step < last) {
        step++;
        for (size_t at = 0; at < many; at++) data[at] = value(step, at);
        OK(VELOC_Checkpoint_wait());
        OK(VELOC_Checkpoint("steps", step));
        if (step == kill_after) {
            fflush(stdout);
            OK(VELOC_Checkpoint_wait());
            MPI_Barrier(MPI_COMM_WORLD);
            raise(SIGKILL);
        }
    }
    OK(VELOC_Finalize(1));
    MPI_Finalize();
    free(data);
    if (rank == 0) printf("reached %d\n", step);
    return 0;
}
