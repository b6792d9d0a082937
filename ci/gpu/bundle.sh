#!/usr/bin/env bash
# Builds what ci/gpu/run.sh runs on a machine with GPUs but without cargo or a network: stripped test and bench binaries, in
# out/gpu/. That machine needs the CUDA driver, NVRTC, Open MPI of the same major version, libnuma and libhwloc.
#   ci/gpu/bundle.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. launch/env.sh

folder=out/gpu
rm -rf "$folder" && mkdir -p "$folder"

# Prints the paths of the executables that cargo names, newest build of each.
built() {
    "$@" --message-format json | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        print(message["target"]["name"], message["executable"])'
}

tests=(--test contract_device --test device_checkpoint --test history --test rtm_physics)
benches=(--bench device --bench shot --bench beside --bench cache --example rtm)
{
    built cargo test --locked --no-run "${tests[@]}"
    built cargo build --locked --release "${benches[@]}"
} | while read -r name path; do
    cp "$path" "$folder/$name"
done
strip "$folder"/*
cp ci/gpu/run.sh benches/shots.sh "$folder/"
ls -l "$folder"
