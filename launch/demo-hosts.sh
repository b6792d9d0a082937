# What the demos on several hosts share, to be sourced with `root` and `keep` set: the set-up, the build, a folder `work` that is
# removed at the end, and the common steps.

# DEMO_PROGRAMS names a Cargo output folder in which everything has already been built (the tests use that).
[ -n "${DEMO_PROGRAMS:-}" ] || "$root/ci/setup.sh" --with-hosts
. "$root/launch/env.sh"
hosts=$root/tests/hosts/hosts.sh
if ! missing=$("$hosts" can); then
    echo "This machine cannot simulate several hosts. $missing" >&2
    exit 1
fi
[[ "$("${mpirun_command[0]}" --version)" == *"Open MPI"* ]] || {
    echo "The demo's hosts are set up for Open MPI's mpirun, and ${mpirun_command[0]} is a different one." >&2
    exit 1
}
built=${DEMO_PROGRAMS:-}
if [ -z "$built" ]; then
    echo "Building (about five minutes on two cores, the first time) ..."
    (cd "$root" && cargo build --release --locked --example heat2d --bin bivouac)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
PATH=$built/examples:$built:$PATH
bivouac=$built/bivouac
shown=${DEMO_SHOWN:-${CARGO_TARGET_DIR:-$root/target}/demo}
. "$root/launch/demo-picture.sh"

for variable in "${!BIVOUAC_@}"; do unset "$variable"; done
work=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-demo.XXXXXX")
export BIVOUAC_TEST_HOSTS="$work/hosts/demo"
export BIVOUAC_CONFIG="$work/bivouac.toml"
# The ranks report the tier from which each of them restored.
export RUST_LOG=warn,bivouac::session=info,bivouac::recovery=info
steps=${DEMO_STEPS:-2000}
cd "$work"

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

# calm RANKS: runs heat2d on RANKS ranks, all of them on head; its digest is $expected.
calm() {
    "$hosts" exec head mpirun -n "$1" env -u BIVOUAC_CONFIG BIVOUAC_JOB_NAME=calm BIVOUAC_LOCAL_ENABLED=false \
        heat2d --grid 512x512 --steps "$steps" --dir "$work/calm" > calm.log 2>&1 < /dev/null ||
        fail "the undisturbed run ended with an error: $(tail -n 5 calm.log)"
    expected=$(sed -n 's/^digest //p' calm.log)
    echo "   Digest of the final field: $expected"
}

# supervise OPTION... -- WORD...: starts bivouac run with these options, in the background, on heat2d under mpirun with these words.
supervise() {
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    "$hosts" exec head bivouac run "${options[@]}" --probe-timeout 20s --run-directory "$work/run" -- \
        mpirun -x BIVOUAC_CONFIG -x RUST_LOG -x PATH "$@" \
        heat2d --grid 512x512 --every 100 --dir "$work/global" --steps "$steps" --pause 5000 > run.log 2>&1 < /dev/null &
    supervisor=$!
}

# lose_a_host [DIRECTORY]: ends one of the first four, at a moment when some checkpoints exist and some steps are left; $victim and $died
# say which and when. Shows the plate as it then is in the global directory DIRECTORY, if one is given, and waits for the end of the job.
lose_a_host() {
    local version=$((300 + 100 * (RANDOM % (steps / 300))))
    until grep -qs "^committed version=$version " run.log; do
        kill -0 "$supervisor" 2> /dev/null || fail "the job ended before a host was lost"
        sleep 0.01
    done
    victim=node$((1 + RANDOM % 4))
    died=$(date +%s.%N)
    "$hosts" kill "$victim"
    echo "   $victim is dead: its processes, its memory and its disk are gone."
    [ -z "${1:-}" ] || picture "$1" before-hosts.png || true
    wait "$supervisor" || fail "the supervised job ended with status $?"
    supervisor=
}

# tell_what_happened: prints the events since the death of the host, from the supervisor's records. $found is the digest.
tell_what_happened() {
    local fields='s/^{"unix":\([0-9.]*\),.*"attempt":\([0-9]*\),"event":"\([^"]*\)","text":"\(.*\)"}$/\1\t\2\t\3\t\4/p'
    sed -n "$fields" run/timeline.jsonl | awk -F '\t' -v died="$died" '
        BEGIN {
            what["ended"] = "mpirun has noticed, and has ended the job"
            what["probed"] = "the supervisor has asked all hosts"
            what["launched"] = "it has started the job again"
            what["opened"] = "all ranks are back"
            what["restored"] = "all ranks have their state again"
            what["first-step"] = "the simulation has taken its first new step"
            what["committed"] = "a new checkpoint is committed"
            what["stopped"] = "the simulation has finished"
        }
        $1 > died && $3 in what && !told[$3]++ {
            detail = $3 ~ /probed|launched|restored/ ? " (" $4 ")" : ""
            printf "   %7.3f  %s%s\n", $1 - died, what[$3], detail
        }'
    found=$(sed -n 's/^digest //p' run.log)
    echo "   Digest of the final field: $found"
}

# report: makes a page about the job, which is kept.
report() {
    mkdir -p "$shown"
    bivouac report run -o "$shown/report-hosts.html" 2> report.log || fail "there is no report: $(cat report.log)"
    echo "   A report on the job: $shown/report-hosts.html"
}

# compare_digests: compares the digest of the disturbed run with that of the undisturbed one.
compare_digests() {
    [ -n "$found" ] || fail "the job printed no digest"
    [ "$found" = "$expected" ] || fail "the digests differ"
}
