#!/usr/bin/env bash
# Checkpoints to an object store against the bare client (benches/objects.rs), with a server on this machine.
#   benches/objects.sh [--out NAME] [ARGUMENTS OF THE PROGRAM]     appends to benches/results/objects-NAME.jsonl
# PROGRAM and SERVER name them where they are built already (a machine without cargo).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=
if [ "${1:-}" = --out ]; then
    out=$root/benches/results/objects-$2.jsonl
    shift 2
fi
if [ -z "${PROGRAM:-}" ]; then
    . "$root/launch/env.sh"
    cd "$root"
    PROGRAM=$(cargo bench --locked --no-run --features object-store --bench objects --message-format json |
        sed -n 's/.*"executable":"\([^"]*objects[^"]*\)".*/\1/p' | tail -n 1)
fi
if [ -z "${SERVER:-}" ]; then
    # The one of the tests is not optimized.
    SERVER=$root/target/tools/fast/bin/s3s-fs
    [ -x "$SERVER" ] || cargo install s3s-fs --version 0.14.0 --features binary --locked --quiet --root "$root/target/tools/fast"
fi
# On shared memory: the figure is about the way there, not about a disk.
store=$(mktemp -d /dev/shm/bivouac-objects.XXXXXX)
mkdir "$store/bucket"
export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=bench-bench AWS_REGION=us-east-1 AWS_METADATA_ENDPOINT=http://127.0.0.1:1
export NO_PROXY=127.0.0.1
port=$((20000 + RANDOM % 20000))
"$SERVER" --host 127.0.0.1 --port $port --access-key bench --secret-key bench-bench "$store" > "$store/log" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true; wait $server 2> /dev/null || true; rm -rf "$store"' EXIT
for _ in $(seq 100); do
    if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then break; fi
    sleep 0.1
done
machine="{\"machine\": \"$(nproc) cores, $(uname -sr)\", \"command\": \"benches/objects.sh $*\"}"
{
    echo "$machine"
    "$PROGRAM" --endpoint "http://127.0.0.1:$port" "$@"
} | tee ${out:+-a "$out"}
