#!/usr/bin/env bash
# A job survives the loss of a node, in one command: sets up, builds, starts four hosts and a spare one on this machine,
# runs heat2d on them under `bivouac run`, ends one host with all its processes, its memory and its disk, and watches the
# job come back on the spare with what the other hosts' memory holds. Exit status 1 if the result is another one.
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
# DEMO_PROGRAMS names a folder of Cargo's in which all is built already (the tests use that).
[ -n "${DEMO_PROGRAMS:-}" ] || "$root/ci/setup.sh" --with-hosts
. "$root/launch/env.sh"
hosts=$root/tests/hosts/hosts.sh
if ! missing=$("$hosts" can); then
    echo "This machine cannot play several hosts. $missing" >&2
    exit 1
fi
[[ "$("${mpirun_command[0]}" --version)" == *"Open MPI"* ]] || {
    echo "The demo's hosts are set up for Open MPI's mpirun, and ${mpirun_command[0]} is another one." >&2
    exit 1
}
built=${DEMO_PROGRAMS:-}
if [ -z "$built" ]; then
    echo "Building (about five minutes on two cores, the first time) ..."
    (cd "$root" && cargo build --release --locked --example heat2d --bin bivouac)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
PATH=$built/examples:$built:$PATH

for variable in "${!BIVOUAC_@}"; do unset "$variable"; done
work=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-demo.XXXXXX")
export BIVOUAC_TEST_HOSTS="$work/hosts/demo"
supervisor=
clean_up() {
    [ -z "$supervisor" ] || kill "$supervisor" 2> /dev/null || true
    "$hosts" down || true
    if $keep; then echo "Kept: $work"; else rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

fail() {
    echo "FAILED: $1" >&2
    if [ -e "$work/run.log" ]; then
        echo "The last lines of the job's output:" >&2
        tail -n 30 "$work/run.log" | sed 's/^/    /' >&2
    fi
    exit 1
}

cat > "$work/bivouac.toml" << END
[job]
name = "demo"

[redundancy]
scheme = "$scheme"

[local]                 # each host's own disk
directory = "$BIVOUAC_TEST_HOSTS/local"
allow_tmpfs = true

[global]                # the parallel file system: not needed in this story
directory = "$work/global"
every = 1000000
END
export BIVOUAC_CONFIG="$work/bivouac.toml"
# The ranks say which tier each of them restored from.
export RUST_LOG=warn,bivouac::session=info,bivouac::recovery=info

ranks=8
steps=${DEMO_STEPS:-2000}
heat=(heat2d --grid 512x512 --every 100 --dir "$work/global")
cd "$work"

echo "1. Nobody disturbs heat2d on $ranks ranks."
"$hosts" up 5 --owner $$
"$hosts" exec head mpirun -n "$ranks" env -u BIVOUAC_CONFIG BIVOUAC_JOB_NAME=calm BIVOUAC_LOCAL_ENABLED=false \
    heat2d --grid 512x512 --steps "$steps" --dir "$work/calm" > calm.log 2>&1 < /dev/null ||
    fail "the undisturbed run ended with an error: $(tail -n 5 calm.log)"
expected=$(sed -n 's/^digest //p' calm.log)
echo "   Digest of the final field: $expected"

echo "2. The same on node1 to node4, two ranks on each, with node5 as a spare, protected by $scheme:"
echo "     bivouac run --hosts node[1-5]:2 --spares 1 -- mpirun -x BIVOUAC_CONFIG -n $ranks heat2d ..."
"$hosts" exec head bivouac run --hosts 'node[1-5]:2' --spares 1 --probe-timeout 20s --run-directory "$work/run" -- \
    mpirun -x BIVOUAC_CONFIG -x RUST_LOG -x PATH -n "$ranks" "${heat[@]}" --steps "$steps" --pause 5000 \
    > run.log 2>&1 < /dev/null &
supervisor=$!
# Some checkpoints must be there, and some steps left.
version=$((300 + 100 * (RANDOM % (steps / 300))))
until grep -q "^committed version=$version " run.log; do
    kill -0 "$supervisor" 2> /dev/null || fail "the job ended before a host was lost"
    sleep 0.01
done
victim=node$((1 + RANDOM % 4))
died=$(date +%s.%N)
"$hosts" kill "$victim"
echo "   $victim is dead: its processes, its memory and its disk are gone."
wait "$supervisor" || fail "the supervised job ended with status $?"
supervisor=

echo "3. What happened, in seconds after the death of $victim:"
fields='s/^{"unix":\([0-9.]*\),.*"attempt":\([0-9]*\),"event":"\([^"]*\)","text":"\(.*\)"}$/\1\t\2\t\3\t\4/p'
sed -n "$fields" run/timeline.jsonl | awk -F '\t' -v died="$died" '
    BEGIN {
        what["ended"] = "mpirun has noticed, and has ended the job"
        what["probed"] = "the supervisor has asked all hosts"
        what["launched"] = "it has started the job again"
        what["opened"] = "all ranks are back"
        what["restored"] = "all ranks have their state again"
        what["first-step"] = "the simulation has made its first new step"
        what["committed"] = "a new checkpoint is committed"
        what["stopped"] = "the simulation has come to its end"
    }
    $1 > died && $3 in what && !told[$3]++ {
        detail = $3 ~ /probed|launched|restored/ ? " (" $4 ")" : ""
        printf "   %7.3f  %s%s\n", $1 - died, what[$3], detail
    }'

found=$(sed -n 's/^digest //p' run.log)
lost=$(grep -c 'event=restored .*tier=peers' run.log || true)
global=$(grep -c 'event=restored .*tier=global' run.log || true)
echo "   $lost ranks got their state from the memory of other hosts, $global from the parallel file system."
echo "   Digest of the final field: $found"
[ -n "$found" ] || fail "the job printed no digest"
[ "$found" = "$expected" ] || fail "the digests differ"
[ "$lost" -gt 0 ] && [ "$global" -eq 0 ] || fail "the state came from elsewhere than the other hosts' memory"
echo "Both digests are equal: the job that lost a host ended with the same bits as the undisturbed one."
