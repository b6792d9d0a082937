#!/usr/bin/env bash
# Builds, in out/gpu/, what ci/gpu/run.sh runs on a machine with GPUs but without cargo or a network: stripped test and bench
# binaries, the library with the interfaces for C, VELOC and Python, and the programs that test these interfaces. That machine
# needs the CUDA driver, NVRTC, Open MPI of the same major version, libnuma and libhwloc; for Python it also needs mpi4py,
# NumPy and PyTorch.
#   ci/gpu/bundle.sh           everything
#   ci/gpu/bundle.sh --small   what `run.sh --only tests,interfaces,device` needs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. launch/env.sh

tests=(--test contract_device --test device_checkpoint --test device_dealt --test offload --test offload_rounds --test history)
benches=(--bench device)
case "${1:-}" in
"") tests+=(--test rtm_physics --test graphlets_counts --test minis_kernels) &&
    benches+=(--bench shot --bench beside --bench slots --bench cache --bench reduction --bench marks --bench figures --example rtm --example graphlets --example minis) ;;
--small) ;;
*) sed -n '5,6s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac

folder=out/gpu
rm -rf "$folder" && mkdir -p "$folder/lib"

# Prints the paths of the executables that cargo names, with the newest build of each.
built() {
    "$@" --message-format json | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        print(message["target"]["name"], message["executable"])'
}

{
    built cargo test --locked --no-run "${tests[@]}"
    built cargo build --locked --release --lib "${benches[@]}"
} | while read -r name path; do
    cp "$path" "$folder/$name"
done

# The library under the name that programs record, and programs that find it in their own folder.
library=${CARGO_TARGET_DIR:-target}/release/libbivouac_capi.so
soname=$(readelf -d "$library" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
cp "$library" "$folder/lib/$soname"
cc=("${MPICC:-mpicc}" -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -O1 -I include '-Wl,-rpath,$ORIGIN/lib:$ORIGIN')
"${cc[@]}" -shared -fPIC -Wl,-soname,libveloc-client.so src/capi/veloc/client.c "$folder/lib/$soname" -o "$folder/lib/libveloc-client.so"
"${cc[@]}" tests/programs/c/gpu.c "$folder/lib/$soname" -pthread -ldl -o "$folder/c_gpu"
"${cc[@]}" tests/programs/c/veloc_gpu.c -L "$folder/lib" -lveloc-client "-Wl,-rpath-link,$folder/lib" -ldl -o "$folder/veloc_gpu"
find "$folder" -type f -exec strip {} +
cp -r src/capi/python/bivouac "$folder/lib/bivouac"
find "$folder/lib" -name __pycache__ -prune -exec rm -r {} +
cp tests/programs/python/gpu.py "$folder/python_gpu.py"
# This is built on that machine, if it has nvcc.
mkdir "$folder/cuda" && cp include/bivouac.h mpi-examples/cuda/heat.cu "$folder/cuda/"
cp ci/gpu/run.sh ci/gpu/many.sh ci/gpu/cuda.sh benches/shots.sh "$folder/"
ls -lR "$folder"
