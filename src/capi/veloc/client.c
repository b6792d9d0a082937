// libveloc-client.so: gives functions of libbivouac.so the names that VELOC uses, so that a program that was written for VELOC is linked
// with this library and needs no other change. docs/VELOC.md says how it is built; include/veloc.h describes the functions.

#include "veloc.h"

// These functions are in src/capi/veloc.rs.
int bvk_veloc_init(MPI_Comm comm, const char *config);
int bvk_veloc_init_single(unsigned int id, const char *config);
int bvk_veloc_finalize(int drain);
int bvk_veloc_mem_protect(int id, void *data, size_t count, size_t size);
int bvk_veloc_region_protect(int id, void *data, size_t count, size_t size, const char *name);
int bvk_veloc_mem_unprotect(int id);
int bvk_veloc_region_unprotect(int id, const char *name);
int bvk_veloc_mem_clear(void);
int bvk_veloc_region_clear(const char *name);
int bvk_veloc_route_file(const char *original, char *routed);
int bvk_veloc_cleanup(const char *name);
int bvk_veloc_checkpoint_begin(const char *name, int version);
int bvk_veloc_checkpoint_selective(int mode, const int *ids, int count);
int bvk_veloc_checkpoint_mem(void);
int bvk_veloc_checkpoint_end(int success);
int bvk_veloc_checkpoint_wait(void);
int bvk_veloc_checkpoint_finished(void);
int bvk_veloc_checkpoint(const char *name, int version);
int bvk_veloc_restart_test(const char *name, int version);
int bvk_veloc_restart_begin(const char *name, int version);
int bvk_veloc_recover_selective(int mode, const int *ids, int count);
int bvk_veloc_recover_mem(void);
int bvk_veloc_recover_size(int id);
int bvk_veloc_restart_end(int success);
int bvk_veloc_restart(const char *name, int version);
int bvk_veloc_prefetch_enqueue(int version);
int bvk_veloc_prefetch_start(void);
int bvk_veloc_prefetch_restore(int version);
long long bvk_veloc_recover_size_of(int version, int id);

int VELOC_Init(MPI_Comm comm, const char *cfg_file) { return bvk_veloc_init(comm, cfg_file); }

int VELOC_Init_single(unsigned int unique_id, const char *cfg_file) {
    return bvk_veloc_init_single(unique_id, cfg_file);
}

int VELOC_Finalize(int drain) { return bvk_veloc_finalize(drain); }

int VELOC_Mem_protect(int id, void *ptr, size_t count, size_t base_size) {
    return bvk_veloc_mem_protect(id, ptr, count, base_size);
}

int VELOC_Region_protect(int id, void *ptr, size_t count, size_t base_size, const char *name) {
    return bvk_veloc_region_protect(id, ptr, count, base_size, name);
}

int VELOC_Mem_unprotect(int id) { return bvk_veloc_mem_unprotect(id); }

int VELOC_Region_unprotect(int id, const char *name) { return bvk_veloc_region_unprotect(id, name); }

int VELOC_Mem_clear(void) { return bvk_veloc_mem_clear(); }

int VELOC_Region_clear(const char *name) { return bvk_veloc_region_clear(name); }

int VELOC_Route_file(const char *original, char *routed) { return bvk_veloc_route_file(original, routed); }

int VELOC_Cleanup(const char *name) { return bvk_veloc_cleanup(name); }

int VELOC_Checkpoint_begin(const char *name, int version) { return bvk_veloc_checkpoint_begin(name, version); }

int VELOC_Checkpoint_selective(int mode, int *ids, int count) {
    return bvk_veloc_checkpoint_selective(mode, ids, count);
}

int VELOC_Checkpoint_mem(void) { return bvk_veloc_checkpoint_mem(); }

int VELOC_Checkpoint_end(int success) { return bvk_veloc_checkpoint_end(success); }

int VELOC_Checkpoint_wait(void) { return bvk_veloc_checkpoint_wait(); }

int VELOC_Checkpoint_finished(void) { return bvk_veloc_checkpoint_finished(); }

int VELOC_Checkpoint(const char *name, int version) { return bvk_veloc_checkpoint(name, version); }

int VELOC_Restart_test(const char *name, int version) { return bvk_veloc_restart_test(name, version); }

int VELOC_Restart_begin(const char *name, int version) { return bvk_veloc_restart_begin(name, version); }

int VELOC_Recover_selective(int mode, int *ids, int count) {
    return bvk_veloc_recover_selective(mode, ids, count);
}

int VELOC_Recover_mem(void) { return bvk_veloc_recover_mem(); }

int VELOC_Recover_size(int id) { return bvk_veloc_recover_size(id); }

int VELOC_Restart_end(int success) { return bvk_veloc_restart_end(success); }

int VELOC_Restart(const char *name, int version) { return bvk_veloc_restart(name, version); }

int VELOC_Prefetch_enqueue(int version) { return bvk_veloc_prefetch_enqueue(version); }

int VELOC_Prefetch_start(void) { return bvk_veloc_prefetch_start(); }

int VELOC_Prefetch_restore(int version) { return bvk_veloc_prefetch_restore(version); }

long long VELOC_Recover_size_of(int version, int id) { return bvk_veloc_recover_size_of(version, id); }
