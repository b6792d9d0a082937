// A plate of heat with tracer particles in CUDA C++, whose checkpoints are marked (docs/OFFLOAD.md): one GPU per rank, ranks stacked in rows, periodic
// from top to bottom. ci/gpu/cuda.sh builds and runs it.
//
//   mpirun -n 2 heat                       continues from the newest checkpoint and prints a checksum
//   mpirun -n 2 heat --every 1000          without checkpoints: the same checksum
//   mpirun -n 2 heat --die-at 45           kills itself with SIGKILL
//   mpirun -n 2 heat --forget particles    omits a declaration: refused, with an error
//
// u: 8192 x 8192 doubles (512 MiB) per rank, of which rows 0 and rows-1 are halos; updated in place, red and black.
// particles: 256 MiB; coefficients: 256 MiB, only read.
#define OMPI_SKIP_MPICXX 1 // the C interface alone: mpicc does not link the one for C++
#define MPICH_SKIP_MPICXX 1
#include <bivouac.h>
#include <cuda_runtime.h>
#include <mpi.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#define CUDA(call)                                                                                       \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                \
        }                                                                                                \
    } while (0)

// Prints an error of a call that the program can do without.
#define BVK(call)                                                                                             \
    do {                                                                                                      \
        int status_ = (call);                                                                                 \
        if (status_ < 0) printf("bivouac: %s: %s: %s\n", #call, bvk_status_name(status_), bvk_error());       \
    } while (0)

// Ends all ranks if a call fails without which a checkpoint would lack something, or a restart would not load it.
#define MUST(call)                                                                                            \
    do {                                                                                                      \
        int must_ = (call);                                                                                   \
        if (must_ < 0) {                                                                                      \
            printf("bivouac: %s: %s: %s\n", #call, bvk_status_name(must_), bvk_error());                      \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                     \
        }                                                                                                     \
    } while (0)

struct Particle {
    double x, y, vx, vy;
};

struct Options {
    uint64_t steps = 60;
    int sweeps = 20;      // red/black sweeps in a step
    uint64_t rows = 8192; // of u on each rank, with the two halo rows; even
    uint64_t every = 10;  // steps between checkpoints
    uint64_t die_at = UINT64_MAX;
    bool forget_particles = false;
};

const uint64_t NX = 8192;     // cells in a row
const unsigned LANES = 1 << 18; // threads of the checksum

__host__ __device__ inline uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__host__ __device__ inline double unit(uint64_t z) { return (double)(mix(z) >> 11) * (1.0 / 9007199254740992.0); }

__global__ void init_cells(double *u, float *coefficients, uint64_t cells, uint64_t first) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= cells) return;
    u[i] = 100.0 * unit(first + i);
    coefficients[i] = 0.5f + 0.45f * (float)unit(~(first + i));
}

__global__ void init_particles(Particle *p, uint64_t n, uint64_t first, double height) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint64_t id = (first + i) * 4;
    p[i].x = unit(id) * (double)NX;
    p[i].y = unit(id + 1) * height;
    p[i].vx = unit(id + 2) - 0.5;
    p[i].vy = unit(id + 3) - 0.5;
}

// In place: computes the cells of one colour from those of the other.
__global__ void heat(double *u, const float *coefficients, uint64_t rows, unsigned colour) {
    uint64_t r = blockIdx.y + 1;
    uint64_t c = 2 * (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) + ((r + colour) & 1);
    if (r >= rows - 1 || c < 1 || c >= NX - 1) return;
    uint64_t i = r * NX + c;
    double mean = 0.25 * (u[i - 1] + u[i + 1] + u[i - NX] + u[i + NX]);
    u[i] += coefficients[i] * (mean - u[i]);
}

__global__ void move_particles(Particle *particles, uint64_t n, const double *u, uint64_t rows) {
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    Particle p = particles[i];
    uint64_t c = (uint64_t)p.x, r = (uint64_t)p.y;
    c = c < 1 ? 1 : c > NX - 2 ? NX - 2 : c;
    r = r < 1 ? 1 : r > rows - 2 ? rows - 2 : r;
    uint64_t at = r * NX + c;
    p.vx += 1e-3 * (u[at + 1] - u[at - 1]);
    p.vy += 1e-3 * (u[at + NX] - u[at - NX]);
    p.x += 0.1 * p.vx;
    p.y += 0.1 * p.vy;
    double width = (double)NX, height = (double)rows;
    if (p.x < 0.0 || p.x >= width) { p.vx = -p.vx; p.x = p.x < 0.0 ? 0.0 : width - 1.0; }
    if (p.y < 0.0 || p.y >= height) { p.vy = -p.vy; p.y = p.y < 0.0 ? 0.0 : height - 1.0; }
    particles[i] = p;
}

// Each lane sums its own cells in a fixed order; the bits are summed modulo 2^64, in any order.
__global__ void checksum(const double *u, uint64_t cells, const uint64_t *words, uint64_t count, double *sums, unsigned long long *bits) {
    uint64_t lane = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    double sum = 0.0;
    uint64_t mine = 0;
    const uint64_t *as_words = (const uint64_t *)u;
    for (uint64_t i = lane; i < cells; i += LANES) {
        sum += u[i];
        mine += mix(as_words[i] ^ mix(i));
    }
    for (uint64_t i = lane; i < count; i += LANES) mine += mix(words[i] ^ mix(~i));
    sums[lane] = sum;
    atomicAdd(bits, (unsigned long long)mine);
}

struct Halo {
    double *up_out, *up_in, *down_out, *down_in; // pinned
    int up, down;
};

// The rows next to the ghost rows go to the neighbours through host memory, and theirs go into our ghost rows.
static void exchange(double *u, uint64_t rows, const Halo &h, cudaStream_t stream) {
    size_t row = NX * sizeof(double);
    CUDA(cudaMemcpyAsync(h.up_out, u + NX, row, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaMemcpyAsync(h.down_out, u + (rows - 2) * NX, row, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    MPI_Sendrecv(h.up_out, (int)NX, MPI_DOUBLE, h.up, 0, h.down_in, (int)NX, MPI_DOUBLE, h.down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(h.down_out, (int)NX, MPI_DOUBLE, h.down, 1, h.up_in, (int)NX, MPI_DOUBLE, h.up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CUDA(cudaMemcpyAsync(u, h.up_in, row, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(u + (rows - 1) * NX, h.down_in, row, cudaMemcpyHostToDevice, stream));
}

static Options parse(int argc, char **argv) {
    Options o;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--steps")) { o.steps = strtoull(value, NULL, 10); i++; }
        else if (!strcmp(argv[i], "--sweeps")) { o.sweeps = atoi(value); i++; }
        else if (!strcmp(argv[i], "--rows")) { o.rows = strtoull(value, NULL, 10); i++; }
        else if (!strcmp(argv[i], "--every")) { o.every = strtoull(value, NULL, 10); i++; }
        else if (!strcmp(argv[i], "--die-at")) { o.die_at = strtoull(value, NULL, 10); i++; }
        else if (!strcmp(argv[i], "--forget") && !strcmp(value, "particles")) { o.forget_particles = true; i++; }
        else { fprintf(stderr, "unknown option %s\n", argv[i]); MPI_Abort(MPI_COMM_WORLD, 2); }
    }
    return o;
}

static const char *level_name(int level) {
    static const char *const names[] = {"captured", "process", "node-reboot", "node-loss", "system"};
    return level >= 0 && level <= 4 ? names[level] : "?";
}

// Prints the verdicts that have arrived since the last call; they are the same on all ranks, so one prints.
static void tell_verdicts(bvk_session_t session, int rank) {
    bvk_report report = BVK_REPORT_INIT;
    while (bvk_next_report(session, &report) == BVK_OK) {
        if (rank != 0) continue;
        if (report.name[0] == 0) printf("verdict: tier of level %s cannot be used: %s\n", level_name(report.level), report.reason);
        else if (report.committed == 1) printf("verdict: %s %llu committed, level %s\n", report.name, (unsigned long long)report.version, level_name(report.level));
        else printf("verdict: %s %llu %s, level %s: %s\n", report.name, (unsigned long long)report.version, report.committed == 0 ? "REFUSED" : "unknown", level_name(report.level), report.reason);
    }
}

static unsigned blocks(uint64_t n) { return (unsigned)((n + 255) / 256); }

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, local, devices;
    MPI_Comm node;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    Options o = parse(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0); // a killed rank loses no line

    bvk_session_t session;
    if (bvk_open(MPI_COMM_WORLD, NULL, &session) < 0) {
        printf("bivouac: bvk_open: %s\n", bvk_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }

    CUDA(cudaGetDeviceCount(&devices));
    int gpu = local % devices;
    CUDA(cudaSetDevice(gpu));
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));

    const uint64_t cells = o.rows * NX, count = cells / 8; // 8192 rows: 512 MiB of u, 2^23 particles of 32 bytes
    double *u, *sums;
    float *coefficients;
    Particle *particles;
    unsigned long long *bits;
    CUDA(cudaMalloc((void **)&u, cells * sizeof(double)));
    CUDA(cudaMalloc((void **)&particles, count * sizeof(Particle)));
    CUDA(cudaMalloc((void **)&coefficients, cells * sizeof(float)));
    CUDA(cudaMalloc((void **)&sums, LANES * sizeof(double)));
    CUDA(cudaMalloc((void **)&bits, sizeof(*bits)));
    Halo halo;
    halo.up = (rank + ranks - 1) % ranks;
    halo.down = (rank + 1) % ranks;
    for (double **p : {&halo.up_out, &halo.up_in, &halo.down_out, &halo.down_in}) CUDA(cudaMallocHost((void **)p, NX * sizeof(double)));

    init_cells<<<blocks(cells), 256, 0, stream>>>(u, coefficients, cells, rank * cells);
    init_particles<<<blocks(count), 256, 0, stream>>>(particles, count, rank * count, (double)o.rows);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(stream));

    uint64_t step = 0;
    const uint64_t saved_bytes = cells * sizeof(double) + count * sizeof(Particle) + cells * sizeof(float) + sizeof(step);
    MUST(bvk_set_stream(session, stream));
    MUST(bvk_protect(session, "u", u, cells, BVK_F64));
    MUST(bvk_protect(session, "particles", particles, count, BVK_RECORD(sizeof(Particle))));
    MUST(bvk_protect(session, "coefficients", coefficients, cells, BVK_F32));
    MUST(bvk_protect(session, "step", &step, 1, BVK_U64));

    bvk_restored restored = BVK_RESTORED_INIT;
    int found = bvk_restore(session, "heat", BVK_NEWEST, &restored);
    if (found < 0) {
        printf("bivouac: bvk_restore: %s\n", bvk_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0) {
        if (found == BVK_OK) printf("RESTARTED from version %llu at step %llu, level %s, %.3f s\n", (unsigned long long)restored.version, (unsigned long long)step, level_name((int)restored.level), restored.seconds);
        else printf("nothing to restore: beginning at step 0\n");
    }

    BVK(bvk_offload(session, gpu, saved_bytes));
    bvk_write_set_t cells_written = NULL, particles_written = NULL;
    const void *const cells_at[] = {u}, *const particles_at[] = {particles};
    const uint64_t cells_bytes[] = {cells * sizeof(double)}, particles_bytes[] = {count * sizeof(Particle)};
    BVK(bvk_write_set(session, "cells", cells_at, cells_bytes, 1, &cells_written));
    BVK(bvk_write_set(session, "particles", particles_at, particles_bytes, 1, &particles_written));

    bvk_pending_t pending = NULL; // of the newest checkpoint
    bvk_stats stats = BVK_STATS_INIT;
    uint64_t marks = 0;
    double began = MPI_Wtime();
    while (step < o.steps) {
        if (step == o.die_at) {
            printf("rank %d kills itself at step %llu\n", rank, (unsigned long long)step);
            raise(SIGKILL);
        }
        if (!o.forget_particles) BVK(bvk_before(particles_written));
        move_particles<<<blocks(count), 256, 0, stream>>>(particles, count, u, o.rows);
        for (int sweep = 0; sweep < 2 * o.sweeps; sweep++) {
            BVK(bvk_before(cells_written)); // the halo rows that come from the host, and the kernel
            exchange(u, o.rows, halo, stream);
            heat<<<dim3(blocks(NX / 2), (unsigned)(o.rows - 2)), 256, 0, stream>>>(u, coefficients, o.rows, sweep & 1);
        }
        CUDA(cudaGetLastError());
        step++;
        if (step % o.every == 0) {
            BVK(bvk_release(&pending));
            double before = MPI_Wtime();
            BVK(bvk_checkpoint(session, "heat", step, &pending));
            double blocked = MPI_Wtime() - before;
            BVK(bvk_get_stats(session, &stats));
            if (rank == 0) printf("checkpoint %llu: %s, the call took %.1f ms\n", (unsigned long long)step, stats.marks > marks ? "marked" : "NOT marked", 1e3 * blocked);
            marks = stats.marks;
        }
        tell_verdicts(session, rank);
    }
    CUDA(cudaStreamSynchronize(stream));
    double seconds = MPI_Wtime() - began;

    CUDA(cudaMemsetAsync(bits, 0, sizeof(*bits), stream));
    checksum<<<LANES / 256, 256, 0, stream>>>(u, cells, (const uint64_t *)particles, count * 4, sums, bits);
    std::vector<double> lanes(LANES);
    unsigned long long mine = 0, all = 0;
    CUDA(cudaMemcpyAsync(lanes.data(), sums, LANES * sizeof(double), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaMemcpyAsync(&mine, bits, sizeof(mine), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    double sum = 0.0, total = 0.0;
    for (double lane : lanes) sum += lane;
    mine = mix(mine + rank);
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("steps %llu in %.3f s\n", (unsigned long long)step, seconds);
        printf("checksum %016llx mean %.12g\n", all, total / ((double)cells * ranks));
    }

    // The last checkpoint: wait for it, or nobody learns what has become of it.
    if (pending != NULL) {
        int reached = 0, status = bvk_wait(pending, BVK_LEVEL_PROCESS, &reached);
        if (rank == 0) {
            if (status == BVK_OK) printf("last checkpoint: level %s\n", level_name(reached));
            else printf("last checkpoint: %s: %s\n", bvk_status_name(status), bvk_error());
        }
        BVK(bvk_release(&pending));
    }
    BVK(bvk_settle(session)); // before u, particles and coefficients are freed
    tell_verdicts(session, rank);
    BVK(bvk_get_stats(session, &stats));
    printf("rank %d: marks %llu refused %llu marked_bytes %llu equal_bytes %llu doubled_bytes %llu urgent_bytes %llu mark_waits %llu (%.3f s) blocked %.3f s (longest %.3f s)\n",
           rank, (unsigned long long)stats.marks, (unsigned long long)stats.marks_refused, (unsigned long long)stats.marked_bytes, (unsigned long long)stats.equal_bytes,
           (unsigned long long)stats.doubled_bytes, (unsigned long long)stats.urgent_bytes, (unsigned long long)stats.mark_waits, stats.mark_wait_total_s,
           stats.blocked_total_s, stats.blocked_max_s);
    BVK(bvk_write_set_close(&cells_written));
    BVK(bvk_write_set_close(&particles_written));
    BVK(bvk_close(&session)); // before MPI_Finalize, and while the protected memory exists

    for (double *p : {halo.up_out, halo.up_in, halo.down_out, halo.down_in}) CUDA(cudaFreeHost(p));
    CUDA(cudaFree(bits));
    CUDA(cudaFree(sums));
    CUDA(cudaFree(coefficients));
    CUDA(cudaFree(particles));
    CUDA(cudaFree(u));
    CUDA(cudaStreamDestroy(stream));
    MPI_Comm_free(&node);
    MPI_Finalize();
    return 0;
}
