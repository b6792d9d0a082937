#!/usr/bin/env bash
# Shows in one command that a job survives the loss of a node: sets up, builds, starts four hosts and a spare one on this
# machine, runs heat2d on them under `bivouac run`, ends one host with all its processes, its memory and its disk, and
# watches the job continue on the spare with what the other hosts' memory holds. The exit status is 1 if the result
# differs. A report of the job and pictures of the plate are left in target/demo.
set -euo pipefail

usage() {
    cat << 'END'
launch/demo-node-loss.sh [--scheme SCHEME] [--keep] [--help]
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

[global]                # the parallel file system, for the pictures; the restart does not need it
directory = "$work/global"

[events]                # what every rank did, for the report
directory = "$work/run"
END

echo "1. Nobody disturbs heat2d on 8 ranks."
"$hosts" up 5 --owner $$
calm 8

echo "2. The same on node1 to node4, two ranks on each, with node5 as a spare, protected by $scheme:"
echo "     bivouac run --hosts node[1-5]:2 --spares 1 -- mpirun -x BIVOUAC_CONFIG -n 8 heat2d ..."
supervise --hosts 'node[1-5]:2' --spares 1 -- -n 8
lose_a_host "$work/global"

echo "3. What happened, in seconds after the death of $victim:"
tell_what_happened
lost=$(grep -c 'event=restored .*tier=peers' run.log || true)
global=$(grep -c 'event=restored .*tier=global' run.log || true)
echo "   $lost ranks got their state from the memory of other hosts, $global from the parallel file system."
picture "$work/global" after-hosts.png || fail "the run has ended, but its last checkpoint cannot be shown"
report
compare_digests
[ "$lost" -gt 0 ] && [ "$global" -eq 0 ] || fail "the state came from elsewhere than the other hosts' memory"
echo "Both digests are equal: the job that lost a host ended with the same bits as the undisturbed one."
