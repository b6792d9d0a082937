#!/usr/bin/env bash
# Loads the module of an installation with Environment Modules or Lmod, whichever is installed, builds a program with it, and unloads it.
# Debian installs only one of the two at a time.
#   packaging/module/try.sh PREFIX     the prefix of ci/install.sh
set -euo pipefail

prefix=$(cd "${1:?the prefix of ci/install.sh}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. launch/env.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/modules/bivouac" "$scratch/work"
sed "s|^set prefix PREFIX|set prefix $prefix|" packaging/module/bivouac.tcl > "$scratch/modules/bivouac/0.1.0"
cp tests/programs/c/tiny.c "$scratch/work/"
cat > "$scratch/use.sh" << 'END'
module use "$1/modules"
module load bivouac/0.1.0
cd "$1/work"
mpicc tiny.c -lbivouac -o tiny
BIVOUAC_MEMORY_DIRECTORY=$PWD BIVOUAC_LOCAL_ALLOW_TMPFS=true $mpirun -n 2 ./tiny
bivouac --version
module unload bivouac
! command -v bivouac > /dev/null
[ -z "${BIVOUAC_ROOT:-}" ]
END
export mpirun="${mpirun_command[*]}"
tried=0
for init in /usr/share/modules/init/bash /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash; do
    [ -e "$init" ] || continue
    env -u BIVOUAC_LIBRARY bash -euo pipefail -c "set +u; . $init; . $scratch/use.sh $scratch" _ "$scratch"
    echo "packaging/module/try.sh: good with $init"
    tried=$((tried + 1))
done
[ "$tried" -gt 0 ] || { echo "packaging/module/try.sh: neither is here: apt-get install environment-modules, or lmod" >&2 && exit 1; }
