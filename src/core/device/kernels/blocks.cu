// Copies runs of regions and makes the digest of every block on the way: src/core/base/digest.rs defines the digest.
//
// A region is cut into blocks, and blocks into items. A thread block takes one item: it copies the item, adds up the two sums
// of the item's pairs of words, and adds those to the sums of the data block in `scratch`. Sizes are powers of two, given by
// their logarithms: 64-bit divisions would cost as much as the copy of some lines. Sums commute, so a data block may lie in any
// number of runs. The thread block that adds the last pairs turns the sums into the digest and leaves the scratch zeroed for
// the next call on the same stream. Keys are computed where they are used: the kernel waits for memory anyway, and a table of
// keys would be read as often as the data.
//
// Compiled at run time after digest.cuh, so there are no includes.

struct Run {
    u64 from;          // address of the first byte
    u64 to;            // 0: digest only
    u64 bytes;
    u64 start;         // offset in the region, a multiple of 64
    u64 region_bytes;
    u32 first_block;   // of the region, among the digests of the call
    u32 first_item;    // items of all runs before this one
};

// Loads of 16 bytes that a thread has under way at once.
#ifndef TILE
#define TILE 8
#endif

// Short tables of runs travel as kernel arguments, which are limited to 4 KiB.
#define FEW 64
struct Few {
    Run runs[FEW];
};

__device__ static void store_some(unsigned char *to, u64 word, u64 count) {
    for (u64 byte = 0; byte < count && byte < 8; byte++) to[byte] = (unsigned char)(word >> 8 * byte);
}

// The slow way, for addresses that are not multiples of 16 and for the end of a region. `left` bytes exist from here on.
__device__ static Pair move_bytewise(const unsigned char *from, unsigned char *to, u64 left) {
    Pair pair = {load_some(from, left), left > 8 ? load_some(from + 8, left - 8) : 0};
    if (to) {
        store_some(to, pair.x, left);
        if (left > 8) store_some(to + 8, pair.y, left - 8);
    }
    return pair;
}

// All threads of a thread block copy one item.
__device__ static void copy_item(const Few &few, const Run *many, const u32 *owners, u32 count, u32 item, u32 block_shift, u32 item_shift,
                                 u64 *scratch, u64 *digests) {
    __shared__ u64 partial[2][33];
    __shared__ u32 is_last;
    u32 low = 0;
    if (many) {
        low = owners ? owners[item] : item;
    } else {
        for (u32 high = count; high - low > 1;) {
            u32 middle = (low + high) / 2;
            if (few.runs[middle].first_item <= item) low = middle;
            else high = middle;
        }
    }
    const Run run = many ? many[low] : few.runs[low];
    // The item in bytes of its region, cut at the ends of the run.
    u64 begin = ((run.start >> item_shift) + item - run.first_item) << item_shift, end = begin + (1ull << item_shift);
    if (begin < run.start) begin = run.start;
    if (end > run.start + run.bytes) end = run.start + run.bytes;
    const u64 block = begin >> block_shift, block_begin = block << block_shift;
    const unsigned char *from = (const unsigned char *)run.from + (begin - run.start);
    unsigned char *to = run.to ? (unsigned char *)run.to + (begin - run.start) : 0;
    const u64 length = end - begin;
    // SplitMix64's state at the first word of the thread's next pair, whose keys are its outputs there and one step on.
    u64 state = SEED + (2 * ((begin - block_begin) / 16 + threadIdx.x) + 1) * STEP, sum0 = 0, sum1 = 0;
    const u64 advance = 2 * (u64)blockDim.x * STEP;
#define ADD(X, Y)                                            \
    {                                                        \
        u64 a = (X) + mix(state), b = (Y) + mix(state + STEP); \
        sum0 += a * b;                                       \
        sum1 += __umul64hi(a, b);                            \
        state += advance;                                    \
    }
    // The body in tiles: all loads of a tile are under way before the first is used.
    const u32 pairs = ((((u64)from | (u64)to) & 15) == 0) ? (u32)(length / 16) : 0;
    const u32 tiles = pairs / (TILE * blockDim.x);
    const ulonglong2 *source = (const ulonglong2 *)from + threadIdx.x;
    ulonglong2 *target = to ? (ulonglong2 *)to + threadIdx.x : 0;
    for (u32 tile = 0; tile < tiles; tile++) {
        ulonglong2 d[TILE];
#pragma unroll
        for (u32 i = 0; i < TILE; i++) d[i] = __ldcs(source + i * blockDim.x);
        if (target) {
#pragma unroll
            for (u32 i = 0; i < TILE; i++) __stcs(target + i * blockDim.x, d[i]);
            target += TILE * blockDim.x;
        }
#pragma unroll
        for (u32 i = 0; i < TILE; i++) ADD(d[i].x, d[i].y)
        source += TILE * blockDim.x;
    }
    u32 pair = tiles * TILE * blockDim.x + threadIdx.x;
    for (; pair < pairs; pair += blockDim.x) {
        ulonglong2 d = __ldcs((const ulonglong2 *)from + pair);
        if (to) __stcs((ulonglong2 *)to + pair, d);
        ADD(d.x, d.y)
    }
    // The last pair is padded with zeros.
    const u64 padded = (length + 15) / 16 * 16;
    for (u64 at = 16 * (u64)pair; at < padded; at += 16 * blockDim.x) {
        Pair last = move_bytewise(from + at, to ? to + at : 0, length - at);
        ADD(last.x, last.y)
    }
    for (int distance = 1; distance < 32; distance *= 2) {
        sum0 += __shfl_xor_sync(~0u, sum0, distance);
        sum1 += __shfl_xor_sync(~0u, sum1, distance);
    }
    if ((threadIdx.x & 31) == 0) {
        partial[0][threadIdx.x >> 5] = sum0;
        partial[1][threadIdx.x >> 5] = sum1;
    }
    __syncthreads();
    const u64 rest = run.region_bytes - block_begin, whole = 1ull << block_shift;
    const u64 block_length = rest < whole ? rest : whole;
    if (threadIdx.x < 2) {
        u64 sum = 0;
        for (u32 warp = 0; warp < blockDim.x >> 5; warp++) sum += partial[threadIdx.x][warp];
        partial[threadIdx.x][32] = sum;
    }
    // Thread blocks meet in memory only where several share a data block: that costs some microseconds.
    if (length < block_length) {
        u64 *sums = scratch + 3 * (run.first_block + block);
        if (threadIdx.x < 2) {
            atomicAdd(sums + threadIdx.x, partial[threadIdx.x][32]);
            __threadfence();
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 pairs = padded / 16, before = atomicAdd(sums + 2, pairs);
            is_last = before + pairs == (block_length + 15) / 16;
            __threadfence();
        }
        __syncthreads();
        if (!is_last) return;
        if (threadIdx.x < 3) {
            u64 sum = atomicExch(sums + threadIdx.x, 0ull);
            if (threadIdx.x < 2) partial[threadIdx.x][32] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const Pair digest = finish({partial[0][32], partial[1][32]}, block_length);
        u64 *place = digests + 2 * (u64)(run.first_block + block);
        place[0] = digest.x;
        place[1] = digest.y;
    }
}

// Runs with one thread block for each item.
extern "C" __global__ void __launch_bounds__(512)
bvk_copy_blocks(const __grid_constant__ Few few, const Run *many, const u32 *owners, u32 count, u32 block_shift, u32 item_shift,
                u64 *scratch, u64 *digests) {
    copy_item(few, many, owners, count, blockIdx.x, block_shift, item_shift, scratch, digests);
}

// Runs with any number of thread blocks: if they are few, the device is left to others.
extern "C" __global__ void __launch_bounds__(512)
bvk_send_blocks(const __grid_constant__ Few few, const Run *many, const u32 *owners, u32 count, u32 block_shift, u32 item_shift,
                u64 *scratch, u64 *digests, u32 items) {
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        copy_item(few, many, owners, count, item, block_shift, item_shift, scratch, digests);
        __syncthreads();
    }
}
