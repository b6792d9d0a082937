#!/usr/bin/env bash
# Builds mpi-examples/cuda/heat.cu with nvcc and runs it on one GPU: undisturbed, killed and started again, and with a declaration left out.
#   ci/gpu/cuda.sh LIBRARY_FOLDER INCLUDE_FOLDER PROGRAM.cu
# Prints everything that the runs print, and a line for each check. Takes about a minute and 12 GiB of /dev/shm.
set -uo pipefail
[ $# -eq 3 ] || { sed -n '2,4s/^# //p' "$0" >&2 && exit 2; }
library=$(cd "$1" && pwd) && include=$(cd "$2" && pwd) || exit 2
folder=$(mktemp -d /dev/shm/bivouac-cuda.XXXXXX)
trap 'rm -rf "$folder"' EXIT
failed=0
check() {
    local name=$1
    shift
    if "$@"; then echo "CHECK $name: ok"; else echo "CHECK $name: FAILED" && failed=1; fi
}

flags=() links=()
for flag in $(mpicc --showme:compile); do
    case $flag in -I* | -D*) flags+=("$flag") ;; *) flags+=(-Xcompiler "$flag") ;; esac
done
for flag in $(mpicc --showme:link); do
    case $flag in
    -L* | -l*) links+=("$flag") ;;
    -Wl,*)
        IFS=, read -ra parts <<< "${flag#-Wl,}"
        for part in "${parts[@]}"; do links+=(-Xlinker "$part"); done
        ;;
    *) links+=(-Xcompiler "$flag") ;;
    esac
done
# nvcc does not accept a file called .so.0.1, so the linker is given it.
ours=(-Xlinker --no-as-needed -Xlinker "$(echo "$library"/libbivouac.so.*)" -Xlinker -rpath -Xlinker "$library")
nvcc -O2 -std=c++17 -arch=native -I"$include" "${flags[@]}" "$3" -o "$folder/heat" "${ours[@]}" "${links[@]}" || exit 1

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 BIVOUAC_OFFLOAD_MODE=always BIVOUAC_MEMORY_BUDGET='6 GiB' BIVOUAC_LOCAL_ENABLED=false
export BIVOUAC_GLOBAL_EVERY=6 BIVOUAC_GLOBAL_KEEP_LAST=1 BIVOUAC_JOB_NAME="cuda-$$" BIVOUAC_LOCAL_ALLOW_TMPFS=true
# run NAME OPTION…: runs the program in the store of that name.
run() {
    local name=$1
    shift
    mkdir -p "$folder/$store/memory"
    echo "== $name: $*"
    BIVOUAC_MEMORY_DIRECTORY="$folder/$store/memory" BIVOUAC_GLOBAL_DIRECTORY="$folder/$store/global" \
        timeout -k 5 100 mpirun --oversubscribe --bind-to none -n 1 "$folder/heat" "$@" > "$folder/$name.log" 2>&1 < /dev/null
    status=$?
    cat "$folder/$name.log"
}
sum_of() { sed -n 's/^checksum \([0-9a-f]*\) .*/\1/p' "$folder/$1.log"; }

store=calm run calm --every 1000
calm=$(sum_of calm)
check 'without checkpoints' test -n "$calm"
rm -rf "$folder/calm"
store=undisturbed run undisturbed
check 'marked, the same checksum' test "$(sum_of undisturbed)" = "$calm"
check 'marked, each of them' test "$(grep -c ': marked, the call took' "$folder/undisturbed.log")" -eq 6
check 'marked, none refused' grep -q '^rank 0: marks 6 refused 0 ' "$folder/undisturbed.log"
rm -rf "$folder/undisturbed"
store=killed run killed --die-at 45
check 'killed' test "$status" -ne 0
store=killed run again
check 'started again' grep -q '^RESTARTED from version' "$folder/again.log"
check 'started again, the same checksum' test "$(sum_of again)" = "$calm"
rm -rf "$folder/killed"
store=forgotten run forgotten --forget particles
check 'forgotten, refused with region and bytes' grep -q '^verdict: heat .* REFUSED, .*particles.* in bytes ' "$folder/forgotten.log"
check 'forgotten, the same checksum' test "$(sum_of forgotten)" = "$calm"
exit "$failed"
