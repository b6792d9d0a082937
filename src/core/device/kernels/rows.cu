// Copies between rows at regular distances and bytes that are in one piece: from the device to the device, or to and from pinned host
// memory, which the threads access directly.
//
// A run is cut into items, each of which is handled by one thread block. The threads of an item form groups, each of which takes one row at
// a time, so a place is computed once for a row, and not once for each load.
//
// Compiled at run time, so there are no includes.

typedef unsigned long long u64;
typedef unsigned int u32;

#define LEVELS 7

struct RowRun {
    u64 packed;            // address of the first byte in the one piece
    u64 rows;              // address of the first row
    u64 at;                // the byte of the rows that the run begins with
    u64 bytes;
    u64 row;               // bytes of a row
    u64 count[LEVELS];     // how often rows come again, slowest first
    u64 distance[LEVELS];  // at which distance
    u32 levels;
    u32 width;             // bytes of a load: all addresses, lengths and distances are multiples of it
    u32 first_item;        // items of all runs before this one
    u32 is_packed;         // from the rows to the one piece; otherwise the other way
};

// Short tables of runs travel as kernel arguments, which are limited to 4 KiB.
#define FEW 16
struct Few {
    RowRun runs[FEW];
};

// Loads that a thread has under way at once.
#define TILE 4

__device__ static void divide(u64 index, u64 count, u64 &quotient, u64 &rest) {
    if ((index | count) >> 32) {
        quotient = index / count;
        rest = index - quotient * count;
    } else {
        const u32 small = (u32)index / (u32)count;
        quotient = small;
        rest = (u32)index - small * (u32)count;
    }
}

template <typename T> __device__ static void copy_item(const RowRun &run, u64 begin, u64 end) {
    const u64 first = run.at + begin, last = run.at + end;
    const u64 from_row = first / run.row, to_row = (last - 1) / run.row + 1;
    const u64 longest = run.row < end - begin ? run.row : end - begin;
    const u64 units = longest / sizeof(T);
    u32 lanes = 1;
    while (lanes < units && lanes < blockDim.x && (lanes < 8 || (u64)lanes * TILE < units)) lanes *= 2;
    const u32 lane = threadIdx.x & (lanes - 1);
    for (u64 row = from_row + threadIdx.x / lanes; row < to_row; row += blockDim.x / lanes) {
        u64 index = row, place = 0;
        for (u32 level = run.levels; level-- > 0;) {
            u64 quotient, rest;
            divide(index, run.count[level], quotient, rest);
            place += rest * run.distance[level];
            index = quotient;
        }
        const u64 row_begin = row * run.row;
        const u64 skipped = row_begin < first ? first - row_begin : 0;
        const u64 stop = row_begin + run.row < last ? run.row : last - row_begin;
        T *rows = (T *)(run.rows + place + skipped);
        T *packed = (T *)(run.packed + (row_begin + skipped - run.at));
        const T *from = run.is_packed ? rows : packed;
        T *to = run.is_packed ? packed : rows;
        const u64 length = (stop - skipped) / sizeof(T);
        for (u64 unit = lane; unit < length; unit += (u64)TILE * lanes) {
            T tile[TILE];
#pragma unroll
            for (u32 i = 0; i < TILE; i++)
                if (unit + i * lanes < length) tile[i] = from[unit + i * lanes];
#pragma unroll
            for (u32 i = 0; i < TILE; i++)
                if (unit + i * lanes < length) to[unit + i * lanes] = tile[i];
        }
    }
}

// Runs with one thread block for each item.
extern "C" __global__ void __launch_bounds__(256)
bvk_copy_rows(const __grid_constant__ Few few, const RowRun *many, const u32 *owners, u32 count, u64 item_bytes) {
    const u32 item = blockIdx.x;
    u32 low = 0;
    if (many) {
        low = owners[item];
    } else {
        for (u32 high = count; high - low > 1;) {
            const u32 middle = (low + high) / 2;
            if (few.runs[middle].first_item <= item) low = middle;
            else high = middle;
        }
    }
    __shared__ RowRun run;
    const u32 *source = (const u32 *)(many ? many + low : few.runs + low);
    for (u32 word = threadIdx.x; word < sizeof(RowRun) / 4; word += blockDim.x) ((u32 *)&run)[word] = source[word];
    __syncthreads();
    const u64 begin = (u64)(item - run.first_item) * item_bytes;
    const u64 end = begin + item_bytes < run.bytes ? begin + item_bytes : run.bytes;
    if (run.width == 16) copy_item<ulonglong2>(run, begin, end);
    else if (run.width == 8) copy_item<u64>(run, begin, end);
    else if (run.width == 4) copy_item<u32>(run, begin, end);
    else if (run.width == 2) copy_item<unsigned short>(run, begin, end);
    else copy_item<unsigned char>(run, begin, end);
}
