/* An MPI program whose ranks have a file each, written through whatever driver HDF5 is told to use.

     ranks write NAME FROM TO [KILL]   takes the steps FROM to TO; in step KILL all ranks kill themselves while they write
     ranks read NAME                   prints the step that all ranks find, or `nothing`, after a look at all contents
     ranks append NAME                 opens the files again and changes them
     ranks differ NAME                 rank 1 opens another file: all ranks hear of both, and all go on
     ranks kinds NAME                  rank 1 creates the file that the others open
     ranks missing NAME                the last rank opens nothing: the others give up, and all go on
     ranks open NAME                   leaves the files open at MPI_Finalize
     ranks left NAME                   closes the files, but not what is in them, before MPI_Finalize
     ranks late NAME                   closes the files after MPI_Finalize
     ranks early NAME                  opens a file before MPI_Init
     ranks self NAME                   each rank for itself, some of them more often
     ranks first NAME                  only rank 0 writes

   In NAME %d stands for the rank and %e for the rank plus one. */
#include <hdf5.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "rank %d, %s:%d: not so: %s\n", rank, __FILE__, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                           \
        }                                                                                           \
    } while (0)

static const char *named(const char *pattern, int of)
{
    static char name[4096];
    size_t at = 0;
    for (; *pattern && at < sizeof name - 20; pattern++) {
        if (pattern[0] == '%' && (pattern[1] == 'd' || pattern[1] == 'e'))
            at += (size_t)sprintf(name + at, "%04d", of + (*++pattern == 'e'));
        else
            name[at++] = *pattern;
    }
    name[at] = 0;
    return name;
}

static hsize_t length_of(int of, int step) { return (hsize_t)(20000 + 7000 * of + 100 * step); }

static double value_of(int of, int step, hsize_t at) { return of * 1e9 + step * 1e6 + (double)at; }

static void put(hid_t file, int step, int kill_now)
{
    hsize_t count[1] = {length_of(rank, step)}, half[1] = {count[0] / 2}, zero[1] = {0};
    double *values = malloc(count[0] * sizeof *values);
    hid_t space = H5Screate_simple(1, count, NULL), scalar = H5Screate(H5S_SCALAR);
    hid_t set = H5Dcreate2(file, "values", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hid_t at = H5Acreate2(file, "step", H5T_NATIVE_INT, scalar, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(values != NULL && set >= 0 && at >= 0);
    for (hsize_t i = 0; i < count[0]; i++)
        values[i] = value_of(rank, step, i);
    CHECK(H5Awrite(at, H5T_NATIVE_INT, &step) >= 0);
    if (kill_now) {
        CHECK(H5Sselect_hyperslab(space, H5S_SELECT_SET, zero, NULL, half, NULL) >= 0);
        CHECK(H5Dwrite(set, H5T_NATIVE_DOUBLE, space, space, H5P_DEFAULT, values) >= 0);
        raise(SIGKILL);
    }
    CHECK(H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Aclose(at), H5Dclose(set), H5Sclose(space), H5Sclose(scalar);
    free(values);
}

/* The step of an open file, whose contents have to be those of rank `of`. */
static int get(hid_t file, int of)
{
    int step = -1;
    hid_t at = H5Aopen(file, "step", H5P_DEFAULT), set = H5Dopen2(file, "values", H5P_DEFAULT), space = H5Dget_space(set);
    CHECK(at >= 0 && H5Aread(at, H5T_NATIVE_INT, &step) >= 0);
    hsize_t count = (hsize_t)H5Sget_simple_extent_npoints(space);
    double *values = malloc(count * sizeof *values);
    CHECK(count == length_of(of, step) && values != NULL);
    CHECK(H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    for (hsize_t i = 0; i < count; i++)
        CHECK(values[i] == value_of(of, step, i));
    H5Aclose(at), H5Dclose(set), H5Sclose(space);
    free(values);
    return step;
}

static void write_step(const char *name, int step, int kill_now)
{
    hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0);
    put(file, step, kill_now);
    CHECK(H5Fclose(file) >= 0);
}

static hid_t quietly(const char *name, unsigned flags)
{
    hid_t file;
    H5E_BEGIN_TRY { file = H5Fopen(name, flags, H5P_DEFAULT); }
    H5E_END_TRY
    return file;
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "", *pattern = argc > 2 ? argv[2] : "", *name;
    hid_t file;
    if (strcmp(what, "early") == 0) {
        hid_t early = H5Fcreate(pattern, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        printf("%s\n", early < 0 ? "refused" : "created");
        if (early >= 0)
            H5Fclose(early);
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    name = named(pattern, rank);
    if (strcmp(what, "write") == 0 && argc > 4) {
        for (int step = atoi(argv[3]); step <= atoi(argv[4]); step++)
            write_step(name, step, argc > 5 && step == atoi(argv[5]));
    } else if (strcmp(what, "read") == 0) {
        int mine, least, most;
        file = quietly(name, H5F_ACC_RDONLY);
        mine = file < 0 ? -1 : get(file, rank);
        if (file >= 0)
            CHECK(H5Fclose(file) >= 0);
        MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&mine, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        CHECK(least == most);
        if (rank == 0 && least < 0)
            printf("nothing\n");
        else if (rank == 0)
            printf("step %d\n", least);
    } else if (strcmp(what, "append") == 0) {
        CHECK((file = H5Fopen(name, H5F_ACC_RDWR, H5P_DEFAULT)) >= 0);
        int step = get(file, rank);
        /* Rank 0 changes nothing, and takes part nevertheless. */
        if (rank != 0) {
            CHECK(H5Ldelete(file, "values", H5P_DEFAULT) >= 0 && H5Adelete(file, "step") >= 0);
            put(file, step + 1, 0);
        }
        CHECK(H5Fclose(file) >= 0);
        CHECK((file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT)) >= 0);
        CHECK(get(file, rank) == step + (rank != 0));
        CHECK(H5Fclose(file) >= 0);
    } else if (strcmp(what, "differ") == 0 || strcmp(what, "kinds") == 0) {
        int is_other = rank == 1, is_kind = strcmp(what, "kinds") == 0;
        char other[4200];
        snprintf(other, sizeof other, "%s%s", name, is_other && !is_kind ? ".other" : "");
        if (is_other && is_kind)
            file = H5Fcreate(other, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
        else
            file = H5Fopen(other, H5F_ACC_RDWR, H5P_DEFAULT);
        printf("rank %d %s\n", rank, file < 0 ? "was refused" : "opened a file");
        fflush(stdout);
        MPI_Barrier(MPI_COMM_WORLD);
        if (!is_kind)
            write_step(name, 50, 0); /* they are in step again */
    } else if (strcmp(what, "missing") == 0) {
        if (rank != size - 1) {
            file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
            printf("rank %d %s\n", rank, file < 0 ? "was refused" : "created a file");
            file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
            CHECK(file < 0);
        }
        fflush(stdout);
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (strcmp(what, "open") == 0 || strcmp(what, "late") == 0) {
        CHECK((file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
        put(file, 77, 0);
        MPI_Finalize();
        if (strcmp(what, "late") == 0) {
            hid_t group = H5Gcreate2(file, "after", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
            H5Gclose(group);
            printf("close %s\n", H5Fclose(file) < 0 ? "failed" : "succeeded");
        }
        return 0;
    } else if (strcmp(what, "left") == 0) {
        CHECK((file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
        put(file, 78, 0);
        CHECK(H5Gcreate2(file, "left", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT) >= 0);
        CHECK(rank != 0 || H5Freopen(file) >= 0); /* nor do all ranks have equally many IDs */
        CHECK(H5Fclose(file) >= 0);
        MPI_Finalize();
        return 0;
    } else if (strcmp(what, "self") == 0) {
        for (int step = 1; step <= 1 + rank; step++)
            write_step(name, step, 0);
        CHECK((file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT)) >= 0);
        CHECK(get(file, rank) == 1 + rank);
        CHECK(H5Fclose(file) >= 0);
    } else if (strcmp(what, "first") == 0) {
        if (rank == 0)
            write_step(name, 9, 0);
    }
    MPI_Finalize();
    return 0;
}
