// The block digest of src/base/digest.rs on a GPU: is it the same value, and does it keep up with memory?
//
//   nvcc -O3 -arch=sm_90 -o digest benches/gpu/digest.cu && ./digest
//
// Prints JSON lines: time of a device-to-device copy, of the copy with digests in the same pass, and of the digests
// alone, for 1 GiB in blocks of 64 KiB to 1 MiB. Exit status 1 if a digest differs from the definition.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

typedef unsigned long long u64;
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); exit(2); } } while (0)

static const u64 STEP = 0x9e3779b97f4a7c15ull;
#define KEYS {0x243f6a8885a308d3ull, 0x13198a2e03707344ull, 0xa4093822299f31d0ull, 0x082efa98ec4e6c89ull, \
              0x452821e638d01377ull, 0xbe5466cf34e90c6cull, 0xc0ac29b7c97c50ddull, 0x3f84d5b5b5470917ull}
#define FOLD0 {0x9216d5d98979fb1bull, 0xd1310ba698dfb5acull, 0x2ffd72dbd01adfb7ull, 0xb8e1afed6a267e96ull, \
               0xba7c9045f12c7f99ull, 0x24a19947b3916cf7ull, 0x0801f2e2858efc16ull, 0x636920d871574e69ull}
#define FOLD1 {0xa458fea3f4933d7eull, 0x0d95748f728eb658ull, 0x718bcd5882154aeeull, 0x7b54a41dc25a59b5ull, \
               0x9c30d5392af26013ull, 0xc5d1b023286085f0ull, 0xca417918b8db38efull, 0x8e79dcb0603a180eull}
__constant__ u64 KEY[8] = KEYS;
__constant__ u64 FOLD[2][8] = {FOLD0, FOLD1};
static const u64 KEY_H[8] = KEYS;
static const u64 FOLD_H[2][8] = {FOLD0, FOLD1};

__host__ __device__ static u64 fold(const u64 *sums, const u64 *keys, u64 length) {
    u64 folded = length * 0x9e3779b97f4a7c15ull;
    for (int pair = 0; pair < 4; pair++) {
        unsigned __int128 product = (unsigned __int128)(sums[2 * pair] ^ keys[2 * pair]) * (sums[2 * pair + 1] ^ keys[2 * pair + 1]);
        folded += (u64)product ^ (u64)(product >> 64);
        folded = folded << 17 | folded >> 47;
    }
    folded ^= folded >> 37;
    folded *= 0x165667919e3779f9ull;
    return folded ^ folded >> 32;
}

// One thread block per data block. A thread always has the same pair of lanes, so its keys advance by a constant.
template <bool COPY>
__global__ void digest(const ulonglong2 *source, ulonglong2 *target, u64 *digests, int pairs_per_block) {
    __shared__ u64 partial[8][33];
    const ulonglong2 *from = source + (size_t)blockIdx.x * pairs_per_block;
    ulonglong2 *to = COPY ? target + (size_t)blockIdx.x * pairs_per_block : nullptr;
    int lane = 2 * (threadIdx.x & 3);
    u64 stripe = threadIdx.x >> 2, advance = (u64)(blockDim.x >> 2) * STEP;
    u64 key0 = KEY[lane] + stripe * STEP, key1 = KEY[lane + 1] + stripe * STEP, sum0 = 0, sum1 = 0;
#pragma unroll 8
    for (int at = threadIdx.x; at < pairs_per_block; at += blockDim.x) {
        ulonglong2 d = from[at];
        if (COPY) to[at] = d;
        u64 x0 = d.x ^ key0, x1 = d.y ^ key1;
        sum0 += (u64)(uint32_t)x0 * (uint32_t)(x0 >> 32) + d.y;
        sum1 += (u64)(uint32_t)x1 * (uint32_t)(x1 >> 32) + d.x;
        key0 += advance;
        key1 += advance;
    }
    for (int distance = 4; distance < 32; distance *= 2) {
        sum0 += __shfl_xor_sync(~0u, sum0, distance);
        sum1 += __shfl_xor_sync(~0u, sum1, distance);
    }
    if ((threadIdx.x & 31) < 4) {
        partial[lane][threadIdx.x >> 5] = sum0;
        partial[lane + 1][threadIdx.x >> 5] = sum1;
    }
    __syncthreads();
    if (threadIdx.x < 8) {
        u64 sum = 0;
        for (int warp = 0; warp < blockDim.x >> 5; warp++) sum += partial[threadIdx.x][warp];
        partial[threadIdx.x][32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        u64 sums[8];
        for (int i = 0; i < 8; i++) sums[i] = partial[i][32];
        digests[2 * (size_t)blockIdx.x + threadIdx.x] = fold(sums, FOLD[threadIdx.x], (u64)pairs_per_block * 16);
    }
}

static void reference(const u64 *words, size_t bytes, u64 *out) {
    u64 sums[8] = {0};
    for (size_t stripe = 0; stripe < bytes / 64; stripe++)
        for (int lane = 0; lane < 8; lane++) {
            u64 x = words[8 * stripe + lane] ^ (KEY_H[lane] + stripe * STEP);
            sums[lane] += (x & 0xffffffffull) * (x >> 32) + words[8 * stripe + (lane ^ 1)];
        }
    for (int half = 0; half < 2; half++) out[half] = fold(sums, FOLD_H[half], bytes);
}

template <class F> static double median_ms(F body) {
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int round = 0; round < 25; round++) {
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

int main() {
    const size_t bytes = (size_t)1 << 30;
    std::vector<u64> host(bytes / 8);
    u64 seed = 1;
    for (u64 &word : host) word = (seed = seed * 6364136223846793005ull + 1442695040888963407ull) ^ seed >> 29;
    ulonglong2 *source, *target;
    u64 *digests;
    CHECK(cudaMalloc(&source, bytes));
    CHECK(cudaMalloc(&target, bytes));
    CHECK(cudaMalloc(&digests, (bytes >> 16) * 16));
    CHECK(cudaMemcpy(source, host.data(), bytes, cudaMemcpyHostToDevice));
    int wrong = 0;
    for (size_t block = 64 << 10; block <= 1 << 20; block *= 2) {
        int blocks = bytes / block, pairs = block / 16;
        double plain = median_ms([&] { CHECK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice)); });
        double fused = median_ms([&] { digest<true><<<blocks, 512>>>(source, target, digests, pairs); });
        std::vector<u64> found(2 * blocks);
        CHECK(cudaMemcpy(found.data(), digests, 16 * (size_t)blocks, cudaMemcpyDeviceToHost));
        for (int index : {0, 1, blocks / 2, blocks - 1}) {
            u64 expected[2];
            reference(host.data() + index * block / 8, block, expected);
            wrong += expected[0] != found[2 * index] || expected[1] != found[2 * index + 1];
        }
        double alone = median_ms([&] { digest<false><<<blocks, 512>>>(source, target, digests, pairs); });
        CHECK(cudaGetLastError());
        printf("{\"figure\": \"block digest on the GPU\", \"block_kib\": %zu, \"copy_ms\": %.4f, \"copy_with_digests_ms\": %.4f, "
               "\"ratio\": %.3f, \"digests_alone_ms\": %.4f, \"digests_alone_tb_s\": %.2f, \"equal_to_definition\": %s}\n",
               block >> 10, plain, fused, fused / plain, alone, bytes / alone / 1e9, wrong ? "false" : "true");
    }
    return wrong ? 1 : 0;
}
