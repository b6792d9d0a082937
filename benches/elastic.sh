#!/usr/bin/env bash
# Measures restarts on another number of ranks and stores the figures: benches/elastic.sh [--out NAME] [--dir DIR] [--from N] [--to M] [--mib MIB] [figure…]
#
# N ranks save MIB MiB each, and M load that (default: 4, 2 and 64). A figure is blocking, same, memory, hosts, lost, files, decompose or numbers; without one, all of
# them; or gpu-same or gpu, on a machine with a GPU, which all ranks share. The
# results go to benches/results/NAME.jsonl (default: elastic), one JSON object a line, after a line about the machine. DIR is on the file system to
# measure (default: target/bench-data). BIVOUAC_BENCH_PROGRAM names a program that was built elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -e launch/env.sh ] || . launch/env.sh
out=benches/results/elastic.jsonl dir=target/bench-data from=4 to=2 mib=64 rounds=10
figures=()
while [ $# -gt 0 ]; do
    case "$1" in
    --out) out=benches/results/$2.jsonl && shift 2 ;;
    --to-file) out=$2 && shift 2 ;;
    --dir) dir=$2 && shift 2 ;;
    --from) from=$2 && shift 2 ;;
    --to) to=$2 && shift 2 ;;
    --mib) mib=$2 && shift 2 ;;
    --rounds) rounds=$2 && shift 2 ;;
    -h | --help) sed -n '2,8p' "$0" | sed 's/^# //' && exit 0 ;;
    *) figures+=("$1") && shift ;;
    esac
done
[ ${#figures[@]} -gt 0 ] || figures=(blocking same memory hosts lost files decompose numbers)
program=${BIVOUAC_BENCH_PROGRAM:-}
unset BIVOUAC_BENCH_PROGRAM
if [ -z "$program" ]; then
    program=$(cargo bench --no-run --bench elastic 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')
fi
mkdir -p "$dir" "$(dirname "$out")"
dir=$(cd "$dir" && mktemp -d "$PWD/elastic.XXXXXX")
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 BIVOUAC_LOCAL_ALLOW_TMPFS=true
at() { # RANKS FIGURE OPTIONS…
    local ranks=$1
    shift
    timeout 300 mpirun --oversubscribe --bind-to none -n "$ranks" "$program" "$@" --dir "$dir" --rounds "$rounds" --mib "$mib"
}
most=$((from > to ? from : to))
{
    printf '{"machine": "%s, %s CPUs, %s, file system %s", "command": "benches/elastic.sh --from %s --to %s --mib %s %s"}\n' \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(uname -r)" "$(findmnt -no FSTYPE -T "$dir" | head -1 || echo unknown)" \
        "$from" "$to" "$mib" "${figures[*]}"
    for figure in "${figures[@]}"; do
        case $figure in
        gpu-same) at "$to" gpu-same --from "$to" --to "$to" ;;
        blocking | same) at "$to" "$figure" --from "$to" --to "$to" ;;
        decompose) for ranks in 2 4 8 16 32; do at "$ranks" decompose --cut box --from "$ranks" --to 1; done ;;
        numbers) at "$most" numbers --from "$from" --to "$to" ;;
        hosts) for cut in slab box turned; do at "$most" hosts --cut "$cut" --from "$from" --to "$to" --nodes 2; done ;;
        lost) at 8 lost --cut slab --from 8 --to 6 --nodes 4 ;;
        *) for cut in slab box turned; do at "$most" "$figure" --cut "$cut" --from "$from" --to "$to"; done ;;
        esac
    done
} | tee "$out"
