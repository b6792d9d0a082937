// How should a cache in GPU memory be cut up? Figures for the choice between
//   (a) one contiguous range, and gaps found by an eviction rule that looks for neighbours;
//   (b) fixed physical pages, remapped to a contiguous virtual range for each entry;
//   (c) fixed pages that are never remapped: kernels use a table of pages, and copies are made page by page.
//
//   nvcc -O3 -arch=sm_90 -o paging benches/gpu/paging.cu -lcuda && ./paging
//
// Prints JSON lines. Times are medians: device times between events, host times of the calls.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>
#include <numeric>
#include <random>
#include <vector>

typedef unsigned long long u64;
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); exit(2); } } while (0)
#define DRIVER(call) do { CUresult e = (call); if (e != CUDA_SUCCESS) { const char *t; cuGetErrorString(e, &t); fprintf(stderr, "%s: %s\n", #call, t); exit(2); } } while (0)

static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}
static double last(std::vector<double> v) {
    return *std::max_element(v.begin(), v.end());
}

static const size_t MIB = 1 << 20;

__global__ void copy(const ulonglong2 *from, ulonglong2 *to, size_t pairs) {
    size_t at = (size_t)blockIdx.x * blockDim.x * 8 + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 8; i++, at += blockDim.x)
        if (at < pairs) to[at] = from[at];
}

// The target consists of pages: page p of the entry is at table[p].
__global__ void copy_paged(const ulonglong2 *from, ulonglong2 *const *table, size_t pairs, int page_shift) {
    size_t at = (size_t)blockIdx.x * blockDim.x * 8 + threadIdx.x;
    size_t mask = ((size_t)1 << page_shift) - 1;
    ulonglong2 *page = table[at >> page_shift];
#pragma unroll
    for (int i = 0; i < 8; i++, at += blockDim.x)
        if (at < pairs) page[at & mask] = from[at];
}

__global__ void spin(u64 cycles) {
    u64 start = clock64();
    while (clock64() - start < cycles) { }
}

static cudaEvent_t begin_event, end_event;

template <class F> static double device_us(cudaStream_t stream, F work) {
    std::vector<double> times;
    for (int round = 0; round < 25; round++) {
        CHECK(cudaEventRecord(begin_event, stream));
        work();
        CHECK(cudaEventRecord(end_event, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaGetLastError());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin_event, end_event));
        if (round >= 4) times.push_back(ms * 1000);
    }
    return median(times);
}

int main() {
    CHECK(cudaFree(0));
    CUdevice device;
    DRIVER(cuCtxGetDevice(&device));
    CHECK(cudaEventCreate(&begin_event));
    CHECK(cudaEventCreate(&end_event));
    cudaStream_t stream, other;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("{\"machine\": \"%s\", \"command\": \"benches/gpu/paging.cu\"}\n", properties.name);

    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = device;
    CUmemAccessDesc access = {};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    size_t granularity;
    DRIVER(cuMemGetAllocationGranularity(&granularity, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));

    // (b) What does a remapping cost the host, with an idle and with a busy device? The entry has 128 MiB.
    const size_t entry = 128 * MIB;
    for (size_t page : {2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB}) {
        size_t count = entry / page;
        std::vector<CUmemGenericAllocationHandle> pages(2 * count);
        for (auto &handle : pages) DRIVER(cuMemCreate(&handle, page, &kind, 0));
        CUdeviceptr range;
        DRIVER(cuMemAddressReserve(&range, entry, 0, 0, 0));
        for (int busy = 0; busy < 2; busy++) {
            std::vector<double> maps, accesses, unmaps;
            std::mt19937 random(1);
            for (int round = 0; round < 20; round++) {
                std::shuffle(pages.begin(), pages.end(), random);
                if (busy) spin<<<1, 32, 0, other>>>(20'000'000ull);
                double t0 = now_us();
                for (size_t i = 0; i < count; i++) DRIVER(cuMemMap(range + i * page, page, 0, pages[i], 0));
                double t1 = now_us();
                DRIVER(cuMemSetAccess(range, entry, &access, 1));
                double t2 = now_us();
                DRIVER(cuMemUnmap(range, entry));
                double t3 = now_us();
                CHECK(cudaStreamSynchronize(other));
                maps.push_back(t1 - t0), accesses.push_back(t2 - t1), unmaps.push_back(t3 - t2);
            }
            printf("{\"figure\": \"remap\", \"entry_mib\": 128, \"page_mib\": %zu, \"busy\": %s, \"map_us\": %.1f, \"access_us\": %.1f, \"unmap_us\": %.1f, \"worst_us\": %.1f}\n",
                   page / MIB, busy ? "true" : "false", median(maps), median(accesses), median(unmaps),
                   last(maps) + last(accesses) + last(unmaps));
        }
        DRIVER(cuMemAddressFree(range, entry));
        for (auto handle : pages) DRIVER(cuMemRelease(handle));
    }

    // Does a remapping slow down a kernel that runs at the same time? A copy of 4 GiB is timed alone and while pages are remapped.
    {
        ulonglong2 *a, *b;
        size_t bytes = (size_t)4096 * MIB, pairs = bytes / 16;
        CHECK(cudaMalloc(&a, bytes));
        CHECK(cudaMalloc(&b, bytes));
        unsigned blocks = (unsigned)((pairs + 8 * 512 - 1) / (8 * 512));
        double alone = device_us(stream, [&] { copy<<<blocks, 512, 0, stream>>>(a, b, pairs); });
        CUmemGenericAllocationHandle pages[64];
        for (auto &handle : pages) DRIVER(cuMemCreate(&handle, 2 * MIB, &kind, 0));
        CUdeviceptr range;
        DRIVER(cuMemAddressReserve(&range, entry, 0, 0, 0));
        double beside = device_us(stream, [&] {
            copy<<<blocks, 512, 0, stream>>>(a, b, pairs);
            double until = now_us() + alone * 0.8;
            while (now_us() < until) {
                for (int i = 0; i < 64; i++) DRIVER(cuMemMap(range + i * 2 * MIB, 2 * MIB, 0, pages[i], 0));
                DRIVER(cuMemSetAccess(range, entry, &access, 1));
                DRIVER(cuMemUnmap(range, entry));
            }
        });
        printf("{\"figure\": \"kernel-beside-remap\", \"alone_us\": %.1f, \"beside_us\": %.1f}\n", alone, beside);
        DRIVER(cuMemAddressFree(range, entry));
        for (auto handle : pages) DRIVER(cuMemRelease(handle));
        CHECK(cudaFree(a));
        CHECK(cudaFree(b));
    }

    // (a) against (c): a copy into one range, and one onto scattered pages of a pool of 8 GiB.
    {
        size_t pool = (size_t)8192 * MIB;
        char *cache, *source;
        CHECK(cudaMalloc(&cache, pool));
        CHECK(cudaMalloc(&source, 1024 * MIB));
        CHECK(cudaMemset(source, 1, 1024 * MIB));
        CHECK(cudaMemset(cache, 1, pool));
        ulonglong2 **table;
        CHECK(cudaMalloc(&table, sizeof(void *) * 65536));
        for (size_t bytes : {1 * MIB, 16 * MIB, 128 * MIB, 1024 * MIB}) {
            size_t pairs = bytes / 16;
            unsigned blocks = (unsigned)((pairs + 8 * 512 - 1) / (8 * 512));
            double engine = device_us(stream, [&] { CHECK(cudaMemcpyAsync(cache, source, bytes, cudaMemcpyDeviceToDevice, stream)); });
            double plain = device_us(stream, [&] { copy<<<blocks, 512, 0, stream>>>((ulonglong2 *)source, (ulonglong2 *)cache, pairs); });
            printf("{\"figure\": \"copy\", \"mib\": %zu, \"memcpy_us\": %.1f, \"kernel_us\": %.1f", bytes / MIB, engine, plain);
            for (int shift : {12, 16, 17, 19}) {  // pages of 64 KiB, 1 MiB, 2 MiB, 8 MiB
                size_t page = (size_t)16 << shift, count = std::max<size_t>(1, bytes / page);
                std::vector<size_t> order(pool / page);
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), std::mt19937(2));
                std::vector<void *> pointers;
                for (size_t i = 0; i < count; i++) pointers.push_back(cache + order[i] * page);
                CHECK(cudaMemcpy(table, pointers.data(), sizeof(void *) * count, cudaMemcpyHostToDevice));
                double paged = device_us(stream, [&] { copy_paged<<<blocks, 512, 0, stream>>>((ulonglong2 *)source, table, pairs, shift); });
                printf(", \"paged_%zuk_us\": %.1f", page / 1024, paged);
            }
            printf("}\n");
        }

        // Copies to the host and back by pages, queued one after the other on one stream; 2 GiB in all.
        size_t bytes = 2048 * MIB;
        char *host;
        CHECK(cudaMallocHost(&host, bytes));
        for (int up = 0; up < 2; up++)
            for (size_t page : {1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB, 2048 * MIB}) {
                std::vector<size_t> order(pool / page);
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), std::mt19937(3));
                double us = device_us(stream, [&] {
                    for (size_t i = 0; i < bytes / page; i++) {
                        char *on_device = cache + order[i % order.size()] * page, *on_host = host + i * page;
                        if (up) CHECK(cudaMemcpyAsync(on_device, on_host, page, cudaMemcpyHostToDevice, stream));
                        else CHECK(cudaMemcpyAsync(on_host, on_device, page, cudaMemcpyDeviceToHost, stream));
                    }
                });
                printf("{\"figure\": \"%s\", \"page_mib\": %zu, \"gb_per_s\": %.2f}\n", up ? "host-to-device" : "device-to-host",
                       page / MIB, bytes / us / 1000);
            }
#if CUDART_VERSION >= 13000
        // The same copies in one call.
        for (int up = 0; up < 2; up++)
            for (size_t page : {64 * MIB / 1024, 1 * MIB, 2 * MIB, 8 * MIB}) {
                size_t count = bytes / page;
                std::vector<size_t> order(pool / page), sizes(count, page);
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), std::mt19937(3));
                std::vector<const void *> from(count);
                std::vector<void *> to(count);
                for (size_t i = 0; i < count; i++) {
                    char *on_device = cache + order[i] * page, *on_host = host + i * page;
                    from[i] = up ? on_host : on_device, to[i] = up ? on_device : on_host;
                }
                cudaMemcpyAttributes attributes = {};
                attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
                size_t first = 0;
                double us = device_us(stream, [&] {
                    CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), count, &attributes, &first, 1, stream));
                });
                printf("{\"figure\": \"%s-batch\", \"page_kib\": %zu, \"gb_per_s\": %.2f}\n", up ? "host-to-device" : "device-to-host",
                       page / 1024, bytes / us / 1000);
            }
#endif
    }
    return 0;
}
