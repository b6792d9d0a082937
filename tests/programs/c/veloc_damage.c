// Makes checkpoints for a test to damage, and restarts from the damaged ones. argv: `make`, a configuration file, the number of versions,
// and the name of a file whose appearance makes the ranks end by SIGKILL; or `restore` and configuration files, each for its own store.
// Each rank writes its results to rank-R.log, which also has the library's log. One job restores them all, because starting MPI takes
// longer than restoring.

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bivouac.h"
#include "veloc.h"
#include "veloc_check.h"

static int rank, step;
static size_t many;
static double *data;

static double value(size_t at) { return 1e6 * rank + 1e3 * step + (double)(at % 1000); }

static void begin(const char *config) {
    OK(VELOC_Init(MPI_COMM_WORLD, config));
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Mem_protect(1, data, many, sizeof *data));
}

static void make(const char *config, int versions, const char *end) {
    begin(config);
    for (step = 1; step <= versions; step++) {
        for (size_t at = 0; at < many; at++) data[at] = value(at);
        OK(VELOC_Checkpoint("damage", step));
        OK(VELOC_Checkpoint_wait());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    struct timespec pause = {0, 1000000};
    while (access(end, F_OK) != 0) nanosleep(&pause, NULL);
    raise(SIGKILL);
}

static void restore(const char *config) {
    fprintf(stderr, "store %s\n", config);
    step = -1;
    memset(data, 0, many * sizeof *data);
    begin(config);
    int version = VELOC_Restart_test("damage", 0), most, least;
    while (version >= 0 && VELOC_Restart("damage", version) != VELOC_SUCCESS) {
        fprintf(stderr, "refused %d\n", version);
        version = VELOC_Restart_test("damage", version);
    }
    MPI_Allreduce(&version, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&version, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    CHECK(most == least);
    if (version >= 0) {
        CHECK(step == version);
        for (size_t at = 0; at < many; at++) CHECK(data[at] == value(at));
    }
    fprintf(stderr, "from %d\n", version);
    OK(VELOC_Finalize(0));
}

int main(int argc, char **argv) {
    int provided;
    char log[32];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(log, sizeof log, "rank-%d.log", rank);
    CHECK(freopen(log, "w", stderr) != NULL && setvbuf(stderr, NULL, _IONBF, 0) == 0);
    CHECK(bvk_log(3) == BVK_OK);
    many = 20000 + 1000 * (size_t)rank;
    data = calloc(many, sizeof *data);
    CHECK(data != NULL);
    if (strcmp(argv[1], "make") == 0) make(argv[2], atoi(argv[3]), argv[4]);
    for (int at = 2; at < argc; at++) restore(argv[at]);
    MPI_Finalize();
    free(data);
    return 0;
}
