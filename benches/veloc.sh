#!/usr/bin/env bash
# Blocking time of a checkpoint through VELOC's interface against a plain write() of the same bytes to a file in shared memory:
# medians of the slowest rank. Two ranks with 256 MiB each, 15 rounds.
#
#   benches/veloc.sh [MiB [rounds]]
#
# LIBRARIES: the folder with libbivouac.so (otherwise it is built). STORE: where scratch and persistent storage are, on a disk.
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
ln -s "$LIBRARIES/libbivouac.so" "$store/libbivouac.so.$version"
mpicc -shared -fPIC -O2 -Wl,-soname,libveloc-client.so -I"$root/include" "$root/src/capi/veloc/client.c" \
    -L"$LIBRARIES" -lbivouac -o "$store/libveloc-client.so"
mpicc -std=c99 -O2 -Wall -Wextra -Werror -I"$root/include" "$root/benches/c/veloc_bench.c" -L"$store" -lveloc-client \
    -Wl,-rpath-link,"$store" -o "$store/veloc_bench"
cat > "$store/veloc.cfg" <<END
scratch = $store/scratch
persistent = $store/persistent
mode = async
max_versions = 1
scratch_versions = 1
ec_interval = -1
END
. "$root/launch/env.sh"
LD_LIBRARY_PATH=$store${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
BIVOUAC_MEMORY_DIRECTORY=$memory
BIVOUAC_MEMORY_BUDGET="$((mib * 6)) MiB"
export LD_LIBRARY_PATH BIVOUAC_MEMORY_DIRECTORY BIVOUAC_MEMORY_BUDGET
"${mpirun_command[@]}" -n 2 "$store/veloc_bench" "$store/veloc.cfg" "$mib" "$rounds" "$memory"
