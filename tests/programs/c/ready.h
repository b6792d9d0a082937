// Makes node memory ready in the background, for the programs that protect memory and take no checkpoint.
#ifndef READY_H
#define READY_H

#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

enum { READY_BYTES = 64 << 20 };

// The number of bytes that the file system has allocated to the files of node memory.
static long long allocated(void) {
    const char *folder = getenv("BIVOUAC_MEMORY_DIRECTORY");
    DIR *opened = folder ? opendir(folder) : NULL;
    long long bytes = 0;
    char path[4096];
    struct stat found;
    for (struct dirent *entry; opened && (entry = readdir(opened)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &found) == 0 && S_ISREG(found.st_mode)) bytes += 512LL * found.st_blocks;
    }
    if (opened) closedir(opened);
    return bytes;
}

// Waits, on all ranks, until these files have as much as all ranks have protected. Returns 0 if they do not after `limit` seconds.
static int made_ready(long long before, double limit) {
    const struct timespec pause = {0, 1000000};
    const double begun = MPI_Wtime();
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while (allocated() - before < (long long)ranks * READY_BYTES) {
        if (MPI_Wtime() - begun > limit) return 0;
        nanosleep(&pause, NULL);
    }
    // After this, a rank may give memory back, because no other rank checks any more.
    MPI_Barrier(MPI_COMM_WORLD);
    return 1;
}

#endif
