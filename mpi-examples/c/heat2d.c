// Heat spreads over a plate, and the run survives being killed: the example of ../heat2d.rs in C.
//
//   mpicc -O2 -ffp-contract=off heat2d.c -lbivouac -lm -o heat2d        (docs/C.md has the long form)
//   mpirun -n 4 ./heat2d --grid 1024x1024 --steps 1000 --every 100
//
// The plate is cut into strips of rows, one per rank. If the program is killed and started again, it continues from the
// newest checkpoint that all ranks can load, even on a different number of ranks. Its last line, `digest`, is the same
// for every number of ranks, with and without interruptions, and the same as that of the Rust example.
// `--die-at STEP:RANK` makes a rank kill itself after that step.
//
// All calls to Bivouac are in open_session, restore, checkpoint and main.
#include <bivouac.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double RATE = 0.2, HOTTEST = 100.0;

struct options {
    int nx, ny;
    uint64_t steps, every, die_step;
    int die_rank;
};

struct plate {
    int nx, ny;             // cells of the whole plate
    int first, rows;        // rows of this rank
    int north, south;       // neighbours, or MPI_PROC_NULL
    double *now, *next, *k; // (rows + 2) x (nx + 2) cells: temperatures and conductivities, with a ring of ghost cells
};

// Ends all ranks: the others may be waiting for this one.
static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

// For calls without which the program cannot continue.
static void must(int status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, bvk_status_name(status), bvk_error());
        fail("giving up");
    }
}

static double *cell(const struct plate *plate, double *plane, int row, int x) {
    return plane + (size_t)(row + 1) * (size_t)(plate->nx + 2) + (size_t)(x + 1);
}

static double spot(double u, double v, double cx, double cy, double heat) {
    return heat / (1.0 + 60.0 * ((u - cx) * (u - cx) + (v - cy) * (v - cy)));
}

static void fill(struct plate *plate) {
    for (int row = 0; row < plate->rows; row++) {
        for (int x = 0; x < plate->nx; x++) {
            double u = ((double)x + 0.5) / (double)plate->nx;
            double v = ((double)(plate->first + row) + 0.5) / (double)plate->ny;
            double heat = spot(u, v, 0.25, 0.3, 1.0) + spot(u, v, 0.7, 0.2, 0.6) + spot(u, v, 0.6, 0.75, 0.8);
            double place = (u + 0.5 * v) * 6.0;
            *cell(plate, plate->now, row, x) = fmin(heat, 1.0) * HOTTEST;
            *cell(plate, plate->k, row, x) = place - trunc(place) < 0.15 ? 0.05 : 0.4 + 0.6 * v;
        }
    }
}

// Brings the ring up to date: from the neighbours, and by mirroring at the border, which no heat crosses.
static void exchange(const struct plate *plate, double *plane) {
    int nx = plate->nx, last = plate->rows - 1;
    MPI_Sendrecv(cell(plate, plane, 0, 0), nx, MPI_DOUBLE, plate->north, 1, cell(plate, plane, last + 1, 0), nx,
                 MPI_DOUBLE, plate->south, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(cell(plate, plane, last, 0), nx, MPI_DOUBLE, plate->south, 2, cell(plate, plane, -1, 0), nx, MPI_DOUBLE,
                 plate->north, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    size_t row_bytes = (size_t)nx * sizeof(double);
    if (plate->north == MPI_PROC_NULL) memcpy(cell(plate, plane, -1, 0), cell(plate, plane, 0, 0), row_bytes);
    if (plate->south == MPI_PROC_NULL) memcpy(cell(plate, plane, last + 1, 0), cell(plate, plane, last, 0), row_bytes);
    for (int row = 0; row <= last; row++) {
        *cell(plate, plane, row, -1) = *cell(plate, plane, row, 0);
        *cell(plate, plane, row, nx) = *cell(plate, plane, row, nx - 1);
    }
}

static void step(struct plate *plate) {
    int stride = plate->nx + 2;
    for (int row = 0; row < plate->rows; row++) {
        const double *t = cell(plate, plate->now, row, 0), *k = cell(plate, plate->k, row, 0);
        double *next = cell(plate, plate->next, row, 0);
        for (int x = 0; x < plate->nx; x++) {
            double here = t[x], conducts = k[x];
            double flow = (conducts + k[x - 1]) * (t[x - 1] - here) + (conducts + k[x + 1]) * (t[x + 1] - here) +
                          (conducts + k[x - stride]) * (t[x - stride] - here) +
                          (conducts + k[x + stride]) * (t[x + stride] - here);
            next[x] = here + 0.5 * RATE * flow;
        }
    }
    // The state is copied back, not swapped: the protected pointer still points to the present state.
    for (int row = 0; row < plate->rows; row++) {
        memcpy(cell(plate, plate->now, row, 0), cell(plate, plate->next, row, 0), (size_t)plate->nx * sizeof(double));
    }
}

// FNV-1a over all cells as little-endian doubles, from north to south; each rank continues where the previous one
// ended.
static void print_digest(const struct plate *plate, int rank, int ranks) {
    uint64_t hash = 0xcbf29ce484222325u;
    if (rank > 0) MPI_Recv(&hash, 1, MPI_UINT64_T, rank - 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int row = 0; row < plate->rows; row++) {
        for (int x = 0; x < plate->nx; x++) {
            uint64_t bits;
            memcpy(&bits, cell(plate, plate->now, row, x), sizeof bits);
            for (int byte = 0; byte < 8; byte++) hash = (hash ^ (bits >> (8 * byte) & 0xff)) * 0x100000001b3u;
        }
    }
    if (rank + 1 < ranks) {
        MPI_Send(&hash, 1, MPI_UINT64_T, rank + 1, 3, MPI_COMM_WORLD);
    } else {
        printf("digest %016llx\n", (unsigned long long)hash);
        fflush(stdout);
    }
}

static struct options parse(int argc, char **argv) {
    struct options options = {1024, 1024, 1000, 0, 0, -1};
    for (int at = 1; at + 1 < argc; at += 2) {
        const char *value = argv[at + 1];
        if (!strcmp(argv[at], "--grid") && sscanf(value, "%dx%d", &options.nx, &options.ny) == 2) continue;
        if (!strcmp(argv[at], "--steps")) options.steps = strtoull(value, NULL, 10);
        else if (!strcmp(argv[at], "--every")) options.every = strtoull(value, NULL, 10);
        else if (!strcmp(argv[at], "--die-at")) {
            char *rest;
            options.die_step = strtoull(value, &rest, 10);
            options.die_rank = *rest == ':' ? atoi(rest + 1) : 0;
        } else fail("usage: heat2d [--grid NXxNY] [--steps N] [--every N] [--die-at STEP:RANK]");
    }
    return options;
}

static struct plate make_plate(const struct options *options, int rank, int ranks) {
    struct plate plate = {options->nx, options->ny, 0, 0, MPI_PROC_NULL, MPI_PROC_NULL, NULL, NULL, NULL};
    if (options->nx < 1 || options->ny < ranks) fail("the grid needs a row for each rank");
    plate.first = (int)((long long)plate.ny * rank / ranks);
    plate.rows = (int)((long long)plate.ny * (rank + 1) / ranks) - plate.first;
    if (rank > 0) plate.north = rank - 1;
    if (rank + 1 < ranks) plate.south = rank + 1;
    size_t cells = (size_t)(plate.rows + 2) * (size_t)(plate.nx + 2);
    plate.now = calloc(cells, sizeof(double));
    plate.next = calloc(cells, sizeof(double));
    plate.k = calloc(cells, sizeof(double));
    if (!plate.now || !plate.next || !plate.k) fail("no memory");
    fill(&plate);
    exchange(&plate, plate.k);
    return plate;
}

int main(int argc, char **argv) {
    int granted, rank, ranks;
    // A thread of Bivouac exchanges its messages at any thread level: over MPI with MPI_THREAD_MULTIPLE, otherwise over
    // sockets.
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct options options = parse(argc, argv);
    struct plate plate = make_plate(&options, rank, ranks);

    bvk_session_t session;
    must(bvk_open(MPI_COMM_WORLD, NULL, &session), "opening the session");

    // A restart needs the state, the number of steps done, and the problem that the state belongs to.
    uint64_t done = 0;
    int64_t grid[2] = {plate.nx, plate.ny};
    // The plate is cut into boxes, one per rank, with a ring of one ghost cell; step and grid are the same on all
    // ranks.
    uint64_t shape[2] = {(uint64_t)plate.ny, (uint64_t)plate.nx}, ring[2] = {1, 1};
    uint64_t origin[2] = {(uint64_t)plate.first, 0}, extent[2] = {(uint64_t)plate.rows, (uint64_t)plate.nx};
    uint64_t cells = (extent[0] + 2) * (extent[1] + 2);
    bvk_boxes_t boxes;
    must(bvk_boxes(session, 2, shape, 1, origin, extent, ring, ring, 0, &boxes), "cutting the plate");
    must(bvk_protect_on(session, "temperature", boxes, plate.now, cells, BVK_F64), "protecting the plate");
    must(bvk_protect_shared(session, "step", &done, 1, BVK_U64), "protecting the step");
    must(bvk_protect_shared(session, "grid", grid, 2, BVK_I64), "protecting the grid");

    bvk_restored restored = BVK_RESTORED_INIT;
    int status = bvk_restore(session, "heat", BVK_NEWEST, &restored);
    must(status, "restarting");
    if (status == BVK_OK) {
        if (grid[0] != plate.nx || grid[1] != plate.ny) fail("the checkpoint is of another grid");
        if (rank == 0) printf("restored version=%llu\n", (unsigned long long)restored.version);
    }

    int stopped = 0;
    bvk_pending_t last = NULL;
    while (done < options.steps && !stopped) {
        exchange(&plate, plate.now);
        step(&plate);
        done++;
        int due = 0;
        must(bvk_should_exit(session, &stopped), "asking whether to stop");
        if (options.every) due = done % options.every == 0;
        else must(bvk_should_checkpoint(session, &due), "asking whether a checkpoint is due");
        // The only cost of a checkpoint that fails is that a restart goes further back.
        if (due || stopped) bvk_release(&last);
        if ((due || stopped) && bvk_checkpoint(session, "heat", done, &last) < 0) {
            fprintf(stderr, "rank %d: checkpoint %llu was not taken: %s\n", rank, (unsigned long long)done, bvk_error());
        }
        if (done == options.die_step && rank == options.die_rank) raise(SIGKILL);
    }
    // Says what became of the checkpoints, after waiting for the last one.
    if (last) bvk_wait(last, BVK_LEVEL_SYSTEM, NULL);
    bvk_release(&last);
    bvk_report report = BVK_REPORT_INIT;
    while (bvk_next_report(session, &report) == BVK_OK) {
        if (report.committed != 1 && rank == 0) {
            // A report without a name is about a tier that cannot be used.
            if (report.name[0]) fprintf(stderr, "version %llu, ", (unsigned long long)report.version);
            fprintf(stderr, "level %d: %s\n", report.level, report.reason);
        }
    }
    print_digest(&plate, rank, ranks);
    if (bvk_close(&session) < 0) fprintf(stderr, "closing the session: %s\n", bvk_error());
    free(plate.now);
    free(plate.next);
    free(plate.k);
    MPI_Finalize();
    return 0;
}
