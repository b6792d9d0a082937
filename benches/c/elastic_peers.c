// How long MPI-IO and parallel HDF5 take to write an array that N ranks have cut, and to read it on M ranks that cut it otherwise: one JSON line for
// each way and round. benches/elastic-peers.sh compiles and starts it, on the greater of N and M ranks.
//
//   slab     both along the slowest dimension, planes of 512 KiB
//   box      both in three dimensions, rows of 512 bytes in the boxes that are written
//   turned   written along the slower one of two dimensions, rows of 32 KiB, read along the faster one
//
// Before each read the pages of the file are dropped. `resident` says which part of the file is in memory all the same. What is read is compared, element by
// element, outside of the times. `raw` is what the disk gives: each of the M ranks reads an M-th of the file in one piece, past the page cache.

#define _GNU_SOURCE
#include <mpi.h>
#ifndef NO_HDF5
#include <hdf5.h>
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIMS 3
#define DIRECT_BYTES (8u << 20)

enum cut { SLAB, BOX, TURNED };
static const char *const CUTS[] = {"slab", "box", "turned"};

typedef struct {
    uint64_t from[DIMS], extent[DIMS];
} box_t;

static int rank;

static void must(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *room(uint64_t bytes) {
    void *found = NULL;
    must(posix_memalign(&found, 4096, bytes > 0 ? bytes : 4096) == 0, "no memory");
    return found;
}

// The first element of the share of one of `shares`.
static uint64_t first_of(uint64_t extent, uint64_t index, uint64_t shares) { return extent * index / shares; }

// So many ranks in three dimensions, as near to a cube as the factors allow, ascending.
static void grid_of(uint64_t ranks, uint64_t grid[DIMS]) {
    uint64_t least = UINT64_MAX;
    for (uint64_t a = 1; a * a * a <= ranks; a++) {
        if (ranks % a != 0) continue;
        for (uint64_t b = a; a * b * b <= ranks; b++) {
            uint64_t c = ranks / a / b;
            if (a * b * c != ranks || a + b + c >= least) continue;
            least = a + b + c;
            grid[0] = a, grid[1] = b, grid[2] = c;
        }
    }
}

// The array whose parts have about `bytes` on each of `from` ranks. A dimension that it does not have is one element wide.
static void shape_of(enum cut cut, uint64_t from, uint64_t bytes, uint64_t shape[DIMS]) {
    uint64_t elements = bytes / sizeof(double), grid[DIMS];
    switch (cut) {
    case SLAB:
        shape[0] = from * (elements / 65536), shape[1] = 256, shape[2] = 256;
        break;
    case BOX:
        grid_of(from, grid);
        shape[0] = grid[0] * (elements / 4096), shape[1] = grid[1] * 64, shape[2] = grid[2] * 64;
        break;
    case TURNED:
        shape[0] = 1, shape[1] = from * (elements / 4096), shape[2] = 4096;
        break;
    }
    must(shape[0] > 0 && shape[1] > 0, "too few bytes a rank: 512 KiB at least");
}

// What one of `ranks` has of it.
static box_t part_of(enum cut cut, int is_read, uint64_t at, uint64_t ranks, const uint64_t shape[DIMS]) {
    uint64_t grid[DIMS] = {1, 1, 1};
    if (cut == BOX) grid_of(ranks, grid);
    if (cut == SLAB) grid[0] = ranks;
    if (cut == TURNED) grid[is_read ? 2 : 1] = ranks;
    const uint64_t place[DIMS] = {at / (grid[1] * grid[2]), at / grid[2] % grid[1], at % grid[2]};
    box_t part;
    for (int dim = 0; dim < DIMS; dim++) {
        part.from[dim] = first_of(shape[dim], place[dim], grid[dim]);
        part.extent[dim] = first_of(shape[dim], place[dim] + 1, grid[dim]) - part.from[dim];
    }
    return part;
}

static uint64_t volume(const uint64_t extent[DIMS]) { return extent[0] * extent[1] * extent[2]; }

// Each element is its place in the array. Writes them, or compares them.
static void each(const box_t *part, const uint64_t shape[DIMS], double *data, int is_compared) {
    uint64_t next = 0;
    for (uint64_t z = part->from[0]; z < part->from[0] + part->extent[0]; z++)
        for (uint64_t y = part->from[1]; y < part->from[1] + part->extent[1]; y++)
            for (uint64_t x = part->from[2]; x < part->from[2] + part->extent[2]; x++, next++) {
                double element = (double)((z * shape[1] + y) * shape[2] + x);
                if (!is_compared) data[next] = element;
                else must(data[next] == element, "an element was read that belongs elsewhere");
            }
}

// ------------------------------------------------------------------------------------------- MPI-IO

static MPI_Datatype view_of(const box_t *part, const uint64_t shape[DIMS]) {
    int sizes[DIMS], extents[DIMS], starts[DIMS];
    for (int dim = 0; dim < DIMS; dim++) {
        sizes[dim] = (int)shape[dim], extents[dim] = (int)part->extent[dim], starts[dim] = (int)part->from[dim];
    }
    MPI_Datatype view;
    MPI_Type_create_subarray(DIMS, sizes, extents, starts, MPI_ORDER_C, MPI_DOUBLE, &view);
    MPI_Type_commit(&view);
    return view;
}

static void by_mpi(MPI_Comm comm, const char *path, const box_t *part, const uint64_t shape[DIMS], double *data, int is_read, int is_collective) {
    MPI_File file;
    int mode = is_read ? MPI_MODE_RDONLY : MPI_MODE_WRONLY | MPI_MODE_CREATE;
    must(MPI_File_open(comm, path, mode, MPI_INFO_NULL, &file) == MPI_SUCCESS, "MPI_File_open");
    MPI_Datatype view = view_of(part, shape);
    must(MPI_File_set_view(file, 0, MPI_DOUBLE, view, "native", MPI_INFO_NULL) == MPI_SUCCESS, "MPI_File_set_view");
    int count = (int)volume(part->extent), done;
    MPI_Status status;
    if (is_read) done = is_collective ? MPI_File_read_all(file, data, count, MPI_DOUBLE, &status) : MPI_File_read(file, data, count, MPI_DOUBLE, &status);
    else done = is_collective ? MPI_File_write_all(file, data, count, MPI_DOUBLE, &status) : MPI_File_write(file, data, count, MPI_DOUBLE, &status);
    must(done == MPI_SUCCESS, is_read ? "MPI-IO cannot read" : "MPI-IO cannot write");
    if (!is_read) must(MPI_File_sync(file) == MPI_SUCCESS, "MPI_File_sync");
    MPI_File_close(&file);
    MPI_Type_free(&view);
}

// ------------------------------------------------------------------------------------------- HDF5

#ifndef NO_HDF5
static void by_hdf5(MPI_Comm comm, const char *path, const box_t *part, const uint64_t shape[DIMS], double *data, int is_read, int is_collective) {
    hsize_t whole[DIMS], start[DIMS], count[DIMS];
    for (int dim = 0; dim < DIMS; dim++) whole[dim] = shape[dim], start[dim] = part->from[dim], count[dim] = part->extent[dim];
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_fapl_mpio(access, comm, MPI_INFO_NULL);
    H5Pset_dxpl_mpio(transfer, is_collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
    hid_t file = is_read ? H5Fopen(path, H5F_ACC_RDONLY, access) : H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    must(file >= 0, "HDF5 cannot open the file");
    hid_t in_file = H5Screate_simple(DIMS, whole, NULL), in_memory = H5Screate_simple(DIMS, count, NULL);
    hid_t set = is_read ? H5Dopen2(file, "t", H5P_DEFAULT) : H5Dcreate2(file, "t", H5T_NATIVE_DOUBLE, in_file, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    must(set >= 0, "HDF5 has no data set");
    if (volume(part->extent) > 0) {
        H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, count, NULL);
    } else {
        H5Sselect_none(in_file);
        H5Sselect_none(in_memory);
    }
    herr_t done = is_read ? H5Dread(set, H5T_NATIVE_DOUBLE, in_memory, in_file, transfer, data)
                          : H5Dwrite(set, H5T_NATIVE_DOUBLE, in_memory, in_file, transfer, data);
    must(done >= 0, is_read ? "HDF5 cannot read" : "HDF5 cannot write");
    // With MPI-IO below it this is a sync.
    if (!is_read) must(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0, "H5Fflush");
    H5Dclose(set), H5Sclose(in_file), H5Sclose(in_memory), H5Fclose(file), H5Pclose(access), H5Pclose(transfer);
}
#endif

// ------------------------------------------------------------------------------------------- the disk

// Which part of a file is in memory.
static double resident_of(int file, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page, here = 0;
    unsigned char *marks = room(pages);
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    must(mapped != MAP_FAILED && mincore(mapped, bytes, marks) == 0, "mincore");
    for (size_t at = 0; at < pages; at++) here += marks[at] & 1;
    munmap(mapped, bytes);
    free(marks);
    return (double)here / (double)pages;
}

// Drops the file's pages, and says which part of it is still in memory.
static double drop(const char *path) {
    int file = open(path, O_RDONLY);
    struct stat found;
    must(file >= 0 && fstat(file, &found) == 0 && found.st_size > 0, "the file is not there");
    must(fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "cannot drop pages");
    double resident = resident_of(file, (size_t)found.st_size);
    // Not every file system follows the advice. This drops what other processes have, too.
    int all = resident > 0 ? open("/proc/sys/vm/drop_caches", O_WRONLY) : -1;
    if (all >= 0) {
        must(write(all, "1", 1) == 1, "cannot drop all pages");
        close(all);
        resident = resident_of(file, (size_t)found.st_size);
    }
    close(file);
    return resident;
}

// One rank's share of the file, in one piece past the page cache.
static void by_disk(const char *path, uint64_t at, uint64_t ranks) {
    int file = open(path, O_RDONLY | O_DIRECT);
    struct stat found;
    must(file >= 0 && fstat(file, &found) == 0, "O_DIRECT is not possible here");
    uint64_t pages = ((uint64_t)found.st_size + 4095) / 4096;
    uint64_t from = first_of(pages, at, ranks) * 4096, to = first_of(pages, at + 1, ranks) * 4096;
    char *buffer = room(DIRECT_BYTES);
    while (from < to) {
        uint64_t length = to - from < DIRECT_BYTES ? to - from : DIRECT_BYTES;
        ssize_t got = pread(file, buffer, length, (off_t)from);
        must(got > 0, "cannot read past the page cache");
        // The last page may be cut.
        from += (uint64_t)got < length && from + (uint64_t)got == (uint64_t)found.st_size ? length : (uint64_t)got;
    }
    free(buffer);
    close(file);
}

// ------------------------------------------------------------------------------------------- rounds

typedef struct {
    enum cut cut;
    uint64_t from, to, bytes, rounds;
    const char *dir;
} options_t;

typedef void (*way_t)(MPI_Comm, const char *, const box_t *, const uint64_t[DIMS], double *, int, int);

// The slowest rank's seconds since `start`.
static double slowest(double start) {
    double mine = MPI_Wtime() - start, all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static void line(const options_t *options, const uint64_t shape[DIMS], const char *peer, const char *mode, double write_s, double read_s,
                 double resident, uint64_t round) {
    if (rank != 0) return;
    printf("{\"figure\": \"elastic peers\", \"peer\": \"%s\", \"mode\": \"%s\", \"cut\": \"%s\", \"from\": %llu, \"to\": %llu, ", peer, mode,
           CUTS[options->cut], (unsigned long long)options->from, (unsigned long long)options->to);
    printf("\"shape\": [%llu, %llu, %llu], \"bytes\": %llu, ", (unsigned long long)shape[0], (unsigned long long)shape[1],
           (unsigned long long)shape[2], (unsigned long long)(volume(shape) * sizeof(double)));
    if (write_s >= 0) printf("\"write_s\": %.4f, ", write_s);
    printf("\"read_s\": %.4f, \"resident\": %.4f, \"round\": %llu}\n", read_s, resident, (unsigned long long)round);
    fflush(stdout);
}

// `writers` and `readers` are MPI_COMM_NULL on ranks that are none of them.
static void measure(const options_t *options, MPI_Comm writers, MPI_Comm readers, const char *peer, way_t way, int is_collective, uint64_t round,
                    int with_disk) {
    uint64_t shape[DIMS];
    shape_of(options->cut, options->from, options->bytes, shape);
    const char *mode = is_collective ? "collective" : "independent";
    char path[4096];
    must(snprintf(path, sizeof path, "%s/elastic-peers-%s-%s", options->dir, peer, mode) < (int)sizeof path, "the name of the directory is too long");
    if (rank == 0) unlink(path);
    double *data = NULL, resident = 0;
    box_t part;
    if (writers != MPI_COMM_NULL) {
        part = part_of(options->cut, 0, (uint64_t)rank, options->from, shape);
        data = room(volume(part.extent) * sizeof(double));
        each(&part, shape, data, 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (writers != MPI_COMM_NULL) way(writers, path, &part, shape, data, 0, is_collective);
    double write_s = slowest(start);
    free(data);
    data = NULL;
    if (readers != MPI_COMM_NULL) {
        part = part_of(options->cut, 1, (uint64_t)rank, options->to, shape);
        data = room(volume(part.extent) * sizeof(double));
        memset(data, 0xff, volume(part.extent) * sizeof(double));
    }
    if (rank == 0) resident = drop(path);
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (readers != MPI_COMM_NULL) way(readers, path, &part, shape, data, 1, is_collective);
    double read_s = slowest(start);
    if (readers != MPI_COMM_NULL) each(&part, shape, data, 1);
    free(data);
    line(options, shape, peer, mode, write_s, read_s, resident, round);
    if (with_disk) {
        if (rank == 0) resident = drop(path);
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        if (readers != MPI_COMM_NULL) by_disk(path, (uint64_t)rank, options->to);
        line(options, shape, "raw", "O_DIRECT", -1, slowest(start), resident, round);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) unlink(path);
}

static MPI_Comm first_ranks(uint64_t count) {
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, (uint64_t)rank < count ? 0 : MPI_UNDEFINED, rank, &comm);
    return comm;
}

static uint64_t number(const char *text) {
    char *end;
    unsigned long long found = strtoull(text, &end, 10);
    must(*text != 0 && *end == 0 && found > 0, "a number above 0 is wanted");
    return found;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    options_t options = {SLAB, 4, 3, 64u << 20, 3, "."};
    for (int at = 1; at < argc; at += 2) {
        must(at + 1 < argc, "each option has a value");
        const char *name = argv[at], *value = argv[at + 1];
        if (strcmp(name, "--cut") == 0) {
            int cut = 0;
            while (cut < 3 && strcmp(CUTS[cut], value) != 0) cut++;
            must(cut < 3, "--cut slab, box or turned");
            options.cut = (enum cut)cut;
        } else if (strcmp(name, "--from") == 0) options.from = number(value);
        else if (strcmp(name, "--to") == 0) options.to = number(value);
        else if (strcmp(name, "--bytes") == 0) options.bytes = number(value);
        else if (strcmp(name, "--rounds") == 0) options.rounds = number(value);
        else if (strcmp(name, "--dir") == 0) options.dir = value;
        else must(0, "--cut C --from N --to M --bytes B --rounds R --dir D");
    }
    must((uint64_t)size >= options.from && (uint64_t)size >= options.to, "fewer ranks than --from or --to");
    uint64_t shape[DIMS];
    shape_of(options.cut, options.from, options.bytes, shape);
    uint64_t largest = volume(shape) / (options.to < options.from ? options.to : options.from);
    must(largest < INT32_MAX / 2 && shape[0] < INT32_MAX && shape[1] < INT32_MAX, "more elements than MPI's counts can have");
    MPI_Comm writers = first_ranks(options.from), readers = first_ranks(options.to);
    for (uint64_t round = 0; round < options.rounds; round++) {
        for (int is_collective = 0; is_collective < 2; is_collective++) {
            measure(&options, writers, readers, "mpi-io", by_mpi, is_collective, round, is_collective);
#ifndef NO_HDF5
            measure(&options, writers, readers, "hdf5", by_hdf5, is_collective, round, 0);
#endif
        }
    }
    MPI_Finalize();
    return 0;
}
