// Bivouac for C++11 and later: what bivouac.h offers, as objects. docs/C.md shows how it is used.
//
//   bivouac::session session(MPI_COMM_WORLD);
//   session.protect("x", x);                                  // a std::vector<double>, which may grow, shrink and move
//   session.protect("step", step);
//   session.restore("run");                                   // x gets the length that it had
//   for (; step < steps;) {
//       /* compute */
//       step++;
//       if (session.should_checkpoint()) session.checkpoint("run", step);
//   }
//   session.close();
//
// For restarts on a different number of ranks, boxes() says which part of an array this rank has; protect_on(), protect_shared()
// and protect_per_rank() take the place of protect(); and protect_rows() is for particles and other items whose number changes.
// docs/ELASTIC.md has more.
//
// When a checkpoint is taken or restored, each protected object is inspected, so that a vector is found where it is at that moment,
// with the length that it has. Objects are referenced, not copied: unprotect an object before its lifetime ends, or end the session
// first.
//
// Errors are thrown as bivouac::error, which contains a status as defined in bivouac.h and the text of the error. Functions
// marked Collective are called by all ranks in the same order. A rank that throws inside such a function has told the other
// ranks, and none of them waits for it.
#ifndef BIVOUAC_HPP
#define BIVOUAC_HPP

#include <bivouac.h>

#include <array>
#include <climits>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace bivouac {

// How safe a checkpoint is. Each level names what the checkpoint is safe from.
enum class level : int {
    captured = BVK_LEVEL_CAPTURED,        // from the application's next write
    process = BVK_LEVEL_PROCESS,          // from killed processes
    node_reboot = BVK_LEVEL_NODE_REBOOT,  // from a reboot of the node
    node_loss = BVK_LEVEL_NODE_LOSS,      // from the loss of a node
    system = BVK_LEVEL_SYSTEM             // from the loss of all nodes
};

// As a version: the newest that all ranks can restore.
constexpr std::uint64_t newest = BVK_NEWEST;

// A call that failed. The session continues, unless the status is BVK_ERR_FAILED.
class error : public std::runtime_error {
public:
    error(int status, const std::string &text) : std::runtime_error(text), status_(status) {}

    // One of BVK_ERR_...
    int status() const noexcept { return status_; }

    // Its name, for example BVK_ERR_LOAD.
    const char *name() const noexcept { return bvk_status_name(status_); }

private:
    int status_;
};

// A structure of your own is saved and loaded as bytes if you declare that this makes sense (no pointers, no references):
//   template <> struct bivouac::as_bytes<particle> : std::true_type {};
template <typename T>
struct as_bytes : std::false_type {};

// Memory, as returned by a function given to session::protect_view.
template <typename T>
struct view {
    T *data;
    std::size_t size;
};

// What happens to a per-rank value on a different number of ranks.
enum class on_resize : int {
    refuse = BVK_RESIZE_REFUSE,  // the restart is refused, as with session::protect
    drop = BVK_RESIZE_DROP,      // the value stays unchanged, and the saved values are dropped
    ask = BVK_RESIZE_ASK         // the value stays unchanged; bvk_of_ranks gives the saved values
};

// What a restart does with a companion that is longer than the length that the restored checkpoint recorded.
enum class on_restart : int {
    truncate = BVK_RESTART_TRUNCATE,  // it is truncated to that length
    refuse = BVK_RESTART_REFUSE,      // the restart ends with an error on all ranks
    another = BVK_RESTART_ANOTHER     // the application continues in another file: session::companion_path
};

// A number for each dimension of an array, slowest dimension first.
using extents = std::vector<std::uint64_t>;

// A box of an array: its first element, counted from 0, and its extent.
struct box {
    extents origin;
    extents extent;
};

namespace detail {

inline int check(int status) {
    if (status < 0) throw error(status, bvk_error());
    return status;
}

// The element type of a C++ type. A structure, or a type that consists of several numbers, is a record with the size of that type.
template <typename T, typename Enable = void>
struct element {
    static_assert(as_bytes<T>::value,
                  "bivouac: only numbers, bool, characters, enumerations, std::complex and arrays of these can be protected. "
                  "Specialise bivouac::as_bytes for a structure of your own");
    static_assert(std::is_trivially_copyable<T>::value, "bivouac: a type that is saved as its bytes has to be trivially copyable");
    static_assert(sizeof(T) <= INT_MAX, "bivouac: an element has at most 2 GiB");
    static constexpr int kind = -static_cast<int>(sizeof(T));
};

constexpr int integer_kind(std::size_t bytes, bool is_signed) {
    return bytes == 1   ? (is_signed ? BVK_I8 : BVK_U8)
           : bytes == 2 ? (is_signed ? BVK_I16 : BVK_U16)
           : bytes == 4 ? (is_signed ? BVK_I32 : BVK_U32)
                        : (is_signed ? BVK_I64 : BVK_U64);
}

template <typename T>
struct element<T, typename std::enable_if<std::is_integral<T>::value>::type> {
    static_assert(sizeof(T) <= 8, "bivouac: integers have at most 64 bits");
    // bool and char are bytes without further meaning.
    static constexpr int kind =
        integer_kind(sizeof(T), std::is_signed<T>::value && !std::is_same<T, char>::value);
};

template <typename T>
struct element<T, typename std::enable_if<std::is_enum<T>::value>::type> : element<typename std::underlying_type<T>::type> {};

template <>
struct element<float> {
    static_assert(sizeof(float) == 4, "bivouac: float has 32 bits");
    static constexpr int kind = BVK_F32;
};

template <>
struct element<double> {
    static_assert(sizeof(double) == 8, "bivouac: double has 64 bits");
    static constexpr int kind = BVK_F64;
};

// Types that are composed of several elements are records, as in Bivouac's interfaces for Fortran and Rust.
template <typename T, std::size_t Bytes>
struct composed {
    static_assert(element<T>::kind != 0, "bivouac: arrays are of what can be protected itself");
    static_assert(Bytes > 0, "bivouac: there is nothing in this array");
    static_assert(Bytes <= INT_MAX, "bivouac: an array of fixed length has at most 2 GiB: protect it by pointer and count");
    static constexpr int kind = -static_cast<int>(Bytes);
};

template <typename T>
struct element<std::complex<T>> : composed<T, sizeof(std::complex<T>)> {};

template <typename T, std::size_t N>
struct element<std::array<T, N>> : composed<T, N * sizeof(T)> {};

template <typename T, std::size_t N>
struct element<T[N]> : composed<T, N * sizeof(T)> {};

// Where a region is now.
struct memory {
    void *data;
    std::uint64_t count;
    std::uint64_t bytes;
    int kind;
};

template <typename T>
memory memory_of(T *data, std::size_t count) {
    static_assert(!std::is_const<T>::value, "bivouac: what is protected is written to by a restart, and cannot be const");
    return memory{data, count, static_cast<std::uint64_t>(count) * sizeof(T), element<T>::kind};
}

// The room that a region takes in a checkpoint: the region starts on a page boundary, and the table has an entry for it.
inline std::uint64_t room_of(std::uint64_t bytes) { return (bytes + 4095) / 4096 * 4096 + 1024; }

// What is protected under a name.
class place {
public:
    place() = default;
    place(const place &) = delete;
    place &operator=(const place &) = delete;
    virtual ~place() = default;

    // Bytes that it takes in a checkpoint now.
    virtual std::uint64_t room() const = 0;

    virtual void save(bvk_checkpoint_t checkpoint, const std::string &name) const = 0;

    // False if the library has refused to load the region; the end of the restart reports the error.
    virtual bool load(bvk_restart_t restart, const std::string &name) = 0;
};

// Memory of this rank alone.
class region_place : public place {
public:
    virtual memory now() const = 0;

    // Resizes it to `count` elements if possible.
    virtual void resize(std::uint64_t) {}

    std::uint64_t room() const override { return room_of(now().bytes); }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        const memory where = now();
        check(bvk_save(checkpoint, name.c_str(), where.data, where.count, where.kind));
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        std::uint64_t count = 0;
        int kind = 0;
        // bvk_load refuses a region that is missing or has another type.
        const bool is_there = bvk_region_size(restart, name.c_str(), &count, &kind) == BVK_OK;
        if (is_there && kind == now().kind) resize(count);
        const memory where = now();
        return bvk_load(restart, name.c_str(), where.data, where.count, where.kind) == BVK_OK;
    }
};

template <typename Vector>
class vector_place : public region_place {
public:
    explicit vector_place(Vector &vector) : vector_(vector) {}

    memory now() const override { return memory_of(vector_.data(), vector_.size()); }
    void resize(std::uint64_t count) override { vector_.resize(static_cast<std::size_t>(count)); }

private:
    Vector &vector_;
};

class fixed_place : public region_place {
public:
    explicit fixed_place(const memory &where) : where_(where) {}

    memory now() const override { return where_; }

private:
    memory where_;
};

template <typename Look>
class view_place : public region_place {
public:
    explicit view_place(Look look) : look_(std::move(look)) {}

    memory now() const override {
        const auto found = look_();
        return memory_of(found.data, found.size);
    }

private:
    Look look_;
};

// A value that all ranks share.
class shared_place : public place {
public:
    explicit shared_place(region_place *where) : where_(where) {}

    std::uint64_t room() const override { return where_->room(); }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        const memory now = where_->now();
        check(bvk_save_shared(checkpoint, name.c_str(), now.data, now.count, now.kind));
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        const memory now = where_->now();
        return bvk_load_shared(restart, name.c_str(), now.data, now.count, now.kind) == BVK_OK;
    }

private:
    std::unique_ptr<region_place> where_;
};

// A value of this rank; the session has `ranks` ranks.
class own_place : public place {
public:
    own_place(region_place *where, on_resize becomes, int ranks) : where_(where), becomes_(becomes), ranks_(ranks) {}

    std::uint64_t room() const override { return where_->room(); }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        const memory now = where_->now();
        check(bvk_save_per_rank(checkpoint, name.c_str(), now.data, now.count, now.kind, static_cast<int>(becomes_)));
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        int saved = 0;
        if (bvk_saved_ranks(restart, &saved) != BVK_OK) return false;
        // On a different number of ranks, no saved value is this rank's.
        if (saved != ranks_) return true;
        const memory now = where_->now();
        return bvk_load_per_rank(restart, name.c_str(), now.data, now.count, now.kind) == BVK_OK;
    }

private:
    std::unique_ptr<region_place> where_;
    on_resize becomes_;
    int ranks_;
};

// Reference-counted boxes.
struct agreed_boxes {
    agreed_boxes() = default;
    agreed_boxes(const agreed_boxes &) = delete;
    agreed_boxes &operator=(const agreed_boxes &) = delete;
    ~agreed_boxes() { bvk_boxes_close(&handle); }

    bvk_boxes_t handle = nullptr;
    std::size_t count = 0;
};

// This rank's part of an array: the memory of each of its boxes.
class boxes_place : public place {
public:
    boxes_place(std::shared_ptr<const agreed_boxes> on, int kind) : on_(std::move(on)), kind_(kind) {}

    void add(region_place *where) {
        std::unique_ptr<region_place> owned(where);
        where_.push_back(std::move(owned));
    }

    std::uint64_t room() const override {
        std::uint64_t bytes = 0;
        for (const auto &one : where_) bytes += one->now().bytes;
        return room_of(bytes);
    }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        const lists now(*this);
        check(bvk_save_boxes_on(checkpoint, name.c_str(), on_->handle, now.data.size(), now.data.data(), now.elements.data(), kind_));
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        const lists now(*this);
        return bvk_load_boxes_on(restart, name.c_str(), on_->handle, now.data.size(), now.data.data(), now.elements.data(), kind_) ==
               BVK_OK;
    }

private:
    // The lists that bivouac.h takes.
    struct lists {
        explicit lists(const boxes_place &place) {
            for (const auto &one : place.where_) {
                const memory now = one->now();
                // A rank that owns no box has an empty vector, or none.
                if (place.on_->count == 0 && now.count == 0) continue;
                data.push_back(now.data);
                elements.push_back(now.count);
            }
        }
        std::vector<void *> data;
        std::vector<std::uint64_t> elements;
    };

    std::shared_ptr<const agreed_boxes> on_;
    int kind_;
    std::vector<std::unique_ptr<region_place>> where_;
};

// A column of rows: a vector, and how many of its elements a row has.
struct column {
    std::string name;
    std::shared_ptr<region_place> where;
    std::uint32_t width;
};

class rows_place;

// A function that says which rank gets a row; also the exception, if any, that this function threw.
struct owner_function {
    std::string column;
    int kind = 0;
    std::uint32_t width = 0;
    std::function<void(const void *values, std::size_t count, int *owners)> owners;
    std::exception_ptr thrown;

    // No exception may leave this function. After an exception, the rows get no rank, and loading fails on all ranks.
    static void call(const void *values, std::size_t count, int *owners, void *user) {
        owner_function &self = *static_cast<owner_function *>(user);
        try {
            if (!self.thrown) self.owners(values, count, owners);
        } catch (...) {
            self.thrown = std::current_exception();
            for (std::size_t at = 0; at < count; at++) owners[at] = -1;
        }
    }
};

// Bytes on their way into a region, through a separate buffer.
class writing_buffer : public std::streambuf {
public:
    explicit writing_buffer(bvk_checkpoint_t checkpoint) : checkpoint_(checkpoint), bytes_(1 << 20) {
        setp(bytes_.data(), bytes_.data() + bytes_.size());
    }

    // Writes what is left in the buffer. Throws if the region cannot be written.
    void finish() {
        send(pbase(), static_cast<std::size_t>(pptr() - pbase()));
        setp(bytes_.data(), bytes_.data() + bytes_.size());
        if (status_ != BVK_OK) throw error(status_, what_);
    }

protected:
    int_type overflow(int_type next) override {
        send(pbase(), static_cast<std::size_t>(pptr() - pbase()));
        setp(bytes_.data(), bytes_.data() + bytes_.size());
        if (status_ != BVK_OK) return traits_type::eof();
        return traits_type::eq_int_type(next, traits_type::eof()) ? traits_type::not_eof(next) : sputc(traits_type::to_char_type(next));
    }

    std::streamsize xsputn(const char *data, std::streamsize count) override {
        if (count < epptr() - pptr()) return std::streambuf::xsputn(data, count);
        // Long pieces bypass the buffer.
        send(pbase(), static_cast<std::size_t>(pptr() - pbase()));
        setp(bytes_.data(), bytes_.data() + bytes_.size());
        send(data, static_cast<std::size_t>(count));
        return status_ == BVK_OK ? count : 0;
    }

    int sync() override { return 0; }

private:
    void send(const char *data, std::size_t count) {
        if (status_ != BVK_OK || count == 0) return;
        status_ = bvk_stream_write(checkpoint_, data, count);
        if (status_ != BVK_OK) what_ = bvk_error();
    }

    bvk_checkpoint_t checkpoint_;
    std::vector<char> bytes_;
    int status_ = BVK_OK;
    std::string what_;
};

// The bytes of a region, through a C FILE.
class reading_buffer : public std::streambuf {
public:
    reading_buffer(bvk_restart_t restart, const std::string &name) : file_(bvk_fopen_saved(restart, name.c_str())), bytes_(1 << 16) {}
    reading_buffer(const reading_buffer &) = delete;
    reading_buffer &operator=(const reading_buffer &) = delete;
    ~reading_buffer() override {
        if (file_) std::fclose(file_);
    }

    bool is_open() const noexcept { return file_ != nullptr; }
    bool failed() const noexcept { return std::ferror(file_) != 0; }

protected:
    int_type underflow() override {
        const std::size_t count = std::fread(bytes_.data(), 1, bytes_.size(), file_);
        setg(bytes_.data(), bytes_.data(), bytes_.data() + count);
        return count == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
    }

private:
    std::FILE *file_;
    std::vector<char> bytes_;
};

// What functions of the application write and read.
class stream_place : public place {
public:
    stream_place(std::function<void(std::ostream &)> save, std::function<void(std::istream &)> load)
        : save_(std::move(save)), load_(std::move(load)) {}

    std::uint64_t room() const override { return 0; }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        check(bvk_stream_begin(checkpoint, name.c_str()));
        writing_buffer buffer(checkpoint);
        std::ostream out(&buffer);
        save_(out);
        buffer.finish();
        check(bvk_stream_end(checkpoint));
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        reading_buffer buffer(restart, name);
        if (!buffer.is_open()) return false;
        std::istream in(&buffer);
        try {
            load_(in);
        } catch (...) {
            // A failed read counts as damage, however the application handles the failure.
            if (!buffer.failed()) throw;
        }
        return !buffer.failed();
    }

private:
    std::function<void(std::ostream &)> save_;
    std::function<void(std::istream &)> load_;
};

// A file that functions of the application write and read.
class file_place : public place {
public:
    file_place(std::function<void(const std::string &)> save, std::function<void(const std::string &)> load)
        : save_(std::move(save)), load_(std::move(load)) {}

    std::uint64_t room() const override { return 0; }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        const char *path = nullptr;
        check(bvk_route(checkpoint, name.c_str(), &path));
        save_(path);
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        const char *path = nullptr;
        if (bvk_route_saved(restart, name.c_str(), &path) != BVK_OK) return false;
        load_(path);
        return true;
    }

private:
    std::function<void(const std::string &)> save_;
    std::function<void(const std::string &)> load_;
};

class begun {
public:
    begun(bvk_session_t session, const std::string &name, std::uint64_t version) {
        check(bvk_begin_checkpoint(session, name.c_str(), version, &handle_));
    }
    begun(const begun &) = delete;
    begun &operator=(const begun &) = delete;
    ~begun() { bvk_abort(&handle_); }

    bvk_checkpoint_t handle() const noexcept { return handle_; }

    bvk_pending_t capture() {
        bvk_pending_t pending = nullptr;
        check(bvk_capture(&handle_, &pending));
        return pending;
    }

private:
    bvk_checkpoint_t handle_ = nullptr;
};

inline int exceptions_in_flight() noexcept {
#if __cplusplus >= 201703L
    return std::uncaught_exceptions();
#else
    return std::uncaught_exception() ? 1 : 0;
#endif
}

}  // namespace detail

// How an array is spread over the ranks: what session::boxes() returns. Copies refer to the same boxes.
class boxes {
public:
    // No boxes yet.
    boxes() = default;

    // The number of boxes that this rank owns.
    std::size_t count() const noexcept { return agreed_ ? agreed_->count : 0; }

private:
    friend class session;
    std::shared_ptr<const detail::agreed_boxes> agreed_;
};

// Rows whose number changes freely, such as particles. Each column is a vector whose length follows the number of rows.
//
//   session.protect_rows("electrons", bivouac::rows().column("x", x).column("v", v, 3).column("id", id), bivouac::deal::even());
class rows {
public:
    // Adds a column with `width` elements for each row, row after row. Its name must not contain '/'.
    template <typename T, typename Allocator>
    rows &column(const std::string &name, std::vector<T, Allocator> &values, std::uint32_t width = 1) {
        static_assert(!std::is_same<T, bool>::value, "bivouac: a std::vector<bool> has no elements in memory: use char");
        std::shared_ptr<detail::region_place> where(new detail::vector_place<std::vector<T, Allocator>>(values));
        columns_.push_back(detail::column{name, std::move(where), width});
        return *this;
    }

    // Records the least and the greatest coordinate of this rank's rows in each dimension (at most 8), as they are in these vectors
    // at each checkpoint. bvk_parts gives them to a program that uses them to redistribute rows.
    rows &bounds(const std::vector<double> &low, const std::vector<double> &high) {
        low_ = &low;
        high_ = &high;
        return *this;
    }

private:
    friend class detail::rows_place;
    std::vector<detail::column> columns_;
    const std::vector<double> *low_ = nullptr;
    const std::vector<double> *high_ = nullptr;
};

// Which rows a rank gets in a restart. All ranks make the same choice; only the numbers of a range may differ.
class deal {
public:
    // The rows that it saved; only on the same number of ranks.
    static deal own() { return deal(BVK_ROWS_OWN); }

    // Its share of all rows, in the order of the ranks that saved them.
    static deal even() { return deal(BVK_ROWS_EVEN); }

    // `count` rows starting with number `first`, in the order of the ranks that saved them. Each rank chooses freely: ranges may
    // overlap, and rows may be left out. A restart fails if a range goes beyond the last row.
    static deal range(std::uint64_t first, std::uint64_t count) {
        deal made(BVK_ROWS_EVEN);
        made.range_.reset(new std::pair<std::uint64_t, std::uint64_t>(first, count));
        return made;
    }

    // The rows for which `owner` returns this rank's number. `owner` gets a pointer to the `width` elements of type T that the row
    // has in the column. It must depend only on these elements, because it is called on whichever rank reads the row, and it must
    // call neither Bivouac nor MPI. If it throws, the restart ends on all ranks, and on the throwing rank with that exception.
    template <typename T, typename Owner>
    static deal by(const std::string &column, Owner owner, std::uint32_t width = 1) {
        static_assert(alignof(T) <= 16, "bivouac: rows are read from memory that is aligned to 16 bytes");
        deal made(BVK_ROWS_EVEN);
        made.by_ = std::make_shared<detail::owner_function>();
        made.by_->column = column;
        made.by_->kind = detail::element<T>::kind;
        made.by_->width = width;
        made.by_->owners = [owner, width](const void *values, std::size_t count, int *owners) mutable {
            const T *row = static_cast<const T *>(values);
            for (std::size_t at = 0; at < count; at++, row += width) owners[at] = owner(row);
        };
        return made;
    }

private:
    friend class detail::rows_place;
    explicit deal(int how) : how_(how) {}

    int how_;
    std::shared_ptr<const std::pair<std::uint64_t, std::uint64_t>> range_;
    std::shared_ptr<detail::owner_function> by_;
};

namespace detail {

class rows_place : public place {
public:
    rows_place(bivouac::rows rows, bivouac::deal deal) : rows_(std::move(rows)), deal_(std::move(deal)) {}

    std::uint64_t room() const override {
        std::uint64_t bytes = 0;
        for (const column &one : rows_.columns_) bytes += one.where->room();
        return bytes;
    }

    void save(bvk_checkpoint_t checkpoint, const std::string &name) const override {
        std::vector<bvk_column> all;
        bvk_rows described = BVK_ROWS_INIT;
        for (const column &one : rows_.columns_) {
            const memory now = one.where->now();
            if (all.empty() && one.width > 0) described.count = now.count / one.width;
            if (now.count != described.count * one.width) {
                throw error(BVK_ERR_ARGUMENT, "rows \"" + name + "\": column \"" + one.name + "\" has " + std::to_string(now.count) +
                                                  " elements, and " + std::to_string(described.count) + " rows of " +
                                                  std::to_string(one.width) + " have others");
            }
            all.push_back(bvk_column{one.name.c_str(), now.data, now.kind, one.width});
        }
        described.columns = all.data();
        described.column_count = all.size();
        if (rows_.low_) {
            if (rows_.low_->size() != rows_.high_->size()) {
                throw error(BVK_ERR_ARGUMENT, "rows \"" + name + "\": bounds of " + std::to_string(rows_.low_->size()) + " and of " +
                                                  std::to_string(rows_.high_->size()) + " dimensions");
            }
            described.dimensions = rows_.low_->size();
            described.low = rows_.low_->data();
            described.high = rows_.high_->data();
        }
        check(bvk_save_rows(checkpoint, name.c_str(), &described));
    }

    bool load(bvk_restart_t restart, const std::string &name) override {
        dealt rows;
        std::uint64_t count = 0;
        if (const auto &by = deal_.by_) {
            by->thrown = nullptr;
            const int status = bvk_load_rows_by(restart, name.c_str(), by->column.c_str(), by->kind, by->width, owner_function::call,
                                                by.get(), &rows.handle, &count);
            if (by->thrown) std::rethrow_exception(by->thrown);
            if (status != BVK_OK) return false;
        } else if (const auto &range = deal_.range_) {
            if (bvk_load_rows_range(restart, name.c_str(), range->first, range->second, &rows.handle, &count) != BVK_OK) return false;
        } else if (bvk_load_rows(restart, name.c_str(), deal_.how_, &rows.handle, &count) != BVK_OK) {
            return false;
        }
        for (column &one : rows_.columns_) {
            one.where->resize(count * one.width);
            const memory now = one.where->now();
            if (bvk_load_column(rows.handle, one.name.c_str(), now.data, now.count, now.kind, one.width) != BVK_OK) return false;
        }
        return true;
    }

private:
    struct dealt {
        dealt() = default;
        dealt(const dealt &) = delete;
        dealt &operator=(const dealt &) = delete;
        ~dealt() { bvk_loaded_rows_close(&handle); }
        bvk_loaded_rows_t handle = nullptr;
    };

    bivouac::rows rows_;
    bivouac::deal deal_;
};

}  // namespace detail

// A checkpoint on its way to its levels. It continues even without this object.
class pending {
public:
    explicit pending(bvk_pending_t handle = nullptr) noexcept : handle_(handle) {}
    pending(pending &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    pending &operator=(pending &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    pending(const pending &) = delete;
    pending &operator=(const pending &) = delete;
    ~pending() { bvk_release(&handle_); }

    // Has each level been reached or given up? Local, never waits.
    bool finished() const {
        int answer = 0;
        detail::check(bvk_poll(handle_, &answer));
        return answer != 0;
    }

    // The highest level that all ranks have reached, as far as this rank knows. Local, never waits.
    bivouac::level reached() const {
        int answer = 0;
        detail::check(bvk_level(handle_, &answer));
        return static_cast<bivouac::level>(answer);
    }

    // Waits until all ranks have reached `wanted` or a higher level, and returns the level that they have reached. Throws
    // BVK_ERR_NOT_COMMITTED as soon as it is known that `wanted` will not be reached. Local, but returns only when all ranks have
    // done their part.
    bivouac::level wait(bivouac::level wanted = bivouac::level::system) const {
        int answer = 0;
        detail::check(bvk_wait(handle_, static_cast<int>(wanted), &answer));
        return static_cast<bivouac::level>(answer);
    }

private:
    bvk_pending_t handle_;
};

// What a restart restored; false if there was nothing to restore.
struct restored {
    bool found = false;
    std::uint64_t version = 0;
    std::uint64_t generation = 0;  // the number of the run that took the version
    std::uint64_t bytes = 0;       // the bytes that this rank read
    double seconds = 0;
    bivouac::level level = bivouac::level::captured;  // the level of the farthest tier that this rank read from
    int ranks = 0;                 // the number of ranks that took the version

    explicit operator bool() const noexcept { return found; }
};

// Unknown: the root could not be reached.
enum class verdict : int { unknown = -1, abandoned = 0, committed = 1 };

// The verdict on one level of one checkpoint.
struct report {
    std::string name;  // empty if the report is about a configured tier that cannot be used
    std::uint64_t version;
    bivouac::level level;
    bivouac::verdict verdict;
    std::string reason;  // why the level was not committed
};

// How a session is configured. If nothing is set, the environment alone configures it.
struct options {
    std::string config_file;
    std::string config_text;
    std::vector<std::string> settings;  // "section.key=value"
};

// Ranks that take and restore checkpoints together. A session can be moved, but not copied.
class session {
public:
    // Collective over `comm`. Throws on all ranks or on none.
    explicit session(MPI_Comm comm, const options &given = options()) : in_flight_(detail::exceptions_in_flight()) {
        std::vector<const char *> settings;
        for (const std::string &setting : given.settings) settings.push_back(setting.c_str());
        settings.push_back(nullptr);
        bvk_options all = BVK_OPTIONS_INIT;
        all.config_file = given.config_file.empty() ? nullptr : given.config_file.c_str();
        all.config_text = given.config_text.empty() ? nullptr : given.config_text.c_str();
        all.settings = settings.data();
        detail::check(bvk_open(comm, &all, &handle_));
        MPI_Comm_size(comm, &ranks_);
    }

    session(session &&other) noexcept
        : handle_(other.handle_), in_flight_(other.in_flight_), ranks_(other.ranks_), places_(std::move(other.places_)) {
        other.handle_ = nullptr;
    }
    session &operator=(session &&other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(in_flight_, other.in_flight_);
        std::swap(ranks_, other.ranks_);
        places_.swap(other.places_);
        return *this;
    }
    session(const session &) = delete;
    session &operator=(const session &) = delete;

    // Closes the session as close() does, but never throws; call close() to learn what failed. Collective, except while an
    // exception propagates. Perhaps only this rank has seen the exception, so the destructor leaves the session as a killed process
    // would, and the other ranks need not call the destructor.
    ~session() {
        if (detail::exceptions_in_flight() <= in_flight_) bvk_close(&handle_);
    }

    // Waits for checkpoints that are being written, and ends the session. Collective. May throw BVK_ERR_UNDRAINED and other errors;
    // the session is closed nevertheless.
    void close() {
        places_.clear();
        detail::check(bvk_close(&handle_));
    }

    // Protects a vector under a name, and replaces whatever was protected under that name. A restart restores the vector's length.
    template <typename T, typename Allocator>
    void protect(const std::string &name, std::vector<T, Allocator> &values) {
        static_assert(!std::is_same<T, bool>::value, "bivouac: a std::vector<bool> has no elements in memory: use char");
        keep(name, new detail::vector_place<std::vector<T, Allocator>>(values));
    }

    // Protects a variable, or an array of a fixed length.
    template <typename T>
    void protect(const std::string &name, T &value) {
        keep(name, new detail::fixed_place(detail::memory_of(&value, 1)));
    }

    // Protects `count` elements at `data`, on the host or on a GPU. They must not move.
    template <typename T>
    void protect(const std::string &name, T *data, std::size_t count) {
        keep(name, new detail::fixed_place(detail::memory_of(data, count)));
    }

#if __cplusplus >= 202002L
    // The same for a span, with the memory that it refers to now.
    template <typename T, std::size_t Extent>
    void protect(const std::string &name, std::span<T, Extent> values) {
        protect(name, values.data(), values.size());
    }
#endif

    // Protects the memory that `look` returns as a bivouac::view<T> each time a checkpoint is taken or restored. This is for
    // containers of other libraries, and for memory that moves. In a restart the view must have the length that was saved. If `look`
    // throws, the checkpoint is aborted on all ranks.
    template <typename Look>
    void protect_view(const std::string &name, Look look) {
        keep(name, new detail::view_place<Look>(std::move(look)));
    }

    // Says which elements this rank owns in an array with the extents `shape`, and proves together with the other ranks that each
    // element has one owner. The elements form any number of boxes, or none. In memory each box has, in each dimension, `before`
    // ghost cells before it and `after` ghost cells after it. `after` defaults to `before`, and `before` to none. Ghost cells are
    // not saved, and a restart leaves them unchanged. With `sparse`, the boxes of all ranks together need not cover the array.
    // Collective, once for each decomposition. Throws on all ranks if an element has two owners or none.
    bivouac::boxes boxes(const extents &shape, const std::vector<box> &own, const extents &before = extents(),
                         const extents &after = extents(), bool sparse = false) {
        extents origins, lengths;
        const std::size_t dims = shape.size();
        const extents &behind = after.empty() ? before : after;
        bool fits = dims <= 32 && (before.empty() || before.size() == dims) && (behind.empty() || behind.size() == dims);
        for (const box &one : own) {
            fits = fits && one.origin.size() == dims && one.extent.size() == dims;
            origins.insert(origins.end(), one.origin.begin(), one.origin.end());
            lengths.insert(lengths.end(), one.extent.begin(), one.extent.end());
        }
        const auto agreed = std::make_shared<detail::agreed_boxes>();
        agreed->count = own.size();
        if (!fits) {
            // The other ranks wait for this rank, so it takes part without a description, and the other ranks are told of its
            // mistake.
            bvk_boxes(handle_, 1, nullptr, 0, nullptr, nullptr, nullptr, nullptr, 0, &agreed->handle);
            throw error(BVK_ERR_ARGUMENT, "shape, origins, extents and ghost cells of boxes have different numbers of dimensions");
        }
        const auto margin = [](const extents &width) { return width.empty() ? nullptr : width.data(); };
        detail::check(bvk_boxes(handle_, static_cast<int>(dims), shape.data(), own.size(), origins.data(), lengths.data(), margin(before),
                                margin(behind), sparse, &agreed->handle));
        bivouac::boxes made;
        made.agreed_ = agreed;
        return made;
    }

    // The same for an array of `total` numbered elements, for example those of an unstructured mesh. This rank owns the elements in
    // `numbers`, which are counted from 0 and may be in any order. Its memory is one box with an element for each number, in the
    // order of the list. With `sparse`, the lists of all ranks together need not contain all numbers. Collective, and throws as
    // `boxes` does; it also throws if a number is not below `total`, or occurs twice in a list.
    bivouac::boxes ids(std::uint64_t total, const std::vector<std::uint64_t> &numbers, bool sparse = false) {
        const auto agreed = std::make_shared<detail::agreed_boxes>();
        agreed->count = 1;
        detail::check(bvk_ids(handle_, total, numbers.size(), numbers.data(), sparse, &agreed->handle));
        bivouac::boxes made;
        made.agreed_ = agreed;
        return made;
    }

    // Protects this rank's part of an array: the memory of its box with the ghost cells around it. A restart loads this part on any
    // number of ranks. The vector must already have the length of the box with its ghost cells, and keeps this length. A rank that
    // owns nothing passes an empty vector.
    template <typename T, typename Allocator>
    void protect_on(const std::string &name, const bivouac::boxes &on, std::vector<T, Allocator> &values) {
        static_assert(!std::is_same<T, bool>::value, "bivouac: a std::vector<bool> has no elements in memory: use char");
        std::unique_ptr<detail::boxes_place> place(new detail::boxes_place(agreed(on), detail::element<T>::kind));
        place->add(new detail::vector_place<std::vector<T, Allocator>>(values));
        keep(name, place.release());
    }

    // The same for other kinds of memory.
    template <typename T>
    void protect_on(const std::string &name, const bivouac::boxes &on, T *data, std::size_t count) {
        protect_boxes_on(name, on, std::vector<view<T>>{view<T>{data, count}});
    }

    // The same for a rank that owns any number of boxes: `memories` lists the memory of each box, which must not move.
    template <typename T>
    void protect_boxes_on(const std::string &name, const bivouac::boxes &on, const std::vector<view<T>> &memories) {
        std::unique_ptr<detail::boxes_place> place(new detail::boxes_place(agreed(on), detail::element<T>::kind));
        for (const view<T> &one : memories) place->add(new detail::fixed_place(detail::memory_of(one.data, one.size)));
        keep(name, place.release());
    }

    // Protects a variable of less than 1 MiB that is the same on all ranks, such as a step or a time. A restart loads it on any
    // number of ranks. If it differs on a rank, the ranks abandon the checkpoint.
    template <typename T>
    void protect_shared(const std::string &name, T &value) {
        protect_shared(name, &value, 1);
    }

    // The same for `count` elements, which must not move.
    template <typename T>
    void protect_shared(const std::string &name, T *data, std::size_t count) {
        keep(name, new detail::shared_place(new detail::fixed_place(detail::memory_of(data, count))));
    }

    // Protects a variable of less than 1 MiB that only this rank has. `becomes` says what happens to the variable on a
    // different number of ranks; all ranks pass the same `becomes`.
    template <typename T>
    void protect_per_rank(const std::string &name, T &value, on_resize becomes) {
        protect_per_rank(name, &value, 1, becomes);
    }

    // The same for `count` elements, which must not move.
    template <typename T>
    void protect_per_rank(const std::string &name, T *data, std::size_t count, on_resize becomes) {
        keep(name, new detail::own_place(new detail::fixed_place(detail::memory_of(data, count)), becomes, ranks_));
    }

    // Protects rows, whose number may differ between ranks and between checkpoints. A restart redistributes them, and the vectors are
    // resized to match. All ranks, including ranks without rows, protect them with the same columns.
    void protect_rows(const std::string &name, bivouac::rows rows, bivouac::deal how) {
        keep(name, new detail::rows_place(std::move(rows), std::move(how)));
    }

    // Protects data of any length that a serialiser writes, for example with the archives of cereal or Boost: `save` writes the data
    // at each checkpoint, and `load` reads it at a restart. An exception from either one is thrown by checkpoint() or restore().
    void protect_stream(const std::string &name, std::function<void(std::ostream &)> save, std::function<void(std::istream &)> load) {
        keep(name, new detail::stream_place(std::move(save), std::move(load)));
    }

    // Protects a file that the application, or a library that needs a path, writes and reads. At each checkpoint, `save` writes the
    // file to the path that it is given; at a restart, `load` reads it. An exception from either one is thrown by checkpoint() or
    // restore().
    void protect_file(const std::string &name, std::function<void(const std::string &)> save,
                      std::function<void(const std::string &)> load) {
        keep(name, new detail::file_place(std::move(save), std::move(load)));
    }

    // Keeps an output file consistent with the checkpoints of the series `name`, while the application appends to it: see
    // bvk_companion. Ranks that do not write a file pass an empty path. Collective. Throws on all ranks or on none.
    void companion(const std::string &name, const std::string &path, bivouac::on_restart how = bivouac::on_restart::truncate) {
        detail::check(bvk_companion(handle_, name.c_str(), path.empty() ? nullptr : path.c_str(), static_cast<int>(how)));
    }

    // The path to which the application writes the file now. After a restart with on_restart::another, this may be a different path
    // from the one that the application gave.
    std::string companion_path(const std::string &name, const std::string &path) const {
        const char *current = nullptr;
        detail::check(bvk_companion_path(handle_, name.c_str(), path.c_str(), &current));
        return current;
    }

    // Ends the protection of a name. Throws if nothing is protected under it.
    void unprotect(const std::string &name) {
        if (places_.erase(name) == 0) throw error(BVK_ERR_ARGUMENT, "no region \"" + name + "\" is protected");
    }
    void unprotect_all() noexcept { places_.clear(); }

    // Prepares node memory in the background for a checkpoint of all protected data at its current length, so that the first
    // checkpoint is as fast as later ones. Local, never waits.
    void prepare() {
        std::uint64_t bytes = 0;
        for (const auto &entry : places_) bytes += entry.second->room();
        detail::check(bvk_prepare(handle_, bytes));
    }

    // Takes a checkpoint of all protected data, as version `version` of the series `name`. When this returns, the application may
    // overwrite the data. Collective, with the same names and types on all ranks; lengths may differ. If this function throws, this
    // rank has no part in the checkpoint, the other ranks are told, and the application may continue.
    pending checkpoint(const std::string &name, std::uint64_t version) {
        detail::begun parts(handle_, name, version);
        for (const auto &entry : places_) entry.second->save(parts.handle(), entry.first);
        return pending(parts.capture());
    }

    // Restores a version of the series `name` into all protected data; the result is false if there is nothing to restore. Vectors
    // get the length that they had when they were saved. Collective. Throws on all ranks or on none; after an exception the protected
    // data is unspecified.
    bivouac::restored restore(const std::string &name, std::uint64_t version = newest) {
        return restore(name, [] { return std::string(); }, version);
    }

    // Restores as above, and calls `check` whenever all protected data has been loaded. A non-empty result is the reason why this
    // version must not be used, such as a NaN: all ranks then continue with the next older version. An exception from `check` ends
    // the restart on all ranks.
    bivouac::restored restore(const std::string &name, const std::function<std::string()> &check, std::uint64_t version = newest) {
        bvk_restart_t restart = nullptr;
        if (detail::check(bvk_begin_restore(handle_, name.c_str(), version, &restart)) == BVK_NOTHING) return bivouac::restored();
        bvk_restored told = BVK_RESTORED_INIT;
        std::exception_ptr thrown;
        int status;
        do {
            const bool loaded = load(restart, check, thrown);
            // No other version would help after an exception from the application, for example if it is out of memory.
            status = bvk_end_restore(&restart, thrown ? -1 : loaded, &told);
        } while (status == BVK_AGAIN);
        if (status < 0 && thrown) std::rethrow_exception(thrown);
        detail::check(status);
        return described(told);
    }

    // Is it time for a checkpoint, according to the configured interval? Call this once per step. Collective.
    bool should_checkpoint() { return ask(bvk_should_checkpoint); }

    // Is it time to stop? Collective.
    bool should_exit() { return ask(bvk_should_exit); }

    // Verdicts that have not been read yet. Local, never waits.
    std::vector<report> reports() {
        std::vector<report> all;
        bvk_report next = BVK_REPORT_INIT;
        while (detail::check(bvk_next_report(handle_, &next)) != BVK_NOTHING) {
            all.push_back(report{next.name, next.version, static_cast<bivouac::level>(next.level),
                                 static_cast<bivouac::verdict>(next.committed), next.reason});
        }
        return all;
    }

    // The handle, for the calls of bivouac.h that have no function here: streams, histories, statistics. This object still owns it.
    bvk_session_t handle() const noexcept { return handle_; }

private:
    static std::shared_ptr<const detail::agreed_boxes> agreed(const bivouac::boxes &on) {
        if (!on.agreed_) throw error(BVK_ERR_ARGUMENT, "these boxes are none: session::boxes makes some");
        return on.agreed_;
    }

    void keep(const std::string &name, detail::place *place) {
        std::unique_ptr<detail::place> owned(place);
        places_[name] = std::move(owned);
    }

    // Loads all protected data. An exception from the application is kept until the end of the restart, because the other ranks
    // wait for this end.
    bool load(bvk_restart_t restart, const std::function<std::string()> &check, std::exception_ptr &thrown) {
        thrown = nullptr;
        try {
            for (const auto &entry : places_) {
                if (!entry.second->load(restart, entry.first)) return false;
            }
            const std::string reason = check();
            if (!reason.empty()) detail::check(bvk_reject(restart, reason.c_str()));
            return true;
        } catch (...) {
            thrown = std::current_exception();
            return false;
        }
    }

    static bivouac::restored described(const bvk_restored &told) {
        bivouac::restored result;
        result.found = true;
        result.version = told.version;
        result.generation = told.generation;
        result.bytes = told.bytes;
        result.seconds = told.seconds;
        result.level = static_cast<bivouac::level>(told.level);
        result.ranks = static_cast<int>(told.ranks);
        return result;
    }

    bool ask(int (*question)(bvk_session_t, int *)) {
        int yes = 0;
        detail::check(question(handle_, &yes));
        return yes != 0;
    }

    bvk_session_t handle_ = nullptr;
    // The number of uncaught exceptions when the session was opened.
    int in_flight_ = 0;
    int ranks_ = 0;
    // By name, so that all ranks save in the same order.
    std::map<std::string, std::unique_ptr<detail::place>> places_;
};

}  // namespace bivouac

#endif
