// VELOC's interface on Bivouac: link with libveloc-client.so. docs/VELOC.md explains how to move a program and what differs.
//
// Every function returns VELOC_SUCCESS or VELOC_FAILURE, unless it says otherwise, and gives the reason for a failure on standard
// error; bvk_error() of bivouac.h has the text, too. No call ends the process. There is one session per process; calls from several
// threads wait for each other, as far as MPI allows them at all. A name has 1 to 127 characters of A-Z a-z 0-9 _ and dot, a
// version is at least 0. Collective: all ranks of the communicator make the call, in one order.
#ifndef BIVOUAC_VELOC_H
#define BIVOUAC_VELOC_H

#include <mpi.h>
#include <stddef.h>

#include "veloc/defs.h"

#ifdef __cplusplus
extern "C" {
#endif

// ------------------------------------------------------------------------------------------------ beginning and end

// Opens a session on the ranks of `comm` with the configuration file `cfg_file`. Collective; a mistake of one rank fails on all.
int VELOC_Init(MPI_Comm comm, const char *cfg_file);

// Opens a session of this process alone; `unique_id` distinguishes it from others of the job, and is the same after a restart.
// MPI need not be initialised.
int VELOC_Init_single(unsigned int unique_id, const char *cfg_file);

// Ends the session. With `drain`, all that was captured is written first; without, it stays where it is. A second call
// does nothing, one before VELOC_Init fails. Collective.
int VELOC_Finalize(int drain);

// ------------------------------------------------------------------------------------------------ what is saved

// Protects `count` elements of `base_size` bytes, on the host or on a GPU (complete by the legacy default stream), as region `id`:
// checkpoints save it, restarts load it. A region of that number is replaced. Local.
int VELOC_Mem_protect(int id, void *ptr, size_t count, size_t base_size);

// The same for checkpoints called `name` only, in addition to the regions without a name. Local.
int VELOC_Region_protect(int id, void *ptr, size_t count, size_t base_size, const char *name);

// Takes a region out again. Local.
int VELOC_Mem_unprotect(int id);
int VELOC_Region_unprotect(int id, const char *name);

// Takes all out. Local.
int VELOC_Mem_clear(void);
int VELOC_Region_clear(const char *name);

// Inside a checkpoint: where to write the file `original` that becomes part of it. Inside a restart: where to read it. `routed`
// has room for VELOC_MAX_NAME bytes. Local.
int VELOC_Route_file(const char *original, char *routed);

// Deletes all checkpoints called `name`, those that VELOC itself wrote among them. Collective.
int VELOC_Cleanup(const char *name);

// ------------------------------------------------------------------------------------------------ checkpoints

// Begins version `version`. Collective together with the end.
int VELOC_Checkpoint_begin(const char *name, int version);

// Adds protected regions as they are now: all, those of the `count` numbers `ids`, or the others (VELOC_CKPT_...). Local.
int VELOC_Checkpoint_selective(int mode, int *ids, int count);
int VELOC_Checkpoint_mem(void);

// Captures what was added. `success` 0 on any rank: no rank keeps it. With mode = sync it waits, as VELOC_Checkpoint_wait does.
int VELOC_Checkpoint_end(int success);

// Waits until all that was captured is as safe as the configuration says; fails if it will not be.
int VELOC_Checkpoint_wait(void);

// VELOC_SUCCESS once all that was captured has ended, VELOC_FAILURE before. Never waits.
int VELOC_Checkpoint_finished(void);

// All of it: begins, adds all protected regions, ends.
int VELOC_Checkpoint(const char *name, int version);

// ------------------------------------------------------------------------------------------------ restarts

// The newest version at or below `version` (0: of all) that all ranks can restore, VELOC_FAILURE if there is none. What was
// refused by a restart of this process is not offered again. Collective.
int VELOC_Restart_test(const char *name, int version);

// Begins to restore one version. Collective.
int VELOC_Restart_begin(const char *name, int version);

// Loads regions into what is protected under their numbers: all, those of the `count` numbers `ids`, or the others
// (VELOC_RECOVER_...). Fails on all ranks or on none; what was loaded is of no use then. Collective.
int VELOC_Recover_selective(int mode, int *ids, int count);
int VELOC_Recover_mem(void);

// The bytes of region `id` in the version that is being restored, VELOC_FAILURE if it has none, or more than an int can say. Local.
int VELOC_Recover_size(int id);

// Ends the restart. `success` 0 on any rank: it counts on none, and the version is not offered again. Collective.
int VELOC_Restart_end(int success);

// All of it: begins, loads all regions, ends. Collective.
int VELOC_Restart(const char *name, int version);

// ------------------------------------------------------------------------------------------------ beyond VELOC

// Announces that `version` is going to be saved and then restored by this process, after those announced earlier. Such a
// version is not a checkpoint: it is kept in GPU and node memory and on node storage, restored once for each announcement, and
// gone with the process. All ranks announce the same. Local.
int VELOC_Prefetch_enqueue(int version);

// Announced versions may be fetched ahead, now and from now on. Local.
int VELOC_Prefetch_start(void);

// Restores an announced version, whatever its checkpoint is called. Collective: it fails on all ranks or on none.
int VELOC_Prefetch_restore(int version);

// The bytes of region `id` in an announced version or in the one that is being restored, or -1. Local.
long long VELOC_Recover_size_of(int version, int id);

#ifdef __cplusplus
}
#endif

// The shorter calls in which "GPU-Enabled Asynchronous Multi-level Checkpoint Caching and Prefetching" (HPDC 2023) shows its
// interface: bytes instead of count and size, and versions without a name. (VELOC_Restart)(name, version) is the function.
#ifdef VELOC_HPDC_LISTING
#define VELOC_Recover_size(version, id) VELOC_Recover_size_of(version, id)
#define VELOC_Mem_protect(id, ptr, size) (VELOC_Mem_protect)(id, ptr, size, 1)
#define VELOC_Restart(version) VELOC_Prefetch_restore(version)
#endif

#endif
