// Every function of include/bivouac.h, including its mistakes. tests/mpi_c.rs runs it on two ranks; rank 0 prints `ok` at the end.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bvk_check.h"
#include "ready.h"

static int ranks;

enum { N = 5000 };
static double field[N];
static int32_t few[3];

static void set(double value) {
    for (int at = 0; at < N; at++) field[at] = value + rank * 1000.0 + at;
    for (int at = 0; at < 3; at++) few[at] = (int32_t)value * 10 + at + rank;
}

static int is(double value) {
    for (int at = 0; at < N; at++) {
        if (field[at] != value + rank * 1000.0 + at) return 0;
    }
    for (int at = 0; at < 3; at++) {
        if (few[at] != (int32_t)value * 10 + at + rank) return 0;
    }
    return 1;
}

static void protect(bvk_session_t session) {
    IS(bvk_protect(session, "field", field, N, BVK_F64), BVK_OK);
    IS(bvk_protect_id(session, 7, few, 3, BVK_I32), BVK_OK);
}

// The initializers set the size and nothing else.
static void initialisers(void) {
    bvk_options options = BVK_OPTIONS_INIT;
    bvk_region region = BVK_REGION_INIT;
    bvk_stats stats = BVK_STATS_INIT;
    bvk_report report = BVK_REPORT_INIT;
    bvk_restored restored = BVK_RESTORED_INIT;
    CHECK(options.size == sizeof options && region.size == sizeof region && stats.size == sizeof stats);
    CHECK(report.size == sizeof report && restored.size == sizeof restored);
    CHECK(!options.settings && !region.shape && stats.blocked_total_s == 0 && !report.reason[511] && !restored.level);
}

// Calls that need no session.
static void alone(void) {
    CHECK(strlen(bvk_version()) >= 5);
    CHECK(!strcmp(bvk_status_name(BVK_AGAIN), "BVK_AGAIN"));
    for (int status = BVK_ERR_INTERNAL; status <= BVK_NOTHING; status++) CHECK(!strncmp(bvk_status_name(status), "BVK_", 4));
    CHECK(!strcmp(bvk_status_name(99), "unknown status"));
    IS(bvk_log(-1), BVK_ERR_ARGUMENT);
    IS(bvk_log(6), BVK_ERR_ARGUMENT);
    IS(bvk_log(0), BVK_OK);
    IS(bvk_log(2), BVK_OK);
    CHECK(strstr(bvk_error(), "log level") != NULL);
}

// Handles that are not valid.
static void without_session(void) {
    bvk_session_t none = NULL, wild = (bvk_session_t)(void *)field;
    uint64_t number;
    size_t count;
    int word;
    bvk_stats stats = BVK_STATS_INIT;
    bvk_report report = BVK_REPORT_INIT;
    bvk_session_t wrong[2] = {none, wild};
    for (int at = 0; at < 2; at++) {
        bvk_session_t session = wrong[at];
        bvk_checkpoint_t checkpoint = NULL;
        bvk_restart_t restart = NULL;
        bvk_history_t history = NULL;
        IS(bvk_generation(session, &number), BVK_ERR_HANDLE);
        IS(bvk_protect(session, "a", field, 1, BVK_F64), BVK_ERR_HANDLE);
        IS(bvk_protect_id(session, 1, field, 1, BVK_F64), BVK_ERR_HANDLE);
        IS(bvk_protect_many(session, NULL, 0), BVK_ERR_HANDLE);
        IS(bvk_unprotect(session, "a"), BVK_ERR_HANDLE);
        IS(bvk_unprotect_id(session, 1), BVK_ERR_HANDLE);
        IS(bvk_unprotect_all(session), BVK_ERR_HANDLE);
        IS(bvk_set_stream(session, NULL), BVK_ERR_HANDLE);
        word = 5;
        IS(bvk_should_checkpoint(session, &word), BVK_ERR_HANDLE);
        CHECK(word == 0);
        IS(bvk_should_exit(session, &word), BVK_ERR_HANDLE);
        IS(bvk_prepare(session, 1), BVK_ERR_HANDLE);
        IS(bvk_progress(session), BVK_ERR_HANDLE);
        IS(bvk_pin(session, BVK_PIN_COMPACT), BVK_ERR_HANDLE);
        IS(bvk_set_affinity(session, BVK_AFFINITY_FULL), BVK_ERR_HANDLE);
        IS(bvk_get_stats(session, &stats), BVK_ERR_HANDLE);
        IS(bvk_next_report(session, &report), BVK_ERR_HANDLE);
        IS(bvk_checkpoint(session, "a", 1, NULL), BVK_ERR_HANDLE);
        IS(bvk_begin_checkpoint(session, "a", 1, &checkpoint), BVK_ERR_HANDLE);
        IS(bvk_save(checkpoint, "a", field, 1, BVK_F64), BVK_ERR_HANDLE);
        IS(bvk_save_protected(checkpoint), BVK_ERR_HANDLE);
        IS(bvk_save_history(checkpoint, history), BVK_ERR_HANDLE);
        IS(bvk_reduce(checkpoint, "a", "tree"), BVK_ERR_HANDLE);
        IS(bvk_capture(&checkpoint, NULL), BVK_ERR_HANDLE);
        IS(bvk_abort(&checkpoint), BVK_OK);
        IS(bvk_abort(NULL), BVK_OK);
        IS(bvk_restore(session, "a", BVK_NEWEST, NULL), BVK_ERR_HANDLE);
        IS(bvk_begin_restore(session, "a", BVK_NEWEST, &restart), BVK_ERR_HANDLE);
        IS(bvk_saved_version(restart, &number), BVK_ERR_HANDLE);
        IS(bvk_region_size(restart, "a", NULL, NULL), BVK_ERR_HANDLE);
        IS(bvk_load(restart, "a", field, 1, BVK_F64), BVK_ERR_HANDLE);
        IS(bvk_load_protected(restart), BVK_ERR_HANDLE);
        IS(bvk_load_history(restart, history, NULL), BVK_ERR_HANDLE);
        IS(bvk_end_restore(&restart, 1, NULL), BVK_ERR_HANDLE);
        IS(bvk_versions(session, "a", &number, 1, &count), BVK_ERR_HANDLE);
        IS(bvk_history_open(session, "h", BVK_NO_GPU, BVK_KEEP_ALL, &history), BVK_ERR_HANDLE);
        IS(bvk_history_field(history, "a", field, 1, BVK_F64), BVK_ERR_HANDLE);
        IS(bvk_history_clear_fields(history), BVK_ERR_HANDLE);
        IS(bvk_history_append(history, 1), BVK_ERR_HANDLE);
        IS(bvk_history_restore(history, 1), BVK_ERR_HANDLE);
        IS(bvk_history_hint(history, &number, 1), BVK_ERR_HANDLE);
        IS(bvk_history_start_prefetch(history), BVK_ERR_HANDLE);
        IS(bvk_history_wait_flushed(history), BVK_ERR_HANDLE);
        IS(bvk_history_close(&history), BVK_OK);
        IS(bvk_history_close(NULL), BVK_OK);
        bvk_write_set_t set = NULL;
        const void *data = field;
        IS(bvk_offload(session, BVK_NO_GPU, 0), BVK_ERR_HANDLE);
        IS(bvk_before_write(session, field, 8), BVK_ERR_HANDLE);
        IS(bvk_before_write_on(session, field, 8, NULL), BVK_ERR_HANDLE);
        IS(bvk_write_set(session, "a", &data, &number, 1, &set), BVK_ERR_HANDLE);
        IS(bvk_before(set), BVK_ERR_HANDLE);
        IS(bvk_before_on(set, NULL), BVK_ERR_HANDLE);
        IS(bvk_write_set_close(&set), BVK_OK);
        IS(bvk_write_set_close(NULL), BVK_OK);
        IS(bvk_set_live(session, "a", 1), BVK_ERR_HANDLE);
        IS(bvk_settle(session), BVK_ERR_HANDLE);
        IS(bvk_allow_marks(session), BVK_ERR_HANDLE);
    }
    bvk_pending_t pending = NULL;
    IS(bvk_poll(pending, &word), BVK_ERR_HANDLE);
    IS(bvk_level(pending, &word), BVK_ERR_HANDLE);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_ERR_HANDLE);
    IS(bvk_release(&pending), BVK_OK);
    IS(bvk_release(NULL), BVK_OK);
    IS(bvk_close(&none), BVK_OK);
    IS(bvk_close(NULL), BVK_OK);
    IS(bvk_close(&wild), BVK_ERR_HANDLE);
}

// Mistakes at opening, on one rank or on all: the answer is the same everywhere, and nobody waits for ever.
static void bad_openings(void) {
    bvk_session_t session = (bvk_session_t)(void *)field;
    bvk_options options = BVK_OPTIONS_INIT;
    options.config_text = rank == 1 ? "[global]\nkeep_lsat = 3\n" : "";
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_ERR_OPEN);
    CHECK(strstr(bvk_error(), "rank 1") && strstr(bvk_error(), "did you mean global.keep_last?"));
    const char *settings[] = {"global.keep_last=4", "global.keep_last", NULL};
    options.config_text = NULL;
    options.settings = settings;
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_ERR_OPEN);
    CHECK(strstr(bvk_error(), "section.key=value"));
    settings[1] = "global.keep_alst=2";
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_ERR_OPEN);
    options.settings = NULL;
    options.config_file = "/there/is/no/such/file.toml";
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_ERR_OPEN);
    CHECK(strstr(bvk_error(), "/there/is/no/such/file.toml"));
    options.config_text = "";
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_ERR_OPEN);
    options.size = 3;
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_ERR_OPEN);
    CHECK(strstr(bvk_error(), "sizeof(bvk_options)"));
    // One rank gives no pointer for the handle.
    IS(bvk_open(MPI_COMM_WORLD, NULL, rank == 0 ? NULL : &session), BVK_ERR_OPEN);
    IS(bvk_open(MPI_COMM_NULL, NULL, &session), BVK_ERR_MPI);
    IS(bvk_open_f(MPI_Comm_c2f(MPI_COMM_NULL), NULL, &session), BVK_ERR_MPI);
    CHECK(session == NULL);
}

static bvk_session_t reopen(void) {
    bvk_session_t session = NULL;
    bvk_options options = BVK_OPTIONS_INIT;
    const char *settings[] = {"global.keep_last=10", "interval.steps=2", "reduction.method=basic", NULL};
    options.settings = settings;
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_OK);
    return session;
}

static int says(const char *text) { return strstr(bvk_error(), text) != NULL; }

// A second session of the same job and group. The error says that this process has the first one, so nobody has to look for another.
static void twice(void) {
    bvk_session_t second = NULL;
    IS(bvk_open(MPI_COMM_WORLD, NULL, &second), BVK_ERR_OPEN);
    CHECK(says("this process (process ") && says("open already") && says("Close it first") && says("job.group"));
    CHECK(second == NULL && !says("another run"));
}

// Lists of regions: either all or none are protected.
static void many(bvk_session_t session) {
    enum { MANY = 10000 };
    static char names[MANY][16];
    static bvk_region list[MANY];
    static uint16_t numbers[MANY];
    const bvk_region none = BVK_REGION_INIT;
    uint64_t shape[2] = {2, 3};
    for (int at = 0; at < MANY; at++) {
        snprintf(names[at], sizeof names[at], "list %d", at);
        list[at] = none;
        list[at].name = names[at];
        list[at].data = &numbers[at];
        list[at].count = 1;
        list[at].kind = BVK_U16;
        numbers[at] = (uint16_t)(at + rank);
    }
    list[0].name = "shaped";
    list[0].dimensions = 2;
    list[0].shape = shape;
    IS(bvk_protect_many(session, list, 0), BVK_OK);
    IS(bvk_protect_many(session, NULL, 0), BVK_OK);
    IS(bvk_protect_many(session, NULL, 2), BVK_ERR_ARGUMENT);
    // One region is invalid, so none is protected.
    list[7].kind = 99;
    IS(bvk_protect_many(session, list, MANY), BVK_ERR_ARGUMENT);
    CHECK(says("entry 7") && says("list 7") && says("99"));
    list[7].kind = BVK_U16;
    list[8].name = names[7];
    IS(bvk_protect_many(session, list, MANY), BVK_ERR_REGION);
    CHECK(says("entry 8") && says("twice"));
    list[8].name = NULL;
    IS(bvk_protect_many(session, list, MANY), BVK_ERR_ARGUMENT);
    list[8].name = names[8];
    list[9].size = 8;
    IS(bvk_protect_many(session, list, MANY), BVK_ERR_ARGUMENT);
    CHECK(says("entry 9") && says("size is 8"));
    list[9].size = sizeof list[9];
    IS(bvk_unprotect(session, "shaped"), BVK_ERR_ARGUMENT);
    IS(bvk_unprotect(session, "list 6"), BVK_ERR_ARGUMENT);
    // Now all are protected, and replace a region of the same name.
    IS(bvk_unprotect_all(session), BVK_OK);
    protect(session);
    IS(bvk_protect(session, "list 5", field, 3, BVK_F64), BVK_OK);
    IS(bvk_protect_many(session, list, MANY), BVK_OK);
    IS(bvk_checkpoint(session, "list", 1, NULL), BVK_OK);
    for (int at = 0; at < MANY; at++) numbers[at] = 0;
    IS(bvk_restore(session, "list", BVK_NEWEST, NULL), BVK_OK);
    for (int at = 0; at < MANY; at++) CHECK(numbers[at] == (uint16_t)(at + rank));
    IS(bvk_unprotect_all(session), BVK_OK);
}

// Names of any length and lists of any number: an error says how much it leaves out.
static void long_texts(bvk_session_t session) {
    static char name[5001];
    memset(name, 'x', 5000);
    IS(bvk_protect(session, name, field, 1, BVK_F64), BVK_ERR_REGION);
    CHECK(says("(4940 more characters)") && says("use 1 to 256 bytes") && strlen(bvk_error()) < 400);
    IS(bvk_protect(session, name, field, 1, 99), BVK_ERR_ARGUMENT);
    IS(bvk_unprotect(session, name), BVK_ERR_ARGUMENT);
    CHECK(says("more characters)") && says("is protected") && strlen(bvk_error()) < 2500);
    bvk_restart_t restart = NULL;
    IS(bvk_begin_restore(session, "list", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_region_size(restart, name, NULL, NULL), BVK_ERR_LOAD);
    CHECK(says("(4940 more characters)") && says("it has: field, #7, list 5, shaped") && says(", and 9992 more") && strlen(bvk_error()) < 400);
    IS(bvk_load(restart, "nobody", field, 1, BVK_F64), BVK_ERR_LOAD);
    IS(bvk_end_restore(&restart, 0, NULL), BVK_ERR_RESTART);
    CHECK(says("nobody") && says(", and 9992 more") && strlen(bvk_error()) < 400);
}

// Mistakes in regions.
static void regions(bvk_session_t session) {
    uint64_t shape[2] = {50, 100}, wrong[2] = {50, 101}, huge[2] = {UINT64_MAX, 3};
    IS(bvk_protect(session, NULL, field, 1, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect(session, "", field, 1, BVK_F64), BVK_ERR_REGION);
    IS(bvk_protect(session, ".bivouac/mine", field, 1, BVK_F64), BVK_ERR_REGION);
    IS(bvk_protect(session, "\xff\xfe", field, 1, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect(session, "a", NULL, 1, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect(session, "a", field, 1, 0), BVK_ERR_ARGUMENT);
    IS(bvk_protect(session, "a", field, 1, 11), BVK_ERR_ARGUMENT);
    IS(bvk_protect(session, "a", field, UINT64_MAX / 4, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect_shaped(session, "a", field, BVK_F64, 2, huge), BVK_ERR_ARGUMENT);
    IS(bvk_protect_shaped(session, "a", field, BVK_F64, -1, shape), BVK_ERR_ARGUMENT);
    IS(bvk_protect_shaped(session, "a", field, BVK_F64, 2, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_protect_shaped(session, "a", field, BVK_F64, 2, wrong), BVK_OK);
    IS(bvk_protect_shaped(session, "a", field, BVK_F64, 2, shape), BVK_OK);
    IS(bvk_protect(session, "nothing", NULL, 0, BVK_U8), BVK_OK);
    IS(bvk_protect(session, "records", field, 10, BVK_RECORD(24)), BVK_OK);
    IS(bvk_unprotect(session, "b"), BVK_ERR_ARGUMENT);
    IS(bvk_unprotect(session, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_unprotect(session, "a"), BVK_OK);
    IS(bvk_unprotect_id(session, 7), BVK_ERR_ARGUMENT);
    IS(bvk_unprotect_all(session), BVK_OK);
    IS(bvk_unprotect(session, "records"), BVK_ERR_ARGUMENT);
}

static void reports_until(bvk_session_t session, uint64_t version, int level, int committed) {
    bvk_report report = BVK_REPORT_INIT;
    for (;;) {
        int status = bvk_next_report(session, &report);
        CHECK(status == BVK_OK || status == BVK_NOTHING);
        if (status == BVK_OK && report.version == version && report.level == level) break;
    }
    CHECK(!strcmp(report.name, "heat") && report.committed == committed);
    CHECK((strlen(report.reason) == 0) == (committed == 1));
}

static void checkpoints(bvk_session_t session) {
    bvk_pending_t pending = NULL;
    int word = -1, finished = 0;
    protect(session);
    IS(bvk_prepare(session, sizeof field), BVK_OK);
    IS(bvk_set_stream(session, NULL), BVK_OK);
    set(1);
    IS(bvk_checkpoint(session, "heat", 1, &pending), BVK_OK);
    set(-1);
    IS(bvk_wait(pending, 9, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_wait(pending, BVK_LEVEL_SYSTEM, &word), BVK_OK);
    CHECK(word == BVK_LEVEL_SYSTEM);
    IS(bvk_level(pending, &word), BVK_OK);
    CHECK(word == BVK_LEVEL_SYSTEM);
    while (!finished) IS(bvk_poll(pending, &finished), BVK_OK);
    IS(bvk_poll(pending, NULL), BVK_ERR_ARGUMENT);
    bvk_pending_t again = pending;
    IS(bvk_release(&pending), BVK_OK);
    CHECK(pending == NULL);
    IS(bvk_release(&again), BVK_ERR_HANDLE);
    reports_until(session, 1, BVK_LEVEL_SYSTEM, 1);

    // A name that cannot be used, on one rank only: that rank votes no, the others hear of it, and the operation numbers stay in step.
    int status = bvk_checkpoint(session, rank == 1 ? NULL : "heat", 2, NULL);
    CHECK(rank == 1 ? status == BVK_ERR_REGION : status == BVK_OK);
    if (rank == 0) reports_until(session, 2, BVK_LEVEL_CAPTURED, 0);

    // Two checkpoints are open at the same time, step by step; one rank gives up one of them.
    bvk_checkpoint_t first = NULL, second = NULL;
    double other[2] = {2.5, rank};
    set(3);
    IS(bvk_begin_checkpoint(session, "heat", 3, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_begin_checkpoint(session, "heat", 3, &first), BVK_OK);
    IS(bvk_begin_checkpoint(session, "heat", 4, &second), BVK_OK);
    IS(bvk_save(first, "other", other, 2, BVK_F64), BVK_OK);
    IS(bvk_save(first, "other", other, 2, BVK_F64), BVK_ERR_REGION);
    IS(bvk_save(first, "bad", NULL, 2, BVK_F64), BVK_ERR_ARGUMENT);
    uint64_t shape[2] = {1, 2};
    IS(bvk_save_shaped(first, "shaped", other, BVK_F64, 2, shape), BVK_OK);
    // Held data may be overwritten; the region may be held again, with the same shape.
    double early[2] = {1.5, rank};
    IS(bvk_save(first, "early", early, 2, BVK_F64), BVK_OK);
    IS(bvk_save(first, "again", early, 2, BVK_F64), BVK_OK);
    IS(bvk_hold(first), BVK_OK);
    early[0] = 3.5;
    IS(bvk_save(first, "again", early, 2, BVK_F64), BVK_OK);
    IS(bvk_hold(first), BVK_OK);
    IS(bvk_hold(first), BVK_OK);
    IS(bvk_save(first, "again", early, 1, BVK_F64), BVK_ERR_REGION);
    early[0] = early[1] = -1;
    // A region that is saved again but not held again is taken as it is at the capture.
    IS(bvk_save(first, "last", early, 2, BVK_F64), BVK_OK);
    IS(bvk_hold(first), BVK_OK);
    early[1] = -2;
    IS(bvk_save(first, "last", early, 2, BVK_F64), BVK_OK);
    IS(bvk_save_protected(first), BVK_OK);
    IS(bvk_save_protected(first), BVK_OK);
    // Only the regions that are protected at the capture count.
    IS(bvk_protect(session, "gone", field, N, BVK_F64), BVK_OK);
    IS(bvk_unprotect(session, "gone"), BVK_OK);
    IS(bvk_capture(&first, &pending), BVK_OK);
    CHECK(first == NULL);
    IS(bvk_save_protected(second), BVK_OK);
    // A protected region does not replace a held one.
    bvk_checkpoint_t third = NULL;
    IS(bvk_begin_checkpoint(session, "heat", 8, &third), BVK_OK);
    IS(bvk_save(third, "field", early, 2, BVK_F64), BVK_OK);
    IS(bvk_hold(third), BVK_OK);
    IS(bvk_save_protected(third), BVK_OK);
    IS(bvk_capture(&third, NULL), BVK_ERR_REGION);
    bvk_checkpoint_t ended = second;
    if (rank == 0) IS(bvk_abort(&second), BVK_OK);
    else IS(bvk_capture(&second, NULL), BVK_OK);
    CHECK(second == NULL);
    IS(bvk_save(ended, "late", other, 2, BVK_F64), BVK_ERR_HANDLE);
    IS(bvk_capture(&ended, NULL), BVK_ERR_HANDLE);
    IS(bvk_wait(pending, BVK_LEVEL_SYSTEM, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    // The rank that gave up knows so already.
    if (rank == 1) reports_until(session, 4, BVK_LEVEL_CAPTURED, 0);

    // The number that means the newest version cannot be taken, and the old handle is cleared.
    bvk_pending_t none = pending;
    IS(bvk_checkpoint(session, "heat", BVK_NEWEST, &none), BVK_ERR_ARGUMENT);
    CHECK(none == NULL);
    // Neither can -2, as Fortran would pass it.
    IS(bvk_checkpoint(session, "heat", (uint64_t)-2, &none), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "-2"));

    // Waiting ends if another rank made a mistake.
    IS(bvk_checkpoint(session, rank == 0 ? "" : "heat", 5, &pending), rank == 0 ? BVK_ERR_REGION : BVK_OK);
    if (rank == 1) {
        IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_ERR_NOT_COMMITTED);
        CHECK(strstr(bvk_error(), "rank 0"));
        IS(bvk_release(&pending), BVK_OK);
    }
}

// Regions that are written and read as files of the C library, and regions that are streamed without files.
static void streams(bvk_session_t session) {
    enum { LINES = 200000 };
    bvk_checkpoint_t checkpoint = NULL;
    bvk_pending_t pending = NULL;
    double few[3] = {1.5, rank, 2.5};
    CHECK(bvk_fopen(NULL, "text") == NULL && strstr(bvk_error(), "NULL"));
    IS(bvk_begin_checkpoint(session, "streams", 1, &checkpoint), BVK_OK);
    IS(bvk_save(checkpoint, "few", few, 3, BVK_F64), BVK_OK);
    CHECK(bvk_fopen(checkpoint, "few") == NULL && strstr(bvk_error(), "twice"));
    CHECK(bvk_fopen(checkpoint, NULL) == NULL);
    IS(bvk_stream_write(checkpoint, few, 8), BVK_ERR_STATE);
    IS(bvk_stream_end(checkpoint), BVK_ERR_STATE);
    FILE *file = bvk_fopen(checkpoint, "text");
    CHECK(file != NULL);
    CHECK(bvk_fopen(checkpoint, "other") == NULL && strstr(bvk_error(), "another region"));
    for (int line = 0; line < LINES + rank; line++) CHECK(fprintf(file, "line %d\n", line) > 0);
    CHECK(fclose(file) == 0);
    IS(bvk_stream_begin(checkpoint, "plain"), BVK_OK);
    IS(bvk_stream_write(checkpoint, NULL, 8), BVK_ERR_ARGUMENT);
    IS(bvk_stream_write(checkpoint, NULL, 0), BVK_OK);
    for (int at = 0; at < 3; at++) IS(bvk_stream_write(checkpoint, few + at, 8), BVK_OK);
    IS(bvk_stream_end(checkpoint), BVK_OK);
    few[0] = 99;
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);

    bvk_restart_t restart = NULL;
    IS(bvk_begin_restore(session, "streams", BVK_NEWEST, &restart), BVK_OK);
    CHECK(bvk_fopen_saved(restart, "nobody") == NULL && strstr(bvk_error(), "nobody"));
    file = bvk_fopen_saved(restart, "text");
    CHECK(file != NULL);
    int found = 0, line = 0;
    while (fscanf(file, "line %d\n", &found) == 1) CHECK(found == line++);
    CHECK(line == LINES + rank && feof(file));
    CHECK(fseek(file, 5, SEEK_SET) == 0 && fgetc(file) == '0');
    CHECK(fseek(file, -2, SEEK_END) == 0 && fgetc(file) == '0' + (LINES + rank - 1) % 10 && ftell(file) > 0);
    CHECK(fputc('x', file) == EOF);
    double back[3] = {0, 0, 0};
    uint64_t bytes = 0;
    IS(bvk_stream_read(restart, "plain", 8, back, 24, &bytes), BVK_OK);
    CHECK(bytes == 16 && back[0] == rank && back[1] == 2.5);
    IS(bvk_stream_read(restart, "plain", 24, back, 8, &bytes), BVK_OK);
    CHECK(bytes == 0);
    IS(bvk_stream_read(restart, "few", 0, back, 8, &bytes), BVK_OK);
    CHECK(bytes == 8 && back[0] == 99);
    IS(bvk_stream_read(restart, "few", 0, NULL, 8, &bytes), BVK_ERR_ARGUMENT);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    // The restart has ended: reading fails, and closing does not.
    rewind(file);
    CHECK(fgetc(file) == EOF && ferror(file) && fclose(file) == 0);

    // A file that is still open is not a region: the capture is refused, and closing the file later fails.
    IS(bvk_begin_checkpoint(session, "streams", 2, &checkpoint), BVK_OK);
    file = bvk_fopen(checkpoint, "open");
    CHECK(file != NULL && fputs("words", file) >= 0);
    IS(bvk_capture(&checkpoint, NULL), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "still being written") && fclose(file) != 0);
    IS(bvk_begin_checkpoint(session, "streams", 3, &checkpoint), BVK_OK);
    file = bvk_fopen(checkpoint, "given up");
    CHECK(file != NULL);
    IS(bvk_abort(&checkpoint), BVK_OK);
    CHECK(fputs("words", file) >= 0 && fclose(file) != 0);
}

// Routes a file on a rank where that is possible. The checkpoint is not committed, because another rank has no file.
static void route_in_vain(bvk_checkpoint_t checkpoint) {
    bvk_pending_t pending = NULL;
    const char *path = NULL;
    IS(bvk_route(checkpoint, "dump", &path), BVK_OK);
    FILE *file = fopen(path, "w");
    CHECK(file && fclose(file) == 0);
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    CHECK(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL) == BVK_ERR_NOT_COMMITTED && strstr(bvk_error(), "dump"));
    IS(bvk_release(&pending), BVK_OK);
}

// Regions that are files written by the program itself.
static void files(bvk_session_t session) {
    bvk_checkpoint_t checkpoint = NULL;
    bvk_pending_t pending = NULL;
    bvk_restart_t restart = NULL;
    const char *path = NULL, *again = NULL;
    char line[64];
    IS(bvk_begin_checkpoint(session, "files", 1, &checkpoint), BVK_OK);
    IS(bvk_route(checkpoint, NULL, &path), BVK_ERR_ARGUMENT);
    IS(bvk_route(checkpoint, "dump", NULL), BVK_ERR_ARGUMENT);
    IS(bvk_route(NULL, "dump", &path), BVK_ERR_HANDLE);
    IS(bvk_route(checkpoint, "dump", &path), BVK_OK);
    FILE *file = fopen(path, "w");
    CHECK(file && fprintf(file, "rank %d\n", rank) > 0 && fclose(file) == 0);
    IS(bvk_route(checkpoint, "dump", &again), BVK_OK);
    CHECK(strcmp(path, again) == 0);
    IS(bvk_save(checkpoint, "number", &rank, 1, BVK_I32), BVK_OK);
    IS(bvk_route(checkpoint, "number", &again), BVK_ERR_REGION);
    char kept[512];
    snprintf(kept, sizeof kept, "%s", path);
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    CHECK(fopen(kept, "r") == NULL);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    // One rank has not written its file: there is no version, and that rank hears why.
    IS(bvk_begin_checkpoint(session, "files", 2, &checkpoint), BVK_OK);
    IS(bvk_route(checkpoint, "dump", &path), BVK_OK);
    snprintf(kept, sizeof kept, "%s", path);
    if (rank != ranks - 1) {
        route_in_vain(checkpoint);
    } else {
        IS(bvk_capture(&checkpoint, &pending), BVK_ERR_CAPTURE);
        CHECK(strstr(bvk_error(), "-dump was not saved"));
    }
    // One rank can have no file there: no version lacks it.
    char folder[600], taken[800];
    const char *number = strstr(kept, "/files-2/");
    CHECK(number != NULL);
    snprintf(folder, sizeof folder, "%.*s/files-3", (int)(number - kept), kept);
    snprintf(taken, sizeof taken, "%s/%s", folder, number + strlen("/files-2/"));
    if (rank == ranks - 1) CHECK(mkdir(folder, 0700) == 0 && mkdir(taken, 0700) == 0);
    IS(bvk_begin_checkpoint(session, "files", 3, &checkpoint), BVK_OK);
    if (rank != ranks - 1) {
        route_in_vain(checkpoint);
    } else {
        IS(bvk_route(checkpoint, "dump", &path), BVK_ERR_CAPTURE);
        IS(bvk_capture(&checkpoint, &pending), BVK_ERR_CAPTURE);
        // The folder has been removed with everything in it.
        CHECK(strstr(bvk_error(), "dump") && rmdir(folder) != 0);
    }

    IS(bvk_begin_restore(session, "files", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_route_saved(restart, "nobody", &path), BVK_ERR_LOAD);
    IS(bvk_route_saved(restart, "dump", &path), BVK_OK);
    file = fopen(path, "r");
    int found = -1;
    CHECK(file && fgets(line, sizeof line, file) && sscanf(line, "rank %d", &found) == 1 && found == rank && fclose(file) == 0);
    IS(bvk_route_saved(restart, "dump", &again), BVK_OK);
    CHECK(strcmp(path, again) == 0);
    snprintf(kept, sizeof kept, "%s", path);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    CHECK(fopen(kept, "r") == NULL);
}

// Output files that grow while checkpoints are taken; the root writes one.
static void companions(bvk_session_t session) {
    char given[512], line[64] = "";
    const char *path = NULL;
    uint64_t step = 1;
    snprintf(given, sizeof given, "%s/energy-%d.csv", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    const char *own = rank == 0 ? given : NULL;
    if (own) remove(own);
    IS(bvk_companion(session, "energies", own, 7), BVK_ERR_ARGUMENT);
    IS(bvk_companion(session, "energies", rank == ranks - 1 ? "/" : own, BVK_RESTART_TRUNCATE), BVK_ERR_DISAGREED);
    CHECK(strstr(bvk_error(), "is not a file"));
    IS(bvk_companion(session, "energies", own, BVK_RESTART_TRUNCATE), BVK_OK);
    IS(bvk_companion_path(session, "energies", "elsewhere", &path), BVK_ERR_ARGUMENT);
    if (own) {
        IS(bvk_companion_path(session, "energies", own, &path), BVK_OK);
        CHECK(strcmp(path, own) == 0);
    }
    bvk_checkpoint_t checkpoint = NULL;
    for (step = 1; step <= 2; step++) {
        FILE *file = own ? fopen(own, "a") : NULL;
        if (file) CHECK(fprintf(file, "step %d\n", (int)step) > 0 && fclose(file) == 0);
        IS(bvk_begin_checkpoint(session, "energies", step, &checkpoint), BVK_OK);
        IS(bvk_save_shared(checkpoint, "step", &step, 1, BVK_U64), BVK_OK);
        bvk_pending_t pending = NULL;
        IS(bvk_capture(&checkpoint, &pending), BVK_OK);
        IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
        IS(bvk_release(&pending), BVK_OK);
    }
    for (uint64_t version = 2; version >= 1; version--) {
        bvk_restart_t restart = NULL;
        IS(bvk_begin_restore(session, "energies", version, &restart), BVK_OK);
        IS(bvk_load_shared(restart, "step", &step, 1, BVK_U64), BVK_OK);
        IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
        CHECK(step == version);
        FILE *file = own ? fopen(own, "r") : NULL;
        int lines = 0;
        while (file && fgets(line, sizeof line, file)) lines++;
        if (file) CHECK(lines == (int)version && fclose(file) == 0);
    }
    if (own) remove(own);
}

static void restarts(bvk_session_t session) {
    uint64_t versions[4] = {0}, number = 0;
    size_t count = 0;
    int kind = 0;
    bvk_restored restored = BVK_RESTORED_INIT;
    IS(bvk_versions(session, "heat", versions, 4, &count), BVK_OK);
    CHECK(count == 2 && versions[0] == 3 && versions[1] == 1);
    IS(bvk_versions(session, "heat", NULL, 0, &count), BVK_OK);
    CHECK(count == 2);
    IS(bvk_versions(session, "heat", NULL, 4, &count), BVK_ERR_ARGUMENT);
    IS(bvk_versions(session, "heat", versions, 4, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_restore(session, "no such series", BVK_NEWEST, &restored), BVK_NOTHING);
    set(-1);
    IS(bvk_restore(session, "heat", BVK_NEWEST, &restored), BVK_OK);
    CHECK(is(3) && restored.version == 3 && restored.bytes > 0 && restored.seconds > 0);
    CHECK(restored.level >= BVK_LEVEL_PROCESS && restored.level <= BVK_LEVEL_SYSTEM);
    IS(bvk_restore(session, "heat", 1, NULL), BVK_OK);
    CHECK(is(1));
    // Nothing is protected, but the checkpoint has regions: this mistake would look like a restart.
    IS(bvk_unprotect_all(session), BVK_OK);
    IS(bvk_restore(session, "heat", BVK_NEWEST, NULL), BVK_ERR_RESTART);
    CHECK(strstr(bvk_error(), "nothing is protected") && strstr(bvk_error(), "field"));
    // A warning names the regions that are left out.
    IS(bvk_protect_id(session, 7, few, 3, BVK_I32), BVK_OK);
    IS(bvk_restore(session, "heat", 1, NULL), BVK_OK);
    protect(session);
    IS(bvk_restore(session, "heat", 77, NULL), BVK_ERR_RESTART);
    CHECK(strstr(bvk_error(), "77") && strstr(bvk_error(), "versions that can: 3, 1"));
    IS(bvk_restore(session, rank == 0 ? NULL : "heat", BVK_NEWEST, NULL), rank == 0 ? BVK_ERR_REGION : BVK_ERR_RESTART);

    // If one rank gives a structure without its size, the restart of all ranks ends.
    bvk_restored unset = {.size = rank == 1 ? 1 : sizeof unset};
    IS(bvk_restore(session, "heat", BVK_NEWEST, &unset), BVK_ERR_RESTART);
    CHECK(strstr(bvk_error(), "rank 1") && strstr(bvk_error(), "sizeof(bvk_restored)"));

    // The restart makes attempts: rank 1 refuses the newest version, so all ranks get the next older one.
    bvk_restart_t restart = NULL;
    bvk_checkpoint_t begun = NULL;
    IS(bvk_begin_restore(session, "no such series", BVK_NEWEST, &restart), BVK_NOTHING);
    CHECK(restart == NULL);
    IS(bvk_begin_checkpoint(session, "heat", 9, &begun), BVK_OK);
    IS(bvk_begin_restore(session, "heat", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_checkpoint(session, "heat", 6, NULL), BVK_ERR_STATE);
    IS(bvk_restore(session, "heat", BVK_NEWEST, NULL), BVK_ERR_STATE);
    IS(bvk_should_exit(session, &kind), BVK_ERR_STATE);
    IS(bvk_saved_version(restart, &number), BVK_OK);
    CHECK(number == 3);
    IS(bvk_saved_version(restart, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_region_size(restart, "other", &number, &kind), BVK_OK);
    CHECK(number == 2 && kind == BVK_F64);
    IS(bvk_region_size(restart, "nobody", &number, &kind), BVK_ERR_LOAD);
    CHECK(strstr(bvk_error(), "nobody") && strstr(bvk_error(), "other"));
    double other[2] = {0, 0};
    IS(bvk_load(restart, "other", other, 2, BVK_F64), BVK_OK);
    double held[2];
    IS(bvk_load(restart, "early", held, 2, BVK_F64), BVK_OK);
    CHECK(held[0] == 1.5 && held[1] == rank);
    IS(bvk_load(restart, "again", held, 2, BVK_F64), BVK_OK);
    CHECK(held[0] == 3.5 && held[1] == rank);
    IS(bvk_load(restart, "last", held, 2, BVK_F64), BVK_OK);
    CHECK(held[0] == -1 && held[1] == -2);
    CHECK(other[0] == 2.5 && other[1] == rank);
    // The checkpoint was begun earlier, and calls with it are refused inside the restart: the handle stays.
    IS(bvk_abort(&begun), BVK_ERR_STATE);
    IS(bvk_capture(&begun, NULL), BVK_ERR_STATE);
    CHECK(begun != NULL);
    IS(bvk_load(restart, "other", other, 1, BVK_F64), BVK_ERR_LOAD);
    IS(bvk_load(restart, "other", other, 2, BVK_I64), BVK_ERR_LOAD);
    IS(bvk_load(restart, "other", NULL, 2, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_load_protected(restart), BVK_OK);
    CHECK(is(3));
    IS(bvk_end_restore(&restart, 1, &restored), BVK_OK);
    CHECK(restart == NULL && restored.version == 3);
    IS(bvk_abort(&begun), BVK_OK);
    CHECK(begun == NULL);

    IS(bvk_begin_restore(session, "heat", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_reject(restart, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_load_protected(restart), BVK_OK);
    // One rank rejects the version, so all ranks continue with the next older one: other copies of the version are the same.
    if (rank != 0) IS(bvk_reject(restart, "not a number"), BVK_OK);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_AGAIN);
    IS(bvk_saved_version(restart, &number), BVK_OK);
    CHECK(number == 1);
    IS(bvk_load_protected(restart), BVK_OK);
    CHECK(is(1));
    bvk_restart_t ended = restart;
    IS(bvk_end_restore(&restart, 1, &restored), BVK_OK);
    CHECK(restored.version == 1);
    IS(bvk_load_protected(ended), BVK_ERR_HANDLE);
    IS(bvk_reject(ended, "late"), BVK_ERR_HANDLE);

    // If all versions are rejected, the restart ends with the reason for each.
    IS(bvk_begin_restore(session, "heat", BVK_NEWEST, &restart), BVK_OK);
    int end = BVK_AGAIN;
    for (int tries = 0; end == BVK_AGAIN; tries++) {
        CHECK(tries < 2);
        // It makes no difference whether a rank that rejects a version has loaded it.
        if (rank == 0) IS(bvk_reject(restart, "not a number"), BVK_OK);
        end = bvk_end_restore(&restart, rank != 0, NULL);
    }
    CHECK(end == BVK_ERR_RESTART && restart == NULL && strstr(bvk_error(), "rejected by the program: not a number"));

    // If a rank could not load for a reason of its own, the restart ends on all ranks.
    IS(bvk_begin_restore(session, "heat", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_end_restore(&restart, rank == 0, NULL), BVK_ERR_RESTART);
    CHECK(restart == NULL && strstr(bvk_error(), "has not loaded"));

    // If a region is missing, the restart ends on all ranks: an older version would not have it either.
    IS(bvk_begin_restore(session, "heat", BVK_NEWEST, &restart), BVK_OK);
    int ok = rank == 0 || bvk_load(restart, "nobody", other, 2, BVK_F64) == BVK_OK;
    IS(bvk_end_restore(&restart, ok, NULL), BVK_ERR_RESTART);
    CHECK(restart == NULL && strstr(bvk_error(), "nobody"));
    // One rank gives no pointer for the handle: both ranks hear of it.
    int status = bvk_begin_restore(session, "heat", BVK_NEWEST, rank == 0 ? NULL : &restart);
    if (rank == 0) CHECK(status == BVK_ERR_ARGUMENT);
    else {
        CHECK(status == BVK_OK);
        IS(bvk_end_restore(&restart, 1, NULL), BVK_ERR_RESTART);
    }
}

static void histories(bvk_session_t session) {
    bvk_history_t history = NULL;
    uint64_t order[3] = {3, 2, 1}, count = 0;
    IS(bvk_history_open(session, NULL, BVK_NO_GPU, BVK_KEEP_ALL, &history), BVK_ERR_ARGUMENT);
    IS(bvk_history_open(session, "wave", -7, BVK_KEEP_ALL, &history), BVK_ERR_ARGUMENT);
    IS(bvk_history_open(session, "wave", BVK_NO_GPU, 5, &history), BVK_ERR_ARGUMENT);
    IS(bvk_history_open(session, "wave", BVK_NO_GPU, BVK_KEEP_ALL, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_history_open(session, "wave", BVK_NO_GPU, BVK_KEEP_ALL, &history), BVK_OK);
    IS(bvk_history_field(history, "field", field, N, BVK_F64), BVK_OK);
    IS(bvk_history_field(history, "few", field, 2, BVK_F64), BVK_OK);
    IS(bvk_history_field(history, "few", few, 3, BVK_I32), BVK_OK);
    IS(bvk_history_hint(history, order, 3), BVK_OK);
    IS(bvk_history_hint(history, NULL, 1), BVK_ERR_ARGUMENT);
    for (uint64_t version = 1; version <= 3; version++) {
        set((double)version);
        IS(bvk_history_append(history, version), BVK_OK);
    }
    IS(bvk_history_append(history, 3), BVK_ERR_DEVICE);
    IS(bvk_history_start_prefetch(history), BVK_OK);
    for (int at = 0; at < 3; at++) {
        set(-1);
        IS(bvk_history_restore(history, order[at]), BVK_OK);
        CHECK(is((double)order[at]));
    }
    IS(bvk_history_restore(history, 9), BVK_ERR_DEVICE);
    IS(bvk_history_wait_flushed(history), BVK_OK);

    // The versions of a history are saved in a checkpoint, and loaded into another history of the same name.
    bvk_checkpoint_t checkpoint = NULL;
    bvk_pending_t pending = NULL;
    IS(bvk_begin_checkpoint(session, "adjoint", 1, &checkpoint), BVK_OK);
    IS(bvk_save_history(checkpoint, history), BVK_OK);
    IS(bvk_reduce(checkpoint, "nothing of that name", "basic"), BVK_OK);
    IS(bvk_reduce(checkpoint, "nothing of that name", "Tree"), BVK_ERR_ARGUMENT);
    IS(bvk_reduce(checkpoint, NULL, "tree"), BVK_ERR_ARGUMENT);
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    bvk_history_t old = history;
    IS(bvk_history_close(&history), BVK_OK);
    IS(bvk_history_append(old, 4), BVK_ERR_HANDLE);
    bvk_restart_t restart = NULL;
    IS(bvk_history_open(session, "wave", BVK_NO_GPU, BVK_KEEP_UNTIL_READ, &history), BVK_OK);
    IS(bvk_begin_restore(session, "adjoint", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_history(restart, history, &count), BVK_OK);
    CHECK(count == 3);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    IS(bvk_history_clear_fields(history), BVK_OK);
    IS(bvk_history_field(history, "few", few, 3, BVK_I32), BVK_OK);
    few[1] = -1;
    IS(bvk_history_field(history, "again", few + 1, 1, BVK_I32), BVK_OK);
    IS(bvk_history_restore(history, 2), BVK_ERR_ARGUMENT);
    IS(bvk_history_clear_fields(history), BVK_OK);
    IS(bvk_history_field(history, "few", few, 3, BVK_I32), BVK_OK);
    IS(bvk_history_restore(history, 2), BVK_OK);
    CHECK(few[1] == 21 + rank);
    // The history is left open: the session closes it.
}

// Without a GPU every declaration is accepted, and nothing is marked. Calls before bvk_offload say that it is missing.
static void offloading(bvk_session_t session) {
    bvk_write_set_t writes = (bvk_write_set_t)(void *)field;
    bvk_pending_t pending = NULL;
    bvk_stats stats = BVK_STATS_INIT;
    const void *data[3] = {field, few, NULL};
    const uint64_t bytes[3] = {sizeof field, sizeof few, 0}, wrong[3] = {8, 8, 8};
    IS(bvk_settle(session), BVK_OK);
    IS(bvk_before_write(session, field, sizeof field), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "call bvk_offload first"));
    IS(bvk_before_write_on(session, field, sizeof field, NULL), BVK_ERR_STATE);
    IS(bvk_write_set(session, "advance", data, bytes, 3, &writes), BVK_ERR_STATE);
    CHECK(writes == NULL && strstr(bvk_error(), "call bvk_offload first"));
    IS(bvk_allow_marks(session), BVK_ERR_STATE);
    IS(bvk_offload(session, -7, 0), BVK_ERR_ARGUMENT);
    IS(bvk_offload(session, BVK_NO_GPU, (uint64_t)1 << 50), BVK_ERR_DEVICE);
    CHECK(strstr(bvk_error(), "no node memory for marked shards of") && strstr(bvk_error(), "with 0 bytes nothing is prepared"));
    // The state is as it was before that call.
    IS(bvk_before_write(session, field, sizeof field), BVK_ERR_STATE);
    IS(bvk_offload(session, BVK_NO_GPU, 1 << 20), BVK_OK);
    IS(bvk_offload(session, BVK_NO_GPU, 0), BVK_OK);
    IS(bvk_offload(session, 0, 0), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "already offloads BVK_NO_GPU"));

    IS(bvk_write_set(session, NULL, data, bytes, 3, &writes), BVK_ERR_ARGUMENT);
    IS(bvk_write_set(session, "advance", NULL, bytes, 3, &writes), BVK_ERR_ARGUMENT);
    IS(bvk_write_set(session, "advance", data, NULL, 3, &writes), BVK_ERR_ARGUMENT);
    IS(bvk_write_set(session, "advance", data, bytes, 3, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_write_set(session, "advance", data, wrong, 3, &writes), BVK_ERR_ARGUMENT);
    CHECK(writes == NULL && strstr(bvk_error(), "entry 2 of the list"));
    IS(bvk_write_set(session, "nothing", NULL, NULL, 0, &writes), BVK_OK);
    IS(bvk_before(writes), BVK_OK);
    IS(bvk_write_set_close(&writes), BVK_OK);
    CHECK(writes == NULL);
    IS(bvk_write_set(session, "advance", data, bytes, 3, &writes), BVK_OK);

    protect(session);
    set(5);
    IS(bvk_checkpoint(session, "not marked", 1, &pending), BVK_OK);
    IS(bvk_before_write(session, field, sizeof field), BVK_OK);
    IS(bvk_before_write(session, few, sizeof few), BVK_OK);
    IS(bvk_before_write(session, NULL, 0), BVK_OK);
    IS(bvk_before_write(session, NULL, 8), BVK_ERR_ARGUMENT);
    IS(bvk_before_write(session, field, UINT64_MAX), BVK_ERR_ARGUMENT);
    // The library does not watch this memory.
    IS(bvk_before_write(session, (const void *)(uintptr_t)8, 8), BVK_OK);
    IS(bvk_before_write_on(session, field, sizeof field, NULL), BVK_OK);
    IS(bvk_before(writes), BVK_OK);
    IS(bvk_before_on(writes, NULL), BVK_OK);
    set(-1);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    IS(bvk_restore(session, "not marked", BVK_NEWEST, NULL), BVK_OK);
    CHECK(is(5));
    IS(bvk_settle(session), BVK_OK);
    IS(bvk_allow_marks(session), BVK_OK);
    IS(bvk_get_stats(session, &stats), BVK_OK);
    CHECK(stats.marks == 0 && stats.marks_refused == 0 && stats.marked_bytes == 0 && stats.equal_bytes == 0);
    CHECK(stats.doubled_bytes == 0 && stats.urgent_bytes == 0 && stats.mark_waits == 0 && stats.mark_wait_total_s == 0);
    bvk_write_set_t old = writes;
    IS(bvk_write_set_close(&writes), BVK_OK);
    IS(bvk_before(old), BVK_ERR_HANDLE);
    IS(bvk_before((bvk_write_set_t)(void *)session), BVK_ERR_HANDLE);
    CHECK(strstr(bvk_error(), "set of writes"));
    IS(bvk_write_set(session, "advance", data, bytes, 3, &writes), BVK_OK);
    // The set is left open: the session closes it.
}

static void decisions(bvk_session_t session) {
    int yes = -1, sum = 0;
    IS(bvk_should_checkpoint(session, NULL), BVK_ERR_ARGUMENT);
    for (int at = 0; at < 3; at++) {
        IS(bvk_should_checkpoint(session, &yes), BVK_OK);
        sum += yes;
    }
    CHECK(sum == 2);
    IS(bvk_should_exit(session, &yes), BVK_OK);
    CHECK(yes == 0);
    IS(bvk_pin(session, 9), BVK_ERR_ARGUMENT);
    IS(bvk_pin(session, BVK_PIN_LAUNCHER), BVK_OK);
    IS(bvk_set_affinity(session, 9), BVK_ERR_ARGUMENT);
    IS(bvk_set_affinity(session, BVK_AFFINITY_CAPTURE), BVK_OK);
    IS(bvk_progress(session), BVK_OK);
    uint64_t generation = 0;
    IS(bvk_generation(session, NULL), BVK_ERR_ARGUMENT);
    IS(bvk_generation(session, &generation), BVK_OK);
    CHECK(generation >= 1);
    bvk_stats stats;
    memset(&stats, 0xab, sizeof stats);
    stats.size = 0;
    IS(bvk_get_stats(session, &stats), BVK_ERR_ARGUMENT);
    // An older header has a shorter structure: nothing after its end is touched.
    stats.size = offsetof(bvk_stats, abandoned);
    IS(bvk_get_stats(session, &stats), BVK_OK);
    CHECK(stats.captured >= 3 && stats.abandoned == 0xababababababababu);
    stats.size = sizeof stats;
    IS(bvk_get_stats(session, &stats), BVK_OK);
    CHECK(stats.abandoned >= 1 && stats.bytes_captured > sizeof field && stats.blocked_total_s > 0);
    bvk_level_stats of_level = BVK_LEVEL_STATS_INIT;
    IS(bvk_get_level_stats(session, BVK_LEVEL_SYSTEM, &of_level), BVK_OK);
    CHECK(of_level.committed >= 2 && of_level.flushed_bytes > sizeof field && of_level.flushed_s > 0);
    IS(bvk_get_level_stats(session, BVK_LEVEL_PROCESS, &of_level), BVK_OK);
    CHECK(of_level.restored_bytes > sizeof field);
    IS(bvk_get_level_stats(session, BVK_LEVEL_CAPTURED, &of_level), BVK_ERR_ARGUMENT);
    IS(bvk_get_level_stats(session, 9, &of_level), BVK_ERR_ARGUMENT);
    of_level.size = 0;
    IS(bvk_get_level_stats(session, BVK_LEVEL_SYSTEM, &of_level), BVK_ERR_ARGUMENT);
    IS(bvk_next_report(session, NULL), BVK_ERR_ARGUMENT);
    bvk_report report = {.size = 2};
    IS(bvk_next_report(session, &report), BVK_ERR_ARGUMENT);
}

// Sessions on sub-communicators, in addition to the session of all ranks.
static void groups(void) {
    MPI_Comm half;
    bvk_session_t session = NULL;
    int number = 41;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    IS(bvk_open_f(MPI_Comm_c2f(half), NULL, &session), BVK_OK);
    IS(bvk_protect(session, "number", &number, 1, BVK_I32), BVK_OK);
    IS(bvk_checkpoint(session, "alone", 1, NULL), BVK_OK);
    number = 0;
    IS(bvk_restore(session, "alone", BVK_NEWEST, NULL), BVK_OK);
    CHECK(number == 41);
    // A program that loads its regions itself may have protected none.
    bvk_restart_t restart = NULL;
    IS(bvk_unprotect(session, "number"), BVK_OK);
    IS(bvk_restore(session, "alone", BVK_NEWEST, NULL), BVK_ERR_RESTART);
    CHECK(strstr(bvk_error(), "nothing is protected"));
    IS(bvk_begin_restore(session, "alone", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_protected(restart), BVK_OK);
    IS(bvk_load(restart, "number", &number, 1, BVK_I32), BVK_OK);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    // The checkpoint was begun and never ended: closing the session gives it up.
    bvk_checkpoint_t left = NULL;
    IS(bvk_begin_checkpoint(session, "alone", 2, &left), BVK_OK);
    bvk_session_t copy = session;
    IS(bvk_close(&session), BVK_OK);
    CHECK(session == NULL);
    IS(bvk_close(&copy), BVK_ERR_HANDLE);
    IS(bvk_capture(&left, NULL), BVK_ERR_HANDLE);
    IS(bvk_protect(copy, "number", &number, 1, BVK_I32), BVK_ERR_HANDLE);
    MPI_Comm_free(&half);
}

// A directory that cannot be used: a report without a name says so, and so does a wait for the level that cannot be reached.
static void tier_that_is_off(void) {
    const char *settings[] = {"job.group=off", "global.directory=/proc/nope", NULL};
    bvk_options options = BVK_OPTIONS_INIT;
    bvk_report report = BVK_REPORT_INIT;
    bvk_session_t session = NULL;
    bvk_pending_t pending = NULL;
    options.settings = settings;
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_OK);
    IS(bvk_next_report(session, &report), BVK_OK);
    CHECK(!report.name[0] && report.version == 0 && report.level == BVK_LEVEL_SYSTEM && report.committed == 0);
    CHECK(strstr(report.reason, "/proc/nope") != NULL);
    // There is no checkpoint without regions: it would be the newest one.
    IS(bvk_checkpoint(session, "off", 1, NULL), BVK_ERR_REGION);
    CHECK(says("has no region"));
    double numbers[8] = {0};
    IS(bvk_protect(session, "numbers", numbers, 8, BVK_F64), BVK_OK);
    IS(bvk_checkpoint(session, "off", 1, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_SYSTEM, NULL), BVK_ERR_NOT_COMMITTED);
    CHECK(says("/proc/nope"));
    IS(bvk_wait(pending, BVK_LEVEL_NODE_REBOOT, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
}

struct shared {
    bvk_session_t session;
    bvk_pending_t pending;
    int wrong;
};

// Local calls on another thread, at the same time. An error's text belongs to the thread that made the mistake.
static void *beside(void *given) {
    struct shared *shared = given;
    bvk_stats stats = BVK_STATS_INIT;
    char name[16];
    shared->wrong += strlen(bvk_error()) != 0;
    for (int at = 0; at < 200; at++) {
        snprintf(name, sizeof name, "thread %d", at % 5);
        shared->wrong += bvk_protect(shared->session, name, few, 3, BVK_I32) != BVK_OK;
        shared->wrong += bvk_get_stats(shared->session, &stats) != BVK_OK;
        shared->wrong += bvk_unprotect(shared->session, name) != BVK_OK;
    }
    shared->wrong += bvk_protect(shared->session, "", few, 3, BVK_I32) != BVK_ERR_REGION;
    shared->wrong += strlen(bvk_error()) == 0;
    shared->wrong += bvk_wait(shared->pending, BVK_LEVEL_PROCESS, NULL) != BVK_OK;
    return NULL;
}

static void threads(bvk_session_t session) {
    struct shared shared = {session, NULL, 0};
    pthread_t thread;
    set(8);
    protect(session);
    IS(bvk_checkpoint(session, "threads", 8, &shared.pending), BVK_OK);
    CHECK(pthread_create(&thread, NULL, beside, &shared) == 0);
    for (int at = 0; at < 200; at++) {
        IS(bvk_progress(session), BVK_OK);
        IS(bvk_protect(session, "mine", few, 3, BVK_I32), BVK_OK);
    }
    CHECK(pthread_join(thread, NULL) == 0 && shared.wrong == 0);
    IS(bvk_unprotect(session, "mine"), BVK_OK);
    IS(bvk_release(&shared.pending), BVK_OK);
}

static void *on_the_wrong_thread(void *given) {
    struct shared *shared = given;
    int word;
    shared->wrong += bvk_progress(shared->session) != BVK_ERR_MPI;
    shared->wrong += bvk_checkpoint(shared->session, "funneled", 2, NULL) != BVK_ERR_MPI;
    shared->wrong += bvk_poll(shared->pending, &word) != BVK_ERR_MPI;
    shared->wrong += bvk_wait(shared->pending, BVK_LEVEL_PROCESS, NULL) != BVK_ERR_MPI;
    shared->wrong += bvk_level(shared->pending, &word) != BVK_OK;
    return NULL;
}

// With MPI_THREAD_FUNNELED, another thread is refused, and the session continues to work.
static int funneled(void) {
    struct shared shared = {NULL, NULL, 0};
    pthread_t thread;
    IS(bvk_open(MPI_COMM_WORLD, NULL, &shared.session), BVK_OK);
    protect(shared.session);
    IS(bvk_checkpoint(shared.session, "funneled", 1, &shared.pending), BVK_OK);
    CHECK(pthread_create(&thread, NULL, on_the_wrong_thread, &shared) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && shared.wrong == 0);
    IS(bvk_wait(shared.pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&shared.pending), BVK_OK);
    IS(bvk_close(&shared.session), BVK_OK);
    MPI_Finalize();
    if (rank == 0) puts("ok");
    return 0;
}

// Protected regions get room in node memory before the first checkpoint needs it.
static int ready(double limit) {
    bvk_session_t session = NULL;
    void *data = malloc(READY_BYTES);
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    const long long before = allocated();
    MPI_Barrier(MPI_COMM_WORLD);
    IS(bvk_protect(session, "data", data, READY_BYTES, BVK_U8), BVK_OK);
    CHECK(made_ready(before, limit));
    IS(bvk_close(&session), BVK_OK);
    MPI_Finalize();
    free(data);
    if (rank == 0) puts("ok");
    return 0;
}

// The environment keeps a session from opening: all ranks continue, so that the root's message is not cut off.
static int refused(void) {
    bvk_session_t session = NULL;
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_ERR_OPEN);
    MPI_Finalize();
    return 0;
}

// One rank opens later than the others are willing to wait silently. Nobody has called bvk_log, and no session is open yet.
static int late(void) {
    bvk_session_t session = NULL;
    const struct timespec second = {1, 0};
    if (rank == 1) nanosleep(&second, NULL);
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
    MPI_Finalize();
    if (rank == 0) puts("ok");
    return 0;
}

int main(int argc, char **argv) {
    int granted;
    if (argc > 1 && !strcmp(argv[1], "late")) {
        MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return late();
    }
    if (argc > 1 && !strcmp(argv[1], "refused")) {
        MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return refused();
    }
    if (argc > 2 && !strcmp(argv[1], "ready")) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return ready(atof(argv[2]));
    }
    bvk_session_t session = NULL;
    if (argc > 1) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &granted);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        CHECK(granted == MPI_THREAD_FUNNELED);
        return funneled();
    }
    initialisers();
    alone();
    // Before MPI_Init there is no session, and the calls fail cleanly.
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_ERR_MPI);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    CHECK(granted == MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks == 2);
    without_session();
    bad_openings();
    session = reopen();
    twice();
    regions(session);
    checkpoints(session);
    restarts(session);
    streams(session);
    files(session);
    companions(session);
    decisions(session);
    histories(session);
    offloading(session);
    groups();
    tier_that_is_off();
    threads(session);
    many(session);
    long_texts(session);
    // With a reduction method, every file counts, either as one that refers to others or as a whole one.
    bvk_stats stats = BVK_STATS_INIT;
    IS(bvk_get_stats(session, &stats), BVK_OK);
    CHECK(stats.packed_files + stats.whole_files >= 1 && stats.reduced_bytes >= stats.stored_bytes && stats.stored_bytes > 0);
    CHECK(stats.looked_on_device == 0 && stats.look_total_s == 0);
    CHECK(stats.compressed_from == 0 && stats.compressed_to == 0 && stats.compress_total_s == 0);
    bvk_restart_t left = NULL;
    IS(bvk_begin_restore(session, "heat", BVK_NEWEST, &left), BVK_OK);
    // Closing also gives up an open restart.
    IS(bvk_close(&session), BVK_OK);
    IS(bvk_end_restore(&left, 1, NULL), BVK_ERR_HANDLE);
    without_session();
    MPI_Finalize();
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_ERR_MPI);
    if (rank == 0) puts("ok");
    return 0;
}
