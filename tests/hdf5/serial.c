/* A program without MPI that writes, extends, reads and deletes a file through whatever driver HDF5 is told to use. try.sh compares what it reads
   with and without the driver of Bivouac.

     serial create FILE       groups, attributes, a compressed dataset of 60 x 100, contiguous and empty ones
     serial extend FILE       opens it again, and extends and changes it
     serial dump FILE OUT     writes the contents of all datasets to OUT, and the bytes of the file to OUT.image
     serial big FILE MIB      writes a dataset of that many MiB, and prints how far the program came
     serial read FILE         prints the sum of what `big` has written
     serial rules FILE        what files do when they are created, opened, truncated and deleted
     serial refused FILE      fails to create it, and goes on
     serial flushed FILE      kills itself after H5Fflush, before H5Fclose
     serial step FILE N       writes one number                     serial shown FILE       prints it; -1 if there is no file
     serial change FILE N     changes it in the file that is there  serial exists FILE      creates the file if there is none
     serial killed FILE N     writes it and kills itself            serial waits FILE N     writes 1 and waits N seconds
     serial begun FILE N      creates the file, flushes a dataset in it, and kills itself
     serial delete FILE                                             serial forks FILE N      forks a child that ends, with the file open */
#include <hdf5.h>
#include <H5FDdevelop.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
/* An HDF5 call that has to fail, without its messages. */
#define FAILS(call)                       \
    do {                                  \
        long long result;                 \
        H5E_BEGIN_TRY { result = (call); } \
        H5E_END_TRY                       \
        CHECK(result < 0);                \
    } while (0)

enum { COLUMNS = 100, FIRST = 60, LATER = 137 };

static double cell(int row, int column) { return row * 1000.0 + column + (row >= FIRST ? 0.5 : 0.0); }

/* Without times, so that two files with equal contents have equal bytes. */
static hid_t timeless(void)
{
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    CHECK(list >= 0 && H5Pset_obj_track_times(list, 0) >= 0);
    return list;
}

static void attribute(hid_t object, const char *name, int value)
{
    hid_t space = H5Screate(H5S_SCALAR), at;
    if (H5Aexists(object, name) > 0)
        at = H5Aopen(object, name, H5P_DEFAULT);
    else
        at = H5Acreate2(object, name, H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(at >= 0 && H5Awrite(at, H5T_NATIVE_INT, &value) >= 0);
    H5Aclose(at);
    H5Sclose(space);
}

static void rows(hid_t set, int first, int end)
{
    hsize_t origin[2] = {(hsize_t)first, 0}, count[2] = {(hsize_t)(end - first), COLUMNS};
    double *values = malloc(sizeof *values * (size_t)(end - first) * COLUMNS);
    hid_t file_space = H5Dget_space(set), memory = H5Screate_simple(2, count, NULL);
    CHECK(values != NULL);
    for (int row = first; row < end; row++)
        for (int column = 0; column < COLUMNS; column++)
            values[(row - first) * COLUMNS + column] = cell(row, column);
    CHECK(H5Sselect_hyperslab(file_space, H5S_SELECT_SET, origin, NULL, count, NULL) >= 0);
    CHECK(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, file_space, H5P_DEFAULT, values) >= 0);
    H5Sclose(memory);
    H5Sclose(file_space);
    free(values);
}

static void create(const char *name)
{
    hsize_t extents[2] = {FIRST, COLUMNS}, most[2] = {H5S_UNLIMITED, COLUMNS}, chunk[2] = {7, 33}, many[1] = {30000};
    int *numbers = malloc(sizeof *numbers * 30000);
    hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), list = timeless(), space, set, group;
    CHECK(file >= 0 && numbers != NULL);
    group = H5Gcreate2(file, "fields", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    attribute(group, "step", 17);
    CHECK(H5Pset_chunk(list, 2, chunk) >= 0 && H5Pset_shuffle(list) >= 0 && H5Pset_deflate(list, 6) >= 0);
    space = H5Screate_simple(2, extents, most);
    set = H5Dcreate2(group, "temperature", H5T_IEEE_F64LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    CHECK(set >= 0);
    rows(set, 0, FIRST);
    attribute(set, "unit", 3);
    H5Dclose(set), H5Sclose(space), H5Pclose(list);
    list = timeless();
    space = H5Screate_simple(1, many, NULL);
    set = H5Dcreate2(file, "numbers", H5T_STD_I32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    for (int at = 0; at < 30000; at++)
        numbers[at] = at * at;
    CHECK(H5Dwrite(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers) >= 0);
    H5Dclose(set);
    set = H5Dcreate2(file, "never written", H5T_STD_I32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    CHECK(H5Dclose(set) >= 0);
    H5Sclose(space), H5Pclose(list), H5Gclose(group);
    CHECK(H5Lcreate_soft("/fields/temperature", file, "short", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    CHECK(H5Fclose(file) >= 0);
    free(numbers);
}

static void extend(const char *name)
{
    hsize_t extents[2] = {LATER, COLUMNS};
    hid_t file = H5Fopen(name, H5F_ACC_RDWR, H5P_DEFAULT), set;
    CHECK(file >= 0);
    set = H5Dopen2(file, "fields/temperature", H5P_DEFAULT);
    CHECK(set >= 0 && H5Dset_extent(set, extents) >= 0);
    rows(set, FIRST, LATER);
    attribute(set, "unit", 4);
    attribute(set, "later", 5);
    CHECK(H5Dclose(set) >= 0 && H5Fclose(file) >= 0);
}

static void dump(const char *name, const char *out_name)
{
    static const char *const sets[] = {"fields/temperature", "numbers", "never written", "short"};
    char image_name[4096];
    hid_t file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT);
    FILE *out = fopen(out_name, "wb");
    CHECK(file >= 0 && out != NULL);
    for (int at = 0; at < 4; at++) {
        hid_t set = H5Dopen2(file, sets[at], H5P_DEFAULT), space = H5Dget_space(set), type = H5Dget_type(set);
        size_t bytes = (size_t)H5Sget_simple_extent_npoints(space) * H5Tget_size(type);
        void *data = malloc(bytes);
        CHECK(data != NULL && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
        CHECK(fwrite(data, 1, bytes, out) == bytes);
        if (at == 0)
            for (size_t i = 0; i < bytes / sizeof(double); i++)
                CHECK(((double *)data)[i] == cell((int)(i / COLUMNS), (int)(i % COLUMNS)));
        free(data);
        H5Tclose(type), H5Sclose(space), H5Dclose(set);
    }
    CHECK(fclose(out) == 0);
    ssize_t length = H5Fget_file_image(file, NULL, 0);
    void *image = malloc((size_t)length);
    CHECK(length > 0 && H5Fget_file_image(file, image, (size_t)length) == length);
    snprintf(image_name, sizeof image_name, "%s.image", out_name);
    out = fopen(image_name, "wb");
    CHECK(out != NULL && fwrite(image, 1, (size_t)length, out) == (size_t)length && fclose(out) == 0);
    free(image);
    CHECK(H5Fclose(file) >= 0);
}

static void step(const char *name, int value)
{
    hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0);
    attribute(file, "step", value);
    CHECK(H5Fclose(file) >= 0);
}

static void change(const char *name, int value)
{
    hid_t file = H5Fopen(name, H5F_ACC_RDWR, H5P_DEFAULT);
    CHECK(file >= 0);
    attribute(file, "step", value);
    CHECK(H5Fclose(file) >= 0);
}

static void forks(const char *name, int value)
{
    int status = -1;
    hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0);
    pid_t child = fork();
    if (child == 0)
        exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    attribute(file, "step", value);
    CHECK(H5Fclose(file) >= 0);
}

/* The number that `step` has written; -1: the file cannot be opened. */
static int shown(const char *name)
{
    int value = -1;
    hid_t file, at;
    H5E_BEGIN_TRY { file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT); }
    H5E_END_TRY
    if (file < 0)
        return -1;
    at = H5Aopen(file, "step", H5P_DEFAULT);
    CHECK(at >= 0 && H5Aread(at, H5T_NATIVE_INT, &value) >= 0);
    H5Aclose(at);
    CHECK(H5Fclose(file) >= 0);
    return value;
}

static void rules(const char *name)
{
    char other[4096];
    hid_t file, again, third, group;
    H5FD_t *part;
    CHECK(shown(name) == -1);
    FAILS(H5Fopen(name, H5F_ACC_RDWR, H5P_DEFAULT));
    FAILS(H5Fdelete(name, H5P_DEFAULT));
    CHECK((file = H5Fcreate(name, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    attribute(file, "step", 1);
    CHECK(H5Fclose(file) >= 0);
    FAILS(H5Fcreate(name, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT));
    CHECK(shown(name) == 1);
    /* Read only: refused at the write, and nothing of it stays. */
    CHECK((file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT)) >= 0);
    FAILS(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    CHECK(H5Fclose(file) >= 0);
    /* Changed in place, by two handles of one file. */
    CHECK((file = H5Fopen(name, H5F_ACC_RDWR, H5P_DEFAULT)) >= 0);
    CHECK((again = H5Fopen(name, H5F_ACC_RDWR, H5P_DEFAULT)) >= 0);
    attribute(file, "step", 2);
    attribute(again, "other", 3);
    FAILS(H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    CHECK(H5Fclose(file) >= 0 && H5Fclose(again) >= 0);
    CHECK(shown(name) == 2);
    CHECK((file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT)) >= 0 && H5Aexists(file, "other") > 0 && H5Fclose(file) >= 0);
    /* Truncated: what was there before is gone. */
    step(name, 4);
    CHECK(shown(name) == 4);
    CHECK((file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT)) >= 0 && H5Aexists(file, "other") == 0 && H5Fclose(file) >= 0);
    CHECK(H5Fis_accessible(name, H5P_DEFAULT) > 0);
    /* Two files at once, and a file that is closed by the end of HDF5. */
    snprintf(other, sizeof other, "%s.other", name);
    CHECK((file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    CHECK((again = H5Fcreate(other, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    attribute(file, "step", 5);
    attribute(again, "step", 6);
    CHECK(H5Fclose(again) >= 0);
    /* Opened again before it was ever closed, and while an object keeps it open. */
    CHECK(H5Fdelete(other, H5P_DEFAULT) >= 0);
    CHECK((again = H5Fcreate(other, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    CHECK((third = H5Fopen(other, H5F_ACC_RDWR, H5P_DEFAULT)) >= 0);
    CHECK((group = H5Gcreate2(third, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    CHECK(H5Fclose(third) >= 0 && H5Fclose(again) >= 0);
    CHECK((again = H5Fopen(other, H5F_ACC_RDWR, H5P_DEFAULT)) >= 0);
    FAILS(H5Fcreate(other, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT));
    attribute(again, "step", 6);
    CHECK(H5Fclose(again) >= 0 && H5Gclose(group) >= 0 && H5Fclose(file) >= 0);
    CHECK(shown(name) == 5 && shown(other) == 6);
    CHECK(H5close() >= 0);
    CHECK(shown(name) == 5 && shown(other) == 6);
    /* Deleted. */
    CHECK(H5Fdelete(other, H5P_DEFAULT) >= 0);
    CHECK(shown(other) == -1);
    FAILS(H5Fopen(other, H5F_ACC_RDWR, H5P_DEFAULT));
    FAILS(H5Fdelete(other, H5P_DEFAULT));
    CHECK((file = H5Fcreate(other, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    attribute(file, "step", 7);
    CHECK(H5Fclose(file) >= 0 && shown(other) == 7);
    CHECK(H5Fdelete(other, H5P_DEFAULT) >= 0);
    CHECK(shown(other) == -1 && shown(name) == 5);
    /* Drivers of drivers (family) open files by flags alone: without H5F_ACC_CREAT none is made. */
    H5E_BEGIN_TRY { part = H5FDopen(other, H5F_ACC_RDWR | H5F_ACC_TRUNC, H5P_FILE_ACCESS_DEFAULT, HADDR_UNDEF); }
    H5E_END_TRY
    CHECK(part == NULL && shown(other) == -1);
    /* Left open: HDF5 closes it at exit. Whoever opens it until then, by the side of HDF5, sees what is in it. */
    CHECK((file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    attribute(file, "step", 8);
    snprintf(other, sizeof other, "%s.twin", name);
    CHECK((file = H5Fcreate(other, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0 && H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0);
    CHECK((part = H5FDopen(other, H5F_ACC_RDONLY, H5P_FILE_ACCESS_DEFAULT, HADDR_UNDEF)) != NULL);
    CHECK(H5FDget_eof(part, H5FD_MEM_DEFAULT) > 100 && H5FDget_eof(part, H5FD_MEM_DEFAULT) != HADDR_UNDEF && H5FDclose(part) >= 0);
}

static void big(const char *name, int mib)
{
    hsize_t count[1] = {(hsize_t)mib << 17};
    double *values = malloc((size_t)mib << 20);
    hid_t file, space = H5Screate_simple(1, count, NULL), set;
    CHECK(values != NULL);
    for (hsize_t at = 0; at < count[0]; at++)
        values[at] = (double)(at ^ at >> 7);
    CHECK((file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    set = H5Dcreate2(file, "values", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(set >= 0 && H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(set), H5Sclose(space);
    printf("close %s\n", H5Fclose(file) < 0 ? "failed" : "succeeded");
    printf("the program goes on\n");
    free(values);
}

static void read_big(const char *name)
{
    hid_t file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT), set, space;
    double sum = 0;
    if (file < 0) {
        printf("cannot be opened\n");
        exit(3);
    }
    set = H5Dopen2(file, "values", H5P_DEFAULT);
    space = H5Dget_space(set);
    size_t count = (size_t)H5Sget_simple_extent_npoints(space);
    double *values = malloc(count * sizeof *values);
    CHECK(values != NULL && H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    for (size_t at = 0; at < count; at++) {
        CHECK(values[at] == (double)(at ^ at >> 7));
        sum += values[at];
    }
    printf("%zu values, sum %.0f\n", count, sum);
    free(values);
    H5Sclose(space), H5Dclose(set);
    CHECK(H5Fclose(file) >= 0);
}

static void refused(const char *name, unsigned flags)
{
    hid_t file = H5Fcreate(name, flags, H5P_DEFAULT, H5P_DEFAULT);
    printf("%s\n", file < 0 ? "refused" : "created");
    if (file >= 0)
        H5Fclose(file);
}

static void begun(const char *name)
{
    hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate(H5S_SCALAR), set;
    CHECK(file >= 0);
    set = H5Dcreate2(file, "set", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(set >= 0 && H5Dflush(set) >= 0);
    raise(SIGKILL);
}

static void flushed(const char *name)
{
    hid_t latest = H5Pcreate(H5P_FILE_ACCESS), file;
    CHECK(H5Pset_libver_bounds(latest, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) >= 0);
    CHECK((file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, latest)) >= 0);
    attribute(file, "step", 31);
    CHECK(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0);
    attribute(file, "step", 32);
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "", *name = argc > 2 ? argv[2] : "";
    if (strcmp(what, "create") == 0)
        create(name);
    else if (strcmp(what, "extend") == 0)
        extend(name);
    else if (strcmp(what, "dump") == 0 && argc > 3)
        dump(name, argv[3]);
    else if (strcmp(what, "big") == 0 && argc > 3)
        big(name, atoi(argv[3]));
    else if (strcmp(what, "read") == 0)
        read_big(name);
    else if (strcmp(what, "rules") == 0)
        rules(name);
    else if (strcmp(what, "refused") == 0)
        refused(name, H5F_ACC_TRUNC);
    else if (strcmp(what, "begun") == 0)
        begun(name);
    else if (strcmp(what, "flushed") == 0)
        flushed(name);
    else if (strcmp(what, "step") == 0 && argc > 3)
        step(name, atoi(argv[3]));
    else if (strcmp(what, "change") == 0 && argc > 3)
        change(name, atoi(argv[3]));
    else if (strcmp(what, "forks") == 0 && argc > 3)
        forks(name, atoi(argv[3]));
    else if (strcmp(what, "killed") == 0 && argc > 3)
        step(name, atoi(argv[3])), raise(SIGKILL);
    else if (strcmp(what, "waits") == 0 && argc > 3)
        step(name, 1), fprintf(stderr, "written\n"), sleep((unsigned)atoi(argv[3]));
    else if (strcmp(what, "exists") == 0)
        refused(name, H5F_ACC_EXCL);
    else if (strcmp(what, "delete") == 0)
        return H5Fdelete(name, H5P_DEFAULT) < 0;
    else if (strcmp(what, "shown") == 0)
        printf("%d\n", shown(name));
    else
        return 2;
    return 0;
}
