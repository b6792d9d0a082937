#!/usr/bin/env bash
# What affinity costs and gives, by one command; results go to benches/results/NAME.jsonl, and a table to standard output:
#   benches/affinity.sh [OPTIONS]
#     --threads N        of each rank (default: the CPUs of this machine, 16 at most)
#     --ranks N          processes (default 1)
#     --size MIB         memory of a kernel, of each rank (default 256; take several times the caches of all nodes)
#     --iterations N     steps of a whole run (default 60)
#     --points N         checkpoints in a run (default 5)
#     --restarts N       from each, in each mode (default 2)
#     --kernels "A B"    of stencil, sparse, butterfly (default: all three)
#     --costs ROUNDS     rounds of the figures beside the kernels (default 40; 0: leave them out)
#     --cost-size MIB    region of these (default 1024)
#     --dir DIR          for checkpoints (default: target/bench-data)
#     --out NAME         of the results (default: affinity)
#     --emulated         in a machine with four NUMA nodes that is emulated (tests/numa/machine.sh): shows that threads and pages
#                        are brought back; times mean nothing there
#
# The experiment is that of Middleware'14, section 4: each kernel runs with affinity and without, with checkpoints on its way; from each
# checkpoint new processes are restarted, which do nothing about threads and pages. On a machine with several NUMA nodes
# the table shows how much longer an iteration takes afterwards. Run it on a quiet machine. BIVOUAC_BENCH_PROGRAM names a program
# that was built elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/env.sh
arguments=("$@")
threads=$(nproc) ranks=1 size=256 iterations=60 points=5 restarts=2 costs=40 cost_size=1024 dir=target/bench-data out=affinity
kernels="stencil sparse butterfly" emulated=false
[ "$threads" -le 16 ] || threads=16
while [ $# -gt 0 ]; do
    case "$1" in
    --threads | --ranks | --size | --iterations | --points | --restarts | --kernels | --costs | --dir | --out)
        declare "${1#--}=$2" && shift 2
        ;;
    --cost-size) cost_size=$2 && shift 2 ;;
    --emulated) emulated=true && shift ;;
    -h | --help) sed -n '2,21s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) echo "unknown option $1" >&2 && exit 2 ;;
    esac
done
program=${BIVOUAC_BENCH_PROGRAM:-}
if [ -z "$program" ]; then
    program=$(cargo bench --no-run --bench affinity 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')
fi
program=$(realpath "$program")
mkdir -p "$dir" benches/results
dir=$(cd "$dir" && pwd)/affinity
result=$PWD/benches/results/$out.jsonl
if $emulated && [ -z "${BIVOUAC_TEST_MACHINE:-}" ]; then
    mkdir -p "$dir"
    # Checkpoints stay inside, in memory: the folder that is shared is slow.
    BIVOUAC_BENCH_PROGRAM=$program exec tests/numa/machine.sh --nodes 4 --cpus 8 --memory 4096 --limit 900 \
        --share "$PWD/benches/results" -- "$PWD/benches/affinity.sh" --threads 8 --size 32 --iterations 12 --points 1 --restarts 1 --cost-size 64 \
        --costs 5 --dir /tmp/bench-data "${arguments[@]}"
fi
unset BIVOUAC_BENCH_PROGRAM

start() { "${mpirun_command[@]}" --bind-to none -n "$@"; }

trap 'rm -rf "$dir"' EXIT
rm -rf "$dir" && mkdir -p "$dir"
raw=$dir/raw.jsonl
for kernel in $kernels; do
    work=(--threads "$threads" --size "$size" --iterations "$iterations")
    for mode in full off; do
        start "$ranks" "$program" run "$kernel" --mode $mode "${work[@]}" --dir "$dir/$mode" --points "$points" >> "$raw"
    done
    for ((restart = 0; restart < restarts; restart++)); do
        for ((point = 1; point <= points; point++)); do
            for mode in full off; do
                start "$ranks" "$program" resume "$kernel" --mode $mode "${work[@]}" --dir "$dir/$mode" \
                    --version $((iterations * point / (points + 1))) >> "$raw"
            done
        done
    done
    rm -rf "$dir/full" "$dir/off"
    echo "$kernel: done" >&2
done
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u)
nodes=$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' | wc -l)
machine="$model, $(nproc) CPUs, $nodes NUMA nodes, $(uname -r)"
[ -z "${BIVOUAC_TEST_MACHINE:-}" ] || machine="emulated: $machine"
{
    printf '{"machine": "%s", "command": "benches/affinity.sh %s"}\n' "$machine" "${arguments[*]}"
    [ ! -s "$raw" ] || "$program" compare "$raw"
    if [ "$costs" -gt 0 ]; then
        start 1 "$program" costs --dir "$dir" --rounds "$costs" --mib "$cost_size"
        "$program" planning
    fi
} > "$result"
cat "$result"
"$program" table "$result"
