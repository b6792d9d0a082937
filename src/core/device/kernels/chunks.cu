// Where the chunks of a shard are already stored: src/core/reduction/chunks.rs says what is found, and does the same on the processor.
//
// Four kernels, one after the other, each with a thread block for each range of at most 1024 chunks:
//   bvk_chunk_leaves  digests of chunks in blocks that have changed; what is not fixed is pending, and enters the table
//   bvk_chunk_label   pending chunks are first or shifted; with trees, nodes above first ones enter the table
//   bvk_chunk_lift    with trees: nodes above shifted ones are looked up, and what is found holds for all their chunks
//   bvk_chunk_runs    the chunks that are not stored next to the one before them
// Each kernel handles the whole shard before the next one begins, so what is found does not depend on the order of the work:
// of equal chunks, the one at the lowest place enters the table.
//
// A place is a word: 16 bits for the version, 46 for the offset in its bodies in units of 32 bytes; two more bits on top
// say, between the kernels, what is known about a chunk. Version 0 is not a version, and never alive.
//
// Compiled at run time after digest.cuh, so there are no includes.

#define UNITS 46
#define LABEL 62
#define FIXED 0ull
#define FIRST 1ull
#define SHIFTED 2ull
#define MIXED 3ull    // of nodes
#define PENDING 3ull  // of chunks, before they are labelled
#define WORD ((1ull << LABEL) - 1)
#define LEAVES 1024
#define THREADS 256
#define NONE (~0ull)
#define PROBES 64

struct Block {
    u64 from;    // address of its first byte; 0: it has not changed
    u64 second;  // address of the byte at `split`
    u64 at;      // its first byte among those of the bodies
    u32 split;
    u32 bytes;
    u32 is_first;  // of its region
    u32 pad;
};

struct Table {
    u64 *digests;  // two words a chunk
    u64 *homes;    // a place a chunk
    u64 *tags;     // first words of the digests that are in the table; 0: free
    u64 *checks;   // second words; 0: about to be written
    u64 *places;
    u64 entries;
    u64 most;
    const Block *blocks;
    const u32 *alive;  // a bit a version
    u64 *counters;     // entries in use; runs
    u64 *runs;         // pairs: chunk, place
    u64 runs_most;
    u32 chunk_shift;  // exponents: bytes of a chunk, chunks of a block, chunks of a range
    u32 block_shift;
    u32 range_shift;
    u32 version;
    u32 is_whole;
    u32 is_tree;
};

struct Range {
    Block block;
    u64 leaf;    // its first chunk among all
    u32 first;   // the same in its block
    u32 leaves;  // 0: it is beyond the end of its region
};

__device__ __forceinline__ static Range range_of(const Table &t) {
    Range r;
    const u32 shift = t.block_shift - t.range_shift;
    r.block = t.blocks[blockIdx.x >> shift];
    r.first = (blockIdx.x & ((1u << shift) - 1)) << t.range_shift;
    r.leaf = (u64)blockIdx.x << t.range_shift;
    const u32 all = (r.block.bytes + (1u << t.chunk_shift) - 1) >> t.chunk_shift, most = 1u << t.range_shift;
    r.leaves = all <= r.first ? 0 : all - r.first < most ? all - r.first : most;
    return r;
}

__device__ __forceinline__ static u64 own_place(const Table &t, const Range &r, u32 leaf) {
    return ((u64)t.version << UNITS) + (r.block.at >> 5) + ((u64)(r.first + leaf) << (t.chunk_shift - 5));
}

__device__ __forceinline__ static bool is_alive(const Table &t, u64 place) {
    const u32 version = (u32)((place & WORD) >> UNITS);
    return t.alive[version >> 5] >> (version & 31) & 1;
}

__device__ __forceinline__ static u64 slot_of(const Table &t, Pair digest) { return __umul64hi(digest.x * STEP, t.entries); }

// Neither word of a digest in the table is zero.
__device__ __forceinline__ static Pair key_of(Pair digest) { return {digest.x ? digest.x : 1, digest.y ? digest.y : 1}; }

// Where a digest is stored, if that place may be referred to.
__device__ static u64 find(const Table &t, Pair digest) {
    const Pair key = key_of(digest);
    u64 slot = slot_of(t, key);
    for (u32 probe = 0; probe < PROBES; probe++) {
        const u64 tag = *(volatile u64 *)(t.tags + slot);
        if (tag == 0) return NONE;
        if (tag == key.x && *(volatile u64 *)(t.checks + slot) == key.y) {
            const u64 place = *(volatile u64 *)(t.places + slot);
            return place >> UNITS == t.version || is_alive(t, place) ? place : NONE;
        }
        slot = slot + 1 == t.entries ? 0 : slot + 1;
    }
    return NONE;
}

// Enters a digest. A place in another version that may be referred to stays; of places in its own version, the lowest wins;
// without room, the digest is left out. Returns how many entries came into use.
__device__ static u32 insert(const Table &t, Pair digest, u64 place, bool has_room) {
    const Pair key = key_of(digest);
    u64 slot = slot_of(t, key);
    for (u32 probe = 0; probe < PROBES; probe++) {
        u64 tag = *(volatile u64 *)(t.tags + slot);
        u32 added = 0;
        if (tag == 0) {
            if (!has_room) return 0;
            tag = atomicCAS(t.tags + slot, 0ull, key.x);
            if (tag == 0) {
                tag = key.x;
                added = 1;
                *(volatile u64 *)(t.checks + slot) = key.y;
                __threadfence();
            }
        }
        if (tag == key.x) {
            // The thread that has taken the entry writes the other half at once.
            u64 check;
            while ((check = *(volatile u64 *)(t.checks + slot)) == 0) {}
            if (check == key.y) {
                u64 old = *(volatile u64 *)(t.places + slot);
                while (true) {
                    const bool is_same = old >> UNITS == place >> UNITS;
                    if (is_same ? old <= place : is_alive(t, old)) break;
                    const u64 seen = atomicCAS(t.places + slot, old, place);
                    if (seen == old) break;
                    old = seen;
                }
                return added;
            }
        }
        slot = slot + 1 == t.entries ? 0 : slot + 1;
    }
    return 0;
}

__device__ __forceinline__ static bool has_room(const Table &t) { return *(volatile u64 *)t.counters < t.most; }

// Adds up what all threads of a warp have added to the table.
__device__ static void count(const Table &t, u32 added) {
    for (int distance = 16; distance > 0; distance /= 2) added += __shfl_xor_sync(~0u, added, distance);
    if ((threadIdx.x & 31) == 0 && added) atomicAdd(t.counters, (u64)added);
}

// The digest of the digests of two nodes.
__device__ static Pair above(Pair left, Pair right) {
    Pair sums = {0, 0};
    const u64 words[4] = {left.x, left.y, right.x, right.y};
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u64 a = words[2 * i] + mix(SEED + (2 * i + 1) * STEP), b = words[2 * i + 1] + mix(SEED + (2 * i + 2) * STEP);
        sums.x += a * b;
        sums.y += __umul64hi(a, b);
    }
    return finish(sums, 32);
}

extern "C" __global__ void __launch_bounds__(THREADS) bvk_chunk_leaves(const __grid_constant__ Table t) {
    const Range r = range_of(t);
    if (r.leaves == 0) return;
    const bool room = has_room(t);
    u32 added = 0;
    if (r.block.from == 0) {
        for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) {
            const u64 at = r.leaf + leaf;
            if (is_alive(t, t.homes[at])) continue;
            t.homes[at] = PENDING << LABEL;
            added += insert(t, {t.digests[2 * at], t.digests[2 * at + 1]}, own_place(t, r, leaf), room);
        }
        count(t, added);
        return;
    }
    // A group of lanes of one warp takes a chunk, and each of them pairs of words of it.
    const u32 chunk = 1u << t.chunk_shift, lanes = chunk / 16 < 32 ? chunk / 16 : 32;
    const u32 lane = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes, groups = THREADS / lanes;
    for (u32 base = 0; base < r.leaves; base += groups) {
        const u32 leaf = base + group;
        const u32 begin = (r.first + leaf) << t.chunk_shift;
        const u32 left = leaf < r.leaves ? r.block.bytes - begin : 0, length = left < chunk ? left : chunk;
        u64 sum0 = 0, sum1 = 0;
        for (u32 pair = lane; 16 * pair < length; pair += lanes) {
            const u32 offset = begin + 16 * pair, rest = length - 16 * pair;
            const u64 address = offset < r.block.split ? r.block.from + offset : r.block.second + (offset - r.block.split);
            const unsigned char *from = (const unsigned char *)address;
            u64 x, y;
            if (rest >= 16 && (address & 15) == 0) {
                const ulonglong2 words = __ldcs((const ulonglong2 *)from);
                x = words.x;
                y = words.y;
            } else {
                x = load_some(from, rest);
                y = rest > 8 ? load_some(from + 8, rest - 8) : 0;
            }
            const u64 state = SEED + (2 * (u64)pair + 1) * STEP;
            const u64 a = x + mix(state), b = y + mix(state + STEP);
            sum0 += a * b;
            sum1 += __umul64hi(a, b);
        }
        for (u32 distance = 1; distance < lanes; distance *= 2) {
            sum0 += __shfl_xor_sync(~0u, sum0, distance);
            sum1 += __shfl_xor_sync(~0u, sum1, distance);
        }
        if (lane == 0 && leaf < r.leaves) {
            const u64 at = r.leaf + leaf;
            const Pair digest = finish({sum0, sum1}, length);
            const bool is_same = t.digests[2 * at] == digest.x && t.digests[2 * at + 1] == digest.y;
            if (!is_same || !is_alive(t, t.homes[at])) {
                t.homes[at] = PENDING << LABEL;
                t.digests[2 * at] = digest.x;
                t.digests[2 * at + 1] = digest.y;
                added += insert(t, digest, own_place(t, r, leaf), room);
            }
        }
        __syncwarp();
    }
    count(t, added);
}

extern "C" __global__ void __launch_bounds__(THREADS) bvk_chunk_label(const __grid_constant__ Table t) {
    __shared__ u64 xs[LEAVES], ys[LEAVES];
    __shared__ unsigned short starts[LEAVES];
    __shared__ unsigned char kinds[LEAVES];
    const Range r = range_of(t);
    if (r.leaves == 0) return;
    // Most ranges have not changed, and cost only a look at their places.
    bool is_any = false;
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) is_any |= t.homes[r.leaf + leaf] >> LABEL == PENDING;
    if (!__syncthreads_or(is_any)) return;
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) {
        const u64 at = r.leaf + leaf;
        xs[leaf] = t.digests[2 * at];
        ys[leaf] = t.digests[2 * at + 1];
        u64 kind = FIXED;
        if (t.homes[at] >> LABEL == PENDING) {
            const u64 own = own_place(t, r, leaf);
            const u64 place = t.is_whole ? own : find(t, {xs[leaf], ys[leaf]});
            // Without room in the table, it counts as a first one that nobody can find again.
            kind = place == own || place == NONE ? FIRST : SHIFTED;
            t.homes[at] = (kind == FIRST ? own : place) | kind << LABEL;
        }
        kinds[leaf] = (unsigned char)kind;
    }
    if (!t.is_tree) return;
    __syncthreads();
    // Runs of equal chunks: if the first of them is a first occurrence, all are.
    bool is_run = false;
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) {
        const bool is_same = leaf > 0 && xs[leaf] == xs[leaf - 1] && ys[leaf] == ys[leaf - 1] && kinds[leaf] != FIXED && kinds[leaf - 1] != FIXED;
        starts[leaf] = is_same ? 0 : leaf;
        is_run |= is_same;
    }
    if (__syncthreads_or(is_run)) {
        for (u32 distance = 1; distance < r.leaves; distance *= 2) {
            unsigned short found[LEAVES / THREADS];
            for (u32 leaf = threadIdx.x, i = 0; leaf < r.leaves; leaf += THREADS, i++) {
                const unsigned short here = starts[leaf], before = leaf >= distance ? starts[leaf - distance] : 0;
                found[i] = here > before ? here : before;
            }
            __syncthreads();
            for (u32 leaf = threadIdx.x, i = 0; leaf < r.leaves; leaf += THREADS, i++) starts[leaf] = found[i];
            __syncthreads();
        }
        bool becomes_first[LEAVES / THREADS];
        for (u32 leaf = threadIdx.x, i = 0; leaf < r.leaves; leaf += THREADS, i++)
            becomes_first[i] = kinds[leaf] == SHIFTED && kinds[starts[leaf]] == FIRST;
        __syncthreads();
        for (u32 leaf = threadIdx.x, i = 0; leaf < r.leaves; leaf += THREADS, i++) {
            if (!becomes_first[i]) continue;
            kinds[leaf] = FIRST;
            t.homes[r.leaf + leaf] = own_place(t, r, leaf) | FIRST << LABEL;
        }
        __syncthreads();
    }
    const bool room = has_room(t);
    u32 added = 0, nodes = r.leaves;
    for (u32 level = 1; nodes > 1; level++) {
        const u32 upper = (nodes + 1) / 2;
        Pair digests[LEAVES / 2 / THREADS];
        unsigned char found[LEAVES / 2 / THREADS];
        bool is_first = false;
        for (u32 node = threadIdx.x, i = 0; node < upper; node += THREADS, i++) {
            const u32 left = 2 * node, right = left + 1;
            const bool is_one = right == nodes;
            found[i] = kinds[left] == FIRST && (is_one || kinds[right] == FIRST) ? FIRST : MIXED;
            digests[i] = {xs[left], ys[left]};
            if (found[i] != FIRST) continue;
            is_first = true;
            if (is_one) continue;
            digests[i] = above(digests[i], {xs[right], ys[right]});
            added += insert(t, digests[i], own_place(t, r, node << level), room);
        }
        if (!__syncthreads_or(is_first)) break;
        for (u32 node = threadIdx.x, i = 0; node < upper; node += THREADS, i++) {
            xs[node] = digests[i].x;
            ys[node] = digests[i].y;
            kinds[node] = found[i];
        }
        __syncthreads();
        nodes = upper;
    }
    __syncwarp();
    count(t, added);
}

extern "C" __global__ void __launch_bounds__(THREADS) bvk_chunk_lift(const __grid_constant__ Table t) {
    __shared__ u64 xs[LEAVES], ys[LEAVES];
    __shared__ u64 nodes[2 * LEAVES + 16];
    const Range r = range_of(t);
    if (r.leaves < 2) return;
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) nodes[leaf] = t.homes[r.leaf + leaf];
    __syncthreads();
    bool is_any = false;
    for (u32 leaf = 2 * threadIdx.x; leaf + 1 < r.leaves; leaf += 2 * THREADS)
        is_any |= nodes[leaf] >> LABEL == SHIFTED && nodes[leaf + 1] >> LABEL == SHIFTED;
    if (!__syncthreads_or(is_any)) return;
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) {
        const u64 at = r.leaf + leaf;
        xs[leaf] = t.digests[2 * at];
        ys[leaf] = t.digests[2 * at + 1];
    }
    __syncthreads();
    u32 counts[12], offsets[12], levels = 1;
    counts[0] = r.leaves;
    offsets[0] = 0;
    while (counts[levels - 1] > 1) {
        const u32 below = offsets[levels - 1], count = counts[levels - 1], here = below + count, upper = (count + 1) / 2;
        counts[levels] = upper;
        offsets[levels] = here;
        Pair digests[LEAVES / 2 / THREADS];
        for (u32 node = threadIdx.x, i = 0; node < upper; node += THREADS, i++) {
            const u32 left = 2 * node, right = left + 1;
            digests[i] = {xs[left], ys[left]};
            u64 word = nodes[below + left];
            if (right < count) {
                const u64 kind = word >> LABEL, other = nodes[below + right] >> LABEL;
                if (kind != other || kind == MIXED) {
                    word = MIXED << LABEL;
                } else if (kind == SHIFTED) {
                    digests[i] = above(digests[i], {xs[right], ys[right]});
                    const u64 place = find(t, digests[i]);
                    word = place == NONE ? MIXED << LABEL : place | SHIFTED << LABEL;
                }
            }
            nodes[here + node] = word;
        }
        __syncthreads();
        for (u32 node = threadIdx.x, i = 0; node < upper; node += THREADS, i++) {
            xs[node] = digests[i].x;
            ys[node] = digests[i].y;
        }
        __syncthreads();
        levels++;
    }
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) {
        for (u32 level = levels - 1; level > 0; level--) {
            const u64 word = nodes[offsets[level] + (leaf >> level)];
            if (word >> LABEL == MIXED) continue;
            if (word >> LABEL == SHIFTED) {
                const u64 inside = leaf - (leaf >> level << level);
                t.homes[r.leaf + leaf] = (word & WORD) + (inside << (t.chunk_shift - 5));
            }
            break;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) bvk_chunk_runs(const __grid_constant__ Table t) {
    const Range r = range_of(t);
    for (u32 leaf = threadIdx.x; leaf < r.leaves; leaf += THREADS) {
        const u64 at = r.leaf + leaf, place = t.homes[at] & WORD;
        const bool is_first = leaf == 0 && r.first == 0 && r.block.is_first;
        if (is_first || place != (t.homes[at - 1] & WORD) + (1ull << (t.chunk_shift - 5))) {
            const u64 run = atomicAdd(t.counters + 1, 1ull);
            if (run < t.runs_most) {
                t.runs[2 * run] = at;
                t.runs[2 * run + 1] = place;
            }
        }
        // Other threads may read it with or without the label.
        if (t.homes[at] != place) t.homes[at] = place;
    }
}

// Enters all chunks that may be referred to into a table that was emptied. Each thread takes one chunk.
extern "C" __global__ void __launch_bounds__(THREADS) bvk_chunk_rebuild(const __grid_constant__ Table t, u64 leaves) {
    const u64 at = (u64)blockIdx.x * THREADS + threadIdx.x;
    u32 added = 0;
    if (at < leaves && is_alive(t, t.homes[at])) added = insert(t, {t.digests[2 * at], t.digests[2 * at + 1]}, t.homes[at], has_room(t));
    count(t, added);
}

struct Part {
    u64 leaf;  // the first chunk, how many there are, and the place of the first
    u64 leaves;
    u64 place;
};

// Enters the chunks that the previous version stores itself. Each thread block takes one part.
extern "C" __global__ void __launch_bounds__(THREADS) bvk_chunk_keep(const __grid_constant__ Table t, const Part *parts) {
    const Part part = parts[blockIdx.x];
    const bool room = has_room(t);
    u32 added = 0;
    for (u64 leaf = threadIdx.x; leaf < part.leaves; leaf += THREADS) {
        const u64 at = part.leaf + leaf, place = part.place + (leaf << (t.chunk_shift - 5));
        t.homes[at] = place;
        added += insert(t, {t.digests[2 * at], t.digests[2 * at + 1]}, place, room);
    }
    __syncwarp();
    count(t, added);
}
