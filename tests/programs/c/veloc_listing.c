// The interface as listing 1 of the HPDC 2023 paper on caching and prefetching shows it: a shot saves versions of varying length and reads
// them back in reverse order, with the paper's shorter calls.

#define VELOC_HPDC_LISTING
#include "veloc.h"
#include "veloc_check.h"

#define VERSIONS 8

static unsigned char data[1 << 16];

// The length of a version, and its contents.
static size_t length(int version) { return sizeof data - 4097 * (size_t)version; }

static unsigned char value(int rank, int version, size_t at) { return (unsigned char)(at * 7 + (size_t)(31 * version + rank)); }

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    OK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
    for (int shot = 0; shot < 2; shot++) {
        for (int version = VERSIONS - 1; version >= 0; version--) OK(VELOC_Prefetch_enqueue(version));
        for (int version = 0; version < VERSIONS; version++) {
            for (size_t at = 0; at < length(version); at++) data[at] = value(rank, version, at);
            OK(VELOC_Mem_protect(1, data, length(version)));
            OK(VELOC_Checkpoint("shot", version));
        }
        OK(VELOC_Prefetch_start());
        FAILS(VELOC_Recover_size(VERSIONS, 1));
        FAILS(VELOC_Recover_size(0, 2));
        FAILS(VELOC_Restart(VERSIONS));
        for (int version = VERSIONS - 1; version >= 0; version--) {
            size_t size = (size_t)VELOC_Recover_size(version, 1);
            CHECK(size == length(version));
            for (size_t at = 0; at < sizeof data; at++) data[at] = 0;
            OK(VELOC_Mem_protect(1, data, size));
            OK(VELOC_Restart(version));
            for (size_t at = 0; at < size; at++) CHECK(data[at] == value(rank, version, at));
            // This version was announced once and restored once.
            FAILS(VELOC_Restart(version));
        }
    }
    // A version must not be saved again before it was restored: the older one would be restored in its place.
    char path[VELOC_MAX_NAME];
    OK(VELOC_Prefetch_enqueue(50));
    OK(VELOC_Checkpoint("shot", 50));
    FAILS(VELOC_Checkpoint("shot", 50));
    OK(VELOC_Restart(50));
    // A version that one rank does not save exists on no rank, and the ranks stay in step. Versions cannot include files.
    OK(VELOC_Prefetch_enqueue(51));
    OK(VELOC_Checkpoint_begin("shot", 51));
    OK(VELOC_Checkpoint_mem());
    if (rank == 1) FAILS(VELOC_Route_file("out", path));
    CHECK(VELOC_Checkpoint_end(1) == VELOC_FAILURE);
    FAILS(VELOC_Restart(rank == 1 ? -1 : 51));
    // No checkpoint was made of the announced versions, but one whose version was not announced is a checkpoint.
    FAILS(VELOC_Restart_test("shot", 0));
    OK(VELOC_Checkpoint("shot", 100));
    CHECK(VELOC_Restart_test("shot", 0) == 100);
    OK(VELOC_Finalize(1));
    MPI_Finalize();
    printf("listing: done\n");
    return 0;
}
