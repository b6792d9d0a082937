#!/usr/bin/env bash
# Measures redundancy between nodes and stores the figures: benches/redundancy.sh [--out NAME] [options of the program]
#
# Four ranks on this host, each counted as a node of its own. The results go to benches/results/NAME.jsonl (default:
# redundancy), one JSON object a line, after a line about the machine. BIVOUAC_BENCH_PROGRAM names a program that was
# built elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/env.sh
out=redundancy
case "${1:-}" in
--out) out=$2 && shift 2 ;;
-h | --help) sed -n '2,6p' "$0" | sed 's/^# //' && exit 0 ;;
esac
program=${BIVOUAC_BENCH_PROGRAM:-}
unset BIVOUAC_BENCH_PROGRAM
if [ -z "$program" ]; then
    program=$(cargo bench --no-run --bench redundancy 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')
fi
mkdir -p target/bench-data benches/results
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u)
{
    printf '{"machine": "%s, %s CPUs, %s", "command": "benches/redundancy.sh %s"}\n' "$model" "$(nproc)" "$(uname -r)" "$*"
    "${mpirun_command[@]}" -n 4 "$program" --dir target/bench-data "$@"
} | tee "benches/results/$out.jsonl"
