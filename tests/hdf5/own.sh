#!/usr/bin/env bash
# Runs HDF5's own test programs on the driver of Bivouac, and those that fail on HDF5's driver `core` as well, which also keeps files in memory.
#   tests/hdf5/own.sh SOURCES BUILD PLUGINS SCRATCH [TEST...]
# SOURCES: HDF5's source folder. BUILD: where it was built, with its tests. PLUGINS: where libbivouac_hdf5.so, libbivouac.so
# and own.so are.
#   RANKS   more than 1: so many ranks run each test at once, under mpirun, each in a folder of its own, in one session of all
#   LIMIT   seconds for a test (300)
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../../launch/env.sh"
ranks=${RANKS:-1}
sources=$1 build=$2 plugins=$3 scratch=$4 preload=
shift 4
# Those that HDF5's own build runs with other drivers (test/CMakeVFDTests.cmake), without `big`, whose files have many gigabytes.
usual="testhdf5 cache_tagging lheap ohdr stab gheap evict_on_close hyperslab istore bittests dt_arith page_buffer dtypes dsets select_io_dset
    chunk_info cmpd_dset mdset filter_fail extend direct_chunk external efc links unlink twriteorder mtime fillval mount app_ref enum set_extent
    ttsafe enc_dec_plist enc_dec_plist_cross_platform getname s3comms ntypes dangle dtransform cross_read freespace mf vds file_image unregister
    cache_logging cork swmr thread_id vol timer cmpd_dtransform event_set onion cache cache_api btree2 farray earray objcopy_ref objcopy"
[ $# -gt 0 ] || set -- $usual
export LD_LIBRARY_PATH="$build/bin:$plugins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" srcdir="$sources/test"
BIVOUAC_MEMORY_DIRECTORY=$(mktemp -d /dev/shm/bivouac-hdf5-XXXXXX)
trap 'rm -rf "$BIVOUAC_MEMORY_DIRECTORY"' EXIT
export BIVOUAC_MEMORY_DIRECTORY BIVOUAC_LOG=off BIVOUAC_LOCAL_ENABLED=false BIVOUAC_GLOBAL_KEEP_LAST=1 BIVOUAC_MEMORY_BUDGET="256 MiB"

# Runs a test; the folders and their files are new each time.
attempt() { # DRIVER TEST OUTPUT
    local rank launcher=()
    rm -rf "$scratch/work" "$BIVOUAC_MEMORY_DIRECTORY"/*
    mkdir -p "$scratch/out"
    for ((rank = 0; rank < ranks; rank++)); do
        mkdir -p "$scratch/work/rank$rank"
        cp -r "$build/test/H5TEST/testfiles" "$scratch/work/rank$rank"
    done
    [ "$ranks" = 1 ] || launcher=("${mpirun_command[@]}" -n "$ranks")
    BIVOUAC_GLOBAL_DIRECTORY=$scratch/work/store HDF5_DRIVER=$1 HDF5_PLUGIN_PATH=$plugins nice -n 19 timeout "${LIMIT:-300}" "${launcher[@]}" \
        sh -c 'cd "$0/rank${OMPI_COMM_WORLD_RANK:-0}" && exec env LD_PRELOAD="$1" "$2"' "$scratch/work" "$preload" "$build/bin/$2" > "$3" 2>&1
}

passed=() failed=()
for test in "$@"; do
    begun=$SECONDS preload=$plugins/own.so
    attempt bivouac "$test" "$scratch/out/$test.bivouac"
    status=$?
    if [ $status -eq 0 ]; then
        passed+=("$test")
        echo "pass $test ($((SECONDS - begun)) s)"
        continue
    fi
    preload=
    attempt core "$test" "$scratch/out/$test.core"
    echo "FAIL $test: status $status; with core: $?" # 124: it took longer than LIMIT
    failed+=("$test")
done
rm -rf "$scratch/work"
echo "${#passed[@]} passed, ${#failed[@]} failed: ${failed[*]:-}"
[ ${#failed[@]} -eq 0 ]
