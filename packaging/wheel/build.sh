#!/usr/bin/env bash
# Makes a wheel with the shared library inside, which serves the MPI of the program (ci/any-mpi.sh).
set -euo pipefail

usage() {
    cat << 'END'
packaging/wheel/build.sh [--mpich] [--output FOLDER] [--try]
  --mpich          a build for MPICH (mpicc.mpich) too, beside that for mpicc
  --output FOLDER  where to (default: dist)
  --try            install it into a new virtual environment, and run a program under each MPI (needs mpi4py from pip)
The wheel is for this machine's C library or a later one, and needs libhwloc and libnuma where it is installed.
END
}

fail() {
    echo "packaging/wheel/build.sh: $1" >&2
    exit 1
}

mpich=false
output=dist
is_tried=false
while [ $# -gt 0 ]; do
    case "$1" in
    --mpich) mpich=true ;;
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

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. launch/env.sh
mkdir -p "$output"
output=$(cd "$output" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-wheel.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

cp -r src/capi/python "$scratch/source"
find "$scratch/source" -name __pycache__ -prune -exec rm -r {} +

built=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --release --locked -p bivouac-capi
builds=("$built/release")
if $mpich; then
    MPICC=mpicc.mpich CARGO_TARGET_DIR=$built/mpich cargo build --release --locked -p bivouac-capi
    builds+=("$built/mpich/release")
fi
ci/any-mpi.sh "$scratch/made" "${builds[@]}"
# A wheel cannot contain links: the package asks for the name with the version of the interface.
library=$scratch/source/bivouac/lib
mkdir -p "$library"
for name in "$scratch"/made/libbivouac.so.?.?; do cp -L "$name" "$library/"; done
cp -r "$scratch/made/bivouac" "$library/"

cat >> "$scratch/source/pyproject.toml" << 'END'

[tool.setuptools.package-data]
bivouac = ["lib/*", "lib/bivouac/*/*"]
END
printf '[bdist_wheel]\npython_tag = py3\nplat_name = linux_%s\n' "$(uname -m)" > "$scratch/source/setup.cfg"
python3 -m venv "$scratch/tools"
"$scratch/tools/bin/pip" --quiet install 'setuptools>=61' wheel
(cd "$scratch/source" && "$scratch/tools/bin/pip" --quiet wheel --no-deps --no-build-isolation -w "$scratch/wheels" .)
mv "$scratch"/wheels/*.whl "$output/"
wheel=$(ls -t "$output"/bivouac-*.whl | head -n 1)
echo "packaging/wheel/build.sh: $wheel, $(du -h "$wheel" | cut -f1)"
$is_tried || exit 0

cat > "$scratch/program.py" << 'END'
import numpy
from mpi4py import MPI
import bivouac

with bivouac.Session(MPI.COMM_WORLD) as session:
    field = numpy.full(1000, float(MPI.COMM_WORLD.rank))
    session.protect("field", field)
    session.checkpoint("tried", 1).wait(bivouac.Level.PROCESS)
    field[:] = -1.0
    session.restore("tried")
    assert (field == MPI.COMM_WORLD.rank).all()
if MPI.COMM_WORLD.rank == 0:
    print(MPI.Get_library_version().split(",")[0].split("\n")[0], bivouac._library.LIBRARY._name)
END
# try_under LAUNCHER...: tries the wheel under one MPI.
try_under() {
    local place=$scratch/work-$1
    mkdir -p "$place"
    (cd "$place" && env -u BIVOUAC_LIBRARY BIVOUAC_LOCAL_ALLOW_TMPFS=true BIVOUAC_MEMORY_DIRECTORY="$place" \
        "$@" -n 2 "$scratch/venv/bin/python" "$scratch/program.py") || fail "it does not work under $1"
}
python3 -m venv "$scratch/venv"
# mpi4py from pip works with any MPI that the loader finds.
"$scratch/venv/bin/pip" --quiet install numpy 'mpi4py>=4.1' "$wheel"
export MPI4PY_MPIABI=${MPI4PY_MPIABI:-openmpi}
try_under "${mpirun_command[@]}"
if $mpich; then
    # mpi4py looks for the library by the name of its ABI, and Debian's library has another name.
    library=$(ldd "$built/mpich/release/libbivouac_capi.so" | sed -n 's/.*libmpich.* => \([^ ]*\) .*/\1/p')
    mkdir "$scratch/abi"
    [ -z "$library" ] || ln -s "$library" "$scratch/abi/libmpi.so.12"
    LD_LIBRARY_PATH="$scratch/abi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" MPI4PY_MPIABI=mpich try_under mpirun.mpich
fi
echo "packaging/wheel/build.sh: the wheel is good"
