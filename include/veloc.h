// VELOC's interface on Bivouac: link with libveloc-client.so. docs/VELOC.md explains how to move a program and what differs.
//
// Every function returns VELOC_SUCCESS or VELOC_FAILURE, unless its description says otherwise, and writes the reason for a
// failure to standard error; bvk_error() of bivouac.h returns this reason, too. No call ends the process. There is one session
// per process. Calls from several threads wait for each other, if MPI allows such calls at all. A name has 1 to 127 characters
// (A-Z a-z 0-9 _ and dot), and a version is at least 0. Collective means that all ranks of the communicator make the call, in
// the same order.
#ifndef BIVOUAC_VELOC_H
#define BIVOUAC_VELOC_H

#include <mpi.h>
#include <stddef.h>

#include "veloc/defs.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------------------- start and end

// Opens a session on the ranks of `comm` with the configuration file `cfg_file`. Collective; a mistake on one rank makes the call
// fail on all ranks.
int VELOC_Init(MPI_Comm comm, const char *cfg_file);

// Opens a session for this process alone; `unique_id` distinguishes the process from the others in the job, and must be the same
// when the process is relaunched. MPI need not be initialised.
int VELOC_Init_single(unsigned int unique_id, const char *cfg_file);

// Ends the session. With `drain`, everything that was captured is written first; without it, everything stays where it is. A
// second call does nothing; a call before VELOC_Init fails. Collective.
int VELOC_Finalize(int drain);

// ---------------------------------------------------------------------------------- protected regions and files

// Protects `count` elements of `base_size` bytes as region `id`: checkpoints save it, and restarts load it. The memory may be on
// the host or on a GPU; GPU memory is complete once the work on the legacy default stream has run. A region that already has this
// number is replaced. Local.
int VELOC_Mem_protect(int id, void *ptr, size_t count, size_t base_size);

// The same, but only for checkpoints called `name`, which contain the regions without a name, too. Local.
int VELOC_Region_protect(int id, void *ptr, size_t count, size_t base_size, const char *name);

// Ends the protection of a region. Local.
int VELOC_Mem_unprotect(int id);
int VELOC_Region_unprotect(int id, const char *name);

// Ends the protection of all regions without a name, or of all regions for checkpoints called `name`. Local.
int VELOC_Mem_clear(void);
int VELOC_Region_clear(const char *name);

// Inside a checkpoint, says where to write the file `original`, which becomes part of the checkpoint. Inside a restart, says
// where to read it. `routed` has room for VELOC_MAX_NAME bytes. Local.
int VELOC_Route_file(const char *original, char *routed);

// Deletes all checkpoints called `name`, including those that VELOC itself wrote. Collective.
int VELOC_Cleanup(const char *name);

// ------------------------------------------------------------------------------------------------ checkpoints

// Begins a checkpoint: version `version` of `name`. Collective, together with its end.
int VELOC_Checkpoint_begin(const char *name, int version);

// Adds protected regions as they are now: all of them, those with the `count` numbers `ids`, or all others (VELOC_CKPT_...).
// Local.
int VELOC_Checkpoint_selective(int mode, int *ids, int count);
int VELOC_Checkpoint_mem(void);

// Captures what was added. If `success` is 0 on any rank, no rank keeps the checkpoint. With mode = sync, this waits as
// VELOC_Checkpoint_wait does.
int VELOC_Checkpoint_end(int success);

// Waits until all captured checkpoints are as safe as the configuration says; fails if one of them will not be.
int VELOC_Checkpoint_wait(void);

// Returns VELOC_SUCCESS once all captured checkpoints are finished, and VELOC_FAILURE before that. Never waits.
int VELOC_Checkpoint_finished(void);

// A whole checkpoint: begins it, adds all protected regions, and ends it.
int VELOC_Checkpoint(const char *name, int version);

// ------------------------------------------------------------------------------------------------ restarts

// Returns the newest version at or below `version` (0: the newest of all) that all ranks can restore, or VELOC_FAILURE if there
// is none. A version that a restart of this process has refused is not offered again. Collective.
int VELOC_Restart_test(const char *name, int version);

// Begins the restart of one version. Collective.
int VELOC_Restart_begin(const char *name, int version);

// Loads all regions, those with the `count` numbers `ids`, or all others (VELOC_RECOVER_...), into the memory that is protected
// under their numbers. Fails on all ranks or on none; after a failure, what was loaded must not be used. Collective.
int VELOC_Recover_selective(int mode, int *ids, int count);
int VELOC_Recover_mem(void);

// Returns the size in bytes of region `id` in the version that is being restored, or VELOC_FAILURE if the version has no such
// region or the size does not fit into an int. Local.
int VELOC_Recover_size(int id);

// Ends the restart. If `success` is 0 on any rank, the restart takes effect on no rank, and the version is not offered again.
// Collective.
int VELOC_Restart_end(int success);

// A whole restart: begins it, loads all regions, and ends it. Collective.
int VELOC_Restart(const char *name, int version);

// ------------------------------------------------------------------------------------------------ beyond VELOC

// Announces that `version` is going to be saved and then restored by this process, after the versions announced earlier. An
// announced version is not a checkpoint: it is kept in GPU memory, in node memory and in node-local storage, is restored once for
// each announcement, and is lost when the process ends. All ranks announce the same versions. Local.
int VELOC_Prefetch_enqueue(int version);

// Allows announced versions to be fetched ahead from now on. Local.
int VELOC_Prefetch_start(void);

// Restores an announced version, whatever its checkpoint is called. Collective: it fails on all ranks or on none.
int VELOC_Prefetch_restore(int version);

// Returns the size in bytes of region `id` in an announced version, or in the version that is being restored; -1 after a failure.
// Local.
long long VELOC_Recover_size_of(int version, int id);

#ifdef __cplusplus
}
#endif

// The shorter calls with which "GPU-Enabled Asynchronous Multi-level Checkpoint Caching and Prefetching" (HPDC 2023) shows its
// interface. They take bytes instead of a count and a size, and versions without a name. (VELOC_Restart)(name, version) still
// calls the function.
#ifdef VELOC_HPDC_LISTING
#define VELOC_Recover_size(version, id) VELOC_Recover_size_of(version, id)
#define VELOC_Mem_protect(id, ptr, size) (VELOC_Mem_protect)(id, ptr, size, 1)
#define VELOC_Restart(version) VELOC_Prefetch_restore(version)
#endif

#endif
