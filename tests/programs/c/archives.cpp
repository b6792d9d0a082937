// Archives of the library cereal are saved as regions of a checkpoint, without a file in between.

#include <cereal/archives/binary.hpp>
#include <cereal/archives/json.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/memory.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include <bivouac.hpp>

#include <cstdio>
#include <cstdlib>

#define CHECK(what) \
    do { \
        if (!(what)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #what), std::abort(); \
    } while (0)

namespace {

struct cell {
    double mass = 0;
    std::vector<std::shared_ptr<cell>> children;

    template <class Archive>
    void serialize(Archive &archive) {
        archive(cereal::make_nvp("mass", mass), cereal::make_nvp("children", children));
    }
};

// A tree whose shape depends on the rank. Every other leaf is the same shared object.
std::shared_ptr<cell> grown(int depth, int rank, const std::shared_ptr<cell> &shared) {
    auto node = std::make_shared<cell>();
    node->mass = depth + 0.5 * rank;
    if (depth == 0) return node;
    for (int at = 0; at <= (depth + rank) % 3; at++) node->children.push_back(at == 1 ? shared : grown(depth - 1, rank, shared));
    return node;
}

double total(const cell &node) {
    double sum = node.mass;
    for (const auto &child : node.children) sum += total(*child);
    return sum;
}

}  // namespace

int main(int argc, char **argv) {
    int granted, rank;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    {
        bivouac::session session(MPI_COMM_WORLD);
        const auto shared = std::make_shared<cell>();
        shared->mass = 100;
        std::shared_ptr<cell> tree = grown(9, rank, shared);
        std::map<std::string, std::vector<double>> tables;
        for (int at = 0; at < 300 + rank; at++) tables["table " + std::to_string(at)] = std::vector<double>(1000, at);
        const double mass = total(*tree);
        const auto tables_then = tables;
        session.protect_stream(
            "tree", [&](std::ostream &out) { cereal::BinaryOutputArchive archive(out); archive(tree, tables); },
            [&](std::istream &in) { cereal::BinaryInputArchive archive(in); archive(tree, tables); });
        session.protect_stream(
            "readable", [&](std::ostream &out) { cereal::JSONOutputArchive archive(out); archive(tree); },
            [&](std::istream &in) { cereal::JSONInputArchive archive(in); archive(tree); });
        session.checkpoint("archives", 1).wait(bivouac::level::process);
        tree.reset();
        tables.clear();
        CHECK(session.restore("archives"));
        CHECK(total(*tree) == mass && tables == tables_then);
        session.close();
    }
    MPI_Finalize();
    if (rank == 0) std::puts("ok");
    return 0;
}
