// VELOC's numbers and the types of its functions, as in programs that were compiled with its own headers. If these assertions hold, such an
// object file runs with this library.

#include "veloc.h"

_Static_assert(VELOC_SUCCESS == 0 && VELOC_FAILURE == -1, "results");
_Static_assert(VELOC_CKPT_ALL == 0 && VELOC_CKPT_SOME == 1 && VELOC_CKPT_REST == 2, "modes of checkpoints");
_Static_assert(VELOC_RECOVER_ALL == 0 && VELOC_RECOVER_SOME == 1 && VELOC_RECOVER_REST == 2, "modes of restarts");
_Static_assert(VELOC_MAX_NAME == 1024, "room for a routed name");

#define IS(function, type) _Static_assert(_Generic(&function, type: 1, default: 0), #function)

IS(VELOC_Init, int (*)(MPI_Comm, const char *));
IS(VELOC_Init_single, int (*)(unsigned int, const char *));
IS(VELOC_Finalize, int (*)(int));
IS(VELOC_Mem_protect, int (*)(int, void *, size_t, size_t));
IS(VELOC_Region_protect, int (*)(int, void *, size_t, size_t, const char *));
IS(VELOC_Mem_unprotect, int (*)(int));
IS(VELOC_Region_unprotect, int (*)(int, const char *));
IS(VELOC_Mem_clear, int (*)(void));
IS(VELOC_Region_clear, int (*)(const char *));
IS(VELOC_Route_file, int (*)(const char *, char *));
IS(VELOC_Cleanup, int (*)(const char *));
IS(VELOC_Checkpoint_begin, int (*)(const char *, int));
IS(VELOC_Checkpoint_selective, int (*)(int, int *, int));
IS(VELOC_Checkpoint_mem, int (*)(void));
IS(VELOC_Checkpoint_end, int (*)(int));
IS(VELOC_Checkpoint_wait, int (*)(void));
IS(VELOC_Checkpoint_finished, int (*)(void));
IS(VELOC_Checkpoint, int (*)(const char *, int));
IS(VELOC_Restart_test, int (*)(const char *, int));
IS(VELOC_Restart_begin, int (*)(const char *, int));
IS(VELOC_Recover_selective, int (*)(int, int *, int));
IS(VELOC_Recover_mem, int (*)(void));
IS(VELOC_Recover_size, int (*)(int));
IS(VELOC_Restart_end, int (*)(int));
IS(VELOC_Restart, int (*)(const char *, int));

int main(void) { return 0; }
