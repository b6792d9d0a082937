#!/usr/bin/env bash
# How long checkpoints through VELOC's interface block a program, against a copy in memory: the first one, and the median of later ones,
# of the slowest rank. Two ranks with 256 MiB each, 15 rounds; in one call and in the three that VELOC's own programs use; one region
# and fifty. Then how long Restart_test and the restart take: from files, with and without a test that reads, and from node memory
# after a crash. One JSON line for each.
#
#   benches/veloc.sh [MiB [rounds]]
#
# LIBRARIES: the folder with libbivouac_capi.so (otherwise it is built). STORE: where scratch and persistent storage are, on a disk.
# VELOC_PREFIX: where VELOC is installed (its `bootstrap.sh` and `auto-install.py FOLDER` do that); its figures come, too.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mib=${1:-256}
rounds=${2:-15}
if [ -z "${LIBRARIES:-}" ]; then
    (cd "$root" && cargo build --release --lib)
    LIBRARIES=${CARGO_TARGET_DIR:-$root/target}/release
fi
memory=$(mktemp -d /dev/shm/bivouac-bench-XXXXXX)
store=$(mktemp -d "${STORE:-${TMPDIR:-/tmp}}/bivouac-bench-XXXXXX")
trap 'rm -rf "$memory" "$store"' EXIT
version=$(sed -n 's/^version = "\([0-9]*\.[0-9]*\)\..*/\1/p' "$root/Cargo.toml" | head -n 1)
mkdir "$store/ours"
ln -s "$LIBRARIES/libbivouac_capi.so" "$store/ours/libbivouac.so.$version"
mpicc -shared -fPIC -O2 -Wl,-soname,libveloc-client.so -I"$root/include" "$root/src/capi/veloc/client.c" \
    -L"$LIBRARIES" -l:libbivouac_capi.so -o "$store/ours/libveloc-client.so"
bench() { mpicc -std=c99 -O2 -Wall -Wextra -Werror -I"$1" "$root/benches/c/veloc_bench.c" -L"$2" -lveloc-client -Wl,-rpath-link,"$2" -o "$3"; }
bench "$root/include" "$store/ours" "$store/ours/bench"
if [ -n "${VELOC_PREFIX:-}" ]; then
    mkdir "$store/peer"
    bench "$VELOC_PREFIX/include" "$VELOC_PREFIX/lib" "$store/peer/bench"
fi
. "$root/launch/env.sh"
export BIVOUAC_MEMORY_DIRECTORY=$memory BIVOUAC_MEMORY_BUDGET="$((mib * 6)) MiB"
# run NAME LIBRARIES PROGRAM WHAT REGIONS [SETTING…]
run() {
    printf '%s\n' "scratch = $store/scratch" "persistent = $store/persistent" 'mode = async' 'max_versions = 1' 'scratch_versions = 1' \
        'ec_interval = -1' "${@:6}" > "$store/veloc.cfg"
    LD_LIBRARY_PATH=$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "${mpirun_command[@]}" -x LD_LIBRARY_PATH -n 2 "$3" "$store/veloc.cfg" \
        "$mib" "$5" "$rounds" "$4" "$1"
}
clear() { rm -rf "$store/scratch" "$store/persistent"; }
for regions in 1 50; do
    for calls in one steps; do
        clear
        run bivouac "$store/ours" "$store/ours/bench" "$calls" "$regions"
    done
    run 'bivouac, a test that reads' "$store/ours" "$store/ours/bench" restart "$regions"
    run 'bivouac, a test that only looks' "$store/ours" "$store/ours/bench" restart "$regions" 'verify = false'
    run bivouac "$store/ours" "$store/ours/bench" steps-left "$regions" > /dev/null 2>&1 || true
    run 'bivouac, from node memory' "$store/ours" "$store/ours/bench" restart "$regions"
    [ -n "${VELOC_PREFIX:-}" ] || continue
    for calls in one steps restart; do
        [ "$calls" = restart ] || clear
        run veloc "$VELOC_PREFIX/lib" "$store/peer/bench" "$calls" "$regions"
    done
done
