#!/usr/bin/env bash
# Compares the public interface in Rust with that of a release: ci/semver.sh [REVISION] (default: the newest tag v*, and until there is
# one, the baseline below). A commit that breaks the interface on purpose says so in CHANGELOG.md, and the next one moves the baseline.
#
# It needs cargo-semver-checks (cargo install cargo-semver-checks --locked) and rustdoc of the same toolchain. The items that `bivouac`
# offers are defined in bivouac-core, and the tool looks at each crate separately: a finding in bivouac-core counts only if src/lib.rs
# re-exports the item, because bivouac-core promises nothing else. The tool cannot look at derive macros. tests/capi_header.rs compares
# the C interface, and tests/golden the files.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. launch/env.sh
command -v cargo-semver-checks > /dev/null ||
    { echo "ci/semver.sh: cargo-semver-checks is not there: cargo install cargo-semver-checks --locked" >&2 && exit 2; }
revision=${1:-$(git tag --list 'v*' --sort=-version:refname | head -n 1)}
# Until there is a tag: the commit at which the interface was last broken on purpose.
baseline=cc69b70
revision=${revision:-$baseline}
# The tool builds each crate in a separate workspace, where Cargo.toml's patches do not apply: a configuration patches instead.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/.cargo"
printf '[patch.crates-io]\nmpi-sys = { path = "%s/src/mpi-sys" }\n' "$root" > "$scratch/.cargo/config.toml"
cd "$scratch"
status=0
for crate in bivouac bivouac-core; do
    cargo semver-checks check-release --manifest-path "$root/Cargo.toml" --package "$crate" --baseline-rev "$revision" || status=$?
done
exit "$status"
