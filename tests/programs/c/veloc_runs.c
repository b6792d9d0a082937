// Two runs of one job exist at the same time. argv: `first`, a configuration file, and a folder; or `second`, a configuration file, one
// that takes over, and the folder. A file in the folder says that the first run has saved, and another file says that the second run has.

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bivouac.h"
#include "veloc.h"
#include "veloc_check.h"

static int rank, value;

static const char *file_in(const char *folder, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// Sends a word to the other run; `hear` waits for one.
static void say(const char *folder, const char *name) {
    MPI_Barrier(MPI_COMM_WORLD);
    FILE *file = rank == 0 ? fopen(file_in(folder, name), "w") : NULL;
    CHECK(rank != 0 || (file != NULL && fclose(file) == 0));
}

static void hear(const char *folder, const char *name) {
    struct timespec pause = {0, 1000000};
    while (access(file_in(folder, name), F_OK) != 0) nanosleep(&pause, NULL);
}

static int saved(int version) {
    value = 100 * version + rank;
    int status = VELOC_Checkpoint("runs", version);
    return status == VELOC_SUCCESS ? VELOC_Checkpoint_wait() : status;
}

static void first(const char *config, const char *folder) {
    OK(VELOC_Init(MPI_COMM_WORLD, config));
    OK(VELOC_Mem_protect(0, &value, 1, sizeof value));
    OK(saved(1));
    say(folder, "first");
    hear(folder, "second");
    // Another run has taken over the job: nothing that this run does counts any more, nothing is deleted, and the program continues.
    FAILS(saved(2));
    FAILS(saved(3));
    FAILS(VELOC_Cleanup("runs"));
    VELOC_Finalize(1);
    CHECK(value == 300 + rank);
}

static void second(const char *config, const char *take_over, const char *folder) {
    FAILS(VELOC_Init(MPI_COMM_WORLD, config));
    CHECK(strstr(bvk_error(), "take_over") != NULL);
    OK(VELOC_Init(MPI_COMM_WORLD, take_over));
    OK(VELOC_Mem_protect(0, &value, 1, sizeof value));
    CHECK(VELOC_Restart_test("runs", 0) == 1);
    OK(VELOC_Restart("runs", 1));
    CHECK(value == 100 + rank);
    OK(saved(2));
    say(folder, "second");
    hear(folder, "ended");
    // The first run's later calls have harmed nothing.
    value = 0;
    CHECK(VELOC_Restart_test("runs", 0) == 2);
    OK(VELOC_Restart("runs", 2));
    CHECK(value == 200 + rank);
    OK(saved(4));
    OK(VELOC_Finalize(1));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (strcmp(argv[1], "first") == 0) {
        first(argv[2], argv[3]);
    } else {
        second(argv[2], argv[3], argv[4]);
    }
    MPI_Finalize();
    if (rank == 0) printf("%s: done\n", argv[1]);
    return 0;
}
