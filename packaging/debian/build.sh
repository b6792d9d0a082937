#!/usr/bin/env bash
# Makes a Debian package of this source tree, for this distribution and the MPI of mpicc.
set -euo pipefail

usage() {
    cat << 'END'
packaging/debian/build.sh [--output FOLDER] [--built FOLDER] [--try]
  --output FOLDER  where to (default: dist)
  --built FOLDER   build nothing, take what Cargo made in this folder (target/release)
  --try            as root: install it, run a program in C and the command, and remove it
END
}

fail() {
    echo "packaging/debian/build.sh: $1" >&2
    exit 1
}

output=dist
built=()
is_tried=false
while [ $# -gt 0 ]; do
    case "$1" in
    --output)
        output=${2:-}
        shift
        ;;
    --built)
        built=(--built "${2:-}")
        shift
        ;;
    --try) is_tried=true ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    [ $# -eq 0 ] || shift
done
[ -n "$output" ] || { usage >&2 && exit 2; }
command -v dpkg-shlibdeps > /dev/null || fail "dpkg-shlibdeps is not there: apt-get install dpkg-dev"

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. launch/env.sh
mkdir -p "$output"
output=$(cd "$output" && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-deb.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
DESTDIR=$tree ci/install.sh /usr "${built[@]}"
# The manual pages are compressed, like those of other packages.
find "$tree/usr/share/man" -type f -name '*.[1-9]' -exec gzip -9n {} +

# The packages that provide what the libraries need.
mkdir -p "$scratch/debian"
printf 'Source: bivouac\n\nPackage: bivouac\nArchitecture: any\n' > "$scratch/debian/control"
needs=$(cd "$scratch" && dpkg-shlibdeps -O -e"$tree/usr/lib/libbivouac.so.$version" -e"$tree/usr/bin/bivouac" -e"$tree/usr/bin/bivouac-mpi-probe" \
    2> "$scratch/shlibdeps.log" | sed -n 's/^shlibs:Depends=//p') || fail "dpkg-shlibdeps: $(cat "$scratch/shlibdeps.log")"
mkdir "$tree/DEBIAN"
cat > "$tree/DEBIAN/control" << END
Package: bivouac
Version: $version
Architecture: $architecture
Maintainer: Bivouac <bivouac@localhost>
Section: science
Priority: optional
Installed-Size: $(du -sk "$tree/usr" | cut -f1)
Depends: $needs
Suggests: python3-mpi4py
Description: collective checkpoint and restart for MPI simulations
 Checkpoints that are consistent over all ranks, in node memory, on local
 disks, protected against the loss of nodes, and on a parallel file system
 or in an object store. The library for C, C++, Fortran and programs written
 for VELOC, and the command bivouac.
END
printf 'activate-noawait ldconfig\n' > "$tree/DEBIAN/triggers"
package=$output/bivouac_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$tree" "$package" > /dev/null
echo "packaging/debian/build.sh: $package, $(du -h "$package" | cut -f1); depends on $needs"
$is_tried || exit 0

[ "$(id -u)" -eq 0 ] || fail "--try needs root"
! dpkg -s bivouac > /dev/null 2>&1 || fail "the package bivouac is installed already: remove it first"
apt-get -qq install -y "$package" > "$scratch/apt.log" 2>&1 || fail "apt-get: $(tail -n 5 "$scratch/apt.log")"
mkdir "$scratch/work"
status=0
(
    cd "$scratch/work"
    # shellcheck disable=SC2046 # Words.
    mpicc "$OLDPWD/tests/programs/c/tiny.c" $(pkg-config --cflags --libs bivouac) -o tiny
    BIVOUAC_MEMORY_DIRECTORY=$PWD BIVOUAC_LOCAL_ALLOW_TMPFS=true "${mpirun_command[@]}" -n 2 ./tiny
    bivouac ls bivouac
) || status=$?
apt-get -qq remove -y bivouac > "$scratch/apt.log" 2>&1 || fail "apt-get remove: $(tail -n 5 "$scratch/apt.log")"
[ "$status" -eq 0 ] || fail "what was installed does not work"
[ ! -e /usr/include/bivouac.h ] || fail "something stayed after it was removed"
echo "packaging/debian/build.sh: the package is good"
