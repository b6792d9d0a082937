/* A shock runs down a tube, as in hydrodynamics codes: there are a dozen vectors, a ring of two cells is exchanged with the neighbours,
 * and every cycle needs the smallest time step of all ranks. The program starts MPI with MPI_Init. While it computes, it calls only
 * bvk_checkpoint, every EVERY cycles: it never polls, waits for or advances anything.
 *
 *   hydro CELLS CYCLES EVERY [FOLDER]
 *
 * With a FOLDER, the ranks continue to compute after each checkpoint, without calling Bivouac, until `go-VERSION` or `go` is in there.
 * Rank 0 prints `started pids=...`, `restored VERSION`, `taken VERSION`, and `digest` at the end. */
#include <bivouac.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VECTORS = 12 };
static const char *const NAMES[VECTORS] = {"x",  "velocity", "force",      "mass",  "volume", "volume_before",
                                           "energy", "pressure", "viscosity", "sound", "work",   "gradient"};

static void must(int status, const char *call) {
    if (status != BVK_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, bvk_status_name(status), bvk_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

struct tube {
    int rank, ranks, cells;
    double *of[VECTORS]; /* cells + 3 numbers each: nodes 0 to cells, cells 1 to cells, and the neighbours' */
    double time, dt;
};

enum { X, VELOCITY, FORCE, MASS, VOLUME, BEFORE, ENERGY, PRESSURE, VISCOSITY, SOUND, WORK, GRADIENT };

static void start(struct tube *tube) {
    double width = 1.0 / ((double)tube->cells * tube->ranks);
    for (int i = 0; i < tube->cells + 3; i++) {
        double x = (tube->rank * tube->cells + i - 1) * width;
        int left = x < 0.5;
        tube->of[X][i] = x;
        tube->of[MASS][i] = (left ? 1.0 : 0.125) * width;
        tube->of[VOLUME][i] = tube->of[BEFORE][i] = width;
        tube->of[PRESSURE][i] = left ? 1.0 : 0.1;
        tube->of[ENERGY][i] = tube->of[PRESSURE][i] / 0.4 * width;
        tube->of[SOUND][i] = sqrt(1.4 * tube->of[PRESSURE][i] * width / tube->of[MASS][i]);
    }
    tube->dt = 0.2 * width;
}

/* Cells 0 and cells + 1 belong to the neighbours; at the ends of the tube they mirror the last cell. */
static void exchange(struct tube *tube, int vector) {
    double *v = tube->of[vector];
    int n = tube->cells, left = tube->rank > 0 ? tube->rank - 1 : MPI_PROC_NULL;
    int right = tube->rank + 1 < tube->ranks ? tube->rank + 1 : MPI_PROC_NULL;
    v[0] = v[1];
    v[n + 1] = v[n];
    MPI_Sendrecv(&v[n], 1, MPI_DOUBLE, right, vector, &v[0], 1, MPI_DOUBLE, left, vector, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&v[1], 1, MPI_DOUBLE, left, vector, &v[n + 1], 1, MPI_DOUBLE, right, vector, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

/* Node i lies between the cells i and i + 1; two ranks have the nodes 0 and cells in common, and compute the same there. */
static void cycle(struct tube *tube) {
    double **of = tube->of, least = 1.0;
    int n = tube->cells;
    exchange(tube, PRESSURE);
    exchange(tube, VISCOSITY);
    exchange(tube, MASS);
    for (int i = 0; i <= n; i++) {
        of[FORCE][i] = of[PRESSURE][i] + of[VISCOSITY][i] - of[PRESSURE][i + 1] - of[VISCOSITY][i + 1];
        of[VELOCITY][i] += tube->dt * of[FORCE][i] / (0.5 * (of[MASS][i] + of[MASS][i + 1]));
        if ((tube->rank == 0 && i == 0) || (tube->rank == tube->ranks - 1 && i == n)) of[VELOCITY][i] = 0.0;
        of[X][i] += tube->dt * of[VELOCITY][i];
    }
    for (int i = 1; i <= n; i++) {
        of[BEFORE][i] = of[VOLUME][i];
        of[VOLUME][i] += tube->dt * (of[VELOCITY][i] - of[VELOCITY][i - 1]);
        of[GRADIENT][i] = of[VELOCITY][i] - of[VELOCITY][i - 1];
        double density = of[MASS][i] / of[VOLUME][i];
        of[VISCOSITY][i] = of[GRADIENT][i] < 0.0 ? density * (2.0 * of[GRADIENT][i] * of[GRADIENT][i] -
                                                              0.5 * of[SOUND][i] * of[GRADIENT][i])
                                                 : 0.0;
        of[WORK][i] = (of[PRESSURE][i] + of[VISCOSITY][i]) * (of[VOLUME][i] - of[BEFORE][i]);
        of[ENERGY][i] -= of[WORK][i];
        of[PRESSURE][i] = 0.4 * of[ENERGY][i] / of[VOLUME][i];
        of[SOUND][i] = sqrt(1.4 * of[PRESSURE][i] / density);
        double step = 0.2 * of[VOLUME][i] / (of[SOUND][i] + fabs(of[GRADIENT][i]));
        if (step < least) least = step;
    }
    tube->time += tube->dt;
    MPI_Allreduce(&least, &tube->dt, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
}

/* FNV-1a over all cells, from left to right. */
static void print_digest(const struct tube *tube) {
    uint64_t hash = 0xcbf29ce484222325u;
    if (tube->rank > 0) MPI_Recv(&hash, 1, MPI_UINT64_T, tube->rank - 1, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 1; i <= tube->cells; i++) {
        uint64_t bits;
        memcpy(&bits, &tube->of[ENERGY][i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    if (tube->rank + 1 < tube->ranks) {
        MPI_Send(&hash, 1, MPI_UINT64_T, tube->rank + 1, 99, MPI_COMM_WORLD);
    } else {
        printf("digest %016llx\n", (unsigned long long)hash);
        fflush(stdout);
    }
}

/* Computes until the test lets the program continue; the results are thrown away. */
static void compute_on(const struct tube *tube, const char *folder, uint64_t version) {
    char one[4096], all[4096];
    int go = 0;
    snprintf(one, sizeof one, "%s/go-%llu", folder, (unsigned long long)version);
    snprintf(all, sizeof all, "%s/go", folder);
    while (!go) {
        volatile double sum = 0.0;
        for (int round = 0; round < 100; round++)
            for (int i = 0; i < tube->cells; i++) sum += sqrt(tube->of[ENERGY][i] + round);
        if (tube->rank == 0) go = access(one, F_OK) == 0 || access(all, F_OK) == 0;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    struct tube tube = {0};
    MPI_Comm_rank(MPI_COMM_WORLD, &tube.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &tube.ranks);
    if (argc < 4) MPI_Abort(MPI_COMM_WORLD, 2);
    tube.cells = atoi(argv[1]);
    uint64_t cycles = strtoull(argv[2], NULL, 10), every = strtoull(argv[3], NULL, 10), done = 0;
    const char *folder = argc > 4 ? argv[4] : NULL;
    int *pids = calloc((size_t)tube.ranks, sizeof(int)), pid = (int)getpid();
    MPI_Gather(&pid, 1, MPI_INT, pids, 1, MPI_INT, 0, MPI_COMM_WORLD);

    bvk_session_t session = NULL;
    must(bvk_open(MPI_COMM_WORLD, NULL, &session), "bvk_open");
    for (int i = 0; i < VECTORS; i++) {
        tube.of[i] = calloc((size_t)tube.cells + 3, sizeof(double));
        must(bvk_protect(session, NAMES[i], tube.of[i], (uint64_t)tube.cells + 3, BVK_F64), "bvk_protect");
    }
    must(bvk_protect(session, "time", &tube.time, 1, BVK_F64), "bvk_protect");
    must(bvk_protect(session, "dt", &tube.dt, 1, BVK_F64), "bvk_protect");
    must(bvk_protect(session, "cycle", &done, 1, BVK_U64), "bvk_protect");
    start(&tube);
    int restored = bvk_restore(session, "hydro", BVK_NEWEST, NULL);
    if (restored != BVK_NOTHING) must(restored, "bvk_restore");
    if (tube.rank == 0) {
        printf("started pids=");
        for (int i = 0; i < tube.ranks; i++) printf("%s%d", i ? "," : "", pids[i]);
        printf("\n");
        if (restored == BVK_OK) printf("restored %llu\n", (unsigned long long)done);
        fflush(stdout);
    }
    while (done < cycles) {
        cycle(&tube);
        done++;
        if (done % every != 0) continue;
        must(bvk_checkpoint(session, "hydro", done, NULL), "bvk_checkpoint");
        if (tube.rank == 0) {
            printf("taken %llu\n", (unsigned long long)done);
            fflush(stdout);
        }
        if (folder) compute_on(&tube, folder, done);
    }
    print_digest(&tube);
    must(bvk_close(&session), "bvk_close");
    MPI_Finalize();
    return 0;
}
