#!/usr/bin/env bash
# Shows in one command that a job continues with fewer ranks: sets up, builds, starts four hosts on this machine, without a spare and
# without a parallel file system, runs heat2d on them under `bivouac run --ranks`, ends one host with all its processes, its memory and its
# disk, and watches the job continue with the ranks of the other three. The exit status is 1 if the result differs.
set -euo pipefail

usage() {
    cat << 'END'
launch/demo-shrink.sh [--scheme SCHEME] [--keep] [--help]
  --scheme SCHEME   how lost shards are protected: partner(1), xor(4) (default), rs(2,2), ...
  --keep            keep the demo's directory (logs, configuration) and say where it is
Needs root for its hosts, which are namespaces of this machine; nothing of them is left behind.
END
}

scheme="xor(4)"
keep=false
while [ $# -gt 0 ]; do
    case "$1" in
    --scheme)
        scheme=${2:-}
        shift
        ;;
    --scheme=*) scheme=${1#*=} ;;
    --keep) keep=true ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    [ $# -gt 0 ] && shift
done
[[ "$scheme" =~ ^[a-z0-9(),]+$ ]] || { usage >&2 && exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/launch/demo-hosts.sh"

cat > "$work/bivouac.toml" << END
[job]
name = "demo"

[redundancy]
scheme = "$scheme"

[local]                 # each host's own disk
directory = "$BIVOUAC_TEST_HOSTS/local"
allow_tmpfs = true

[global]                # the parallel file system: there is none
enabled = false
END

echo "1. Nobody disturbs heat2d on 8 ranks."
"$hosts" up 4 --owner $$
calm 8

echo "2. The same on node1 to node4, two ranks on each, without a spare and without a parallel file system, protected by $scheme:"
echo "     bivouac run --hosts node[1-4]:2 --ranks 2..8 -- mpirun -x BIVOUAC_CONFIG heat2d ..."
supervise --hosts 'node[1-4]:2' --ranks 2..8 --
lose_a_host

echo "3. What happened, in seconds after the death of $victim:"
tell_what_happened
ranks=$(sed -n 's/^started ranks=\([0-9]*\) .*/\1/p' run.log | tr '\n' ' ')
echo "   Ranks of the attempts: $ranks"
report
compare_digests
[ "$ranks" = "8 6 " ] || fail "these are not the ranks of four hosts and then of three"
grep -q '^restored version=' run.log || fail "the second attempt did not continue from a checkpoint"
echo "Both digests are equal: the job that lost a quarter of its ranks ended with the same bits as the undisturbed one."
