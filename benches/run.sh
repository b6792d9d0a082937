#!/usr/bin/env bash
# Measures the figures of host memory and stores them: benches/run.sh [--dir DIR] [--out NAME] [figure…]
#
# DIR is a directory on the file system that local and global tier shall be measured on (default: target/bench-data).
# The results go to benches/results/NAME.jsonl (default: host), one JSON object a line, after a line about the machine.
# BIVOUAC_BENCH_PROGRAM names a program that was built elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/env.sh
dir=target/bench-data out=host ranks=2 rounds=20
figures=()
while [ $# -gt 0 ]; do
  case "$1" in
    --dir) dir=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    -h|--help) sed -n '2,6p' "$0" | sed 's/^# //'; exit 0 ;;
    *) figures+=("$1"); shift ;;
  esac
done
[ ${#figures[@]} -gt 0 ] || figures=(digest blocking regions flush restart small beside streams)
program=${BIVOUAC_BENCH_PROGRAM:-}
unset BIVOUAC_BENCH_PROGRAM
if [ -z "$program" ]; then
  program=$(cargo bench --no-run --bench ratios 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')
fi
mkdir -p "$dir" benches/results
dir=$(cd "$dir" && pwd)
trap 'rm -rf "$dir/local" "$dir/global" "$dir"/raw-*' EXIT
result=benches/results/$out.jsonl
fs=$(findmnt -no FSTYPE -T "$dir" || echo unknown)
{
  printf '{"machine": "%s, %s CPUs, %s, file system %s", "command": "benches/run.sh --ranks %s --rounds %s %s"}\n' \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(uname -r)" "$fs" "$ranks" "$rounds" "${figures[*]}"
  for figure in "${figures[@]}"; do
    if [ "$figure" = small ]; then
      for n in 2 4 8 16 32; do
        "${mpirun_command[@]}" -n "$n" "$program" small --dir "$dir" --rounds 50 --mib 1
      done
    else
      "${mpirun_command[@]}" -n "$ranks" "$program" "$figure" --dir "$dir" --rounds "$rounds"
    fi
    rm -rf "$dir/local" "$dir/global" "$dir"/raw-*
  done
} | tee "$result"
