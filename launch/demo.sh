#!/usr/bin/env bash
# Shows in one command that a simulation survives being killed: sets up, builds, runs heat2d undisturbed, runs it again and
# kills a rank in the middle of the run, restarts it, and compares the results bit for bit. The exit status is 1 if they
# differ. A report of the killed run and pictures of the plate are left in target/demo.
set -euo pipefail

usage() {
    cat << 'END'
launch/demo.sh [--ranks N] [--keep] [--help]
  --ranks N   ranks to start (default 4)
  --keep      keep the demo's directory (checkpoints, logs) and say where it is
END
}

ranks=4
keep=false
while [ $# -gt 0 ]; do
    case "$1" in
    --ranks)
        ranks=${2:-}
        shift
        ;;
    --ranks=*) ranks=${1#*=} ;;
    --keep) keep=true ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done
[[ "$ranks" =~ ^[1-9][0-9]{0,3}$ ]] || { usage >&2 && exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/ci/setup.sh"
. "$root/launch/env.sh"

# HEAT2D names a program that has already been built (ci/mpich-smoke.sh uses that).
heat2d=${HEAT2D:-}
if [ -z "$heat2d" ]; then
    echo "Building (about five minutes on two cores, the first time) ..."
    (cd "$root" && cargo build --release --locked --example heat2d --bin bivouac)
    heat2d=${CARGO_TARGET_DIR:-$root/target}/release/examples/heat2d
fi
# The command `bivouac` is next to the program's folder; without it there is no report and there are no pictures.
bivouac=$(dirname "$(dirname "$heat2d")")/bivouac
shown=${DEMO_SHOWN:-${CARGO_TARGET_DIR:-$root/target}/demo}
. "$root/launch/demo-picture.sh"

# Everything that the runs leave behind goes into these two directories.
work=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-demo.XXXXXX")
memory=$(mktemp -d /dev/shm/bivouac-demo.XXXXXX 2> /dev/null || mktemp -d "$work/memory.XXXXXX")
running=
clean_up() {
    if [ -n "$running" ]; then
        kill "$running" 2> /dev/null || true
        wait "$running" 2> /dev/null || true
    fi
    rm -rf "$memory" # segments
    if $keep; then echo "Kept: $work"; else rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# The caller's own settings would send the runs elsewhere.
for variable in "${!BIVOUAC_@}"; do unset "$variable"; done
export BIVOUAC_MEMORY_DIRECTORY="$memory"
# The demo's local directory may well be on a tmpfs (/tmp often is one); a demo need not survive a reboot.
export BIVOUAC_LOCAL_ALLOW_TMPFS=true
# DEMO_SETTINGS names a file with more settings, and DEMO_LOSES_NODES makes the nodes lose everything they have
# before the restart (launch/demo-object.sh uses both, and also DEMO_CHECKPOINTS, because its server is built for
# tests and therefore slow).
[ -z "${DEMO_SETTINGS:-}" ] || . "$DEMO_SETTINGS"

grid=1024x1024
steps=${DEMO_STEPS:-4000}
checkpoints=${DEMO_CHECKPOINTS:-40}
every=$((steps / checkpoints))

fail() {
    echo "FAILED: $1" >&2
    if [ -n "${2:-}" ]; then
        echo "The last lines of its output:" >&2
        tail -n 15 "$2" | sed 's/^/    /' >&2
    fi
    exit 1
}

# start JOB LOG: starts one run in the background, and puts its process in $running. Each job has its own
# name and directory.
start() {
    BIVOUAC_JOB_NAME="demo-$$-$1" BIVOUAC_RUN_DIRECTORY="$work/$1.run" BIVOUAC_EVENTS_DIRECTORY="$work/$1.run" "${mpirun_command[@]}" -n "$ranks" "$heat2d" --grid "$grid" --steps "$steps" \
        --every "$every" --dir "$work/$1" < /dev/null > "$2" 2>&1 &
    running=$!
}

# finish: returns the exit status of the run in the background.
finish() {
    local status=0
    wait "$running" || status=$?
    running=
    return "$status"
}

value() { sed -n "s/^$1.* $2=\([^ ]*\).*/\1/p" "$3"; }
# The lines that report a commit: at any level, or at the level that survives the loss of all nodes.
told="^committed version=\([0-9]*\) .*${DEMO_LOSES_NODES:+level=system}"
newest_committed() { sed -n "s/$told.*/\1/p" "$1" | sort -n | tail -n 1; }

echo "1. heat2d on $ranks ranks, grid $grid, $steps steps, a checkpoint every $every steps, undisturbed."
began=$(date +%s.%N)
start calm "$work/calm.log"
finish || fail "the undisturbed run ended with an error" "$work/calm.log"
seconds=$(echo "$began $(date +%s.%N)" | awk '{printf "%.1f", $2 - $1}')
expected=$(sed -n 's/^digest //p' "$work/calm.log")
[ -n "$expected" ] || fail "the undisturbed run printed no digest" "$work/calm.log"
echo "   It took $seconds s. Digest of the final field: $expected"

echo "2. The same in a fresh directory; a rank is killed with SIGKILL at a random moment."
killed=false
for attempt in 1 2 3 4 5; do
    : > "$work/killed.log" # The run opens it a moment later.
    start "killed-$attempt" "$work/killed.log"
    # At least one checkpoint must have been reported as committed before the kill, plus a random number
    # of further ones.
    wanted=$((1 + RANDOM % (checkpoints * 3 / 10)))
    while kill -0 "$running" 2> /dev/null; do
        [ "$(grep -c "$told" "$work/killed.log" || true)" -ge "$wanted" ] && break
        sleep 0.02
    done
    sleep "0.0$((RANDOM % 10))"
    victim=$((RANDOM % ranks))
    pid=$(value started pids "$work/killed.log" | cut -d, -f$((victim + 1)))
    if [ -n "$pid" ] && kill -KILL "$pid" 2> /dev/null && ! finish && ! grep -q '^digest' "$work/killed.log"; then
        killed=true
        break
    fi
    # The run ended before the signal arrived: try again.
    [ -n "$running" ] && { finish || fail "the second run failed before it was killed" "$work/killed.log"; }
done
$killed || fail "the run was over before it could be killed, five times" "$work/killed.log"
committed=$(newest_committed "$work/killed.log")
echo "   Rank $victim (process $pid) was killed; the newest checkpoint reported as committed was that of step $committed."

picture "$work/killed-$attempt/global" before.png || true

if [ -n "${DEMO_LOSES_NODES:-}" ]; then
    echo "   All nodes are lost, and with them all that they had in memory."
    rm -rf "${memory:?}"/*
fi
echo "3. The same command again."
start "killed-$attempt" "$work/restarted.log"
finish || fail "the restarted run ended with an error" "$work/restarted.log"
elected=$(value restored version "$work/restarted.log")
tier=$(value restored tier "$work/restarted.log")
took=$(value restored seconds "$work/restarted.log")
found=$(sed -n 's/^digest //p' "$work/restarted.log")
[ -n "$elected" ] || fail "the restarted run restored nothing" "$work/restarted.log"
case "$tier" in
memory) where="node memory" ;;
local) where="local storage" ;;
global) where="the global directory" ;;
object) where="the object store" ;;
*) where=$tier ;;
esac
echo "   All ranks elected the checkpoint of step $elected, loaded it from $where in $took s, and continued from there."
echo "   Digest of the final field: $found"

picture "$work/killed-$attempt/global" after.png || [ -n "${DEMO_SETTINGS:-}" ] || fail "the run has ended, but its last checkpoint cannot be shown"
if [ -x "$bivouac" ]; then
    mkdir -p "$shown"
    "$bivouac" report "$work/killed-$attempt.run" -o "$shown/report.html" 2> "$work/report.log" ||
        fail "there is no report" "$work/report.log"
    echo "   A report on the killed run: $shown/report.html"
fi

[ "$elected" -ge "$committed" ] || fail "step $elected is older than step $committed, which had been committed"
[ "$found" = "$expected" ] || fail "the digests differ"
echo "Both digests are equal: the killed run ended with the same bits as the undisturbed one."
