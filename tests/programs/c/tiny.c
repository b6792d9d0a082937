/* The smallest application: it protects, takes a checkpoint, waits, and restores what was overwritten. With an argument, it first looks
   for a series of that name, and continues without one. */
#include <bivouac.h>
#include <stdio.h>
#include <string.h>

static int checked(int status, const char *call)
{
    if (status != BVK_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, bvk_status_name(status), bvk_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return status;
}

int main(int argc, char **argv)
{
    bvk_session_t session = NULL;
    bvk_pending_t pending = NULL;
    double numbers[64];
    int provided, rank, i, wrong = 0, all = 0;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (i = 0; i < 64; i++)
        numbers[i] = rank + i / 64.0;
    checked(bvk_open(MPI_COMM_WORLD, NULL, &session), "bvk_open");
    checked(bvk_protect(session, "numbers", numbers, 64, BVK_F64), "bvk_protect");
    if (argc > 1 && bvk_restore(session, argv[1], BVK_NEWEST, NULL) != BVK_NOTHING)
        MPI_Abort(MPI_COMM_WORLD, 2);
    checked(bvk_checkpoint(session, "tiny", 1, &pending), "bvk_checkpoint");
    checked(bvk_wait(pending, BVK_LEVEL_PROCESS, NULL), "bvk_wait");
    checked(bvk_release(&pending), "bvk_release");
    memset(numbers, 0, sizeof numbers);
    checked(bvk_restore(session, "tiny", BVK_NEWEST, NULL), "bvk_restore");
    for (i = 0; i < 64; i++)
        wrong += numbers[i] != rank + i / 64.0;
    checked(bvk_close(&session), "bvk_close");
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("wrong %d with %s\n", all, bvk_version());
    MPI_Finalize();
    return all != 0;
}
