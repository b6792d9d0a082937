// Calls every function of VELOC's interface on two ranks, correctly and incorrectly. argv: a configuration file, one
// that waits in Checkpoint_end, and one with a mistake.

#include <pthread.h>
#include <string.h>

#include "veloc.h"
#include "veloc_check.h"

static int rank;

// `finalized`: whether there was a session that VELOC_Finalize has ended.
static void before_and_after(int finalized) {
    int one = 1;
    char path[VELOC_MAX_NAME];
    CHECK(VELOC_Finalize(1) == (finalized ? VELOC_SUCCESS : VELOC_FAILURE));
    FAILS(VELOC_Mem_protect(1, &one, 1, sizeof one));
    FAILS(VELOC_Region_protect(1, &one, 1, sizeof one, "a"));
    FAILS(VELOC_Mem_unprotect(1));
    FAILS(VELOC_Region_unprotect(1, "a"));
    FAILS(VELOC_Mem_clear());
    FAILS(VELOC_Region_clear("a"));
    FAILS(VELOC_Route_file("a", path));
    FAILS(VELOC_Cleanup("a"));
    FAILS(VELOC_Checkpoint_begin("a", 1));
    FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, &one, 1));
    FAILS(VELOC_Checkpoint_mem());
    FAILS(VELOC_Checkpoint_end(1));
    FAILS(VELOC_Checkpoint_wait());
    FAILS(VELOC_Checkpoint_finished());
    FAILS(VELOC_Checkpoint("a", 1));
    FAILS(VELOC_Restart_test("a", 0));
    FAILS(VELOC_Restart_begin("a", 1));
    FAILS(VELOC_Recover_selective(VELOC_RECOVER_SOME, &one, 1));
    FAILS(VELOC_Recover_mem());
    FAILS(VELOC_Recover_size(1));
    FAILS(VELOC_Restart_end(1));
    FAILS(VELOC_Restart("a", 1));
    FAILS(VELOC_Prefetch_enqueue(1));
    FAILS(VELOC_Prefetch_start());
    CHECK(VELOC_Recover_size_of(1, 1) == -1);
}

static void openings(const char *good, const char *bad) {
    // If one rank makes a mistake, the call fails on all: nobody waits.
    FAILS(VELOC_Init(MPI_COMM_WORLD, rank == 1 ? bad : good));
    FAILS(VELOC_Init(MPI_COMM_WORLD, rank == 0 ? NULL : good));
    FAILS(VELOC_Init(MPI_COMM_WORLD, rank == 1 ? "no-such-file" : good));
    FAILS(VELOC_Init(MPI_COMM_NULL, good));
    OK(VELOC_Init(MPI_COMM_WORLD, good));
    FAILS(VELOC_Init(MPI_COMM_WORLD, good));
    FAILS(VELOC_Init_single(1, good));
}

// Names and arguments that are wrong on one rank only: the call fails there, nothing hangs, and the next call works.
static void mistakes(void) {
    int value = rank, other = 9, unknown[2] = {1, 77};
    char path[VELOC_MAX_NAME];
    FAILS(VELOC_Mem_protect(1, NULL, 1, sizeof value));
    FAILS(VELOC_Mem_protect(1, &value, (size_t)-1, sizeof value));
    OK(VELOC_Mem_protect(1, &value, 1, sizeof value));
    OK(VELOC_Mem_protect(2, NULL, 0, sizeof value));
    OK(VELOC_Mem_protect(3, &other, 0, 0));
    FAILS(VELOC_Region_protect(1, &value, 1, sizeof value, NULL));
    FAILS(VELOC_Region_protect(1, &value, 1, sizeof value, "a/b"));
    FAILS(VELOC_Mem_unprotect(77));
    FAILS(VELOC_Region_unprotect(1, "nobody"));
    OK(VELOC_Region_clear("nobody"));

    FAILS(VELOC_Checkpoint_mem());
    FAILS(VELOC_Checkpoint_end(1));
    FAILS(VELOC_Route_file("file", path));
    OK(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_finished());

    const char *names[] = {NULL, "", "a b", "a/b", "../a"};
    for (int i = 0; i < 5; i++) {
        int status = VELOC_Checkpoint(rank == 1 ? names[i] : "mistakes", 10 + i);
        CHECK(status == (rank == 1 ? VELOC_FAILURE : VELOC_SUCCESS));
        if (rank == 0) FAILS(VELOC_Checkpoint_wait());
    }
    int status = VELOC_Checkpoint("mistakes", rank == 1 ? -5 : 5);
    CHECK(status == (rank == 1 ? VELOC_FAILURE : VELOC_SUCCESS));
    if (rank == 0) FAILS(VELOC_Checkpoint_wait());

    OK(VELOC_Checkpoint_begin("mistakes", 20));
    FAILS(VELOC_Checkpoint_begin("mistakes", 21));
    FAILS(VELOC_Restart_test("mistakes", 0));
    FAILS(VELOC_Restart_begin("mistakes", 20));
    FAILS(VELOC_Recover_mem());
    FAILS(VELOC_Recover_size(1));
    FAILS(VELOC_Restart_end(1));
    FAILS(VELOC_Route_file(NULL, path));
    FAILS(VELOC_Route_file("file", NULL));
    FAILS(VELOC_Cleanup("mistakes"));
    // One rank gives an unknown number and does not save, so nobody does.
    if (rank == 1) FAILS(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, unknown, 2));
    OK(VELOC_Checkpoint_mem());
    status = VELOC_Checkpoint_end(1);
    CHECK(status == (rank == 1 ? VELOC_FAILURE : VELOC_SUCCESS));
    if (rank == 0) FAILS(VELOC_Checkpoint_wait());

    // First a routed file was never written, and then one rank reports failure.
    OK(VELOC_Checkpoint_begin("mistakes", 22));
    if (rank == 1) OK(VELOC_Route_file("unwritten", path));
    OK(VELOC_Checkpoint_mem());
    status = VELOC_Checkpoint_end(1);
    CHECK(status == (rank == 1 ? VELOC_FAILURE : VELOC_SUCCESS));
    if (rank == 0) FAILS(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_begin("mistakes", 23));
    OK(VELOC_Checkpoint_mem());
    OK(VELOC_Checkpoint_end(rank == 0));
    if (rank == 0) FAILS(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_wait());
    FAILS(VELOC_Restart_test("mistakes", 0));

    OK(VELOC_Checkpoint("mistakes", 30));
    OK(VELOC_Checkpoint_wait());
    FAILS(VELOC_Restart_test(rank == 1 ? "a/b" : "mistakes", 0));
    FAILS(VELOC_Restart_test("mistakes", rank == 1 ? -1 : 0));
    FAILS(VELOC_Restart_begin("mistakes", rank == 1 ? -1 : 30));
    FAILS(VELOC_Restart_begin(rank == 1 ? NULL : "mistakes", 30));
    FAILS(VELOC_Restart("mistakes", 31));
    FAILS(VELOC_Restart("nobody", 30));
    CHECK(VELOC_Restart_test("mistakes", 0) == 30);
    // A version for which one rank's memory is too small is loaded on none, and not offered again.
    OK(VELOC_Mem_protect(1, &value, 1, rank == 1 ? sizeof value - 1 : sizeof value));
    FAILS(VELOC_Restart("mistakes", 30));
    FAILS(VELOC_Restart_test("mistakes", 0));
    OK(VELOC_Mem_protect(1, &value, 1, sizeof value));
    value = -1;
    OK(VELOC_Restart_begin("mistakes", 30));
    FAILS(VELOC_Restart_begin("mistakes", 30));
    FAILS(VELOC_Checkpoint_begin("mistakes", 31));
    FAILS(VELOC_Recover_size(77));
    CHECK(VELOC_Recover_size(1) == sizeof value && VELOC_Recover_size(2) == 0);
    OK(VELOC_Recover_mem());
    OK(VELOC_Restart_end(1));
    CHECK(value == rank);
    FAILS(VELOC_Restart_end(1));
    OK(VELOC_Cleanup("mistakes"));
    FAILS(VELOC_Restart_test("mistakes", 0));
    OK(VELOC_Mem_clear());
}

// Each checkpoint saves the regions that were protected last, as they were when they were chosen; ranks may save different regions.
static void regions(void) {
    enum { MANY = 100000 };
    static double first[MANY], second[MANY];
    int step = 1, extra = 40 + rank, ids[2] = {1, 3};
    for (int i = 0; i < MANY; i++) first[i] = i + rank, second[i] = -i - rank;
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Mem_protect(1, first, MANY, sizeof *first));
    if (rank == 1) OK(VELOC_Mem_protect(3, &extra, 1, sizeof extra));
    OK(VELOC_Checkpoint("regions", 1));
    OK(VELOC_Mem_protect(1, second, MANY, sizeof *second));
    step = 2;
    OK(VELOC_Checkpoint_begin("regions", 2));
    OK(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, ids, 1));
    OK(VELOC_Checkpoint_selective(VELOC_CKPT_REST, ids, 1));
    step = 99;
    for (int i = 0; i < MANY; i++) second[i] = 0;
    OK(VELOC_Checkpoint_end(1));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("regions", 0) == 2 && VELOC_Restart_test("regions", 1) == 1);
    extra = 0;
    OK(VELOC_Restart("regions", 2));
    CHECK(step == 2 && second[MANY - 1] == -(MANY - 1) - rank && extra == (rank == 1 ? 41 : 0));
    OK(VELOC_Restart("regions", 1));
    CHECK(step == 1 && second[MANY - 1] == MANY - 1 + rank);

    // Regions are restored in parts; a region that is not chosen stays unchanged.
    step = 0, second[7] = 0;
    OK(VELOC_Restart_begin("regions", 2));
    CHECK(VELOC_Recover_size(1) == (int)sizeof second);
    OK(VELOC_Recover_selective(VELOC_RECOVER_SOME, ids, 1));
    CHECK(step == 0 && second[7] == -7 - rank);
    OK(VELOC_Recover_selective(VELOC_RECOVER_REST, ids, 1));
    OK(VELOC_Restart_end(1));
    CHECK(step == 2);
    // One rank cannot use the version, so the restart counts on none.
    OK(VELOC_Restart_begin("regions", 2));
    OK(VELOC_Recover_mem());
    int status = VELOC_Restart_end(rank == 1 ? 0 : 1);
    CHECK(status == (rank == 1 ? VELOC_SUCCESS : VELOC_FAILURE));
    CHECK(VELOC_Restart_test("regions", 0) == 1);
    OK(VELOC_Restart_begin("regions", 1));
    FAILS(VELOC_Recover_selective(VELOC_RECOVER_SOME, rank == 0 ? ids + 1 : ids, 1));
    FAILS(VELOC_Recover_mem());
    FAILS(VELOC_Restart_end(1));
    FAILS(VELOC_Restart_test("regions", 0));
    // A restart that has failed need not be ended.
    OK(VELOC_Restart_begin("regions", 1));
    FAILS(VELOC_Recover_selective(VELOC_RECOVER_SOME, NULL, 1));

    // The same version is saved again, with less data: nothing is left of the longer one.
    OK(VELOC_Mem_protect(1, second, 3, sizeof *second));
    for (int i = 0; i < 3; i++) second[i] = 0.5 + i;
    OK(VELOC_Checkpoint("regions", 2));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("regions", 0) == 2);
    OK(VELOC_Restart_begin("regions", 2));
    CHECK(VELOC_Recover_size(1) == 3 * (int)sizeof *second);
    second[2] = 0;
    OK(VELOC_Recover_mem());
    OK(VELOC_Restart_end(1));
    CHECK(second[2] == 2.5);
    // A restart that loads nothing also counts.
    OK(VELOC_Restart_begin("regions", 2));
    OK(VELOC_Restart_end(1));

    // One series has a group of its own, separate from the regions without a group.
    int mine = 7 * rank;
    OK(VELOC_Mem_clear());
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Region_protect(0, &mine, 1, sizeof mine, "group"));
    OK(VELOC_Checkpoint("group", 5));
    OK(VELOC_Checkpoint("plain", 5));
    OK(VELOC_Checkpoint_wait());
    mine = step = -1;
    OK(VELOC_Restart("plain", 5));
    CHECK(step == 2 && mine == -1);
    step = -1;
    OK(VELOC_Restart("group", 5));
    CHECK(step == 2 && mine == 7 * rank);
    OK(VELOC_Region_unprotect(0, "group"));
    FAILS(VELOC_Restart("group", 5));
    OK(VELOC_Mem_unprotect(0));
}

// Files that the program itself writes, with names that differ by rank.
static void files(void) {
    char original[64], path[VELOC_MAX_NAME], text[64];
    for (int version = 1; version <= 2; version++) {
        snprintf(original, sizeof original, "out/heat-%d_%d.dat", version, rank);
        OK(VELOC_Checkpoint_begin("files", version));
        OK(VELOC_Route_file(original, path));
        FILE *file = fopen(path, "w");
        CHECK(file != NULL);
        fprintf(file, "rank %d version %d", rank, version);
        fclose(file);
        OK(VELOC_Checkpoint_end(1));
        CHECK(fopen(path, "r") == NULL);
    }
    OK(VELOC_Checkpoint_wait());
    for (int version = 2; version >= 1; version--) {
        CHECK(VELOC_Restart_test("files", version) == version);
        OK(VELOC_Restart_begin("files", version));
        snprintf(original, sizeof original, "out/heat-%d_%d.dat", version, rank);
        strcpy(path, original);
        OK(VELOC_Route_file(path, path));
        FILE *file = fopen(path, "r");
        CHECK(file != NULL);
        CHECK(fgets(text, sizeof text, file) != NULL);
        fclose(file);
        OK(VELOC_Restart_end(1));
        snprintf(original, sizeof original, "rank %d version %d", rank, version);
        CHECK(strcmp(text, original) == 0);
    }
    FAILS(VELOC_Route_file("late", path));
}

// Memory and a file in one checkpoint; the file's name looks like a region's number.
static void files_and_memory(void) {
    int value = 5 + rank, number = 0;
    char path[VELOC_MAX_NAME], again[VELOC_MAX_NAME];
    OK(VELOC_Mem_protect(1, &value, 1, sizeof value));
    OK(VELOC_Checkpoint_begin("both", 1));
    OK(VELOC_Route_file("out#1", path));
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "%d", 70 + rank);
    fclose(file);
    OK(VELOC_Checkpoint_mem());
    OK(VELOC_Checkpoint_end(1));
    OK(VELOC_Checkpoint_wait());
    value = 0;
    OK(VELOC_Restart("both", 1));
    CHECK(value == 5 + rank);
    value = 0;
    OK(VELOC_Restart_begin("both", 1));
    CHECK(VELOC_Recover_size(1) == sizeof value);
    OK(VELOC_Recover_mem());
    OK(VELOC_Route_file("out#1", again));
    file = fopen(again, "r");
    CHECK(file != NULL && fscanf(file, "%d", &number) == 1);
    fclose(file);
    OK(VELOC_Restart_end(1));
    CHECK(value == 5 + rank && number == 70 + rank);
    OK(VELOC_Mem_clear());
}

// The run does not continue from a version that was only looked at, or that the program could not use.
static void looks(void) {
    int value = 0;
    OK(VELOC_Mem_protect(1, &value, 1, sizeof value));
    for (value = 1; value <= 3; value++) OK(VELOC_Checkpoint("looks", value));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("looks", 1) == 1);
    value = 4;
    OK(VELOC_Checkpoint("looks", value));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("looks", 3) == 3 && VELOC_Restart_test("looks", 2) == 2);
    OK(VELOC_Restart_begin("looks", 1));
    OK(VELOC_Recover_mem());
    OK(VELOC_Restart_end(0));
    value = 5;
    OK(VELOC_Checkpoint("looks", value));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("looks", 4) == 4);
    // This restart counts: later versions are left behind.
    OK(VELOC_Restart("looks", 2));
    CHECK(value == 2);
    value = 6;
    OK(VELOC_Checkpoint("looks", value));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("looks", 5) == 2);
    OK(VELOC_Mem_clear());
}

static void *protect_and_ask(void *of) {
    static char room[8][100];
    int id = *(int *)of;
    for (int i = 0; i < 200; i++) {
        OK(VELOC_Mem_protect(id, room[id], 100, 1));
        VELOC_Checkpoint_finished();
        FAILS(VELOC_Checkpoint_mem());
        OK(VELOC_Mem_unprotect(id));
    }
    return NULL;
}

// Local calls from several threads at once.
static void from_threads(void) {
    pthread_t threads[4];
    int ids[4];
    for (int i = 0; i < 4; i++) {
        ids[i] = i;
        CHECK(pthread_create(&threads[i], NULL, protect_and_ask, &ids[i]) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    int provided, one = 1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    before_and_after(0);
    openings(argv[1], argv[3]);
    mistakes();
    regions();
    files();
    files_and_memory();
    looks();
    if (provided == MPI_THREAD_MULTIPLE) from_threads();
    // A checkpoint without data would be the newest, and its restart would be a success.
    FAILS(VELOC_Checkpoint("empty", 1));
    CHECK(VELOC_Restart_test("empty", 0) == VELOC_FAILURE);
    OK(VELOC_Mem_protect(1, &one, 1, sizeof one));
    // One rank finalizes without having ended its checkpoint: nobody waits for that rank, and its file is removed.
    if (rank == 0) {
        char path[VELOC_MAX_NAME], again[VELOC_MAX_NAME];
        OK(VELOC_Checkpoint_begin("unended", 1));
        OK(VELOC_Route_file("left", path));
        FILE *file = fopen(path, "w");
        CHECK(file != NULL && fclose(file) == 0);
        // A second request gives the same path, with the data that was written.
        OK(VELOC_Route_file("left", again));
        file = fopen(again, "r");
        CHECK(file != NULL && fclose(file) == 0);
    } else {
        OK(VELOC_Checkpoint("unended", 1));
    }
    CHECK(VELOC_Finalize(1) == (rank == 0 ? VELOC_FAILURE : VELOC_SUCCESS));
    before_and_after(1);

    // This session waits at the end of each checkpoint, and finds what the previous session wrote.
    OK(VELOC_Init(MPI_COMM_WORLD, argv[2]));
    CHECK(VELOC_Restart_test("files", 0) == 2);
    OK(VELOC_Mem_protect(1, &one, 1, sizeof one));
    OK(VELOC_Checkpoint_begin("sync", 1));
    OK(VELOC_Checkpoint_mem());
    int status = VELOC_Checkpoint_end(rank);
    CHECK(status == (rank == 0 ? VELOC_SUCCESS : VELOC_FAILURE));
    OK(VELOC_Checkpoint("sync", 2));
    OK(VELOC_Checkpoint_finished());
    // The session is finalized with everything open.
    OK(VELOC_Restart_begin("sync", 2));
    OK(VELOC_Finalize(0));
    OK(VELOC_Finalize(0));

    // Each rank now has a session of its own.
    OK(VELOC_Init_single((unsigned)(10 + rank), argv[1]));
    one = 50 + rank;
    OK(VELOC_Mem_protect(1, &one, 1, sizeof one));
    OK(VELOC_Checkpoint("alone", 1 + rank));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("alone", 0) == 1 + rank);
    one = 0;
    OK(VELOC_Restart("alone", 1 + rank));
    CHECK(one == 50 + rank);
    OK(VELOC_Finalize(1));
    before_and_after(1);
    MPI_Finalize();
    if (rank == 0) printf("calls: done\n");
    return 0;
}
