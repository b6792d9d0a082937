// Uses veloc.hpp as programs written for VELOC do, on two ranks. argv: a configuration file, and a number: the first run of the program
// takes checkpoints, and the second one restores them.

#include <veloc.hpp>

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "veloc_check.h"

static int rank;

// A function as a serialization library would make it.
static veloc::client_t::serializer_t serializer(const std::map<int, int> &map) {
    return [&map](std::ostream &out) {
        for (const auto &entry : map) out << entry.first << ' ' << entry.second << '\n';
    };
}

static veloc::client_t::deserializer_t deserializer(std::map<int, int> &map) {
    return [&map](std::istream &in) {
        map.clear();
        for (int key, value; in >> key >> value;) map[key] = value;
        return in.eof();
    };
}

static std::string told;

static void observer(const std::string &name, int version) { told = name + std::to_string(version); }

static void first(veloc::client_t *ckpt) {
    int k = 7 + rank;
    double few[2] = {1, 2};
    std::map<int, int> map, empty, own;
    map[1] = 2 + rank;
    own[5] = 6;

    // As in VELOC, the result says whether the number is new.
    CHECK(ckpt->mem_protect(0, &few, 1, 1));
    CHECK(!ckpt->mem_protect(0, &k, 1, sizeof(k)));
    CHECK(ckpt->mem_protect(1, serializer(map), deserializer(map)));
    CHECK(ckpt->mem_protect(2, few, 2, sizeof(double)));
    CHECK(ckpt->mem_protect(3, serializer(empty), deserializer(empty)));
    CHECK(ckpt->mem_protect(4, serializer(own), deserializer(own), "one"));
    CHECK(ckpt->register_observer(VELOC_OBSERVE_CKPT_END, observer) && !ckpt->register_observer(VELOC_OBSERVE_CKPT_END, observer));
    CHECK(ckpt->restart_test("one", 0) == VELOC_FAILURE);
    CHECK(ckpt->checkpoint("one", 1) && told == "one1");
    CHECK(ckpt->checkpoint_wait() && ckpt->checkpoint_finished());

    // A data structure may grow, and a checkpoint may include a file.
    map[2] = 3;
    k = 20 + rank;
    CHECK(ckpt->checkpoint_begin("one", 2));
    CHECK(ckpt->checkpoint_mem(VELOC_CKPT_SOME, {0, 1}) && ckpt->checkpoint_mem(VELOC_CKPT_REST, {0, 1}));
    map.clear();  // the call has saved the data already
    std::ofstream(ckpt->route_file("routed")) << "routed " << rank;
    CHECK(ckpt->checkpoint_end(true) && told == "one2");
    CHECK(ckpt->checkpoint_wait());
    empty[1] = 1;

    // The same process restores the data, first each rank alone and then all ranks together.
    k = 0;
    CHECK(ckpt->restart_test("one", 0) == 2 && ckpt->restart_test("one", 1, rank) == 1);
    CHECK(ckpt->restart("one", 2));
    CHECK(k == 20 + rank && map.size() == 2 && map[1] == 2 + rank && map[2] == 3 && empty.empty() && own[5] == 6);
    CHECK(ckpt->restart_begin("one", 1));
    CHECK(ckpt->recover_size(0) == sizeof k && ckpt->recover_size(1) > 0 && ckpt->recover_size(3) == 0 && ckpt->recover_size(77) == 0);
    CHECK(ckpt->recover_mem(VELOC_RECOVER_SOME, {1}) && map.size() == 1 && k == 20 + rank);
    CHECK(ckpt->recover_mem(VELOC_RECOVER_REST, {1}) && k == 7 + rank);
    CHECK(ckpt->restart_end(true));

    CHECK(ckpt->checkpoint("two", 1) && ckpt->checkpoint_wait());
    // The memory into which a data structure was serialized is gone afterwards, so a function of veloc.h has nothing to read.
    CHECK(VELOC_Checkpoint("mixed", 1) == VELOC_SUCCESS && ckpt->checkpoint_wait() && ckpt->restart_begin("mixed", 1));
    CHECK(ckpt->recover_size(0) == sizeof k && ckpt->recover_size(1) == 0 && ckpt->restart_end(true));
    // A checkpoint with another name does not have the region of `one`. A restart that could not load something does
    // not count, however it is ended.
    CHECK(ckpt->restart_begin("two", 1) && !ckpt->recover_mem(VELOC_RECOVER_SOME, {77}) && !ckpt->restart_end(true));
    CHECK(ckpt->restart_begin("two", 1) && ckpt->recover_size(4) == 0 && ckpt->recover_mem(VELOC_RECOVER_ALL, {}) && ckpt->restart_end(true));

    // One rank asks for another rank's checkpoint, cannot write, or cannot read: the call fails on all ranks.
    CHECK(!ckpt->restart("two", 1, rank == 0 ? 1 : -1));
    bool does_write = true, does_read = true;
    const auto write = [&](std::ostream &out) {
        if (!does_write) throw std::runtime_error("cannot write");
        out << 1;
    };
    CHECK(ckpt->mem_protect(5, write, [&](std::istream &) { return does_read; }));
    does_write = rank != 1;
    bool has_thrown = false;
    try {
        ckpt->checkpoint("three", 1);
    } catch (const std::runtime_error &) {
        has_thrown = true;
    }
    // The rank that threw knows of the failure; the other one hears of it here.
    CHECK(has_thrown == (rank == 1) && ckpt->checkpoint_wait() == (rank == 1));
    does_write = true;
    CHECK(ckpt->checkpoint("three", 2) && ckpt->checkpoint_wait());
    CHECK(ckpt->restart("three", 2));
    does_read = rank != 1;
    CHECK(!ckpt->restart("three", 2));
    CHECK(ckpt->mem_unprotect(5) && !ckpt->mem_unprotect(5) && ckpt->mem_unprotect(2));
    CHECK(ckpt->checkpoint("three", 3) && ckpt->checkpoint_wait() && ckpt->cleanup("three"));
    CHECK(ckpt->restart_test("three", 0) == VELOC_FAILURE);
    ckpt->mem_clear("one");
    ckpt->mem_clear();
    CHECK(!ckpt->mem_unprotect(0) && !ckpt->mem_unprotect(4, "one"));
}

static void second(veloc::client_t *ckpt) {
    int k = 0;
    double few[2] = {0, 0};
    std::map<int, int> map, empty, own;
    ckpt->mem_protect(0, &k, 1, sizeof(k));
    ckpt->mem_protect(1, serializer(map), deserializer(map));
    ckpt->mem_protect(2, few, 2, sizeof(double));
    ckpt->mem_protect(3, serializer(empty), deserializer(empty));
    ckpt->mem_protect(4, serializer(own), deserializer(own), "one");
    const int version = ckpt->restart_test("one", 0);
    CHECK(version == 2 && ckpt->restart_begin("one", version));
    std::string word;
    int number = -1;
    std::ifstream(ckpt->route_file("routed")) >> word >> number;
    CHECK(ckpt->recover_mem(VELOC_RECOVER_ALL, {}) && ckpt->restart_end(true));
    CHECK(word == "routed" && number == rank);
    CHECK(k == 20 + rank && map.size() == 2 && map[2] == 3 && own[5] == 6 && few[1] == 2);
}

int main(int argc, char **argv) {
    int granted;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    bool is_refused = false;
    try {
        veloc::get_client(MPI_COMM_WORLD, "/there/is/no/such/file");
    } catch (const std::exception &) {
        is_refused = true;
    }
    CHECK(is_refused);
    veloc::client_t *ckpt = veloc::get_client(MPI_COMM_WORLD, argv[1]);
    CHECK(ckpt == veloc::get_client(MPI_COMM_WORLD, argv[1]));
    if (std::atoi(argv[2]) == 1) first(ckpt);
    else second(ckpt);
    delete ckpt;

    // Each rank now has a client of its own.
    const unsigned int id = 10 + static_cast<unsigned int>(rank);
    ckpt = veloc::get_client(id, argv[1]);
    int k = rank;
    ckpt->mem_protect(0, &k, 1, sizeof(k));
    CHECK(ckpt->checkpoint("alone", 1) && ckpt->checkpoint_wait());
    k = -1;
    CHECK(ckpt->restart("alone", 1, static_cast<int>(id)) && k == rank);
    delete ckpt;
    MPI_Finalize();
    if (rank == 0) std::cout << "class: done" << std::endl;
    return 0;
}
