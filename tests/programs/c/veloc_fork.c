// Forked children of a program with an open session: every function fails in them at once, and neither the calls nor the children's end
// changes anything for the parent. argv: configuration file.

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "veloc.h"
#include "veloc_check.h"
#include "forked.h"

#define REFUSED(call) REFUSED_WITH(call, VELOC_FAILURE)

static int rank, value;
static const char *config;
static atomic_int asks = 1;

// A child that calls everything and then ends, either as a program does or at once.
static void child(int runs_handlers) {
    if (!is_forked_child()) return;
    // Nobody needs the children's messages.
    if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
    int id = 0;
    char path[VELOC_MAX_NAME];
    REFUSED(VELOC_Init_single(1, config));
    REFUSED(VELOC_Mem_protect(0, &value, 1, sizeof value));
    REFUSED(VELOC_Region_protect(0, &value, 1, sizeof value, "fork"));
    REFUSED(VELOC_Mem_unprotect(0));
    REFUSED(VELOC_Region_unprotect(0, "fork"));
    REFUSED(VELOC_Mem_clear());
    REFUSED(VELOC_Region_clear("fork"));
    REFUSED(VELOC_Route_file("other", path));
    REFUSED(VELOC_Cleanup("fork"));
    REFUSED(VELOC_Checkpoint_begin("fork", 9));
    REFUSED(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, &id, 1));
    REFUSED(VELOC_Checkpoint_mem());
    REFUSED(VELOC_Checkpoint_end(1));
    REFUSED(VELOC_Checkpoint_wait());
    REFUSED(VELOC_Checkpoint_finished());
    REFUSED(VELOC_Checkpoint("fork", 9));
    REFUSED(VELOC_Restart_test("fork", 0));
    REFUSED(VELOC_Restart_begin("fork", 1));
    REFUSED(VELOC_Recover_selective(VELOC_RECOVER_SOME, &id, 1));
    REFUSED(VELOC_Recover_mem());
    REFUSED(VELOC_Recover_size(0));
    REFUSED(VELOC_Restart_end(1));
    REFUSED(VELOC_Restart("fork", 1));
    REFUSED(VELOC_Prefetch_enqueue(1));
    REFUSED(VELOC_Prefetch_start());
    REFUSED(VELOC_Finalize(1));
    if (runs_handlers) exit(0);
    _exit(0);
}

// Calls into the session nearly all the time.
static void *ask(void *unused) {
    while (asks) VELOC_Checkpoint_finished();
    return unused;
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    config = argv[1];
    OK(VELOC_Init(MPI_COMM_WORLD, config));
    OK(VELOC_Mem_protect(0, &value, 1, sizeof value));
    value = 10 + rank;
    OK(VELOC_Checkpoint("fork", 1));
    // Children are forked while the checkpoint is being written, between begin and end, and within a restart.
    child(1);
    OK(VELOC_Checkpoint_wait());
    char path[VELOC_MAX_NAME];
    OK(VELOC_Checkpoint_begin("fork", 2));
    OK(VELOC_Route_file("mine", path));
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, "%d", 20 + rank) == 2 && fclose(file) == 0);
    OK(VELOC_Checkpoint_mem());
    child(1);
    OK(VELOC_Checkpoint_end(1));
    OK(VELOC_Checkpoint_wait());
    CHECK(VELOC_Restart_test("fork", 0) == 2);
    value = 0;
    OK(VELOC_Restart_begin("fork", 2));
    child(0);
    OK(VELOC_Recover_mem());
    OK(VELOC_Route_file("mine", path));
    int number = 0;
    file = fopen(path, "r");
    CHECK(file != NULL && fscanf(file, "%d", &number) == 1 && fclose(file) == 0);
    OK(VELOC_Restart_end(1));
    CHECK(value == 10 + rank && number == 20 + rank);
    if (provided == MPI_THREAD_MULTIPLE) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ask, NULL) == 0);
        for (int i = 0; i < 20; i++) child(0);
        asks = 0;
        pthread_join(thread, NULL);
    }
    value = 30 + rank;
    OK(VELOC_Checkpoint("fork", 3));
    OK(VELOC_Checkpoint_wait());
    value = 0;
    CHECK(VELOC_Restart_test("fork", 0) == 3);
    OK(VELOC_Restart("fork", 3));
    CHECK(value == 30 + rank);
    OK(VELOC_Finalize(1));
    MPI_Finalize();
    if (rank == 0) printf("fork: done%s\n", provided == MPI_THREAD_MULTIPLE ? "" : " without threads");
    return 0;
}
