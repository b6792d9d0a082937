// The kernel of the example: it finds each connected induced subgraph of up to five vertices once, and the orbits of its vertices.
//
// A thread enumerates the subgraphs of one root, as `subgraphs.rs` does, with a stack in place of the recursion.

#define LARGEST 5

// Is `vertex` in the ascending list of another vertex?
static __device__ bool is_edge(const unsigned *__restrict__ offsets, const unsigned *__restrict__ neighbours,
                               unsigned of, unsigned vertex) {
    unsigned low = offsets[of], high = offsets[of + 1];
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        const unsigned found = neighbours[middle];
        if (found == vertex) return true;
        if (found < vertex) low = middle + 1;
        else high = middle;
    }
    return false;
}

// Counts the subgraphs of `count` roots starting at `first`. `orbits` has eight bytes for each mask of edges. A counter that is full
// returns to zero, and its index plus one is written to `overflowed`, which is zero otherwise.
extern "C" __global__ void __launch_bounds__(128)
graphlets_count(const unsigned *__restrict__ offsets, const unsigned *__restrict__ neighbours,
                const unsigned char *__restrict__ orbits, unsigned *__restrict__ counters,
                unsigned long long *__restrict__ overflowed, unsigned first, unsigned count, int size_max, int width) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= count) return;
    const unsigned root = first + thread;
    // For each size of the subgraph: its last vertex, its edges, and the place where it continues (a vertex, and an
    // index into that vertex's list).
    unsigned vertex[LARGEST], mask[LARGEST], at[LARGEST];
    int near[LARGEST];
    vertex[0] = root;
    mask[0] = 0;
    near[0] = 0;
    at[0] = offsets[root];
    int size = 1;
    while (size > 0) {
        const int last = size - 1;
        const unsigned through = vertex[near[last]];
        if (at[last] == offsets[through + 1]) {
            near[last] += 1;
            if (near[last] == size) size -= 1;
            else at[last] = offsets[vertex[near[last]]];
            continue;
        }
        const unsigned candidate = neighbours[at[last]++];
        bool is_new = candidate > root;
        for (int early = 0; is_new && early < near[last]; ++early)
            is_new = !is_edge(offsets, neighbours, vertex[early], candidate);
        if (!is_new) continue;
        unsigned edges = 1u << near[last];
        for (int late = near[last] + 1; late < size; ++late)
            edges |= (unsigned)is_edge(offsets, neighbours, vertex[late], candidate) << late;
        const unsigned grown = mask[last] | edges << (size * (size - 1) / 2);
        vertex[size] = candidate;
        for (int place = 0; place <= size; ++place) {
            const unsigned long long index = (unsigned long long)vertex[place] * width + orbits[8 * grown + place];
            if (atomicAdd(&counters[index], 1u) == 0xffffffffu) *overflowed = index + 1;
        }
        if (size + 1 < size_max) {
            mask[size] = grown;
            near[size] = near[last];
            at[size] = at[last];
            size += 1;
        }
    }
}
