#!/usr/bin/env bash
# The second MPI: builds heat2d against MPICH in a separate target directory and runs it on 4 ranks, undisturbed, killed and
# restarted (launch/demo.sh does that and compares the digests), and restarted on 3; and runs the C, C++, Fortran, Python and
# VELOC interfaces on 2.
#   ci/mpich-smoke.sh         all of that
#   ci/mpich-smoke.sh short   heat2d and the C interface
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/ci/setup.sh" --with-mpich
export MPICC=mpicc.mpich MPIRUN=mpirun.mpich
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/mpich"
. "$root/launch/env.sh"

cd "$root"
# Whatever does not depend on MPI is copied from the other target directory, if that has been built.
built=${CARGO_TARGET_DIR%/mpich}/debug
if [ -d "$built/.fingerprint" ] && [ ! -d "$CARGO_TARGET_DIR/debug" ]; then
    copy=$CARGO_TARGET_DIR/debug.new # It receives its name when it is complete.
    rm -rf "$copy"
    mkdir -p "$copy/deps"
    cp -a "$built/build" "$built/.fingerprint" "$copy/"
    find "$built/deps" -maxdepth 1 -name 'lib*' ! -name 'libbivouac*' ! -name 'libmpi*' -exec cp -a -t "$copy/deps" {} +
    # These are built again: the crate that looks for the MPI library does not notice when the library changes.
    for name in bivouac mpi mpi-sys build-probe-mpi; do
        rm -rf "$copy/build/$name"-* "$copy/.fingerprint/$name"-*
    done
    mv "$copy" "$CARGO_TARGET_DIR/debug"
fi
# Unoptimized, the largest crate compiles in a third of the time, and the programs here compute little in it.
cargo build --quiet --locked --config 'profile.dev.package.bivouac-core.opt-level=0' --lib --example heat2d
heat2d=$CARGO_TARGET_DIR/debug/examples/heat2d
linked=$(ldd "$heat2d") # a pipe into `grep -q` would end ldd by SIGPIPE, and the script with it
if [[ $linked != *libmpich* ]]; then
    printf 'heat2d was not linked against MPICH:\n%s\n' "$linked" >&2
    exit 1
fi

echo "MPICH, 4 ranks"
HEAT2D=$heat2d DEMO_STEPS=1600 "$root/launch/demo.sh" --ranks 4

echo "MPICH, killed on 4 and restarted on 3"
resized() {
    local folder=$1 progress=$2
    shift 2
    mkdir -p "$folder/memory"
    env BIVOUAC_MEMORY_DIRECTORY="$folder/memory" BIVOUAC_LOCAL_ALLOW_TMPFS=true BIVOUAC_JOB_NAME="mpich-$(basename "$folder")" \
        BIVOUAC_ENGINE_PROGRESS="$progress" "${mpirun_command[@]}" "$@" --grid 93x71 --steps 60 --every 10 --wait process --dir "$folder"
}
folder=$(mktemp -d /dev/shm/bivouac-test-XXXXXX)
trap 'rm -rf "$folder"' EXIT
undisturbed=$(resized "$folder/calm" auto -n 1 "$heat2d" | grep '^digest')
for progress in auto stepped; do
    if resized "$folder/$progress" "$progress" -n 4 "$heat2d" --die-at 45:2 > "$folder/killed" 2>&1; then
        echo "rank 2 outlived its own SIGKILL" >&2
        exit 1
    fi
    again=$(resized "$folder/$progress" "$progress" -n 3 "$heat2d")
    if [[ $again != *"restored version=40 "* || $again != *"$undisturbed"* ]]; then
        printf 'engine.progress = %s: 3 ranks did not go on from version 40 to the undisturbed end (%s):\n%s\n' "$progress" "$undisturbed" "$again" >&2
        exit 1
    fi
done
rm -rf "$folder"

echo "MPICH, the C interface"
folder=$(mktemp -d /dev/shm/bivouac-test-XXXXXX)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/memory"
ln -s "$CARGO_TARGET_DIR/debug/libbivouac_capi.so" "$folder/libbivouac.so"
soname=$(readelf -d "$CARGO_TARGET_DIR/debug/libbivouac_capi.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
ln -s "$CARGO_TARGET_DIR/debug/libbivouac_capi.so" "$folder/$soname"
compile() {
    "$MPICC" -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -pedantic -I "$root/include" "$@"
}
# Runs with a separate, small node memory.
run_on_2() {
    env BIVOUAC_MEMORY_DIRECTORY="$folder/memory" BIVOUAC_MEMORY_BUDGET="256 MiB" LD_LIBRARY_PATH="$folder" \
        "$MPIRUN" -n 2 "$@"
}
# Runs with separate directories as well.
run_alone() {
    local name=$1
    shift
    BIVOUAC_LOCAL_ALLOW_TMPFS=true BIVOUAC_LOCAL_DIRECTORY="$folder/kept/$name/local" BIVOUAC_GLOBAL_DIRECTORY="$folder/kept/$name/global" \
        BIVOUAC_JOB_NAME="mpich-$name" run_on_2 "$@"
}
compile "$root/tests/programs/c/capi.c" -L "$folder" -lbivouac -pthread -o "$folder/capi"
run_alone capi "$folder/capi"

echo "One library for both MPIs"
other=${CARGO_TARGET_DIR%/mpich}/debug
if command -v patchelf > /dev/null && [ -e "$other/libbivouac_capi.so" ]; then
    "$root/ci/any-mpi.sh" "$folder/any" "$CARGO_TARGET_DIR/debug" "$other"
    compile "$root/tests/programs/c/capi.c" -L "$folder/any" -lbivouac -pthread -o "$folder/any-mpich"
    mpicc -std=c99 -D_POSIX_C_SOURCE=200809L -I "$root/include" "$root/tests/programs/c/capi.c" -L "$folder/any" -lbivouac -pthread -o "$folder/any-openmpi"
    (
        mv "$folder/any" "$folder/elsewhere" # The library finds the builds next to it, wherever it is.
        export BIVOUAC_MEMORY_DIRECTORY="$folder/memory" BIVOUAC_MEMORY_BUDGET="256 MiB" BIVOUAC_LOCAL_ALLOW_TMPFS=true LD_LIBRARY_PATH="$folder/elsewhere"
        for kind in mpich openmpi; do
            launch=(mpirun.mpich)
            [ $kind = mpich ] || { unset MPIRUN && . "$root/launch/env.sh" && launch=("${mpirun_command[@]}"); }
            BIVOUAC_JOB_NAME="any-$kind" BIVOUAC_LOCAL_DIRECTORY="$folder/kept/any-$kind/local" \
                BIVOUAC_GLOBAL_DIRECTORY="$folder/kept/any-$kind/global" "${launch[@]}" -n 2 "$folder/any-$kind"
        done
        # A missing library, and a process without MPI: each must give an error, not a crash.
        mv "$folder/elsewhere/bivouac/mpich" "$folder/elsewhere/bivouac/gone"
        if said=$(mpirun.mpich -n 1 "$folder/any-mpich" 2>&1) || [[ $said != *"build for it cannot be loaded"* ]]; then
            printf 'a missing build is not told of:\n%s\n' "$said" >&2 && exit 1
        fi
        said=$(python3 -c 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).bvk_log(0))' "$folder/elsewhere/libbivouac.so" 2>&1)
        [[ $said = *"no MPI library is loaded"*-4 ]] || { printf 'a process without MPI is not told:\n%s\n' "$said" >&2 && exit 1; }
    )
else
    echo "SKIPPED: one library for both MPIs (needs patchelf, and $other/libbivouac_capi.so from ci/test.sh)"
fi

[ "${1:-}" != short ] || exit 0

echo "MPICH, C++"
"${MPICC/mpicc/mpicxx}" -std=c++17 -Wall -Wextra -Werror -pedantic -DMPICH_SKIP_MPICXX -I "$root/include" \
    "$root/mpi-examples/cpp/particles.cpp" -L "$folder" -lbivouac -o "$folder/particles"
undisturbed=$(run_alone calm "$folder/particles" --steps 200 --every 20)
if run_alone particles "$folder/particles" --steps 200 --every 20 --die-at 133:1 > "$folder/killed" 2>&1; then
    echo "rank 1 outlived its own SIGKILL" >&2
    exit 1
fi
again=$(run_alone particles "$folder/particles" --steps 200 --every 20)
echo "$again"
if [[ $again != "restored version="* || ${again##*$'\n'} != "${undisturbed##*$'\n'}" ]]; then
    printf 'the restarted run did not end as the undisturbed one:\n%s\n' "$undisturbed" >&2
    exit 1
fi

echo "MPICH, Fortran"
fortran=${MPICC/mpicc/mpifort}
if "$fortran" --version > /dev/null 2>&1; then
    (cd "$folder" && "$fortran" -std=f2018 -Wall -Wextra -Werror -ffp-contract=off -Wno-compare-reals \
        "$root/src/capi/fortran/bivouac.f90" "$root/tests/programs/fortran/every.f90" -L "$folder" -lbivouac -o every)
    # One rank says so at the end.
    said=$(run_alone fortran "$folder/every" 2> "$folder/errors") || { cat "$folder/errors" >&2 && exit 1; }
    echo "$said" | grep -x "all right"
else
    echo "SKIPPED: $fortran has no compiler; ci/setup.sh --with-tests installs one"
fi

echo "MPICH, Python"
# The distribution's mpi4py is for its default MPI; the wheels of 4.1 use the MPI that is named, by the file name of its ABI.
environment=$CARGO_TARGET_DIR/python
python=$environment/bin/python3
if ! "$python" -c 'import numpy; from mpi4py import rc' 2> /dev/null; then
    rm -rf "$environment"
    if ! { /usr/bin/python3 -m venv --system-site-packages "$environment" &&
        "$environment/bin/pip" --quiet --disable-pip-version-check install 'mpi4py==4.1.*' numpy; }; then
        echo "SKIPPED: Python with MPICH (needs python3-venv and pip's network; ci/setup.sh --with-tests installs the former)"
        rm -rf "$environment"
    fi
fi
if [ -x "$python" ]; then
    ln -s "$(ldd "$heat2d" | sed -n 's/.*libmpich.* => \([^ ]*\) .*/\1/p')" "$folder/libmpi.so.12"
    export MPI4PY_MPIABI=mpich PYTHONPATH=$root/src/capi/python PYTHONDONTWRITEBYTECODE=1 BIVOUAC_LIBRARY=$folder/libbivouac.so
    version=$(run_alone version "$python" -c 'from mpi4py import MPI; print(MPI.Get_library_version())')
    [[ $version == *MPICH* ]] || { printf 'mpi4py took another MPI:\n%s\n' "$version" >&2 && exit 1; }
    # One rank says so at the end.
    said=$(run_alone python "$python" -m mpi4py "$root/tests/programs/python/every.py" 2> "$folder/errors") ||
        { cat "$folder/errors" >&2 && exit 1; }
    echo "$said" | grep -x "all right"
fi

echo "MPICH, VELOC's interface"
# shellcheck disable=SC2016 # $ORIGIN is for the loader.
compile -shared -fPIC -Wl,-soname,libveloc-client.so '-Wl,-rpath,$ORIGIN' "$root/src/capi/veloc/client.c" \
    -L "$folder" -lbivouac -o "$folder/libveloc-client.so"
compile "$root/tests/programs/c/veloc_calls.c" -L "$folder" -lveloc-client -pthread -o "$folder/veloc_calls"
linked=$(LD_LIBRARY_PATH="$folder" ldd "$folder/veloc_calls")
if [[ $linked != *libmpich* || $linked == *libmpi.so* || $linked != *"$folder/libveloc-client.so"* ]]; then
    printf 'the program was not linked against MPICH and its libveloc-client.so:\n%s\n' "$linked" >&2
    exit 1
fi
for mode in async sync wrong; do
    printf 'scratch = %s\npersistent = %s\nmode = %s\n' "$folder/scratch" "$folder/persistent" "$mode" > "$folder/$mode.cfg"
done
# The mistakes that the program makes on purpose are reported on standard error.
if ! said=$(run_on_2 "$folder/veloc_calls" "$folder/async.cfg" "$folder/sync.cfg" "$folder/wrong.cfg" 2> "$folder/errors") ||
    [[ $said != "calls: done" ]]; then
    printf '%s\n' "$said" >&2
    cat "$folder/errors" >&2
    exit 1
fi
echo "$said"
