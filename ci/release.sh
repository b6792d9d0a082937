#!/usr/bin/env bash
# Makes the archive of a release: the sources of a commit, and every crate from which they are built. The archive builds without a
# network and without libclang, with the Rust that Cargo.toml names, a C compiler and an MPI.
set -euo pipefail

usage() {
    cat << 'END'
ci/release.sh [--output FOLDER] [--try]
  --output FOLDER  where to (default: dist)
  --try            then build it in a network namespace without interfaces, install it, and run a program in C that is killed and restarts
Takes the last commit of this working tree; what is not committed is not in it.
END
}

fail() {
    echo "ci/release.sh: $1" >&2
    exit 1
}

output=dist
is_tried=false
while [ $# -gt 0 ]; do
    case "$1" in
    --output)
        output=${2:-}
        shift
        ;;
    --try) is_tried=true ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    [ $# -eq 0 ] || shift
done
[ -n "$output" ] || { usage >&2 && exit 2; }

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$output"
output=$(cd "$output" && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=bivouac-$version
scratch=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-release.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

mkdir "$scratch/$name"
git archive HEAD | tar -x -C "$scratch/$name"
epoch=$(git log -1 --format=%ct)
cd "$scratch/$name"
mkdir -p .cargo
cargo vendor --locked --versioned-dirs vendor > "$scratch/source.toml" 2> "$scratch/vendor.log" ||
    fail "cargo vendor failed: $(tail -n 5 "$scratch/vendor.log")"
cat "$scratch/source.toml" >> .cargo/config.toml

# Crates for tests, benches and other systems stay as names: Cargo wants to see them, but compiles none of them.
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
    cargo tree --locked --offline --workspace --features object-store --edges normal,build --target "$target" --prefix none --format '{p}'
done | sed -n 's/^\([^ ]*\) v\([^ ]*\).*/\1-\2/p' | sort -u > "$scratch/used"
python3 - "$scratch/used" << 'END'
import json, pathlib, shutil, sys

used = set(pathlib.Path(sys.argv[1]).read_text().split())
for crate in pathlib.Path("vendor").iterdir():
    if crate.name in used:
        continue
    checksum = crate / ".cargo-checksum.json"
    package = json.loads(checksum.read_text()).get("package")
    for entry in crate.iterdir():
        if entry.name != "Cargo.toml":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (crate / "src").mkdir()
    (crate / "src/lib.rs").write_text("")
    # Whatever its manifest names besides a library is looked for when it is read.
    text, skips = [], False
    for line in (crate / "Cargo.toml").read_text().splitlines():
        if line.startswith("["):
            skips = line.strip() in ("[lib]", "[[bin]]", "[[test]]", "[[bench]]", "[[example]]")
        if not skips and not line.startswith(("build = ", "auto", "links = ")):
            text.append(line)
    (crate / "Cargo.toml").write_text("\n".join(text) + "\n")
    checksum.write_text(json.dumps({"files": {}, "package": package}))
END

cd "$scratch"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | xz -T0 -6 > "$output/$name.tar.xz"
(cd "$output" && sha256sum "$name.tar.xz" > "$name.tar.xz.sha256")
echo "ci/release.sh: $output/$name.tar.xz, $(du -h "$output/$name.tar.xz" | cut -f1), $(wc -l < "$scratch/used") crates with their sources"
$is_tried || exit 0

# ------------------------------------------------------------------------------------------------ what others will do with it

rm -rf "$name" && tar -xf "$output/$name.tar.xz"
cat > "$scratch/try.sh" << 'END'
set -euo pipefail
ip link set lo up 2> /dev/null || true # for mpirun's own processes
if getent hosts index.crates.io > /dev/null 2>&1; then echo "there is a network" >&2 && exit 1; fi
export CARGO_HOME=$1/cargo LIBCLANG_PATH=/nonexistent TMPDIR=$1
began=$SECONDS
ci/install.sh "$1/prefix"
echo "ci/release.sh: built and installed in $((SECONDS - began)) s, without a network and without libclang"
. launch/env.sh
mpicc packaging/spack/killed.c -I "$1/prefix/include" -L "$1/prefix/lib" -lbivouac -Wl,-rpath,"$1/prefix/lib" -o "$1/killed"
mkdir "$1/work" && cd "$1/work"
export BIVOUAC_MEMORY_DIRECTORY=$1/work BIVOUAC_LOCAL_ALLOW_TMPFS=true
if "${mpirun_command[@]}" -n 2 "$1/killed" > "$1/first.log" 2>&1; then echo "the program was not killed" >&2 && exit 1; fi
"${mpirun_command[@]}" -n 2 "$1/killed" | tee "$1/second.log"
grep -q "version 3, state good" "$1/second.log"
END
cd "$name"
unshare --user --map-root-user --net bash "$scratch/try.sh" "$scratch" || fail "the archive does not build, or what was installed does not run"
echo "ci/release.sh: the archive is good"
