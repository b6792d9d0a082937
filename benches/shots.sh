#!/usr/bin/env bash
# Runs the shots whose figures are stored, and prints a JSON line for each:
#   benches/shots.sh [--program PATH] [--scratch DIR] [--seconds LIMIT] [--ranks N,…] [--share] [SET…] > shots.jsonl
# A SET is a name below; without one, all that GPUs and time allow. What was left out for lack of time is said on standard error.
# With --share more ranks than GPUs share these.
# On a machine without cargo: out/gpu/run.sh --shots (see ci/gpu/bundle.sh). Then: cargo bench --bench plots
#
# The papers' own size (384 versions of 128 MB; 4 GiB of GPU cache, 32 GiB of host cache for each rank) is used where a target is
# stated for it. Sweeps use half of everything, which keeps all ratios: 192 versions, 2 GiB, 16 GiB.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program='' scratch=$(mktemp -d) limit=100000 only='' share=false
sets=()
while [ $# -gt 0 ]; do
    case "$1" in
        --program) program=$2; shift 2 ;;
        --scratch) scratch=$2; shift 2 ;;
        --seconds) limit=$2; shift 2 ;;
        --ranks) only=$2; shift 2 ;;
        --share) share=true; shift ;;
        -h | --help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
        *) sets+=("$1"); shift ;;
    esac
done
if [ -z "$program" ]; then
    cd "$here/.." && . launch/env.sh
    program=$(cargo bench --no-run --bench shot 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')
fi
program=$(realpath "$program")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
gpus=$(nvidia-smi -L | wc -l)
begun=$SECONDS

wanted() { [ "${#sets[@]}" -eq 0 ] || [[ " ${sets[*]} " == *" $1 "* ]]; }

# shot SET RANKS OPTION…
shot() {
    local set=$1 ranks=$2
    shift 2
    wanted "$set" || return 0
    [ -z "$only" ] || [[ ",$only," == *",$ranks,"* ]] || return 0
    if { [ "$ranks" -gt "$gpus" ] && ! $share; } || [ $((SECONDS - begun)) -ge "$limit" ]; then
        echo "left out: $set, $ranks ranks, $*" >&2
        return 0
    fi
    # Not bound to a core: peers have threads, too.
    (cd "$scratch" && timeout 150 mpirun --oversubscribe --bind-to none -n "$ranks" "$program" --bench --set "$set" "$@") ||
        echo "failed: $set, $ranks ranks, $*" >&2
}
half=(--count 192 --gpu 2 --host 16 --gb 22)
hipc=(--count 128 --gpu 2 --host 16 --gb 11)

# The machine's memory is touched once, and the floor is measured.
shot floor 1 --engine floor --warm --host 80
# What the targets are stated for: everything fits; and the papers' 4 + 32 GiB.
shot fits 1 --ready --host 64 --order reverse,sequential,irregular
shot fits 1 --ready --host 64 --interval 0
shot fits 1 --ready --host 64 --interval 0 --fields 2000
shot fits 1 --engine blocking --host 50
shot fits 1 --engine on-demand --host 50
shot papers 1 --engine file --gb 49.2
shot papers 1 --ready --order reverse,irregular --sizes uniform,variable
shot papers 1 --engine blocking
shot papers 1 --engine on-demand
shot papers 1 --engine managed
# Copies enqueued behind kernels: how much longer a pass takes. And what a call that waits consists of.
shot enqueued 1 --engine floor --enqueue
shot enqueued 1 --engine blocking --host 50 --enqueue
shot enqueued 1 --engine on-demand --host 50 --enqueue
shot enqueued 1 --ready --host 64 --enqueue --order reverse,irregular
for awake in '' --awake; do
    shot call 1 --engine floor --count 30 --interval 0,10 $awake
    shot call 1 --engine copy --count 30 --interval 0,10 $awake
    shot call 1 --ready --host 8 --count 30 --interval 0,10 $awake
done
# GPUs at once: bare copies to host memory, and ours until all is flushed.
for ranks in 1 2 4; do
    shot at-once $ranks --engine blocking --count 96 --host 13 --interval 0 --tight true
    shot at-once $ranks --ready --count 96 --gpu 2 --host 13 --interval 0 --wait true
done
# HiPC'22: a cold start. Figures 5a and 5b, uniform sizes; 3b and 3c, variable sizes.
for interval in 10 20 60; do shot hipc-5 1 "${hipc[@]}" --interval $interval; done
shot hipc-5 1 "${hipc[@]}" --engine direct --interval 10,20,60
shot hipc-5 1 "${hipc[@]}" --engine memset --interval 10,20,60
shot hipc-5 1 "${hipc[@]}" --engine managed --interval 10,20,60
for interval in 10 20; do shot hipc-3 1 "${hipc[@]}" --sizes variable --interval $interval; done
shot hipc-3 1 "${hipc[@]}" --sizes variable --engine direct --interval 10,20
# Figure 5c: when memory is touched and how it is pinned; 6a and 6b: more ranks.
for ranks in 1 2 4; do
    for touch in beside between; do
        for pin in turns at-once; do shot hipc-5c $ranks "${hipc[@]}" --interval 10 --touch $touch --pin $pin; done
    done
    shot hipc-5c $ranks "${hipc[@]}" --interval 10
    shot hipc-6 $ranks "${hipc[@]}" --interval 20
    shot hipc-6 $ranks "${hipc[@]}" --interval 20 --engine direct
done
# HPDC'23, figure 6: not waiting for the flush; figure 5: waiting.
shot hpdc-6 1 "${half[@]}" --ready --order sequential,reverse,irregular --hints all,one,none
shot hpdc-6 1 "${half[@]}" --engine managed --order sequential,reverse,irregular --hints all
shot hpdc-6 1 "${half[@]}" --engine on-demand --order sequential,reverse,irregular --hints none
shot hpdc-6 1 "${half[@]}" --ready --sizes variable --order sequential,reverse,irregular --hints all,none
shot hpdc-6 1 "${half[@]}" --engine managed --sizes variable --order irregular
shot hpdc-6 1 "${half[@]}" --engine on-demand --sizes variable --order irregular --hints none
shot hpdc-5 1 "${half[@]}" --ready --order sequential,reverse,irregular --wait true
shot hpdc-5 1 "${half[@]}" --ready --sizes variable --order irregular --wait true
shot hpdc-5 1 "${half[@]}" --engine on-demand --sizes uniform,variable --order irregular --hints none --wait true
for sizes in uniform variable; do shot hpdc-5 1 "${half[@]}" --engine managed --sizes $sizes --order irregular --wait true; done
# Figure 7: step by step.
shot hpdc-7 1 "${half[@]}" --ready --each
# Figure 8a: the interval; 8b: the GPU cache. Figure 9: more ranks.
shot hpdc-8 1 "${half[@]}" --ready --sizes variable --order irregular --interval 5,10,20,30
shot hpdc-8 1 "${half[@]}" --engine on-demand --sizes variable --order irregular --interval 5,10,20,30
shot hpdc-8 1 "${half[@]}" --engine managed --sizes variable --order irregular --interval 5,10,20,30
for gpu in 0.5 1 4; do
    shot hpdc-8 1 "${half[@]}" --ready --gpu $gpu --sizes variable --order irregular
    shot hpdc-8 1 "${half[@]}" --engine managed --gpu $gpu --sizes variable --order irregular
done
for ranks in 2 4; do
    shot hpdc-9 $ranks "${half[@]}" --ready --sizes variable --order irregular --tight false,true
    shot hpdc-9 $ranks "${half[@]}" --engine on-demand --sizes variable --order irregular --hints none
    shot hpdc-9 $ranks "${half[@]}" --engine managed --sizes variable --order irregular
done
# HiPC'22, figure 6c: the host cache; figure 4: nearly everything in GPU memory.
for host in 4 8 32; do
    shot hipc-6c 1 --count 128 --gpu 2 --interval 20 --host $host
    shot hipc-6c 1 --count 128 --gpu 2 --interval 20 --host $host --engine direct
done
shot hipc-4 1 --count 256 --gpu 32 --host 4 --interval 10 --each
