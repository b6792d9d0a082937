#!/usr/bin/env bash
# Everything that must pass: set-up, format, lints, documentation, examples, tests, and a smoke run on the second MPI.
#   ci/test.sh         what fits into 25 minutes on two cores: only a part of the slow suites and of the sweeps
#   ci/test.sh whole   everything
#   ci/test.sh quick   like the first, without the second MPI
set -euo pipefail

quick=false is_whole=false profile=ci
case "${1:-}" in
"") ;;
whole)
    is_whole=true profile=whole
    export BIVOUAC_TEST_KILLS="${BIVOUAC_TEST_KILLS:-10}" BIVOUAC_TEST_EVERY="${BIVOUAC_TEST_EVERY:-1}"
    export BIVOUAC_TEST_DRAWS="${BIVOUAC_TEST_DRAWS:-500}" BIVOUAC_TEST_HOST_KILLS="${BIVOUAC_TEST_HOST_KILLS:-6}"
    export BIVOUAC_TEST_SEEDS="${BIVOUAC_TEST_SEEDS:-2000}"
    ;;
quick) quick=true ;;
*) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
"$root/ci/setup.sh" --with-tests
. "$root/launch/env.sh"
# The compiler of the GPU kernels and mdBook, where setup.sh could install them.
export LD_LIBRARY_PATH="$root/target/nvrtc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
PATH=${CARGO_TARGET_DIR:-$root/target}/tools/bin:$PATH
# Without line numbers in backtraces, a build takes seven eighths of the time.
export CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-false}"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}" CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"

stage=
stage_began=0
. "$root/tests/hosts/one_group.sh"
enter_one_group
# Says which stage ended a run that failed.
finish() {
    [ "$1" -eq 0 ] || echo "ci/test.sh: stage \"$stage\" failed after $((SECONDS - stage_began)) s" >&2
    leave_one_group
}
trap 'finish $?' EXIT

run() {
    stage=$1
    stage_began=$SECONDS
    shift
    echo "== $stage"
    "$@"
    echo "== $stage: $((SECONDS - stage_began)) s"
}

# Everything that can be built, not only what is built by default.
all=(--features object-store)

document() { RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps "${all[@]}"; }

# The demos, with the programs that the tests have built; their release builds take minutes.
demo() { HEAT2D=${CARGO_TARGET_DIR:-$root/target}/debug/examples/heat2d DEMO_STEPS=800 DEMO_CHECKPOINTS=16 "$root/launch/demo$1.sh"; }

# The documentation site. setup.sh says so if it could not install mdBook.
site() {
    if command -v mdbook > /dev/null; then ci/site.sh; else echo "SKIPPED: the documentation site: mdbook is not there"; fi
}

# The public interface in Rust, compared with the baseline.
interface() {
    command -v cargo-semver-checks > /dev/null || cargo install --quiet --locked cargo-semver-checks
    ci/semver.sh
}

# Counts the tests that passed but tested nothing, or less than they could, by reason.
skipped() {
    sed -n 's/.*\(SKIPPED.*\)/\1/; s/<.*//; s/ \*\*\*$//; s/&quot;/"/g; /^SKIPPED/p' "target/nextest/$profile/junit.xml" |
        sort | uniq -c
}

# Tests that start mpirun use all cores themselves, so they run one at a time (.config/nextest.toml says the
# same to nextest).
all_tests() {
    if command -v cargo-nextest > /dev/null; then
        # Many tests wait for most of their time, so four more run than there are cores.
        cargo nextest run --locked "${all[@]}" --profile "$profile" --test-threads "$(($(nproc) + 4))"
        skipped
        $is_whole || echo "What nextest calls skipped was left to ci/test.sh whole (profile.ci in .config/nextest.toml)."
        return
    fi
    cargo test --quiet --locked "${all[@]}" --lib --bins
    local file name
    for file in tests/*.rs; do
        name=$(basename "$file" .rs)
        case "$name" in
        mpi_* | damage* | comm_mpi* | hosts | slurm | numa | affinity) cargo test --quiet --locked "${all[@]}" --test "$name" -- --test-threads=1 ;;
        *) cargo test --quiet --locked "${all[@]}" --test "$name" ;;
        esac
    done
}

# Removes what tests left that were killed long ago; it would take node memory from these tests.
find /dev/shm -maxdepth 1 -name 'bivouac-test-*' -user "$(id -un)" -mmin +600 -exec rm -rf {} + 2> /dev/null || true
if [ "$(df --output=avail -m /dev/shm | tail -n 1)" -lt 1024 ]; then
    echo "ci/test.sh: less than 1 GiB is free in /dev/shm; tests of node memory may fail for want of it" >&2
fi

run "audit of tracked files" ci/audit.sh
run "format" cargo fmt --all --check
run "clippy" cargo clippy --quiet --locked --all-targets "${all[@]}" -- -D warnings
targets=(--lib --bins)
if $is_whole; then targets=(--all-targets); fi
run "clippy without MPI" cargo clippy --quiet --locked "${targets[@]}" --no-default-features -- -D warnings
run "documentation" document
run "documentation site" site
run "tests" all_tests
run "demo" demo ""
run "documentation tests" cargo test --quiet --locked "${all[@]}" --doc
if $is_whole; then
    run "public interface" interface
    run "object store" demo -object
    run "second MPI" ci/mpich-smoke.sh
elif $quick; then
    echo "== second MPI: skipped (quick)"
else
    run "second MPI" ci/mpich-smoke.sh short
fi
echo "All passed in $SECONDS s."
