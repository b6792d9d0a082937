// How long a checkpoint through VELOC's interface blocks the program, against a plain write of the same bytes to a file in shared
// memory, in turns. argv: configuration file, MiB of each rank, rounds, directory for the plain files.

#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "veloc.h"

static int rank;

static void must(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void plain_write(const char *path, const char *data, size_t bytes) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(file >= 0, "open");
    for (size_t at = 0; at < bytes;) {
        ssize_t written = write(file, data + at, bytes - at);
        must(written > 0, "write");
        at += (size_t)written;
    }
    must(close(file) == 0, "close");
}

// The slowest rank's seconds for what `round` does.
static double slowest(double start) {
    double mine = MPI_Wtime() - start, all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    must(argc == 5, "give a configuration file, MiB, rounds and a directory");
    size_t bytes = (size_t)atoi(argv[2]) << 20;
    int rounds = atoi(argv[3]);
    must(bytes > 0 && rounds > 0, "MiB and rounds have to be numbers above 0");
    char path[4096];
    snprintf(path, sizeof path, "%s/plain-%d", argv[4], rank);
    char *data = malloc(bytes);
    double *raw = malloc((size_t)rounds * sizeof *raw), *veloc = malloc((size_t)rounds * sizeof *veloc);
    must(data != NULL && raw != NULL && veloc != NULL, "no memory");
    must(VELOC_Init(MPI_COMM_WORLD, argv[1]) == VELOC_SUCCESS, "VELOC_Init");
    must(VELOC_Mem_protect(1, data, bytes, 1) == VELOC_SUCCESS, "VELOC_Mem_protect");
    // The first three rounds make memory and files ready and do not count.
    for (int round = -3; round < rounds; round++) {
        memset(data, round + 4, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        plain_write(path, data, bytes);
        double took = slowest(start);
        if (round >= 0) raw[round] = took;
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        must(VELOC_Checkpoint("bench", round + 4) == VELOC_SUCCESS, "VELOC_Checkpoint");
        took = slowest(start);
        if (round >= 0) veloc[round] = took;
        must(VELOC_Checkpoint_wait() == VELOC_SUCCESS, "VELOC_Checkpoint_wait");
    }
    unlink(path);
    must(VELOC_Finalize(1) == VELOC_SUCCESS, "VELOC_Finalize");
    if (rank == 0) {
        qsort(raw, (size_t)rounds, sizeof *raw, ascending);
        qsort(veloc, (size_t)rounds, sizeof *veloc, ascending);
        double one = raw[rounds / 2], other = veloc[rounds / 2];
        printf("plain write %.2f ms (%.2f to %.2f), checkpoint %.2f ms (%.2f to %.2f), ratio %.3f\n", one * 1e3, raw[0] * 1e3,
               raw[rounds - 1] * 1e3, other * 1e3, veloc[0] * 1e3, veloc[rounds - 1] * 1e3, other / one);
    }
    free(data);
    free(raw);
    free(veloc);
    MPI_Finalize();
    return 0;
}
