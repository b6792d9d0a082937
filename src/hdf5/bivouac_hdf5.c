// A file driver for HDF5, by which files of an unchanged program become checkpoints of Bivouac. README.md shows how it is used.
//
// An open file is one block of memory. When HDF5 closes a file that was opened for writing, the block becomes a version of a checkpoint
// series, with the regions `file/bytes` (the content that a file on disk would have) and `info` (`struct info`). When HDF5 opens the file
// again, the newest version that can be restored is loaded. HDF5's own driver `sec2` handles the files that the configuration leaves out,
// and files that are on disk but in no checkpoint.
//
// HDF5 makes all calls of a driver under one lock, or is used by one thread. The same holds for the driver's own calls, so
// nothing in here is locked.
#define _GNU_SOURCE // dladdr, strsep
#include <H5PLextern.h>
#include <bivouac.h>
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <hdf5.h>
#include <limits.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if !H5_VERSION_GE(1, 14, 0)
#error "HDF5 1.14 or later is needed: earlier versions cannot load file drivers"
#endif
#include <H5FDdevelop.h>

// HDF5 gives values from 256 on to drivers that it does not know, and reserves those below 512 for drivers that are not registered with its
// maintainers. It refuses to load two drivers with the same value into one process.
#define DRIVER_VALUE ((H5FD_class_value_t)389)
#define SET "file"
#define COLUMN "bytes"
#define INFO "info"
#define ADDRESSES ((haddr_t)(SIZE_MAX / 2)) // how many addresses fit into memory
#define PATH_ROOM 4056                      // so that `struct info` has 4 KiB
#define NAME_ROOM 129                       // for the name of a series: 128 bytes and a zero
#define RUNS 16                             // how many numbers in a path may be a rank
#define INFOS 64                            // how many old ranks are asked at a time

// What each version of a file says about it.
struct info {
    char magic[8];
    uint64_t bytes;
    uint64_t state; // CLOSED, OPEN or DELETED
    uint64_t reserved[2];
    char path[PATH_ROOM];
};
enum { ABANDONED, CLOSED, OPEN, DELETED }; // ABANDONED is not recorded: this rank takes part only to abort the version
static const char MAGIC[8] = "BVKHDF5";

enum scope { BY_SIZE, WORLD, SELF };
enum rank_rule { RANK_AUTO, RANK_NONE, RANK_AT };
enum mpi_rule { MPI_AUTO, MPI_START, MPI_REFUSE };

// The settings from HDF5_DRIVER_CONFIG or from H5Pset_driver_by_name.
struct settings {
    enum scope scope;
    enum rank_rule rank;
    int rank_at; // 1, 2, ... count from the left; -1, -2, ... from the right
    enum mpi_rule mpi;
    bool flush;
    int level; // H5Fclose waits for this level
    double patience;
    char files[1024];
    char job[128];
    char group[128];
};

// What this process knows about a series. All fields except `own` are the same on all ranks of the session, even after one of them has
// failed. They decide which calls to Bivouac the ranks make.
struct series {
    char name[NAME_ROOM];
    enum { UNKNOWN, ABSENT, PRESENT } state;
    bool numbered; // whether `last` is known
    uint64_t last; // the highest version that was seen or taken
    uint64_t own;  // the version that this process has taken and not lost; 0: none
    bool told;     // whether it was said that the file comes from disk
    struct series *next;
};

struct session {
    bvk_session_t handle; // NULL: MPI_Finalize has begun, or HDF5 has ended
    enum scope scope;
    char job[128];
    char group[128];
    MPI_Comm comm; // for agreements with scope=world
    int rank, size;
    char broken[512]; // why ranks can no longer agree
    bool has_lost;    // this rank could not take a version, and has not told the others yet
    struct series *series;
    struct session *next;
};

struct file {
    H5FD_t base; // HDF5's part
    H5FD_t *inner; // the file on disk; if set, only `path` of the fields below is used
    char *path;
    struct settings settings;
    struct session *session;
    struct series *series;
    char stored[NAME_ROOM]; // the series from which the file comes; several ranks may have taken it
    bool any_rank;          // the path may be that of any rank of that series
    bool writable, loaded, imported, dirty;
    bool finished; // HDF5 has flushed the file to close it, and has not given up opening it
    bool torn; // a write has failed, so the bytes are not those that HDF5 assumes
    bool flushed; // HDF5 has flushed the file in MPI_Finalize
    bool flushing; // HDF5 is about to flush the whole file, not only parts of its metadata
    unsigned char *bytes;
    size_t length, room;
    haddr_t eoa;
    struct file *next;
};

static struct session *sessions;
static struct file *open_files;
static bool finalizing, started_mpi, hooked;
static bool has_failed; // a call by HDF5 for an open file has failed, and perhaps H5Fclose with it
static pid_t process; // the process that opened the sessions, which its forked children do not use

// --- Errors ---------------------------------------------------------------------------------------------------------------------

// Adds an entry to HDF5's stack of errors.
#define PUSH(minor, ...) push(__func__, __LINE__, minor, __VA_ARGS__)

static void push(const char *function, unsigned line, hid_t minor, const char *format, ...) {
    char text[PATH_ROOM + 1500];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    H5Epush2(H5E_DEFAULT, __FILE__, function, line, H5E_ERR_CLS, H5E_VFL, minor, "%s", text);
}

static herr_t result(bool is_good) {
    has_failed |= !is_good;
    return is_good ? 0 : -1;
}

static void say(const char *format, ...) {
    char text[PATH_ROOM + 1000];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "bivouac-hdf5: %s\n", text);
}

// --- Configuration --------------------------------------------------------------------------------------------------------------

static char *trim(char *text) {
    while (*text == ' ' || *text == '\t' || *text == '\n' || *text == '\r') text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\n\r", end[-1])) *--end = 0;
    return text;
}

static bool copy_text(char *to, size_t room, const char *key, const char *value) {
    if (strlen(value) >= room) {
        PUSH(H5E_BADVALUE, "the driver's configuration: %s has %zu bytes, but at most %zu are allowed", key, strlen(value), room - 1);
        return false;
    }
    strcpy(to, value);
    return true;
}

// A pattern with a slash is compared with absolute paths, so `out/*.h5` would silently leave out every file.
static bool can_match(const char *patterns) {
    char copy[sizeof((struct settings *)NULL)->files];
    snprintf(copy, sizeof copy, "%s", patterns);
    for (char *rest = copy, *one; (one = strsep(&rest, ",")) != NULL;) {
        one = trim(one);
        if (!strchr(one, '/') || strchr("/*?[", *one)) continue;
        PUSH(H5E_BADVALUE, "the driver's configuration (HDF5_DRIVER_CONFIG): files=%.200s is not the beginning of an absolute path; write */%.200s", one, one);
        return false;
    }
    return true;
}

// The index of `value` in `words`, whose last entry is NULL; -1 if it is not among them.
static int word_at(const char *const *words, const char *value) {
    for (int at = 0; words[at]; at++)
        if (strcmp(words[at], value) == 0) return at;
    return -1;
}

static bool set_one(struct settings *settings, const char *key, const char *value) {
    static const char *const scopes[] = {"auto", "world", "self", NULL};
    static const char *const switches[] = {"no", "yes", NULL};
    static const char *const levels[] = {"captured", "process", "node-reboot", "node-loss", "system", NULL};
    static const char *const starts[] = {"auto", "init", "refuse", NULL};
    static const char *const ranks[] = {"auto", "none", NULL};
    const char *expected = NULL;
    int at = 0;
    if (strcmp(key, "scope") == 0) {
        if ((at = word_at(scopes, value)) >= 0) settings->scope = (enum scope)at;
        else expected = "auto, world or self";
    } else if (strcmp(key, "files") == 0) {
        if (*value) return copy_text(settings->files, sizeof settings->files, key, value) && can_match(value);
        expected = "patterns separated by commas, such as *.h5,ckpt*";
    } else if (strcmp(key, "rank") == 0) {
        char *end;
        long number = strtol(value, &end, 10);
        if ((at = word_at(ranks, value)) >= 0) settings->rank = (enum rank_rule)at;
        else if (*value && !*end && number != 0 && number >= -RUNS && number <= RUNS)
            settings->rank = RANK_AT, settings->rank_at = (int)number;
        else expected = "auto, none, or which number in the path is the rank: 1 for the first, -1 for the last";
    } else if (strcmp(key, "flush") == 0) {
        if ((at = word_at(switches, value)) >= 0) settings->flush = at;
        else expected = "yes or no";
    } else if (strcmp(key, "wait") == 0) {
        if ((at = word_at(levels, value)) >= 0) settings->level = at;
        else expected = "captured, process, node-reboot, node-loss or system";
    } else if (strcmp(key, "patience") == 0) {
        char *end;
        double seconds = strtod(value, &end);
        if (*value && !*end && seconds > 0 && seconds <= 1e6) settings->patience = seconds;
        else expected = "a number of seconds above 0";
    } else if (strcmp(key, "mpi") == 0) {
        if ((at = word_at(starts, value)) >= 0) settings->mpi = (enum mpi_rule)at;
        else expected = "auto, init or refuse";
    } else if (strcmp(key, "job") == 0) {
        if (*value) return copy_text(settings->job, sizeof settings->job, key, value);
        expected = "a name";
    } else if (strcmp(key, "group") == 0) {
        if (*value) return copy_text(settings->group, sizeof settings->group, key, value);
        expected = "a name";
    } else {
        PUSH(H5E_BADVALUE,
             "the driver's configuration (HDF5_DRIVER_CONFIG) has no key \"%.60s\": the keys are scope, files, rank, flush, wait, "
             "patience, mpi, job and group, as in \"scope=world; files=*.h5\"",
             key);
        return false;
    }
    if (!expected) return true;
    PUSH(H5E_BADVALUE, "the driver's configuration (HDF5_DRIVER_CONFIG): %s=%.60s; expected %s", key, value, expected);
    return false;
}

static bool parse(char *text, struct settings *settings) {
    *settings = (struct settings){.patience = 600, .files = "*"};
    for (char *rest = text, *entry; (entry = strsep(&rest, ";")) != NULL;) {
        entry = trim(entry);
        if (!*entry) continue;
        char *value = strchr(entry, '=');
        if (!value) {
            PUSH(H5E_BADVALUE,
                 "the driver's configuration (HDF5_DRIVER_CONFIG): \"%.60s\" is not key=value; separate entries by semicolons",
                 entry);
            return false;
        }
        *value++ = 0;
        if (!set_one(settings, trim(entry), trim(value))) return false;
    }
    return true;
}

static bool configure(hid_t fapl, struct settings *settings) {
    ssize_t length = H5Pget_driver_config_str(fapl, NULL, 0);
    if (length < 0) {
        PUSH(H5E_BADVALUE, "the driver's configuration (HDF5_DRIVER_CONFIG) cannot be read");
        return false;
    }
    char *text = calloc(1, (size_t)length + 1);
    if (!text) {
        PUSH(H5E_NOSPACE, "no memory for the driver's configuration");
        return false;
    }
    bool is_good = (length == 0 || H5Pget_driver_config_str(fapl, text, (size_t)length + 1) >= 0) && parse(text, settings);
    free(text);
    return is_good;
}

// Whether the configuration says that Bivouac keeps this file. A pattern with a slash is compared with the whole path.
static bool is_kept(const struct settings *settings, const char *path) {
    char patterns[sizeof settings->files];
    strcpy(patterns, settings->files);
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (char *rest = patterns, *one; (one = strsep(&rest, ",")) != NULL;) {
        one = trim(one);
        if (*one && fnmatch(one, strchr(one, '/') ? path : name, 0) == 0) return true;
    }
    return false;
}

// Whether Bivouac's configuration names the job. The default is the program's name, under which h5dump would find nothing.
static bool has_job_name(void) {
    if (getenv("BIVOUAC_JOB_NAME")) return true;
    const char *path = getenv("BIVOUAC_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    bool in_job = false, found = false;
    char line[1024];
    while (file && !found && fgets(line, sizeof line, file)) {
        char *text = trim(line);
        if (*text == '[') in_job = strncmp(text, "[job]", 5) == 0;
        else if (strncmp(text, "job", 3) == 0) found = strncmp(text, "job.name", 8) == 0 || (strchr(text, '{') && strstr(text, "name"));
        else if (in_job && strncmp(text, "name", 4) == 0) found = strchr(" \t=", text[4]) != NULL;
    }
    if (file) fclose(file);
    return found;
}

// --- Paths and names ------------------------------------------------------------------------------------------------------------

// Stands for the rank in a path. A file's own name must not contain it. In names of series it appears as `%`.
#define RANK '\001'

// The absolute path. Links in the folders of the path are resolved if the folders exist. The caller frees the result.
static char *absolute(const char *name) {
    char from[PATH_MAX] = "", *real = NULL;
    const char *between = *name == '/' ? "" : "/";
    if (strchr(name, RANK)) {
        PUSH(H5E_BADVALUE, "%.200s: a path must not contain the byte 1", name);
        return NULL;
    }
    if (*name != '/' && !getcwd(from, sizeof from)) {
        PUSH(H5E_BADVALUE, "%.200s: the working directory has no path: %s", name, strerror(errno));
        return NULL;
    }
    size_t length = strlen(from) + strlen(between) + strlen(name);
    if (length >= PATH_ROOM) {
        PUSH(H5E_BADVALUE, "%.100s...: the path has %zu bytes; Bivouac keeps files whose paths have up to %d", name, length, PATH_ROOM - 1);
        return NULL;
    }
    char *path = malloc(2 * PATH_MAX + 2);
    if (!path) {
        PUSH(H5E_NOSPACE, "no memory for a path");
        return NULL;
    }
    sprintf(path, "%s%s%s", from, between, name);
    // If the file is a link, the path is that of its target, if the target exists.
    if ((real = realpath(path, NULL)) != NULL) {
        strcpy(path, real);
        free(real);
    } else {
        char *slash = strrchr(path, '/');
        char last[PATH_MAX];
        snprintf(last, sizeof last, "%s", slash + 1);
        *slash = 0;
        if ((real = realpath(slash == path ? "/" : path, NULL)) != NULL) {
            sprintf(path, "%s/%s", strcmp(real, "/") == 0 ? "" : real, last);
            free(real);
        } else {
            // The directory does not exist, for example because the file was written on another node. The path is
            // resolved by its text alone.
            *slash = '/';
            char *out = path;
            for (char *at = path; *at;) {
                while (*at == '/') at++;
                size_t part = strcspn(at, "/");
                if (part == 2 && at[0] == '.' && at[1] == '.') {
                    while (out > path && *--out != '/') continue;
                } else if (part > 0 && !(part == 1 && at[0] == '.')) {
                    *out++ = '/';
                    memmove(out, at, part);
                    out += part;
                }
                at += part;
            }
            *out = 0;
        }
    }
    if (strlen(path) >= PATH_ROOM) {
        PUSH(H5E_BADVALUE, "%.100s...: the path has %zu bytes; Bivouac keeps files whose paths have up to %d", path, strlen(path),
             PATH_ROOM - 1);
        free(path);
        return NULL;
    }
    return path;
}

static uint64_t hash(uint64_t state, const char *text) {
    for (; *text; text++) state = (state ^ (unsigned char)*text) * 0x100000001b3u;
    state ^= state >> 32;
    state *= 0x9e3779b97f4a7c15u;
    return state ^ state >> 29;
}

// The series of a path: the file's name for people to read, and 128 bits of the whole path, which distinguish files in different folders.
static void series_of(const char *path, char name[NAME_ROOM]) {
    const char *slash = strrchr(path, '/');
    size_t at = 0;
    for (const char *from = slash ? slash + 1 : path; *from && at < 80; from++) {
        char c = *from;
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_';
        name[at] = c == RANK ? '%' : plain || (c == '.' && at > 0) ? c : '_';
        at++;
    }
    sprintf(name + at, "-%016llx%016llx", (unsigned long long)hash(0xcbf29ce484222325u, path),
            (unsigned long long)hash(0x84222325cbf29ce4u, path));
}

struct run {
    size_t at, length;
    unsigned long value;
};

// The numbers in a path, from left to right, except those in an extension such as `.h5`.
static int runs_of(const char *path, struct run runs[RUNS]) {
    const char *name = strrchr(path, '/');
    const char *extension = strrchr(name ? name : path, '.');
    size_t end = strlen(path);
    if (extension && strspn(extension + 1, "0123456789") != strlen(extension + 1)) end = (size_t)(extension - path);
    int count = 0;
    for (size_t at = 0; at < end;) {
        size_t length = strspn(path + at, "0123456789");
        if (length == 0) {
            at++;
            continue;
        }
        if (count == RUNS) memmove(runs, runs + 1, (size_t)--count * sizeof *runs);
        runs[count++] = (struct run){at, length, length < 10 ? strtoul(path + at, NULL, 10) : ULONG_MAX};
        at += length;
    }
    return count;
}

// The path without the numbers that the bits of `which` select.
static void without_runs(const char *path, uint32_t which, char out[PATH_ROOM + 1]) {
    struct run runs[RUNS];
    int count = runs_of(path, runs);
    size_t from = 0;
    for (int at = 0; at < count; at++) {
        if (!(which >> at & 1)) continue;
        out += sprintf(out, "%.*s%c", (int)(runs[at].at - from), path + from, RANK);
        from = runs[at].at + runs[at].length;
    }
    strcpy(out, path + from);
}

// Which of the numbers of a path equal `value`, as bits.
static uint32_t runs_that_are(const char *path, unsigned long value) {
    struct run runs[RUNS];
    uint32_t which = 0;
    for (int at = runs_of(path, runs); at-- > 0;) which |= (uint32_t)(runs[at].value == value) << at;
    return which;
}

// --- Agreements between the ranks (scope=world) ---------------------------------------------------------------------------------

// Waits until a request is complete, but not for ever. If it gives up, the request stays pending, and its memory must stay allocated.
static bool finish(struct session *session, const struct settings *settings, MPI_Request *request, const char *path) {
    struct timespec now, from, pause = {0, 20000};
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (bool warned = false;;) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            snprintf(session->broken, sizeof session->broken, "an MPI call failed");
            break;
        }
        if (done) return true;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double waited = (double)(now.tv_sec - from.tv_sec) + 1e-9 * (double)(now.tv_nsec - from.tv_nsec);
        if (waited > 10 && !warned) {
            warned = true;
            say("rank %d has waited 10 s for the other ranks while opening or deleting %s: with scope=world all ranks must open "
                "their files in the same order. For files of single ranks use scope=self, or leave them out with files=",
                session->rank, path);
        }
        if (waited > settings->patience) {
            snprintf(session->broken, sizeof session->broken,
                     "rank %d waited %.0f s (patience=%.0f) for the other ranks to open or delete a file as well (it was %.200s)",
                     session->rank, waited, settings->patience, path);
            break;
        }
        // For a short time it polls without pauses, because usually all ranks arrive at the same time.
        if (waited > 0.002) nanosleep(&pause, NULL);
    }
    PUSH(H5E_CANTOPENFILE, "%s: %s. No file of scope=world can be opened any more; relaunch the program", path, session->broken);
    return false;
}

// The operations that ranks perform together.
enum kind { READS, CHANGES, CREATES, CREATES_NEW, LOADS, DELETES };
static const char *const DOES[] = {"opens for reading", "opens for writing", "creates", "creates (if it does not exist)", "loads", "deletes"};

// The values that ranks compare. All are numbers, so that a single reduction finds the least and the greatest of each.
enum { KIND, NAME, ON_DISK, LOST, NUMBERS, FACTS = NUMBERS + 2 * RUNS };

struct exchange {
    uint64_t mine[2 * FACTS], all[2 * FACTS];
    char path[PATH_ROOM];
    int different, first;
};

static bool reduce(struct session *session, const struct settings *settings, struct exchange *exchange, const char *path) {
    MPI_Request request;
    for (int at = 0; at < FACTS; at++) exchange->mine[FACTS + at] = ~exchange->mine[at];
    if (MPI_Iallreduce(exchange->mine, exchange->all, 2 * FACTS, MPI_UINT64_T, MPI_MAX, session->comm, &request) != MPI_SUCCESS) {
        PUSH(H5E_CANTOPENFILE, "%s: the ranks cannot exchange messages", path);
        return false;
    }
    return finish(session, settings, &request, path);
}

static uint64_t least(const struct exchange *exchange, int fact) { return ~exchange->all[FACTS + fact]; }

static bool is_same(const struct exchange *exchange, int fact) { return exchange->all[fact] == least(exchange, fact); }

// Reports on all ranks which files differ: the file of rank 0, and the file of the first rank whose file differs from it.
static void push_difference(struct session *session, const struct settings *settings, struct exchange *exchange, const char *path) {
    char first[PATH_ROOM + 32];
    uint64_t *facts = exchange->mine;
    MPI_Request request;
    snprintf(exchange->path, sizeof exchange->path, "%s", path);
    if (MPI_Ibcast(exchange->path, PATH_ROOM, MPI_CHAR, 0, session->comm, &request) != MPI_SUCCESS ||
        !finish(session, settings, &request, path))
        return;
    snprintf(first, sizeof first, "%s", exchange->path);
    memcpy(exchange->all, facts, FACTS * sizeof *facts);
    if (MPI_Ibcast(exchange->all, FACTS, MPI_UINT64_T, 0, session->comm, &request) != MPI_SUCCESS ||
        !finish(session, settings, &request, path))
        return;
    uint64_t first_kind = exchange->all[KIND];
    bool agrees = first_kind == facts[KIND] && exchange->all[NAME] == facts[NAME];
    exchange->different = agrees ? INT_MAX : session->rank;
    if (MPI_Iallreduce(&exchange->different, &exchange->first, 1, MPI_INT, MPI_MIN, session->comm, &request) != MPI_SUCCESS ||
        !finish(session, settings, &request, path))
        return;
    int other = exchange->first == INT_MAX ? session->size - 1 : exchange->first;
    exchange->all[0] = facts[KIND];
    snprintf(exchange->path, sizeof exchange->path, "%s", path);
    if (MPI_Ibcast(exchange->path, PATH_ROOM, MPI_CHAR, other, session->comm, &request) != MPI_SUCCESS ||
        !finish(session, settings, &request, path) ||
        MPI_Ibcast(exchange->all, 1, MPI_UINT64_T, other, session->comm, &request) != MPI_SUCCESS ||
        !finish(session, settings, &request, path))
        return;
    PUSH(H5E_CANTOPENFILE,
         "the ranks disagree on a file of scope=world: rank 0 %s %.600s, and rank %d %s %.600s. All ranks must open their files in the "
         "same order, under one name or under names that differ only in the rank's number (rank= says which number that is). For files "
         "of single ranks use scope=self, or leave them out with files=",
         DOES[first_kind], first, other, DOES[exchange->all[0]], exchange->path);
}

// --- Sessions -------------------------------------------------------------------------------------------------------------------

static int at_finalize(MPI_Comm comm, int key, void *value, void *extra);

static void close_session(struct session *session) {
    if (session->handle && bvk_close(&session->handle) < 0) say("not all checkpoints could be completed: %s", bvk_error());
    session->handle = NULL;
}

// HDF5 ends at the exit of the process, or by H5close. Sessions of several ranks stay open until MPI_Finalize, because ranks need not end
// HDF5 together, and may use it again. If the driver has started MPI, `end` below runs later.
static herr_t terminate(void) {
    if (getpid() != process) return 0;
    for (struct session *session = sessions; session; session = session->next) {
        // HDF5 closes its files before its drivers, so no file is left that needs the session.
        if (session->scope == SELF && !open_files) close_session(session);
    }
    return 0;
}

// Runs after all functions of atexit, including HDF5's own, which closes HDF5's files and calls `terminate`.
__attribute__((destructor)) static void end(void) {
    int is_finalized = 1;
    if (started_mpi && getpid() == process && MPI_Finalized(&is_finalized) == MPI_SUCCESS && !is_finalized) MPI_Finalize();
}

static bool is_launched(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", NULL};
    for (int at = 0; variables[at]; at++)
        if (getenv(variables[at])) return true;
    return false;
}

static bool has_mpi(const struct settings *settings, const char *path) {
    int is_there = 0, is_gone = 0, level = 0, is_main = 0;
    MPI_Initialized(&is_there);
    MPI_Finalized(&is_gone);
    if (is_gone || finalizing) {
        PUSH(H5E_CANTOPENFILE,
             "%s: MPI has been finalized, but Bivouac needs it. Use the file before MPI_Finalize, or leave it out with files=", path);
        return false;
    }
    if (!is_there) {
        // A program that uses MPI but has not started it yet will do so, and starting MPI twice ends the program.
        void *program = dlopen(NULL, RTLD_LAZY);
        bool has_own = program && dlsym(program, "MPI_Init") != NULL;
        if (program) dlclose(program);
        if (settings->mpi == MPI_REFUSE || (settings->mpi == MPI_AUTO && has_own && is_launched())) {
            PUSH(H5E_CANTOPENFILE,
                 "%s: MPI is not initialised yet, but Bivouac needs it. Use the file after MPI_Init, or leave it out with files=; for a "
                 "program that never calls MPI_Init set mpi=init",
                 path);
            return false;
        }
        // HDF5 loads a driver with its symbols hidden from other libraries, but Open MPI's plugins may need the symbols of MPI.
        Dl_info where;
        if (dladdr((void *)(uintptr_t)&MPI_Init_thread, &where) && where.dli_fname)
            (void)dlopen(where.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
            PUSH(H5E_CANTOPENFILE, "%s: MPI cannot be initialised", path);
            return false;
        }
        started_mpi = true;
        process = getpid();
    }
    if (process == 0) process = getpid();
    if (getpid() != process) {
        PUSH(H5E_CANTOPENFILE, "%s: a forked child has no MPI, but Bivouac needs it. Leave the file out with files=", path);
        return false;
    }
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if (level < MPI_THREAD_SERIALIZED && !is_main) {
        PUSH(H5E_CANTOPENFILE,
             "%s: this thread may not call MPI. Ask for MPI_THREAD_SERIALIZED or more in MPI_Init_thread, or use HDF5 on the main thread",
             path);
        return false;
    }
    return true;
}

// Makes the driver's own communicator, without an unlimited wait for ranks that open no file.
static bool duplicate(struct session *session, const struct settings *settings, const char *path) {
    MPI_Request request;
    if (MPI_Comm_idup(MPI_COMM_WORLD, &session->comm, &request) != MPI_SUCCESS) {
        PUSH(H5E_CANTOPENFILE, "%s: MPI cannot duplicate its communicator", path);
        return false;
    }
    if (!finish(session, settings, &request, path)) return false;
    MPI_Comm_set_errhandler(session->comm, MPI_ERRORS_RETURN);
    return true;
}

// The session of a file. Bivouac opens it only after the ranks have agreed on the file (`open_session`).
static struct session *session_for(const struct settings *settings, const char *path) {
    int size = 1, rank = 0;
    if (!has_mpi(settings, path)) return NULL;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    enum scope scope = settings->scope == BY_SIZE ? (size == 1 ? SELF : WORLD) : settings->scope;
    char job[128], group[128];
    strcpy(job, settings->job);
    if (!*job && !has_job_name()) strcpy(job, "hdf5");
    strcpy(group, settings->group);
    // With this default, a tool that runs on a single rank finds what all ranks, or rank 0, have written.
    if (!*group && scope == SELF && rank > 0) snprintf(group, sizeof group, "self-%d", rank);
    else if (!*group) strcpy(group, "world");
    struct session *session = sessions;
    while (session && (session->scope != scope || strcmp(session->job, job) != 0 || strcmp(session->group, group) != 0))
        session = session->next;
    if (!session) {
        if (!(session = calloc(1, sizeof *session))) {
            PUSH(H5E_NOSPACE, "%s: no memory for a session", path);
            return NULL;
        }
        session->scope = scope;
        session->size = scope == WORLD ? size : 1;
        session->rank = scope == WORLD ? rank : 0;
        session->comm = MPI_COMM_NULL;
        strcpy(session->job, job);
        strcpy(session->group, group);
        session->next = sessions;
        sessions = session;
    }
    if (*session->broken) {
        PUSH(H5E_CANTOPENFILE, "%s: %s. No file of scope=world can be opened any more; relaunch the program", path, session->broken);
        return NULL;
    }
    if (session->size > 1 && session->comm == MPI_COMM_NULL && !duplicate(session, settings, path)) return NULL;
    return session;
}

static bool open_session(struct session *session, const char *path) {
    if (session->handle) return true;
    char job[160], group[160];
    snprintf(job, sizeof job, "job.name=%s", session->job);
    snprintf(group, sizeof group, "job.group=%s", session->group);
    const char *entries[3] = {group, *session->job ? job : NULL, NULL};
    bvk_options options = BVK_OPTIONS_INIT;
    options.settings = entries;
    if (bvk_open(session->scope == WORLD ? MPI_COMM_WORLD : MPI_COMM_SELF, &options, &session->handle) < 0) {
        PUSH(H5E_CANTOPENFILE, "%s: Bivouac cannot keep this file: %s", path, bvk_error());
        return false;
    }
    for (struct series *series = session->series; series; series = series->next) series->state = UNKNOWN, series->numbered = false;
    if (!hooked) {
        int key = MPI_KEYVAL_INVALID;
        hooked = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL) == MPI_SUCCESS &&
                 MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL) == MPI_SUCCESS;
        if (!hooked) say("MPI_Finalize will not wait for checkpoints that are being written");
    }
    return true;
}

static struct series *series_named(struct session *session, const char *name) {
    struct series *series = session->series;
    while (series && strcmp(series->name, name) != 0) series = series->next;
    if (!series && (series = calloc(1, sizeof *series)) != NULL) {
        strcpy(series->name, name);
        series->next = session->series;
        session->series = series;
    }
    if (!series) PUSH(H5E_NOSPACE, "no memory for the series %s", name);
    return series;
}

// Lets the ranks of a session agree on a file. On return, all ranks have the same series in `name` and the same value in `is_on_disk`.
static bool agree(struct file *file, enum kind kind, bool *is_on_disk, char name[NAME_ROOM]) {
    struct session *session = file->session;
    char shorter[PATH_ROOM + 1];
    series_of(file->path, name);
    if (session->size == 1) return true;
    // Memory that MPI is using outlives an agreement that was given up.
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange) {
        PUSH(H5E_NOSPACE, "%s: no memory for a message", file->path);
        return false;
    }
    const uint64_t start = 0xcbf29ce484222325u;
    const enum rank_rule rule = file->settings.rank;
    uint64_t *mine = exchange->mine;
    mine[KIND] = (uint64_t)kind;
    mine[NAME] = hash(start, file->path);
    mine[ON_DISK] = *is_on_disk;
    mine[LOST] = session->has_lost;
    for (int bit = 0; bit < 2 * RUNS; bit++)
        mine[NUMBERS + bit] = runs_that_are(file->path, (unsigned long)(session->rank + bit / RUNS)) >> bit % RUNS & 1;
    if (!reduce(session, &file->settings, exchange, file->path)) return false;
    for (struct series *series = session->series; series && exchange->all[LOST]; series = series->next) series->state = UNKNOWN;
    session->has_lost = false;
    // A new file is refused if it is on the disk of any rank, and a file is taken over only if it is on the disk of all.
    *is_on_disk = kind == CREATES_NEW ? exchange->all[ON_DISK] != 0 : *is_on_disk && is_same(exchange, ON_DISK);
    bool is_agreed = is_same(exchange, KIND), is_one_name = is_same(exchange, NAME);
    uint32_t which[2] = {0, 0};
    for (int bit = 0; bit < 2 * RUNS; bit++) which[bit / RUNS] |= (uint32_t)least(exchange, NUMBERS + bit) << bit % RUNS;
    if (rule == RANK_AT) {
        struct run runs[RUNS];
        int at = file->settings.rank_at > 0 ? file->settings.rank_at - 1 : runs_of(file->path, runs) + file->settings.rank_at;
        which[0] = at >= 0 && at < RUNS ? (uint32_t)1 << at : 0;
    }
    // Names may differ in the numbers that equal the rank, or the rank plus one, on all ranks.
    for (int offset = 0; !is_one_name && offset < (rule == RANK_AUTO ? 2 : rule == RANK_AT ? 1 : 0); offset++) {
        if (!which[offset] && rule == RANK_AUTO) continue;
        without_runs(file->path, which[offset], shorter);
        mine[NAME] = hash(start, shorter);
        if (!reduce(session, &file->settings, exchange, file->path)) return false;
        is_one_name = is_same(exchange, NAME);
        if (is_one_name) series_of(shorter, name);
    }
    if (!is_one_name && rule == RANK_AUTO && !which[0] && !which[1]) { // so that the message names the right rank
        without_runs(file->path, runs_that_are(file->path, (unsigned long)session->rank), shorter);
        mine[NAME] = hash(start, shorter);
    }
    is_agreed &= is_one_name;
    if (!is_agreed) push_difference(session, &file->settings, exchange, file->path);
    if (!*session->broken) free(exchange);
    return is_agreed;
}

// Finds the session and the series of a file, on which the ranks agree. The file's path must be set.
static bool place(struct file *file, enum kind kind, bool *is_on_disk) {
    struct session *session = session_for(&file->settings, file->path);
    if (!session) return false;
    char name[NAME_ROOM];
    struct stat is;
    bool is_here = stat(file->path, &is) == 0 && S_ISREG(is.st_mode);
    file->session = session;
    *is_on_disk = is_here;
    if (!agree(file, kind, is_on_disk, name) || !open_session(session, file->path)) return false;
    // A file that is only read may exist for some of the ranks only.
    if (kind == READS) *is_on_disk = is_here;
    file->series = series_named(session, name);
    strcpy(file->stored, name);
    return file->series != NULL;
}

// The file that is already open under this path, which may be new and in no version; NULL: none. HDF5 then uses that
// file, and closes this one.
static const struct file *open_already(const struct file *file) {
    const struct file *other = open_files;
    while (other && (other == file || other->inner || other->series != file->series || strcmp(other->path, file->path) != 0))
        other = other->next;
    return other;
}

// --- Loading --------------------------------------------------------------------------------------------------------------------

static bool grow(struct file *file, size_t length) {
    if (length > file->room) {
        size_t room = file->room + file->room / 2 > length ? file->room + file->room / 2 : length;
        room = (room + 65535) / 65536 * 65536;
        unsigned char *bytes = realloc(file->bytes, room);
        if (!bytes) {
            PUSH(H5E_NOSPACE, "%s: no memory for %zu bytes. An open file is in memory as a whole. Leave this one out with files=, so "
                              "that HDF5 writes it to disk, or write smaller files", file->path, room);
            return false;
        }
        file->bytes = bytes;
        file->room = room;
    }
    if (length > file->length) memset(file->bytes + file->length, 0, length - file->length);
    file->length = length;
    return true;
}

// The checksum of HDF5's superblock (Bob Jenkins' lookup3), computed byte by byte.
static uint32_t lookup3(const unsigned char *data, size_t length) {
    uint32_t s[3];
#define ROTATED(x, by) (((x) << (by)) | ((x) >> (32 - (by))))
    s[0] = s[1] = s[2] = 0xdeadbeefu + (uint32_t)length;
    for (bool is_last = false; !is_last && length > 0;) {
        size_t part = length > 12 ? 12 : length;
        is_last = length <= 12;
        for (size_t at = 0; at < part; at++) s[at / 4] += (uint32_t)data[at] << 8 * (at % 4);
        data += part, length -= part;
        if (!is_last) {
            static const int by[] = {4, 6, 8, 16, 19, 4};
            for (int step = 0; step < 6; step++) {
                int a = step % 3, b = (step + 1) % 3, c = (step + 2) % 3;
                s[a] -= s[c];
                s[a] ^= ROTATED(s[c], by[step]);
                s[c] += s[b];
            }
        } else {
            static const int by[] = {14, 11, 25, 16, 4, 14, 24};
            for (int step = 0; step < 7; step++) {
                int c = (step + 2) % 3, b = (step + 1) % 3;
                s[c] ^= s[b];
                s[c] -= ROTATED(s[b], by[step]);
            }
        }
    }
#undef ROTATED
    return s[2];
}

// Marks a file as closed. A version that was taken at a flush has the file marked as open for writing, and HDF5 would refuse to open it.
static void mark_closed(unsigned char *bytes, size_t length) {
    for (size_t at = 0; at + 48 <= length; at = at == 0 ? 512 : 2 * at) {
        unsigned char *block = bytes + at;
        if (memcmp(block, "\211HDF\r\n\032\n", 8) != 0) continue;
        const unsigned char open = 0x05; // open for writing, open for SWMR writing
        if (block[8] < 2) { // these flags have no checksum, and HDF5 does not look at them
            block[20] &= (unsigned char)~open;
            return;
        }
        size_t size = 12 + 4 * (size_t)block[9];
        if (block[8] > 3 || at + size + 4 > length) return;
        uint32_t sum = lookup3(block, size);
        for (int byte = 0; byte < 4; byte++)
            if (block[size + (size_t)byte] != (unsigned char)(sum >> 8 * byte)) return;
        block[11] &= (unsigned char)~open;
        sum = lookup3(block, size);
        for (int byte = 0; byte < 4; byte++) block[size + (size_t)byte] = (unsigned char)(sum >> 8 * byte);
        return;
    }
}

// The question that a restart has to answer, and its findings.
struct search {
    struct session *session;
    struct series *series;
    const char *path;
    bool any_rank;     // the path may be that of any rank that took the version
    struct file *into; // where the bytes are loaded; NULL: nothing is loaded
    uint64_t version, bytes, state;
    int ranks;
    bool is_other; // the version has no file with this path
    char reason[PATH_ROOM + 600];
};

static bool is_ours(struct search *search, const struct info *info) {
    if (memcmp(info->magic, MAGIC, sizeof MAGIC) == 0 && memchr(info->path, 0, sizeof info->path)) return true;
    snprintf(search->reason, sizeof search->reason, "the series %s was not written by this driver", search->series->name);
    return false;
}

// Finds the file among those of all ranks that took the version, and the number of bytes before it. Collective.
static int find_among(bvk_restart_t restart, struct search *search, struct info *info, uint64_t *before) {
    struct info *infos = malloc(INFOS * sizeof *infos);
    uint64_t sum = 0;
    int found = -1, loaded = infos ? 1 : -1;
    int mine = search->session->size == search->ranks ? search->session->rank : -1; // preferred to another file with the same path
    char example[PATH_ROOM] = "";
    for (int first = 0; first < search->ranks; first += INFOS) {
        int count = search->ranks - first < INFOS ? search->ranks - first : INFOS;
        int status = bvk_of_ranks(restart, INFO, first, infos ? count : 0, infos, sizeof *infos, BVK_U8);
        if (status < 0) {
            snprintf(search->reason, sizeof search->reason, "%s", bvk_error());
            free(infos);
            return 0;
        }
        for (int at = 0; infos && at < count; at++) {
            if (!is_ours(search, &infos[at])) loaded = -1;
            else if (strcmp(infos[at].path, search->path) == 0 && (found < 0 || first + at == mine)) {
                found = first + at;
                *info = infos[at];
                *before = sum;
            } else if (!*example) memcpy(example, infos[at].path, sizeof example);
            sum += infos[at].bytes;
        }
    }
    free(infos);
    if (loaded == 1 && found < 0) {
        search->is_other = true;
        snprintf(search->reason, sizeof search->reason,
                 "version %" PRIu64 " of the series %s was taken by %d ranks, none of which had this file; one had %s",
                 search->version, search->series->name, search->ranks, example);
    }
    return found < 0 ? -1 : loaded;
}

// Makes one attempt, and returns the value for bvk_end_restore.
static int load_once(bvk_restart_t restart, struct search *search) {
    struct info info = {.bytes = 0};
    uint64_t before = 0, count = 0;
    bvk_loaded_rows_t rows = NULL;
    int loaded = 1, status;
    search->is_other = false;
    search->reason[0] = 0;
    if (bvk_saved_version(restart, &search->version) < 0 || bvk_saved_ranks(restart, &search->ranks) < 0) return 0;
    bool is_own = !search->any_rank && search->ranks == search->session->size;
    if (is_own) {
        status = bvk_load_per_rank(restart, INFO, &info, sizeof info, BVK_U8);
        if (status < 0) {
            snprintf(search->reason, sizeof search->reason, "%s", bvk_error());
            return 0;
        }
        if (!is_ours(search, &info)) return -1;
        if (strcmp(info.path, search->path) != 0) {
            search->is_other = true;
            snprintf(search->reason, sizeof search->reason, "version %" PRIu64 " of the series %s has the file %s for this rank", search->version,
                     search->series->name, info.path);
            return -1;
        }
    } else {
        loaded = find_among(restart, search, &info, &before);
        if (loaded == 0) return 0;
    }
    search->bytes = info.bytes;
    search->state = info.state;
    struct file *file = search->into;
    if (!file) return loaded;
    if (search->version < search->series->own) {
        snprintf(search->reason, sizeof search->reason,
                 "version %" PRIu64 ", which this run has closed, cannot be restored, and the newest that can is %" PRIu64
                 "; a new run of the program begins with that one",
                 search->series->own, search->version);
        loaded = -1;
    }
    file->length = 0;
    if (loaded == 1 && (info.bytes > ADDRESSES || !grow(file, (size_t)info.bytes))) {
        loaded = -1;
        snprintf(search->reason, sizeof search->reason, "there is no memory for %" PRIu64 " bytes", info.bytes);
    }
    if (is_own && loaded != 1) return loaded;
    // If loading is collective, ranks that have found no file, or have no room for it, take part without bytes.
    uint64_t wanted = loaded == 1 ? info.bytes : 0;
    status = is_own ? bvk_load_rows(restart, SET, BVK_ROWS_OWN, &rows, &count)
                    : bvk_load_rows_range(restart, SET, before, wanted, &rows, &count);
    if (status >= 0 && count == wanted) status = bvk_load_column(rows, COLUMN, count ? (void *)file->bytes : &count, count, BVK_U8, 1);
    else if (status >= 0) {
        loaded = -1;
        snprintf(search->reason, sizeof search->reason, "%" PRIu64 " bytes were found where %" PRIu64 " were saved", count, wanted);
    }
    if (status < 0) {
        if (loaded == 1) loaded = 0;
        snprintf(search->reason, sizeof search->reason, "%s", bvk_error());
    }
    if (loaded == 1 && info.state == OPEN) mark_closed(file->bytes, file->length);
    return loaded;
}

// Looks for the newest version that can be restored. Returns BVK_OK, BVK_NOTHING, or an error below 0, whose text is in `reason`.
static int restore(struct search *search) {
    bvk_restart_t restart = NULL;
    bvk_restored restored = BVK_RESTORED_INIT;
    int status = bvk_begin_restore(search->session->handle, search->series->name, BVK_NEWEST, &restart);
    char local[sizeof search->reason] = "";
    if (status == BVK_OK) {
        do {
            int loaded = load_once(restart, search);
            memcpy(local, search->reason, sizeof local);
            status = bvk_end_restore(&restart, loaded, &restored);
        } while (status == BVK_AGAIN);
    }
    if (status < 0) {
        size_t at = 0;
        if (*local) at = (size_t)snprintf(search->reason, sizeof search->reason, "%s; ", local);
        if (at < sizeof search->reason) snprintf(search->reason + at, sizeof search->reason - at, "%s", bvk_error());
        return status;
    }
    if (status == BVK_OK && search->version > search->series->last) search->series->last = search->version;
    search->series->numbered = true;
    return status;
}

// Loads the file when HDF5 first asks for something in it. An H5Fcreate opens an existing file to see which one it is, closes it, and
// truncates it. Nothing is loaded in that case.
static bool load(struct file *file) {
    if (file->loaded) return true;
    char name[NAME_ROOM];
    const struct file *twin = open_already(file);
    if (twin && twin->loaded) { // H5FDopen, which bypasses HDF5's list of open files, opened it twice
        if (!grow(file, twin->length)) return false;
        if (twin->length > 0) memcpy(file->bytes, twin->bytes, twin->length);
        return file->loaded = true;
    }
    if (file->imported) {
        FILE *disk = fopen(file->path, "rb");
        struct stat is;
        bool is_read = disk && fstat(fileno(disk), &is) == 0 && grow(file, (size_t)is.st_size) &&
                       fread(file->bytes, 1, file->length, disk) == file->length;
        if (!is_read) PUSH(H5E_CANTOPENFILE, "%s cannot be read: %s", file->path, strerror(errno));
        if (disk) fclose(disk);
        bool is_read_by_all = is_read;
        if (!agree(file, LOADS, &is_read_by_all, name)) return false;
        if (is_read && !is_read_by_all) PUSH(H5E_CANTOPENFILE, "%s: another rank cannot read its file", file->path);
        return file->loaded = is_read_by_all;
    }
    if (!file->session->handle) {
        PUSH(H5E_CANTOPENFILE, "%s: MPI has been finalized, but Bivouac needs it. Use the file before MPI_Finalize", file->path);
        return false;
    }
    struct series *stored = series_named(file->session, file->stored);
    bool is_on_disk = false;
    if (!stored || !agree(file, LOADS, &is_on_disk, name)) return false;
    static struct search search; // too large for the stacks of some threads
    search = (struct search){.session = file->session, .series = stored, .path = file->path, .any_rank = file->any_rank, .into = file};
    int status = restore(&search);
    const char *next = "`bivouac ls` and `bivouac verify` show what is stored";
    if (status == BVK_NOTHING) PUSH(H5E_CANTOPENFILE, "%s: no version can be restored any more. %s", file->path, next);
    else if (status < 0) PUSH(H5E_CANTOPENFILE, "%s cannot be restored: %s. %s", file->path, search.reason, next);
    else if (search.state == DELETED) PUSH(H5E_CANTOPENFILE, "%s was deleted", file->path);
    else if (file->writable && (file->any_rank || search.ranks != file->session->size)) {
        PUSH(H5E_CANTOPENFILE,
             "%s is one of the files of %d ranks, which only %d ranks can change together. On this number of ranks it can be read, and "
             "copied (h5repack)",
             file->path, search.ranks, search.ranks);
    } else return file->loaded = true;
    free(file->bytes);
    file->bytes = NULL;
    file->length = file->room = 0;
    return false;
}

// --- Saving ---------------------------------------------------------------------------------------------------------------------

// Whether HDF5 closes its files by itself, at the exit of the process or in H5close. It does not show its errors then.
static bool is_exiting(void) {
    bool is_terminating = false;
    return H5is_library_terminating(&is_terminating) >= 0 && is_terminating;
}

// Reports a version that is not taken.
static void complain(const char *format, ...) {
    char text[PATH_ROOM + 900];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    PUSH(H5E_WRITEERROR, "%s", text);
    if (finalizing || is_exiting()) say("%s", text);
}

static bool failed(const char *path, const char *what, uint64_t version) {
    complain("%s: version %" PRIu64 " was not %s: %s. Earlier versions are unchanged; make room, or run `bivouac doctor`, and write the "
             "file again", path, version, what, bvk_error());
    return false;
}

// Takes a version of a series.
static bool save(struct session *session, const struct settings *settings, struct series *series, const char *path, uint64_t state,
                 const unsigned char *bytes, size_t length) {
    if (!session->handle) {
        PUSH(H5E_WRITEERROR, "%s: MPI has been finalized, so what was written is not saved. Close files before MPI_Finalize", path);
        say("%s: MPI has been finalized, so what was written since the last version is not saved. Close files before MPI_Finalize", path);
        return false;
    }
    if (!series->numbered) {
        uint64_t newest = 0;
        size_t count = 0;
        if (bvk_versions(session->handle, series->name, &newest, 1, &count) < 0) return failed(path, "taken", series->last + 1);
        if (count > 0 && newest > series->last) series->last = newest;
        series->numbered = true;
    }
    uint64_t version = series->last + 1;
    bvk_checkpoint_t checkpoint = NULL;
    bvk_pending_t pending = NULL;
    struct info info = {.bytes = length, .state = state};
    memcpy(info.magic, MAGIC, sizeof MAGIC);
    strcpy(info.path, path);
    struct bvk_column column = {.name = COLUMN, .data = length ? bytes : NULL, .kind = BVK_U8, .width = 1};
    bvk_rows rows = BVK_ROWS_INIT;
    rows.count = length;
    rows.columns = &column;
    rows.column_count = 1;
    series->last = version;
    // With several ranks, a rank that fails tells the others when they next open a file.
    series->state = state != DELETED && session->size > 1 ? PRESENT : UNKNOWN;
    bool had_lost = session->has_lost;
    session->has_lost = true;
    if (bvk_begin_checkpoint(session->handle, series->name, version, &checkpoint) < 0) return failed(path, "taken", version);
    if (state == ABANDONED) {
        bvk_abort(&checkpoint);
        return false;
    }
    if (bvk_save_rows(checkpoint, SET, &rows) < 0 ||
        bvk_save_per_rank(checkpoint, INFO, &info, sizeof info, BVK_U8, BVK_RESIZE_ASK) < 0) {
        failed(path, "taken", version);
        bvk_abort(&checkpoint);
        return false;
    }
    if (bvk_capture(&checkpoint, &pending) < 0) {
        failed(path, "saved", version);
        bvk_abort(&checkpoint);
        return false;
    }
    bool is_safe = settings->level == BVK_LEVEL_CAPTURED || bvk_wait(pending, settings->level, NULL) >= 0;
    if (!is_safe) failed(path, "committed at the level of wait=", version);
    bvk_release(&pending);
    if (!is_safe) return false;
    if (session->size == 1) series->state = state == DELETED ? ABSENT : PRESENT;
    session->has_lost = had_lost;
    series->own = version;
    return true;
}

static bool save_file(struct file *file, uint64_t state) {
    if (file->torn) {
        complain("%s: no version is taken, because a write to the file has failed. Earlier versions are unchanged; write the file again",
                 file->path);
        state = ABANDONED;
    }
    if (!save(file->session, &file->settings, file->series, file->path, state, file->bytes, file->length)) return false;
    file->dirty = false;
    return true;
}

// Makes HDF5 write everything that it holds for the open files. After an H5Fclose has failed, HDF5 keeps the ID of a file that no longer
// exists, and crashes if that ID is used. Files are then reached only through objects that are open in them.
static void flush_all(void) {
    const unsigned objects = H5F_OBJ_DATASET | H5F_OBJ_GROUP | H5F_OBJ_DATATYPE | H5F_OBJ_ATTR;
    const unsigned types = has_failed ? objects : objects | H5F_OBJ_FILE;
    ssize_t count = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, types);
    hid_t *ids = count > 0 ? malloc((size_t)count * sizeof *ids) : NULL;
    if (!ids) return;
    count = H5Fget_obj_ids((hid_t)H5F_OBJ_ALL, types, (size_t)count, ids);
    H5E_BEGIN_TRY {
        for (ssize_t at = 0; at < count; at++) (void)H5Fflush(ids[at], H5F_SCOPE_GLOBAL);
    }
    H5E_END_TRY
    free(ids);
}

// Saves the files that the program left open as they are, while this is still possible: each file once, in the same order on all ranks.
static void save_open_files(void) {
    if (open_files) flush_all();
    for (struct file *file = open_files; file; file = file->next) {
        if (file->inner || !file->writable || !file->loaded || (file->flushed && !file->dirty && file->session->size == 1)) continue;
        if (!file->flushed)
            say("%s is still open at MPI_Finalize, and HDF5 cannot flush it%s, so it is not saved. Close files before MPI_Finalize",
                file->path, has_failed ? " after an earlier error" : "");
        (void)save_file(file, file->flushed ? OPEN : ABANDONED);
        // HDF5 writes the same when it closes the file, if nothing else changes.
        mark_closed(file->bytes, file->length);
    }
}

// Called at the beginning of MPI_Finalize, while MPI still works, whoever called MPI_Finalize. (Attributes are deleted in the reverse order
// of their setting. Bivouac has an attribute as well, which it sets when the first session is opened, and therefore before this one.)
static int at_finalize(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    finalizing = true;
    if (getpid() == process) save_open_files();
    for (struct session *session = sessions; session; session = session->next) close_session(session);
    return MPI_SUCCESS;
}

// --- Opening and closing --------------------------------------------------------------------------------------------------------

// Looks for a version of the file. Returns BVK_OK, BVK_NOTHING, or an error below 0, which has been pushed.
static int look(struct file *file) {
    struct series *series = file->series;
    if (series->state == PRESENT) return BVK_OK;
    static struct search search;
    if (series->state == UNKNOWN) {
        search = (struct search){.session = file->session, .series = series, .path = file->path};
        int status = restore(&search);
        if (status < 0) {
            PUSH(H5E_CANTOPENFILE, "%s cannot be restored: %s. `bivouac ls` and `bivouac verify` show what is stored", file->path, search.reason);
            return status;
        }
        series->state = status == BVK_OK && search.state != DELETED ? PRESENT : ABSENT;
        if (series->state == PRESENT) return BVK_OK;
    }
    // A file that is opened for reading may be the file of one of several ranks, and its series then has a name without the rank's number.
    // (An H5Fcreate begins like an opening for writing, and would look for each new file in vain.)
    if (file->writable) return BVK_NOTHING;
    char verbatim[NAME_ROOM], shorter[PATH_ROOM + 1], name[NAME_ROOM];
    series_of(file->path, verbatim);
    if (strcmp(verbatim, series->name) != 0) return BVK_NOTHING;
    struct run runs[RUNS];
    const int count = runs_of(file->path, runs);
    // First each number is removed alone, and then each group of equal numbers.
    for (int at = 2 * count; at-- > 0;) {
        uint32_t one = (uint32_t)1 << at % count, same = runs_that_are(file->path, runs[at % count].value);
        if (at < count && (same == one || same >> (at + 1))) continue; // already looked for
        without_runs(file->path, at < count ? same : one, shorter);
        series_of(shorter, name);
        struct series *other = series_named(file->session, name);
        if (!other) return BVK_ERR_INTERNAL;
        if (other->state == ABSENT) continue;
        search = (struct search){.session = file->session, .series = other, .path = file->path, .any_rank = true};
        int status = restore(&search);
        if (status == BVK_NOTHING) other->state = ABSENT;
        if (status == BVK_NOTHING || search.is_other || (status == BVK_OK && search.state == DELETED)) continue;
        if (status < 0) {
            PUSH(H5E_CANTOPENFILE, "%s cannot be restored: %s. `bivouac ls` and `bivouac verify` show what is stored", file->path, search.reason);
            return status;
        }
        strcpy(file->stored, name);
        file->any_rank = true;
        return BVK_OK;
    }
    return BVK_NOTHING;
}

// Opens the file with sec2 and the program's other settings, such as those of locks. If this fails, `errno` says why.
static H5FD_t *open_on_disk(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr) {
    H5FD_t *inner = NULL;
    int reason = 0;
    H5E_BEGIN_TRY {
        hid_t list = H5Pcopy(fapl);
        if (list >= 0 && H5Pset_fapl_sec2(list) >= 0) inner = H5FDopen(name, flags, list, maxaddr);
        reason = errno;
        if (list >= 0) H5Pclose(list);
    }
    H5E_END_TRY
    errno = reason;
    return inner;
}

static void forget(struct file *file) {
    free(file->bytes);
    free(file->path);
    free(file);
}

// Refuses a directory, or a name that ends with a slash. (The ranks find out everything else together.)
static bool may_be_file(const char *name, const char *path) {
    struct stat is;
    bool is_good = name[strlen(name) - 1] != '/' && !(stat(path, &is) == 0 && S_ISDIR(is.st_mode));
    if (!is_good) PUSH(H5E_CANTOPENFILE, "%s is a directory", name);
    return is_good;
}

static bool open_kept(struct file *file, unsigned flags, hid_t fapl, haddr_t maxaddr) {
    bool is_new = (flags & (H5F_ACC_TRUNC | H5F_ACC_EXCL)) != 0, may_be_new = (flags & H5F_ACC_CREAT) != 0, is_on_disk = false;
    file->writable = (flags & H5F_ACC_RDWR) != 0;
    enum kind kind = flags & H5F_ACC_EXCL ? CREATES_NEW : is_new ? CREATES : file->writable ? CHANGES : READS;
    if (!place(file, kind, &is_on_disk)) return false;
    if (!is_new && open_already(file)) return true;
    int found = BVK_NOTHING;
    if ((kind != CREATES || !may_be_new) && (found = look(file)) < 0) return false;
    if (kind == CREATES_NEW && (found == BVK_OK || is_on_disk)) {
        PUSH(H5E_FILEEXISTS, "%s already exists (%s)", file->path, found == BVK_OK ? "as a checkpoint" : "on disk");
        return false;
    }
    if (is_new && (may_be_new || kind == CREATES_NEW || found == BVK_OK || is_on_disk || open_already(file))) {
        strcpy(file->stored, file->series->name);
        file->any_rank = false;
        file->loaded = file->dirty = true;
        return true;
    }
    if (found == BVK_OK) return true;
    if (!is_on_disk && may_be_new && file->writable) return file->loaded = file->dirty = true;
    if (!is_on_disk) {
        PUSH(H5E_CANTOPENFILE, "%s: no such file, neither in a checkpoint (job %s, group %s, series %s) nor on disk%s", file->path,
             *file->session->job ? file->session->job : "of Bivouac's configuration", file->session->group, file->series->name,
             file->session->size > 1 && file->writable ? " of all ranks" : "");
        return false;
    }
    if (file->writable) return file->imported = true;
    if (!(file->inner = open_on_disk(file->path, flags, fapl, maxaddr))) {
        PUSH(H5E_CANTOPENFILE, "%s is in no checkpoint, and cannot be opened on disk: %s", file->path, strerror(errno));
        return false;
    }
    if (!file->series->told && file->session->rank == 0) say("%s is in no checkpoint and is read from disk", file->path);
    file->series->told = true;
    return true;
}

// Whether the HDF5 that calls the driver is the HDF5 that the driver calls. A program with HDF5 linked into it, or with another version of
// HDF5, has two of them. The driver's HDF5 knows nothing of the program's IDs, files and error stack.
static bool is_one_library(const void *caller) {
    Dl_info theirs, ours;
    if (!dladdr(caller, &theirs) || !dladdr((void *)(uintptr_t)&H5Pget_driver_config_str, &ours) || theirs.dli_fbase == ours.dli_fbase) return true;
    static bool told;
    if (!told)
        say("the program's HDF5 is in %s, but the driver was linked with %s: no file can be opened. The program needs HDF5 as a shared "
            "library; build the driver with the same one (HDF5= in src/hdf5/Makefile), or unset HDF5_DRIVER",
            theirs.dli_fname, ours.dli_fname);
    told = true;
    return false;
}

static H5FD_t *open_file(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr) {
    if (!is_one_library(__builtin_return_address(0))) return NULL;
    struct file *file = calloc(1, sizeof *file);
    if (!file) {
        PUSH(H5E_NOSPACE, "no memory for a file");
        return NULL;
    }
    if (!name || !*name) PUSH(H5E_CANTOPENFILE, "the file has no name");
    bool is_open = name && *name && configure(fapl, &file->settings) && (file->path = absolute(name)) != NULL;
    if (is_open && is_kept(&file->settings, file->path)) is_open = may_be_file(name, file->path) && open_kept(file, flags, fapl, maxaddr);
    else if (is_open && !(file->inner = open_on_disk(name, flags, fapl, maxaddr))) {
        PUSH(H5E_CANTOPENFILE, "%s (which files= leaves to HDF5's driver sec2) cannot be opened: %s", name, strerror(errno));
        is_open = false;
    }
    if (!is_open) {
        forget(file);
        return NULL;
    }
    file->next = open_files;
    open_files = file;
    return &file->base;
}

static herr_t close_file(H5FD_t *base) {
    struct file *file = (struct file *)base;
    struct file **link = &open_files;
    while (*link && *link != file) link = &(*link)->next;
    if (*link) *link = file->next;
    bool is_good = true;
    if (file->inner) {
        is_good = H5FDclose(file->inner) >= 0;
        if (!is_good) PUSH(H5E_CANTCLOSEFILE, "%s cannot be closed", file->path);
    } else if (file->writable && file->loaded && getpid() == process &&
               (file->dirty || (file->session->size > 1 && file->session->handle && (file->finished || !file->imported)))) {
        // With several ranks, a version is taken by all of them or by none, so this rank takes part even if it has changed nothing. A file
        // is not saved if it could not be loaded, if HDF5 has only looked at it, or if it is on disk and is not an HDF5 file.
        is_good = save_file(file, CLOSED);
    }
    forget(file);
    // At the exit of the process, HDF5 would try again and again to close the file, and then abort. The loss has already been reported.
    return result(is_good || is_exiting());
}

static int compare(const H5FD_t *left, const H5FD_t *right) {
    const struct file *a = (const struct file *)left, *b = (const struct file *)right;
    if (a->inner && b->inner) return a->inner->cls->cmp ? a->inner->cls->cmp(a->inner, b->inner) : 0;
    if (!a->inner != !b->inner) return a->inner ? 1 : -1;
    if (a->session != b->session) return a->session < b->session ? -1 : 1;
    return strcmp(a->path, b->path);
}

static herr_t query(const H5FD_t *base, unsigned long *flags) {
    const struct file *file = (const struct file *)base;
    if (file && file->inner) return file->inner->cls->query ? file->inner->cls->query(file->inner, flags) : 0;
    if (flags)
        *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

// Deletes a file for everyone who opens it from now on, by a newest version that says so. The bytes of earlier versions remain until
// Bivouac's retention removes them.
static herr_t delete_file(const char *name, hid_t fapl) {
    if (!is_one_library(__builtin_return_address(0))) return -1;
    struct file *file = calloc(1, sizeof *file);
    bool is_on_disk = false, is_gone = false;
    if (!file) {
        PUSH(H5E_NOSPACE, "no memory for a file");
        return -1;
    }
    bool is_good = name && *name && configure(fapl, &file->settings) && (file->path = absolute(name)) != NULL;
    if (is_good && is_kept(&file->settings, file->path)) {
        file->writable = true;
        is_good = place(file, DELETES, &is_on_disk);
        int found = is_good ? look(file) : BVK_ERR_STATE;
        is_good = found >= 0;
        if (found == BVK_OK && file->any_rank) {
            PUSH(H5E_CANTDELETEFILE, "%s is one of the files of several ranks, which must delete them together", file->path);
            is_good = false;
        } else if (found == BVK_OK) {
            if (open_already(file)) {
                PUSH(H5E_CANTDELETEFILE, "%s is open: close it first", file->path);
                is_good = false;
            }
            is_good = is_good && save(file->session, &file->settings, file->series, file->path, DELETED, NULL, 0);
            is_gone = is_good;
        }
    }
    if (is_good && unlink(name) != 0 && !((is_gone || is_on_disk) && errno == ENOENT)) {
        PUSH(H5E_CANTDELETEFILE, "%s cannot be deleted: %s", name, strerror(errno));
        is_good = false;
    }
    forget(file);
    return is_good ? 0 : -1;
}

// --- Reading and writing --------------------------------------------------------------------------------------------------------

static haddr_t get_eoa(const H5FD_t *base, H5FD_mem_t type) {
    const struct file *file = (const struct file *)base;
    return file->inner ? file->inner->cls->get_eoa(file->inner, type) : file->eoa;
}

static herr_t set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t address) {
    struct file *file = (struct file *)base;
    if (file->inner) return file->inner->cls->set_eoa(file->inner, type, address);
    file->eoa = address;
    return 0;
}

static haddr_t get_eof(const H5FD_t *base, H5FD_mem_t type) {
    // HDF5 passes the file as const here, but this call may have to load it.
    struct file *file = (struct file *)(uintptr_t)base;
    if (file->inner) return file->inner->cls->get_eof(file->inner, type);
    return load(file) ? (haddr_t)file->length : HADDR_UNDEF;
}

static herr_t get_handle(H5FD_t *base, hid_t fapl, void **handle) {
    struct file *file = (struct file *)base;
    if (file->inner) return file->inner->cls->get_handle(file->inner, fapl, handle);
    if (!handle || !load(file)) return -1;
    *handle = &file->bytes;
    return 0;
}

static bool is_inside(const struct file *file, haddr_t address, size_t size) {
    if (address <= ADDRESSES && size <= ADDRESSES - address) return true;
    PUSH(H5E_OVERFLOW, "%s: %zu bytes at %" PRIuHADDR " are beyond the end of what a file in memory can hold", file->path, size, address);
    return false;
}

static herr_t read_bytes(H5FD_t *base, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size, void *buffer) {
    struct file *file = (struct file *)base;
    if (file->inner) return file->inner->cls->read(file->inner, type, dxpl, address, size, buffer);
    if (!is_inside(file, address, size) || !load(file)) return -1;
    // A file reads as zeros after its end.
    size_t there = address < file->length ? file->length - (size_t)address : 0;
    if (there > size) there = size;
    if (there > 0) memcpy(buffer, file->bytes + address, there);
    if (size > there) memset((unsigned char *)buffer + there, 0, size - there);
    return 0;
}

static bool extend(struct file *file, haddr_t end) {
    if (is_inside(file, end, 0) && grow(file, (size_t)end)) return true;
    file->torn = true;
    return false;
}

static herr_t write_bytes(H5FD_t *base, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size, const void *buffer) {
    struct file *file = (struct file *)base;
    if (file->inner) return result(file->inner->cls->write(file->inner, type, dxpl, address, size, buffer) >= 0);
    if (!is_inside(file, address, size) || !load(file)) return result(false);
    if (!file->writable) {
        PUSH(H5E_WRITEERROR, "%s is open for reading only", file->path);
        return result(false);
    }
    if (size == 0) return 0;
    // When HDF5 closes a file, it writes the first bytes once more. After MPI_Finalize, only a change of these bytes matters.
    if (finalizing && address + size <= file->length && memcmp(file->bytes + address, buffer, size) == 0) return 0;
    if (address + size > file->length && !extend(file, address + size)) return result(false);
    memcpy(file->bytes + address, buffer, size);
    file->dirty = true;
    return 0;
}

static herr_t flush(H5FD_t *base, hid_t dxpl, bool closing) {
    struct file *file = (struct file *)base;
    file->finished |= closing;
    if (file->inner) return result(!file->inner->cls->flush || file->inner->cls->flush(file->inner, dxpl, closing) >= 0);
    bool is_whole = file->flushing;
    file->flushing = false;
    if (closing || !is_whole || !file->writable || !(file->settings.flush || finalizing)) return 0;
    file->flushed = finalizing;
    if (finalizing && file->session->handle) return 0; // `save_open_files` takes the version
    if (!file->dirty && (finalizing || file->session->size == 1)) return 0;
    return result(load(file) && save_file(file, OPEN));
}

static herr_t truncate_file(H5FD_t *base, hid_t dxpl, bool closing) {
    struct file *file = (struct file *)base;
    if (file->inner) return result(!file->inner->cls->truncate || file->inner->cls->truncate(file->inner, dxpl, closing) >= 0);
    // H5Fflush sets the end of a file right before it flushes the whole file. H5Dflush, and the opening of a file for writing, flush some
    // metadata without setting the end, and a version that was taken then could not be read.
    file->flushing = !closing;
    if (!load(file)) return result(false);
    if (file->eoa == file->length) return 0;
    if (!extend(file, file->eoa)) return result(false);
    file->dirty = true;
    return 0;
}

// No other process can write to a file in memory.
static herr_t lock(H5FD_t *base, bool for_writing) {
    struct file *file = (struct file *)base;
    if (file->inner) return file->inner->cls->lock ? file->inner->cls->lock(file->inner, for_writing) : 0;
    return load(file) ? 0 : -1;
}

static herr_t unlock(H5FD_t *base) {
    struct file *file = (struct file *)base;
    return file->inner && file->inner->cls->unlock ? file->inner->cls->unlock(file->inner) : 0;
}

static const H5FD_class_t DRIVER = {
    .version = H5FD_CLASS_VERSION,
    .value = DRIVER_VALUE,
    .name = "bivouac",
    .maxaddr = ADDRESSES,
    .fc_degree = H5F_CLOSE_WEAK,
    .terminate = terminate,
    .open = open_file,
    .close = close_file,
    .cmp = compare,
    .query = query,
    .get_eoa = get_eoa,
    .set_eoa = set_eoa,
    .get_eof = get_eof,
    .get_handle = get_handle,
    .read = read_bytes,
    .write = write_bytes,
    .flush = flush,
    .truncate = truncate_file,
    .lock = lock,
    .unlock = unlock,
    .del = delete_file,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

H5PL_type_t H5PLget_plugin_type(void) { return H5PL_TYPE_VFD; }

const void *H5PLget_plugin_info(void) { return &DRIVER; }
