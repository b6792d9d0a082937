// The digest of blocks and chunks, for all kernels: src/core/base/digest.rs defines it.

typedef unsigned long long u64;
typedef unsigned int u32;

struct Pair {
    u64 x, y;
};

#define STEP 0x9e3779b97f4a7c15ull
#define SEED 0x243f6a8885a308d3ull
__constant__ u64 ROUNDS[4] = {0x13198a2e03707344ull, 0xa4093822299f31d0ull, 0x082efa98ec4e6c89ull, 0x452821e638d01377ull};

__device__ __forceinline__ static u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

__device__ static u64 load_some(const unsigned char *from, u64 count) {
    u64 word = 0;
    for (u64 byte = 0; byte < count && byte < 8; byte++) word |= (u64)from[byte] << 8 * byte;
    return word;
}

// The digest of a block or chunk of `length` bytes with these sums.
__device__ __forceinline__ static Pair finish(Pair sums, u64 length) {
    u64 x = sums.x + length * STEP, y = sums.y;
    y ^= mix(x + ROUNDS[0]);
    x ^= mix(y + ROUNDS[1]);
    y ^= mix(x + ROUNDS[2]);
    x ^= mix(y + ROUNDS[3]);
    return {x, y};
}
