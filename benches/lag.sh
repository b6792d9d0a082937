#!/usr/bin/env bash
# How long after the last rank has taken a checkpoint its levels are committed, while the ranks compute and call neither Bivouac nor MPI:
#   benches/lag.sh [--out NAME] [--ranks "2 8 32"] [--versions N]
#
# For each number of ranks under MPI_THREAD_SINGLE (what MPI_Init asks for: sockets of our own) and MPI_THREAD_MULTIPLE (MPI itself):
# 160 KiB per rank, on memory, local storage and a global directory in DIR (default: a folder in /dev/shm, so that the time of the disk
# is left out). The results go to benches/results/NAME.jsonl (default: lag), one JSON object a run, after a line about the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
. launch/env.sh
out=lag numbers="2 8 32" versions=20
while [ $# -gt 0 ]; do
    case "$1" in
    --out) out=$2 && shift 2 ;;
    --ranks) numbers=$2 && shift 2 ;;
    --versions) versions=$2 && shift 2 ;;
    *) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//' && exit 0 ;;
    esac
done
# Where programs were brought to, there is no Cargo.
worker=${LAG_WORKER:-}
if [ -z "$worker" ]; then
    cargo build --quiet --release --locked --example damage-worker
    worker=${CARGO_TARGET_DIR:-$root/target}/release/examples/damage-worker
fi
for variable in "${!BIVOUAC_@}"; do unset "$variable"; done
work=$(mktemp -d "${DIR:-/dev/shm}/bivouac-lag-XXXXXX")
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
export BIVOUAC_LOCAL_ALLOW_TMPFS=true BIVOUAC_MEMORY_BUDGET="256 MiB" BIVOUAC_JOB_NAME=lag
{
    printf '{"machine":"%s","cores":%s,"commit":"%s"}\n' "$(uname -srm)" "$(nproc)" "$(git rev-parse --short HEAD 2> /dev/null || echo unknown)"
    for ranks in $numbers; do
        for threads in single multiple; do
            rm -rf "${work:?}"/* && mkdir "$work/memory" "$work/ranks"
            option=
            [ "$threads" = multiple ] || option=--single
            BIVOUAC_MEMORY_DIRECTORY=$work/memory BIVOUAC_LOCAL_DIRECTORY=$work/local BIVOUAC_GLOBAL_DIRECTORY=$work/global \
                mpirun -n "$ranks" "$worker" run --out "$work/ranks" --versions "$versions" --silent-levels 3 --silent-ms 50 $option \
                < /dev/null 1>&2
            python3 - "$ranks" "$threads" "$work"/ranks/*.log << 'END'
import collections, json, re, statistics, sys
# From the capture of the last rank to the moment at which the last rank knows.
taken, heard = collections.defaultdict(float), collections.defaultdict(float)
for path in sys.argv[3:]:
    for version, level, ms, at in re.findall(r"silently version=(\d+) level=(\S+) ms=(\S+) at=(\S+)", open(path).read()):
        version, at = int(version), float(at)
        taken[version] = max(taken[version], at - float(ms) / 1e3)
        heard[level, version] = max(heard[level, version], at)
slowest = {(level, version): round(1e3 * (at - taken[version]), 1) for (level, version), at in heard.items()}
result = {"ranks": int(sys.argv[1]), "threads": sys.argv[2]}
for level in ["process", "node-reboot", "system"]:
    # The first version waits for memory and files that later ones find ready.
    times = sorted(ms for (of, version), ms in slowest.items() if of == level and version > 1)
    result[level] = {"first_ms": slowest.get((level, 1)), "median_ms": statistics.median(times), "max_ms": times[-1]}
print(json.dumps(result))
END
        done
    done
} | tee "benches/results/$out.jsonl"
