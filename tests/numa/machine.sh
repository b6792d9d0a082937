#!/usr/bin/env bash
# A machine with several NUMA nodes, for tests: boots a Debian or Ubuntu kernel in QEMU and runs one command there, as root,
# in the current directory and with the current environment. The machine sees this one's files read-only below a
# layer of memory that is thrown away, so programs that were built here run there; nothing is installed, no disk image is made.
# Output and exit status are the command's; they are passed on when it has ended.
#
#   machine.sh [OPTIONS] -- COMMAND [ARGUMENT...]
#     --nodes N          NUMA nodes (default 4)
#     --cpus N           CPUs, as many on each node (default 8)
#     --memory MIB       of all nodes that have memory (default 2048)
#     --memoryless N     the last N nodes have CPUs and no memory (default 0)
#     --dealt            CPUs are dealt to the nodes in turn, each in a package of its own: 0 and N to the first
#     --ring             distance 10 more for each hop around a ring (default: 20 to all others)
#     --huge WHEN        transparent huge pages: always, madvise (default) or never
#     --balancing        the system moves pages after the threads that use them (default: it does not)
#     --share FOLDER     may be written to, under the same path; may be repeated
#     --limit SECONDS    for all, from the start (default 120); status 124 when it is over
#     --append WORDS     more for the kernel's command line
#     --verbose          the kernel's messages and QEMU's, on standard error
#   machine.sh prepare   fetches the kernel, if it is not there yet, and runs nothing
#   machine.sh can       ends with status 0 if this machine has what it takes, and else says what is missing
#
# Status 125: the machine did not start, or ended before the command did. The kernel comes through apt, which checks it, and
# stays below Cargo's target folder (about 70 MB). KVM is used where a machine boots with it (this is tried once, ten seconds at
# most, and remembered beside the kernel), and software emulation elsewhere; BIVOUAC_TEST_ACCEL is kvm or tcg for one of them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case "$target" in /*) ;; *) target=$root/$target ;; esac
cache=$target/numa

die() {
    echo "machine.sh: $*" >&2
    exit 125
}
usage() { sed -n '7,22s/^# \{0,3\}//p' "${BASH_SOURCE[0]}"; }
is_number() { [[ "$1" =~ ^[0-9]{1,6}$ ]]; }

can() {
    local missing=() tool
    for tool in qemu-system-x86_64 busybox xz setpriv flock timeout; do
        command -v "$tool" > /dev/null || missing+=("the command $tool (ci/setup.sh --with-tests)")
    done
    [ "$(uname -m)" = x86_64 ] || missing+=("an x86-64 processor")
    [ -e "$cache/kernel/complete" ] || command -v apt-get > /dev/null || missing+=("apt-get, for the kernel")
    [ "${#missing[@]}" -eq 0 ] && return
    printf 'missing: %s\n' "${missing[@]}"
    return 1
}

# The kernel is fetched by one process; the others wait.
prepare() {
    mkdir -p "$cache"
    (
        flock 9
        if [ ! -e "$cache/kernel/complete" ] || [ "$here/first.sh" -nt "$cache/kernel/complete" ] ||
            [ "$here/kernel.sh" -nt "$cache/kernel/complete" ]; then
            rm -rf "$cache/kernel"
            "$here/kernel.sh" "$cache/kernel" || die "no kernel"
        fi
    ) 9> "$cache/lock"
    # Whether KVM works is seen when a machine boots: in a machine that is emulated itself it may be there and hang.
    if [ -z "${BIVOUAC_TEST_ACCEL:-}" ] && [ ! -e "$cache/kernel/accel" ]; then
        local accel=tcg
        if [ -w /dev/kvm ] && BIVOUAC_TEST_ACCEL=kvm "${BASH_SOURCE[0]}" --nodes 1 --cpus 1 --memory 256 --limit 10 \
            -- true > /dev/null 2>&1; then
            accel=kvm
        fi
        echo "$accel" > "$cache/kernel/accel"
    fi
}

# Seconds after which a machine whose command has not begun stands still; it begins within ten.
begin_limit=90
nodes=4 cpus=8 memory=2048 memoryless=0 ring=false dealt=false huge=madvise balancing=disable limit=120 append="" verbose=false
shares=()
options() {
    while [ $# -gt 0 ]; do
        case "$1" in
        --ring) ring=true ;;
        --dealt) dealt=true ;;
        --balancing) balancing=enable ;;
        --verbose) verbose=true ;;
        --nodes | --cpus | --memory | --memoryless | --limit)
            is_number "${2:-}" || die "$1: \"${2:-}\" is no number"
            printf -v "${1#--}" %s "$2" && shift
            ;;
        --huge)
            [[ "${2:-}" =~ ^(always|madvise|never)$ ]] || die "--huge: always, madvise or never"
            huge=$2 && shift
            ;;
        --append) append=${2:-} && shift ;;
        --share)
            if [ ! -d "${2:-}" ] || [[ "$2" == *[,$'\n']* ]]; then die "--share: \"${2:-}\" cannot be shared"; fi
            shares+=("$(realpath "$2")") && shift
            ;;
        --) shift && break ;;
        *) usage >&2 && die "unknown option \"$1\"" ;;
        esac
        shift
    done
    [ $# -gt 0 ] || die "no command"
    command=("$@")
    [[ "$nodes" -ge 1 && "$nodes" -le 64 ]] || die "--nodes: 1 to 64"
    [[ "$cpus" -ge "$nodes" && $((cpus % nodes)) -eq 0 ]] || die "--cpus: a multiple of the nodes"
    [ "$memoryless" -lt "$nodes" ] || die "--memoryless: one node must have memory"
}

# QEMU's arguments for nodes, CPUs, memory and distances, in `machine`.
topology() {
    local with_memory=$((nodes - memoryless)) per_node=$((cpus / nodes)) node other hops
    local each=$((memory / with_memory))
    [ "$each" -ge 128 ] || die "--memory: 128 MiB for each node at least"
    local sockets=$nodes
    ! $dealt || sockets=$cpus
    machine=(-m "$((each * with_memory))M" -smp "$cpus,sockets=$sockets,cores=$((cpus / sockets)),threads=1")
    for ((node = 0; node < nodes; node++)); do
        local own="node,nodeid=$node" cpu
        if $dealt; then
            for ((cpu = node; cpu < cpus; cpu += nodes)); do own+=",cpus=$cpu"; done
        else
            own+=",cpus=$((node * per_node))-$((node * per_node + per_node - 1))"
        fi
        if [ "$node" -lt "$with_memory" ]; then
            machine+=(-object "memory-backend-ram,id=memory$node,size=${each}M")
            own+=",memdev=memory$node"
        fi
        machine+=(-numa "$own")
        for ((other = 0; other < node; other++)); do
            hops=$((node - other))
            [ $((nodes - hops)) -ge "$hops" ] || hops=$((nodes - hops))
            $ring || hops=1
            machine+=(-numa "dist,src=$other,dst=$node,val=$((10 + 10 * hops))")
        done
    done
}

# A folder of this machine that the other one mounts by its tag.
folder() { machine+=(-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"); }

# What the other machine reads: the command with its surroundings, and the folders to mount.
describe() {
    {
        export -p
        printf 'export BIVOUAC_TEST_MACHINE=1\ncd %q || exit 125\nexec' "$PWD"
        printf ' %q' "${command[@]}"
    } > "$run/command"
    [ "${#shares[@]}" -eq 0 ] || printf '%s\n' "${shares[@]}" > "$run/shares"
}

boot() {
    # In one thread: of 50 machines with a thread for each CPU three stood still (QEMU 7.2), CPUs taking for ever the breakpoint by
    # which the kernel had changed its own text and which was long gone.
    local accel=(-accel "tcg,thread=single" -cpu max)
    [ "${BIVOUAC_TEST_ACCEL:-$(< "$cache/kernel/accel")}" != kvm ] || accel=(-accel kvm -cpu host)
    local words="console=ttyS0 loglevel=4 panic=-1 mitigations=off nowatchdog no_timer_check tsc=reliable random.trust_cpu=1"
    words+=" rcupdate.rcu_expedited=1 transparent_hugepage=$huge numa_balancing=$balancing $append"
    local status tries qemu began=$SECONDS tried
    for tries in 1 2 3; do
        tried=$SECONDS
        # Whoever ends this script, however, ends QEMU with it.
        setpriv --pdeathsig KILL timeout --signal=KILL "$((limit - (tried - began)))" \
            setpriv --pdeathsig KILL qemu-system-x86_64 -name bivouac-numa -nodefaults -no-user-config -no-reboot \
            -machine q35,smm=off,hpet=off -display none -net none "${accel[@]}" "${machine[@]}" -serial "file:$run/console" \
            -device isa-debug-exit,iobase=0x501,iosize=1 \
            -kernel "$cache/kernel/vmlinux" -initrd "$cache/kernel/initrd" -append "$words bivouac.run=$run" \
            < /dev/null > "$run/qemu" 2>&1 &
        qemu=$!
        until [ -e "$run/out" ] || ! kill -0 "$qemu" 2> /dev/null; do
            [ $((SECONDS - tried)) -lt "$begin_limit" ] || kill -KILL "$qemu" 2> /dev/null || true
            sleep 0.1
        done
        # In the background, so that a signal is heeded at once.
        status=0
        wait "$qemu" 2> /dev/null || status=$?
        # QEMU 7.2 now and then crashes itself while it starts, and a machine may stand still: again, if the command has not begun.
        if [ -e "$run/out" ] || [ $((SECONDS - began)) -ge "$limit" ]; then break; fi
        echo "machine.sh: the command did not begin (QEMU's status $status), $tries of 3" >&2
        tail -n 5 "$run/qemu" "$run/console" >&2 2> /dev/null || true
    done
    [ "$status" -ne 137 ] || [ -s "$run/status" ] || is_over=true
}

case "${1:-}" in
can) can && exit 0 || exit 1 ;;
prepare) prepare && exit 0 ;;
"" | --help | -h) usage && exit 0 ;;
esac

options "$@"
topology
prepare
mkdir -p "$cache/runs"
run=$(mktemp -d "$cache/runs/XXXXXX")
# Ends QEMU, too, when a signal came.
trap 'jobs -p | xargs -r kill -KILL 2> /dev/null; rm -rf "$run"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
[[ "$run" != *[,$' \n']* ]] || die "no comma or space may be in $run"
: > "$run/shares"
describe
folder host / ,readonly=on
folder run "$run" ""
for index in "${!shares[@]}"; do folder "share$index" "${shares[$index]}" ""; done
is_over=false
boot
cat "$run/out" 2> /dev/null || true
cat "$run/err" >&2 2> /dev/null || true
if $verbose; then cat "$run/qemu" "$run/console" >&2; fi
if [ -s "$run/status" ]; then exit "$(< "$run/status")"; fi
$verbose || tail -n 25 "$run/qemu" "$run/console" >&2 || true
if $is_over; then
    echo "machine.sh: not done after $limit s" >&2
    exit 124
fi
die "the machine ended before the command did"
