// Restarts on another number of ranks through the C interface, and its mistakes: `elastic save` on 4 ranks, then `elastic load` on others.
// With the argument `funneled` after that, it runs below MPI_THREAD_MULTIPLE. tests/mpi_c.rs runs it; rank 0 prints `ok` at the end.
#include <stdlib.h>
#include <string.h>

#include "bvk_check.h"

enum { NY = 23, NX = 17, NZ = 9 };
static int ranks;

static double value(uint64_t y, uint64_t x) { return 1000.0 * (double)y + (double)x; }

// Rows of a grid, surrounded by ghost cells: one before each row, and two after it.
struct rows {
    uint64_t first, count, elements;
    double *cells;
    bvk_boxes_t boxes;
};

static double *cell(const struct rows *rows, uint64_t row, uint64_t x) {
    return rows->cells + (row + 1) * (NX + 3) + x + 1;
}

static struct rows make_rows(bvk_session_t session) {
    struct rows rows = {NY * (uint64_t)rank / (uint64_t)ranks, 0, 0, NULL, NULL};
    rows.count = NY * ((uint64_t)rank + 1) / (uint64_t)ranks - rows.first;
    rows.elements = (rows.count + 2) * (NX + 3);
    rows.cells = malloc(rows.elements * sizeof(double));
    for (uint64_t at = 0; at < rows.elements; at++) rows.cells[at] = -1;
    uint64_t shape[2] = {NY, NX}, origin[2] = {rows.first, 0}, extent[2] = {rows.count, NX};
    uint64_t before[2] = {1, 1}, after[2] = {1, 2};
    IS(bvk_boxes(session, 2, shape, 1, origin, extent, before, after, 0, &rows.boxes), BVK_OK);
    return rows;
}

static void set(const struct rows *rows) {
    for (uint64_t row = 0; row < rows->count; row++) {
        for (uint64_t x = 0; x < NX; x++) *cell(rows, row, x) = value(rows->first + row, x);
    }
}

// Checks that every cell has its value, and that no ghost cell was touched.
static void check(const struct rows *rows) {
    double sum = 0;
    for (uint64_t at = 0; at < rows->elements; at++) sum += rows->cells[at];
    for (uint64_t row = 0; row < rows->count; row++) {
        for (uint64_t x = 0; x < NX; x++) {
            CHECK(*cell(rows, row, x) == value(rows->first + row, x));
            sum -= value(rows->first + row, x);
        }
    }
    CHECK(sum == -(double)(rows->elements - rows->count * NX));
}

// Planes of a cube that are dealt in turn, each in its own memory. If there are several ranks, the last one has none.
struct planes {
    size_t count;
    int32_t *memory[NZ];
    uint64_t elements[NZ], numbers[NZ];
    bvk_boxes_t boxes;
};

static struct planes make_planes(bvk_session_t session) {
    struct planes planes;
    memset(&planes, 0, sizeof planes);
    int owners = ranks > 1 ? ranks - 1 : 1;
    uint64_t shape[3] = {NZ, 4, 5}, origins[3 * NZ] = {0}, extents[3 * NZ];
    for (uint64_t z = 0; z < NZ; z++) {
        if ((int)(z % (uint64_t)owners) != rank) continue;
        size_t at = planes.count++;
        planes.numbers[at] = z;
        planes.elements[at] = 20;
        planes.memory[at] = calloc(20, sizeof(int32_t));
        origins[3 * at] = z;
        extents[3 * at] = 1, extents[3 * at + 1] = 4, extents[3 * at + 2] = 5;
    }
    IS(bvk_boxes(session, 3, shape, planes.count, origins, extents, NULL, NULL, 0, &planes.boxes), BVK_OK);
    return planes;
}

static void set_planes(const struct planes *planes) {
    for (size_t at = 0; at < planes->count; at++) {
        for (int32_t number = 0; number < 20; number++) planes->memory[at][number] = (int32_t)planes->numbers[at] * 20 + number;
    }
}

static void check_planes(const struct planes *planes) {
    for (size_t at = 0; at < planes->count; at++) {
        for (int32_t number = 0; number < 20; number++) {
            CHECK(planes->memory[at][number] == (int32_t)planes->numbers[at] * 20 + number);
        }
    }
}

// Vertices of a mesh, in descending order: those whose numbers have the same remainder belong to one rank.
enum { VERTICES = 501 };
struct mesh {
    size_t count;
    uint64_t numbers[VERTICES];
    double pressure[VERTICES];
    bvk_boxes_t boxes;
};

static struct mesh *make_mesh(bvk_session_t session) {
    struct mesh *mesh = calloc(1, sizeof *mesh);
    for (uint64_t number = VERTICES; number-- > 0;) {
        if ((int)(number * 7 % 11 % (uint64_t)ranks) == rank) mesh->numbers[mesh->count++] = number;
    }
    IS(bvk_ids(session, VERTICES, mesh->count, mesh->count ? mesh->numbers : NULL, 0, &mesh->boxes), BVK_OK);
    return mesh;
}

static void set_mesh(struct mesh *mesh) {
    for (size_t at = 0; at < mesh->count; at++) mesh->pressure[at] = 0.5 * (double)mesh->numbers[at];
}

static void check_mesh(struct mesh *mesh) {
    for (size_t at = 0; at < mesh->count; at++) {
        CHECK(mesh->pressure[at] == 0.5 * (double)mesh->numbers[at]);
        mesh->pressure[at] = -1;
    }
}

// An error with these words, which all ranks get.
#define DISAGREED(call, words)             \
    do {                                   \
        IS(call, BVK_ERR_DISAGREED);       \
        CHECK(strstr(bvk_error(), words)); \
    } while (0)

// Each time, one thing is wrong on the last of the four ranks, and all ranks get an error with the same words.
static void wrong_boxes(bvk_session_t session) {
    uint64_t shape[2] = {NY, NX}, origin[2] = {NY * (uint64_t)rank / (uint64_t)ranks, 0};
    uint64_t extent[2] = {NY * ((uint64_t)rank + 1) / (uint64_t)ranks - origin[0], NX};
    int wrong = rank == ranks - 1;
    uint64_t earlier[2] = {origin[0] - 1, 0}, taller[2] = {extent[0] + 1, NX}, narrower[2] = {extent[0], NX - 1};
    uint64_t wider[2] = {NY, NX + 1}, endless[2] = {(uint64_t)1 << 62, 0};
    bvk_boxes_t boxes = (bvk_boxes_t)(void *)shape;
    DISAGREED(bvk_boxes(session, 2, shape, 1, wrong ? earlier : origin, wrong ? taller : extent, NULL, NULL, 0, &boxes),
              "elements [16, 0..17] belong both to box 0 of rank 2 and to box 0 of rank 3");
    CHECK(!boxes);
    DISAGREED(bvk_boxes(session, 2, shape, 1, origin, wrong ? narrower : extent, NULL, NULL, 0, &boxes), "16");
    DISAGREED(bvk_boxes(session, 2, shape, 1, origin, wrong ? taller : extent, NULL, NULL, 0, &boxes),
              "rank 3: box 0 of this rank, of extent [7, 17] at [17, 0], is not inside the array of shape [23, 17]");
    DISAGREED(bvk_boxes(session, 2, wrong ? wider : shape, 1, origin, extent, NULL, NULL, 0, &boxes), "shape [23, 18]");
    DISAGREED(bvk_boxes(session, 2, shape, 1, wrong ? NULL : origin, extent, NULL, NULL, 0, &boxes), "rank 3: origins is NULL");
    DISAGREED(bvk_boxes(session, wrong ? 33 : 2, shape, 1, origin, extent, NULL, NULL, 0, &boxes), "33 dimensions");
    DISAGREED(bvk_boxes(session, 2, shape, wrong ? SIZE_MAX : 1, origin, extent, NULL, NULL, 0, &boxes), "a rank cannot own");
    DISAGREED(bvk_boxes(session, 2, shape, 1, origin, extent, wrong ? endless : NULL, NULL, 0, &boxes), "ghost cells of");
    DISAGREED(bvk_boxes(session, 2, shape, 1, origin, extent, NULL, NULL, 0, wrong ? NULL : &boxes), "boxes is NULL");
    CHECK(!boxes);
    // A part of the array is left out on purpose.
    IS(bvk_boxes(session, 2, shape, 1, origin, wrong ? narrower : extent, NULL, NULL, 1, &boxes), BVK_OK);
    IS(bvk_boxes_close(&boxes), BVK_OK);
    IS(bvk_boxes_close(&boxes), BVK_OK);
    IS(bvk_boxes_close(NULL), BVK_OK);
    IS(bvk_boxes(NULL, 2, shape, 1, origin, extent, NULL, NULL, 0, &boxes), BVK_ERR_HANDLE);
}

static void wrong_lists(bvk_session_t session, struct mesh *mesh) {
    bvk_boxes_t boxes = NULL;
    size_t count = mesh->count;
    const uint64_t *numbers = mesh->numbers, far[1] = {VERTICES}, again[1] = {0};
    int wrong = rank == ranks - 1;
    DISAGREED(bvk_ids(session, VERTICES, wrong ? 1 : count, wrong ? far : numbers, 0, &boxes), "number 501, at index 0 of this");
    DISAGREED(bvk_ids(session, VERTICES, wrong ? 1 : count, wrong ? again : numbers, 1, &boxes),
              "number 0 is in the lists of both rank 0 and rank 3");
    DISAGREED(bvk_ids(session, VERTICES, wrong ? 0 : count, numbers, 0, &boxes), "in no rank's list");
    DISAGREED(bvk_ids(session, VERTICES, count, wrong ? NULL : numbers, 0, &boxes), "rank 3: numbers is NULL");
    DISAGREED(bvk_ids(session, VERTICES, count, numbers, 0, wrong ? NULL : &boxes), "boxes is NULL");
    DISAGREED(bvk_ids(session, wrong ? VERTICES + 1 : VERTICES, count, numbers, 1, &boxes), "502 numbered elements");
    CHECK(!boxes);
    IS(bvk_ids(session, VERTICES, wrong ? 0 : count, numbers, 1, &boxes), BVK_OK);
    IS(bvk_protect_on(session, "mesh", boxes, mesh->pressure, count + 1, BVK_F64), BVK_ERR_REGION);
    IS(bvk_boxes_close(&boxes), BVK_OK);
}

// Mistakes that only this rank can know of.
static void wrong_memory(bvk_session_t session, const struct rows *rows, const struct planes *planes) {
    bvk_boxes_t none = NULL, wild = (bvk_boxes_t)(void *)&none;
    IS(bvk_protect_on(session, "t", none, rows->cells, rows->elements, BVK_F64), BVK_ERR_HANDLE);
    IS(bvk_protect_on(session, "t", wild, rows->cells, rows->elements, BVK_F64), BVK_ERR_HANDLE);
    IS(bvk_protect_on(session, "t", rows->boxes, NULL, rows->elements, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect_on(session, "t", rows->boxes, rows->cells, rows->elements, 99), BVK_ERR_ARGUMENT);
    IS(bvk_protect_on(session, NULL, rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_ERR_ARGUMENT);
    // Without the ghost cells, every value would be in another place.
    IS(bvk_protect_on(session, "t", rows->boxes, rows->cells, rows->count * NX, BVK_F64), BVK_ERR_REGION);
    CHECK(strstr(bvk_error(), "with its ghost cells"));
    IS(bvk_protect_on(session, "t", rows->boxes, NULL, 0, BVK_F64), BVK_ERR_REGION);
    void *two[2] = {rows->cells, rows->cells};
    uint64_t elements[2] = {rows->elements, rows->elements};
    IS(bvk_protect_boxes_on(session, "t", rows->boxes, 2, two, elements, BVK_F64), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "overlaps"));
    IS(bvk_protect_boxes_on(session, "t", rows->boxes, 0, NULL, NULL, BVK_F64), BVK_ERR_REGION);
    IS(bvk_protect_boxes_on(session, "t", rows->boxes, 1, NULL, elements, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect_shared(session, "s", rows->cells, (1 << 20) / 8, BVK_F64), BVK_ERR_REGION);
    IS(bvk_protect_shared(session, "s", NULL, 1, BVK_F64), BVK_ERR_ARGUMENT);
    IS(bvk_protect_per_rank(session, "r", rows->cells, 1, BVK_F64, 3), BVK_ERR_ARGUMENT);
    IS(bvk_protect_on(session, "none", planes->boxes, NULL, 0, BVK_I32), planes->count ? BVK_ERR_REGION : BVK_OK);
    if (!planes->count) IS(bvk_unprotect(session, "none"), BVK_OK);
    // A region on boxes, or a value, cannot be live.
    IS(bvk_protect_on(session, "t", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_OK);
    IS(bvk_set_live(session, "t", 1), BVK_ERR_ARGUMENT);
    IS(bvk_unprotect(session, "t"), BVK_OK);
}

static void save(bvk_session_t session, const struct rows *rows, const struct planes *planes) {
    uint64_t step = 5, mine[2] = {(uint64_t)rank * 10, (uint64_t)ranks};
    set(rows);
    set_planes(planes);
    wrong_boxes(session);
    wrong_memory(session, rows, planes);
    bvk_pending_t pending;
    // This checkpoint holds everything that is protected.
    IS(bvk_protect_on(session, "rows", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_OK);
    IS(bvk_protect_boxes_on(session, "planes", planes->boxes, planes->count, (void *const *)planes->memory, planes->elements, BVK_I32), BVK_OK);
    IS(bvk_protect_shared(session, "step", &step, 1, BVK_U64), BVK_OK);
    IS(bvk_protect_per_rank(session, "seed", mine, 2, BVK_U64, BVK_RESIZE_ASK), BVK_OK);
    IS(bvk_protect_per_rank(session, "scratch", mine, 1, BVK_U64, BVK_RESIZE_DROP), BVK_OK);
    IS(bvk_checkpoint(session, "protected", 5, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    // One rank has another step than the others, so there is no checkpoint.
    step = (uint64_t)(rank == 1 ? 7 : 6);
    IS(bvk_checkpoint(session, "unequal", 6, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_ERR_NOT_COMMITTED);
    CHECK(strstr(bvk_error(), "step"));
    IS(bvk_release(&pending), BVK_OK);
    // The program puts this checkpoint together itself; a shared value is copied at once.
    bvk_checkpoint_t checkpoint;
    IS(bvk_begin_checkpoint(session, "saved", 9, &checkpoint), BVK_OK);
    IS(bvk_save_on(checkpoint, "rows", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_OK);
    IS(bvk_save_on(checkpoint, "rows", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_ERR_REGION);
    IS(bvk_save_on(checkpoint, "few", rows->boxes, rows->cells, 1, BVK_F64), BVK_ERR_REGION);
    IS(bvk_save_boxes_on(checkpoint, "planes", planes->boxes, planes->count, (const void *const *)planes->memory, planes->elements, BVK_I32), BVK_OK);
    step = 9;
    IS(bvk_save_shared(checkpoint, "step", &step, 1, BVK_U64), BVK_OK);
    IS(bvk_save_shared(checkpoint, "step", &step, 1, BVK_U64), BVK_ERR_REGION);
    IS(bvk_save_per_rank(checkpoint, "seed", mine, 2, BVK_U64, BVK_RESIZE_ASK), BVK_OK);
    step = 10;
    IS(bvk_hold(checkpoint), BVK_OK);
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    // One region belongs to its rank alone.
    IS(bvk_protect(session, "own", mine, 2, BVK_U64), BVK_OK);
    IS(bvk_checkpoint(session, "bound", 3, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
}

// A mesh is saved and loaded separately.
static void save_mesh(bvk_session_t session) {
    struct mesh *mesh = make_mesh(session);
    wrong_lists(session, mesh);
    set_mesh(mesh);
    bvk_pending_t pending;
    bvk_checkpoint_t checkpoint;
    IS(bvk_begin_checkpoint(session, "mesh", 1, &checkpoint), BVK_OK);
    IS(bvk_save_on(checkpoint, "pressure", mesh->boxes, mesh->pressure, mesh->count, BVK_F64), BVK_OK);
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    IS(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), BVK_OK);
    IS(bvk_release(&pending), BVK_OK);
    free(mesh);
}

static void load_mesh(bvk_session_t session, const struct rows *rows) {
    struct mesh *mesh = make_mesh(session);
    IS(bvk_protect_on(session, "pressure", mesh->boxes, mesh->pressure, mesh->count, BVK_F64), BVK_OK);
    IS(bvk_restore(session, "mesh", BVK_NEWEST, NULL), BVK_OK);
    check_mesh(mesh);
    IS(bvk_unprotect_all(session), BVK_OK);
    bvk_restart_t restart;
    IS(bvk_begin_restore(session, "mesh", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_on(restart, "pressure", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_ERR_LOAD);
    CHECK(strstr(bvk_error(), "shape [501], not [23, 17]"));
    bvk_parts_t parts;
    IS(bvk_end_restore(&restart, -1, NULL), BVK_ERR_RESTART);
    IS(bvk_begin_restore(session, "mesh", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_parts(restart, "pressure", 0, 4, &parts), BVK_OK);
    uint64_t all = 0;
    for (int old = 0; old < 4; old++) {
        bvk_part part = BVK_PART_INIT;
        IS(bvk_part_of(parts, old, &part), BVK_OK);
        CHECK(part.kind == BVK_PART_IDS && part.dimensions == 1 && part.shape[0] == VERTICES);
        all += part.count;
    }
    CHECK(all == VERTICES);
    IS(bvk_boxes_of(parts, 0, 0, NULL, NULL), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "had no boxes"));
    IS(bvk_end_restore(&restart, -1, NULL), BVK_ERR_RESTART);
    free(mesh);
}

static void load_protected(bvk_session_t session, const struct rows *rows, const struct planes *planes) {
    uint64_t step = 0, mine[2] = {77, 77}, before[2] = {77, 77};
    IS(bvk_protect_on(session, "rows", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_OK);
    IS(bvk_protect_boxes_on(session, "planes", planes->boxes, planes->count, (void *const *)planes->memory, planes->elements, BVK_I32), BVK_OK);
    IS(bvk_protect_shared(session, "step", &step, 1, BVK_U64), BVK_OK);
    IS(bvk_protect_per_rank(session, "seed", mine, 2, BVK_U64, BVK_RESIZE_ASK), BVK_OK);
    IS(bvk_protect_per_rank(session, "scratch", before, 1, BVK_U64, BVK_RESIZE_DROP), BVK_OK);
    bvk_restored restored = BVK_RESTORED_INIT;
    IS(bvk_restore(session, "protected", BVK_NEWEST, &restored), BVK_OK);
    CHECK(restored.version == 5 && restored.ranks == 4 && step == 5);
    check(rows);
    check_planes(planes);
    // On as many ranks, each gets its own value back; on other numbers, nothing is touched.
    CHECK(ranks == 4 ? mine[0] == (uint64_t)rank * 10 && mine[1] == 4 : mine[0] == 77 && mine[1] == 77);
    CHECK(ranks == 4 ? before[0] == (uint64_t)rank * 10 : before[0] == 77);
    // If one rank protects the value with another type or length than was saved, the restart of all ranks fails.
    if (rank == 0) IS(bvk_protect_shared(session, "step", &step, 1, BVK_F64), BVK_OK);
    IS(bvk_restore(session, "protected", BVK_NEWEST, NULL), BVK_ERR_RESTART);
    CHECK(strstr(bvk_error(), "of type"));
    IS(bvk_unprotect_all(session), BVK_OK);
}

// One array has another shape, and one rank's memory does not fit.
static void wrong_loads(bvk_session_t session, const struct rows *rows) {
    uint64_t shape[2] = {NY, NX + 1}, origin[2] = {rows->first, 0}, extent[2] = {rows->count, NX + 1};
    bvk_boxes_t other;
    bvk_restart_t restart;
    IS(bvk_boxes(session, 2, shape, 1, origin, extent, NULL, NULL, 0, &other), BVK_OK);
    IS(bvk_begin_restore(session, "saved", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_on(restart, "rows", other, rows->cells, rows->count * (NX + 1), BVK_F64), BVK_ERR_LOAD);
    CHECK(strstr(bvk_error(), "[23, 17]") && strstr(bvk_error(), "[23, 18]"));
    IS(bvk_end_restore(&restart, -1, NULL), BVK_ERR_RESTART);
    IS(bvk_begin_restore(session, "saved", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_load_on(restart, "rows", rows->boxes, rows->cells, rows->elements, BVK_I64), BVK_ERR_LOAD);
    IS(bvk_load_on(restart, "nothing", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_ERR_LOAD);
    CHECK(strstr(bvk_error(), "it has: step, seed, rows, planes"));
    // Each kind must be loaded by the call that matches the call by which it was saved.
    IS(bvk_load_on(restart, "step", rows->boxes, rows->cells, rows->elements, BVK_U8), BVK_ERR_LOAD);
    IS(bvk_load_shared(restart, "rows", rows->cells, 1, BVK_F64), BVK_ERR_LOAD);
    IS(bvk_load(restart, "step", rows->cells, 1, BVK_U64), BVK_ERR_LOAD);
    IS(bvk_end_restore(&restart, -1, NULL), BVK_ERR_RESTART);
    IS(bvk_begin_restore(session, "saved", BVK_NEWEST, &restart), BVK_OK);
    // If the call is collective, all ranks get an error; otherwise, only this rank does.
    uint64_t elements = rows->elements - (uint64_t)(rank == 0);
    IS(bvk_load_on(restart, "rows", rows->boxes, rows->cells, elements, BVK_F64), ranks != 4 || rank == 0 ? BVK_ERR_LOAD : BVK_OK);
    IS(bvk_end_restore(&restart, ranks != 4 || rank == 0 ? -1 : 1, NULL), BVK_ERR_RESTART);
    IS(bvk_begin_restore(session, "saved", BVK_NEWEST, &restart), BVK_OK);
    // One rank takes no part in the load, and reports this at the end.
    if (rank == 0) {
        IS(bvk_load_on(restart, "rows", rows->boxes, NULL, rows->elements, BVK_F64), BVK_ERR_ARGUMENT);
        IS(bvk_end_restore(&restart, 0, NULL), BVK_ERR_RESTART);
    } else {
        int loaded = bvk_load_on(restart, "rows", rows->boxes, rows->cells, rows->elements, BVK_F64);
        CHECK(loaded == (ranks == 4 ? BVK_OK : BVK_ERR_LOAD));
        IS(bvk_end_restore(&restart, loaded == BVK_OK, NULL), BVK_ERR_RESTART);
    }
    CHECK(strstr(bvk_error(), "NULL"));
    IS(bvk_boxes_close(&other), BVK_OK);
}

static void load(bvk_session_t session, const struct rows *rows, const struct planes *planes) {
    load_protected(session, rows, planes);
    wrong_loads(session, rows);
    for (uint64_t at = 0; at < rows->elements; at++) rows->cells[at] = -1;
    for (size_t at = 0; at < planes->count; at++) memset(planes->memory[at], 0, 20 * sizeof(int32_t));
    uint64_t step = 0, mine[2], all[8];
    int saved = 0;
    bvk_restart_t restart;
    IS(bvk_begin_restore(session, "saved", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_saved_ranks(restart, &saved), BVK_OK);
    CHECK(saved == 4);
    IS(bvk_load_on(restart, "rows", rows->boxes, rows->cells, rows->elements, BVK_F64), BVK_OK);
    IS(bvk_load_boxes_on(restart, "planes", planes->boxes, planes->count, (void *const *)planes->memory, planes->elements, BVK_I32), BVK_OK);
    IS(bvk_load_shared(restart, "step", &step, 1, BVK_U64), BVK_OK);
    CHECK(step == 9);
    check(rows);
    check_planes(planes);
    IS(bvk_of_ranks(restart, "seed", 0, rank ? 4 : 0, all, 2, BVK_U64), BVK_OK);
    for (uint64_t old = 0; rank && old < 4; old++) CHECK(all[2 * old] == old * 10 && all[2 * old + 1] == 4);
    IS(bvk_load_per_rank(restart, "seed", mine, 2, BVK_U64), ranks == 4 ? BVK_OK : BVK_ERR_LOAD);
    CHECK(ranks != 4 || mine[0] == (uint64_t)rank * 10);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    // The calls ask for ranks that did not exist, for values of another length, and for values that cannot be asked for.
    IS(bvk_begin_restore(session, "saved", BVK_NEWEST, &restart), BVK_OK);
    IS(bvk_of_ranks(restart, "seed", 2, 3, all, 2, BVK_U64), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "4 ranks took the checkpoint"));
    IS(bvk_of_ranks(restart, "seed", -1, 1, all, 2, BVK_U64), BVK_ERR_ARGUMENT);
    IS(bvk_of_ranks(restart, "seed", 1, 1, all, 1, BVK_U64), BVK_ERR_LOAD);
    IS(bvk_of_ranks(restart, "step", 0, 1, all, 1, BVK_U64), BVK_ERR_LOAD);
    IS(bvk_end_restore(&restart, -1, NULL), BVK_ERR_RESTART);
    // This region belongs to its rank alone.
    int status = bvk_begin_restore(session, "bound", BVK_NEWEST, &restart);
    if (ranks == 4) {
        IS(status, BVK_OK);
        IS(bvk_load(restart, "own", mine, 2, BVK_U64), BVK_OK);
        IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    } else {
        IS(status, BVK_ERR_RESTART);
        CHECK(strstr(bvk_error(), "taken by 4 ranks") && strstr(bvk_error(), "\"own\""));
    }
}

int main(int argc, char **argv) {
    int granted;
    int is_funneled = argc > 2 && !strcmp(argv[2], "funneled");
    MPI_Init_thread(&argc, &argv, is_funneled ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bvk_session_t session, second;
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    struct rows rows = make_rows(session);
    struct planes planes = make_planes(session);
    if (argc > 1 && !strcmp(argv[1], "save")) {
        save(session, &rows, &planes);
        save_mesh(session);
    } else {
        load(session, &rows, &planes);
        load_mesh(session, &rows);
    }
    for (size_t at = 0; at < planes.count; at++) free(planes.memory[at]);
    free(rows.cells);
    IS(bvk_boxes_close(&rows.boxes), BVK_OK);
    second = session;
    IS(bvk_close(&session), BVK_OK);
    // The handles of a session become invalid with it.
    CHECK(second != NULL && bvk_boxes_close(&planes.boxes) == BVK_ERR_HANDLE);
    if (rank == 0) puts("ok");
    MPI_Finalize();
    return 0;
}
