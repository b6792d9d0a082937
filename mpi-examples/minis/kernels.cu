// The kernels of the mini-apps, one thread per item, as `kernels.rs` has them.
//
// All have the same parameters: six arrays, of which each uses the first few, the number of items, and five numbers. Arrays with several
// values per item are stored value by value, so that consecutive threads read consecutive words.

typedef unsigned long long u64;
typedef unsigned int u32;

#define KERNEL(name)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
    name(float *a, float *b, float *c, float *d, float *e, float *f, u64 items, u64 at, u64 width, u64 height, u32 step,   \
         float value)
#define ITEM                                                                                                               \
    const u64 item = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                           \
    if (item >= items) return

// A number from 0 to 1 for an index.
static __device__ float noise(u64 index, u32 seed) {
    u64 x = index * 0x9E3779B97F4A7C15ull + seed;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 29;
    return (float)(u32)(x >> 40) * (1.0f / 16777216.0f);
}

// a: the array to fill, starting at element `at`. step: the seed. value: the maximum.
KERNEL(fill) {
    ITEM;
    a[at + item] = noise(at + item, step) * value;
}

// a: heat of `width` x `height` cells. An item is a cell of the colour `step` in the rows starting at `at`.
KERNEL(relax) {
    ITEM;
    const u64 half = width / 2, y = at + item / half, x = 2 * (item % half) + ((y + step) & 1);
    if (x == 0 || x + 1 == width || y == 0 || y + 1 >= height) return;
    const u64 cell = y * width + x;
    a[cell] = 0.25f * (a[cell - 1] + a[cell + 1] + a[cell - width] + a[cell + width]) + value * noise(cell, 7);
}

// a: the matrix's values, b: its columns. `items` rows of 27, a grid of `width` x `width` x … points; value: added to the diagonal.
KERNEL(matrix) {
    ITEM;
    const long long side = (long long)width, plane = side * side;
    float sum = 0.0f;
    for (int k = 0; k < 27; ++k) {
        const long long shift = (k % 3 - 1) + (k / 3 % 3 - 1) * side + (k / 9 - 1) * plane, other = (long long)item + shift;
        const bool is_there = k != 13 && other >= 0 && other < (long long)items;
        const float weight = is_there ? 0.5f + 0.5f * noise(item < (u64)other ? item : (u64)other, (u32)(shift < 0 ? -shift : shift)) : 0.0f;
        if (k != 13) {
            a[(u64)k * items + item] = -weight;
            ((u32 *)b)[(u64)k * items + item] = is_there ? (u32)other : (u32)item;
            sum += weight;
        }
    }
    a[13 * items + item] = sum + value;
    ((u32 *)b)[13 * items + item] = (u32)item;
}

// a: values, b: columns, c: p, d: q = A p
KERNEL(multiply) {
    ITEM;
    float sum = 0.0f;
    for (u64 k = 0; k < 27; ++k) sum += a[k * items + item] * c[((const u32 *)b)[k * items + item]];
    d[item] = sum;
}

// a, b: two vectors of `width`; c: `items` partial sums of their product, in double precision.
KERNEL(dot) {
    ITEM;
    double sum = 0.0;
    for (u64 i = item; i < width; i += items) sum += (double)a[i] * (double)b[i];
    ((double *)c)[item] = sum;
}

// a: x += value p, b: r -= value q, c: p, d: q
KERNEL(correct) {
    ITEM;
    a[item] += value * c[item];
    b[item] -= value * d[item];
}

// a: p = r + value p, b: r
KERNEL(turn) {
    ITEM;
    a[item] = b[item] + value * a[item];
}

// a: 18 neighbours of each of the `items` atoms of a lattice with `width` of them along a line.
KERNEL(lattice) {
    ITEM;
    const long long side = (long long)width, all = (long long)items;
    int found = 0;
    for (int k = 0; k < 27; ++k) {
        const int x = k % 3 - 1, y = k / 3 % 3 - 1, z = k / 9 - 1, distance = x * x + y * y + z * z;
        if (distance == 0 || distance == 3) continue;
        const long long other = ((long long)item + x + y * side + z * side * side + 2 * all) % all;
        ((u32 *)a)[(u64)found++ * items + item] = (u32)other;
    }
}

// a: places (three per atom, from the atom's site), b: velocities, c: forces. value: the time step.
KERNEL(drift) {
    ITEM;
    for (u64 axis = 0; axis < 3; ++axis) {
        const u64 i = axis * items + item;
        b[i] += value * c[i];
        a[i] += value * b[i];
    }
}

// a: places, b: forces, c: neighbours. Springs that grow stiffer.
KERNEL(force) {
    ITEM;
    float sum[3] = {0.0f, 0.0f, 0.0f};
    for (u64 k = 0; k < 18; ++k) {
        const u64 other = ((const u32 *)c)[k * items + item];
        for (u64 axis = 0; axis < 3; ++axis) {
            const float apart = a[axis * items + other] - a[axis * items + item];
            sum[axis] += apart + value * apart * apart * apart;
        }
    }
    for (u64 axis = 0; axis < 3; ++axis) b[axis * items + item] = sum[axis];
}

// a: cells starting at `at`, in boxes of `width`. The cells of a box move towards their mean with the next cell, and are heated.
KERNEL(refine) {
    ITEM;
    const u64 cell = at + item, place = cell % width;
    const float own = a[cell];
    a[cell] = own + 0.2f * (value - own) + 0.01f * noise(place + step, 3);
}

// a: flux of one direction (`height` groups of `width` planes of `items` lines), b: the flux of all directions before, c: after, d: cross sections.
// step: the direction, whose first bit says from which end.
KERNEL(sweep) {
    ITEM;
    const u64 cells = width * items;
    for (u64 group = 0; group < height; ++group) {
        float incoming = 0.0f;
        for (u64 plane = 0; plane < width; ++plane) {
            const u64 x = step & 1 ? width - 1 - plane : plane, cell = x * items + item;
            const float source = value + 0.1f * b[cell] + 0.3f * a[group * cells + cell];
            const float flux = (source + 2.0f * incoming) / (2.3f + d[cell]);
            a[group * cells + cell] = flux;
            c[cell] += 0.125f * flux;
            incoming = flux;
        }
    }
}

// a: the flux of all directions, b: the new one, which becomes zero.
KERNEL(settle) {
    ITEM;
    a[item] = b[item];
    b[item] = 0.0f;
}

// a: the wavefield one step before b, which becomes the wavefield one step after it; c: (velocity step / cell)^2. value: the
// source, in the middle.
KERNEL(wave) {
    ITEM;
    const u64 cell = at + item, x = cell % width, y = cell / width;
    if (x == 0 || x + 1 == width || y == 0 || y + 1 >= height) return;
    const float around = b[cell - 1] + b[cell + 1] + b[cell - width] + b[cell + width] - 4.0f * b[cell];
    a[cell] = 0.9999f * (2.0f * b[cell] - a[cell] + c[cell] * around) + (x == width / 2 && y == height / 2 ? value : 0.0f);
}

// Holds a stream for this long, to emulate a slow link.
extern "C" __global__ void hold(unsigned long long nanoseconds) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begun < nanoseconds);
}
