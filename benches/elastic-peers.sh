#!/usr/bin/env bash
# How long MPI-IO (subarrays) and parallel HDF5 (hyperslabs), independent and collective, take to write an array that N ranks have cut and to read it on
# M ranks that cut it otherwise (benches/c/elastic_peers.c). One JSON line for each way and round, after a line about the machine.
#
#   benches/elastic-peers.sh [--cut slab|box|turned]… [--from N] [--to M] [--bytes PER_RANK] [--rounds R] [--dir DIR] [--out NAME]
#
# Without --cut all three. DIR is on the file system to measure. NAME stores the lines in benches/results/elastic-peers-NAME.jsonl. HDF5 needs h5pcc
# (Debian: libhdf5-openmpi-dev); without it its lines are left out.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/launch/env.sh"
cuts=() from=4 to=3 bytes=$((64 << 20)) rounds=3 dir=${TMPDIR:-/tmp} out=
while [ $# -gt 0 ]; do
    case "$1" in
    --cut) cuts+=("$2") ;;
    --from) from=$2 ;;
    --to) to=$2 ;;
    --bytes) bytes=$2 ;;
    --rounds) rounds=$2 ;;
    --dir) dir=$2 ;;
    --out) out=$root/benches/results/elastic-peers-$2.jsonl ;;
    *)
        sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'
        exit 2
        ;;
    esac
    shift 2
done
[ ${#cuts[@]} -gt 0 ] || cuts=(slab box turned)
mkdir -p "$dir"
work=$(mktemp -d "$dir/bivouac-peers-XXXXXX")
trap 'rm -rf "$work"' EXIT
flags=(-std=gnu99 -O2 -Wall -Wextra -Werror)
if command -v h5pcc > /dev/null; then
    (cd "$work" && h5pcc "${flags[@]}" "$root/benches/c/elastic_peers.c" -o program)
    hdf5="HDF5 $(h5pcc -showconfig | sed -n 's/.*HDF5 Version: *//p' | head -n 1)"
else
    echo "h5pcc is not there: the lines of HDF5 are left out" >&2
    mpicc "${flags[@]}" -DNO_HDF5 "$root/benches/c/elastic_peers.c" -o "$work/program"
    hdf5="no HDF5"
fi
ranks=$((from > to ? from : to))
fs=$(findmnt -no FSTYPE -T "$dir" || echo unknown)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
mpi=$("${mpirun_command[0]}" --version | head -n 1)
{
    printf '{"machine": "%s, %s CPUs, %s, file system %s, %s, %s", "command": "benches/elastic-peers.sh --from %s --to %s --bytes %s --rounds %s"}\n' \
        "$cpu" "$(nproc)" "$(uname -r)" "$fs" "$mpi" "$hdf5" "$from" "$to" "$bytes" "$rounds"
    for cut in "${cuts[@]}"; do
        "${mpirun_command[@]}" -n "$ranks" "$work/program" --cut "$cut" --from "$from" --to "$to" --bytes "$bytes" --rounds "$rounds" --dir "$work"
    done
} | if [ -n "$out" ]; then tee "$out"; else cat; fi
