// Forked children of a program with an open session: every call with a handle fails in them at once, even if a thread of the parent was in
// a call when they were forked, and the parent continues. tests/mpi_c.rs runs it on two ranks.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "bvk_check.h"
#include "forked.h"

#define REFUSED(call) REFUSED_WITH(call, BVK_ERR_STATE)

static bvk_session_t session;
static bvk_pending_t pending;
static double value;
static atomic_int asks = 1;

static void child(void) {
    if (!is_forked_child()) return;
    int word;
    uint64_t generation;
    bvk_checkpoint_t checkpoint;
    bvk_restart_t restart;
    bvk_pending_t another;
    REFUSED(bvk_generation(session, &generation));
    REFUSED(bvk_unprotect_all(session));
    REFUSED(bvk_checkpoint(session, "fork", 9, &another));
    REFUSED(bvk_begin_checkpoint(session, "fork", 9, &checkpoint));
    REFUSED(bvk_begin_restore(session, "fork", BVK_NEWEST, &restart));
    REFUSED(bvk_poll(pending, &word));
    REFUSED(bvk_wait(pending, BVK_LEVEL_SYSTEM, &word));
    REFUSED(bvk_close(&session));
    exit(0);
}

// Calls into the session nearly all the time.
static void *ask(void *unused) {
    bvk_stats stats = BVK_STATS_INIT;
    while (asks) CHECK(bvk_get_stats(session, &stats) == BVK_OK);
    return unused;
}

int main(int argc, char **argv) {
    int provided, reached;
    pthread_t thread;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    CHECK(bvk_open(MPI_COMM_WORLD, NULL, &session) == BVK_OK);
    CHECK(bvk_protect(session, "value", &value, 1, BVK_F64) == BVK_OK);
    value = 1 + rank;
    CHECK(bvk_checkpoint(session, "fork", 1, &pending) == BVK_OK);
    child();
    CHECK(pthread_create(&thread, NULL, ask, NULL) == 0);
    for (int i = 0; i < 20; i++) child();
    asks = 0;
    pthread_join(thread, NULL);
    CHECK(bvk_wait(pending, BVK_LEVEL_SYSTEM, &reached) == BVK_OK && reached == BVK_LEVEL_SYSTEM);
    CHECK(bvk_release(&pending) == BVK_OK);
    value = 0;
    CHECK(bvk_restore(session, "fork", 1, NULL) == BVK_OK && value == 1 + rank);
    CHECK(bvk_close(&session) == BVK_OK);
    MPI_Finalize();
    if (rank == 0) printf("ok\n");
    return 0;
}
