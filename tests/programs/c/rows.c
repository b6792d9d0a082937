// Rows through the C interface, and its mistakes: `rows save` on 4 ranks, then `rows load` on any number of ranks. With the argument
// `funneled` after that, it runs below MPI_THREAD_MULTIPLE. tests/mpi_c.rs runs it; rank 0 prints `ok` at the end.
#include <stdlib.h>
#include <string.h>

#include "bvk_check.h"

enum { OLD = 4, TOTAL = 5000 + 0 + 37 + 90000 };
static const uint64_t counts[OLD] = {5000, 0, 37, 90000};
static int ranks;

// The particles that a rank saved, or those that this rank has received.
struct particles {
    uint64_t count, *id;
    double *x;
    float *v;
    char (*tag)[3];
};

static double place_of(uint64_t id) { return (double)(id * 2654435761u % 1000003u) / 1000003.0; }

static struct particles make(uint64_t count) {
    struct particles all = {count, NULL, NULL, NULL, NULL};
    if (!count) return all;
    all.id = calloc(count, sizeof *all.id);
    all.x = calloc(count, sizeof *all.x);
    all.v = calloc(3 * count, sizeof *all.v);
    all.tag = calloc(count, sizeof *all.tag);
    return all;
}

static void free_all(struct particles *all) {
    free(all->id), free(all->x), free(all->v), free(all->tag);
    memset(all, 0, sizeof *all);
}

static void set(struct particles *all, uint64_t first) {
    for (uint64_t at = 0; at < all->count; at++) {
        uint64_t id = first + at;
        all->id[at] = id;
        all->x[at] = place_of(id);
        for (uint64_t dim = 0; dim < 3; dim++) all->v[3 * at + dim] = (float)(id % 1000) + (float)dim / 4;
        memcpy(all->tag[at], &id, 3);
    }
}

static void check_one(const struct particles *all, uint64_t at, uint64_t id) {
    CHECK(all->id[at] == id && all->x[at] == place_of(id) && !memcmp(all->tag[at], &id, 3));
    for (uint64_t dim = 0; dim < 3; dim++) CHECK(all->v[3 * at + dim] == (float)(id % 1000) + (float)dim / 4);
}

// The numbers of particles continue from rank to rank.
static uint64_t before(int old) {
    uint64_t first = 0;
    for (int at = 0; at < old; at++) first += counts[at];
    return first;
}

static bvk_rows describe(const struct particles *all, bvk_column columns[4]) {
    bvk_column four[4] = {
        {"id", all->id, BVK_U64, 1}, {"x", all->x, BVK_F64, 1}, {"v", all->v, BVK_F32, 3}, {"tag", all->tag, BVK_RECORD(3), 1}};
    memcpy(columns, four, sizeof four);
    bvk_rows rows = BVK_ROWS_INIT;
    rows.count = all->count;
    rows.columns = columns;
    rows.column_count = 4;
    return rows;
}

static void wrong_rows(bvk_checkpoint_t checkpoint, const struct particles *all) {
    bvk_column columns[4], one;
    bvk_rows rows = describe(all, columns), other = rows;
    IS(bvk_save_rows(NULL, "p", &rows), BVK_ERR_HANDLE);
    IS(bvk_save_rows(checkpoint, NULL, &rows), BVK_ERR_ARGUMENT);
    IS(bvk_save_rows(checkpoint, "p", NULL), BVK_ERR_ARGUMENT);
    other.size = 0;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    other = rows, other.column_count = 0;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_REGION);
    CHECK(strstr(bvk_error(), "no column"));
    other = rows, other.columns = NULL;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    other = rows, other.column_count = SIZE_MAX;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    other = rows, other.dimensions = 1;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "low or high is NULL"));
    other = rows, other.dimensions = 9, other.low = other.high = all->x;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    other = rows, other.count = UINT64_MAX / 2;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    other = rows, other.columns = &one, other.column_count = 1;
    one = columns[1], one.name = NULL;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    one = columns[1], one.name = "x/y";
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_REGION);
    one = columns[1], one.width = 0;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_REGION);
    one = columns[1], one.kind = 99;
    IS(bvk_save_rows(checkpoint, "p", &other), BVK_ERR_ARGUMENT);
    one = columns[1], one.data = NULL;
    IS(bvk_save_rows(checkpoint, "p", &other), all->count ? BVK_ERR_ARGUMENT : BVK_OK);
    // On the rank that has no rows, a set of this name now exists.
    columns[1].name = "id";
    IS(bvk_save_rows(checkpoint, "q", &rows), BVK_ERR_REGION);
}

// Two versions of one series; in the older one, each rank has one row fewer.
static void save_twice(bvk_session_t session) {
    for (uint64_t version = 1; version <= 2; version++) {
        uint64_t id[2] = {(uint64_t)rank, (uint64_t)rank + 100};
        bvk_column column = {"id", id, BVK_U64, 1};
        bvk_rows rows = BVK_ROWS_INIT;
        rows.count = version, rows.columns = &column, rows.column_count = 1;
        bvk_checkpoint_t checkpoint;
        bvk_pending_t pending;
        IS(bvk_begin_checkpoint(session, "twice", version, &checkpoint), BVK_OK);
        IS(bvk_save_rows(checkpoint, "electrons", &rows), BVK_OK);
        IS(bvk_capture(&checkpoint, &pending), BVK_OK);
        IS(bvk_wait(pending, BVK_LEVEL_SYSTEM, NULL), BVK_OK);
        IS(bvk_release(&pending), BVK_OK);
    }
}

static void save(bvk_session_t session) {
    save_twice(session);
    struct particles all = make(counts[rank]);
    set(&all, before(rank));
    bvk_checkpoint_t checkpoint;
    IS(bvk_begin_checkpoint(session, "wrong", 1, &checkpoint), BVK_OK);
    wrong_rows(checkpoint, &all);
    IS(bvk_abort(&checkpoint), BVK_OK);

    double low[2] = {rank, -rank}, high[2] = {rank + 1, rank};
    uint64_t step = 5, shape[2] = {OLD, 3}, origin[2] = {(uint64_t)rank, 0}, extent[2] = {1, 3};
    double row[3] = {rank, 10 * rank, 100 * rank};
    bvk_boxes_t boxes;
    IS(bvk_boxes(session, 2, shape, 1, origin, extent, NULL, NULL, 0, &boxes), BVK_OK);
    bvk_column columns[4], kind = {"kind", NULL, BVK_U8, 1};
    bvk_rows rows = describe(&all, columns), none = BVK_ROWS_INIT;
    rows.dimensions = 2, rows.low = low, rows.high = high;
    none.columns = &kind, none.column_count = 1;
    IS(bvk_begin_checkpoint(session, "plasma", 5, &checkpoint), BVK_OK);
    IS(bvk_save_on(checkpoint, "table", boxes, row, 3, BVK_F64), BVK_OK);
    IS(bvk_save_rows(checkpoint, "electrons", &rows), BVK_OK);
    // Each name of a column or of a set may be used only once.
    IS(bvk_save_rows(checkpoint, "electrons", &rows), BVK_ERR_REGION);
    rows.column_count = 1, columns[0].name = "other";
    IS(bvk_save_rows(checkpoint, "electrons", &rows), BVK_ERR_REGION);
    IS(bvk_save(checkpoint, "electrons/x", &step, 1, BVK_U64), BVK_ERR_REGION);
    IS(bvk_save_rows(checkpoint, "ions", &none), BVK_OK);
    IS(bvk_protect_shared(session, "step", &step, 1, BVK_U64), BVK_OK);
    IS(bvk_save_protected(checkpoint), BVK_OK);
    IS(bvk_hold(checkpoint), BVK_OK);
    bvk_pending_t pending;
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    if (all.count) memset(all.id, 0, all.count * sizeof *all.id);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    free_all(&all);
    IS(bvk_unprotect(session, "step"), BVK_OK);
    IS(bvk_boxes_close(&boxes), BVK_OK);
}

// Loads all columns of the dealt rows.
static struct particles load_columns(bvk_loaded_rows_t rows, uint64_t count) {
    struct particles all = make(count);
    IS(bvk_load_column(rows, "tag", all.tag, count, BVK_RECORD(3), 1), BVK_OK);
    IS(bvk_load_column(rows, "id", all.id, count, BVK_U64, 1), BVK_OK);
    IS(bvk_load_column(rows, "v", all.v, 3 * count, BVK_F32, 3), BVK_OK);
    IS(bvk_load_column(rows, "x", all.x, count, BVK_F64, 1), BVK_OK);
    return all;
}

// Checks rows that follow one another.
static void check_run(bvk_loaded_rows_t *rows, uint64_t count, uint64_t first, uint64_t behind) {
    CHECK(count == behind - first);
    struct particles all = load_columns(*rows, count);
    for (uint64_t at = 0; at < count; at++) check_one(&all, at, first + at);
    free_all(&all);
    IS(bvk_loaded_rows_close(rows), BVK_OK);
    CHECK(!*rows);
}

// Decides by a particle's position which rank gets it, and counts the particles that the function was asked about.
struct deal {
    uint64_t asked;
    int wrong;
    bvk_session_t session;
};

static int owner(double x) { return (int)(x * ranks); }

static void owners_by_place(const void *values, size_t count, int *owners, void *user) {
    struct deal *deal = user;
    const double *x = values;
    for (size_t at = 0; at < count; at++) owners[at] = deal->wrong ? deal->wrong : owner(x[at]);
    deal->asked += count;
    // The call would wait for itself.
    double *there = NULL;
    IS(bvk_protect(deal->session, "x", there, 0, BVK_F64), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "call it elsewhere"));
}

static void owners_by_speed(const void *values, size_t count, int *owners, void *user) {
    const float *v = values;
    CHECK(!user);
    for (size_t at = 0; at < count; at++) {
        CHECK(v[3 * at + 2] == v[3 * at] + 0.5f);
        owners[at] = ranks - 1;
    }
}

static void owners_by_tag(const void *values, size_t count, int *owners, void *user) {
    const unsigned char *tag = values;
    CHECK(!user);
    for (size_t at = 0; at < count; at++) owners[at] = tag[3 * at] % ranks;
}

static void owners_of_nothing(const void *values, size_t count, int *owners, void *user) {
    (void)values, (void)count, (void)owners, (void)user;
}

static void check_by(bvk_session_t session, bvk_restart_t restart) {
    struct deal deal = {0, 0, session};
    bvk_loaded_rows_t rows;
    uint64_t count = 0, all_asked = 0;
    IS(bvk_load_rows_by(restart, "electrons", "x", BVK_F64, 1, owners_by_place, &deal, &rows, &count), BVK_OK);
    MPI_Allreduce(&deal.asked, &all_asked, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all_asked == TOTAL);
    struct particles mine = load_columns(rows, count);
    uint64_t at = 0;
    for (uint64_t id = 0; id < TOTAL; id++) {
        if (owner(place_of(id)) == rank) check_one(&mine, at++, id);
    }
    CHECK(at == count);
    free_all(&mine);
    IS(bvk_loaded_rows_close(&rows), BVK_OK);
    IS(bvk_load_rows_by(restart, "electrons", "v", BVK_F32, 3, owners_by_speed, NULL, &rows, &count), BVK_OK);
    check_run(&rows, count, rank == ranks - 1 ? 0 : TOTAL, TOTAL);
    IS(bvk_load_rows_by(restart, "electrons", "tag", BVK_RECORD(3), 1, owners_by_tag, NULL, &rows, &count), BVK_OK);
    mine = load_columns(rows, count);
    for (at = 0; at < count; at++) CHECK(mine.id[at] % 256 % (uint64_t)ranks == (uint64_t)rank);
    free_all(&mine);
    IS(bvk_loaded_rows_close(&rows), BVK_OK);
}

static void check_parts(bvk_restart_t restart) {
    bvk_parts_t parts;
    bvk_part part = BVK_PART_INIT;
    // The call asks for all parts, or for none on one rank.
    int wanted = rank ? OLD : 0;
    IS(bvk_parts(restart, "electrons", 0, wanted, &parts), BVK_OK);
    for (int old = 0; old < wanted; old++) {
        IS(bvk_part_of(parts, old, &part), BVK_OK);
        CHECK(part.kind == BVK_PART_ROWS && part.count == counts[old] && part.dimensions == 2);
        CHECK(part.low[0] == old && part.low[1] == -old && part.high[0] == old + 1 && part.high[1] == old);
    }
    IS(bvk_part_of(parts, wanted, &part), BVK_ERR_ARGUMENT);
    IS(bvk_part_of(parts, -1, &part), BVK_ERR_ARGUMENT);
    IS(bvk_part_of(parts, 0, NULL), BVK_ERR_ARGUMENT);
    uint64_t origin[2] = {9, 9}, extent[2] = {9, 9};
    IS(bvk_boxes_of(parts, 0, 1, origin, extent), BVK_ERR_ARGUMENT);
    IS(bvk_parts_close(&parts), BVK_OK);
    IS(bvk_parts_close(&parts), BVK_OK);
    IS(bvk_part_of(parts, 0, &part), BVK_ERR_HANDLE);
    IS(bvk_parts(restart, "ions", 1, 1, &parts), BVK_OK);
    IS(bvk_part_of(parts, 1, &part), BVK_OK);
    CHECK(part.kind == BVK_PART_ROWS && part.count == 0 && part.dimensions == 0);
    IS(bvk_part_of(parts, 0, &part), BVK_ERR_ARGUMENT);
    IS(bvk_parts_close(&parts), BVK_OK);
    IS(bvk_parts(restart, "table", 2, 2, &parts), BVK_OK);
    IS(bvk_part_of(parts, 3, &part), BVK_OK);
    CHECK(part.kind == BVK_PART_BOXES && part.count == 1 && part.dimensions == 2 && part.shape[0] == OLD && part.shape[1] == 3);
    IS(bvk_boxes_of(parts, 3, 0, NULL, NULL), BVK_OK);
    IS(bvk_boxes_of(parts, 3, 1, NULL, extent), BVK_ERR_ARGUMENT);
    IS(bvk_boxes_of(parts, 3, 1, origin, extent), BVK_OK);
    CHECK(origin[0] == 3 && origin[1] == 0 && extent[0] == 1 && extent[1] == 3);
    // The handle is closed with the attempt.
}

static void check_columns(bvk_restart_t restart) {
    static const char *names[4] = {"id", "x", "v", "tag"};
    static const int kinds[4] = {BVK_U64, BVK_F64, BVK_F32, BVK_RECORD(3)};
    static const uint32_t widths[4] = {1, 1, 3, 1};
    const char *name;
    int kind;
    uint32_t width;
    for (size_t at = 0; at < 4; at++) {
        IS(bvk_column_at(restart, "electrons", at, &name, &kind, &width), BVK_OK);
        CHECK(!strcmp(name, names[at]) && kind == kinds[at] && width == widths[at]);
    }
    IS(bvk_column_at(restart, "electrons", 0, NULL, NULL, NULL), BVK_OK);
    IS(bvk_column_at(restart, "electrons", 4, &name, &kind, &width), BVK_NOTHING);
    // Asking for a set that does not exist does not make the attempt fail.
    IS(bvk_column_at(restart, "neutrons", 0, &name, &kind, &width), BVK_ERR_LOAD);
    IS(bvk_column_at(restart, "step", 0, &name, &kind, &width), BVK_ERR_LOAD);
    IS(bvk_column_at(restart, NULL, 0, &name, &kind, &width), BVK_ERR_ARGUMENT);
}

// A mistake that all ranks make, or of which the others hear at the end: the next attempt begins.
static bvk_restart_t again(bvk_session_t session, bvk_restart_t restart, int status, const char *words) {
    CHECK(status < 0 && strstr(bvk_error(), words));
    if (restart) IS(bvk_end_restore(&restart, -1, NULL), BVK_ERR_RESTART);
    IS(bvk_begin_restore(session, "plasma", BVK_NEWEST, &restart), BVK_OK);
    return restart;
}

static void mistakes(bvk_session_t session, bvk_restart_t restart) {
    struct deal deal = {0, 0, session};
    bvk_owners by = owners_by_place;
    bvk_loaded_rows_t rows = NULL;
    uint64_t count, number = 0;
    restart = again(session, restart, bvk_load_rows(restart, "electrons", 7, &rows, &count), "BVK_ROWS_");
    restart = again(session, restart, bvk_load_rows(restart, NULL, BVK_ROWS_EVEN, &rows, &count), "NULL");
    restart = again(session, restart, bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, NULL, &count), "rows is NULL");
    restart = again(session, restart, bvk_load_rows(restart, "neutrons", BVK_ROWS_EVEN, &rows, &count), "neutrons");
    restart = again(session, restart, bvk_load_rows(restart, "step", BVK_ROWS_EVEN, &rows, &count), "step");
    restart = again(session, restart, bvk_load_rows_range(restart, "electrons", UINT64_MAX, 2, &rows, &count), "too many");
    restart = again(session, restart, bvk_load_rows_by(restart, "electrons", "y", BVK_F64, 1, by, &deal, &rows, &count), "y");
    restart = again(session, restart, bvk_load_rows_by(restart, "electrons", "x", BVK_F32, 1, by, &deal, &rows, &count), "rows of 1 x f64");
    restart = again(session, restart, bvk_load_rows_by(restart, "electrons", "x", BVK_F64, 1, NULL, &deal, &rows, &count), "owners is NULL");
    restart = again(session, restart, bvk_parts(restart, "electrons", 3, 2, NULL), "parts is NULL");
    bvk_parts_t parts;
    restart = again(session, restart, bvk_parts(restart, "electrons", 3, 2, &parts), "4 ranks took the checkpoint");
    restart = again(session, restart, bvk_parts(restart, "step", 0, 1, &parts), "step");
    CHECK(!rows && !parts);
    // From here on, all ranks get the error, although only one makes the mistake.
    uint64_t first = rank == ranks - 1 ? TOTAL - 1 : 0;
    restart = again(session, restart, bvk_load_rows_range(restart, "electrons", first, 2, &rows, &count), "there are only 95037");
    deal.wrong = ranks + 3;
    char words[64];
    snprintf(words, sizeof words, "given to rank %d, but there are only %d ranks", ranks + 3, ranks);
    restart = again(session, restart, bvk_load_rows_by(restart, "electrons", "x", BVK_F64, 1, by, &deal, &rows, &count), words);
    deal.wrong = -7;
    restart = again(session, restart, bvk_load_rows_by(restart, "electrons", "x", BVK_F64, 1, by, &deal, &rows, &count), "given to no rank");
    by = owners_of_nothing;
    restart = again(session, restart, bvk_load_rows_by(restart, "electrons", "x", BVK_F64, 1, by, &deal, &rows, &count), "given to no rank");
    // The memory is too short on one rank.
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &rows, &count), BVK_OK);
    double *x = malloc((count + 1) * sizeof *x);
    restart = again(session, restart, bvk_load_column(rows, "x", x, count - (uint64_t)(rank == 0), BVK_F64, 1), "rows of 1 x f64");
    // Dealt rows are lost with their attempt.
    IS(bvk_load_column(rows, "x", x, count, BVK_F64, 1), BVK_ERR_HANDLE);
    IS(bvk_loaded_rows_close(&rows), BVK_ERR_HANDLE);
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &rows, &count), BVK_OK);
    restart = again(session, restart, bvk_load_column(rows, "x", x, count, BVK_F64, 3), "rows of 1 x f64");
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &rows, &count), BVK_OK);
    restart = again(session, restart, bvk_load_column(rows, "z", x, count, BVK_F64, 1), "electrons/z");
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &rows, &count), BVK_OK);
    restart = again(session, restart, bvk_load_column(rows, NULL, x, count, BVK_F64, 1), "NULL");
    free(x);
    IS(bvk_column_at(NULL, "electrons", 0, NULL, NULL, NULL), BVK_ERR_HANDLE);
    IS(bvk_load_column((bvk_loaded_rows_t)(void *)&number, "x", NULL, 0, BVK_F64, 1), BVK_ERR_HANDLE);
    IS(bvk_loaded_rows_close(NULL), BVK_OK);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
}

// Rows that the first attempt has dealt cannot be used in the next attempt, which loads an older version.
static void load_again(bvk_session_t session) {
    bvk_restart_t restart;
    bvk_loaded_rows_t newer, older;
    bvk_parts_t parts;
    uint64_t count = 0, version = 0, id[2 * OLD], all = 0;
    IS(bvk_begin_restore(session, "twice", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &newer, &count), BVK_OK);
    IS(bvk_parts(restart, "electrons", 0, 1, &parts), BVK_OK);
    MPI_Allreduce(&count, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == 2 * OLD);
    IS(bvk_reject(restart, "an older one is wanted"), BVK_OK);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_AGAIN);
    IS(bvk_load_column(newer, "id", id, count, BVK_U64, 1), BVK_ERR_HANDLE);
    IS(bvk_loaded_rows_close(&newer), BVK_ERR_HANDLE);
    IS(bvk_parts_close(&parts), BVK_ERR_HANDLE);
    IS(bvk_saved_version(restart, &version), BVK_OK);
    CHECK(version == 1);
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &older, &count), BVK_OK);
    IS(bvk_load_column(older, "id", id, count, BVK_U64, 1), BVK_OK);
    for (uint64_t at = 0; at < count; at++) CHECK(id[at] == (uint64_t)OLD * (uint64_t)rank / (uint64_t)ranks + at);
    MPI_Allreduce(&count, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == OLD);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
}

static void load(bvk_session_t session) {
    load_again(session);
    bvk_restart_t restart;
    bvk_loaded_rows_t rows, kept;
    bvk_restored restored = BVK_RESTORED_INIT;
    uint64_t count = 0, step = 0;
    IS(bvk_begin_restore(session, "plasma", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_protect_shared(session, "step", &step, 1, BVK_U64), BVK_OK);
    IS(bvk_load_protected(restart), BVK_OK);
    CHECK(step == 5);
    check_columns(restart);
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &rows, &count), BVK_OK);
    check_run(&rows, count, (uint64_t)TOTAL * (uint64_t)rank / (uint64_t)ranks, (uint64_t)TOTAL * ((uint64_t)rank + 1) / (uint64_t)ranks);
    // The ranges overlap, and leave rows out; one rank wants none.
    uint64_t first = 4000 + 100 * (uint64_t)rank, wanted = rank ? 2000 : 0;
    IS(bvk_load_rows_range(restart, "electrons", first, wanted, &rows, &count), BVK_OK);
    check_run(&rows, count, first, first + wanted);
    check_by(session, restart);
    check_parts(restart);
    IS(bvk_load_rows(restart, "ions", BVK_ROWS_EVEN, &kept, NULL), BVK_OK);
    IS(bvk_load_column(kept, "kind", NULL, 0, BVK_U8, 1), BVK_OK);
    if (ranks == OLD) {
        IS(bvk_load_rows(restart, "electrons", BVK_ROWS_OWN, &rows, &count), BVK_OK);
        check_run(&rows, count, before(rank), before(rank + 1));
    }
    IS(bvk_end_restore(&restart, 1, &restored), BVK_OK);
    CHECK(restored.version == 5 && restored.ranks == OLD);
    IS(bvk_loaded_rows_close(&kept), BVK_ERR_HANDLE);
    IS(bvk_begin_restore(session, "plasma", BVK_NEWEST, &restart), BVK_OK);
    if (ranks != OLD) restart = again(session, restart, bvk_load_rows(restart, "electrons", BVK_ROWS_OWN, &rows, &count), "4 ranks");
    mistakes(session, restart);
    IS(bvk_unprotect(session, "step"), BVK_OK);
}

int main(int argc, char **argv) {
    int granted;
    int is_funneled = argc > 2 && !strcmp(argv[2], "funneled");
    MPI_Init_thread(&argc, &argv, is_funneled ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bvk_session_t session;
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    if (argc > 1 && !strcmp(argv[1], "save")) save(session);
    else load(session);
    // An attempt is still open when the session is closed.
    bvk_restart_t restart;
    bvk_loaded_rows_t rows;
    IS(bvk_begin_restore(session, "plasma", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_rows(restart, "electrons", BVK_ROWS_EVEN, &rows, NULL), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
    IS(bvk_loaded_rows_close(&rows), BVK_ERR_HANDLE);
    if (rank == 0) puts("ok");
    MPI_Finalize();
    return 0;
}
