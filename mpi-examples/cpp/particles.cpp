// Particles that fly through a box and move from rank to rank, so that the number that each rank has changes: Bivouac's header for
// C++, which follows a vector of records wherever it lies and however long it is. heat2d.c shows the C interface.
//
//   mpicxx -O2 particles.cpp -lbivouac -o particles
//   mpirun -n 4 ./particles --steps 400 --every 50
//
// The last line, `sum`, is the same with and without interruptions. `--die-at STEP --die-rank RANK` lets a rank kill itself.
#include <bivouac.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

struct Particle {
    std::uint64_t id;
    double x, v;
};

}  // namespace

// A particle has no pointers: its bytes are all of it.
template <>
struct bivouac::as_bytes<Particle> : std::true_type {};

namespace {

// The box is [0, ranks); rank r has what lies in [r, r + 1). Particles move less than 1 a step and bounce off the ends.
void move(std::vector<Particle> &mine, int rank, int ranks) {
    std::vector<Particle> out[2];
    std::vector<Particle> stay;
    for (Particle &p : mine) {
        p.x += p.v;
        if (p.x < 0 || p.x >= ranks) {
            p.v = -p.v;
            p.x += 2 * p.v;
        }
        const int home = static_cast<int>(p.x);
        (home < rank ? out[0] : home > rank ? out[1] : stay).push_back(p);
    }
    for (int side = 0; side < 2; side++) {
        const int to = side == 0 ? rank - 1 : rank + 1, from = side == 0 ? rank + 1 : rank - 1;
        const int target = to < 0 || to >= ranks ? MPI_PROC_NULL : to, source = from < 0 || from >= ranks ? MPI_PROC_NULL : from;
        int leaving = static_cast<int>(out[side].size()), coming = 0;
        MPI_Sendrecv(&leaving, 1, MPI_INT, target, 1, &coming, 1, MPI_INT, source, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        std::vector<Particle> in(static_cast<std::size_t>(coming));
        const int size = static_cast<int>(sizeof(Particle));
        MPI_Sendrecv(out[side].data(), leaving * size, MPI_BYTE, target, 2, in.data(), coming * size, MPI_BYTE, source, 2,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        stay.insert(stay.end(), in.begin(), in.end());
    }
    mine.swap(stay);
}

// A checkpoint that fails on this rank costs nothing but a longer way back; the other ranks hear of it.
void save(bivouac::session &session, std::uint64_t step) {
    try {
        session.checkpoint("particles", step);
    } catch (const bivouac::error &error) {
        std::fprintf(stderr, "checkpoint %llu: %s\n", static_cast<unsigned long long>(step), error.what());
    }
}

std::uint64_t option(int argc, char **argv, const char *name, std::uint64_t otherwise) {
    for (int at = 1; at + 1 < argc; at++) {
        if (!std::strcmp(argv[at], name)) return std::strtoull(argv[at + 1], nullptr, 10);
    }
    return otherwise;
}

void run(int argc, char **argv) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const std::uint64_t steps = option(argc, argv, "--steps", 400), every = option(argc, argv, "--every", 50);
    const std::uint64_t die_step = option(argc, argv, "--die-at", 0), die_rank = option(argc, argv, "--die-rank", 0);

    std::vector<Particle> mine;
    for (std::uint64_t i = 0; i < 1000; i++) {
        const std::uint64_t id = static_cast<std::uint64_t>(rank) * 1000 + i;
        mine.push_back({id, rank + (static_cast<double>(i) + 0.5) / 1000, static_cast<double>(id % 17) / 32 - 0.25});
    }
    std::uint64_t step = 0;
    bivouac::session session(MPI_COMM_WORLD);
    session.protect("particles", mine);
    session.protect("step", step);
    if (auto restored = session.restore("particles")) {
        if (rank == 0) std::printf("restored version=%llu\n", static_cast<unsigned long long>(restored.version));
    }
    while (step < steps) {
        move(mine, rank, ranks);
        step++;
        if (every > 0 && step % every == 0) save(session, step);
        if (step == die_step && static_cast<std::uint64_t>(rank) == die_rank) std::raise(SIGKILL);
    }
    session.close();
    // A sum that does not depend on the order: of a hash of each particle.
    std::uint64_t sums[2] = {mine.size(), 0}, all[2];
    for (const Particle &p : mine) {
        std::uint64_t bits;
        std::memcpy(&bits, &p.x, sizeof bits);
        sums[1] += (bits ^ p.id) * 0x9e3779b97f4a7c15u;
    }
    MPI_Reduce(sums, all, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        std::printf("sum %llu %016llx\n", static_cast<unsigned long long>(all[0]), static_cast<unsigned long long>(all[1]));
    }
}

}  // namespace

int main(int argc, char **argv) {
    int granted;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    try {
        run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
