// How long a checkpoint through VELOC's interface blocks the program, against a copy of the same bytes in memory, in turns; and how much
// memory of its own the process has more while one is open. Compiles with Bivouac's veloc.h and with VELOC's own.
// Or how long the newest checkpoint takes to come back.
// argv: configuration file, MiB of each rank, regions, rounds, what, a name for the figures. What: `one` (VELOC_Checkpoint) or `steps`
// (begin, mem, end); the same with `-left`: the program ends without VELOC_Finalize; or `restart`.

#define _POSIX_C_SOURCE 200809L
#include <mpi.h>
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

// The slowest rank's seconds since `start`.
static double slowest(double start) {
    double mine = MPI_Wtime() - start, all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

// Bytes of this process that no file backs: what tmpfs and files hold is not among them.
static double anonymous(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = 0;
    must(status != NULL, "/proc/self/status");
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "RssAnon: %ld", &kib) != 1) {}
    fclose(status);
    return (double)kib * 1024;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The newest checkpoint, asked for and restored, against a copy of as much.
static void restart(char *data, char *copy, size_t bytes, int regions, char **argv) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    memcpy(copy, data, bytes);
    double plain = slowest(start);
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    int version = VELOC_Restart_test("bench", 0);
    double test = slowest(start);
    must(version > 0, "VELOC_Restart_test");
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    must(VELOC_Restart("bench", version) == VELOC_SUCCESS, "VELOC_Restart");
    double took = slowest(start);
    for (size_t at = 0; at < bytes; at += 4096) must(data[at] == (char)version, "what came back");
    if (rank == 0) {
        printf("{\"figure\": \"restart through VELOC's interface\", \"library\": \"%s\", \"mib\": %s, \"regions\": %d, \"memcpy_s\": %.5f, "
               "\"test_s\": %.5f, \"restart_s\": %.5f, \"of_memcpy\": %.3f}\n",
               argv[6], argv[2], regions, plain, test, took, (test + took) / plain);
    }
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    must(argc == 7, "give a configuration file, MiB, regions, rounds, one|steps and a name");
    size_t bytes = (size_t)atoi(argv[2]) << 20;
    int regions = atoi(argv[3]), rounds = atoi(argv[4]), steps = strncmp(argv[5], "steps", 5) == 0;
    must(bytes > 0 && rounds > 0 && regions > 0, "MiB, regions and rounds have to be numbers above 0");
    size_t part = bytes / (size_t)regions;
    char *data = malloc(bytes), *copy = malloc(bytes);
    double *plain = malloc((size_t)rounds * sizeof *plain), *later = malloc((size_t)rounds * sizeof *later);
    must(data != NULL && copy != NULL && plain != NULL && later != NULL, "no memory");
    memset(data, 1, bytes);
    memset(copy, 2, bytes);
    must(VELOC_Init(MPI_COMM_WORLD, argv[1]) == VELOC_SUCCESS, "VELOC_Init");
    for (int region = 0; region < regions; region++) {
        must(VELOC_Mem_protect(region, data + (size_t)region * part, part, 1) == VELOC_SUCCESS, "VELOC_Mem_protect");
    }
    if (strcmp(argv[5], "restart") == 0) {
        // As long as a program takes to set itself up.
        for (double until = MPI_Wtime() + 1.0; MPI_Wtime() < until;) {}
        restart(data, copy, bytes, regions, argv);
        must(VELOC_Finalize(0) == VELOC_SUCCESS, "VELOC_Finalize");
        MPI_Finalize();
        return 0;
    }
    double first = 0, more = 0;
    // Of the calls after the first one two more are left out: they make memory and files ready.
    for (int round = -3; round < rounds; round++) {
        memset(data, round + 4, bytes); // the number of the version
        // As long as a short step of a program.
        for (double until = MPI_Wtime() + (round == -3 ? 1.0 : 0.2); MPI_Wtime() < until;) {}
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int region = 0; region < regions; region++) memcpy(copy + (size_t)region * part, data + (size_t)region * part, part);
        double took = slowest(start);
        if (round >= 0) plain[round] = took;
        double before = anonymous(), held = before;
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        if (steps) {
            must(VELOC_Checkpoint_begin("bench", round + 4) == VELOC_SUCCESS, "VELOC_Checkpoint_begin");
            must(VELOC_Checkpoint_mem() == VELOC_SUCCESS, "VELOC_Checkpoint_mem");
            held = anonymous();
            must(VELOC_Checkpoint_end(1) == VELOC_SUCCESS, "VELOC_Checkpoint_end");
        } else {
            must(VELOC_Checkpoint("bench", round + 4) == VELOC_SUCCESS, "VELOC_Checkpoint");
        }
        took = slowest(start);
        if (round == -3) first = took;
        if (round >= 0) later[round] = took;
        if (held - before > more) more = held - before;
        must(VELOC_Checkpoint_wait() == VELOC_SUCCESS, "VELOC_Checkpoint_wait");
    }
    if (strstr(argv[5], "-left") != NULL) {
        MPI_Barrier(MPI_COMM_WORLD);
        _exit(0);
    }
    must(VELOC_Finalize(1) == VELOC_SUCCESS, "VELOC_Finalize");
    MPI_Allreduce(MPI_IN_PLACE, &more, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(plain, (size_t)rounds, sizeof *plain, ascending);
        qsort(later, (size_t)rounds, sizeof *later, ascending);
        double memcpy_s = plain[rounds / 2], later_s = later[rounds / 2];
        printf("{\"figure\": \"blocking through VELOC's interface\", \"library\": \"%s\", \"calls\": \"%s\", \"mib\": %s, \"regions\": %d, "
               "\"rounds\": %d, \"memcpy_s\": %.5f, \"first_s\": %.5f, \"later_s\": %.5f, \"later_min_s\": %.5f, \"later_max_s\": %.5f, "
               "\"first\": %.3f, \"later\": %.3f, \"heap_mib\": %.1f}\n",
               argv[6], argv[5], argv[2], regions, rounds, memcpy_s, first, later_s, later[0], later[rounds - 1], first / memcpy_s,
               later_s / memcpy_s, more / 1048576);
    }
    free(data);
    free(copy);
    free(plain);
    free(later);
    MPI_Finalize();
    return 0;
}
