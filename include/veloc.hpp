// VELOC's interface for C++ on Bivouac: header-only (C++11 and later), on top of veloc.h; link with libveloc-client.so. Names and
// arguments are those of VELOC's public sources, in the version whose C interface has 25 functions; docs/VELOC.md explains what
// differs.
//
// After a failure, functions return false, or what their description says, and the reason is on standard error. veloc.h says which
// functions are collective. There is one client per process; get_client makes or returns this client.
#ifndef BIVOUAC_VELOC_HPP
#define BIVOUAC_VELOC_HPP

#include <cstddef>
#include <cstdio>
#include <functional>
#include <istream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "veloc.h"

namespace veloc {

class client_t {
public:
    // Writes a data structure.
    typedef std::function<void(std::ostream &)> serializer_t;
    // Reads the structure again; returns false if it cannot.
    typedef std::function<bool(std::istream &)> deserializer_t;
    // Called with the name and the version of a checkpoint.
    typedef std::function<void(const std::string &, int)> observer_t;

    client_t(const client_t &) = delete;
    client_t &operator=(const client_t &) = delete;

    // Waits for what is being written and ends the session, as VELOC_Finalize(1) does.
    virtual ~client_t() {
        VELOC_Finalize(1);
        current() = nullptr;
    }

    // Protects `count` elements of `base_size` bytes as region `id` of all checkpoints, or only of those called `name`. As in
    // VELOC, the result is false if the region has replaced another one with that number.
    bool mem_protect(int id, void *ptr, size_t count, size_t base_size, const std::string &name = "default") {
        return lend(id, group(name), ptr, count, base_size) && keep(id, name, region_t());
    }

    // The same for a data structure: `s` writes it when a checkpoint takes it, and `d` reads it when it is recovered.
    bool mem_protect(int id, const serializer_t &s, const deserializer_t &d, const std::string &name = "default") {
        return lend(id, group(name), nullptr, 0, 1) && keep(id, name, region_t(s, d));
    }

    bool mem_unprotect(int id, const std::string &name = "default") {
        if (regions_[group(name)].erase(id) == 0) return false;
        return done(is_default(name) ? VELOC_Mem_unprotect(id) : VELOC_Region_unprotect(id, name.c_str()));
    }

    void mem_clear(const std::string &name = "default") {
        regions_.erase(group(name));
        if (is_default(name)) VELOC_Mem_clear();
        else VELOC_Region_clear(name.c_str());
    }

    // Calls `obs` for each event of that type (VELOC_OBSERVE_CKPT_END); returns false if `obs` has replaced another observer.
    bool register_observer(int type, const observer_t &obs) {
        const bool is_new = observers_.count(type) == 0;
        observers_[type] = obs;
        return is_new;
    }

    // Where to write or read the file `original`; empty after a failure.
    std::string route_file(const std::string &original) {
        char routed[VELOC_MAX_NAME] = {};
        return done(VELOC_Route_file(original.c_str(), routed)) ? std::string(routed) : std::string();
    }

    bool cleanup(const std::string &name) { return done(VELOC_Cleanup(name.c_str())); }

    // A whole checkpoint: begins it, adds all regions, and ends it. If a serializer throws, the checkpoint is given up on all ranks.
    bool checkpoint(const std::string &name, int version) {
        if (!checkpoint_begin(name, version)) return false;
        return whole([this] { return checkpoint_mem(VELOC_CKPT_ALL, std::set<int>()); },
                     [this](bool success) { return checkpoint_end(success); });
    }

    bool checkpoint_begin(const std::string &name, int version) {
        if (!done(VELOC_Checkpoint_begin(name.c_str(), version))) return false;
        opened(name, version);
        return true;
    }

    // Adds regions: all of them, those with the numbers `ids`, or all others (VELOC_CKPT_...).
    bool checkpoint_mem(int mode, const std::set<int> &ids) {
        buffers_t buffers;
        const bool is_written = each_serialized(mode, ids, [&](int id, const std::string &group, const region_t &region) {
            std::ostringstream out(std::ios::out | std::ios::binary);
            region.s(out);
            buffers.push_back(buffer_t(id, group, out.str()));
            return out.good();
        });
        const bool is_added = is_written && lend(buffers) && select(VELOC_Checkpoint_selective, mode, ids);
        take_back(buffers);
        is_whole_ = is_whole_ && is_added;
        return is_added;
    }

    // Captures what was added. If something could not be added, no rank keeps the checkpoint.
    bool checkpoint_end(bool success) {
        const bool is_done = done(VELOC_Checkpoint_end(success && is_whole_));
        const std::map<int, observer_t>::const_iterator observer = observers_.find(VELOC_OBSERVE_CKPT_END);
        if (is_done && observer != observers_.end()) observer->second(name_, version_);
        return is_done;
    }

    bool checkpoint_wait() { return done(VELOC_Checkpoint_wait()); }
    bool checkpoint_finished() { return done(VELOC_Checkpoint_finished()); }

    // Returns the newest version at or below `version` (0: the newest of all) that all ranks can restore, or VELOC_FAILURE if there
    // is none.
    int restart_test(const std::string &name, int version, int target_rank = -1) {
        return VELOC_Restart_test(own(name, target_rank), version);
    }

    // A whole restart: begins it, loads all regions, and ends it. If a deserializer throws, the restart takes effect on no rank.
    bool restart(const std::string &name, int version, int target_rank = -1) {
        if (!restart_begin(name, version, target_rank)) return false;
        return whole([this] { return recover_mem(VELOC_RECOVER_ALL, std::set<int>()); },
                     [this](bool success) { return restart_end(success); });
    }

    bool restart_begin(const std::string &name, int version, int target_rank = -1) {
        if (!done(VELOC_Restart_begin(own(name, target_rank), version))) return false;
        opened(name, version);
        return true;
    }

    // The size of a region in bytes, in the version that is being restored; 0 if the version has no such region.
    size_t recover_size(int id) {
        const long long bytes = VELOC_Recover_size_of(version_, id);
        return bytes < 0 ? 0 : static_cast<size_t>(bytes);
    }

    // Loads regions: all of them, those with the numbers `ids`, or all others (VELOC_RECOVER_...).
    bool recover_mem(int mode, const std::set<int> &ids) {
        buffers_t buffers;
        each_serialized(mode, ids, [&](int id, const std::string &group, const region_t &) {
            const long long bytes = VELOC_Recover_size_of(version_, id);
            if (bytes >= 0) buffers.push_back(buffer_t(id, group, std::string(static_cast<size_t>(bytes), '\0')));
            return true;
        });
        const bool is_lent = lend(buffers);
        // The call is collective: a rank that has lent nothing makes it, too.
        bool is_read = select(VELOC_Recover_selective, mode, ids) && is_lent;
        take_back(buffers);
        for (size_t at = 0; is_read && at < buffers.size(); at++) {
            std::istringstream in(buffers[at].bytes, std::ios::in | std::ios::binary);
            is_read = regions_[buffers[at].group][buffers[at].id].d(in);
            if (!is_read) std::fprintf(stderr, "veloc::client_t::recover_mem: region %d cannot be deserialized\n", buffers[at].id);
        }
        is_whole_ = is_whole_ && is_read;
        return is_read;
    }

    // Ends the restart. If something could not be loaded, the restart takes effect on no rank.
    bool restart_end(bool success) {
        const bool ended = done(VELOC_Restart_end(success && is_whole_));
        return ended && (is_whole_ || !success);
    }

private:
    // A region. Raw memory has no serializer, and the library knows where it is. The library keeps nothing of a data structure
    // between the calls.
    struct region_t {
        serializer_t s;
        deserializer_t d;

        region_t() {}
        region_t(const serializer_t &written, const deserializer_t &read) : s(written), d(read) {}
    };
    typedef std::map<int, region_t> regions_t;

    // The bytes of a data structure, for the duration of a call.
    struct buffer_t {
        int id;
        std::string group;
        std::string bytes;

        buffer_t(int number, const std::string &name, const std::string &content) : id(number), group(name), bytes(content) {}
    };
    typedef std::vector<buffer_t> buffers_t;

    explicit client_t(int rank) : rank_(rank) {}

    static client_t *&current() {
        static client_t *client = nullptr;
        return client;
    }

    friend client_t *get_client(MPI_Comm comm, const std::string &cfg_file);
    friend client_t *get_client(unsigned int id, const std::string &cfg_file);

    static client_t *made(int status, int rank) {
        if (!done(status)) throw std::runtime_error("VELOC cannot be initialised: standard error has the reason");
        return current() = new client_t(rank);
    }

    static bool done(int status) { return status == VELOC_SUCCESS; }
    static bool is_default(const std::string &name) { return name.empty() || name == "default"; }
    static std::string group(const std::string &name) { return is_default(name) ? std::string() : name; }

    // Ends what was begun, with success only if the work has succeeded.
    template <typename Work, typename End>
    static bool whole(Work work, End end) {
        bool success = false;
        try {
            success = work();
        } catch (...) {
            end(false);
            throw;
        }
        return end(success) && success;
    }

    bool keep(int id, const std::string &name, const region_t &region) {
        regions_t &regions = regions_[group(name)];
        const bool is_new = regions.count(id) == 0;
        regions[id] = region;
        return is_new;
    }

    void opened(const std::string &name, int version) {
        name_ = name;
        version_ = version;
        is_whole_ = true;
    }

    // The name for a call about a restart. A rank that asks for the checkpoints of another rank gives a name that no rank can
    // restore, so that all ranks are told.
    const char *own(const std::string &name, int target_rank) const {
        if (target_rank < 0 || target_rank == rank_) return name.c_str();
        std::fprintf(stderr, "veloc::client_t: target_rank %d: rank %d restores its own checkpoints only\n", target_rank, rank_);
        return "";
    }

    // Calls `work` for each chosen data structure that belongs to the checkpoint, until `work` returns false.
    template <typename Work>
    bool each_serialized(int mode, const std::set<int> &ids, Work work) {
        const std::string groups[] = {std::string(), name_};
        for (const std::string &group : groups) {
            for (const regions_t::value_type &entry : regions_[group]) {
                const bool is_listed = ids.count(entry.first) != 0;
                const bool is_chosen = mode == VELOC_CKPT_ALL || (mode == VELOC_CKPT_SOME) == is_listed;
                if (entry.second.s && is_chosen && !work(entry.first, group, entry.second)) return false;
            }
        }
        return true;
    }

    // Protects buffers in place of their data structures.
    static bool lend(buffers_t &buffers) {
        for (buffer_t &buffer : buffers) {
            void *bytes = buffer.bytes.empty() ? nullptr : &buffer.bytes[0];
            if (!lend(buffer.id, buffer.group, bytes, buffer.bytes.size(), 1)) return false;
        }
        return true;
    }

    static bool lend(int id, const std::string &group, void *ptr, size_t count, size_t base_size) {
        return done(group.empty() ? VELOC_Mem_protect(id, ptr, count, base_size)
                                  : VELOC_Region_protect(id, ptr, count, base_size, group.c_str()));
    }

    static void take_back(const buffers_t &buffers) {
        for (const buffer_t &buffer : buffers) lend(buffer.id, buffer.group, nullptr, 0, 1);
    }

    static bool select(int (*call)(int, int *, int), int mode, const std::set<int> &ids) {
        std::vector<int> numbers(ids.begin(), ids.end());
        return done(call(mode, numbers.data(), static_cast<int>(numbers.size())));
    }

    int rank_;
    // The regions by group and number; the group that belongs to all checkpoints has no name.
    std::map<std::string, regions_t> regions_;
    std::map<int, observer_t> observers_;
    // The open checkpoint or restart: its name and version, and whether everything has succeeded so far.
    std::string name_;
    int version_ = -1;
    bool is_whole_ = true;
};

// Returns the client of the ranks of `comm`; collective. Throws std::runtime_error if no session can be opened. Once there is a
// client, that client is returned, whatever is asked for.
inline client_t *get_client(MPI_Comm comm, const std::string &cfg_file) {
    if (client_t::current() != nullptr) return client_t::current();
    const int status = VELOC_Init(comm, cfg_file.c_str());
    int rank = 0;
    if (status == VELOC_SUCCESS) MPI_Comm_rank(comm, &rank);
    return client_t::made(status, rank);
}

// Returns the client for this process alone; `id` distinguishes the process from the others in the job.
inline client_t *get_client(unsigned int id, const std::string &cfg_file) {
    if (client_t::current() != nullptr) return client_t::current();
    return client_t::made(VELOC_Init_single(id, cfg_file.c_str()), static_cast<int>(id));
}

}  // namespace veloc

#endif
