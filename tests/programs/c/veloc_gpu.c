// GPU memory that is protected by VELOC's functions, which know no streams: the copies are ordered on the legacy default stream, and
// announced versions are read back from the GPU cache. tests/mpi_veloc.rs and ci/gpu/run.sh run it on two ranks with the
// configuration as its argument.
#include "veloc.h"
#include "gpu.h"
#include "veloc_check.h"

enum { WORDS = 1 << 20, VERSIONS = 6, MANY = 300 };

static int rank, step;
static gpu_address field, scratch;
static unsigned back[WORDS];

static void set(int value) {
    // Work that takes some milliseconds comes first, and the call returns while it runs.
    for (int i = 0; i < MANY; i++) CHECK(cuMemsetD32Async(scratch, (unsigned)i, WORDS, NULL) == 0);
    CHECK(cuMemsetD32Async(field, (unsigned)(100 * value + rank), WORDS, NULL) == 0);
    step = value;
}

static int is(int value) {
    CHECK(cuMemcpyDtoH_v2(back, field, sizeof back) == 0);
    for (int i = 0; i < WORDS; i++) {
        if (back[i] != (unsigned)(100 * value + rank)) return 0;
    }
    return step == value;
}

int main(int argc, char **argv) {
    int device;
    void *context, *now;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (gpu_start(rank, &device, &context) == 0) return gpu_skipped(rank);
    CHECK(cuMemAlloc_v2(&field, sizeof back) == 0 && cuMemAlloc_v2(&scratch, sizeof back) == 0);
    for (int run = 0; run < 2; run++) {
        OK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
        OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
        OK(VELOC_Mem_protect(1, (void *)(uintptr_t)field, WORDS, sizeof back[0]));
        if (run == 1) {
            set(55);
            CHECK(VELOC_Restart_test("gpu", 0) == 3);
            OK(VELOC_Restart("gpu", 2));
            CHECK(is(2));
            OK(VELOC_Restart_begin("gpu", 3));
            CHECK(VELOC_Recover_size(1) == sizeof back);
            OK(VELOC_Recover_mem());
            OK(VELOC_Restart_end(1));
            CHECK(is(3));
        }
        for (int version = 1; version <= 3; version++) {
            set(version);
            OK(VELOC_Checkpoint("gpu", version));
            set(1000 + version);
        }
        OK(VELOC_Checkpoint_wait());
        CHECK(cuCtxGetCurrent(&now) == 0 && now == context);
        OK(VELOC_Finalize(1));
    }
    OK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Mem_protect(1, (void *)(uintptr_t)field, WORDS, sizeof back[0]));
    for (int version = VERSIONS - 1; version >= 0; version--) OK(VELOC_Prefetch_enqueue(100 + version));
    for (int version = 0; version < VERSIONS; version++) {
        set(version);
        OK(VELOC_Checkpoint("shot", 100 + version));
    }
    OK(VELOC_Prefetch_start());
    for (int version = VERSIONS - 1; version >= 0; version--) {
        set(99);
        CHECK(VELOC_Recover_size_of(100 + version, 1) == sizeof back);
        OK(VELOC_Prefetch_restore(100 + version));
        CHECK(is(version));
    }
    OK(VELOC_Finalize(1));
    MPI_Finalize();
    if (rank == 0) puts("ok");
    return 0;
}
