/* Takes three checkpoints and dies; started again it restores the last one and says so. */
#include <bivouac.h>
#include <signal.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    bvk_session_t session = NULL;
    bvk_pending_t pending = NULL;
    double state[1000] = {0};
    int provided, rank;
    uint64_t version;
    bvk_restored restored = BVK_RESTORED_INIT;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (bvk_open(MPI_COMM_WORLD, NULL, &session) != BVK_OK || bvk_protect(session, "state", state, 1000, BVK_F64) != BVK_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    if (bvk_restore(session, "killed", BVK_NEWEST, &restored) == BVK_OK) {
        if (rank == 0)
            printf("restored version %llu, state %s\n", (unsigned long long)restored.version, state[999] == 3.0 + rank ? "good" : "WRONG");
        bvk_close(&session);
        MPI_Finalize();
        return 0;
    }
    for (version = 1; version <= 3; version++) {
        state[999] = version + rank;
        if (bvk_checkpoint(session, "killed", version, &pending) != BVK_OK ||
            bvk_wait(pending, BVK_LEVEL_SYSTEM, NULL) != BVK_OK || bvk_release(&pending) != BVK_OK)
            MPI_Abort(MPI_COMM_WORLD, 2);
    }
    raise(SIGKILL);
}
