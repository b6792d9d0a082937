#!/usr/bin/env bash
# Builds Bivouac and installs it: libraries and header for C, C++ and Fortran, the command, manual pages, completions.
set -euo pipefail
# Others must be able to read what is installed, whatever the user's own files are for.
umask 022

usage() {
    cat << 'END'
ci/install.sh PREFIX [--debug | --built FOLDER] [--features LIST]
  PREFIX           where to: PREFIX/lib, include, bin, share. DESTDIR is put before it when files are written
  --debug          build without optimisation
  --built FOLDER   build nothing, take the libraries and commands from this folder of Cargo (target/release)
  --features LIST  instead of all: mpi, and of cuda, hwloc and numa those that this machine is to have
MPICC names the compiler of the MPI library to build for, and MPIFC that of Fortran: without it mpifort beside mpicc, or none if
MPICC is called otherwise. Each installation serves the one MPI that it
was built with.
END
}

fail() {
    echo "ci/install.sh: $1" >&2
    exit "${2:-1}"
}
say() { echo "ci/install.sh: $1"; }
# Debug information makes up most of what Cargo builds; names that others use stay.
lighten() { strip --strip-unneeded "$@" || say "$* keep what debuggers need: strip failed (see above)"; }
# The value of an option that needs one.
value() { [ "$2" -gt 1 ] || fail "$1 needs a value" 2; }

prefix=
profile=release
built=
features=
while [ $# -gt 0 ]; do
    case "$1" in
    --debug) profile=debug ;;
    --built) value "$1" $# && built=$2 && shift ;;
    --features) value "$1" $# && features=$2 && shift ;;
    --help | -h) usage && exit 0 ;;
    -*) usage >&2 && fail "there is no option $1" 2 ;;
    *) [ -z "$prefix" ] || fail "one PREFIX, not both $prefix and $1" 2
        prefix=$1 ;;
    esac
    shift
done
[ -n "$prefix" ] || { usage >&2 && fail "PREFIX is missing" 2; }
[[ $prefix = /* ]] || prefix=$PWD/$prefix
case "$prefix" in
*[[:space:]]*) fail "PREFIX ($prefix) has white space, which flags of pkg-config cannot have" 2 ;;
esac
destination=${DESTDIR:-}
[ -z "$destination" ] || [[ $destination = /* ]] || destination=$PWD/$destination
[ -z "$built" ] || [ -d "$built" ] || fail "--built $built is not a folder" 2
[ -z "$built" ] || built=$(cd "$built" && pwd)
case ",${features:-mpi}," in
*,mpi,*) ;;
*) fail "--features $features: the C interface needs mpi among them" 2 ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! "$destination$prefix" -ef "$PWD" ] ||
    fail "PREFIX is this source tree ($PWD): give another folder, such as $HOME/.local/bivouac" 2
. launch/env.sh
MPICC=${MPICC:-mpicc}
if [ -z "${MPIFC:-}" ]; then
    case "${MPICC##*/}" in
    mpicc*) MPIFC=${MPICC%mpicc*}mpifort${MPICC##*mpicc} ;;
    *) MPIFC=none ;;
    esac
fi
command -v "$MPICC" > /dev/null || fail "the MPI compiler $MPICC is not there; set MPICC, load a module, or run ci/setup.sh (--with-mpich for MPICH)"

if [ -z "$built" ]; then
    command -v cargo > /dev/null || fail "cargo is not there; run ci/setup.sh, which says how to install Rust"
    options=(--locked --lib --bins)
    [ "$profile" = debug ] || options+=(--release)
    [ -z "$features" ] || options+=(--no-default-features --features "$features")
    cargo build "${options[@]}" || fail "the build failed (see above); ci/setup.sh installs what it needs"
    built=${CARGO_TARGET_DIR:-target}/$profile
fi

# A file of the build. Cargo keeps libraries in deps/ when it built them for something else; the newer file counts.
made() {
    local file=$built/$1 inner=$built/deps/$1
    if [ ! -e "$file" ] || [ "$inner" -nt "$file" ]; then file=$inner; fi
    [ -e "$file" ] || fail "$built has no $1; leave --built out to build it"
    echo "$file"
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
library=$(made libbivouac_capi.so)
archive=$(made libbivouac_capi.a)
command=$(made bivouac)
probe=$(made bivouac-mpi-probe)
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p')
case "$soname" in
libbivouac.so.?*) ;;
*) fail "$library has no name with a version (its soname is '$soname'); is it of this source tree?" ;;
esac
nm -D --defined-only "$library" | grep ' bvk_open$' > /dev/null ||
    fail "$library has no C interface: it was built without the feature mpi; leave --built out to build it"

# Cargo does not look at MPICC again once it has built for some MPI.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mpi_of() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(libmpi[^]]*\)\]$/\1/p' | head -n 1; }
printf '#include <mpi.h>\nint main(void) { return MPI_Init(0, 0); }\n' > "$scratch/probe.c"
"$MPICC" "$scratch/probe.c" -o "$scratch/probe" || fail "$MPICC cannot compile a program of MPI (see above)"
wanted=$(mpi_of "$scratch/probe")
found=$(mpi_of "$library")
[ "$wanted" = "$found" ] || [ -z "$wanted" ] || [ -z "$found" ] ||
    fail "$library was built for $found, and $MPICC is of $wanted: build with CARGO_TARGET_DIR set to a folder for this MPI alone"

root=$destination$prefix
lib=$root/lib
include=$root/include
share=$root/share

# ------------------------------------------------- what is made here, before anything is written to the prefix

# VELOC itself has files of these names, and its programs must not find ours in their place unasked.
veloc=true
if [ -e "$include/veloc.h" ] && ! grep BIVOUAC_VELOC_H "$include/veloc.h" > /dev/null; then
    say "$include/veloc.h is VELOC's own: installed without VELOC's interface (give another PREFIX to have it)"
    veloc=false
else
    # shellcheck disable=SC2016 # $ORIGIN is for the loader.
    "$MPICC" -O2 -fPIC -shared -Wl,-soname,libveloc-client.so '-Wl,-rpath,$ORIGIN' -Wl,--enable-new-dtags -Wl,--no-undefined \
        -I include src/capi/veloc/client.c "$library" -o "$scratch/libveloc-client.so" ||
        fail "$MPICC cannot build libveloc-client.so (see above)"
fi

fortran=false
if ! command -v "$MPIFC" > /dev/null || ! "$MPIFC" --version > /dev/null 2>&1; then
    say "$MPIFC is not there or has no compiler (apt-get install gfortran): installed without the module for Fortran (MPIFC names another one)"
else
    source=$PWD/src/capi/fortran/bivouac.f90
    (cd "$scratch" && "$MPIFC" -O2 -fPIC -c "$source" -o bivouac.o && ar rcs libbivouac_fortran.a bivouac.o) ||
        fail "$MPIFC cannot compile $source (see above); with MPIFC=none the module for Fortran is left out"
    fortran=true
fi

{ "$command" generate man "$scratch/man" && "$command" generate completions "$scratch/completions"; } ||
    fail "$command cannot write its manual pages; is it of this source tree?"

install -d "$lib/pkgconfig" "$lib/cmake/Bivouac" "$include" "$root/bin" "$share" 2> /dev/null ||
    fail "cannot make folders in $root: give another PREFIX, or DESTDIR, or the rights to write there"

# ------------------------------------------------------------------------------------------------- C and C++

install -m 755 "$library" "$lib/libbivouac.so.$version"
lighten "$lib/libbivouac.so.$version"
ln -sf "libbivouac.so.$version" "$lib/$soname"
ln -sf "$soname" "$lib/libbivouac.so"
install -m 644 "$archive" "$lib/libbivouac.a"
lighten "$lib/libbivouac.a"
install -m 644 include/bivouac.h "$include/bivouac.h"
install -m 644 include/bivouac.hpp "$include/bivouac.hpp"

# What the archive needs besides MPI, which MPI's compiler provides.
private=
for name in numa hwloc; do
    case ",${features:-numa,hwloc}," in *",$name,"*) private+=" -l$name" ;; esac
done
private="${private# } -lgcc_s -lutil -lrt -lpthread -lm -ldl"

cat > "$lib/pkgconfig/bivouac.pc" << END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: Bivouac
Description: Collective checkpoint and restart for MPI simulations; compile with the compiler of the MPI library
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lbivouac
Libs.private: $private
END

cat > "$lib/cmake/Bivouac/BivouacConfigVersion.cmake" << END
# Versions with the same name of the shared library are compatible: before 1.0 those with the same minor version.
set(PACKAGE_VERSION "$version")
set(_bivouac_interface "${soname#libbivouac.so.}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
elseif(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  set(PACKAGE_VERSION_EXACT TRUE)
elseif("\${PACKAGE_FIND_VERSION}." MATCHES "^\${_bivouac_interface}[.]")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
unset(_bivouac_interface)
END

cat > "$lib/cmake/Bivouac/BivouacConfig.cmake" << 'END'
# find_package(Bivouac REQUIRED) and target_link_libraries(program PRIVATE Bivouac::bivouac). The languages that find_package(MPI)
# is to look for must be enabled before. Bivouac::static is the archive; Bivouac::fortran and Bivouac::veloc are there if they
# were installed.
include(CMakeFindDependencyMacro)
find_dependency(MPI)

get_filename_component(_bivouac_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_bivouac_language C CXX Fortran)
  if(NOT _bivouac_mpi AND TARGET MPI::MPI_${_bivouac_language})
    set(_bivouac_mpi MPI::MPI_${_bivouac_language})
  endif()
endforeach()
# Open MPI 4 has its C++ functions in a separate library, which mpi.h refers to.
if(TARGET MPI::MPI_C AND TARGET MPI::MPI_CXX)
  if(CMAKE_VERSION VERSION_LESS 3.18)
    list(APPEND _bivouac_mpi MPI::MPI_CXX)
  else()
    list(APPEND _bivouac_mpi "$<$<LINK_LANGUAGE:CXX>:MPI::MPI_CXX>")
  endif()
endif()

if(NOT TARGET Bivouac::bivouac)
  add_library(Bivouac::bivouac SHARED IMPORTED)
  set_target_properties(Bivouac::bivouac PROPERTIES
    IMPORTED_LOCATION "${_bivouac_prefix}/lib/@FILE@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_bivouac_prefix}/include"
    INTERFACE_LINK_LIBRARIES "${_bivouac_mpi}")

  add_library(Bivouac::static STATIC IMPORTED)
  set_target_properties(Bivouac::static PROPERTIES
    IMPORTED_LOCATION "${_bivouac_prefix}/lib/libbivouac.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_bivouac_prefix}/include"
    INTERFACE_LINK_LIBRARIES "${_bivouac_mpi};@PRIVATE@")

  if(EXISTS "${_bivouac_prefix}/lib/libbivouac_fortran.a")
    add_library(Bivouac::fortran STATIC IMPORTED)
    set_target_properties(Bivouac::fortran PROPERTIES
      IMPORTED_LOCATION "${_bivouac_prefix}/lib/libbivouac_fortran.a"
      INTERFACE_INCLUDE_DIRECTORIES "${_bivouac_prefix}/include"
      INTERFACE_LINK_LIBRARIES "Bivouac::bivouac")
  endif()

  if(@VELOC@)
    add_library(Bivouac::veloc SHARED IMPORTED)
    set_target_properties(Bivouac::veloc PROPERTIES
      IMPORTED_LOCATION "${_bivouac_prefix}/lib/libveloc-client.so"
      IMPORTED_SONAME "libveloc-client.so"
      INTERFACE_INCLUDE_DIRECTORIES "${_bivouac_prefix}/include"
      INTERFACE_LINK_LIBRARIES "Bivouac::bivouac")
  endif()
endif()
unset(_bivouac_mpi)
unset(_bivouac_prefix)
unset(_bivouac_language)
END
sed -i "s/@FILE@/libbivouac.so.$version/; s/@SONAME@/$soname/; s/@VELOC@/$veloc/; s/@PRIVATE@/${private// /;}/" \
    "$lib/cmake/Bivouac/BivouacConfig.cmake"

# --------------------------------------------------------------------------------------------------- VELOC

if $veloc; then
    install -d "$include/veloc"
    install -m 644 include/veloc.h "$include/veloc.h"
    install -m 644 include/veloc.hpp "$include/veloc.hpp"
    install -m 644 include/veloc/defs.h "$include/veloc/defs.h"
    install -m 755 "$scratch/libveloc-client.so" "$lib/libveloc-client.so"
fi

# ------------------------------------------------------------------------------------------------- Fortran

if ! $fortran; then
    # The files of an earlier installation would no longer match the library.
    rm -f "$lib/libbivouac_fortran.a" "$include/bivouac.mod" "$lib/pkgconfig/bivouac-fortran.pc" "$share/bivouac/bivouac.f90"
else
    install -D -m 644 src/capi/fortran/bivouac.f90 "$share/bivouac/bivouac.f90"
    install -m 644 "$scratch/libbivouac_fortran.a" "$lib/libbivouac_fortran.a"
    install -m 644 "$scratch/bivouac.mod" "$include/bivouac.mod"
    cat > "$lib/pkgconfig/bivouac-fortran.pc" << END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: Bivouac for Fortran
Description: The module bivouac, readable by the compiler that it was built with
Version: $version
Requires: bivouac
Cflags: -I\${includedir}
Libs: -L\${libdir} -lbivouac_fortran
END
fi

# --------------------------------------------------------------------------------------------- the command

install -m 755 "$command" "$root/bin/bivouac"
install -m 755 "$probe" "$root/bin/bivouac-mpi-probe"
lighten "$root/bin/bivouac" "$root/bin/bivouac-mpi-probe"
install -d "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
install -m 644 "$scratch"/man/*.1 "$share/man/man1/"
install -m 644 "$scratch/completions/bivouac.bash" "$share/bash-completion/completions/bivouac"
install -m 644 "$scratch/completions/_bivouac" "$share/zsh/site-functions/_bivouac"
install -m 644 "$scratch/completions/bivouac.fish" "$share/fish/vendor_completions.d/bivouac.fish"
# Messages and manual pages refer to config/ and docs/ here.
install -d "$share/bivouac/config" "$share/bivouac/docs/planning"
install -m 644 config/*.toml "$share/bivouac/config/"
install -m 644 docs/*.md docs/*.svg "$share/bivouac/docs/"
install -m 644 docs/planning/* "$share/bivouac/docs/planning/"
# Files outside docs/ that the pages link to are not installed with them.
sed -i -E 's/!?\[([^]]*)\]\(\.\.\/[^)]*\)/\1/g' "$share"/bivouac/docs/*.md
# For pip: the package is pure Python, and finds the library by its name.
install -d "$share/bivouac/python/bivouac"
install -m 644 src/capi/python/pyproject.toml src/capi/python/README.md "$share/bivouac/python/"
install -m 644 src/capi/python/bivouac/*.py "$share/bivouac/python/bivouac/"

say "installed Bivouac $version in $root"
