// Heat on a ring, with VELOC calls: what a program that was written for VELOC looks like. It contains no Bivouac calls.
//
//   mpicc -O2 veloc_ring.c -lveloc-client -o veloc_ring        (docs/VELOC.md has the long form)
//   mpirun -n 2 ./veloc_ring veloc.cfg 2000 100                (steps in all, steps between checkpoints)
//
// A fourth argument is a step after which rank 1 kills itself. The last line, `sum`, does not depend on interruptions.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <veloc.h>

enum { CELLS = 100000 }; // of each rank

static void must(int status, const char *what) {
    if (status != VELOC_SUCCESS) {
        fprintf(stderr, "%s failed\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv) {
    static double now[CELLS + 2], next[CELLS + 2];
    int granted, rank, ranks, step = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4 || atoi(argv[3]) < 1) must(VELOC_FAILURE, "usage: veloc_ring CONFIG STEPS EVERY [DIE_AT]: this call");
    const int steps = atoi(argv[2]), every = atoi(argv[3]), die_at = argc > 4 ? atoi(argv[4]) : -1;
    const int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    for (int at = 1; at <= CELLS; at++) now[at] = (double)((at * 7 + rank * 3) % 101);

    must(VELOC_Init(MPI_COMM_WORLD, argv[1]), "VELOC_Init");
    must(VELOC_Mem_protect(0, &step, 1, sizeof step), "VELOC_Mem_protect");
    must(VELOC_Mem_protect(1, now, CELLS + 2, sizeof now[0]), "VELOC_Mem_protect");
    const int version = VELOC_Restart_test("ring", 0);
    if (version > 0) {
        must(VELOC_Restart("ring", version), "VELOC_Restart");
        if (rank == 0) printf("restored version=%d step=%d\n", version, step);
    }
    while (step < steps) {
        MPI_Sendrecv(&now[1], 1, MPI_DOUBLE, left, 1, &now[CELLS + 1], 1, MPI_DOUBLE, right, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&now[CELLS], 1, MPI_DOUBLE, right, 2, &now[0], 1, MPI_DOUBLE, left, 2, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int at = 1; at <= CELLS; at++) next[at] = now[at] + 0.25 * (now[at - 1] - 2 * now[at] + now[at + 1]);
        for (int at = 1; at <= CELLS; at++) now[at] = next[at];
        step++;
        if (step % every == 0) must(VELOC_Checkpoint("ring", step), "VELOC_Checkpoint");
        if (step == die_at && rank == 1 % ranks) raise(SIGKILL);
    }
    double sum = 0, all = 0;
    for (int at = 1; at <= CELLS; at++) sum += now[at] * (double)(at % 13 + rank);
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("sum %.17g\n", all);
    must(VELOC_Finalize(1), "VELOC_Finalize");
    MPI_Finalize();
    return 0;
}
