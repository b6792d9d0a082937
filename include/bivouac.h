// Bivouac: collective checkpoint and restart for MPI simulations.
//
// Every function returns a status, except the few that return a text or a FILE. A status is BVK_OK (0), another outcome
// (positive), or an error (negative), whose text bvk_error returns. A mistake in a call, an unknown handle or a full disk causes an
// error, but never ends the program. Calls marked Collective must be made by all ranks of a session, in the same order; calls
// marked Local may be made by any rank at any time, and exchange no messages. A session
// and everything created from it belong to one thread at a time; calls from several threads wait for each other, except calls on
// pending checkpoints. No call may be made from a signal handler.
//
// This header is generated from the sources in src/capi; docs/C.md shows how to use it.

#ifndef BIVOUAC_H
#define BIVOUAC_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Handles are opaque pointers. NULL stands for no handle. Using a handle that was closed, or a pointer that never was a handle,
// is an error, not a crash.
typedef struct bvk_session_s *bvk_session_t;          // ranks that take and restore checkpoints together
typedef struct bvk_checkpoint_s *bvk_checkpoint_t;    // a checkpoint under construction
typedef struct bvk_pending_s *bvk_pending_t;          // a captured checkpoint on its way down the tiers
typedef struct bvk_restart_s *bvk_restart_t;          // a restart in progress
typedef struct bvk_history_s *bvk_history_t;          // a history of versions
typedef struct bvk_write_set_s *bvk_write_set_t;      // the memory that a piece of work writes to
typedef struct bvk_boxes_s *bvk_boxes_t;              // how an array is spread over the ranks
typedef struct bvk_loaded_rows_s *bvk_loaded_rows_t;  // the rows that this rank gets from a restart
typedef struct bvk_parts_s *bvk_parts_t;              // which part of an array, or which rows, each old rank had
typedef struct bvk_options bvk_options;
typedef struct bvk_region bvk_region;
typedef struct bvk_stats bvk_stats;
typedef struct bvk_level_stats bvk_level_stats;
typedef struct bvk_report bvk_report;
typedef struct bvk_restored bvk_restored;
typedef struct bvk_column bvk_column;
typedef struct bvk_rows bvk_rows;
typedef struct bvk_part bvk_part;

// The element type of an application-defined record of `bytes` bytes.
#define BVK_RECORD(bytes) (-(int)(bytes))
// Initialisers for the structures that begin with their size.
#define BVK_OPTIONS_INIT {sizeof(bvk_options), NULL, NULL, NULL}
#define BVK_REGION_INIT {sizeof(bvk_region), NULL, NULL, 0, 0, 0, NULL}
#define BVK_STATS_INIT {sizeof(bvk_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define BVK_LEVEL_STATS_INIT {sizeof(bvk_level_stats), 0, 0, 0, 0, 0, 0, 0}
#define BVK_REPORT_INIT {sizeof(bvk_report), 0, 0, 0, {0}, {0}}
#define BVK_RESTORED_INIT {sizeof(bvk_restored), 0, 0, 0, 0, 0, 0}
#define BVK_ROWS_INIT {sizeof(bvk_rows), 0, NULL, 0, 0, NULL, NULL}
#define BVK_PART_INIT {sizeof(bvk_part), 0, 0, 0, {0}, {0}, {0}}

// Success.
#define BVK_OK 0

// `bvk_end_restore`: some rank has found damage, or has rejected this version. Load again: the handle now leads to other copies of this
// version, or to an older version (`bvk_saved_version` says which version it is). Nothing that was loaded before may be used.
#define BVK_AGAIN 1

// There is nothing to return: for example, there is no checkpoint to restore or no report to read.
#define BVK_NOTHING 2

// An argument is wrong: NULL where a value is needed, a count that is too large, an unknown type.
#define BVK_ERR_ARGUMENT (-1)

// The handle is not valid: it never was a handle, is a handle of another kind, or was closed.
#define BVK_ERR_HANDLE (-2)

// Calls were made in the wrong order, for example a checkpoint while a restart is open, or a declaration on a
// stream that is being captured.
#define BVK_ERR_STATE (-3)

// The configuration has problems, or the session could not be opened. The error text names the ranks and the keys.
#define BVK_ERR_OPEN (-4)

// MPI cannot be used: it is not initialised or is already finalised, this thread may not call it, or one of its calls failed.
#define BVK_ERR_MPI (-5)

// A name or a shape cannot be used, or a region was named twice.
#define BVK_ERR_REGION (-6)

// This rank could not capture the checkpoint. The other ranks are told, and the application may continue.
#define BVK_ERR_CAPTURE (-7)

// A region could not be loaded: it is not in the checkpoint, has a different type or length, or has no undamaged copy.
#define BVK_ERR_LOAD (-8)

// The restart ended on all ranks without restoring a state.
#define BVK_ERR_RESTART (-9)

// The checkpoint has not reached the level that was waited for, and will not reach it.
#define BVK_ERR_NOT_COMMITTED (-10)

// Ranks made different calls, or some made none; or an element of an array has no owner, or more than one.
#define BVK_ERR_DISAGREED (-11)

// The session has failed and commits nothing more. The application may continue to compute.
#define BVK_ERR_FAILED (-12)

// Checkpoints were still being written when the session was closed.
#define BVK_ERR_UNDRAINED (-13)

// A device or a history cannot do what was requested.
#define BVK_ERR_DEVICE (-14)

// A defect in Bivouac. From now on the session may be unusable; the application may continue to compute.
#define BVK_ERR_INTERNAL (-15)

// Unsigned bytes without further meaning. A negative type stands for an application-defined record; the absolute value of the type is the
// size of the record in bytes: `BVK_RECORD(48)` in C, -48 in other languages.
#define BVK_U8 1

// Signed 8-bit integers.
#define BVK_I8 2

// Unsigned 16-bit integers.
#define BVK_U16 3

// Signed 16-bit integers.
#define BVK_I16 4

// Unsigned 32-bit integers.
#define BVK_U32 5

// Signed 32-bit integers.
#define BVK_I32 6

// Unsigned 64-bit integers.
#define BVK_U64 7

// Signed 64-bit integers.
#define BVK_I64 8

// IEEE single precision.
#define BVK_F32 9

// IEEE double precision.
#define BVK_F64 10

// Captured: safe only from the application's next write.
#define BVK_LEVEL_CAPTURED 0

// In node memory: survives killed processes.
#define BVK_LEVEL_PROCESS 1

// On node-local storage: survives a reboot of the node.
#define BVK_LEVEL_NODE_REBOOT 2

// With copies or parity on other nodes: survives the loss of a node.
#define BVK_LEVEL_NODE_LOSS 3

// On the parallel file system: survives the loss of all nodes.
#define BVK_LEVEL_SYSTEM 4

// Threads stay where the launcher bound them.
#define BVK_PIN_LAUNCHER 0

// Each rank gets its share of neighbouring cores, and each of its threads gets one of these cores.
#define BVK_PIN_COMPACT 1

// Each rank gets its share of neighbouring cores, and its threads are placed in turn on the NUMA nodes or caches of this share.
#define BVK_PIN_SCATTER 2

// Restarts put threads and pages back where they were.
#define BVK_AFFINITY_FULL 0

// Restarts put only threads back.
#define BVK_AFFINITY_THREADS 1

// Restarts put only pages back.
#define BVK_AFFINITY_PAGES 2

// Restarts put neither threads nor pages back.
#define BVK_AFFINITY_CAPTURE 3

// As a version number: the newest version that all ranks can restore.
#define BVK_NEWEST UINT64_MAX

// As with `bvk_protect`, the checkpoint cannot be restored on a different number of ranks.
#define BVK_RESIZE_REFUSE 0

// On a different number of ranks, the value is dropped.
#define BVK_RESIZE_DROP 1

// On a different number of ranks, each rank may ask for the values of any old ranks (`bvk_of_ranks`).
#define BVK_RESIZE_ASK 2

// As `how`: each rank gets the rows that it saved. This works only if the same number of ranks took the
// checkpoint, and makes the call local.
#define BVK_ROWS_OWN 0

// As `how`: all rows are distributed evenly, in the order of the ranks that saved them.
#define BVK_ROWS_EVEN 1

// A rank's part consists of rows of a set.
#define BVK_PART_ROWS 1

// A rank's part consists of boxes of an array.
#define BVK_PART_BOXES 2

// A rank's part consists of numbered elements of an array.
#define BVK_PART_IDS 3

// As the number of a GPU: no GPU. A history without a GPU keeps its versions in host memory and in its file.
#define BVK_NO_GPU (-1)

// A version stays until it has been restored and no further hint names it.
#define BVK_KEEP_UNTIL_READ 0

// A version stays until the history is closed.
#define BVK_KEEP_ALL 1

// If the companion is longer than it was at the restored checkpoint, a restart truncates it to that length.
#define BVK_RESTART_TRUNCATE 0

// If the companion is longer than it was at the restored checkpoint, the restart ends with an error on all ranks, and the companion stays
// unchanged.
#define BVK_RESTART_REFUSE 1

// If the companion is longer than it was at the restored checkpoint, it stays unchanged, and the program continues in another file next
// to it, for example in `traj.part0002.xtc` after `traj.xtc`.
#define BVK_RESTART_ANOTHER 2

// How a session is configured. Set `size` to `sizeof(bvk_options)` and the rest to zero (`BVK_OPTIONS_INIT`) before you set members. At
// most one of `config_file` and `config_text` may be set. The environment (`BIVOUAC_...`) takes precedence over the file or the text, and
// `settings` takes precedence over the environment.
struct bvk_options {
  // `sizeof(bvk_options)`.
  size_t size;
  // A TOML file. NULL: the file that `BIVOUAC_CONFIG` names, if `config_text` is also NULL.
  const char *config_file;
  // TOML text instead of a file; NULL: none.
  const char *config_text;
  // A list of settings (`section.key=value`) that ends with a NULL entry. NULL: none.
  const char *const *settings;
};

// One of the regions that `bvk_protect_many` protects. Set `size` to `sizeof(bvk_region)` and the rest to zero (`BVK_REGION_INIT`) before
// you set members.
struct bvk_region {
  // `sizeof(bvk_region)`, the same in all entries of a list.
  size_t size;
  // The name.
  const char *name;
  // The memory of the region, on the host or on a GPU.
  void *data;
  // The number of elements; ignored if there is a shape.
  uint64_t count;
  // The type of the elements: one of `BVK_U8` to `BVK_F64` or `BVK_RECORD(bytes)`.
  int kind;
  // The number of extents in `shape`; 0: one dimension of `count` elements.
  int dimensions;
  // The extents, slowest first; NULL: none.
  const uint64_t *shape;
};

// Counters and times of this rank since its session was opened. Set `size` to `sizeof(bvk_stats)` before the call (`BVK_STATS_INIT`).
struct bvk_stats {
  // `sizeof(bvk_stats)`.
  size_t size;
  // Checkpoints that this rank has captured.
  uint64_t captured;
  // Checkpoints that the ranks abandoned at the checkpoint call. No part of them is kept.
  uint64_t abandoned;
  // Checkpoints in flight: some of their levels are neither reached nor given up.
  uint64_t in_flight;
  // Bytes that the application handed over.
  uint64_t bytes_captured;
  // Captures that waited for room in node memory.
  uint64_t room_waits;
  // Captures that were written to a file before the call returned, because they did not fit into node memory.
  uint64_t direct_captures;
  // Copies of shards or blocks that were found damaged, on all tiers.
  uint64_t damaged;
  // Seconds that the last checkpoint blocked the application.
  double blocked_last_s;
  // The longest time that a checkpoint blocked the application, in seconds.
  double blocked_max_s;
  // The total time that checkpoints blocked the application, in seconds.
  double blocked_total_s;
  // Files that refer to earlier files for part of their content (`reduction.method`).
  uint64_t packed_files;
  // Files that could have referred to earlier files, but hold whole shards.
  uint64_t whole_files;
  // Bytes of the shards that the files in `packed_files` and `whole_files` represent.
  uint64_t reduced_bytes;
  // Bytes that the files in `packed_files` and `whole_files` store themselves.
  uint64_t stored_bytes;
  // Captures that stored only what had changed since the previous one.
  uint64_t partial_captures;
  // Shards whose regions in GPU memory were compared there, chunk by chunk.
  uint64_t looked_on_device;
  // Seconds that these comparisons took, while the shards were transferred.
  double look_total_s;
  // Bytes of shards that remained to be compressed (`reduction.compress`).
  uint64_t compressed_from;
  // The size of the same data after compression, in bytes.
  uint64_t compressed_to;
  // Seconds that the compression took.
  double compress_total_s;
  // Checkpoints that were marked (`bvk_offload`).
  uint64_t marks;
  // Marked checkpoints that this rank refused later, for example because of a write that was not declared.
  uint64_t marks_refused;
  // Bytes in GPU memory that were marked.
  uint64_t marked_bytes;
  // Marked bytes that were not sent, because node memory already held them.
  uint64_t equal_bytes;
  // Marked bytes that were copied to another place in GPU memory before a write.
  uint64_t doubled_bytes;
  // Marked bytes that a stream of the application had to wait for.
  uint64_t urgent_bytes;
  // How often a checkpoint waited for the previous marked checkpoint.
  uint64_t mark_waits;
  // Seconds that the waits in `mark_waits` took.
  double mark_wait_total_s;
  // Checkpoints that only the application's declarations protected from later writes (`offload.audit`, `offload.host_writes`).
  uint64_t unaudited;
  // Live regions that were copied after the checkpoint call had returned (`bvk_set_live`).
  uint64_t live_regions;
  // Bytes of the regions in `live_regions`.
  uint64_t live_bytes;
  // Bytes in `live_bytes` that a write of the application waited for.
  uint64_t live_waited_bytes;
  // Bytes in `live_bytes` that were copied because a write was declared (`bvk_before_write`).
  uint64_t live_declared_bytes;
  // Live regions that were nevertheless copied before the checkpoint call returned.
  uint64_t live_at_once;
  // How often a checkpoint waited until the live regions of the previous one were copied.
  uint64_t live_waits;
  // Seconds that the waits in `live_waits` took.
  double live_wait_total_s;
};

// Counters of this rank for one level, summed over all tiers that have this level. Set `size` to `sizeof(bvk_level_stats)` before the
// call (`BVK_LEVEL_STATS_INIT`).
struct bvk_level_stats {
  // `sizeof(bvk_level_stats)`.
  size_t size;
  // Checkpoints that reached the level.
  uint64_t committed;
  // Checkpoints that should have reached the level but did not.
  uint64_t level_failures;
  // Writes of this rank that failed.
  uint64_t write_failures;
  // Bytes that this rank has written in the background.
  uint64_t flushed_bytes;
  // Bytes that restarts have read from node memory, node-local storage, other nodes, the parallel file system or an object store.
  uint64_t restored_bytes;
  // Copies of shards or blocks that were found damaged.
  uint64_t damaged;
  // Seconds that it took to write `flushed_bytes`.
  double flushed_s;
};

// The ranks' verdict on one level of one checkpoint, or the information that a level has been out of reach since the session was opened.
// Set `size` to `sizeof(bvk_report)` before the call (`BVK_REPORT_INIT`).
struct bvk_report {
  // `sizeof(bvk_report)`.
  size_t size;
  // The version; 0 for a tier that cannot be used.
  uint64_t version;
  // The level, `BVK_LEVEL_...`; `BVK_LEVEL_CAPTURED` stands for the call itself.
  int level;
  // 1: committed; 0: abandoned or out of reach; -1: unknown, because the root could not be reached.
  int committed;
  // The name of the series; empty for a tier that cannot be used.
  char name[136];
  // The reason, if `committed` is not 1. A long reason is truncated.
  char reason[512];
};

// What a restart restored. Set `size` to `sizeof(bvk_restored)` before the call (`BVK_RESTORED_INIT`).
struct bvk_restored {
  // `sizeof(bvk_restored)`.
  size_t size;
  // The version.
  uint64_t version;
  // The generation of the run that took the checkpoint.
  uint64_t generation;
  // Bytes that this rank has read.
  uint64_t bytes;
  // Seconds from the call to the agreement of all ranks.
  double seconds;
  // The level of the farthest tier that this rank read from (`BVK_LEVEL_...`).
  int64_t level;
  // The number of ranks that took the checkpoint.
  uint64_t ranks;
};

// A column of rows: `width` elements of the type `kind` for each row, row after row, starting at `data`.
struct bvk_column {
  // The name of the column, without a `/`.
  const char *name;
  // The memory of the column, on the host; NULL if there are no rows.
  const void *data;
  // The type of the elements: `BVK_U8` to `BVK_F64` or `BVK_RECORD`.
  int kind;
  // Elements in each row, 1 or more.
  uint32_t width;
};

// A rank's rows of a set. Set `size` to `sizeof(bvk_rows)` before the call (`BVK_ROWS_INIT`).
struct bvk_rows {
  // `sizeof(bvk_rows)`.
  size_t size;
  // The number of this rank's rows, which may be 0.
  uint64_t count;
  // The columns.
  const struct bvk_column *columns;
  // The number of columns. The number, names, types and widths of the columns are the same on all ranks.
  size_t column_count;
  // The number of dimensions of `low` and `high`, at most 8; 0: no bounds.
  size_t dimensions;
  // The least coordinate of this rank's rows in each dimension. It is recorded, but otherwise not used.
  const double *low;
  // The greatest coordinate in each dimension.
  const double *high;
};

// Says which rank gets each of `count` rows. `values` holds the values of a column for these rows, row after row, with as many elements
// per row as the column has. For each row, the function writes to `owners` the number of a rank of this run. `user` is the pointer that
// was given to `bvk_load_rows_by`.
typedef void (*bvk_owners)(const void *values, size_t count, int *owners, void *user);

// The part of an array or of a set of rows that one old rank had. Set `size` to `sizeof(bvk_part)` before the call (`BVK_PART_INIT`).
struct bvk_part {
  // `sizeof(bvk_part)`.
  size_t size;
  // One of `BVK_PART_...`.
  int kind;
  // The number of dimensions of the array, or of the bounds; 0 for rows that were saved without bounds.
  int dimensions;
  // The number of rows, boxes, or numbered elements that the rank had.
  uint64_t count;
  // For boxes: the extents of the array, slowest dimension first. For numbered elements: `shape[0]` is the
  // number of elements of the array.
  uint64_t shape[8];
  // For rows: the least coordinate in each dimension, as given in `bvk_rows` when the rows were saved.
  double low[8];
  // For rows: the greatest coordinate in each dimension.
  double high[8];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The error text of this thread's last failed call; empty if no call has failed.
//
// Local, never blocks, any thread. The text belongs to Bivouac and is valid until the next failed call of this thread.
const char *bvk_error(void);

// The name of a status, for example `BVK_ERR_LOAD`; `unknown status` for any other number.
//
// Local, never blocks, any thread. The text is constant.
const char *bvk_status_name(int status);

// The version of the library, for example `0.1.0`.
//
// Local, never blocks, any thread. The text is constant.
const char *bvk_version(void);

// Opens a session on the ranks of `comm`, which may be any intracommunicator. MPI must be initialised, at any thread level.
// With `MPI_THREAD_MULTIPLE`, or with sockets between the ranks, a thread of Bivouac exchanges the coordination messages;
// otherwise the session's calls do.
//
// Collective over `comm`. Blocks until all ranks have made the call, but no longer than `timeouts.abandon` (at least 10 s). After that
// time the call fails, the error names the ranks that have not made the call, and two MPI requests of Bivouac stay open on `comm`. The
// call also blocks on the file systems of the tiers. If a rank has a mistake in its configuration or options, all ranks fail together.
// Make this call from a thread that may call MPI.
//
// `options`: NULL for the environment alone. `*session`: the handle, yours until `bvk_close`; NULL after an error.
//
// Errors: `BVK_ERR_OPEN` (the text names ranks and keys; also returned for a NULL `session`), `BVK_ERR_MPI`, `BVK_ERR_FAILED`. If `comm`
// on some ranks is not a communicator, the other ranks wait for these ranks.
//
// Requirements:
// `comm` is live or `MPI_COMM_NULL`; `options` is NULL or begins with its size, its texts are NUL-terminated, and its list ends with NULL;
// `session` is NULL or points to a handle.
int bvk_open(MPI_Comm comm,
             const struct bvk_options *options,
             bvk_session_t *session);

// Opens a session on a communicator in Fortran's form (`MPI_Comm_c2f`); otherwise like `bvk_open`.
//
// Collective and blocking like `bvk_open`.
//
// Requirements:
// As for `bvk_open`.
int bvk_open_f(int comm, const struct bvk_options *options, bvk_session_t *session);

// Waits for all checkpoints that are being written, then closes the session and everything that was created from it. `*session` becomes
// NULL. A NULL session is not an error.
//
// Collective. Blocks for checkpoints that are being written, for at most `timeouts.drain`; then for ranks that have not made the
// call, for at most `timeouts.abandon` (30 minutes unless it is set); and finally a few seconds for the last messages. The status
// does not say which levels the last checkpoint reached: call `bvk_wait` first, or read the reports. Handles of pending checkpoints
// stay valid until `bvk_release`.
//
// Errors: `BVK_ERR_UNDRAINED`, `BVK_ERR_DISAGREED`, `BVK_ERR_FAILED`; the session is closed nevertheless. `BVK_ERR_HANDLE`;
// `BVK_ERR_STATE` in a forked child.
//
// Requirements:
// `session` is NULL or points to a handle.
int bvk_close(bvk_session_t *session);

// The generation: the number of this run on its store, which grows with every run.
//
// Local, never waits.
//
// Requirements:
// `generation` points to a number.
int bvk_generation(bvk_session_t session, uint64_t *generation);

// Protects `count` elements at `data` as region `name` (1 to 256 bytes without control characters, not beginning with `.bivouac/`):
// `bvk_checkpoint` saves them, and `bvk_restore` loads them. The memory may be on the host or on a GPU. A region of this name that is already protected is replaced, so make this call again after a reallocation (before
// the reallocation of a live region, call `bvk_settle`). Node memory for a checkpoint of all protected regions is prepared in the
// background.
//
// Local. If a live region (`bvk_set_live`) is replaced by a region at another address, waits until the old region has been copied;
// otherwise never waits.
//
// `kind` is one of `BVK_U8` to `BVK_F64` or `BVK_RECORD(bytes)`. The memory at `data` still belongs to the application; `data` may be NULL
// if `count` is 0. Access to device memory is ordered by the session's stream. Host memory, including pinned and managed memory, is read
// as it is at the time of the checkpoint call.
//
// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`, `BVK_ERR_HANDLE`.
//
// Requirements:
// Until the region is unprotected or replaced, or the session is closed, the memory is readable in each call that saves it, and writable
// and used by nothing else in each call that loads it. `name` is NULL or a NUL-terminated string.
int bvk_protect(bvk_session_t session,
                const char *name,
                void *data,
                uint64_t count,
                int kind);

// Protects an array with the extents of its `dimensions` dimensions, slowest first; otherwise like `bvk_protect`.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect`.
//
// Requirements:
// As for `bvk_protect`; `shape` points to `dimensions` numbers.
int bvk_protect_shaped(bvk_session_t session,
                       const char *name,
                       void *data,
                       int kind,
                       int dimensions,
                       const uint64_t *shape);

// Protects the `count` regions of a list in one call, each as `bvk_protect` does. If one of them cannot be protected, none is. The cost
// per region does not depend on the number of regions.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect`; also if two entries of the list have the same name. The error text says which
// entry is wrong, counted from 0.
//
// Requirements:
// `regions` points to `count` structures, all of the size that the first one begins with, or is NULL and `count` is 0. The requirements of
// `bvk_protect` hold for each region, and a shape has as many numbers as dimensions.
int bvk_protect_many(bvk_session_t session,
                     const struct bvk_region *regions,
                     size_t count);

// Protects a region under a number instead of a name: the region is called `#7` for `id` 7.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect`.
//
// Requirements:
// As for `bvk_protect`.
int bvk_protect_id(bvk_session_t session, int id, void *data, uint64_t count, int kind);

// Ends the protection of a region. Its memory may be freed as soon as the call returns, unless `bvk_save` has added the
// region to a checkpoint that has not been captured yet. If the session offloads its GPU (`bvk_offload`), call
// `bvk_settle` before GPU memory is freed.
//
// Local. If the region is live (`bvk_set_live`), waits until it has been copied; otherwise never waits.
//
// Errors: `BVK_ERR_ARGUMENT` if no such region is protected.
//
// Requirements:
// `name` is NULL or a NUL-terminated string.
int bvk_unprotect(bvk_session_t session,
                  const char *name);

// Ends the protection of a region that was protected under a number; otherwise like `bvk_unprotect`.
//
// Local, waits like `bvk_unprotect`.
int bvk_unprotect_id(bvk_session_t session, int id);

// Ends the protection of all regions; otherwise like `bvk_unprotect`.
//
// Local, waits like `bvk_unprotect`.
int bvk_unprotect_all(bvk_session_t session);

// Sets the session's stream, a `cudaStream_t` or `CUstream` of the device's primary context. After this call, regions in device memory
// (not in managed memory) count as complete once the work that is enqueued on `stream` has run. NULL, the default, stands for the legacy
// default stream. Programs without GPUs do not need this call.
//
// Local, never waits. The stream still belongs to the application.
//
// Requirements:
// The stream lives until another one is set or the session is closed, and is not the per-thread default stream.
int bvk_set_stream(bvk_session_t session,
                   void *stream);

// Asks whether a checkpoint is due according to the configured interval. Make this call once per step. `*yes`: 1 or 0, the same on
// all ranks.
//
// Collective: all ranks, the same number of times. Blocks only when a checkpoint that is scheduled by time or cost is nearly due.
//
// Errors: `BVK_ERR_DISAGREED`, `BVK_ERR_FAILED`, `BVK_ERR_STATE`; `*yes` is then 0.
//
// Requirements:
// `yes` is NULL or points to a number.
int bvk_should_checkpoint(bvk_session_t session,
                          int *yes);

// Asks whether the program should stop, because a configured signal has arrived on some rank, the end of the allocation is near,
// `bivouac halt` was called, or the configured stop file exists. `*yes`: 1 or 0, the same on all ranks.
//
// Collective: all ranks, the same number of times. About once every `exit.check_every`, the ranks compare what they have seen.
//
// Errors: as for `bvk_should_checkpoint`.
//
// Requirements:
// `yes` is NULL or points to a number.
int bvk_should_exit(bvk_session_t session,
                    int *yes);

// Prepares node memory in the background for checkpoints of about `bytes` per rank, so that the first checkpoint
// does not wait for this memory.
//
// Local, never waits.
int bvk_prepare(bvk_session_t session,
                uint64_t bytes);

// Exchanges coordination messages. This call is needed only if the session has no thread for these messages
// (`engine.progress = "stepped"`) and other calls are rare.
//
// Local, never waits.
int bvk_progress(bvk_session_t session);

// Places the threads of this rank as `policy` says (`BVK_PIN_...`), on CPUs that the job was given on this node.
//
// Local. With the same policy on all ranks of a node, the ranks get different cores. Threads are left alone if affinity is off, if the
// node has processes of the job that are not ranks of the session, or if no launcher says what the job was given and the session has
// several ranks on the node.
//
// Errors: `BVK_ERR_ARGUMENT`.
int bvk_pin(bvk_session_t session,
            int policy);

// Sets which parts of the affinity (`BVK_AFFINITY_...`) later restarts bring back, instead of the configured parts.
//
// Local, but ranks with different modes restore different parts.
//
// Errors: `BVK_ERR_ARGUMENT`.
int bvk_set_affinity(bvk_session_t session,
                     int mode);

// Fills `stats` with counters and times of this rank.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT` if `stats->size` was not set.
//
// Requirements:
// `stats` is NULL or begins with its size.
int bvk_get_stats(bvk_session_t session, struct bvk_stats *stats);

// Fills `stats` with the counters of this rank for one level (`BVK_LEVEL_PROCESS` to `BVK_LEVEL_SYSTEM`). If several tiers have the level,
// the counters are the sums over these tiers.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT` if `stats->size` was not set, or for any other level.
//
// Requirements:
// `stats` is NULL or begins with its size.
int bvk_get_level_stats(bvk_session_t session,
                        int level,
                        struct bvk_level_stats *stats);

// Reads the next report, which is a verdict that the ranks have agreed on. Reports come in the order of the checkpoints. `BVK_NOTHING`:
// all reports have been read. The first reports, which have no name, are about configured tiers that cannot be used: no checkpoint
// reaches the level of such a tier.
//
// Local, never waits. All ranks get the same verdicts, though not at the same time.
//
// Errors: `BVK_ERR_ARGUMENT` if `report->size` was not set.
//
// Requirements:
// `report` begins with its size.
int bvk_next_report(bvk_session_t session,
                    struct bvk_report *report);

// Sets which lines Bivouac writes to standard error, according to their importance: 0 nothing; 1 errors; 2 warnings, and one line each
// when a session opens, restores and closes; 3 events; 4 details; 5 everything. This call takes precedence over `job.log` and
// `BIVOUAC_LOG`. Without this call, these settings decide, and if neither is set, the level is 2.
//
// Local, never waits, any thread, at any time.
//
// Errors: `BVK_ERR_ARGUMENT`.
int bvk_log(int level);

// Takes a checkpoint of all protected regions, as version `version` of the series `name` (1 to 128 bytes without `/` or control
// characters, not starting with a dot). When the call returns, the application may
// overwrite these regions. Regions on an offloaded GPU may be overwritten once the write has been declared (`bvk_offload`), and live
// regions as `bvk_set_live` says. The ranks agree on the checkpoint in the background; see `bvk_wait` and `bvk_next_report`.
//
// Versions should grow within a run, because a restart takes the largest one as the newest. If a version is taken twice, both checkpoints
// are stored, and a restart takes the second one.
//
// Collective: all ranks, with the same name, version and regions (lengths may differ). Returns without waiting for the other ranks.
// Blocks for the copy; if regions are live, also for the live copy of the previous checkpoint; and if node memory is full, also for room
// there, for at most `timeouts.room`.
//
// `pending`: NULL, or a pointer to a handle, which the call sets and you own until `bvk_release`; after an error the handle is NULL. The
// first checkpoint with regions on a GPU initialises the caches of this GPU, which takes up to a second.
//
// Errors: `BVK_ERR_CAPTURE`, `BVK_ERR_REGION`, `BVK_ERR_DEVICE`: the other ranks are told, and the application may continue.
// `BVK_ERR_STATE` while a restart is open, and `BVK_ERR_HANDLE`: the other ranks are not told. `BVK_ERR_STATE` is also returned if regions
// are to be marked on a stream that is being captured into a CUDA graph; in this case the other ranks are told.
//
// Requirements:
// The requirements of `bvk_protect` hold; `name` is NULL or a NUL-terminated string; `pending`
// is NULL or points to a handle.
int bvk_checkpoint(bvk_session_t session,
                   const char *name,
                   uint64_t version,
                   bvk_pending_t *pending);

// Begins a checkpoint that names its own regions: `bvk_save` adds the regions, and `bvk_capture` takes the checkpoint. Several
// checkpoints may be open at a time.
//
// Collective like `bvk_checkpoint`, together with the `bvk_capture` or `bvk_abort` that ends the checkpoint; never waits.
//
// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_STATE`, `BVK_ERR_HANDLE`: the other ranks are not told. If the name cannot be
// used, `bvk_capture` refuses it.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `checkpoint` points to a handle, which the call sets and you own
// until `bvk_capture` or `bvk_abort`.
int bvk_begin_checkpoint(bvk_session_t session,
                         const char *name,
                         uint64_t version,
                         bvk_checkpoint_t *checkpoint);

// Adds `count` elements at `data`, on the host or on a GPU, as region `name`.
//
// Local, never waits; nothing is read before `bvk_capture`. `kind` is as in `bvk_protect`.
//
// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`, `BVK_ERR_HANDLE`; the checkpoint is unchanged.
//
// Requirements:
// The memory is readable until `bvk_capture` has returned. `name` is NULL or a NUL-terminated string.
int bvk_save(bvk_checkpoint_t checkpoint,
             const char *name,
             const void *data,
             uint64_t count,
             int kind);

// Adds an array with the extents of its `dimensions` dimensions, slowest first; otherwise like `bvk_save`.
//
// Local, never waits.
//
// Requirements:
// As for `bvk_save`; `shape` points to `dimensions` numbers.
int bvk_save_shaped(bvk_checkpoint_t checkpoint,
                    const char *name,
                    const void *data,
                    int kind,
                    int dimensions,
                    const uint64_t *shape);

// Adds all regions that are protected on the session when the checkpoint is captured. Live regions are copied after `bvk_capture` has
// returned (`bvk_set_live`). If a protected region has a name that `bvk_save` has used, the capture fails.
//
// Local, never waits.
int bvk_save_protected(bvk_checkpoint_t checkpoint);

// Copies into the checkpoint the host regions that were added with `bvk_save`. When the call returns, the application may overwrite these
// regions; `bvk_capture` may be called later. The copies occupy no memory of the process. A region that was copied may be added and copied
// again if its type and shape are the same (otherwise `bvk_save` returns `BVK_ERR_REGION`). Regions on a GPU, regions on boxes, rows,
// protected regions and histories are not read until `bvk_capture`.
//
// Collective: all ranks or none, between the same other collective calls, with the same regions on the host and on a GPU; returns without
// waiting for the other ranks. Blocks like `bvk_checkpoint`. A restart before the capture makes the capture fail.
//
// Errors: `BVK_ERR_CAPTURE` if no tier has room, `BVK_ERR_REGION` for a name that cannot be used; in both cases `bvk_capture` also fails,
// and the other ranks are told. `BVK_ERR_STATE` while a restart is open.
//
// Requirements:
// The memory of all regions that were added is readable.
int bvk_hold(bvk_checkpoint_t checkpoint);

// Adds the versions that a history contains when the checkpoint is captured; `bvk_load_history` loads them.
//
// Local, never waits.
//
// Errors: `BVK_ERR_HANDLE`; `BVK_ERR_ARGUMENT` for a history of another session.
int bvk_save_history(bvk_checkpoint_t checkpoint, bvk_history_t history);

// Chooses "full", "basic", "list", "tree" or "auto" (`docs/REDUCTION.md`) as the method by which files reuse earlier files for a region of
// this checkpoint. This method replaces the configured one. The choice has an effect only if `reduction.method` or `reduction.regions`
// asks for a method. If the region is not saved, the log names it.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT` for any other method, `BVK_ERR_HANDLE`; the checkpoint is unchanged.
//
// Requirements:
// `region` and `method` are NULL or NUL-terminated strings.
int bvk_reduce(bvk_checkpoint_t checkpoint,
               const char *region,
               const char *method);

// Copies all regions. When the call returns, the application may overwrite these regions. `*checkpoint` becomes NULL, even if the capture
// fails, but not if the call is refused because a restart is open (`BVK_ERR_STATE`).
//
// Collective and blocking like `bvk_checkpoint`.
//
// Errors: as for `bvk_checkpoint`, and `BVK_ERR_REGION` for a name that cannot be used.
//
// Requirements:
// The memory of all regions is readable; `checkpoint` points to a handle; `pending` is NULL or points to a handle.
int bvk_capture(bvk_checkpoint_t *checkpoint,
                bvk_pending_t *pending);

// Aborts an open checkpoint. The other ranks are told. `*checkpoint` becomes NULL. A NULL handle is not an error.
//
// Collective, called in place of `bvk_capture`; never waits.
//
// Errors: `BVK_ERR_STATE` while a restart is open; the handle stays valid.
//
// Requirements:
// `checkpoint` is NULL or points to a handle.
int bvk_abort(bvk_checkpoint_t *checkpoint);

// Asks whether every level of this checkpoint has been reached or given up. `*finished`: 1 or 0. The call also
// exchanges coordination messages.
//
// Local, never waits, any thread that may call MPI.
//
// Requirements:
// `finished` points to a number.
int bvk_poll(bvk_pending_t pending,
             int *finished);

// The highest level that all ranks have reached, as far as this rank knows: `*reached` is one of `BVK_LEVEL_...`.
//
// Local, never waits, any thread.
//
// Requirements:
// `reached` points to a number.
int bvk_level(bvk_pending_t pending,
              int *reached);

// Waits until the checkpoint is committed at `level` or a higher one. `*reached` says at which level (`reached` may be NULL).
//
// Local, but returns only when all ranks have done their part. Blocks on the slowest rank, at most until the level is given up
// (`timeouts.abandon`). Any thread that may call MPI may make this call.
//
// Errors: `BVK_ERR_NOT_COMMITTED` as soon as it is known that the level will not be reached; `BVK_ERR_ARGUMENT`.
//
// Requirements:
// `reached` is NULL or points to a number.
int bvk_wait(bvk_pending_t pending,
             int level,
             int *reached);

// Releases the handle; the checkpoint itself continues. `*pending` becomes NULL. A NULL handle is not an error.
//
// Local, never waits, any thread.
//
// Requirements:
// `pending` is NULL or points to a handle.
int bvk_release(bvk_pending_t *pending);

// Restores version `version` (or `BVK_NEWEST`) of the series `name` into all protected regions, which must have the lengths that were
// saved. Regions on boxes can be loaded on any number of ranks (`bvk_protect_on`), and so can values (`bvk_protect_shared`); a version
// that contains any other region can be restored only on the number of ranks that took it. If a version is damaged on some rank, all ranks
// take the next older one, unless a single version was requested. `restored`: NULL, or a structure to fill. `BVK_NOTHING`: there is
// nothing to restore. Regions of the checkpoint that are not protected are not loaded, and a warning names them. It is an error if no
// region is protected and the checkpoint has one.
//
// Collective: all ranks. Blocks until all ranks have loaded, and waits for checkpoints of this session that are being written.
//
// Errors: `BVK_ERR_RESTART`, on all ranks, even if only one rank left `restored->size` unset; the contents of the regions are then
// unspecified. `BVK_ERR_REGION`, `BVK_ERR_STATE`.
//
// Requirements:
// The requirements of `bvk_protect` hold; `name` is NULL or a NUL-terminated string; `restored`
// is NULL or begins with its size.
int bvk_restore(bvk_session_t session,
                const char *name,
                uint64_t version,
                struct bvk_restored *restored);

// Begins a restart in which the application loads the regions itself. The application calls `bvk_load` for each region that it needs,
// then `bvk_end_restore`, and repeats these calls as long as `bvk_end_restore` returns `BVK_AGAIN`. `version` is as in `bvk_restore`.
// `BVK_NOTHING`: there is nothing to restore, and no restart is open.
//
// Collective: all ranks. No other collective call of the session may be made until the restart has ended. Blocks until the ranks have
// elected a version. Below `MPI_THREAD_MULTIPLE`, the application must not wait for other ranks in MPI calls of its own between this call
// and `bvk_end_restore`, because ranks may be reading from each other's nodes.
//
// Errors: as for `bvk_restore`. `BVK_ERR_STATE` while another restart is open; `*restart` is then unchanged.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `restart` points to a handle, which the call sets and you own
// until `bvk_end_restore` ends it.
int bvk_begin_restore(bvk_session_t session,
                      const char *name,
                      uint64_t version,
                      bvk_restart_t *restart);

// The version that is being restored.
//
// Local, never waits.
//
// Requirements:
// `version` points to a number.
int bvk_saved_version(bvk_restart_t restart, uint64_t *version);

// The number and the type of the elements of the region `name` in the version that is being restored. `count` and `kind` may be NULL.
//
// Local. Blocks on the tier that holds the copy.
//
// Errors: `BVK_ERR_LOAD` if there is no such region, or no copy that can be read. A missing region does not make the attempt fail.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `count` and `kind` are NULL or point to numbers.
int bvk_region_size(bvk_restart_t restart,
                    const char *name,
                    uint64_t *count,
                    int *kind);

// Loads the region `name` into `count` elements at `data`, on the host or on a GPU. The number and the type must be those that were saved.
//
// Local. Blocks on the tier that holds the copy.
//
// Errors: `BVK_ERR_LOAD`, `BVK_ERR_DEVICE`, `BVK_ERR_ARGUMENT`. If the region is missing, or has a different type or length, `data` is
// unchanged; after any other error, the contents of `data` are unspecified.
//
// Requirements:
// The memory is writable, and nothing else uses it before this call returns. `name` is NULL or a NUL-terminated string.
int bvk_load(bvk_restart_t restart,
             const char *name,
             void *data,
             uint64_t count,
             int kind);

// Loads all protected regions, if there are any. The application loads other regions of the checkpoint itself, or leaves them out.
//
// Local, except for values and for regions on boxes: for these, the call is collective whenever `bvk_load_on` and `bvk_load_shared` are.
// Blocks on the tiers that hold the copies, and then until all ranks have made the call.
//
// Errors: as for `bvk_load`; the contents of the regions are then unspecified.
//
// Requirements:
// The requirements of `bvk_protect` hold.
int bvk_load_protected(bvk_restart_t restart);

// Appends to `history` all versions that were saved under its name. `*count` says how many versions these are (`count` may be NULL). Each
// attempt needs its own history: after `BVK_AGAIN`, close this history and open another.
//
// Local. Blocks on the tier that holds the copy.
//
// Errors: as for `bvk_load`. The history then contains only some of the versions: close it.
//
// Requirements:
// `count` is NULL or points to a number.
int bvk_load_history(bvk_restart_t restart,
                     bvk_history_t history,
                     uint64_t *count);

// Rejects a version that can be loaded but must not be used, for example because it contains a NaN or fails another check of the program.
// After `bvk_end_restore`, all ranks continue with the next older version. It is enough for one rank to make this call. `reason` is for
// the log, and for the error if there is no older version. If a rank gives several reasons, the first one counts.
//
// Local, never waits.
//
// Requirements:
// `reason` is a NUL-terminated string.
int bvk_reject(bvk_restart_t restart,
               const char *reason);

// Ends an attempt. `loaded`: 1 if this rank has loaded what it needs; 0 if not; -1 if not and no other version would help, for example
// because the rank does not have enough memory. There are three outcomes, and all ranks get the same one:
//
// - `BVK_OK`: all ranks have loaded. `*restart` is NULL, and `restored`, unless it is NULL, describes the checkpoint.
// - `BVK_AGAIN`: a rank has found damage, or has rejected the version (`bvk_reject`). Load again from the same handle, which now leads to
//   other copies of the version or to an older one. Nothing that was loaded before may be used.
// - `BVK_ERR_RESTART`: the restart has ended, and `*restart` is NULL. A rank has not loaded and no other version would help: a region is
//   missing or has a different type or length, the rank passed 0 although no load failed, or the rank passed -1.
//
// To ask whether a region exists, use `bvk_region_size`, which does not affect the outcome.
//
// Collective: all ranks. Blocks until all ranks have made the call.
//
// Errors: `BVK_ERR_RESTART`, on all ranks, even if only one rank left `restored->size` unset; `*restart` is then NULL.
//
// Requirements:
// `restart` points to a handle; `restored` is NULL or begins with its size.
int bvk_end_restore(bvk_restart_t *restart,
                    int loaded,
                    struct bvk_restored *restored);

// Lists the versions of the series `name` that all ranks can restore, newest first. `versions` has room for `capacity` versions, and gets
// as many as fit. `*count` says how many versions all ranks can restore.
//
// Collective: all ranks. Blocks like `bvk_begin_restore`.
//
// Errors: as for `bvk_restore`.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `versions` has room for `capacity` numbers, or is NULL and `capacity` is
// 0; `count` points to a number.
int bvk_versions(bvk_session_t session,
                 const char *name,
                 uint64_t *versions,
                 size_t capacity,
                 size_t *count);

// Says which boxes this rank owns in an array, and proves together with the other ranks that each element has one owner. Regions that are
// saved on `*boxes` can be restored on any number of ranks, and on any other boxes of an array of the same shape. Make this call once for
// each decomposition, whatever the element types are.
//
// `shape`: the extents of the array in its `dimensions` dimensions (1 to 8), slowest first (in C, rows before columns). This rank owns
// `count` boxes, which may be 0. The `dimensions` numbers starting at `origins + b * dimensions` are the origin of box b, and those
// starting at `extents + b * dimensions` are its extents; boxes and elements are counted from 0. In memory, each box is surrounded by
// ghost cells: `before` and `after` point to `dimensions` numbers each, which say how many elements lie before and after the box in each
// dimension; NULL stands for none. Ghost cells are not saved, and a load leaves them unchanged. `sparse`: 1 if the boxes of all ranks
// together need not cover the array, as on a level of an adaptive mesh; 0 if they must.
//
// Collective: all ranks, with the same `dimensions`, `shape` and `sparse`, including ranks that own nothing. Blocks
// until all ranks have made the call.
//
// Errors: `BVK_ERR_DISAGREED`, on all ranks alike: an element has two owners or none (the text names the ranks and the first elements), an
// argument of some rank is invalid, or ranks gave different shapes. `BVK_ERR_FAILED`. `BVK_ERR_STATE` while a restart is open, and
// `BVK_ERR_HANDLE`: the other ranks are not told.
//
// Requirements:
// `shape` points to `dimensions` numbers, `origins` and `extents` point to `count * dimensions` numbers each, and `before` and
// `after` are NULL or point to `dimensions` numbers each. `boxes` points to a handle, which the call sets and you own until
// `bvk_boxes_close` or `bvk_close`.
int bvk_boxes(bvk_session_t session,
              int dimensions,
              const uint64_t *shape,
              size_t count,
              const uint64_t *origins,
              const uint64_t *extents,
              const uint64_t *before,
              const uint64_t *after,
              int sparse,
              bvk_boxes_t *boxes);

// Says which elements this rank owns in an array of numbered elements, such as the elements of an unstructured mesh, and proves together
// with the other ranks that each element has one owner. `*boxes` is a handle for all calls that take boxes. For these calls, this rank's
// memory is one box of `count` elements, in the order of the list. Regions that are saved on `*boxes` can be restored on any number of
// ranks, and on any other lists of an array of the same size.
//
// The array has `total` elements, numbered from 0. `numbers` lists the `count` numbers that this rank owns, in any order; `count` may be
// 0. The list is copied. `sparse`: 1 if the lists of all ranks together need not contain all numbers; 0 if they must.
//
// Collective: all ranks, with the same `total` and `sparse`, including ranks that own nothing. Blocks until all ranks have made the call.
//
// Errors: as for `bvk_boxes`; also `BVK_ERR_DISAGREED` if a number is not below `total`, or occurs twice in a list.
//
// Requirements:
// `numbers` points to `count` numbers. `boxes` points to a handle, which the call sets and you own until `bvk_boxes_close` or `bvk_close`.
int bvk_ids(bvk_session_t session,
            uint64_t total,
            size_t count,
            const uint64_t *numbers,
            int sparse,
            bvk_boxes_t *boxes);

// Releases boxes. Regions that were protected or saved on these boxes remain so. `*boxes` becomes NULL. A NULL handle is not an error.
//
// Local, never waits.
//
// Requirements:
// `boxes` is NULL or points to a handle.
int bvk_boxes_close(bvk_boxes_t *boxes);

// Protects this rank's part of an array as region `name`: the memory of its box, with the ghost cells of `boxes`. `bvk_checkpoint` saves
// this part, and `bvk_restore` loads it, on any number of ranks. `elements`: the number of elements in memory, including ghost cells. This
// number is compared with the size of the box and its ghost cells. A rank that owns nothing passes 0. The memory may be on the host or on
// a GPU, as each rank chooses. Otherwise, the call works like `bvk_protect`. All ranks must protect their regions in the same order.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect`; also `BVK_ERR_REGION` if `elements` is not the number of elements of the box with its ghost cells, or
// if this rank owns several boxes.
//
// Requirements:
// As for `bvk_protect`.
int bvk_protect_on(bvk_session_t session,
                   const char *name,
                   bvk_boxes_t boxes,
                   void *data,
                   uint64_t elements,
                   int kind);

// Protects an array of which this rank owns any number of boxes. `data` holds a pointer to the memory of each box, in the order in which
// the boxes were passed to `bvk_boxes`, and `elements` holds the number of elements of each box. The lists need to be valid only during
// the call. Otherwise, the call works like `bvk_protect_on`.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect_on`; also `BVK_ERR_REGION` if `count` is not the number of boxes that this rank owns; `BVK_ERR_ARGUMENT` if
// boxes overlap in memory, or are partly on a GPU and partly elsewhere.
//
// Requirements:
// The requirements of `bvk_protect` hold for the memory of each box; `data` and
// `elements` have `count` entries.
int bvk_protect_boxes_on(bvk_session_t session,
                         const char *name,
                         bvk_boxes_t boxes,
                         size_t count,
                         void *const *data,
                         const uint64_t *elements,
                         int kind);

// Adds this rank's part of an array to a checkpoint as region `name`, with memory as in `bvk_protect_on`. This memory is read by
// `bvk_capture`, not by `bvk_hold`.
//
// Local, never waits; nothing is read before `bvk_capture`.
//
// Errors: as for `bvk_protect_on`, and `BVK_ERR_REGION` for a name that has already been added; the checkpoint is unchanged.
//
// Requirements:
// The memory is readable until `bvk_capture` has returned. `name` is NULL or a NUL-terminated string.
int bvk_save_on(bvk_checkpoint_t checkpoint,
                const char *name,
                bvk_boxes_t boxes,
                const void *data,
                uint64_t elements,
                int kind);

// Adds an array of which this rank owns any number of boxes, with lists as in `bvk_protect_boxes_on`; otherwise like `bvk_save_on`.
//
// Local, never waits.
//
// Errors: as for `bvk_save_on` and `bvk_protect_boxes_on`.
//
// Requirements:
// The requirements of `bvk_save_on` hold for the memory of each box; `data` and `elements` have `count` entries.
int bvk_save_boxes_on(bvk_checkpoint_t checkpoint,
                      const char *name,
                      bvk_boxes_t boxes,
                      size_t count,
                      const void *const *data,
                      const uint64_t *elements,
                      int kind);

// Loads the region `name` into this rank's part of an array, with memory as in `bvk_protect_on`. The boxes may differ from those that the
// region was saved on; the shape of the array may not. Ghost cells stay as they are.
//
// Local if the region was saved on the same number of ranks and on the same boxes. Otherwise collective: all ranks load the same regions
// in the same order. Blocks on the tiers that hold the copies, and then until all ranks have made the call.
//
// Errors: `BVK_ERR_LOAD`: the region does not exist, has a different type or shape, was not saved on boxes, or lacks requested elements;
// or the memory does not fit the boxes. If the call is collective, all ranks get an error. `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`: this rank
// does not take part, and the other ranks get an error when it calls `bvk_end_restore`.
//
// Requirements:
// The memory is writable, and nothing else uses it before this call returns. `name` is NULL or a NUL-terminated string.
int bvk_load_on(bvk_restart_t restart,
                const char *name,
                bvk_boxes_t boxes,
                void *data,
                uint64_t elements,
                int kind);

// Loads an array of which this rank owns any number of boxes, with lists as in `bvk_protect_boxes_on`; otherwise like `bvk_load_on`.
//
// Local or collective, and blocking, like `bvk_load_on`.
//
// Errors: as for `bvk_load_on`.
//
// Requirements:
// The requirements of `bvk_load_on` hold for the memory of each box; `data` and `elements` have `count` entries.
int bvk_load_boxes_on(bvk_restart_t restart,
                      const char *name,
                      bvk_boxes_t boxes,
                      size_t count,
                      void *const *data,
                      const uint64_t *elements,
                      int kind);

// Protects the `count` elements at `data` under `name`, as a value that is the same on all ranks, such as a step or a time.
// `bvk_checkpoint` saves them, and `bvk_restore` loads them, on any number of ranks. They must be on the host and take less than 1 MiB. If
// the elements differ on a rank, the checkpoint is abandoned, and the verdict names the rank. Otherwise, the call works like
// `bvk_protect`. All ranks must protect their regions in the same order.
//
// A Rust program loads such a value with `shared::<Elements>`.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect`; also `BVK_ERR_REGION` for 1 MiB or more.
//
// Requirements:
// As for `bvk_protect`.
int bvk_protect_shared(bvk_session_t session,
                       const char *name,
                       void *data,
                       uint64_t count,
                       int kind);

// Protects the `count` elements at `data` under `name`, as a value that belongs to this rank alone, such as the state of its random number
// generator. They must be on the host and take less than 1 MiB. On the same number of ranks, `bvk_restore` loads them. `on_resize`, one of
// `BVK_RESIZE_...` and the same on all ranks, says what happens on a different number of ranks: with `BVK_RESIZE_REFUSE` the restart is
// refused; otherwise the elements stay unchanged, and `bvk_restored` says how many ranks took the checkpoint.
//
// Local, waits like `bvk_protect`.
//
// Errors: as for `bvk_protect_shared`.
//
// Requirements:
// As for `bvk_protect`.
int bvk_protect_per_rank(bvk_session_t session,
                         const char *name,
                         void *data,
                         uint64_t count,
                         int kind,
                         int on_resize);

// Adds the `count` elements at `data` to a checkpoint, as a value that is the same on all ranks (`bvk_protect_shared`). They are copied in
// this call.
//
// Local, never waits.
//
// Errors: as for `bvk_protect_shared`, and `BVK_ERR_REGION` for a name that has already been added; the checkpoint is unchanged.
//
// Requirements:
// The memory is readable. `name` is NULL or a NUL-terminated string.
int bvk_save_shared(bvk_checkpoint_t checkpoint,
                    const char *name,
                    const void *data,
                    uint64_t count,
                    int kind);

// Adds the `count` elements at `data` to a checkpoint, as a value of this rank (`bvk_protect_per_rank`). They are copied in this call.
//
// Local, never waits.
//
// Errors: as for `bvk_save_shared`.
//
// Requirements:
// As for `bvk_save_shared`.
int bvk_save_per_rank(bvk_checkpoint_t checkpoint,
                      const char *name,
                      const void *data,
                      uint64_t count,
                      int kind,
                      int on_resize);

// Loads into `count` elements at `data` the value that was saved under `name` with `bvk_save_shared` or `bvk_protect_shared`. The number
// and the type must be those that were saved.
//
// Local if the same number of ranks took the checkpoint. Otherwise collective: all ranks load the same regions in the same order, and the
// call blocks until all ranks have made the call.
//
// Errors: `BVK_ERR_LOAD`; `BVK_ERR_ARGUMENT` and `BVK_ERR_REGION` as for `bvk_load_on`. `data` is then unchanged.
//
// Requirements:
// The memory is writable, and nothing else uses it before this call returns. `name` is NULL or a NUL-terminated string.
int bvk_load_shared(bvk_restart_t restart,
                    const char *name,
                    void *data,
                    uint64_t count,
                    int kind);

// Loads into `count` elements at `data` the value that this rank saved under `name` with `bvk_save_per_rank` or `bvk_protect_per_rank`.
// The number and the type must be those that were saved. It is an error if a different number of ranks took the checkpoint
// (`bvk_saved_ranks`), because no saved value belongs to this rank; see `bvk_of_ranks`.
//
// Local. Blocks on the tier that holds the copy.
//
// Errors: as for `bvk_load_shared`.
//
// Requirements:
// As for `bvk_load_shared`.
int bvk_load_per_rank(bvk_restart_t restart,
                      const char *name,
                      void *data,
                      uint64_t count,
                      int kind);

// The number of ranks that took the checkpoint that is being restored.
//
// Local, never waits; the same on all ranks.
//
// Requirements:
// `ranks` points to a number.
int bvk_saved_ranks(bvk_restart_t restart, int *ranks);

// Loads the values that the old ranks `first` to `first + count - 1` saved with `BVK_RESIZE_ASK` under `name`, and stores them rank after
// rank, starting at `data`. `each` is the number of elements that each of these old ranks saved. Each rank may ask for any of the
// `bvk_saved_ranks` old ranks, or for none with `count` 0.
//
// Collective: all ranks. Blocks on the tiers that hold the shards, and until all ranks have made the call.
//
// Errors: `BVK_ERR_LOAD`; `BVK_ERR_ARGUMENT` for old ranks that do not exist, a mistake of which the other ranks learn only in
// `bvk_end_restore`. After either error, the contents of `data` are unspecified.
//
// Requirements:
// The memory has room for `count * each` elements, and nothing else uses it before this call returns. `name` is
// NULL or a NUL-terminated string.
int bvk_of_ranks(bvk_restart_t restart,
                 const char *name,
                 int first,
                 int count,
                 void *data,
                 uint64_t each,
                 int kind);

// Adds this rank's rows of the set `name` to a checkpoint. A rank may have any number of rows, and a different number at each checkpoint.
// Each column is a region `name/column`. The rows can be restored on any number of ranks (`bvk_load_rows`). The structure and its list of
// columns need to be valid only during the call. The memory of the columns is read by `bvk_capture`, not by `bvk_hold`.
//
// Local, never waits. All ranks, including ranks without rows, add the set with the same columns.
//
// Errors: `BVK_ERR_ARGUMENT`; `BVK_ERR_REGION` for a name that cannot be used or has already been added, and for a set without
// columns; the checkpoint is unchanged.
//
// Requirements:
// The memory of the columns is readable until `bvk_capture` has returned. `name` and the names of the columns are NULL or NUL-terminated
// strings; `rows` is NULL or begins with its size, and points to as many columns and coordinates as it says.
int bvk_save_rows(bvk_checkpoint_t checkpoint,
                  const char *name,
                  const struct bvk_rows *rows);

// Describes column number `at` of the set `name`: its name, the type of its elements, and the number of elements per row. Columns are
// counted from 0, in the order in which they were saved. The call returns `BVK_NOTHING` after the last column. `column`, `kind` and
// `width` may be NULL. The name stays valid until `bvk_end_restore`.
//
// Local; the same on all ranks. Blocks on the tier that holds the copy.
//
// Errors: `BVK_ERR_LOAD` if there is no such set, or no copy that can be read. A missing set does not make the attempt fail.
// `BVK_ERR_ARGUMENT`.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `column` is NULL or points to a pointer; `kind` and `width` are NULL or point to numbers.
int bvk_column_at(bvk_restart_t restart,
                  const char *name,
                  size_t at,
                  const char **column,
                  int *kind,
                  uint32_t *width);

// Determines which rows of the set `name` this rank gets (`how` is one of `BVK_ROWS_...`). `*count` says how many rows these are (`count`
// may be NULL). The application then loads their columns one by one, into memory with room for these rows (`bvk_load_column`). A program
// that wants certain rows on certain ranks uses `bvk_load_rows_by`.
//
// Collective: all ranks, with the same `how`, unless it is `BVK_ROWS_OWN`, which makes the call local. Blocks on the tiers that hold the
// shards, and until all ranks have made the call.
//
// Errors: `BVK_ERR_LOAD`: there is no such set, it was not saved with `bvk_save_rows`, or `how` is `BVK_ROWS_OWN` and a
// different number of ranks took the checkpoint. `BVK_ERR_ARGUMENT`: this rank does not take part, and the other ranks get an
// error when it calls `bvk_end_restore`.
//
// Requirements:
// `name` is NULL or a NUL-terminated string. `rows` points to a handle, which the call sets and you own until `bvk_loaded_rows_close`, or
// until `bvk_end_restore`, which closes the handle whatever status it returns. `count` is NULL or points to a number.
int bvk_load_rows(bvk_restart_t restart,
                  const char *name,
                  int how,
                  bvk_loaded_rows_t *rows,
                  uint64_t *count);

// Gets `wanted` rows, starting with row number `first`, in the order of the ranks that saved them. Each rank may ask for any
// rows: the ranges may overlap and may leave rows out. `bvk_parts` says how many rows there are in total. Otherwise, the
// call works like `bvk_load_rows`.
//
// Collective and blocking like `bvk_load_rows`.
//
// Errors: as for `bvk_load_rows`; `BVK_ERR_LOAD` on all ranks if one rank asks for rows that do not exist.
//
// Requirements:
// As for `bvk_load_rows`.
int bvk_load_rows_range(bvk_restart_t restart,
                        const char *name,
                        uint64_t first,
                        uint64_t wanted,
                        bvk_loaded_rows_t *rows,
                        uint64_t *count);

// Gets the rows that a function of the application assigns to this rank according to the values of a column of the type `kind` with
// `width` elements per row. The rows are in the order of the ranks that saved them and, for each of these ranks, in the order in which it
// saved them. Otherwise, the call works like `bvk_load_rows`.
//
// The function `owners` is called on this thread before this call returns, on the ranks that read rows: on some ranks for many rows and on
// others for none. It gets each row once, in batches of up to 1 MiB of values. Its answers must depend only on the values, not on data
// that only one rank has. It must call neither Bivouac (`BVK_ERR_STATE`) nor MPI, and it must return: no exception and no `longjmp` may
// leave it. Entries of its array `owners` that it does not set are -1.
//
// Collective and blocking like `bvk_load_rows`; the column must be the same on all ranks. A rank that reads rows keeps 4 bytes per
// row until the handle is closed.
//
// Errors: as for `bvk_load_rows`; `BVK_ERR_LOAD` on all ranks if a row is assigned to no rank, or to a rank that does not exist (the text
// gives the numbers of the row and of that rank).
//
// Requirements:
// As for `bvk_load_rows`. `column` is NULL or a NUL-terminated string; `owners` writes `count` numbers and no more,
// and may be called with `user`.
int bvk_load_rows_by(bvk_restart_t restart,
                     const char *name,
                     const char *column,
                     int kind,
                     uint32_t width,
                     bvk_owners owners,
                     void *user,
                     bvk_loaded_rows_t *rows,
                     uint64_t *count);

// Loads a column of rows into `elements` elements at `data`. These have the type that was saved: `width` elements for each row that this
// rank gets, row after row.
//
// Collective if the call that distributed the rows was collective: all ranks, including ranks without rows, load the same columns in the
// same order. Blocks on the tiers that hold the shards, and until all ranks have made the call.
//
// Errors: `BVK_ERR_LOAD`: there is no such column, it has a different type or width, or `elements` is not `width` times the number of
// rows. In the last case, all ranks get an error if the call is collective. `BVK_ERR_ARGUMENT`: this rank does not take part, and the
// other ranks get an error when it calls `bvk_end_restore`. The contents of `data` are then unspecified.
//
// Requirements:
// The memory is writable, and nothing else uses it before this call returns. `column` is NULL or a NUL-terminated string.
int bvk_load_column(bvk_loaded_rows_t rows,
                    const char *column,
                    void *data,
                    uint64_t elements,
                    int kind,
                    uint32_t width);

// Releases loaded rows and their memory. `*rows` becomes NULL. A NULL handle is not an error. `bvk_end_restore`
// closes handles that are still open.
//
// Local, never waits.
//
// Errors: `BVK_ERR_HANDLE`, also after `bvk_end_restore`.
//
// Requirements:
// `rows` is NULL or points to a handle.
int bvk_loaded_rows_close(bvk_loaded_rows_t *rows);

// Asks which part of `name` each of the old ranks `first` to `first + count - 1` had; `name` is an array that was saved on boxes or as
// numbered elements, or a set of rows. `bvk_part_of` and `bvk_boxes_of` then return the answers. Each rank may ask for any of the
// `bvk_saved_ranks` old ranks, or for none with `count` 0. Nothing is loaded.
//
// Collective: all ranks. Blocks on the tiers that hold the shards, and until all ranks have made the call.
//
// Errors: `BVK_ERR_LOAD`: no such array or set exists. `BVK_ERR_ARGUMENT` for old ranks that do not exist: this rank does not take part,
// and the other ranks get an error when it calls `bvk_end_restore`.
//
// Requirements:
// `name` is NULL or a NUL-terminated string. `parts` points to a handle, which the call sets and you own until `bvk_parts_close`, or until
// `bvk_end_restore`, which closes the handle whatever status it returns.
int bvk_parts(bvk_restart_t restart,
              const char *name,
              int first,
              int count,
              bvk_parts_t *parts);

// Describes in `*found` the part that old rank number `rank` had.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT` for a rank that `bvk_parts` was not asked for, or if `found->size` was not set.
//
// Requirements:
// `found` is NULL or begins with its size.
int bvk_part_of(bvk_parts_t parts, int rank, struct bvk_part *found);

// Lists the boxes that old rank number `rank` had, in the order in which the boxes were passed to `bvk_boxes`. The lists `origins` and
// `extents` have room for `capacity` boxes, and get as many as fit. Each of the two lists gets as many numbers per box as the array has
// dimensions, box after box. `bvk_part_of` says how many boxes there are.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT`, also for a rank whose part consists of rows or numbered elements.
//
// Requirements:
// `origins` and `extents` have room for `capacity` times as many numbers as the array has dimensions, or are NULL and `capacity` is 0.
int bvk_boxes_of(bvk_parts_t parts,
                 int rank,
                 size_t capacity,
                 uint64_t *origins,
                 uint64_t *extents);

// Releases the result of `bvk_parts`. `*parts` becomes NULL. A NULL handle is not an error. `bvk_end_restore`
// closes handles that are still open.
//
// Local, never waits.
//
// Errors: `BVK_ERR_HANDLE`, also after `bvk_end_restore`.
//
// Requirements:
// `parts` is NULL or points to a handle.
int bvk_parts_close(bvk_parts_t *parts);

// Opens a history of this rank under the name `name`, with a cache on GPU number `gpu`. With `BVK_NO_GPU`, this cache is in the memory
// of the process. `keep`: `BVK_KEEP_...`. The configuration says how much memory and file space the history may take (`[device]`,
// `[history]`). Without a GPU, a `device.budget` in percent is a share of this rank's part of node memory.
//
// Local. The first history on a GPU initialises the driver if necessary, which takes up to a second.
//
// Errors: `BVK_ERR_DEVICE`, `BVK_ERR_ARGUMENT`.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `history` points to a handle, which the call sets and you own until `bvk_history_close`.
int bvk_history_open(bvk_session_t session,
                     const char *name,
                     int gpu,
                     int keep,
                     bvk_history_t *history);

// Adds a field `name` to all later versions: `count` elements at `data`, on the host or on the history's GPU. If a field of the
// same name exists, it is replaced.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT`, `BVK_ERR_REGION`.
//
// Requirements:
// Until the field is replaced or cleared, or the history is closed, the memory is readable in each append, and writable and used by
// nothing else in each restore. `name` is NULL or a NUL-terminated string.
int bvk_history_field(bvk_history_t history,
                      const char *name,
                      void *data,
                      uint64_t count,
                      int kind);

// Forgets all fields.
//
// Local, never waits.
int bvk_history_clear_fields(bvk_history_t history);

// Appends version `version`: a copy of all fields as they are when the work on the session's stream has run (`bvk_set_stream`). When the
// call returns, the application may overwrite the fields.
//
// Local. Blocks for the copy and, if the cache is full, until other versions have left the cache, for at most `timeouts.room`.
//
// Errors: `BVK_ERR_DEVICE`; the version is then not in the history.
//
// Requirements:
// The requirements of `bvk_history_field` hold.
int bvk_history_append(bvk_history_t history,
                       uint64_t version);

// Copies version `version` back into the fields, and compares digests. The fields may be only some of the fields that were
// appended, but must not overlap.
//
// Local. Blocks for a copy inside the device if the version is in its cache, otherwise for the transfer.
//
// Errors: `BVK_ERR_DEVICE`: the version does not exist or has no undamaged copy. The contents of the fields are then unspecified.
//
// Requirements:
// The requirements of `bvk_history_field` hold.
int bvk_history_restore(bvk_history_t history,
                        uint64_t version);

// Says that the `count` versions in the list `versions` will be restored in the order of the list, after the versions that earlier hints
// named. The versions in the list need not exist yet. Hints cannot be taken back, and restores may deviate from them.
//
// Local, never waits.
//
// Requirements:
// `versions` points to `count` numbers.
int bvk_history_hint(bvk_history_t history,
                     const uint64_t *versions,
                     size_t count);

// Starts the prefetching of hinted versions.
//
// Local, never waits.
int bvk_history_start_prefetch(bvk_history_t history);

// Waits until nothing is left to flush.
//
// Local. Blocks for the slowest tier.
int bvk_history_wait_flushed(bvk_history_t history);

// Deletes the history with all its versions. `*history` becomes NULL. A NULL handle is not an error.
//
// Local, never waits.
//
// Requirements:
// `history` is NULL or points to a handle.
int bvk_history_close(bvk_history_t *history);

// After this call, checkpoints with regions in the memory of GPU number `gpu` are *marked*: while the application continues, the regions
// are sent from where they are, and the application declares which memory it is about to write to (`bvk_before_write`, `bvk_before`). The
// configuration (`[offload]`) says whether a checkpoint is marked, or copied inside the GPU as without this call. Other checkpoints are
// taken as before. A session can offload only one GPU. With `BVK_NO_GPU`, all declarations are accepted and nothing is marked, so that a
// program runs unchanged without a GPU. `docs/OFFLOAD.md` shows a program.
//
// `bytes`: the size of a marked checkpoint's regions in bytes, on the GPU and on the host together. Node memory for two such checkpoints
// is reserved, touched and pinned, and its two parts are used in turn. With 0, no memory is prepared: the first checkpoints are copied,
// and their memory is pinned for later ones. A second call prepares more memory. Histories that are opened later may take prepared
// memory, so open histories before this call.
//
// Local. Blocks for about half a second per GiB of `bytes`, and for up to a second if this is the first call for the GPU.
//
// Errors: `BVK_ERR_DEVICE`: the GPU does not exist, this rank does not have enough node memory, or the memory cannot be pinned.
// `BVK_ERR_STATE`: the session already offloads another GPU. `BVK_ERR_ARGUMENT`, `BVK_ERR_HANDLE`. The session is unchanged.
//
// Requirements:
// After this call, the memory of a region on that GPU must stay allocated beyond the call that captures it, until `bvk_settle`
// or `bvk_close` has returned. From a capture until the next one, all work that writes to a saved region, on any stream, must
// be declared before it is enqueued. Otherwise the checkpoint is refused on all ranks (with `offload.audit = false` it may instead contain
// later bytes, and nothing detects this).
int bvk_offload(bvk_session_t session,
                int gpu,
                uint64_t bytes);

// Declares that work that is enqueued on the session's stream (`bvk_set_stream`) between this call and the next checkpoint may write to
// the `bytes` bytes at `data`: a region on the GPU, a part of a region, or several adjacent regions in one allocation. Memory that is not
// saved is ignored. Host memory is also ignored, because it is copied in the call that captures it. Live regions (`bvk_set_live`) are an
// exception: the declared bytes that have not been copied yet are copied before this call returns.
//
// Local, never waits for a GPU. The stream may have to wait: for the mark, for a copy inside the GPU, or for a transfer. For live regions,
// the call blocks until the declared bytes have been copied.
//
// Errors: `BVK_ERR_STATE` if neither `bvk_offload` nor `bvk_set_live` has been called, and while the stream is being captured into a CUDA
// graph: before each launch of a graph, declare everything that the graph writes to. `BVK_ERR_ARGUMENT` if `data` is NULL and `bytes` is
// not 0. `BVK_ERR_DEVICE`: the bytes are not all on one GPU, or the GPU has failed; marked regions are then refused.
//
// Requirements:
// The session's stream meets the requirements of `bvk_set_stream`. `data` is not dereferenced.
int bvk_before_write(bvk_session_t session,
                     const void *data,
                     uint64_t bytes);

// Declares memory that work on another stream is about to write to. `stream` is a `cudaStream_t` or `CUstream` of the device's primary
// context; NULL stands for the legacy default stream. Otherwise, the call works like `bvk_before_write`.
//
// Local, waits like `bvk_before_write`.
//
// Errors: as for `bvk_before_write`, and `BVK_ERR_ARGUMENT` for the per-thread default stream.
//
// Requirements:
// `stream` lives until this call has returned. `data` is not dereferenced.
int bvk_before_write_on(bvk_session_t session,
                        const void *data,
                        uint64_t bytes,
                        void *stream);

// Names the `count` pieces of memory that some work of the application writes to, so that they can be declared together each time
// (`bvk_before`). This is faster than declaring them one by one, because the driver is asked only once which device each piece belongs to.
// Memory that is not on the GPU counts as host memory.
//
// Local, never waits. `set`: the handle, yours until `bvk_write_set_close` or the end of the session; NULL after an error. After a
// reallocation, and after the first `bvk_offload`, create a new set.
//
// Errors: as for `bvk_before_write`; the error text says which entry is wrong, counted from 0.
//
// Requirements:
// `name` is NULL or a NUL-terminated string. `data` points to `count` pointers, which are not dereferenced, and `bytes` points to `count`
// numbers. `set` points to a handle.
int bvk_write_set(bvk_session_t session,
                  const char *name,
                  const void *const *data,
                  const uint64_t *bytes,
                  size_t count,
                  bvk_write_set_t *set);

// Declares all memory that a set names; otherwise like `bvk_before_write`.
//
// Local, waits like `bvk_before_write`.
//
// Errors: as for `bvk_before_write`, and `BVK_ERR_STATE` for a set that was created before `bvk_offload` was called; `BVK_ERR_HANDLE`.
//
// Requirements:
// The session's stream meets the requirements of `bvk_set_stream`.
int bvk_before(bvk_write_set_t set);

// Declares all memory that a set names, for work on another stream; otherwise like `bvk_before_write_on`.
//
// Local, waits like `bvk_before_write`.
//
// Errors: as for `bvk_before_write_on`, and `BVK_ERR_STATE` for a set that was created before `bvk_offload` was called; `BVK_ERR_HANDLE`.
//
// Requirements:
// `stream` lives until this call has returned.
int bvk_before_on(bvk_write_set_t set,
                  void *stream);

// Deletes a set. `*set` becomes NULL. A NULL handle is not an error.
//
// Local, never waits.
//
// Requirements:
// `set` is NULL or points to a handle.
int bvk_write_set_close(bvk_write_set_t *set);

// Waits until Bivouac no longer reads marked regions on a GPU or live regions on the host. Make this call before the memory of these
// regions is freed, and before a write to it that cannot be declared, such as a write by another process or another GPU. If nothing is
// marked or being copied, this call does nothing.
//
// Local. Blocks for the transfer of marked regions, at full speed, and for the copy of live ones.
//
// Errors: `BVK_ERR_HANDLE`. `bvk_wait` says whether the marked checkpoint has been committed.
int bvk_settle(bvk_session_t session);

// Allows checkpoints to be marked again. After two refused checkpoints in a row, later checkpoints are copied until this call is made.
// Make it when the missing declaration has been added.
//
// Local, never waits.
//
// Errors: `BVK_ERR_STATE` without `bvk_offload`.
int bvk_allow_marks(bvk_session_t session);

// Makes the protected region `name`, which must be in host memory, *live* if `on` is not 0. After this call, checkpoints write-protect its
// pages, and a thread of Bivouac copies them while the application continues. A thread that writes to a page that has not been copied
// waits for the copy of that page. Live copying pays off if little of the region is written soon after a checkpoint. If it does not pay
// off, or is not possible (`docs/OFFLOAD.md` says when), the region is copied before the checkpoint call returns, as without this call. If
// `on` is 0, the region is no longer live. A region that is protected again stays live. Regions that `bvk_save` adds are never live.
//
// After the first call of `bvk_set_live`, `bvk_before_write` is accepted even without `bvk_offload`, so that a program can
// declare its writes in either case.
//
// Local. Never waits if `on` is not 0; otherwise blocks until the region has been copied.
//
// Errors: `BVK_ERR_ARGUMENT` if no such region is protected, if it is on a GPU, or if it was protected on boxes or as a value;
// `BVK_ERR_HANDLE`.
//
// Requirements:
// The following holds from each checkpoint with the region until `bvk_settle`, `bvk_unprotect` of this region, the next checkpoint with a
// live region, or `bvk_close` has returned. The region's memory stays mapped and readable, and its pages are not replaced: the memory is
// not freed or reallocated, and its pages are not dropped or moved (`madvise`, `mremap`). The memory is written only by instructions of
// this process, or by system calls that copy into it (`read`). Every other write is declared beforehand (`bvk_before_write`): MPI receives
// by a network card, transfers from a GPU, and writes through buffers that are registered with the kernel, through other mappings of the
// memory, or by other processes. With `offload.host_writes = "declared"`, every write is declared beforehand. An undeclared write may put
// later bytes into the checkpoint, and nothing detects this. While a checkpoint call runs, no thread writes to the memory. `name` is NULL
// or a NUL-terminated string.
int bvk_set_live(bvk_session_t session,
                 const char *name,
                 int on);

// Begins a region of bytes whose length is not known yet. `bvk_stream_write` copies bytes to this region immediately, so that their
// memory may be overwritten when it returns. `bvk_stream_end` ends the region. Only one region can be written at a time. `bvk_fopen`
// does the same through a `FILE`.
//
// Collective: all ranks or none, between the same other collective calls, with the same names; lengths may differ. Returns without waiting
// for the other ranks. Blocks like `bvk_checkpoint`.
//
// Errors: `BVK_ERR_CAPTURE` if no tier has room; `bvk_capture` then also fails, and the other ranks are told. `BVK_ERR_REGION`;
// `BVK_ERR_STATE` while a region is being written, or a restart is open.
//
// Requirements:
// `name` is NULL or a NUL-terminated string.
int bvk_stream_begin(bvk_checkpoint_t checkpoint,
                     const char *name);

// Writes `bytes` bytes to the region, after those written earlier.
//
// Local. Blocks for the copy; if node memory has no room left, blocks like `bvk_checkpoint`.
//
// Errors: as for `bvk_stream_begin`.
//
// Requirements:
// The `bytes` bytes at `data` are readable.
int bvk_stream_write(bvk_checkpoint_t checkpoint, const void *data, uint64_t bytes);

// Ends the region that is being written.
//
// Local. Blocks while the rest of the region is written.
//
// Errors: as for `bvk_stream_begin`.
int bvk_stream_end(bvk_checkpoint_t checkpoint);

// Reads into `data` at most `bytes` bytes of the region `name`, starting at byte `at` of the region. `*found` says how many bytes were
// read, which is fewer than `bytes` only at the end of the region. Any array can be read in this way. Every block is checked before a
// byte of it is returned. `bvk_fopen_saved` does the same through a `FILE`, and is faster for small pieces.
//
// Local. Blocks on the tier that holds the copy.
//
// Errors: as for `bvk_load`; the contents of `data` are then unspecified.
//
// Requirements:
// `data` has room for `bytes` bytes; `found` points to a number; `name` is NULL or a NUL-terminated string.
int bvk_stream_read(bvk_restart_t restart,
                    const char *name,
                    uint64_t at,
                    void *data,
                    uint64_t bytes,
                    uint64_t *found);

// Begins a region of bytes and returns a `FILE` for writing the region. This `FILE` works with all functions that take one, and is not
// seekable. `fclose` ends the region, and fails if the region could not be written completely (`bvk_error` says why); `bvk_capture` then
// also fails. Small writes are collected in the buffer of the `FILE`: a larger buffer than the usual few KiB (`setvbuf`) makes them
// faster. After an error the call returns NULL, and `bvk_error` returns the text.
//
// Collective and blocking like `bvk_stream_begin`.
//
// Requirements:
// `name` is NULL or a NUL-terminated string. The file is closed before the checkpoint is captured.
FILE *bvk_fopen(bvk_checkpoint_t checkpoint,
                const char *name);

// Returns a `FILE` that reads the region `name` of the version being restored. The `FILE` is seekable. Each attempt needs its own file:
// after `BVK_AGAIN`, reading from an earlier file fails. After an error the call returns NULL, and `bvk_error` returns the text.
//
// Local. Blocks on the tier that holds the copy, and so does reading from the file.
//
// Requirements:
// `name` is NULL or a NUL-terminated string.
FILE *bvk_fopen_saved(bvk_restart_t restart,
                      const char *name);

// Adds a file as region `name`. The program itself writes the file, or a library that needs a path does. `*path` says where to write it:
// in node-local storage, below `local.directory`. The text of the path is valid until the checkpoint is captured or aborted. The file must
// be complete when `bvk_capture` is called; that call reads the file and removes it. `bvk_route_saved` brings the file back; for
// `bvk_load` the region is an array of bytes. The same name always gives the same path.
//
// Collective: all ranks or none, between the same other collective calls, with the same names; lengths may differ. Returns without waiting
// for the other ranks. Blocks on node-local storage.
//
// Errors: `BVK_ERR_REGION`; `BVK_ERR_CAPTURE`: the file cannot be created there. `bvk_capture` then fails, too, and the other ranks are
// told. The same happens if a file is missing when `bvk_capture` is called.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `path` points to a pointer.
int bvk_route(bvk_checkpoint_t checkpoint,
              const char *name,
              const char **path);

// Writes to a file the region `name` of the version being restored. The region is one that `bvk_route` saved, or any other array that
// belongs to this rank. `*path` is in node-local storage. The file, which has mode 600, and the text of the path stay valid until
// `bvk_end_restore`. After `BVK_AGAIN`, make this call again. Every block is checked before it is written.
//
// Local. Blocks on the tier that holds the copy, and on node-local storage.
//
// Errors: as for `bvk_load`, and `BVK_ERR_LOAD` if the file cannot be written.
//
// Requirements:
// `name` is NULL or a NUL-terminated string; `path` points to a pointer.
int bvk_route_saved(bvk_restart_t restart,
                    const char *name,
                    const char **path);

// Keeps an output file consistent with the checkpoints of the series `name`. The program appends to this file, which may be a trajectory
// or a time series, for example. Each checkpoint records the length of the file at the capture and a digest of its last 64 KiB. A restart
// brings the file back to that length, in the way that `on_restart` says (one of `BVK_RESTART_...`), so that the output that a run wrote
// after its last checkpoint does not appear twice. Make this call once, before the restart.
//
// The file must contain all output when the checkpoint is captured: call `fflush` first. A file that is shorter than the recorded length,
// or whose last 64 KiB before that length have a different digest, does not match the version, and all ranks continue with the next older
// version. This happens after the loss of a node that still held the end of the file in its page cache. If there is no checkpoint to
// restore (`BVK_NOTHING`), the file stays unchanged.
//
// Collective: all ranks, with the same name and `on_restart`. Ranks that do not write a file pass NULL; a file belongs to one rank. Blocks
// until all ranks have made the call.
//
// Errors: `BVK_ERR_DISAGREED`, the same on all ranks: the arguments differ, the name is not valid for a series, or a
// path cannot be that of a file. `BVK_ERR_ARGUMENT`, on this rank alone: `on_restart` is none of `BVK_RESTART_...`. `BVK_ERR_STATE`: a
// restart is open.
//
// Requirements:
// `name` and `path` are NULL or NUL-terminated strings.
int bvk_companion(bvk_session_t session,
                  const char *name,
                  const char *path,
                  int on_restart);

// Tells the program which path to write a companion to. After a restart with `BVK_RESTART_ANOTHER`, this may be a different path from the
// one that the program gave. The text of the path is valid until the next call for this file, or until the session is closed.
//
// Local, never waits.
//
// Errors: `BVK_ERR_ARGUMENT`: this rank has not made that path a companion of the series `name`.
//
// Requirements:
// `name` and `path` are NULL or NUL-terminated strings; `current` points to a pointer.
int bvk_companion_path(bvk_session_t session,
                       const char *name,
                       const char *path,
                       const char **current);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BIVOUAC_H */
