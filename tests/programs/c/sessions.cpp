// include/bivouac.hpp on several ranks: protected data changes its length and its place between checkpoints, and all ranks hear of one
// rank's mistakes. tests/mpi_c.rs runs the program, and also compiles it with WRONG set to code that must not compile.
#include <bivouac.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int rank, ranks;

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);        \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                      \
        }                                                                                      \
    } while (0)

// The error with which a call ends.
template <typename Call>
bivouac::error error_of(Call call) {
    try {
        call();
    } catch (const bivouac::error &error) {
        return error;
    }
    return bivouac::error(BVK_OK, "no error");
}

bool says(const bivouac::error &error, const std::string &part) {
    return std::string(error.what()).find(part) != std::string::npos;
}

struct particle {
    std::uint64_t id;
    double at[3];
};
struct unknown {
    int number;
};
enum class colour : std::uint16_t { red, green };

}  // namespace

template <>
struct bivouac::as_bytes<particle> : std::true_type {};

namespace {

template <typename T>
constexpr int kind() {
    return bivouac::detail::element<T>::kind;
}
static_assert(kind<bool>() == BVK_U8 && kind<char>() == BVK_U8 && kind<unsigned char>() == BVK_U8, "bytes");
static_assert(kind<std::int8_t>() == BVK_I8 && kind<std::int16_t>() == BVK_I16 && kind<std::uint16_t>() == BVK_U16, "few bits");
static_assert(kind<int>() == BVK_I32 && kind<std::uint32_t>() == BVK_U32 && kind<std::int64_t>() == BVK_I64, "integers");
static_assert(kind<std::size_t>() == BVK_U64 && kind<long long>() == BVK_I64 && kind<unsigned long>() == BVK_U64, "long ones");
static_assert(kind<float>() == BVK_F32 && kind<double>() == BVK_F64 && kind<colour>() == BVK_U16, "others");
static_assert(kind<std::complex<double>>() == -16 && kind<std::array<float, 3>>() == -12 && kind<int[5]>() == -20, "composed");
static_assert(kind<particle>() == -32, "a structure");
static_assert(std::is_nothrow_move_constructible<bivouac::session>::value && !std::is_copy_constructible<bivouac::session>::value, "");
static_assert(std::is_nothrow_move_assignable<bivouac::pending>::value && !std::is_copy_assignable<bivouac::pending>::value, "");
static_assert(std::is_nothrow_destructible<bivouac::session>::value, "destructors never throw");

// Code that must not compile, each with one of the library's messages.
#ifdef WRONG
void wrong(bivouac::session &session) {
#if WRONG == 1
    std::vector<bool> flags;
    session.protect("flags", flags);
#elif WRONG == 2
    unknown one;
    session.protect("one", one);
#elif WRONG == 3
    double *pointer = nullptr;
    session.protect("pointer", pointer);
#elif WRONG == 4
    const std::array<double, 2> fixed = {};
    session.protect("fixed", fixed);
#elif WRONG == 5
    std::vector<std::string> words;
    session.protect("words", words);
#endif
}
#endif

// The state of a simulation whose arrays change their lengths.
struct state {
    std::uint64_t step = 0;
    std::vector<double> x;
    std::vector<particle> particles;
    std::vector<std::complex<float>> empty;
    std::array<int, 3> counts = {};
    char word[8] = {};
    std::unique_ptr<float[]> raw{new float[4]()};

    void protect(bivouac::session &session) {
        session.protect("step", step);
        session.protect("x", x);
        session.protect("particles", particles);
        session.protect("empty", empty);
        session.protect("counts", counts);
        session.protect("word", word);
        session.protect("raw", raw.get(), 4);
    }

    // The lengths and places differ from those before, on each rank and in each step.
    void become(std::uint64_t now) {
        step = now;
        const std::size_t length = 1000 * (now % 3 + 1) + static_cast<std::size_t>(rank);
        std::vector<double>(length, static_cast<double>(now) + rank / 16.0).swap(x);
        particles.clear();
        particles.shrink_to_fit();
        for (std::size_t at = 0; at < now + static_cast<std::size_t>(rank); at++) {
            particles.push_back(particle{at, {static_cast<double>(now), 0, 0}});
        }
        counts = {{static_cast<int>(now), rank, 3}};
        std::snprintf(word, sizeof word, "s%d", static_cast<int>(now));
        for (int at = 0; at < 4; at++) raw[static_cast<std::size_t>(at)] = static_cast<float>(now);
    }

    bool is(std::uint64_t expected) const {
        state other;
        other.become(expected);
        return step == expected && x == other.x && particles.size() == other.particles.size() &&
               (particles.empty() || std::memcmp(particles.data(), other.particles.data(), 32 * particles.size()) == 0) &&
               counts == other.counts && std::strcmp(word, other.word) == 0 && empty.empty() && raw[3] == other.raw[3];
    }
};

bivouac::options settings(std::vector<std::string> list) {
    bivouac::options given;
    given.settings = std::move(list);
    return given;
}

void openings() {
    const bivouac::error wrong = error_of([] { bivouac::session session(MPI_COMM_WORLD, settings({"global.keep_lsat=3"})); });
    CHECK(wrong.status() == BVK_ERR_OPEN && says(wrong, "did you mean global.keep_last?"));
    CHECK(!std::strcmp(wrong.name(), "BVK_ERR_OPEN"));
}

void lengths_change() {
    bivouac::session first(MPI_COMM_WORLD, settings({"interval.steps=2", "global.keep_last=10"}));
    bivouac::session session(std::move(first));
    CHECK(first.handle() == nullptr);
    state now;
    now.protect(session);
    CHECK(!session.restore("run"));
    now.become(1);
    session.prepare();
    std::vector<bivouac::pending> pending;
    for (std::uint64_t step = 1; step <= 5; step++) {
        now.become(step);
        CHECK(session.should_checkpoint() == (step % 2 == 0));
        pending.push_back(session.checkpoint("run", step));
    }
    CHECK(pending.back().wait(bivouac::level::process) >= bivouac::level::process);
    CHECK(pending.back().wait() == bivouac::level::system);
    CHECK(pending.back().reached() == bivouac::level::system);
    // The local tier may end after the global one.
    while (!pending.back().finished()) continue;
    CHECK(!session.should_exit());
    now.become(77);
    const bivouac::restored third = session.restore("run", 3);
    CHECK(third && third.version == 3 && third.bytes > 0 && third.level >= bivouac::level::process && now.is(3));
    bool is_told = false;
    for (const bivouac::report &report : session.reports()) {
        CHECK(report.name == "run" && report.verdict == bivouac::verdict::committed && report.reason.empty());
        is_told = is_told || (report.version == 5 && report.level == bivouac::level::system);
    }
    CHECK(is_told);
    const bivouac::error unknown_version = error_of([&] { session.restore("run", 99); });
    CHECK(unknown_version.status() == BVK_ERR_RESTART && says(unknown_version, "99"));
    session.close();
    CHECK(error_of([&] { session.checkpoint("run", 6); }).status() == BVK_ERR_HANDLE);
}

void empty_vectors_are_filled() {
    bivouac::session session(MPI_COMM_WORLD);
    state now;
    now.protect(session);
    CHECK(now.x.empty());
    if (auto restored = session.restore("run")) CHECK(restored.version == 5);
    CHECK(now.is(5));
    // Unprotecting an unknown name is an argument error.
    const bivouac::error missing = error_of([&] { session.unprotect("nobody"); });
    CHECK(missing.status() == BVK_ERR_ARGUMENT && says(missing, "nobody"));

    // One rank protects another type than was saved: all ranks get an error, which names the region.
    std::vector<float> other;
    if (rank == 1) session.protect("x", other);
    const bivouac::error wrong = error_of([&] { session.restore("run"); });
    CHECK(wrong.status() == BVK_ERR_RESTART && says(wrong, "rank 1") && says(wrong, "\"x\"") && says(wrong, "f64") && says(wrong, "f32"));
    now.protect(session);
    // The checkpoint does not have this region.
    int more = 0;
    session.protect("more", more);
    const bivouac::error absent = error_of([&] { session.restore("run"); });
    CHECK(absent.status() == BVK_ERR_RESTART && says(absent, "\"more\""));
    session.unprotect("more");
    CHECK(session.restore("run", 4) && now.is(4));
    session.unprotect_all();
    CHECK(session.restore("run"));
}

void one_rank_throws() {
    bivouac::session session(MPI_COMM_WORLD, settings({"job.group=thrown"}));
    std::vector<int> data(10, rank);
    bool does_throw = false;
    int thrown_so_far = 0;
    session.protect_view("view", [&] {
        if (does_throw) {
            thrown_so_far++;
            throw std::runtime_error("no data");
        }
        return bivouac::view<int>{data.data(), data.size()};
    });
    const double begun = MPI_Wtime();
    session.checkpoint("thrown", 1).wait();
    // The exception is thrown between begin and capture: the others hear which rank threw it.
    does_throw = rank == 1;
    std::string thrown;
    try {
        const bivouac::pending pending = session.checkpoint("thrown", 2);
        CHECK(rank != 1);
        const bivouac::error refused = error_of([&] { pending.wait(bivouac::level::process); });
        CHECK(refused.status() == BVK_ERR_NOT_COMMITTED && says(refused, "rank 1"));
    } catch (const std::runtime_error &error) {
        thrown = error.what();
    }
    CHECK(thrown == (rank == 1 ? "no data" : ""));
    // The exception is thrown inside a restart: the rank that threw it gets it, the others get an error, and no other
    // copy or version is tried.
    thrown.clear();
    thrown_so_far = 0;
    try {
        session.restore("thrown");
        CHECK(false);
    } catch (const bivouac::error &error) {
        CHECK(rank != 1 && error.status() == BVK_ERR_RESTART);
    } catch (const std::runtime_error &error) {
        thrown = error.what();
    }
    CHECK(thrown == (rank == 1 ? "no data" : "") && thrown_so_far == (rank == 1 ? 1 : 0));
    // One rank has a region that cannot be saved.
    does_throw = false;
    if (rank == 1) session.protect("", data);
    const bivouac::error bad = error_of([&] { session.checkpoint("thrown", 3); });
    CHECK(bad.status() == (rank == 1 ? BVK_ERR_REGION : BVK_OK));
    if (rank == 1) session.unprotect("");
    // All ranks then continue together.
    data.assign(20, 7);
    session.checkpoint("thrown", 4).wait();
    data.assign(20, 0);
    CHECK(session.restore("thrown").version == 4 && data == std::vector<int>(20, 7));
    CHECK(MPI_Wtime() - begun < 30);
}

void a_session_is_left_by_an_exception() {
    bivouac::session kept(MPI_COMM_WORLD, settings({"job.group=kept"}));
    bvk_session_t left = nullptr;
    try {
        bivouac::session session(MPI_COMM_WORLD, settings({"job.group=left"}));
        left = session.handle();
        throw std::runtime_error("on the way out");
    } catch (const std::runtime_error &) {
    }
    // The session was not closed, so nobody has waited for ranks that may be elsewhere.
    std::uint64_t generation = 0;
    CHECK(bvk_generation(left, &generation) == BVK_OK && bvk_close(&left) == BVK_OK);
    left = kept.handle();
    kept = bivouac::session(MPI_COMM_WORLD, settings({"job.group=other"}));
    CHECK(bvk_generation(left, &generation) == BVK_ERR_HANDLE);
    CHECK(bvk_generation(kept.handle(), &generation) == BVK_OK);
}

// A directory that cannot be used: a report without a name says so, and so does a wait for the level that cannot be reached.
void a_tier_is_off() {
    bivouac::session session(MPI_COMM_WORLD, settings({"job.group=off", "global.directory=/proc/nope"}));
    const std::vector<bivouac::report> reports = session.reports();
    CHECK(reports.size() == 1 && reports[0].name.empty() && reports[0].level == bivouac::level::system);
    CHECK(reports[0].verdict == bivouac::verdict::abandoned && reports[0].reason.find("/proc/nope") != std::string::npos);
    double number = 1;
    session.protect("number", number);
    const bivouac::pending pending = session.checkpoint("off", 1);
    const bivouac::error off = error_of([&] { pending.wait(); });
    CHECK(off.status() == BVK_ERR_NOT_COMMITTED && says(off, "/proc/nope"));
    session.close();
}

#if __cplusplus >= 202002L
void spans() {
    bivouac::session session(MPI_COMM_WORLD, settings({"job.group=spans"}));
    std::vector<double> data(5, 1.5);
    std::span<double> whole(data);
    session.protect("whole", whole);
    session.protect("part", std::span<double, 2>(data.data(), 2));
    session.checkpoint("spans", 1).wait();
    data.assign(5, 0);
    CHECK(session.restore("spans") && data == std::vector<double>(5, 1.5));
}
#else
void spans() {}
#endif

}  // namespace

int main(int argc, char **argv) {
    int granted;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks >= 2);
    openings();
    lengths_change();
    empty_vectors_are_filled();
    one_rank_throws();
    a_session_is_left_by_an_exception();
    a_tier_is_off();
    spans();
    MPI_Finalize();
    if (rank == 0) std::puts("ok");
    return 0;
}
