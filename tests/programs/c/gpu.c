// Device pointers through include/bivouac.h. tests/mpi_c.rs and ci/gpu/run.sh run it on two ranks; rank 0 prints `ok` at the end.
#include <pthread.h>
#include <stdlib.h>

#include "bvk_check.h"
#include "gpu.h"

static int ranks, gpus, device;
static void *context, *stream;

enum { WORDS = 8 << 20, MANY = 300 };
#define OFFSET 4u

static gpu_address field, scratch;
static uint32_t few[3], *back;

static void *at(gpu_address address) { return (void *)(uintptr_t)address; }

static uint32_t word(uint32_t value) { return value * 100 + (uint32_t)rank; }

// Sets the field on the application's stream, after work that takes some milliseconds, and returns while that work runs.
static void set(uint32_t value) {
    for (int i = 0; i < MANY; i++) CHECK(cuMemsetD32Async(scratch, (unsigned)i, WORDS, stream) == 0);
    CHECK(cuMemsetD32Async(field + OFFSET, word(value), WORDS - 1, stream) == 0);
    for (int i = 0; i < 3; i++) few[i] = value + (uint32_t)i;
}

static int is(uint32_t value) {
    CHECK(cuStreamSynchronize(stream) == 0 && cuMemcpyDtoH_v2(back, field + OFFSET, 4 * (WORDS - 1)) == 0);
    for (int i = 0; i < WORDS - 1; i++) {
        if (back[i] != word(value)) return 0;
    }
    return few[0] == value && few[1] == value + 1 && few[2] == value + 2;
}

static void *current(void) {
    void *now;
    CHECK(cuCtxGetCurrent(&now) == 0);
    return now;
}

static bvk_session_t open_session(void) {
    bvk_session_t session;
    IS(bvk_open(MPI_COMM_WORLD, NULL, &session), BVK_OK);
    return session;
}

static void protect(bvk_session_t session) {
    IS(bvk_protect(session, "field", at(field + OFFSET), WORDS - 1, BVK_U32), BVK_OK);
    IS(bvk_protect(session, "few", few, 3, BVK_U32), BVK_OK);
    IS(bvk_set_stream(session, stream), BVK_OK);
}

static void commit(bvk_pending_t *pending, int level) {
    int reached;
    IS(bvk_wait(*pending, level, &reached), BVK_OK);
    CHECK(reached >= level);
    IS(bvk_release(pending), BVK_OK);
}

// The field is captured in the order of the stream, and restored to the same place after the session was opened anew.
static void checkpoints(void) {
    bvk_session_t session = open_session();
    bvk_pending_t pending[3];
    protect(session);
    for (uint32_t version = 1; version <= 3; version++) {
        set(version);
        if (version < 3) {
            IS(bvk_checkpoint(session, "gpu", version, &pending[version - 1]), BVK_OK);
        } else {
            bvk_checkpoint_t checkpoint;
            IS(bvk_begin_checkpoint(session, "gpu", version, &checkpoint), BVK_OK);
            IS(bvk_save_protected(checkpoint), BVK_OK);
            IS(bvk_save(checkpoint, "again", at(field + OFFSET), 1000, BVK_U32), BVK_OK);
            IS(bvk_capture(&checkpoint, &pending[version - 1]), BVK_OK);
        }
        CHECK(current() == context);
        // The field is overwritten at once: the copy was made before.
        set(1000 + version);
    }
    for (int i = 0; i < 3; i++) commit(&pending[i], BVK_LEVEL_SYSTEM);
    IS(bvk_close(&session), BVK_OK);
    CHECK(current() == context);

    session = open_session();
    bvk_restored restored = BVK_RESTORED_INIT;
    protect(session);
    set(77);
    IS(bvk_restore(session, "gpu", 2, &restored), BVK_OK);
    CHECK(current() == context);
    CHECK(restored.version == 2 && is(2));
    bvk_restart_t restart;
    IS(bvk_begin_restore(session, "gpu", 3, &restart), BVK_OK);
    IS(bvk_load_protected(restart), BVK_OK);
    // Device regions are loaded into host memory, and host regions into device memory.
    uint32_t host[1000];
    IS(bvk_load(restart, "again", host, 1000, BVK_U32), BVK_OK);
    IS(bvk_load(restart, "few", at(scratch), 3, BVK_U32), BVK_OK);
    IS(bvk_load(restart, "few", at(scratch), 4, BVK_U32), BVK_ERR_LOAD);
    IS(bvk_load(restart, "few", at(scratch), 3, BVK_U32), BVK_OK);
    IS(bvk_end_restore(&restart, 1, &restored), BVK_OK);
    CHECK(restored.version == 3 && is(3) && host[0] == word(3) && host[999] == word(3));
    uint32_t three[3];
    CHECK(cuMemcpyDtoH_v2(three, scratch, sizeof three) == 0 && !memcmp(three, few, sizeof few));
    IS(bvk_close(&session), BVK_OK);
}

static void *without_context(void *argument) {
    bvk_session_t session = argument;
    CHECK(current() == NULL);
    IS(bvk_protect(session, "field", at(field + OFFSET), WORDS - 1, BVK_U32), BVK_OK);
    CHECK(current() == NULL);
    return NULL;
}

// Memory that does not belong to the GPU's own context, and memory that no longer exists.
static void mistakes(void) {
    bvk_session_t session = open_session();
    bvk_pending_t pending = NULL;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, without_context, session) == 0 && pthread_join(thread, NULL) == 0);

    // A checkpoint uses one GPU, and a stream that the program has made.
    IS(bvk_set_stream(session, at(2)), BVK_OK);
    IS(bvk_checkpoint(session, "wrong", 1, &pending), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "per-thread default stream"));
    IS(bvk_set_stream(session, stream), BVK_OK);
    if (gpus > 1) {
        int other;
        void *others;
        gpu_address there;
        CHECK(cuDeviceGet(&other, (rank + 1) % gpus) == 0 && cuDevicePrimaryCtxRetain(&others, other) == 0);
        CHECK(cuCtxSetCurrent(others) == 0 && cuMemAlloc_v2(&there, 4096) == 0 && cuCtxSetCurrent(context) == 0);
        IS(bvk_protect(session, "there", at(there), 1024, BVK_U32), BVK_OK);
        IS(bvk_checkpoint(session, "wrong", 2, &pending), BVK_ERR_DEVICE);
        CHECK(strstr(bvk_error(), "in a checkpoint with its own name"));
        CHECK(current() == context);
        IS(bvk_unprotect(session, "there"), BVK_OK);
        CHECK(cuMemFree_v2(there) == 0);
    }

    // Values must be in host memory.
    IS(bvk_protect_shared(session, "shared", at(field), 1, BVK_U32), BVK_ERR_ARGUMENT);
    CHECK(strstr(bvk_error(), "only from host memory"));

    // Memory that the processor can read is host memory, whoever allocated it.
    gpu_address managed;
    uint32_t *pinned;
    CHECK(cuMemAllocManaged(&managed, 4096, 1) == 0);
    CHECK(cuMemHostAlloc((void **)&pinned, 4096, 0) == 0);
    for (int i = 0; i < 1024; i++) ((uint32_t *)at(managed))[i] = pinned[i] = (uint32_t)i;
    IS(bvk_unprotect_all(session), BVK_OK);
    IS(bvk_protect(session, "managed", at(managed), 1024, BVK_U32), BVK_OK);
    IS(bvk_protect(session, "pinned", pinned, 1024, BVK_U32), BVK_OK);
    IS(bvk_checkpoint(session, "hosts", 1, &pending), BVK_OK);
    commit(&pending, BVK_LEVEL_NODE_REBOOT);
    for (int i = 0; i < 1024; i++) ((uint32_t *)at(managed))[i] = pinned[i] = 0;
    IS(bvk_restore(session, "hosts", BVK_NEWEST, NULL), BVK_OK);
    for (uint32_t i = 0; i < 1024; i++) CHECK(((uint32_t *)at(managed))[i] == i && pinned[i] == i);
    IS(bvk_unprotect_all(session), BVK_OK);

    // This memory belongs to another context than the GPU's own: it is saved unchanged, and the current context stays the same.
    void *beside;
    gpu_address foreign;
    CHECK(cuCtxCreate_v2(&beside, 0, device) == 0 && cuMemAlloc_v2(&foreign, 4096) == 0);
    for (uint32_t i = 0; i < 1024; i++) back[i] = i * 3 + (uint32_t)rank;
    CHECK(cuMemcpyHtoD_v2(foreign, back, 4096) == 0);
    protect(session);
    IS(bvk_protect(session, "foreign", at(foreign), 1024, BVK_U32), BVK_OK);
    IS(bvk_checkpoint(session, "beside", 1, &pending), BVK_OK);
    commit(&pending, BVK_LEVEL_NODE_REBOOT);
    CHECK(current() == beside);
    memset(back, 0, 4096);
    CHECK(cuMemcpyHtoD_v2(foreign, back, 4096) == 0);
    IS(bvk_restore(session, "beside", BVK_NEWEST, NULL), BVK_OK);
    CHECK(cuMemcpyDtoH_v2(back, foreign, 4096) == 0);
    for (uint32_t i = 0; i < 1024; i++) CHECK(back[i] == i * 3 + (uint32_t)rank);
    CHECK(current() == beside);
    // This context is above the other one on the thread's stack of contexts. When it is destroyed, the other one is current again.
    CHECK(cuMemFree_v2(foreign) == 0 && cuCtxDestroy_v2(beside) == 0 && current() == context);
    IS(bvk_unprotect_all(session), BVK_OK);

    // This memory was freed on rank 0 after it was protected.
    gpu_address gone;
    CHECK(cuMemAlloc_v2(&gone, 64 << 20) == 0);
    protect(session);
    IS(bvk_protect(session, "gone", at(gone), 16 << 20, BVK_U32), BVK_OK);
    if (rank == 0) CHECK(cuMemFree_v2(gone) == 0);
    int status = bvk_checkpoint(session, "gone", 1, &pending);
    if (rank == 0) {
        CHECK(status == BVK_ERR_CAPTURE || status == BVK_ERR_DEVICE);
        fprintf(stderr, "freed memory: %s\n", bvk_error());
    } else {
        int reached;
        CHECK(status == BVK_OK && bvk_wait(pending, BVK_LEVEL_NODE_REBOOT, &reached) == BVK_ERR_NOT_COMMITTED);
        IS(bvk_release(&pending), BVK_OK);
    }
    IS(bvk_unprotect(session, "gone"), BVK_OK);
    // The session and the context still work.
    set(9);
    IS(bvk_checkpoint(session, "after", 1, &pending), BVK_OK);
    set(10);
    commit(&pending, BVK_LEVEL_NODE_REBOOT);
    IS(bvk_restore(session, "after", BVK_NEWEST, NULL), BVK_OK);
    CHECK(is(9));
    IS(bvk_close(&session), BVK_OK);
}

// A box of an array of ROWS x COLUMNS elements in GPU memory, with `halo` ghost cells around it.
enum { ROWS = 60, COLUMNS = 1000, OTHER = 7777 };
struct box {
    uint64_t origin[2], extent[2], halo;
    gpu_address address;
    uint32_t *host;
};

static uint64_t length(const struct box *box) { return (box->extent[0] + 2 * box->halo) * (box->extent[1] + 2 * box->halo); }

static struct box box_of(uint64_t y, uint64_t height, uint64_t x, uint64_t width, uint64_t halo) {
    struct box box = {{y, x}, {height, width}, halo, 0, NULL};
    box.host = malloc(4 * length(&box));
    CHECK(box.host != NULL && cuMemAlloc_v2(&box.address, 4 * length(&box)) == 0);
    return box;
}

// Checks the memory of a box: the array's elements or other values inside, and ghost cells that nobody has touched.
static void expect(struct box *box, int is_set) {
    uint64_t width = box->extent[1] + 2 * box->halo;
    for (uint64_t i = 0; i < length(box); i++) {
        uint64_t y = i / width - box->halo, x = i % width - box->halo;
        int is_inside = y < box->extent[0] && x < box->extent[1];
        box->host[i] = is_inside && is_set ? (uint32_t)((box->origin[0] + y) * COLUMNS + box->origin[1] + x) : OTHER;
    }
}

static void put(struct box *box, int is_set) {
    expect(box, is_set);
    CHECK(cuMemcpyHtoD_v2(box->address, box->host, 4 * length(box)) == 0);
}

static int is_there(struct box *box) {
    uint32_t *found = malloc(4 * length(box));
    CHECK(found != NULL && cuStreamSynchronize(stream) == 0 && cuMemcpyDtoH_v2(found, box->address, 4 * length(box)) == 0);
    expect(box, 1);
    int is = memcmp(found, box->host, 4 * length(box)) == 0;
    free(found);
    return is;
}

static bvk_boxes_t agree(bvk_session_t session, size_t count, const struct box *some) {
    uint64_t shape[2] = {ROWS, COLUMNS}, halo[2] = {some->halo, some->halo}, origins[4], extents[4];
    bvk_boxes_t boxes;
    for (size_t i = 0; i < count; i++) {
        memcpy(origins + 2 * i, some[i].origin, sizeof some[i].origin);
        memcpy(extents + 2 * i, some[i].extent, sizeof some[i].extent);
    }
    IS(bvk_boxes(session, 2, shape, count, origins, extents, halo, halo, 0, &boxes), BVK_OK);
    return boxes;
}

// Boxes in GPU memory are saved as rows of the array, and loaded as rows, as columns in two pieces, and into host memory.
static void boxes_are_cut_anew(void) {
    bvk_session_t session = open_session();
    bvk_pending_t pending;
    uint64_t y = (uint64_t)(ROWS * rank / ranks), height = (uint64_t)(ROWS * (rank + 1) / ranks) - y;
    uint64_t x = (uint64_t)(COLUMNS * rank / ranks), width = (uint64_t)(COLUMNS * (rank + 1) / ranks) - x;
    struct box row = box_of(y, height, 0, COLUMNS, 1);
    struct box columns[2] = {box_of(0, 20, x, width, 2), box_of(20, ROWS - 20, x, width, 2)};
    bvk_boxes_t rows = agree(session, 1, &row), cut = agree(session, 2, columns);
    IS(bvk_set_stream(session, stream), BVK_OK);
    IS(bvk_protect_on(session, "array", rows, at(row.address), length(&row) - 1, BVK_U32), BVK_ERR_REGION);
    IS(bvk_protect_on(session, "array", rows, at(row.address), length(&row), BVK_U32), BVK_OK);
    put(&row, 1);
    IS(bvk_checkpoint(session, "boxes", 1, &pending), BVK_OK);
    commit(&pending, BVK_LEVEL_SYSTEM);
    put(&row, 0);
    IS(bvk_restore(session, "boxes", BVK_NEWEST, NULL), BVK_OK);
    CHECK(is_there(&row) && current() == context);

    void *both[2] = {at(columns[0].address), at(columns[1].address)};
    uint64_t lengths[2] = {length(&columns[0]), length(&columns[1])};
    put(&columns[0], 0);
    put(&columns[1], 0);
    IS(bvk_protect_boxes_on(session, "array", cut, 2, both, lengths, BVK_U32), BVK_OK);
    IS(bvk_restore(session, "boxes", BVK_NEWEST, NULL), BVK_OK);
    CHECK(is_there(&columns[0]) && is_there(&columns[1]) && current() == context);

    // One rank has its columns in host memory, and then in host and GPU memory, which is refused.
    void *mixed[2] = {columns[0].host, both[1]};
    IS(bvk_protect_boxes_on(session, "array", cut, 2, mixed, lengths, BVK_U32), BVK_ERR_ARGUMENT);
    void *host[2] = {columns[0].host, columns[1].host};
    put(&columns[0], 0);
    put(&columns[1], 0);
    IS(bvk_protect_boxes_on(session, "array", cut, 2, rank == 0 ? host : both, lengths, BVK_U32), BVK_OK);
    IS(bvk_restore(session, "boxes", BVK_NEWEST, NULL), BVK_OK);
    for (int i = 0; i < 2; i++) {
        if (rank == 0) CHECK(cuMemcpyHtoD_v2(columns[i].address, columns[i].host, 4 * length(&columns[i])) == 0);
        CHECK(is_there(&columns[i]));
    }
    // Columns are saved directly, from GPU and host memory.
    IS(bvk_checkpoint(session, "columns", 1, &pending), BVK_OK);
    commit(&pending, BVK_LEVEL_SYSTEM);
    put(&row, 0);
    IS(bvk_protect_on(session, "array", rows, at(row.address), length(&row), BVK_U32), BVK_OK);
    IS(bvk_restore(session, "columns", BVK_NEWEST, NULL), BVK_OK);
    CHECK(is_there(&row));
    IS(bvk_close(&session), BVK_OK);
    struct box *all[3] = {&row, &columns[0], &columns[1]};
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemFree_v2(all[i]->address) == 0);
        free(all[i]->host);
    }
}

// A history in GPU memory is read back in the opposite order, and once more after it was saved and loaded.
static void histories(void) {
    enum { VERSIONS = 12 };
    bvk_session_t session = open_session();
    bvk_history_t history, loaded;
    bvk_pending_t pending;
    uint64_t order[VERSIONS], count;
    IS(bvk_set_stream(session, stream), BVK_OK);
    IS(bvk_history_open(session, "shot", device, BVK_KEEP_ALL, &history), BVK_OK);
    IS(bvk_history_field(history, "field", at(field + OFFSET), WORDS - 1, BVK_U32), BVK_OK);
    IS(bvk_history_field(history, "few", few, 3, BVK_U32), BVK_OK);
    for (int i = 0; i < VERSIONS; i++) order[i] = (uint64_t)(VERSIONS - 1 - i);
    IS(bvk_history_hint(history, order, VERSIONS), BVK_OK);
    for (uint32_t version = 0; version < VERSIONS; version++) {
        set(version);
        IS(bvk_history_append(history, version), BVK_OK);
        CHECK(current() == context);
    }
    IS(bvk_history_start_prefetch(history), BVK_OK);
    for (int i = 0; i < VERSIONS; i++) {
        set(99);
        IS(bvk_history_restore(history, order[i]), BVK_OK);
        CHECK(is((uint32_t)order[i]));
    }
    IS(bvk_history_restore(history, VERSIONS), BVK_ERR_DEVICE);
    IS(bvk_history_wait_flushed(history), BVK_OK);
    bvk_checkpoint_t checkpoint;
    IS(bvk_begin_checkpoint(session, "sealed", 1, &checkpoint), BVK_OK);
    IS(bvk_save_history(checkpoint, history), BVK_OK);
    IS(bvk_capture(&checkpoint, &pending), BVK_OK);
    commit(&pending, BVK_LEVEL_NODE_REBOOT);
    IS(bvk_history_close(&history), BVK_OK);
    IS(bvk_history_open(session, "shot", device, BVK_KEEP_ALL, &loaded), BVK_OK);
    IS(bvk_history_field(loaded, "field", at(field + OFFSET), WORDS - 1, BVK_U32), BVK_OK);
    IS(bvk_history_field(loaded, "few", few, 3, BVK_U32), BVK_OK);
    bvk_restart_t restart;
    IS(bvk_begin_restore(session, "sealed", BVK_NEWEST, &restart), BVK_OK);
    CHECK(cuCtxSetCurrent(NULL) == 0);
    IS(bvk_load_history(restart, loaded, &count), BVK_OK);
    CHECK(current() == NULL);
    CHECK(count == VERSIONS && cuCtxSetCurrent(context) == 0);
    IS(bvk_end_restore(&restart, 1, NULL), BVK_OK);
    IS(bvk_history_restore(loaded, 5), BVK_OK);
    CHECK(is(5));
    IS(bvk_history_close(&loaded), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
    CHECK(current() == context);
}

// A stream is captured into a graph, in the mode that forbids most operations to all threads: the library's calls and threads work, and the
// graph is captured whole.
static void graphs(void) {
    bvk_session_t session = open_session();
    bvk_history_t history;
    bvk_pending_t pending;
    void *side, *graph = NULL;
    protect(session);
    IS(bvk_history_open(session, "beside a graph", device, BVK_KEEP_ALL, &history), BVK_OK);
    IS(bvk_history_field(history, "field", at(field + OFFSET), WORDS - 1, BVK_U32), BVK_OK);
    IS(bvk_history_field(history, "few", few, 3, BVK_U32), BVK_OK);
    set(4);
    CHECK(cuStreamCreate(&side, 1) == 0 && cuStreamBeginCapture_v2(side, 0) == 0);
    for (uint64_t version = 1; version <= 4; version++) {
        CHECK(cuMemsetD32Async(scratch, 1, WORDS, side) == 0);
        IS(bvk_checkpoint(session, "graph", version, &pending), BVK_OK);
        IS(bvk_history_append(history, version), BVK_OK);
        commit(&pending, BVK_LEVEL_SYSTEM);
    }
    IS(bvk_history_wait_flushed(history), BVK_OK);
    IS(bvk_history_restore(history, 2), BVK_OK);
    CHECK(cuStreamEndCapture(side, &graph) == 0 && graph != NULL && cuGraphDestroy(graph) == 0);
    CHECK(is(4));
    IS(bvk_history_close(&history), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
}

// The application has registered host memory in pieces, except for a part in between.
static void registered_in_pieces(void) {
    enum { PIECE = 3 << 20, PIECES = 5 };
    bvk_session_t session = open_session();
    bvk_history_t history;
    char *host;
    CHECK(posix_memalign((void **)&host, 4096, PIECE * PIECES) == 0);
    for (int i = 0; i < PIECE * PIECES; i++) host[i] = (char)(i * 7 + i / 4096 + rank);
    for (int i = 0; i < PIECES; i++) {
        if (i != 3) CHECK(cuMemHostRegister_v2(host + i * PIECE, PIECE, 0) == 0);
    }
    IS(bvk_history_open(session, "pieces", device, BVK_KEEP_ALL, &history), BVK_OK);
    IS(bvk_history_field(history, "host", host + 100, PIECE * PIECES - 200, BVK_U8), BVK_OK);
    IS(bvk_history_append(history, 1), BVK_OK);
    memset(host, 0, PIECE * PIECES);
    IS(bvk_history_restore(history, 1), BVK_OK);
    for (int i = 100; i < PIECE * PIECES - 100; i++) CHECK(host[i] == (char)(i * 7 + i / 4096 + rank));
    IS(bvk_history_close(&history), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
    for (int i = 0; i < PIECES; i++) {
        if (i != 3) CHECK(cuMemHostUnregister(host + i * PIECE) == 0);
    }
    free(host);
}

#define FIELD_BYTES (4 * (uint64_t)(WORDS - 1))

// Opens a session that marks however much room the GPU cache has.
static bvk_session_t open_marking(void) {
    const char *settings[] = {"offload.mode=always", NULL};
    bvk_options options = BVK_OPTIONS_INIT;
    bvk_session_t session;
    options.settings = settings;
    IS(bvk_open(MPI_COMM_WORLD, &options, &session), BVK_OK);
    protect(session);
    IS(bvk_before_write(session, at(field), 4), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "call bvk_offload first"));
    IS(bvk_offload(session, device, FIELD_BYTES + sizeof few), BVK_OK);
    IS(bvk_offload(session, BVK_NO_GPU, 0), BVK_ERR_STATE);
    CHECK(current() == context);
    return session;
}

static bvk_stats stats_of(bvk_session_t session) {
    bvk_stats stats = BVK_STATS_INIT;
    IS(bvk_get_stats(session, &stats), BVK_OK);
    return stats;
}

// The program waits until marked checkpoints are in files: two slots of node memory are made ready, and a third checkpoint would be copied.
static bvk_pending_t mark(bvk_session_t session, uint64_t version) {
    bvk_pending_t pending;
    IS(bvk_checkpoint(session, "marks", version, &pending), BVK_OK);
    CHECK(current() == context);
    return pending;
}

// Checkpoints are sent from live memory, while the application at once declares and overwrites its memory, in every possible way.
static void marks(void) {
    enum { LAST = 8 };
    bvk_session_t session = open_marking();
    bvk_write_set_t writes;
    void *side;
    const void *data[3] = {at(field + OFFSET), at(scratch), few};
    const uint64_t bytes[3] = {FIELD_BYTES, 4 * (uint64_t)WORDS, sizeof few};
    CHECK(cuStreamCreate(&side, 1) == 0);
    IS(bvk_write_set(session, "field", data, bytes, 3, &writes), BVK_OK);
    for (uint32_t version = 1; version <= LAST; version++) {
        IS(bvk_before(writes), BVK_OK);
        set(version);
        bvk_pending_t pending = mark(session, version);
        if (version == 1) {
            IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
        } else if (version == 2) {
            for (uint64_t piece = 0; piece < FIELD_BYTES; piece += 1000004) {
                uint64_t rest = FIELD_BYTES - piece;
                IS(bvk_before_write(session, at(field + OFFSET + piece), rest < 1000004 ? rest : 1000004), BVK_OK);
            }
        } else if (version == 3) {
            IS(bvk_before_on(writes, stream), BVK_OK);
        } else if (version == 4 || version == 5) {
            // Another stream writes, and only the declaration orders its write after the mark.
            if (version == 4) IS(bvk_before_write_on(session, at(field + OFFSET), FIELD_BYTES, side), BVK_OK);
            if (version == 5) IS(bvk_before_on(writes, side), BVK_OK);
            CHECK(cuMemsetD32Async(field + OFFSET, 5, WORDS - 1, side) == 0 && cuStreamSynchronize(side) == 0);
            IS(bvk_before(writes), BVK_OK);
        } else {
            IS(bvk_before(writes), BVK_OK);
        }
        set(1000 + version);
        CHECK(current() == context);
        commit(&pending, BVK_LEVEL_SYSTEM);
        // The restore writes to the field itself, and need not be declared.
        IS(bvk_restore(session, "marks", BVK_NEWEST, NULL), BVK_OK);
        CHECK(is(version));
    }
    bvk_stats stats = stats_of(session);
    CHECK(stats.marks == LAST && stats.marks_refused == 0 && stats.marked_bytes == LAST * FIELD_BYTES);
    CHECK(stats.doubled_bytes + stats.urgent_bytes > 0);
    IS(bvk_write_set_close(&writes), BVK_OK);

    // This memory is freed after the mark, and the session closes after a mark.
    gpu_address gone;
    CHECK(cuMemAlloc_v2(&gone, 64 << 20) == 0 && cuMemsetD32Async(gone, 7, 16 << 20, stream) == 0);
    IS(bvk_protect(session, "gone", at(gone), 16 << 20, BVK_U32), BVK_OK);
    IS(bvk_offload(session, device, FIELD_BYTES + sizeof few + (64 << 20)), BVK_OK);
    bvk_pending_t pending = mark(session, LAST + 1);
    IS(bvk_settle(session), BVK_OK);
    IS(bvk_unprotect(session, "gone"), BVK_OK);
    CHECK(cuMemFree_v2(gone) == 0);
    commit(&pending, BVK_LEVEL_SYSTEM);
    CHECK(stats_of(session).marks == LAST + 1);
    IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
    set(LAST + 2);
    pending = mark(session, LAST + 2);
    IS(bvk_release(&pending), BVK_OK);
    IS(bvk_close(&session), BVK_OK);
    session = open_session();
    protect(session);
    IS(bvk_restore(session, "marks", BVK_NEWEST, NULL), BVK_OK);
    CHECK(is(LAST + 2));
    IS(bvk_close(&session), BVK_OK);
    CHECK(cuCtxSynchronize() == 0 && current() == context);
}

// Rank 0 does not declare a write: all ranks hear of it, and after the second time in a row rank 0 copies until it is told to mark again.
static void forgotten_writes(void) {
    bvk_session_t session = open_marking();
    for (uint32_t version = 20; version <= 23; version++) {
        bvk_stats before = stats_of(session);
        IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
        set(version);
        bvk_pending_t pending = mark(session, version);
        if (rank > 0) IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
        CHECK(cuMemsetD32Async(field + OFFSET, 5, WORDS - 1, stream) == 0);
        if (version < 22) {
            IS(bvk_wait(pending, BVK_LEVEL_SYSTEM, NULL), BVK_ERR_NOT_COMMITTED);
            CHECK(strstr(bvk_error(), "rank 0") && strstr(bvk_error(), "\"field\" has changed"));
            IS(bvk_release(&pending), BVK_OK);
        } else {
            commit(&pending, BVK_LEVEL_SYSTEM);
            IS(bvk_restore(session, "marks", BVK_NEWEST, NULL), BVK_OK);
            CHECK(is(version));
        }
        CHECK(stats_of(session).marks - before.marks == (rank == 0 && version >= 22 ? 0 : 1));
    }
    CHECK(stats_of(session).marks_refused == (rank == 0 ? 2 : 0));
    IS(bvk_allow_marks(session), BVK_OK);
    IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
    set(24);
    bvk_pending_t pending = mark(session, 24);
    commit(&pending, BVK_LEVEL_SYSTEM);
    CHECK(stats_of(session).marks == (rank == 0 ? 3 : 5));
    IS(bvk_close(&session), BVK_OK);
}

// A declaration cannot be part of a graph: the program makes it before the launch.
static void marks_and_graphs(void) {
    bvk_session_t session = open_marking();
    bvk_pending_t pending = NULL;
    void *graph = NULL, *ready = NULL;
    set(30);
    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    CHECK(cuMemsetD32Async(field + OFFSET, 5, WORDS - 1, stream) == 0);
    IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_ERR_STATE);
    CHECK(strstr(bvk_error(), "before each launch"));
    IS(bvk_before_write_on(session, at(field + OFFSET), FIELD_BYTES, stream), BVK_ERR_STATE);
    // Declarations of host memory are accepted, whatever the stream does.
    IS(bvk_before_write(session, few, sizeof few), BVK_OK);
    IS(bvk_checkpoint(session, "marks", 30, &pending), BVK_ERR_STATE);
    CHECK(pending == NULL && strstr(bvk_error(), "CUDA graph"));
    CHECK(cuStreamEndCapture(stream, &graph) == 0 && graph != NULL);
    CHECK(cuGraphInstantiateWithFlags(&ready, graph, 0) == 0);
    for (uint64_t version = 31; version <= 33; version++) {
        IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
        set((uint32_t)version);
        pending = mark(session, version);
        IS(bvk_before_write(session, at(field + OFFSET), FIELD_BYTES), BVK_OK);
        CHECK(cuGraphLaunch(ready, stream) == 0);
        commit(&pending, BVK_LEVEL_SYSTEM);
        IS(bvk_restore(session, "marks", BVK_NEWEST, NULL), BVK_OK);
        CHECK(is((uint32_t)version));
    }
    CHECK(stats_of(session).marks == 3 && stats_of(session).marks_refused == 0);
    CHECK(cuGraphExecDestroy(ready) == 0 && cuGraphDestroy(graph) == 0);
    IS(bvk_close(&session), BVK_OK);
}

// The application's kernel wrote to an invalid address: its GPU is lost, but host memory can still be saved.
static void crashed(void) {
    static const char code[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry crash() {\n"
                               ".reg .u64 %a;\n.reg .u32 %b;\nmov.u64 %a, 8;\nmov.u32 %b, 1;\nst.global.u32 [%a], %b;\nret;\n}\n";
    bvk_session_t session = open_session();
    bvk_pending_t pending;
    void *module, *crash;
    for (int i = 0; i < 3; i++) few[i] = 70 + (uint32_t)i;
    CHECK(cuModuleLoadData(&module, code) == 0 && cuModuleGetFunction(&crash, module, "crash") == 0);
    CHECK(cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 0 && cuStreamSynchronize(stream) != 0);
    IS(bvk_protect(session, "few", few, 3, BVK_U32), BVK_OK);
    IS(bvk_checkpoint(session, "crashed", 1, &pending), BVK_OK);
    commit(&pending, BVK_LEVEL_NODE_REBOOT);
    memset(few, 0, sizeof few);
    IS(bvk_restore(session, "crashed", BVK_NEWEST, NULL), BVK_OK);
    CHECK(few[0] == 70 && few[2] == 72);
    // The GPU's memory cannot be saved, and the error says so.
    IS(bvk_protect(session, "field", at(field + OFFSET), WORDS - 1, BVK_U32), BVK_OK);
    int status = bvk_checkpoint(session, "crashed", 2, &pending);
    CHECK(status == BVK_ERR_DEVICE || status == BVK_ERR_CAPTURE);
    fprintf(stderr, "lost GPU: %s\n", bvk_error());
    CHECK(strstr(bvk_error(), "is lost"));
    IS(bvk_close(&session), BVK_OK);
}

// The first call for a GPU loads the driver and creates a context, but the calling thread still has none.
static void first_call(void) {
    bvk_session_t session = open_session();
    bvk_history_t history;
    if (bvk_history_open(session, "first", 0, BVK_KEEP_ALL, &history) == BVK_OK) {
        CHECK(gpu_find());
        CHECK(current() == NULL);
        IS(bvk_history_close(&history), BVK_OK);
        CHECK(current() == NULL);
    }
    IS(bvk_close(&session), BVK_OK);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    first_call();
    gpus = gpu_start(rank, &device, &context);
    if (gpus == 0) return gpu_skipped(rank);
    back = malloc(4 * (size_t)WORDS);
    // This stream does not wait for the default stream.
    CHECK(back != NULL && cuStreamCreate(&stream, 1) == 0);
    CHECK(cuMemAlloc_v2(&field, 4 * (size_t)WORDS + OFFSET) == 0 && cuMemAlloc_v2(&scratch, 4 * (size_t)WORDS) == 0);
    checkpoints();
    mistakes();
    boxes_are_cut_anew();
    histories();
    graphs();
    registered_in_pieces();
    marks();
    forgotten_writes();
    marks_and_graphs();
    CHECK(cuCtxSynchronize() == 0);
    crashed();
    MPI_Finalize();
    if (rank == 0) puts("ok");
    return 0;
}
