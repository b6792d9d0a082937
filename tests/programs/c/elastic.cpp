// Boxes and rows through include/bivouac.hpp: arrays that are cut anew, rows that are dealt, and mistakes of one rank that all ranks hear
// of. tests/mpi_c.rs runs it on 2 and more ranks; rank 0 prints `ok` at the end.
#include <bivouac.hpp>
#include <fstream>
#include <map>

#include <cstdio>
#include <cstdlib>

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

bivouac::options group(const std::string &name) {
    bivouac::options given;
    given.settings = {"job.group=" + name};
    return given;
}

struct particle {
    std::uint64_t id;
    double at[3];
};

}  // namespace

template <>
struct bivouac::as_bytes<particle> : std::true_type {};

namespace {

// Rows of an array, surrounded by ghost cells, and the same array in columns.
struct bands {
    static constexpr std::uint64_t NY = 13, NX = 7;
    std::uint64_t first, count;
    std::vector<double> cells;

    explicit bands(std::uint64_t of) : first(of * static_cast<std::uint64_t>(rank) / static_cast<std::uint64_t>(ranks)), count(0) {
        count = of * (static_cast<std::uint64_t>(rank) + 1) / static_cast<std::uint64_t>(ranks) - first;
    }

    std::size_t place(std::uint64_t row, std::uint64_t x) const { return static_cast<std::size_t>((row + 1) * (NX + 3) + x + 1); }
    void fill(double of) { cells.assign(static_cast<std::size_t>((count + 2) * (NX + 3)), of); }
    void set() {
        for (std::uint64_t row = 0; row < count; row++) {
            for (std::uint64_t x = 0; x < NX; x++) cells[place(row, x)] = static_cast<double>(100 * (first + row) + x);
        }
    }
};

void numbers_are_dealt_anew() {
    bivouac::session session(MPI_COMM_WORLD, group("numbers"));
    std::vector<std::uint64_t> numbers;
    std::vector<double> pressure;
    const auto deal = [&](std::uint64_t seed) {
        numbers.clear();
        for (std::uint64_t number = 501; number-- > 0;) {
            if (number * seed % 13 % static_cast<std::uint64_t>(ranks) == static_cast<std::uint64_t>(rank)) numbers.push_back(number);
        }
        pressure.assign(numbers.size(), 0);
        return session.ids(501, numbers);
    };
    session.protect_on("pressure", deal(7), pressure);
    for (std::size_t at = 0; at < numbers.size(); at++) pressure[at] = 0.5 * static_cast<double>(numbers[at]);
    session.checkpoint("mesh", 1).wait(bivouac::level::process);
    session.protect_on("pressure", deal(5), pressure);
    CHECK(session.restore("mesh"));
    for (std::size_t at = 0; at < numbers.size(); at++) CHECK(pressure[at] == 0.5 * static_cast<double>(numbers[at]));
    CHECK(says(error_of([&] { session.ids(501, {0}); }), "number 0 is in the lists of both rank 0"));
}

void boxes_are_cut_anew() {
    bivouac::session session(MPI_COMM_WORLD, group("boxes"));
    bands mine(bands::NY), columns(bands::NX);
    mine.fill(-1);
    mine.set();
    const bivouac::extents shape{bands::NY, bands::NX};
    const bivouac::boxes whole = session.boxes(shape, {{{mine.first, 0}, {mine.count, bands::NX}}}, {1, 1}, {1, 2});
    // The last rank has one row, and the others have no part of this array.
    const bool is_last = rank == ranks - 1;
    std::vector<std::int16_t> row(is_last ? 4 : 0, 3);
    const std::vector<bivouac::box> none, one{{{0, 0}, {1, 4}}};
    const bivouac::boxes last = session.boxes({1, 4}, is_last ? one : none);
    CHECK(whole.count() == 1 && last.count() == (is_last ? 1u : 0u));
    std::uint64_t step = 4;
    int seed = rank, scratch[2] = {rank, 7};
    session.protect_on("cells", whole, mine.cells);
    session.protect_on("row", last, row);
    session.protect_shared("step", step);
    session.protect_per_rank("seed", seed, bivouac::on_resize::ask);
    session.protect_per_rank("scratch", scratch, 2, bivouac::on_resize::drop);
    session.prepare();
    session.checkpoint("boxes", 4).wait(bivouac::level::process);
    mine.fill(-1);
    row.assign(row.size(), 0);
    step = 0, seed = scratch[0] = -1;
    const bivouac::restored restored = session.restore("boxes");
    CHECK(restored.ranks == ranks && step == 4 && seed == rank && scratch[0] == rank);
    CHECK(row == std::vector<std::int16_t>(row.size(), 3));
    bands expected(bands::NY);
    expected.fill(-1);
    expected.set();
    CHECK(mine.cells == expected.cells);

    // The array is loaded in columns, which each rank has in two pieces of memory.
    const std::uint64_t half = bands::NY / 2, rest = bands::NY - half;
    const bivouac::box upper{{0, columns.first}, {half, columns.count}}, lower{{half, columns.first}, {rest, columns.count}};
    const bivouac::boxes cut = session.boxes(shape, {upper, lower});
    std::vector<double> above(static_cast<std::size_t>(half * columns.count)), below(static_cast<std::size_t>(rest * columns.count));
    std::vector<bivouac::view<double>> both{{above.data(), above.size()}, {below.data(), below.size()}};
    session.protect_boxes_on("cells", cut, both);
    CHECK(session.restore("boxes"));
    for (std::uint64_t y = 0; y < bands::NY; y++) {
        for (std::uint64_t x = 0; x < columns.count; x++) {
            const std::vector<double> &from = y < half ? above : below;
            const std::uint64_t place = (y < half ? y : y - half) * columns.count + x;
            CHECK(from[static_cast<std::size_t>(place)] == static_cast<double>(100 * y + columns.first + x));
        }
    }
    // The memory is too short on one rank, and the boxes are invalid or do not match on one.
    both[1].size = rank == 1 ? 1 : both[1].size;
    session.protect_boxes_on("cells", cut, both);
    CHECK(error_of([&] { session.restore("boxes"); }).status() == BVK_ERR_RESTART);
    CHECK(says(error_of([&] { session.protect_on("row", bivouac::boxes(), row); }), "session::boxes"));
    const bivouac::extents ring(rank == 1 ? 1 : 2, 1);
    const bivouac::error unfit = error_of([&] { session.boxes(shape, {{{0, 0}, {1, 1}}}, ring); });
    CHECK(rank == 1 ? unfit.status() == BVK_ERR_ARGUMENT : unfit.status() == BVK_ERR_DISAGREED && says(unfit, "rank 1"));
    CHECK(says(error_of([&] { session.boxes(shape, {{{0, 0}, {bands::NY, bands::NX}}}); }), "belong both to box 0 of rank"));
    session.unprotect_all();
    session.close();
}

int owner_of(std::uint64_t id) { return static_cast<int>(id * 7 % 11) % ranks; }

template <typename Before>
void bounds_are_told(bivouac::session &session, Before rows_before) {
    bvk_restart_t restart = nullptr;
    bvk_parts_t parts = nullptr;
    CHECK(bvk_begin_restore(session.handle(), "rows", BVK_NEWEST, &restart) == BVK_OK);
    CHECK(bvk_parts(restart, "rows", 0, ranks, &parts) == BVK_OK);
    for (int other = 0; other < ranks; other++) {
        bvk_part part = BVK_PART_INIT;
        CHECK(bvk_part_of(parts, other, &part) == BVK_OK && part.dimensions == 1);
        CHECK(part.low[0] == static_cast<double>(rows_before(other)) && part.high[0] == static_cast<double>(rows_before(other + 1)));
    }
    // The boxes' handle is closed with the restart, whatever the restart returns.
    while (bvk_end_restore(&restart, 1, nullptr) == BVK_AGAIN) {
    }
}

void rows_are_dealt() {
    bivouac::session session(MPI_COMM_WORLD, group("rows"));
    // Rank r has 50 r rows, so that rank 0 has none.
    const auto rows_before = [](int other) { return static_cast<std::uint64_t>(25 * other * (other - 1)); };
    const std::uint64_t before = rows_before(rank), count = rows_before(rank + 1) - before, total = rows_before(ranks);
    std::vector<std::uint64_t> id;
    std::vector<float> v;
    std::vector<particle> all;
    for (std::uint64_t at = before; at < before + count; at++) {
        id.push_back(at);
        v.insert(v.end(), {static_cast<float>(at), 1.0f, 2.0f});
        all.push_back(particle{at, {static_cast<double>(at), 0, 0}});
    }
    const std::vector<std::uint64_t> mine = id;
    std::uint64_t step = 1;
    bivouac::rows columns;
    std::vector<double> low{static_cast<double>(before)}, high{static_cast<double>(before + count)};
    columns.column("id", id).column("v", v, 3).column("all", all).bounds(low, high);
    session.protect_rows("rows", columns, bivouac::deal::own());
    session.protect_shared("step", step);
    session.prepare();
    session.checkpoint("rows", 1).wait(bivouac::level::process);
    const auto restores = [&](bivouac::deal how) {
        session.protect_rows("rows", columns, std::move(how));
        id.assign(3, 0);
        v.clear();
        all.clear();
        CHECK(session.restore("rows"));
        CHECK(v.size() == 3 * id.size() && all.size() == id.size());
        for (std::size_t at = 0; at < id.size(); at++) {
            CHECK(v[3 * at] == static_cast<float>(id[at]) && all[at].id == id[at] && (at == 0 || id[at] > id[at - 1]));
        }
    };
    restores(bivouac::deal::own());
    CHECK(id == mine);
    restores(bivouac::deal::even());
    const auto even_before = [total](int other) { return total * static_cast<std::uint64_t>(other) / static_cast<std::uint64_t>(ranks); };
    CHECK(id.size() == even_before(rank + 1) - even_before(rank));
    // The rows are loaded in the other direction, and then one row on all ranks.
    const std::uint64_t first = even_before(ranks - 1 - rank);
    restores(bivouac::deal::range(first, even_before(ranks - rank) - first));
    CHECK(id.size() == even_before(ranks - rank) - first && (id.empty() || id[0] == first));
    restores(bivouac::deal::range(total - 1, 1));
    CHECK(id.size() == 1 && id[0] == total - 1);
    session.protect_rows("rows", columns, bivouac::deal::range(rank == 1 ? total : 0, 1));
    CHECK(error_of([&] { session.restore("rows"); }).status() == BVK_ERR_RESTART);
    bounds_are_told(session, rows_before);
    std::size_t wanted = 0;
    for (std::uint64_t at = 0; at < total; at++) wanted += owner_of(at) == rank ? 1 : 0;
    for (int by = 0; by < 3; by++) {
        if (by == 0) restores(bivouac::deal::by<std::uint64_t>("id", [](const std::uint64_t *row) { return owner_of(*row); }));
        if (by == 1) restores(bivouac::deal::by<float>("v", [](const float *row) { return owner_of(static_cast<std::uint64_t>(row[0])); }, 3));
        if (by == 2) restores(bivouac::deal::by<particle>("all", [](const particle *row) { return owner_of(row->id); }));
        CHECK(id.size() == wanted);
        for (const std::uint64_t one : id) CHECK(owner_of(one) == rank);
    }
    // A function throws on the rank that reads the last rank's rows: that rank gets its own exception, and the others get an error.
    session.protect_rows("rows", columns, bivouac::deal::by<std::uint64_t>("id", [](const std::uint64_t *row) -> int {
        if (rank == ranks - 1 && *row > 0) throw std::domain_error("no owner");
        return 0;
    }));
    bool is_own = false;
    try {
        session.restore("rows");
        CHECK(false);
    } catch (const std::domain_error &) {
        is_own = true;
    } catch (const bivouac::error &error) {
        CHECK(error.status() == BVK_ERR_RESTART);
    }
    CHECK(is_own == (rank == ranks - 1));
    // The columns have different lengths: this rank has no checkpoint, and the others hear of it.
    session.protect_rows("rows", columns, bivouac::deal::even());
    CHECK(session.restore("rows"));
    high.push_back(0);
    CHECK(says(error_of([&] { session.checkpoint("rows", 2).wait(bivouac::level::process); }), "bounds of 1 and of 2 dimensions"));
    high.pop_back();
    if (rank == 1) v.pop_back();
    const bivouac::error uneven = error_of([&] { session.checkpoint("rows", 2).wait(bivouac::level::process); });
    CHECK(rank == 1 ? uneven.status() == BVK_ERR_ARGUMENT && says(uneven, "column \"v\" has") : uneven.status() == BVK_ERR_NOT_COMMITTED);
    CHECK(session.restore("rows").version == 1);
    session.close();
}

}  // namespace

// Functions write and read files, and one file, which the second rank writes, grows while checkpoints are taken.
void files_come_back_and_companions_agree() {
    bivouac::session session(MPI_COMM_WORLD, group("files"));
    int written = 0, read = 0, step = 0;
    session.protect("step", step);
    session.protect_file(
        "dump", [&](const std::string &path) { std::ofstream(path) << "step " << step << " of rank " << rank, written++; },
        [&](const std::string &path) {
            std::string word;
            int of = -1, found = -1;
            std::ifstream(path) >> word >> found >> word >> word >> of;
            CHECK(of == rank && found == 2);
            read++;
        });
    const std::string own = rank == 1 ? "energies.csv" : "";
    session.companion("files", own);
    for (step = 1; step <= 3; step++) {
        if (!own.empty()) std::ofstream(session.companion_path("files", own), std::ios::app) << step << '\n';
        if (step < 3) session.checkpoint("files", static_cast<std::uint64_t>(step)).wait(bivouac::level::process);
    }
    CHECK(session.restore("files") && step == 2 && written == 2 && read == 1);
    if (!own.empty()) {
        std::ifstream file(own);
        CHECK(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()) == "1\n2\n");
        std::remove(own.c_str());
    }
}

// Functions write and read streams of any length; each rank has its own.
void streams_are_read_as_they_were_written() {
    bivouac::session session(MPI_COMM_WORLD, group("streams"));
    std::map<std::string, std::vector<int>> tree, back;
    for (int at = 0; at < 2000 + rank; at++) tree["leaf " + std::to_string(at)] = std::vector<int>(static_cast<std::size_t>(at % 50), at);
    std::vector<char> image(5000000 + static_cast<std::size_t>(rank));
    for (std::size_t at = 0; at < image.size(); at++) image[at] = static_cast<char>(at * 7 + static_cast<std::size_t>(rank));
    int step = 3;
    bool fails = false;
    session.protect("step", step);
    session.protect_stream(
        "tree",
        [&](std::ostream &out) {
            for (const auto &leaf : tree) {
                out << leaf.first.size() << ' ' << leaf.first << ' ' << leaf.second.size();
                for (int number : leaf.second) out << ' ' << number;
                out << '\n';
            }
            out.write(image.data(), static_cast<std::streamsize>(image.size()));
        },
        [&](std::istream &in) {
            if (fails) throw std::domain_error("no tree");
            back.clear();
            for (int at = 0; at < 2000 + rank; at++) {
                std::size_t length = 0, count = 0;
                in >> length;
                in.get();
                std::string name(length, ' ');
                in.read(&name[0], static_cast<std::streamsize>(length));
                in >> count;
                std::vector<int> &numbers = back[name];
                numbers.resize(count);
                for (int &number : numbers) in >> number;
                in.get();
            }
            std::vector<char> found(image.size());
            in.read(found.data(), static_cast<std::streamsize>(found.size()));
            CHECK(found == image && in.get() == std::istream::traits_type::eof());
        });
    for (std::uint64_t version = 1; version <= 2; version++) session.checkpoint("streams", version).wait(bivouac::level::process);
    CHECK(session.restore("streams") && back == tree);
    // The application rejects the newest version.
    step = 0;
    int asked = 0;
    const auto check = [&] { return rank == 0 && asked++ == 0 ? std::string("not a number") : std::string(); };
    CHECK(session.restore("streams", check).version == 1 && step == 3);
    // An exception on one rank ends the restart on all ranks.
    fails = rank == 0;
    bool has_thrown = false;
    try {
        session.restore("streams");
    } catch (const std::domain_error &) {
        has_thrown = rank == 0;
    } catch (const bivouac::error &error) {
        has_thrown = rank != 0 && error.status() == BVK_ERR_RESTART;
    }
    CHECK(has_thrown);
    session.close();
}

int main(int argc, char **argv) {
    int granted;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks >= 2);
    boxes_are_cut_anew();
    numbers_are_dealt_anew();
    rows_are_dealt();
    streams_are_read_as_they_were_written();
    files_come_back_and_companions_agree();
    MPI_Finalize();
    if (rank == 0) std::puts("ok");
    return 0;
}
