#!/usr/bin/env bash
# Figures on a machine with several GPUs (sized for four, 64 cores, 512 GiB), from a bundle of ci/gpu/bundle.sh, which contains this file.
#   out/gpu/many.sh OUT [PART,…] [SECONDS]
# OUT receives figures.jsonl (each line with the step that printed it), steps.jsonl (each step's exit status and seconds), host.txt,
# rtm.txt, log.txt and summary.json, all as they are produced: a run that is cut short loses nothing. A step that would not end before
# SECONDS (540) or its part's limit is left out, and the log says so.
# Parts: host warm slots atonce scaling strong | minis marks granularity ics slow volume big fits cold | figures beside rtm chaos | pin near managed. Without PART all but managed, big, volume, granularity, ics and slow. They run in
# the order in which they appear below. With the word `more` among them, each one also measures less important things.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 BIVOUAC_LOCAL_ALLOW_TMPFS=true CUDA_DEVICE_ORDER=PCI_BUS_ID

[ $# -ge 1 ] || { sed -n '2,8p' "$0" >&2 && exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd)
all=host,warm,slots,atonce,scaling,strong,minis,marks,fits,cold,figures,beside,rtm,chaos,pin,near
parts=${2:-$all}
deadline=$((SECONDS + ${3:-540}))
gpus=$(nvidia-smi -L 2> /dev/null | wc -l)
[ "$gpus" -gt 0 ] || { echo "no GPU" >&2 && exit 1; }
# One folder on the disk, and one in shared memory.
scratch=$(mktemp -d "${MANY_SCRATCH:-/tmp}/many.XXXXXX")
shared=$(mktemp -d "${MANY_SHARED:-/dev/shm}/many.XXXXXX")
trap 'rm -rf "$scratch" "$shared"' EXIT
touch "$out"/{figures.jsonl,steps.jsonl,host.txt,rtm.txt,log.txt}
part='' part_end=$deadline failed=0 skipped=0

# begin PART SECONDS: is the part wanted? Its steps end within this time.
begin() {
    [[ ",$parts," == *",$1,"* ]] || return 1
    part=$1 part_end=$((SECONDS + $2))
    [ "$part_end" -le "$deadline" ] || part_end=$deadline
    echo "== $part, $((deadline - SECONDS)) s left" | tee -a "$out/log.txt" >&2
}

# Are less important measurements wanted, too?
more() { [[ ",$parts," == *,more,* ]]; }

note() { printf '{"part": "%s", "step": "%s", "rc": %s, "seconds": %s, "at": %s}\n' "$part" "$@" "$SECONDS" | tee -a "$out/steps.jsonl" >&2; }

# check NAME COMMAND…: an assertion about earlier steps.
check() {
    local name=$1 rc=0
    shift
    "$@" > /dev/null || rc=$? failed=$((failed + 1))
    note "$name" "$rc" 0
}

# JSON lines become figures of that step; all other output goes to a file.
take() {
    local line
    while IFS= read -r line; do
        case "$line" in
            '{'*) printf '{"step": "%s", %s\n' "$1" "${line#\{}" | tee -a "$out/figures.jsonl" >&2 ;;
            *) printf '%s: %s\n' "$1" "$line" >> "$2" ;;
        esac
    done
}

# step NAME ESTIMATE LIMIT COMMAND…: runs in the scratch folder, and is left out if the estimate does not fit.
step() {
    local name=$1 estimate=$2 limit=$3 left=$((part_end - SECONDS)) begun=$SECONDS rc
    shift 3
    if [ "$left" -lt "$estimate" ]; then
        skipped=$((skipped + 1))
        note "$name" '"left out"' 0
        return 0
    fi
    [ "$limit" -le "$left" ] || limit=$left
    echo "== $name: $*" >> "$out/log.txt"
    (cd "$scratch" && exec timeout -k 5 "$limit" "$@" < /dev/null 2>> "$out/log.txt") | take "$name" "${text:-$out/log.txt}"
    rc=${PIPESTATUS[0]}
    note "$name" "$rc" $((SECONDS - begun))
    # A run that is to be killed leaves the checkpoint that the next one continues from.
    [ -z "${killed:-}" ] || return 0
    if [ "$rc" -ne 0 ]; then
        failed=$((failed + 1))
        # Removes what the step left.
        rm -rf "${MANY_SHARED:-/dev/shm}"/bivouac-* "${shared:?}"/* "$scratch"/bivouac-*
        tail -5 "$out/log.txt" >&2
    fi
    return "$rc"
}

# The command that starts that many ranks, unbound: Bivouac's threads run where their GPU is, and those of peers and of the bare copies
# where there is room.
ranks() { echo "mpirun --oversubscribe --bind-to none -n $1"; }
# shot SET RANKS ESTIMATE LIMIT OPTION…
shot() {
    local set=$1 count=$2 estimate=$3 limit=$4
    shift 4
    # shellcheck disable=SC2046 # Words.
    step "$set, $count: $*" "$estimate" "$limit" $(ranks "$count") "$here/shot" --bench --set "$set" "$@"
}
# bench NAME RANKS ESTIMATE LIMIT OPTION…
bench() {
    local name=$1 count=$2 estimate=$3 limit=$4
    shift 4
    # shellcheck disable=SC2046
    step "$name, $count: $*" "$estimate" "$limit" $(ranks "$count") "$here/$name" --bench "$@"
}

host() {
    echo "==== $(date -u +%FT%TZ)"
    for command in 'nvidia-smi' 'nvidia-smi topo -m' \
        'nvidia-smi --query-gpu=index,name,pci.bus_id,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,memory.total,driver_version --format=csv' \
        'lscpu' 'numactl -H' 'free -g' 'df -h / /tmp /dev/shm .' 'mpirun --version' 'cat /proc/version /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/transparent_hugepage/shmem_enabled' \
        'ulimit -a' 'nvidia-smi nvlink -s' 'lstopo-no-graphics --no-caches'; do
        echo "== $command"
        timeout 20 bash -c "$command" 2>&1
    done
    echo "== processors beside each GPU, and its links from the root"
    local bus
    for bus in "${buses[@]}"; do
        echo "$bus node $(cat "/sys/bus/pci/devices/$bus/numa_node" 2>&1) cpus $(cat "/sys/bus/pci/devices/$bus/local_cpulist" 2>&1) $(readlink -f "/sys/bus/pci/devices/$bus")"
    done
}

# The buses of the GPUs, as the kernel writes them.
mapfile -t buses < <(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader 2> /dev/null | tr '[:upper:]' '[:lower:]' | sed 's/^ *0000//; s/ *$//')
if begin host 60; then
    host >> "$out/host.txt"
    note host 0 0
fi

# The memory of a virtual machine is touched once; then come bare copies inside all devices at once. (Where memory grows slowly this
# takes half a minute.)
if begin warm 100; then
    shot floor "$gpus" 15 90 --engine floor --warm --host 26 --count 48 --interval 0,10 --tight true
    shot floor 1 5 30 --engine floor --count 48 --interval 0,10
fi

# Slots, restarts and first checkpoints; and in the same run, bare copies in both directions on all GPUs at once.
counts=$(for count in "$gpus" 1 2; do [ "$count" -le "$gpus" ] && echo "$count"; done | awk '!seen[$0]++')
if begin slots 170; then
    for count in $counts; do bench slots "$count" 18 60 --rounds 7; done
    bench slots "$gpus" 18 60 --rounds 5 --cache 1
    bench slots "$gpus" 16 60 --rounds 5 --pin never
    if more; then
        bench slots 1 16 60 --rounds 5 --cache 1
        bench slots 1 16 60 --rounds 5 --pin never
    fi
fi

# All GPUs at once without an interval: bare copies, and Bivouac. Pairs of GPUs show which of them share something.
atonce() {
    shot "$1" "$2" 14 60 --engine blocking --count 96 --host 13 --interval 0 --tight true
    shot "$1" "$2" 8 60 --ready --count 96 --gpu 2 --host 13 --interval 0
}
if begin atonce 160; then
    # Links of idle GPUs may run slower than they can.
    (sleep 9 && nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.mem --format=csv,noheader >> "$out/host.txt") 2> /dev/null &
    sampler=$!
    atonce at-once "$gpus"
    atonce at-once 1
    if [ "$gpus" -ge 2 ]; then CUDA_VISIBLE_DEVICES=0,1 atonce at-once-01 2; fi
    if [ "$gpus" -ge 4 ]; then
        CUDA_VISIBLE_DEVICES=0,2 atonce at-once-02 2
        if more; then CUDA_VISIBLE_DEVICES=3 atonce at-once-3 1; fi
    fi
fi

[ -z "${sampler:-}" ] || wait "$sampler"

# HPDC'23, figure 9, weak scaling: each rank has a quarter of the papers' size, which keeps all ratios, so that peers end up on one disk.
quarter=(--count 96 --gpu 1 --host 8 --gb 11 --sizes variable --order irregular)
if begin scaling 260; then
    shot hpdc-9 1 12 60 --engine file --gb 4
    for count in $counts; do
        shot hpdc-9 "$count" 12 60 "${quarter[@]}" --ready --tight false,true
        [ "$count" != 2 ] || more || continue
        shot hpdc-9 "$count" $((10 + count * 10)) 130 "${quarter[@]}" --engine on-demand --hints none --tight false,true
    done
fi
# Strong scaling: 11 GB for all ranks together. With one rank, this is the previous part.
if begin strong 90; then
    for count in $counts; do
        [ "$count" -gt 1 ] || continue
        [ "$count" != 2 ] || more || continue
        share=(--count $((96 / count)) --gb "$(awk "BEGIN { print 11 / $count }")")
        shot hpdc-9-strong "$count" 8 50 "${quarter[@]}" "${share[@]}" --ready --tight false,true
        shot hpdc-9-strong "$count" 12 60 "${quarter[@]}" "${share[@]}" --engine on-demand --hints none --tight false,true
    done
fi

# Mini-apps: what a checkpoint adds to some steps, copied and marked, in turns. Half of the saved data fits into the buffer.
minis() {
    local name=$1 app=$2 count=$3 mib=$4 estimate=$5 limit=$6
    shift 6
    mkdir -p "$shared/minis"
    # shellcheck disable=SC2046
    step "$name" "$estimate" "$limit" env BIVOUAC_JOB_NAME=minis BIVOUAC_MEMORY_DIRECTORY="$shared/minis" \
        BIVOUAC_MEMORY_BUDGET="$((count * (2 * mib + mib / 32 + 2048))) MiB" BIVOUAC_DEVICE_BUDGET="$((${buffer:-2048} + 64)) MiB" \
        BIVOUAC_OFFLOAD_BUFFER="$((${buffer:-2048} << 20))" BIVOUAC_OFFLOAD_MODE=always BIVOUAC_LOCAL_ENABLED=false BIVOUAC_GLOBAL_ENABLED=false \
        $(ranks "$count") "$here/minis" "$app" --device cuda --mib "$mib" --dir "$scratch/minis" "$@"
    rm -rf "${shared:?}/minis"
}
apps=(stencil:20 cg:50 particles:60 amr:80 sweep:10 rtm:60)
if begin minis 200; then
    for count in "$gpus" 1; do
        for app in "${apps[@]}"; do
            minis "minis, $count: ${app%:*}" "${app%:*}" "$count" 4096 14 60 --every "${app#*:}" --measure 7
        done
        [ "$gpus" -gt 1 ] || break
    done
    if more; then
        for app in "${apps[@]}"; do
            buffer=0 minis "minis without a buffer, 1: ${app%:*}" "${app%:*}" 1 4096 12 60 --every "${app#*:}" --measure 9
            BIVOUAC_JOB_BLOCK='4 KiB' minis "minis, 4 KiB, 1: ${app%:*}" "${app%:*}" 1 4096 12 60 --every "${app#*:}" --measure 9
        done
    fi
fi
# ICS'19, figures 10 and 11: in all ways, without a buffer and with one for half of the data, in blocks of 64 KiB and of 4 KiB. The steps
# together take some tenths of a second.
ics() {
    local name=$1 mib=$2 steps=$3 rounds=$4 app set block buffer ways
    shift 4
    for app in "${apps[@]}"; do
        for set in 64:0:copy,wait,blind,full,mark 4:0:mark "64:$((mib / 2)):copy,full,mark,nothing" "4:$((mib / 2)):mark"; do
            IFS=: read -r block buffer ways <<< "$set"
            BIVOUAC_JOB_BLOCK="$block KiB" minis "$name, $block KiB, buffer of $buffer: ${app%:*}" "${app%:*}" 1 "$mib" 6 60 \
                --every $((${app#*:} * steps)) --measure "$rounds" --ways "$ways" "$@"
        done
    done
}
if begin ics 260; then ics ics 1024 4 3; fi
# The same where the link is a share of 4 GB/s, which is emulated.
if begin slow 330; then ics ics-slow 256 16 3 --link 3815; fi
# How much of a GPU's memory has changed since the last checkpoint but one, by steps between checkpoints and by block length.
if begin volume 150; then
    for app in "${apps[@]}"; do
        for every in 1 8 64 512; do
            BIVOUAC_JOB_BLOCK='64 KiB' minis "volume: ${app%:*}" "${app%:*}" 1 256 2 30 --every "$every" --measure 2 --ways mark
        done
        for block in 16 4; do
            BIVOUAC_JOB_BLOCK="$block KiB" minis "volume: ${app%:*}" "${app%:*}" 1 256 2 30 --every 8 --measure 2 --ways mark
        done
    done
fi
# More than half of a GPU's memory is saved, and the result has the same bits as without checkpoints.
if begin big 420; then
    # BIG names the programs, with their steps.
    for app in ${BIG:-cg:180 stencil:72}; do
        for count in "$gpus" 1; do
            [ "$count" -le 2 ] || continue
            buffer=4096 minis "big, $count: ${app%:*}, undisturbed" "${app%:*}" "$count" 45056 8 60 --how none --steps "${app#*:}"
            buffer=4096 minis "big, $count: ${app%:*}, marked" "${app%:*}" "$count" 45056 50 150 --every "$((${app#*:} / 3))" --steps "${app#*:}"
            check "big, $count: ${app%:*}: equal digests" test "$(grep "^big, $count: ${app%:*}, .*: digest" "$out/log.txt" | sed 's/.*digest //' | sort | uniq -c | awk '{ print $1 }')" = 2
            [ "$gpus" -gt 1 ] || break
        done
    done
fi

# Weak scaling without a disk: everything fits.
if begin fits 140; then
    for count in $counts; do
        shot hpdc-9-fits "$count" 12 50 "${quarter[@]}" --ready --host 13 --interval 0,10 --tight false,true
        [ "$count" != 2 ] || more || continue
        shot hpdc-9-fits "$count" 18 60 "${quarter[@]}" --engine on-demand --hints none --host 13 --interval 0,10 --tight false,true
    done
fi
# Marked checkpoints. A program that does not know ranks is started once for each GPU.
if begin marks 250; then
    for count in $counts; do
        only=mark,send,changed,beside
        # The longest list of figures is for all GPUs and for one.
        [ "$count" != 2 ] || only=send
        if "$here/marks" --help 2> /dev/null | grep -q mpirun; then
            bench marks "$count" 45 150 --gib 4 --rounds 5 --only "$only" --memory "$shared"
        else
            # shellcheck disable=SC2016,SC2046 # The ranks expand it; words.
            step "marks, $count, each by itself" 45 150 $(ranks "$count") bash -c \
                'export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK; exec "$@"' - "$here/marks" --bench --gib 4 --rounds 5 --only "$only" --memory "$shared"
        fi
    done
fi

# Pieces by length and by carrier: ICS'19, figure 9.
if begin granularity 90; then bench marks 1 20 80 --only granularity --rounds 5; fi

# HiPC'22, figures 5c and 6: cold starts, in turns and at once, and one call that pins everything first.
hipc=(--count 128 --gpu 2 --host 16 --gb 11)
if begin cold 190; then
    for count in $counts; do
        for pin in turns at-once; do shot hipc-5c "$count" 8 40 "${hipc[@]}" --interval 10 --pin $pin; done
    done
    for count in $counts; do
        shot hipc-6 "$count" 10 40 "${hipc[@]}" --interval 20
        shot hipc-6 "$count" 20 60 "${hipc[@]}" --interval 20 --engine direct
    done
    if more; then
        for touch in beside between; do
            for pin in turns at-once; do shot hipc-5c "$gpus" 8 40 "${hipc[@]}" --interval 10 --touch $touch --pin $pin; done
        done
    fi
fi

# ICPP'23, figure 6: on the disk that all ranks share, and in shared memory.
if begin figures 260; then
    for count in $counts; do
        [ "$count" -gt 1 ] || continue
        bench figures "$count" 40 150 --gpu --fig6 --dir "$scratch"
    done
    ! more || step "figures, $gpus, in shared memory" 40 150 mpirun --oversubscribe --bind-to none -n "$gpus" "$here/figures" --bench --gpu --fig6 --dir "$shared"
fi

# Flushes on all ranks at once during steps, and the ways to stagger them: turns by node and by link, and a rate that
# follows from the steps' times.
if begin beside 260; then
    bench beside "$gpus" 14 60 step --rounds 4 --versions 60
    bench beside "$gpus" 14 60 step --rounds 4 --versions 60 --halo 64
    bench beside "$gpus" 22 80 step --rounds 4 --versions 60 --halo 64 --bursts 1
    bench beside 1 8 60 step --rounds 4 --versions 60
    bench beside 1 8 60 step --rounds 4 --versions 60 --halo 64
    bench beside "$gpus" 45 120 step --rounds 3 --halo 64 --rate auto
    if "$here/beside" --help 2> /dev/null | grep -q -- --scope; then
        bench beside "$gpus" 14 80 step --rounds 4 --versions 60 --halo 64 --bursts 1 --scope link
    fi
    bench beside "$gpus" 22 80 step --rounds 4 --versions 60 --bursts 1
    if more; then
        bench beside "$gpus" 45 120 step --rounds 3 --halo 64 --rate auto --bursts 1
        bench beside 1 15 60 step --rounds 3 --halo 64 --rate auto
    fi
fi

# The image is the same for every number of ranks, with ranks that share GPUs, and without Bivouac.
rtm() {
    local name=$1 count=$2
    shift 2
    # shellcheck disable=SC2046
    text=$out/rtm.txt step "$name" 5 60 $(ranks "$count") "$here/rtm" --grid 1024x512 --steps 3000 --every 10 --shots 8 "$@"
}
same() {
    local images
    images=$(sed -n 's/.* image=\([0-9a-f]*\).*/\1/p' "$out/rtm.txt" | sort | uniq -c | awk '{ print $1 }' | paste -sd+)
    check "$1: equal images: ${images:-none}" grep -qx '[0-9]*' <<< "${images:-none}"
}
if begin rtm 110; then
    rtm 'rtm, 1, reference' 1 --reference
    for count in $counts; do rtm "rtm, $count" "$count" --dir "$scratch/rtm-$count"; done
    rtm "rtm, $gpus, tight" "$gpus" --dir "$scratch/rtm-tight" --tight
    rtm "rtm, $((2 * gpus)) on $gpus" $((2 * gpus)) --dir "$scratch/rtm-twice"
    export BIVOUAC_DEVICE_BUDGET='256 MiB'
    rtm "rtm, $gpus, 256 MiB" "$gpus" --dir "$scratch/rtm-small"
    rtm 'rtm, 1, 256 MiB' 1 --dir "$scratch/rtm-small-1"
    unset BIVOUAC_DEVICE_BUDGET
    same rtm
fi

# Eight ranks on the GPUs: device pointers with lost and crashed devices, a killed run that continues, tiny caches, and the
# device tests on all GPUs.
interface() {
    local name=$1 word=$2 store="$scratch/$1"
    shift 2
    mkdir -p "$store" "$shared/$name"
    printf 'scratch = %s/scratch\npersistent = %s/persistent\nmode = async\n' "$store" "$store" > "$store/veloc.cfg"
    step "chaos: $name, $eight" 8 90 env BIVOUAC_JOB_NAME="$name" BIVOUAC_LOCAL_DIRECTORY="$store/local" BIVOUAC_GLOBAL_DIRECTORY="$store/global" \
        BIVOUAC_MEMORY_DIRECTORY="$shared/$name" BIVOUAC_MEMORY_BUDGET='16 GiB' BIVOUAC_DEVICE_BUDGET='256 MiB' \
        BIVOUAC_LIBRARY="$(echo "$here"/lib/libbivouac.so.*)" PYTHONPATH="$here/lib" PYTHONDONTWRITEBYTECODE=1 \
        mpirun --oversubscribe --bind-to none -n "$eight" "$@"
    # A program that found no GPU does not count as a success.
    check "chaos: $name said $word" grep -qx "chaos: $name, $eight: $word" "$out/log.txt"
    rm -rf "$store" "${shared:?}/$name"
}
graphlets() {
    local name=$1 folder=$2
    shift 2
    # shellcheck disable=SC2046
    BIVOUAC_REDUCTION_METHOD=tree step "$name" 8 90 $(ranks "$eight") "$here/graphlets" --vertices 200000 --dir "$scratch/$folder" --device cuda "$@"
}
if begin chaos 200; then
    eight=8
    rtm 'chaos: rtm, 1, reference' 1 --reference
    interface c_gpu ok "$here/c_gpu"
    interface veloc_gpu ok "$here/veloc_gpu" "$scratch/veloc_gpu/veloc.cfg"
    interface python_gpu "all right" python3 -m mpi4py "$here/python_gpu.py"
    graphlets 'chaos: graphlets' graphlets
    for part_killed in 3 11; do
        killed=yes graphlets "chaos: graphlets, killed after $part_killed" killed --wait --die-at "$part_killed"
    done
    graphlets 'chaos: graphlets, started again' killed
    check 'chaos: graphlets went on from part 11' grep -q '^chaos: graphlets, started again: restored version=11 ' "$out/log.txt"
    digests=$(sed -n 's/^chaos: graphlets.*: digest \([0-9a-f]*\).*/\1/p' "$out/log.txt" | sort | uniq -c | awk '{ print $1 }' | paste -sd+)
    check "chaos: equal digests of two runs: ${digests:-none}" test "$digests" = 2
    for try in 1 2; do
        BIVOUAC_DEVICE_BUDGET='64 MiB' BIVOUAC_HISTORY_HOST_BUDGET='64 MiB' BIVOUAC_HISTORY_STORE_BUDGET='2 GiB' \
            rtm "chaos: rtm, $eight, tiny caches, $try" "$eight" --dir "$scratch/rtm-tiny-$try"
        rm -rf "$scratch/rtm-tiny-$try"
    done
    for test in contract_device device_checkpoint offload; do
        words=()
        case "$test" in device_checkpoint) words=(gpu) ;; offload) words=(on_a_gpu) ;; esac
        # shellcheck disable=SC2016,SC2046
        step "chaos: $test on each GPU, $eight at once" 10 90 $(ranks "$eight") bash -c \
            'export CUDA_VISIBLE_DEVICES=$((OMPI_COMM_WORLD_LOCAL_RANK % $1)); shift; exec "$@"' - "$gpus" "$here/$test" --test-threads 1 "${words[@]}"
    done
    same chaos
fi

# How fast memory is made ready, and what a launch feels of this, on all GPUs at once.
if begin pin 120; then
    for count in "$gpus" 1; do
        for pin in turns at-once; do
            bench beside "$count" 14 60 ready --pin $pin
            bench beside "$count" 14 60 pin --pin $pin
        done
    done
fi

# The same at once with each rank on the processors next to its GPU, if the machine reports any.
if begin near 80; then
    NEAR=$(for bus in "${buses[@]}"; do cat "/sys/bus/pci/devices/$bus/local_cpulist"; done 2> /dev/null | paste -sd';')
    if [ "$(tr ';' '\n' <<< "$NEAR" | sort -u | wc -l)" -lt 2 ]; then
        note "near: every GPU is beside the same processors: $NEAR" '"left out"' 0
    else
        export NEAR
        # shellcheck disable=SC2016 # The ranks expand it.
        near=(mpirun --oversubscribe --bind-to none -n "$gpus" bash -c 'IFS=";" read -ra cpus <<< "$NEAR"; exec taskset -c "${cpus[OMPI_COMM_WORLD_LOCAL_RANK % ${#cpus[@]}]}" "$@"' -)
        step "slots, $gpus, near" 18 60 "${near[@]}" "$here/slots" --bench --rounds 7
        step "at-once, $gpus, blocking, near" 14 60 "${near[@]}" "$here/shot" --bench --set at-once-near --engine blocking --count 96 --host 13 --interval 0 --tight true
        step "at-once, $gpus, near" 8 60 "${near[@]}" "$here/shot" --bench --set at-once-near --ready --count 96 --gpu 2 --host 13 --interval 0
    fi
fi

# Peer (c): managed memory, always less than the device's free memory.
if begin managed 120; then
    for count in $counts; do shot hpdc-9 "$count" 18 60 "${quarter[@]}" --engine managed --tight false,true; done
fi

printf '{"gpus": %s, "parts": "%s", "failed": %s, "left_out": %s, "figures": %s, "seconds": %s}\n' \
    "$gpus" "$parts" "$failed" "$skipped" "$(wc -l < "$out/figures.jsonl")" "$SECONDS" | tee -a "$out/summary.json"
