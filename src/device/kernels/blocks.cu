// Copies runs of regions and makes the digest of every block on the way: src/base/digest.rs defines the digest.
//
// A region is cut into blocks, and blocks into items. A thread block takes one item: it copies the
// item, adds up the eight sums of the item's stripes, and adds those to the sums of the data block in `scratch`. Sizes are
// powers of two, given by their logarithms: divisions of 64 bits would cost as much as the copy of some lines.
// Sums commute, so a data block may lie in any number of runs. Whoever adds the last stripes folds the sums into the
// digest and leaves the scratch zeroed for the next call on the same stream.
//
// Compiled at run time, so there are no includes.

typedef unsigned long long u64;
typedef unsigned int u32;

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

struct Pair {
    u64 x, y;
};

__constant__ u64 KEY[8] = {0x243f6a8885a308d3ull, 0x13198a2e03707344ull, 0xa4093822299f31d0ull, 0x082efa98ec4e6c89ull,
                           0x452821e638d01377ull, 0xbe5466cf34e90c6cull, 0xc0ac29b7c97c50ddull, 0x3f84d5b5b5470917ull};
__constant__ u64 FOLD[2][8] = {
    {0x9216d5d98979fb1bull, 0xd1310ba698dfb5acull, 0x2ffd72dbd01adfb7ull, 0xb8e1afed6a267e96ull,
     0xba7c9045f12c7f99ull, 0x24a19947b3916cf7ull, 0x0801f2e2858efc16ull, 0x636920d871574e69ull},
    {0xa458fea3f4933d7eull, 0x0d95748f728eb658ull, 0x718bcd5882154aeeull, 0x7b54a41dc25a59b5ull,
     0x9c30d5392af26013ull, 0xc5d1b023286085f0ull, 0xca417918b8db38efull, 0x8e79dcb0603a180eull}};
#define STEP 0x9e3779b97f4a7c15ull

__device__ static u64 fold(const u64 *sums, const u64 *keys, u64 length) {
    u64 folded = length * STEP;
    for (int pair = 0; pair < 4; pair++) {
        u64 a = sums[2 * pair] ^ keys[2 * pair], b = sums[2 * pair + 1] ^ keys[2 * pair + 1];
        folded += a * b ^ __umul64hi(a, b);
        folded = folded << 17 | folded >> 47;
    }
    folded ^= folded >> 37;
    folded *= 0x165667919e3779f9ull;
    return folded ^ folded >> 32;
}

__device__ static u64 load_some(const unsigned char *from, u64 count) {
    u64 word = 0;
    for (u64 byte = 0; byte < count && byte < 8; byte++) word |= (u64)from[byte] << 8 * byte;
    return word;
}

__device__ static void store_some(unsigned char *to, u64 word, u64 count) {
    for (u64 byte = 0; byte < count && byte < 8; byte++) to[byte] = (unsigned char)(word >> 8 * byte);
}

// The slow way, for addresses that are not a multiple of 16 and for the end of a region. `left` bytes exist from here on.
__device__ static Pair move_bytewise(const unsigned char *from, unsigned char *to, u64 left) {
    Pair pair = {load_some(from, left), left > 8 ? load_some(from + 8, left - 8) : 0};
    if (to) {
        store_some(to, pair.x, left);
        if (left > 8) store_some(to + 8, pair.y, left - 8);
    }
    return pair;
}

extern "C" __global__ void __launch_bounds__(512)
bvk_copy_blocks(const __grid_constant__ Few few, const Run *many, const u32 *owners, u32 count, u32 block_shift, u32 item_shift,
                u64 *scratch, u64 *digests) {
    __shared__ u64 partial[8][33];
    __shared__ u32 is_last;
    u32 low = 0;
    if (many) {
        low = owners[blockIdx.x];
    } else {
        for (u32 high = count; high - low > 1;) {
            u32 middle = (low + high) / 2;
            if (few.runs[middle].first_item <= blockIdx.x) low = middle;
            else high = middle;
        }
    }
    const Run run = many ? many[low] : few.runs[low];
    // The item in bytes of its region, cut at the ends of the run.
    u64 begin = ((run.start >> item_shift) + blockIdx.x - run.first_item) << item_shift, end = begin + (1ull << item_shift);
    if (begin < run.start) begin = run.start;
    if (end > run.start + run.bytes) end = run.start + run.bytes;
    const u64 block = begin >> block_shift, block_begin = block << block_shift;
    const unsigned char *from = (const unsigned char *)run.from + (begin - run.start);
    unsigned char *to = run.to ? (unsigned char *)run.to + (begin - run.start) : 0;
    const u64 length = end - begin;
    // A thread always has the same pair of lanes, so its keys advance by a constant.
    const u32 lane = 2 * (threadIdx.x & 3);
    const u64 stripe = (begin - block_begin) / 64 + (threadIdx.x >> 2);
    const u64 advance = (u64)(blockDim.x >> 2) * STEP;
    u64 key0 = KEY[lane] + stripe * STEP, key1 = KEY[lane + 1] + stripe * STEP, sum0 = 0, sum1 = 0;
#define ADD(X, Y)                                            \
    {                                                        \
        u64 x0 = (X) ^ key0, x1 = (Y) ^ key1;                \
        sum0 += (u64)(u32)x0 * (u32)(x0 >> 32) + (Y);        \
        sum1 += (u64)(u32)x1 * (u32)(x1 >> 32) + (X);        \
        key0 += advance;                                     \
        key1 += advance;                                     \
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
    // The last stripe is padded with zeros, which count like other words.
    const u64 padded = (length + 63) / 64 * 64;
    for (u64 at = 16 * (u64)pair; at < padded; at += 16 * blockDim.x) {
        u64 left = at < length ? length - at : 0;
        Pair last = left ? move_bytewise(from + at, to ? to + at : 0, left) : Pair{0, 0};
        ADD(last.x, last.y)
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
    const u64 rest = run.region_bytes - block_begin, whole = 1ull << block_shift;
    const u64 block_length = rest < whole ? rest : whole;
    if (threadIdx.x < 8) {
        u64 sum = 0;
        for (u32 warp = 0; warp < blockDim.x >> 5; warp++) sum += partial[threadIdx.x][warp];
        partial[threadIdx.x][32] = sum;
    }
    // Thread blocks meet in memory only where several share a data block: that costs some microseconds.
    if (length < block_length) {
        u64 *sums = scratch + 9 * (run.first_block + block);
        if (threadIdx.x < 8) {
            atomicAdd(sums + threadIdx.x, partial[threadIdx.x][32]);
            __threadfence();
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 stripes = padded / 64, before = atomicAdd(sums + 8, stripes);
            is_last = before + stripes == (block_length + 63) / 64;
            __threadfence();
        }
        __syncthreads();
        if (!is_last) return;
        if (threadIdx.x < 9) {
            u64 sum = atomicExch(sums + threadIdx.x, 0ull);
            if (threadIdx.x < 8) partial[threadIdx.x][32] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        u64 total[8];
        for (int i = 0; i < 8; i++) total[i] = partial[i][32];
        digests[2 * (u64)(run.first_block + block) + threadIdx.x] = fold(total, FOLD[threadIdx.x], block_length);
    }
}
