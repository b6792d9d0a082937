#!/usr/bin/env bash
# Builds the archive of a release with EasyBuild, from pip in a virtual environment, and loads its module (apt-get install environment-modules).
#   packaging/easybuild/try.sh ARCHIVE     dist/bivouac-0.1.0.tar.xz, which ci/release.sh makes
set -euo pipefail

archive=$(realpath "${1:?the archive that ci/release.sh makes}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
recipe=$PWD/packaging/easybuild/bivouac-0.1.0.eb
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" --quiet install easybuild
PATH=$scratch/venv/bin:$PATH # eb looks there for the Python that it belongs to
set +u
. /usr/share/modules/init/bash
set -u
options=(--prefix "$scratch/eb" --sourcepath "$(dirname "$archive")" --modules-tool EnvironmentModules --module-syntax Tcl)
# In containers, everything belongs to root.
[ "$(id -u)" -ne 0 ] || options+=(--allow-use-as-root-and-accept-consequences)
eb "${options[@]}" "$recipe"
module use "$scratch/eb/modules/all"
module load bivouac/0.1.0
bivouac --version
echo "packaging/easybuild/try.sh: the recipe is good"
