// The kernels of the example: a step of the acoustic wave equation, source and receivers, and the image.
//
// Fields are rows of `width` floats. Every kernel writes each element at most once, from one thread, so that results do
// not depend on how the threads run. `stencil.rs` is the same arithmetic for the host twin.

#define REACH 4

// One step of u_tt + 2 sigma u_t = v^2 laplace(u): eighth order in space, second in time. `before` holds the field one
// step before `now` and receives the field one step after it. `sponge` is the damping of each column, then of each row.
extern "C" __global__ void __launch_bounds__(256)
rtm_step(const float *__restrict__ courant, const float *__restrict__ sponge, const float *__restrict__ now,
         float *__restrict__ before, int width, int height) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int z = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < REACH || x >= width - REACH || z < REACH || z >= height - REACH) return;
    const long long cell = (long long)z * width + x;
    const float second[REACH] = {8.0f / 5.0f, -1.0f / 5.0f, 8.0f / 315.0f, -1.0f / 560.0f};
    const float centre = now[cell];
    float laplacian = 2.0f * (-205.0f / 72.0f) * centre;
#pragma unroll
    for (int distance = 1; distance <= REACH; ++distance) {
        const long long rows = (long long)distance * width;
        const float ring = now[cell - distance] + now[cell + distance] + now[cell - rows] + now[cell + rows];
        laplacian += second[distance - 1] * ring;
    }
    const float damping = sponge[x] + sponge[width + z];
    const float undamped = 2.0f * centre - (1.0f - damping) * before[cell] + courant[cell] * laplacian;
    before[cell] = undamped / (1.0f + damping);
}

// Adds the source's amplitude to a cell. One thread.
extern "C" __global__ void rtm_add_source(const float *courant, float *field, long long cell, float amplitude) {
    field[cell] += courant[cell] * amplitude;
}

// Records what the receivers hear: `count` cells starting at `first`, into the row of `traces` that belongs to `step`.
extern "C" __global__ void rtm_record(const float *__restrict__ field, float *__restrict__ traces, long long first,
                                      int count, int step) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x < count) traces[(long long)step * count + x] = field[first + x];
}

// Makes the receivers send what they heard around `step`, differentiated in time.
extern "C" __global__ void rtm_inject(const float *__restrict__ courant, float *__restrict__ field,
                                      const float *__restrict__ traces, long long first, int count, int step) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= count) return;
    const float slope = traces[(long long)(step - 1) * count + x] - traces[(long long)(step + 1) * count + x];
    field[first + x] += courant[first + x] * slope;
}

// Adds the product of two fields to the image of nx times nz cells, whose first cell is `first` in the fields.
extern "C" __global__ void __launch_bounds__(256)
rtm_correlate(const float *__restrict__ source, const float *__restrict__ receivers, float *__restrict__ image,
              long long first, int width, int nx, int nz) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int z = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= nx || z >= nz) return;
    const long long cell = first + (long long)z * width + x;
    image[(long long)z * nx + x] += source[cell] * receivers[cell];
}
