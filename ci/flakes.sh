#!/usr/bin/env bash
# Repeats tests on a machine that is kept busy, and stores the results: this exposes tests that fail intermittently.
#   ci/flakes.sh RUNS [--load L] [--shard I/N] [FILTER] [-- WHICH]
#       RUNS repeats of the tests that FILTER names: `all` (default), `pure` (tests that start no process), `processes` (all others), or a
#       filter expression of nextest. While they run, each core also runs L busy loops (default 2) and a disk writer.
#       WHICH are Cargo options for the test programs to build, such as --lib or --test hosts (default: all).
#       --shard takes the I-th of N parts. An interrupted call stores its results so far: of the last repeat, the tests that passed.
#   ci/flakes.sh --many SECONDS COPIES NAME=PROGRAM...
#       runs built test programs (NAME as nextest names them) over and over, COPIES at once, which are each other's load
#   ci/flakes.sh --sum [COMMIT]
#       how often each class was repeated since COMMIT (default: at this one), and what failed
# The results are a line in benches/results/flakes.jsonl; the output of failing tests stays in target/flakes/.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
results=benches/results/flakes.jsonl
# Which test programs start no process, as nextest names them (no slash: that ends a pattern there). A new program counts as one that does.
pure='^bivouac-(core|capi|cli::bin.bivouac|cli::(affinity_kernels|architecture|capi_header|contract_comm|contract_device|crash_sweep|device_checkpoint|digest|faults_device|fuzz_smoke|format_document|golden|heat2d_physics|history|redundancy|rtm_physics|scaling|seal|simulation))$'

usage() { sed -n '2,13s/^# \{0,1\}//p' "$root/ci/flakes.sh"; }
fail() {
    echo "ci/flakes.sh: $1" >&2
    exit 2
}
count() { [[ "$1" =~ ^[0-9]+$ ]] || fail "$2 is not a number: \"$1\""; }

if [ "${1:-}" = --sum ]; then
    since=$(git rev-parse --verify --quiet "${2:-HEAD}^{commit}") || fail "there is no commit $2"
    exec python3 ci/flakes.py sum "$results" "$pure" "$since"
fi

if [ "${1:-}" = --many ]; then
    [ $# -ge 4 ] || { usage >&2 && exit 2; }
    shift
    count "$1" SECONDS
    count "$2" COPIES
    . "$root/launch/env.sh"
    export LD_LIBRARY_PATH="$root/target/nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    # There may be no repository where the programs were brought.
    line="{\"commit\":\"$(git rev-parse HEAD 2> /dev/null || echo unknown)\",\"date\":\"$(date -u +%FT%TZ)\",\"cores\":$(nproc)}"
    exec python3 ci/flakes.py many "$results" "$line" "$@"
fi

runs= load=2 shard= filter= which=()
while [ $# -gt 0 ]; do
    case "$1" in
    --load) load=${2:-} && shift ;;
    --shard) shard=${2:-} && shift ;;
    --help | -h) usage && exit 0 ;;
    --) shift && which=("$@") && break ;;
    -*) usage >&2 && fail "there is no option $1" ;;
    *) if [ -z "$runs" ]; then runs=$1; elif [ -z "$filter" ]; then filter=$1; else fail "one FILTER, not also \"$1\""; fi ;;
    esac
    shift
done
[ -n "$runs" ] || { usage >&2 && exit 2; }
count "$runs" RUNS
count "$load" --load
filter=${filter:-all}
case "$filter" in
all) expression='all()' ;;
pure) expression="binary_id(/$pure/)" ;;
processes) expression="not binary_id(/$pure/)" ;;
*) expression=$filter ;;
esac
[[ -z "$shard" || "$shard" =~ ^[1-9][0-9]*/[1-9][0-9]*$ ]] || fail "--shard wants I/N, not \"$shard\""
command -v cargo-nextest > /dev/null || fail "cargo-nextest is not there; ci/setup.sh --with-tests says how to install it"
command -v python3 > /dev/null || fail "python3 is not there; ci/setup.sh --with-tests installs it"

. "$root/launch/env.sh"
export LD_LIBRARY_PATH="$root/target/nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
target=${CARGO_TARGET_DIR:-$root/target}
cargo build --quiet --locked --examples --bins
# The programs are built and listed once, and then run as they are.
kept=$target/flakes/$(date -u +%Y%m%d-%H%M%S)-$$
mkdir -p "$kept/disk"
cargo metadata --locked --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" > "$kept/cargo.json"
cargo nextest list --locked --cargo-quiet "${which[@]}" --list-type binaries-only --message-format json > "$kept/binaries.json"
nextest=(cargo nextest)
built=(--cargo-metadata "$kept/cargo.json" --binaries-metadata "$kept/binaries.json" --profile flakes)
"${nextest[@]}" list "${built[@]}" --message-format json > "$kept/tests.json"

# The programs are ended by their numbers, however this script ends; and they end themselves when the script has gone.
beside=()
running=
end_all() {
    if [ -n "$running" ]; then
        # nextest ends its tests and records its results so far.
        kill -TERM "$running" 2> /dev/null || true
        wait "$running" 2> /dev/null || true
        cp "$target/nextest/flakes/junit.xml" "$kept/part.xml" 2> /dev/null || true
        running=
    fi
    [ "${#beside[@]}" -eq 0 ] || kill -KILL "${beside[@]}" 2> /dev/null || true
    [ "${#beside[@]}" -eq 0 ] || wait "${beside[@]}" 2> /dev/null || true
    beside=()
    rm -rf "$kept/disk"
}
busy() {
    while kill -0 "$$" 2> /dev/null; do
        for ((turn = 0; turn < 200000; turn++)); do :; done
    done
}
# Writes 64 MiB at once and thirty small files, each durable before the next, over and over in the same places.
writer() {
    local file
    while kill -0 "$$" 2> /dev/null && [ -d "$kept/disk" ]; do
        dd if=/dev/zero of="$kept/disk/large-$1" bs=1M count=64 conv=fsync status=none || true
        for file in {1..30}; do
            dd if=/dev/zero of="$kept/disk/small-$1-$file" bs=4k count=1 conv=fsync status=none || true
        done
    done
} 2> /dev/null

. "$root/tests/hosts/one_group.sh"
enter_one_group
began=$SECONDS
commit=$(git rev-parse HEAD)
# The results stored here do not change what is tested.
dirty=$([ -z "$(git status --porcelain -- . ":!$results")" ] && echo false || echo true)
interrupted=false
stored=false
store() {
    $stored && return
    stored=true
    python3 ci/flakes.py store "$results" "$kept" "{\"commit\":\"$commit\",\"changed\":$dirty,\"date\":\"$(date -u +%FT%TZ)\",
        \"cores\":$(nproc),\"load\":$load,\"shard\":\"$shard\",\"filter\":\"${filter//\\/\\\\}\",\"seconds\":$((SECONDS - began)),
        \"interrupted\":$interrupted}"
}
finish() {
    local status=$?
    trap '' INT TERM HUP
    end_all
    store || status=1
    leave_one_group
    exit "$status"
}
trap finish EXIT
trap 'interrupted=true; exit 130' INT TERM HUP

for ((core = 0; core < $(nproc); core++)); do
    for ((loop = 0; loop < load; loop++)); do
        busy &
        beside+=($!)
    done
    writer "$core" &
    beside+=($!)
done

failed=0
for ((run = 1; run <= runs; run++)); do
    status=0
    "${nextest[@]}" run "${built[@]}" ${shard:+--partition "slice:$shard"} --test-threads "$(($(nproc) + 1))" -E "$expression" \
        > "$kept/run-$run.log" 2>&1 &
    running=$!
    wait "$running" || status=$?
    running=
    cp "$target/nextest/flakes/junit.xml" "$kept/run-$run.xml" 2> /dev/null || status=1
    rm -f "$target/nextest/flakes/junit.xml"
    case "$status" in
    0) rm "$kept/run-$run.log" ;;
    # Tests failed.
    100) failed=$((failed + 1)) && echo "run $run of $runs: failures, see $kept/run-$run.log" ;;
    *) tail -n 20 "$kept/run-$run.log" >&2 && fail "nextest ended with status $status: $kept/run-$run.log" ;;
    esac
done
[ "$failed" -eq 0 ] || exit 1
