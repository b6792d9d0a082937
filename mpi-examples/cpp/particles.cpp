// Particles fly through a periodic box and move from rank to rank, so that the number on each rank changes. A restart on any
// number of ranks gives each particle to the rank that then has its part of the box. Bivouac's C++ header follows the vector of
// particles wherever it is and however long it is. heat2d.c shows the C interface and arrays.
//
//   mpicxx -O2 particles.cpp -lbivouac -o particles
//   mpirun -n 4 ./particles --steps 400 --every 50 --die-at 230:2    # rank 2 kills itself after step 230
//   mpirun -n 3 ./particles --steps 400 --every 50                   # continues from version 200
//
// The last line, `digest`, is the same with and without interruptions, and on any number of ranks.
#include <bivouac.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

struct Particle {
    std::uint64_t id;
    double x, v;
};

}  // namespace

// A particle contains no pointers, so it can be saved as its bytes.
template <>
struct bivouac::as_bytes<Particle> : std::true_type {};

namespace {

// The box is [0, CELLS), and its two ends are the same place. Each rank has neighbouring cells; if there are more ranks than
// cells, some ranks have none.
constexpr int CELLS = 48;

int owner(double x, int ranks) { return static_cast<int>((static_cast<long long>(x) + 1) * ranks - 1) / CELLS; }

// Each particle is pulled towards the middle of its cell, and stays slower than one cell per step. Its motion does not depend on
// the rank that has it.
void move(std::vector<Particle> &mine) {
    for (Particle &p : mine) {
        const double to_middle = static_cast<double>(static_cast<int>(p.x)) + 0.5 - p.x;
        p.v = std::min(std::max(p.v + 0.01 * to_middle, -0.9), 0.9);
        p.x += p.v;
        if (p.x < 0) p.x += CELLS;
        // A sum that was rounded up may equal the end of the box.
        if (p.x >= CELLS) p.x -= CELLS;
    }
}

// Sends each particle to the rank that has its cell.
void exchange(std::vector<Particle> &mine, int ranks) {
    const auto count = static_cast<std::size_t>(ranks);
    std::vector<int> leaving(count), coming(count), from(count), to(count);
    std::sort(mine.begin(), mine.end(), [](const Particle &a, const Particle &b) { return a.x < b.x; });
    for (const Particle &p : mine) leaving[static_cast<std::size_t>(owner(p.x, ranks))] += static_cast<int>(sizeof p);
    MPI_Alltoall(leaving.data(), 1, MPI_INT, coming.data(), 1, MPI_INT, MPI_COMM_WORLD);
    int bytes = 0;
    for (std::size_t rank = 0; rank < count; bytes += coming[rank], rank++) {
        to[rank] = bytes;
        from[rank] = rank == 0 ? 0 : from[rank - 1] + leaving[rank - 1];
    }
    std::vector<Particle> next(static_cast<std::size_t>(bytes) / sizeof(Particle));
    MPI_Alltoallv(mine.data(), leaving.data(), from.data(), MPI_BYTE, next.data(), coming.data(), to.data(), MPI_BYTE, MPI_COMM_WORLD);
    mine.swap(next);
}

// The only cost of a checkpoint that fails on this rank is that a restart goes further back; the other ranks are told.
void save(bivouac::session &session, std::uint64_t step) {
    try {
        session.checkpoint("particles", step);
    } catch (const bivouac::error &error) {
        std::fprintf(stderr, "checkpoint %llu: %s\n", static_cast<unsigned long long>(step), error.what());
    }
}

// A hash of all particles in the order of their numbers, on rank 0.
std::uint64_t digest(const std::vector<Particle> &mine, int rank, int ranks) {
    const auto count = static_cast<std::size_t>(ranks);
    const int bytes = static_cast<int>(mine.size() * sizeof(Particle));
    std::vector<int> counts(count), places(count);
    MPI_Gather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (std::size_t other = 1; other < count; other++) places[other] = places[other - 1] + counts[other - 1];
    std::vector<Particle> all(rank == 0 ? static_cast<std::size_t>(places.back() + counts.back()) / sizeof(Particle) : 0);
    MPI_Gatherv(mine.data(), bytes, MPI_BYTE, all.data(), counts.data(), places.data(), MPI_BYTE, 0, MPI_COMM_WORLD);
    std::sort(all.begin(), all.end(), [](const Particle &a, const Particle &b) { return a.id < b.id; });
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const Particle &p : all) {
        std::uint64_t words[3] = {p.id, 0, 0};
        std::memcpy(&words[1], &p.x, sizeof p.x);
        std::memcpy(&words[2], &p.v, sizeof p.v);
        for (const std::uint64_t word : words) hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash ^ all.size();
}

const char *option(int argc, char **argv, const char *name, const char *otherwise) {
    for (int at = 1; at + 1 < argc; at++) {
        if (!std::strcmp(argv[at], name)) return argv[at + 1];
    }
    return otherwise;
}

void run(int argc, char **argv) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const std::uint64_t steps = std::strtoull(option(argc, argv, "--steps", "400"), nullptr, 10);
    const std::uint64_t every = std::strtoull(option(argc, argv, "--every", "50"), nullptr, 10);
    const std::uint64_t count = std::strtoull(option(argc, argv, "--particles", "4000"), nullptr, 10);
    unsigned long long die_step = 0;
    int die_rank = -1;
    if (std::sscanf(option(argc, argv, "--die-at", ""), "%llu:%d", &die_step, &die_rank) != 2) die_rank = -1;

    // The initial particles: more in some cells than in others, each on the rank that has its cell. A restart replaces them.
    std::vector<Particle> mine;
    for (std::uint64_t id = 0; id < count; id++) {
        const double part = (static_cast<double>(id) + 0.5) / static_cast<double>(count);
        const Particle p = {id, CELLS * part * part, static_cast<double>(id % 17) / 16 - 0.5};
        if (owner(p.x, ranks) == rank) mine.push_back(p);
    }
    std::uint64_t step = 0;

    bivouac::session session(MPI_COMM_WORLD);
    // Rows with one column. For each row, a restart asks which rank gets it, by the value in that column.
    session.protect_rows("particles", bivouac::rows().column("particle", mine),
                         bivouac::deal::by<Particle>("particle", [ranks](const Particle *p) { return owner(p->x, ranks); }));
    session.protect_shared("step", step);
    if (auto restored = session.restore("particles")) {
        if (rank == 0) std::printf("restored version=%llu from %d ranks\n", static_cast<unsigned long long>(restored.version), restored.ranks);
        for (const Particle &p : mine) {
            if (owner(p.x, ranks) != rank) throw std::logic_error("a particle has come to a rank that does not have its cell");
        }
    }
    while (step < steps) {
        move(mine);
        exchange(mine, ranks);
        step++;
        if (every > 0 && step % every == 0) save(session, step);
        if (step == die_step && rank == die_rank) std::raise(SIGKILL);
    }
    session.close();
    const std::uint64_t hash = digest(mine, rank, ranks);
    if (rank == 0) std::printf("digest %016llx\n", static_cast<unsigned long long>(hash));
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
