#!/usr/bin/env bash
# The second MPI: builds heat2d against MPICH in a target directory of its own and runs it on 2 and 4 ranks, each
# undisturbed, killed and restarted (launch/demo.sh does that and compares the digests).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/ci/setup.sh" --with-mpich
export MPICC=mpicc.mpich MPIRUN=mpirun.mpich
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/mpich"
. "$root/launch/env.sh"

cd "$root"
cargo build --quiet --locked --example heat2d
heat2d=$CARGO_TARGET_DIR/debug/examples/heat2d
linked=$(ldd "$heat2d") # a pipe into `grep -q` would end ldd by SIGPIPE, and the script with it
if [[ $linked != *libmpich* ]]; then
    printf 'heat2d was not linked against MPICH:\n%s\n' "$linked" >&2
    exit 1
fi

for ranks in 2 4; do
    echo "MPICH, $ranks ranks"
    HEAT2D=$heat2d DEMO_STEPS=1600 "$root/launch/demo.sh" --ranks "$ranks"
done
