#!/usr/bin/env bash
# The second MPI: builds heat2d against MPICH in a target directory of its own and runs it on 4 ranks,
# undisturbed, killed and restarted (launch/demo.sh does that and compares the digests); and the C interface on 2.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/ci/setup.sh" --with-mpich
export MPICC=mpicc.mpich MPIRUN=mpirun.mpich
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/mpich"
. "$root/launch/env.sh"

cd "$root"
cargo build --quiet --locked --lib --example heat2d
heat2d=$CARGO_TARGET_DIR/debug/examples/heat2d
linked=$(ldd "$heat2d") # a pipe into `grep -q` would end ldd by SIGPIPE, and the script with it
if [[ $linked != *libmpich* ]]; then
    printf 'heat2d was not linked against MPICH:\n%s\n' "$linked" >&2
    exit 1
fi

echo "MPICH, 4 ranks"
HEAT2D=$heat2d DEMO_STEPS=1600 "$root/launch/demo.sh" --ranks 4

echo "MPICH, the C interface"
folder=$(mktemp -d /dev/shm/bivouac-test-XXXXXX)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/memory"
ln -s "$CARGO_TARGET_DIR/debug/libbivouac.so" "$folder/libbivouac.so"
soname=$(readelf -d "$CARGO_TARGET_DIR/debug/libbivouac.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
ln -s "$CARGO_TARGET_DIR/debug/libbivouac.so" "$folder/$soname"
"$MPICC" -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic -I "$root/include" \
    "$root/tests/programs/c/capi.c" -L "$folder" -lbivouac -pthread -o "$folder/capi"
env BIVOUAC_MEMORY_DIRECTORY="$folder/memory" BIVOUAC_MEMORY_BUDGET="256 MiB" BIVOUAC_LOCAL_ALLOW_TMPFS=true \
    BIVOUAC_LOCAL_DIRECTORY="$folder/local" BIVOUAC_GLOBAL_DIRECTORY="$folder/global" BIVOUAC_JOB_NAME=mpich-capi \
    LD_LIBRARY_PATH="$folder" "$MPIRUN" -n 2 "$folder/capi"
