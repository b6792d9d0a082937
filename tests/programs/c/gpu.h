// The CUDA driver for these programs. It is looked up when they run, so that they compile and start on machines without it.
#include <dlfcn.h>
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long gpu_address;

// These are the names in the library itself, which differ from those in its header.
#define GPU_FUNCTIONS(F)                                                                                      \
    F(cuInit, (unsigned))                                                                                     \
    F(cuDeviceGetCount, (int *))                                                                              \
    F(cuDeviceGet, (int *, int))                                                                              \
    F(cuDevicePrimaryCtxRetain, (void **, int))                                                               \
    F(cuCtxCreate_v2, (void **, unsigned, int))                                                               \
    F(cuCtxDestroy_v2, (void *))                                                                              \
    F(cuCtxGetCurrent, (void **))                                                                             \
    F(cuCtxSetCurrent, (void *))                                                                              \
    F(cuCtxSynchronize, (void))                                                                               \
    F(cuMemAlloc_v2, (gpu_address *, size_t))                                                                 \
    F(cuMemAllocManaged, (gpu_address *, size_t, unsigned))                                                   \
    F(cuMemHostAlloc, (void **, size_t, unsigned))                                                            \
    F(cuMemFree_v2, (gpu_address))                                                                            \
    F(cuMemsetD32Async, (gpu_address, unsigned, size_t, void *))                                              \
    F(cuMemcpyDtoH_v2, (void *, gpu_address, size_t))                                                         \
    F(cuMemcpyHtoD_v2, (gpu_address, const void *, size_t))                                                   \
    F(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                       \
    F(cuMemHostUnregister, (void *))                                                                          \
    F(cuModuleLoadData, (void **, const void *))                                                              \
    F(cuModuleGetFunction, (void **, void *, const char *))                                                   \
    F(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,  \
                       void **, void **))                                                                     \
    F(cuGraphDestroy, (void *))                                                                               \
    F(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                     \
    F(cuGraphLaunch, (void *, void *))                                                                        \
    F(cuGraphExecDestroy, (void *))                                                                           \
    F(cuStreamBeginCapture_v2, (void *, int))                                                                 \
    F(cuStreamEndCapture, (void *, void **))                                                                  \
    F(cuStreamCreate, (void **, unsigned))                                                                    \
    F(cuStreamQuery, (void *))                                                                                \
    F(cuStreamSynchronize, (void *))

#define GPU_DECLARE(name, arguments) __attribute__((unused)) static int(*name) arguments;
GPU_FUNCTIONS(GPU_DECLARE)

// Loads the driver and finds its functions. Returns 0 if there is no driver.
static int gpu_find(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 0;
    // A pointer to an object is copied bytewise to a pointer to a function: ISO C has no cast for this.
#define GPU_FIND(name, arguments)                                                                             \
    do {                                                                                                      \
        void *found = dlsym(library, #name);                                                                  \
        if (found == NULL) return 0;                                                                          \
        memcpy(&name, &found, sizeof found);                                                                  \
    } while (0);
    GPU_FUNCTIONS(GPU_FIND)
    return 1;
}

// Makes the context of one of the GPUs current, as the CUDA runtime does. Returns the number of GPUs, or 0 without a driver.
static int gpu_start(int rank, int *device, void **context) {
    int count = 0;
    if (!gpu_find()) return 0;
    if (cuInit(0) != 0 || cuDeviceGetCount(&count) != 0 || count == 0) return 0;
    if (cuDeviceGet(device, rank % count) != 0 || cuDevicePrimaryCtxRetain(context, *device) != 0) return 0;
    return cuCtxSetCurrent(*context) == 0 ? count : 0;
}

// Without a GPU there is nothing to test; rank 0 prints a note.
static int gpu_skipped(int rank) {
    if (rank == 0) puts("SKIPPED: no GPU here; ci/gpu/bundle.sh and out/gpu/run.sh run this on a machine that has one");
    MPI_Finalize();
    return 0;
}
