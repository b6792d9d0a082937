#!/usr/bin/env bash
# Runs a bundle of ci/gpu/bundle.sh on a machine with GPUs, and prints one JSON object: the tests that passed, and the figures.
#   out/gpu/run.sh [--only PART,…] [--shots [options of benches/shots.sh]] > result.json
# A PART is tests, interfaces, cuda, rtm, graphlets, device, beside, ready, slots, reduction, marks or figures; without --only, all of them
# run. Figures take ten minutes; shots take half an hour and 90 GB of memory.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 BIVOUAC_LOCAL_ALLOW_TMPFS=true

only=''
if [ "${1:-}" = --only ]; then
    only=$2
    shift 2
fi
wanted() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
gpus=$(nvidia-smi -L | wc -l)
passed=()
failed=()
touch "$scratch/figures"

# Figures are kept for the end, and shown as they come, so that a run that is cut short loses nothing.
figure() { tee -a "$scratch/figures" >&2; }

check() {
    local name=$1
    shift
    if "$@" > "$scratch/$name.log" 2>&1; then passed+=("$name"); else
        failed+=("$name")
        echo "== $name failed:" >&2
        tail -30 "$scratch/$name.log" >&2
    fi
}

# Tests that start mpirun look for programs in the build tree, so only tests that run by themselves are included.
if wanted tests; then
    check contract_device ./contract_device --test-threads 1
    check offload ./offload --test-threads 1 on_a_gpu
    check offload_rounds ./offload_rounds
    check history ./history
    check device_checkpoint ./device_checkpoint --test-threads 1 gpu
    check device_dealt ./device_dealt --test-threads 1 boxes_come_back_on_a_gpu
    # Four processes save, and three continue; memory of a file on a disk cannot be pinned.
    dealt=$(mktemp -d /dev/shm/bivouac-dealt.XXXXXX)
    mkdir "$dealt/memory" "$dealt/local"
    for step in saving:4 loading:3; do
        worker=under_mpi::${step%:*}_worker
        check "device_dealt_${step%:*}" env BIVOUAC_TEST_FOLDER="$dealt" BIVOUAC_TEST_WORKER="$worker" \
            timeout 300 mpirun --oversubscribe --bind-to none -n "${step#*:}" ./device_dealt --exact "$worker" --nocapture
    done
    rm -rf "$dealt"
    for test in rtm_physics graphlets_counts minis_kernels; do [ ! -e "$test" ] || check "$test" "./$test"; done
fi

# Device pointers through the interfaces of other languages. A program that found no GPU does not count as a success
# here.
interface() {
    local name=$1 word=$2 store="$scratch/$1" memory
    shift 2
    mkdir -p "$store"
    # Memory of a file on a disk cannot be pinned.
    memory=$(mktemp -d /dev/shm/bivouac-interface.XXXXXX)
    printf 'scratch = %s/scratch\npersistent = %s/persistent\nmode = async\n' "$store" "$store" > "$store/veloc.cfg"
    check "$name" env BIVOUAC_JOB_NAME="$name" BIVOUAC_LOCAL_DIRECTORY="$store/local" BIVOUAC_GLOBAL_DIRECTORY="$store/global" \
        BIVOUAC_MEMORY_DIRECTORY="$memory" BIVOUAC_MEMORY_BUDGET='4 GiB' BIVOUAC_DEVICE_BUDGET='256 MiB' \
        BIVOUAC_LIBRARY="$(echo "$PWD"/lib/libbivouac.so.*)" PYTHONPATH="$PWD/lib" PYTHONDONTWRITEBYTECODE=1 \
        bash -c 'word=$1; shift; set -o pipefail; "$@" 2>&1 | tee /dev/stderr | grep -qx "$word"' - "$word" \
        timeout 600 mpirun --oversubscribe --bind-to none -n 2 "$@"
    rm -rf "$memory"
}
# A program in CUDA C++ with marked checkpoints.
if wanted cuda; then
    if command -v nvcc > /dev/null; then check cuda ./cuda.sh lib cuda cuda/heat.cu; else echo 'SKIPPED: cuda: no nvcc on this machine' >&2; fi
fi
if wanted interfaces; then
    interface c_gpu ok ./c_gpu
    interface veloc_gpu ok ./veloc_gpu "$scratch/veloc_gpu/veloc.cfg"
    interface python_gpu 'all right' python3 -m mpi4py ./python_gpu.py
fi

# The image is the same for every number of ranks, and without Bivouac.
images="$scratch/images"
rtm() {
    local ranks=$1
    shift
    (cd "$scratch" && mpirun --oversubscribe --bind-to none -n "$ranks" "$OLDPWD/rtm" --grid 1024x512 --steps 3000 --every 10 --shots 4 "$@") |
        tee -a "$scratch/rtm.log" | sed -n 's/^image=\([0-9a-f]*\).*/\1/p' >> "$images" || failed+=("rtm with $ranks ranks")
}
if wanted rtm; then
    ranks=1
    while [ "$ranks" -le "$gpus" ]; do
        rtm "$ranks" --dir "rtm-$ranks"
        ranks=$((ranks * 2))
    done
    rtm 1 --reference
    # How much of the transfers overlapped computation, with a GPU cache that holds part of a shot: with a larger one, nothing is fetched.
    BIVOUAC_DEVICE_BUDGET='256 MiB' rtm "$gpus" --dir rtm-traced --timeline "$scratch/trace.json" > /dev/null
    python3 - "$scratch/trace.json" "$gpus" <<'END' | figure
import json, sys
events = [event for event in json.load(open(sys.argv[1]))["traceEvents"] if event["ph"] == "X"]
def spans(rank, tid):
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["pid"] == rank and event["tid"] == tid)
def merged(spans):
    out = []
    for begin, end in spans:
        if out and begin <= out[-1][1]: out[-1][1] = max(out[-1][1], end)
        else: out.append([begin, end])
    return out
def both(one, other):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
line = {"figure": "rtm, transfers beside computation", "ranks": int(sys.argv[2])}
for name, tid in (("flush", 2), ("prefetch", 5)):
    busy = beside = 0
    for rank in {event["pid"] for event in events}:
        link, compute = merged(spans(rank, tid)), merged(spans(rank, 0))
        busy += sum(end - begin for begin, end in link)
        beside += both(link, compute)
    line[name + "_s"], line[name + "_beside_compute"] = round(busy / 1e6, 4), round(beside / max(busy, 1e-9), 3)
print(json.dumps(line))
END
    check rtm_images test "$(sort -u "$images" | wc -l)" -eq 1
fi

# The counts are the same on the processor and on any number of GPUs, and after a restart of a run that was killed.
counts="$scratch/counts"
graphlets() {
    local ranks=$1 folder=$2
    shift 2
    (cd "$scratch" && BIVOUAC_REDUCTION_METHOD=tree mpirun --oversubscribe --bind-to none -n "$ranks" "$OLDPWD/graphlets" \
        --vertices 200000 --dir "$folder" "$@") | tee -a "$scratch/graphlets.log" | sed -n 's/^digest \([0-9a-f]*\).*/\1/p' >> "$counts"
}
if wanted graphlets; then
    graphlets 4 graphlets-host --device host --every 20 || failed+=("graphlets on the processor")
    ranks=1
    while [ "$ranks" -le "$gpus" ]; do
        graphlets "$ranks" "graphlets-$ranks" --device cuda || failed+=("graphlets with $ranks ranks")
        ranks=$((ranks * 2))
    done
    ! graphlets "$gpus" graphlets-killed --device cuda --wait --die-at 11 2> "$scratch/graphlets-killed.log" || failed+=("graphlets, not killed")
    graphlets "$gpus" graphlets-killed --device cuda || failed+=("graphlets behind a restart")
    check graphlets_restored grep -q '^restored version=11 ' "$scratch/graphlets.log"
    check graphlets_counts_agree test "$(sort -u "$counts" | wc -l)" -eq 1
fi

# bench NAME COMMAND…
bench() {
    if ! "${@:2}" 2> "$scratch/bench.log" > "$scratch/bench.out"; then
        failed+=("$1")
        echo "== $* failed:" >&2
        tail -30 "$scratch/bench.log" >&2
    fi
    figure < "$scratch/bench.out"
}
if wanted device; then bench device ./device; fi
beside() { bench beside timeout 600 mpirun --oversubscribe --bind-to none -n "$1" ./beside --bench "${@:2}"; }
if wanted beside; then
    for ranks in $(printf '1\n%s\n' "$gpus" | sort -u); do
        beside "$ranks" step --rounds 8
        beside "$ranks" step --rounds 8 --rate auto
        beside "$ranks" step --rounds 8 --halo 64
        beside "$ranks" step --rounds 8 --halo 64 --rate auto
    done
    if [ "$gpus" -gt 1 ]; then
        beside "$gpus" step --rounds 8 --bursts 1
        beside "$gpus" step --rounds 8 --halo 64 --bursts 1
    fi
fi
if wanted ready; then
    for ranks in $(printf '1\n%s\n' "$gpus" | sort -u); do
        for pin in turns at-once; do beside "$ranks" pin --pin $pin; done
        for pin in never turns at-once; do beside "$ranks" ready --pin $pin; done
    done
fi
if wanted slots; then
    for ranks in $(printf '1\n%s\n' "$gpus" | sort -u); do
        for options in '' '--pin never' '--cache 1'; do
            # shellcheck disable=SC2086 # Words.
            bench slots timeout 600 mpirun --oversubscribe --bind-to none -n "$ranks" ./slots --bench $options
        done
    done
fi
if wanted reduction; then
    bench reduction timeout 600 ./reduction --bench --gpu --mib 1024 --versions 7 --dir "$scratch"
    bench reduction timeout 600 ./reduction --bench --gpu --captures --mib 4096 --versions 9 --dir "$scratch"
fi
if wanted marks; then
    bench marks timeout 600 ./marks --bench --gib 8
fi
# The figures of ICPP'23, for some of the inputs at a time: what has been measured stays if the rest takes too long.
figures() { bench figures timeout 600 mpirun --oversubscribe --bind-to none -n "$1" ./figures --bench --dir "$scratch" "${@:2}"; }
if wanted figures; then
    for inputs in race,mesh delaunay,road bubble; do figures 1 --gpu --fig4 --fig5 --inputs "$inputs"; done
    figures 1 --restart
    figures "$gpus" --gpu --fig6
fi
if [ "${1:-}" = --shots ]; then
    ./shots.sh --program ./shot --scratch "$scratch" "${@:2}" | figure
fi

list() { printf '%s\n' "$@" | python3 -c 'import json, sys; print(json.dumps([line.strip() for line in sys.stdin if line.strip()]))'; }
printf '{"gpus": %s, "passed": %s, "failed": %s, "figures": [%s]}\n' "$gpus" "$(list "${passed[@]}")" "$(list "${failed[@]}")" \
    "$(paste -sd, "$scratch/figures")"
[ "${#failed[@]}" -eq 0 ]
