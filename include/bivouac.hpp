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
// What is protected is looked at when a checkpoint is taken and when one is restored: where a vector lies then, and how long it is.
// It is referred to, not copied: unprotect it before its life ends, or let the session end first.
//
// An error is a bivouac::error, which has the status of bivouac.h and its text. Functions marked Collective are called by all ranks in
// one order. A rank that throws inside one of them has told the others, and nobody waits for it.
#ifndef BIVOUAC_HPP
#define BIVOUAC_HPP

#include <bivouac.h>

#include <array>
#include <climits>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace bivouac {

// How safe a checkpoint is.
enum class level : int {
    captured = BVK_LEVEL_CAPTURED,        // from the application's next write
    process = BVK_LEVEL_PROCESS,          // from killed processes
    node_reboot = BVK_LEVEL_NODE_REBOOT,  // from a reboot of the node
    node_loss = BVK_LEVEL_NODE_LOSS,      // from the loss of a node
    system = BVK_LEVEL_SYSTEM             // from the loss of all nodes
};

// As a version: the newest that all ranks can restore.
constexpr std::uint64_t newest = BVK_NEWEST;

// A call that failed. The session goes on, unless the status is BVK_ERR_FAILED.
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

// A structure of your own is saved and loaded as its bytes if you say that this makes sense (no pointers, no references):
//   template <> struct bivouac::as_bytes<particle> : std::true_type {};
template <typename T>
struct as_bytes : std::false_type {};

// Memory as a function returns it that was given to session::protect_view.
template <typename T>
struct view {
    T *data;
    std::size_t size;
};

namespace detail {

inline int check(int status) {
    if (status < 0) throw error(status, bvk_error());
    return status;
}

// The element type of a C++ type: a structure, and what is made of several numbers, is a record of so many bytes.
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

// As Bivouac's interfaces for Fortran and Rust have them.
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

// What is protected under a name.
class place {
public:
    place() = default;
    place(const place &) = delete;
    place &operator=(const place &) = delete;
    virtual ~place() = default;

    virtual memory now() const = 0;

    // Makes it `count` elements long if it can be.
    virtual void resize(std::uint64_t) {}
};

template <typename Vector>
class vector_place : public place {
public:
    explicit vector_place(Vector &vector) : vector_(vector) {}

    memory now() const override { return memory_of(vector_.data(), vector_.size()); }
    void resize(std::uint64_t count) override { vector_.resize(static_cast<std::size_t>(count)); }

private:
    Vector &vector_;
};

class fixed_place : public place {
public:
    explicit fixed_place(const memory &where) : where_(where) {}

    memory now() const override { return where_; }

private:
    memory where_;
};

template <typename Look>
class view_place : public place {
public:
    explicit view_place(Look look) : look_(std::move(look)) {}

    memory now() const override {
        const auto found = look_();
        return memory_of(found.data, found.size);
    }

private:
    Look look_;
};

// A checkpoint that is being put together. If it is not captured, for example because something threw, the others hear that.
class begun {
public:
    begun(bvk_session_t session, const std::string &name, std::uint64_t version) {
        check(bvk_checkpoint_begin(session, name.c_str(), version, &handle_));
    }
    begun(const begun &) = delete;
    begun &operator=(const begun &) = delete;
    ~begun() { bvk_abort(&handle_); }

    void save(const std::string &name, const memory &where) {
        check(bvk_save(handle_, name.c_str(), where.data, where.count, where.kind));
    }

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

// A checkpoint on its way to its levels. It goes on its way without this object, too.
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

    // Have all levels come to an end? Local, never waits.
    bool finished() const {
        int answer = 0;
        detail::check(bvk_poll(handle_, &answer));
        return answer != 0;
    }

    // The highest level that all ranks have reached, as far as this one has heard. Local, never waits.
    bivouac::level reached() const {
        int answer = 0;
        detail::check(bvk_level(handle_, &answer));
        return static_cast<bivouac::level>(answer);
    }

    // Waits until all ranks have reached `wanted` or more, and returns what they have reached. Throws BVK_ERR_NOT_COMMITTED as soon as
    // it is known that it will not be reached. Local, but returns only when all ranks have done their part.
    bivouac::level wait(bivouac::level wanted = bivouac::level::system) const {
        int answer = 0;
        detail::check(bvk_wait(handle_, static_cast<int>(wanted), &answer));
        return static_cast<bivouac::level>(answer);
    }

private:
    bvk_pending_t handle_;
};

// What a restart restored; false if there was nothing.
struct restored {
    bool found = false;
    std::uint64_t version = 0;
    std::uint64_t generation = 0;  // the run that took it
    std::uint64_t bytes = 0;       // that this rank read
    double seconds = 0;
    bivouac::level level = bivouac::level::captured;  // of the farthest tier that this rank read from

    explicit operator bool() const noexcept { return found; }
};

// Unknown: the root could not be reached.
enum class verdict : int { unknown = -1, abandoned = 0, committed = 1 };

// What the ranks have agreed on one level of one checkpoint.
struct report {
    std::string name;  // empty: a tier that was wanted and cannot be used
    std::uint64_t version;
    bivouac::level level;
    bivouac::verdict verdict;
    std::string reason;  // why it was not committed
};

// How a session is configured; the environment alone if nothing is set.
struct options {
    std::string config_file;
    std::string config_text;
    std::vector<std::string> settings;  // "section.key=value"
};

// Ranks that take and restore checkpoints together. It can be moved, not copied.
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
    }

    session(session &&other) noexcept
        : handle_(other.handle_), in_flight_(other.in_flight_), places_(std::move(other.places_)) {
        other.handle_ = nullptr;
    }
    session &operator=(session &&other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(in_flight_, other.in_flight_);
        places_.swap(other.places_);
        return *this;
    }
    session(const session &) = delete;
    session &operator=(const session &) = delete;

    // Closes the session, as close() does, and never throws: call that to hear what failed. Collective. On the way out of an exception,
    // which only this rank may have seen, it leaves the session as a killed process would: the others do not have to come here.
    ~session() {
        if (detail::exceptions_in_flight() <= in_flight_) bvk_close(&handle_);
    }

    // Waits for what is being written and ends the session. Collective. Throws BVK_ERR_UNDRAINED and others; it is closed all the same.
    void close() {
        places_.clear();
        detail::check(bvk_close(&handle_));
    }

    // Protects a vector under a name, in the place of what had it. A restart makes it as long as it was.
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

    // Protects `count` elements at `data`, on the host or on a GPU, which stay there.
    template <typename T>
    void protect(const std::string &name, T *data, std::size_t count) {
        keep(name, new detail::fixed_place(detail::memory_of(data, count)));
    }

#if __cplusplus >= 202002L
    // The same for a span: what it refers to now.
    template <typename T, std::size_t Extent>
    void protect(const std::string &name, std::span<T, Extent> values) {
        protect(name, values.data(), values.size());
    }
#endif

    // Protects what `look` returns, a bivouac::view<T>, each time a checkpoint is taken or restored: for containers of other libraries
    // and for memory that moves. In a restart it has to have the length that was saved. If it throws, the checkpoint is given up on all ranks.
    template <typename Look>
    void protect_view(const std::string &name, Look look) {
        keep(name, new detail::view_place<Look>(std::move(look)));
    }

    // Takes a name out again. Throws if nothing is protected under it.
    void unprotect(const std::string &name) {
        if (places_.erase(name) == 0) throw error(BVK_ERR_ARGUMENT, "no region \"" + name + "\" is protected");
    }
    void unprotect_all() noexcept { places_.clear(); }

    // Makes node memory ready in the background for a checkpoint of what is protected, as long as it is now, so that the first one
    // is as fast as the others. Local, never waits.
    void prepare() {
        std::uint64_t bytes = 0;
        for (const auto &entry : places_) bytes += room(entry.second->now().bytes);
        detail::check(bvk_prepare(handle_, bytes));
    }

    // Takes version `version` of the series `name`: all that is protected. When it returns the application may overwrite it. Collective,
    // with the same names and types on all ranks; lengths may differ. If it throws, this rank has no part in the checkpoint, the
    // others have heard it, and the application may go on.
    pending checkpoint(const std::string &name, std::uint64_t version) {
        detail::begun parts(handle_, name, version);
        for (const auto &entry : places_) parts.save(entry.first, entry.second->now());
        return pending(parts.capture());
    }

    // Restores a version of the series `name` into all that is protected; false if there is nothing. Vectors get the length that they
    // had. Collective. Throws on all ranks or on none; then what is protected holds nothing of use.
    bivouac::restored restore(const std::string &name, std::uint64_t version = newest) {
        bvk_restart_t restart = nullptr;
        if (detail::check(bvk_restart_begin(handle_, name.c_str(), version, &restart)) == BVK_NOTHING) return bivouac::restored();
        bvk_restored told = BVK_RESTORED_INIT;
        std::exception_ptr thrown;
        int status;
        do {
            const bool loaded = load(restart, thrown);
            // No other version would help against an exception of the application's, which may be that there is no memory.
            status = bvk_restart_end(&restart, thrown ? -1 : loaded, &told);
        } while (status == BVK_AGAIN);
        if (status < 0 && thrown) std::rethrow_exception(thrown);
        detail::check(status);
        return described(told);
    }

    // Is it time for a checkpoint, by the configured interval? Once a step. Collective.
    bool should_checkpoint() { return ask(bvk_should_checkpoint); }

    // Is it time to stop? Collective.
    bool should_exit() { return ask(bvk_should_exit); }

    // What the ranks have agreed on and was not read yet. Local, never waits.
    std::vector<report> reports() {
        std::vector<report> all;
        bvk_report next = BVK_REPORT_INIT;
        while (detail::check(bvk_next_report(handle_, &next)) != BVK_NOTHING) {
            all.push_back(report{next.name, next.version, static_cast<bivouac::level>(next.level),
                                 static_cast<bivouac::verdict>(next.committed), next.reason});
        }
        return all;
    }

    // For the calls of bivouac.h that have no function here: streams, histories, statistics. It stays this object's.
    bvk_session_t handle() const noexcept { return handle_; }

private:
    // What a region takes in a checkpoint: it begins on a page, and the table has an entry for it.
    static std::uint64_t room(std::uint64_t bytes) { return (bytes + 4095) / 4096 * 4096 + 1024; }

    void keep(const std::string &name, detail::place *place) {
        std::unique_ptr<detail::place> owned(place);
        places_[name] = std::move(owned);
    }

    // Loads all that is protected. An exception of the application's is kept for the end of the restart, which the others wait for.
    bool load(bvk_restart_t restart, std::exception_ptr &thrown) {
        thrown = nullptr;
        try {
            for (const auto &entry : places_) {
                if (!load(restart, entry.first, *entry.second)) return false;
            }
            return true;
        } catch (...) {
            thrown = std::current_exception();
            return false;
        }
    }

    static bool load(bvk_restart_t restart, const std::string &name, detail::place &place) {
        std::uint64_t count = 0;
        int kind = 0;
        // What is missing or of another type is refused by the loading, which the end of the restart then tells of.
        const bool is_there = bvk_region_size(restart, name.c_str(), &count, &kind) == BVK_OK;
        if (is_there && kind == place.now().kind) place.resize(count);
        const detail::memory where = place.now();
        return bvk_load(restart, name.c_str(), where.data, where.count, where.kind) == BVK_OK;
    }

    static bivouac::restored described(const bvk_restored &told) {
        bivouac::restored result;
        result.found = true;
        result.version = told.version;
        result.generation = told.generation;
        result.bytes = told.bytes;
        result.seconds = told.seconds;
        result.level = static_cast<bivouac::level>(told.level);
        return result;
    }

    bool ask(int (*question)(bvk_session_t, int *)) {
        int yes = 0;
        detail::check(question(handle_, &yes));
        return yes != 0;
    }

    bvk_session_t handle_ = nullptr;
    // Exceptions that were on their way when the session was opened.
    int in_flight_ = 0;
    // By name, so that all ranks save in one order.
    std::map<std::string, std::unique_ptr<detail::place>> places_;
};

}  // namespace bivouac

#endif
