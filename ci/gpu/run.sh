#!/usr/bin/env bash
# Runs a bundle of ci/gpu/bundle.sh on a machine with GPUs, and prints one JSON object: what passed, and the figures.
#   out/gpu/run.sh [--shots [options of benches/shots.sh]] > result.json      shots take half an hour and 90 GB of memory
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 BIVOUAC_LOCAL_ALLOW_TMPFS=true

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
gpus=$(nvidia-smi -L | wc -l)
passed=()
failed=()

check() {
    local name=$1
    shift
    if "$@" > "$scratch/$name.log" 2>&1; then passed+=("$name"); else
        failed+=("$name")
        echo "== $name failed:" >&2
        tail -30 "$scratch/$name.log" >&2
    fi
}

# Tests that start mpirun look for programs of the build tree, so only those that run by themselves are here.
check contract_device ./contract_device --test-threads 1
check history ./history
check device_checkpoint ./device_checkpoint --test-threads 1 gpu
check rtm_physics ./rtm_physics

# The image is the same for every number of ranks, and without Bivouac.
images="$scratch/images"
rtm() {
    local ranks=$1
    shift
    (cd "$scratch" && mpirun --oversubscribe --bind-to none -n "$ranks" "$OLDPWD/rtm" --grid 1024x512 --steps 3000 --every 10 --shots 4 "$@") |
        tee -a "$scratch/rtm.log" | sed -n 's/^image=\([0-9a-f]*\).*/\1/p' >> "$images"
}
ranks=1
while [ "$ranks" -le "$gpus" ]; do
    rtm "$ranks" --dir "rtm-$ranks"
    ranks=$((ranks * 2))
done
rtm 1 --reference
check rtm_images test "$(sort -u "$images" | wc -l)" -eq 1

./device > "$scratch/figures" 2> /dev/null
beside() { mpirun --oversubscribe --bind-to none -n "$1" ./beside --bench "${@:2}" 2> /dev/null >> "$scratch/figures"; }
beside 1 step
beside 1 pin
for pin in never turns at-once; do beside 1 ready --pin $pin; done
if [ "${1:-}" = --shots ]; then
    ./shots.sh --program ./shot --scratch "$scratch" "${@:2}" >> "$scratch/figures"
fi

list() { printf '%s\n' "$@" | python3 -c 'import json, sys; print(json.dumps([line.strip() for line in sys.stdin if line.strip()]))'; }
printf '{"gpus": %s, "passed": %s, "failed": %s, "figures": [%s]}\n' "$gpus" "$(list "${passed[@]}")" "$(list "${failed[@]}")" \
    "$(paste -sd, "$scratch/figures")"
[ "${#failed[@]}" -eq 0 ]
