// The kernel of mpi-examples/graphlets.rs on a processor, one thread after the other. It reads a problem, and prints the counters
// and the number of one that overflowed. Input: vertices, neighbours, orbits of a vertex, size, a counter that is full, all as
// numbers; then the arrays.
#include <cstdio>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(threads)

struct Place {
    unsigned x;
};
static Place blockIdx, blockDim, threadIdx;

static unsigned atomicAdd(unsigned *counter, unsigned value) {
    const unsigned before = *counter;
    *counter += value;
    return before;
}

#include "count.cu"

template <typename T> static std::vector<T> read(unsigned count) {
    std::vector<T> values(count);
    for (T &value : values) {
        unsigned number;
        if (std::scanf("%u", &number) != 1) std::perror("input");
        value = static_cast<T>(number);
    }
    return values;
}

int main() {
    const std::vector<unsigned> sizes = read<unsigned>(5);
    const unsigned vertices = sizes[0], width = sizes[2], size = sizes[3], full = sizes[4];
    const std::vector<unsigned> offsets = read<unsigned>(vertices + 1), neighbours = read<unsigned>(sizes[1]);
    const std::vector<unsigned char> orbits = read<unsigned char>(8u << size * (size - 1) / 2);
    std::vector<unsigned> counters(vertices * width);
    if (full < counters.size()) counters[full] = ~0u;
    unsigned long long overflowed = 0;
    blockDim.x = 128;
    for (unsigned thread = 0; thread < (vertices + 127) / 128 * 128; ++thread) {
        blockIdx.x = thread / 128;
        threadIdx.x = thread % 128;
        graphlets_count(offsets.data(), neighbours.data(), orbits.data(), counters.data(), &overflowed, 0, vertices, size,
                        width);
    }
    for (unsigned counter : counters) std::printf("%u ", counter);
    std::printf("%llu\n", overflowed);
}
