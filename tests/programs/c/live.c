// Live regions in C: memory that is overwritten right after each checkpoint is restored as it was at the checkpoint. It may be freed as
// soon as it is unprotected, protected elsewhere, or the session is closed. If the argument is "declared", only bvk_before_write keeps
// later writes out. The program prints "ok" and how the data was copied.
#define _GNU_SOURCE
#include "bvk_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { NUMBERS = (6 << 20) / 8 + 11, ODD = 3, VERSIONS = 8 };
// The writes are so far apart that two of the 25 blocks are waited for: above 15 %, the next checkpoints would copy all blocks at once.
enum { FEW = NUMBERS * 2 / 5, ALL = 1 };

static int is_declared;

// The contents of a version.
static double value(uint64_t version, size_t at) { return (double)(version * 1000003 + at * 7 + (size_t)rank); }

static void fill(double *numbers, uint64_t version) {
    for (size_t at = 0; at < NUMBERS; at++) numbers[at] = value(version, at);
}

static int holds(const double *numbers, uint64_t version) {
    for (size_t at = 0; at < NUMBERS; at++) {
        if (numbers[at] != value(version, at)) {
            fprintf(stderr, "rank %d: number %zu is %f and not that of version %llu\n", rank, at, numbers[at], (unsigned long long)version);
            return 0;
        }
    }
    return 1;
}

// Maps separate pages, so that nothing is left there once they are unmapped.
static double *mapped(void) {
    void *memory = mmap(NULL, (NUMBERS + ODD) * sizeof(double), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return (double *)memory + ODD;
}

static void unmapped(double *numbers) { CHECK(munmap(numbers - ODD, (NUMBERS + ODD) * sizeof(double)) == 0); }

// Writes to numbers, from the last to the first, because the copy reaches the last one last. Declarations are made piece
// by piece, or with a set.
static void overwrite(bvk_session_t session, bvk_write_set_t set, double *numbers, size_t stride) {
    enum { PIECE = 5000 };
    if (is_declared && set) IS(bvk_before(set), BVK_OK);
    for (size_t end = NUMBERS; end > 0;) {
        const size_t start = end > PIECE ? end - PIECE : 0;
        if (is_declared && !set) IS(bvk_before_write(session, numbers + start, (end - start) * sizeof(double)), BVK_OK);
        for (size_t at = start; at < end; at++) {
            if (at % stride == 0) numbers[at] = -1;
        }
        end = start;
    }
}

static bvk_pending_t checkpoint(bvk_session_t session, uint64_t version) {
    bvk_pending_t pending = NULL;
    IS(bvk_checkpoint(session, "live", version, &pending), BVK_OK);
    return pending;
}

static void reaches(bvk_pending_t pending) {
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
}

static void protect(bvk_session_t session, double *numbers) {
    IS(bvk_protect(session, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
    IS(bvk_set_live(session, "numbers", 1), BVK_OK);
}

static void refusals(bvk_session_t session, double *numbers) {
    const void *data[1] = {numbers};
    const uint64_t bytes[1] = {8};
    bvk_write_set_t set = NULL;
    IS(bvk_set_live(NULL, "numbers", 1), BVK_ERR_HANDLE);
    IS(bvk_set_live(session, NULL, 1), BVK_ERR_ARGUMENT);
    IS(bvk_set_live(session, "numbers", 1), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "no region \"numbers\" is protected: call bvk_protect before bvk_set_live"));
    // None of these calls has made anything live.
    IS(bvk_before_write(session, numbers, 8), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "bvk_set_live"));
    IS(bvk_write_set(session, "set", data, bytes, 1, &set), BVK_ERR_STATE);
    IS(bvk_protect(session, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
    IS(bvk_before_write(session, numbers, 8), BVK_ERR_STATE);
    IS(bvk_set_live(session, "numbers", 0), BVK_OK);
    // From now on the memory may be declared, whether it is live or not.
    IS(bvk_before_write(session, numbers, 8), BVK_OK);
    IS(bvk_before_write(session, NULL, 0), BVK_OK);
    IS(bvk_before_write(session, NULL, 8), BVK_ERR_ARGUMENT);
    IS(bvk_before_write(session, numbers, UINT64_MAX), BVK_ERR_ARGUMENT);
    IS(bvk_allow_marks(session), BVK_ERR_STATE);
    IS(bvk_unprotect(session, "numbers"), BVK_OK);
    IS(bvk_set_live(session, "numbers", 0), BVK_ERR_ARGUMENT);
    IS(bvk_settle(session), BVK_OK);
}

// Takes versions of one region, a part of which is overwritten at once.
static void overwritten(bvk_session_t session, double *numbers) {
    bvk_write_set_t set = NULL;
    const void *data[2] = {numbers, numbers + NUMBERS / 2};
    const uint64_t bytes[2] = {NUMBERS / 2 * sizeof(double), (NUMBERS - NUMBERS / 2) * sizeof(double)};
    uint64_t step = 0;
    protect(session, numbers);
    IS(bvk_protect(session, "step", &step, 1, BVK_U64), BVK_OK);
    IS(bvk_write_set(session, "advance", data, bytes, 2, &set), BVK_OK);
    for (uint64_t version = 1; version <= VERSIONS; version++) {
        bvk_checkpoint_t begun = NULL;
        bvk_pending_t pending = NULL;
        fill(numbers, version);
        step = version;
        if (version % 2) {
            pending = checkpoint(session, version);
        } else {
            IS(bvk_begin_checkpoint(session, "live", version, &begun), BVK_OK);
            IS(bvk_save_protected(begun), BVK_OK);
            IS(bvk_capture(&begun, &pending), BVK_OK);
        }
        step = 0;
        overwrite(session, version % 4 < 2 ? set : NULL, numbers, FEW);
        // The first round restores without waiting, while its memory may still be copied.
        if (version > 1) IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
        IS(bvk_restore(session, "live", BVK_NEWEST, NULL), BVK_OK);
        IS(bvk_release(&pending), BVK_OK);
        CHECK(step == version && holds(numbers, version));
    }
    IS(bvk_write_set_close(&set), BVK_OK);
    IS(bvk_unprotect(session, "step"), BVK_OK);
}

// The library itself writes to live memory: from a history, and from an older version.
static void written_by_the_library(bvk_session_t session, double *numbers) {
    bvk_history_t history = NULL;
    bvk_restart_t restart = NULL;
    protect(session, numbers);
    IS(bvk_history_open(session, "past", BVK_NO_GPU, BVK_KEEP_ALL, &history), BVK_OK);
    IS(bvk_history_field(history, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
    fill(numbers, 7);
    IS(bvk_history_append(history, 7), BVK_OK);
    fill(numbers, 20);
    bvk_pending_t pending = checkpoint(session, 20);
    IS(bvk_history_restore(history, 7), BVK_OK);
    CHECK(holds(numbers, 7));
    reaches(pending);
    IS(bvk_settle(session), BVK_OK);
    fill(numbers, 21);
    pending = checkpoint(session, 21);
    int status = bvk_begin_restore(session, "live", 20, &restart);
    for (; status == BVK_OK || status == BVK_AGAIN;) {
        IS(bvk_load(restart, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
        status = bvk_end_restore(&restart, 1, NULL);
        if (status == BVK_OK) break;
    }
    CHECK(status == BVK_OK && holds(numbers, 20));
    reaches(pending);
    IS(bvk_restore(session, "live", 21, NULL), BVK_OK);
    CHECK(holds(numbers, 21));
    IS(bvk_history_close(&history), BVK_OK);
}

// A call that ends the protection waits for the copy: nothing is read after its memory is unmapped, and the checkpoint is good.
static void taken_back(bvk_session_t session) {
    for (int how = 0; how < 5; how++) {
        const uint64_t version = 100 + (uint64_t)how;
        double *numbers = mapped(), *other = mapped();
        protect(session, numbers);
        fill(numbers, version);
        fill(other, 0);
        bvk_pending_t pending = checkpoint(session, version);
        switch (how) {
        case 0: IS(bvk_unprotect(session, "numbers"), BVK_OK); break;
        case 1: IS(bvk_unprotect_all(session), BVK_OK); break;
        case 2: IS(bvk_protect(session, "numbers", other, NUMBERS, BVK_F64), BVK_OK); break;
        case 3:
            IS(bvk_set_live(session, "numbers", 0), BVK_OK);
            IS(bvk_unprotect(session, "numbers"), BVK_OK);
            break;
        default: IS(bvk_settle(session), BVK_OK);
        }
        unmapped(numbers);
        reaches(pending);
        IS(bvk_protect(session, "numbers", other, NUMBERS, BVK_F64), BVK_OK);
        IS(bvk_restore(session, "live", version, NULL), BVK_OK);
        CHECK(holds(other, version));
        IS(bvk_unprotect(session, "numbers"), BVK_OK);
        unmapped(other);
    }
}

// A region that is protected again, in the same place or elsewhere, stays live; one whose name was removed does not.
static void stays_live(bvk_session_t session, double *numbers) {
    bvk_stats before = BVK_STATS_INIT, stats = BVK_STATS_INIT;
    double *other = mapped();
    protect(session, numbers);
    fill(numbers, 1);
    IS(bvk_protect(session, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
    IS(bvk_get_stats(session, &before), BVK_OK);
    reaches(checkpoint(session, 200));
    IS(bvk_protect(session, "numbers", other, NUMBERS, BVK_F64), BVK_OK);
    reaches(checkpoint(session, 201));
    IS(bvk_unprotect(session, "numbers"), BVK_OK);
    IS(bvk_protect(session, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
    reaches(checkpoint(session, 202));
    IS(bvk_get_stats(session, &stats), BVK_OK);
    CHECK(stats.live_regions + stats.live_at_once == before.live_regions + before.live_at_once + 2);
    unmapped(other);
}

int main(int argc, char **argv) {
    int provided, ranks;
    bvk_session_t session = NULL;
    bvk_stats stats = BVK_STATS_INIT;
    unsigned long long mine[4], all[4];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    is_declared = argc > 1 && strcmp(argv[1], "declared") == 0;
    double *numbers = mapped();
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    refusals(session, numbers);
    overwritten(session, numbers);
    IS(bvk_get_stats(session, &stats), BVK_OK);
    CHECK(stats.live_regions + stats.live_at_once == VERSIONS);
    CHECK(stats.live_bytes == stats.live_regions * NUMBERS * sizeof(double));
    CHECK(stats.live_waited_bytes <= stats.live_bytes && stats.live_declared_bytes <= 2 * stats.live_bytes);
    CHECK(stats.unaudited == (is_declared ? VERSIONS : 0) && stats.live_wait_total_s >= 0);
    mine[0] = stats.live_regions;
    mine[1] = stats.live_at_once;
    mine[2] = stats.live_waited_bytes;
    mine[3] = stats.live_declared_bytes;
    written_by_the_library(session, numbers);
    taken_back(session);
    stays_live(session, numbers);

    // The session is closed while the region is being copied, and the memory is freed afterwards.
    IS(bvk_set_live(session, "numbers", 1), BVK_OK);
    fill(numbers, 300);
    bvk_pending_t last = checkpoint(session, 300);
    IS(bvk_close(&session), BVK_OK);
    unmapped(numbers);
    IS(bvk_release(&last), BVK_OK);
    numbers = mapped();
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    IS(bvk_protect(session, "numbers", numbers, NUMBERS, BVK_F64), BVK_OK);
    IS(bvk_restore(session, "live", 300, NULL), BVK_OK);
    CHECK(holds(numbers, 300));
    // All of it is overwritten at once.
    IS(bvk_set_live(session, "numbers", 1), BVK_OK);
    fill(numbers, 301);
    last = checkpoint(session, 301);
    overwrite(session, NULL, numbers, ALL);
    reaches(last);
    IS(bvk_restore(session, "live", 301, NULL), BVK_OK);
    CHECK(holds(numbers, 301));
    IS(bvk_close(&session), BVK_OK);
    unmapped(numbers);

    MPI_Reduce(mine, all, 4, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("ok\nranks=%d regions=%llu at_once=%llu waited=%llu declared=%llu\n", ranks, all[0], all[1], all[2], all[3]);
    }
    MPI_Finalize();
    return 0;
}
