// The block digest of src/core/base/digest.rs on a GPU: is the value the same, does it keep up with memory, and do other candidates?
//
//   nvcc -O3 -arch=sm_90 -o digest benches/gpu/digest.cu && ./digest
//
// Prints JSON lines: the times of a device-to-device copy, of the copy with digests in the same pass, and of the digests alone, for
// 1 GiB in blocks of 64 KiB to 1 MiB. The exit status is 1 if a digest differs from the definition. The candidates are those of
// benches/digest/speed.rs; nh is the one that was chosen. `cargo bench --bench device` measures the library's own kernel.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

typedef unsigned long long u64;
typedef unsigned int u32;
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); exit(2); } } while (0)
#define STEP 0x9e3779b97f4a7c15ull
#define SEED 0x243f6a8885a308d3ull

__host__ __device__ __forceinline__ static u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// Each candidate begins at a pair of words and continues in steps of this many pairs.

// A key for each word.
struct Nh {
    u64 state, advance, low = 0, high = 0;
    __device__ Nh(u32 pair, u32 step) : state(SEED + (2 * (u64)pair + 1) * STEP), advance(2 * (u64)step * STEP) {}
    __device__ __forceinline__ void add(u64 x, u64 y) {
        u64 a = x + mix(state), b = y + mix(state + STEP);
        low += a * b;
        high += __umul64hi(a, b);
        state += advance;
    }
};

// A random number for each row of 64 bytes, times a constant for each of its four pairs.
__constant__ u64 COLUMNS[4] = {0x243f6a8885a308d3ull, 0x13198a2e03707345ull, 0xa4093822299f31d1ull, 0x082efa98ec4e6c89ull};
struct Row {
    u64 state, advance, column, low = 0, high = 0;
    __device__ Row(u32 pair, u32 step) : state(((u64)(pair >> 2) + 1) * STEP), advance((u64)(step >> 2) * STEP), column(COLUMNS[pair & 3]) {}
    __device__ __forceinline__ void add(u64 x, u64 y) {
        u64 row = mix(state), a = x + row * column, b = y + __umul64hi(row, column);
        low += a * b;
        high += __umul64hi(a, b);
        state += advance;
    }
};

// Each word and its position mixed, and the results added up.
struct Mixed {
    u64 state, advance, low = 0, high = 0;
    __device__ Mixed(u32 pair, u32 step) : state((2 * (u64)pair + 1) * STEP), advance(2 * (u64)step * STEP) {}
    __device__ __forceinline__ static u64 one(u64 x) {
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
        return x ^ x >> 32;
    }
    __device__ __forceinline__ void add(u64 x, u64 y) {
        u64 a = one(x ^ state), b = one(y ^ (state + STEP));
        low += a + b;
        high += (a << 23 | a >> 41) * STEP + (b << 23 | b >> 41) * STEP;
        state += advance;
    }
};

#define TILE 8
// One thread block per data block. Writes the sums, which the finish of the digest would turn into one at no cost.
template <class Candidate, bool COPY>
__global__ void __launch_bounds__(512) digest(const ulonglong2 *source, ulonglong2 *target, u64 *sums, int pairs_per_block) {
    __shared__ u64 partial[2][16];
    const size_t first = (size_t)blockIdx.x * pairs_per_block + threadIdx.x;
    const ulonglong2 *from = source + first;
    ulonglong2 *to = COPY ? target + first : nullptr;
    Candidate candidate(threadIdx.x, blockDim.x);
    for (int tile = 0; tile < pairs_per_block / (TILE * (int)blockDim.x); tile++) {
        ulonglong2 d[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++) d[i] = __ldcs(from + i * blockDim.x);
        if (COPY) {
#pragma unroll
            for (int i = 0; i < TILE; i++) __stcs(to + i * blockDim.x, d[i]);
            to += TILE * blockDim.x;
        }
#pragma unroll
        for (int i = 0; i < TILE; i++) candidate.add(d[i].x, d[i].y);
        from += TILE * blockDim.x;
    }
    u64 low = candidate.low, high = candidate.high;
    for (int distance = 1; distance < 32; distance *= 2) {
        low += __shfl_xor_sync(~0u, low, distance);
        high += __shfl_xor_sync(~0u, high, distance);
    }
    if ((threadIdx.x & 31) == 0) {
        partial[0][threadIdx.x >> 5] = low;
        partial[1][threadIdx.x >> 5] = high;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        u64 sum = 0;
        for (u32 warp = 0; warp < blockDim.x >> 5; warp++) sum += partial[threadIdx.x][warp];
        sums[2 * (size_t)blockIdx.x + threadIdx.x] = sum;
    }
}

static void reference(const u64 *words, size_t bytes, u64 *out) {
    out[0] = out[1] = 0;
    for (size_t w = 0; w < bytes / 8; w += 2) {
        unsigned __int128 product = (unsigned __int128)(words[w] + mix(SEED + (w + 1) * STEP)) * (words[w + 1] + mix(SEED + (w + 2) * STEP));
        out[0] += (u64)product;
        out[1] += (u64)(product >> 64);
    }
}

template <class F> static double median_ms(F body) {
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int round = 0; round < 45; round++) {
        float ms;
        CHECK(cudaEventRecord(start));
        body();
        CHECK(cudaEventRecord(stop));
        CHECK(cudaEventSynchronize(stop));
        CHECK(cudaEventElapsedTime(&ms, start, stop));
        if (round >= 5) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static const size_t bytes = (size_t)1 << 30;
static ulonglong2 *source, *target;
static u64 *sums;

template <class Candidate> static void measure(const char *name, size_t block, double plain, const char *equal) {
    const int blocks = bytes / block, pairs = block / 16;
    double fused = median_ms([&] { digest<Candidate, true><<<blocks, 512>>>(source, target, sums, pairs); });
    double alone = median_ms([&] { digest<Candidate, false><<<blocks, 512>>>(source, target, sums, pairs); });
    CHECK(cudaGetLastError());
    printf("{\"figure\": \"block digest on the GPU\", \"candidate\": \"%s\", \"block_kib\": %zu, \"copy_ms\": %.4f, \"copy_with_digests_ms\": %.4f, "
           "\"ratio\": %.3f, \"digests_alone_ms\": %.4f, \"digests_alone_tb_s\": %.2f%s}\n",
           name, block >> 10, plain, fused, fused / plain, alone, bytes / alone / 1e9, equal);
}

int main() {
    std::vector<u64> host(bytes / 8);
    u64 seed = 1;
    for (u64 &word : host) word = (seed = seed * 6364136223846793005ull + 1442695040888963407ull) ^ seed >> 29;
    CHECK(cudaMalloc(&source, bytes));
    CHECK(cudaMalloc(&target, bytes));
    CHECK(cudaMalloc(&sums, (bytes >> 16) * 16));
    CHECK(cudaMemcpy(source, host.data(), bytes, cudaMemcpyHostToDevice));
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("{\"machine\": \"%s\", \"command\": \"benches/gpu/digest.cu\"}\n", properties.name);
    int wrong = 0;
    for (size_t block = 64 << 10; block <= 1 << 20; block *= 2) {
        const int blocks = bytes / block;
        digest<Nh, true><<<blocks, 512>>>(source, target, sums, block / 16);
        std::vector<u64> found(2 * blocks);
        CHECK(cudaMemcpy(found.data(), sums, 16 * (size_t)blocks, cudaMemcpyDeviceToHost));
        for (int index : {0, 1, blocks / 2, blocks - 1}) {
            u64 expected[2];
            reference(host.data() + index * block / 8, block, expected);
            wrong += expected[0] != found[2 * index] || expected[1] != found[2 * index + 1];
        }
        double plain = median_ms([&] { CHECK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice)); });
        measure<Nh>("nh", block, plain, wrong ? ", \"equal_to_definition\": false" : ", \"equal_to_definition\": true");
        measure<Row>("row", block, plain, "");
        measure<Mixed>("mixed", block, plain, "");
    }
    return wrong ? 1 : 0;
}
