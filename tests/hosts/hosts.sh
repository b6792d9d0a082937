#!/usr/bin/env bash
# Several hosts on one machine, for tests. Each host is a set of namespaces (network, host name, processes, mounts,
# shared memory) with its own address, boot id, disk and /dev/shm; all hosts share the rest of the file system, which
# serves as the parallel file system. Needs root, and leaves nothing behind on the machine.
#
#   hosts.sh up N [--owner PID]   starts the host `head` and the hosts node1 ... nodeN; they end with process PID
#   hosts.sh exec HOST COMMAND    runs a command there, with the settings for MPI (mpi.env)
#   hosts.sh kill HOST            all its processes end at once; the kernel closes their connections
#   hosts.sh poweroff HOST        the same, without notice to the network
#   hosts.sh cut HOST             its network link goes down; its processes live on
#   hosts.sh heal HOST            the link comes up again
#   hosts.sh freeze HOST          all its processes stop where they are; it still answers the network
#   hosts.sh thaw HOST            they continue
#   hosts.sh boot HOST [--old-disk]   starts a lost host, with an empty disk, or with its old one
#   hosts.sh status               each host with its address and process
#   hosts.sh down                 ends all hosts and removes the state
#   hosts.sh leftovers            what is left of them: prints nothing, or ends with status 1
#   hosts.sh can                  ends with status 0 if this machine allows all that, and otherwise says what is missing
#
# BIVOUAC_TEST_SHM is the size of the hosts' shared memory (default 512m).
# BIVOUAC_TEST_HOSTS names the folder of the state (default /tmp/bivouac-hosts/default). Two sets of hosts can exist at
# once in two such folders. In the folder, `local` is each host's own disk, as that host sees it, and `disks/HOST` is the
# same disk from outside. `head` holds the network switch: it cannot be cut or lost.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export BIVOUAC_TEST_HOSTS="${BIVOUAC_TEST_HOSTS:-/tmp/bivouac-hosts/default}"
state=$BIVOUAC_TEST_HOSTS
# shellcheck source=tests/hosts/names.sh
. "$here/names.sh"
# shellcheck source=tests/hosts/until.sh
. "$here/until.sh"
# shellcheck source=tests/hosts/one_group.sh
. "$here/one_group.sh"

usage() { sed -n '6,19s/^# \{0,3\}//p' "${BASH_SOURCE[0]}"; }
die() {
    echo "hosts.sh: $*" >&2
    exit 1
}

# The first process of a host, as the machine numbers it. The network namespace next to it reveals a number
# that is used again.
first_process() {
    local pid network
    read -r pid _ network 2> /dev/null < "$state/hosts/$1/process" || return 1
    [ "$(readlink "/proc/$pid/ns/net")" = "$network" ] && echo "$pid"
}
is_up() { first_process "$1" > /dev/null 2>&1; }
process_of() { first_process "$1" || die "host $1 is not up (state in $state)"; }
on_switch() { nsenter --target "$(process_of head)" --net "$@"; }
answers() { on_switch ping -c 1 -W 1 -q "$(address_of "$1")" > /dev/null; }
is_known() {
    if [[ ! "$1" =~ ^(head|node[1-9][0-9]?)$ ]] || [ ! -d "$state/hosts/$1" ]; then die "there is no host \"$1\""; fi
}
is_node() {
    is_known "$1"
    [ "$1" != head ] || die "head holds the network: this is for nodes only"
}

can() {
    local missing=()
    [ "$(id -u)" -eq 0 ] || missing+=("root")
    local tool
    for tool in unshare nsenter setpriv flock ip ping; do
        command -v "$tool" > /dev/null || missing+=("the command $tool (ci/setup.sh --with-tests)")
    done
    if [ "${#missing[@]}" -eq 0 ]; then
        unshare --pid --net --mount --ipc --uts --fork --propagation private /bin/bash -e -c '
            mount -t tmpfs none /run
            ip link add b0 type bridge
            ip link add p0 type veth peer name p1' > /dev/null 2>&1 ||
            missing+=("namespaces with mounts, bridges and virtual links (in a container: --privileged)")
    fi
    [ "${#missing[@]}" -eq 0 ] && return
    printf 'missing: %s\n' "${missing[@]}"
    return 1
}

# Is this folder the state of a set of hosts? Nothing else is ever removed, whatever BIVOUAC_TEST_HOSTS says.
is_state() { [ -e "$1/lock.held" ] && [ -d "$1/hosts" ] && [ -d "$1/disks" ]; }

# Removes folders whose keeper is gone, however it ended: nobody needs what their hosts wrote.
sweep() {
    local folder
    for folder in "$(dirname "$state")"/*/; do
        is_state "$folder" || continue
        if flock --nonblock "$folder/lock" true; then rm -rf "$folder"; fi
    done
}

up() {
    local count=${1:-} owner=
    [[ "$count" =~ ^[1-9][0-9]?$ ]] || die "up: how many nodes?"
    case "${2:-}" in
    "") ;;
    --owner) owner=${3:-} ;;
    --owner=*) owner=${2#*=} ;;
    *) die "up: unknown option $2" ;;
    esac
    [ -z "$owner" ] || [ -d "/proc/$owner" ] || die "up: there is no process $owner"
    mkdir -p "$(dirname "$state")"
    (
        # Nobody may sweep while the lock of a new folder is not held yet.
        flock 8
        sweep
        mkdir "$state" 2> /dev/null || die "$state is in use: hosts.sh down"
        mkdir "$state/hosts" "$state/disks" "$state/local"
        local name
        {
            echo "127.0.0.1 localhost"
            for name in head $(seq -f 'node%g' "$count"); do
                mkdir "$state/hosts/$name"
                echo "$(address_of "$name") $name"
            done
        } > "$state/names"
        setsid "$here/keeper.sh" "$owner" 8>&- < /dev/null > "$state/keeper.log" 2>&1 &
        holds_soon test -e "$state/lock.held" || die "the keeper did not start: $(cat "$state/keeper.log")"
    ) 8> "$(dirname "$state")/sweep.lock"
    if ! holds_soon test -e "$state/hosts/head/ready"; then
        cat "$state/keeper.log" >&2
        down
        die "the hosts did not start"
    fi
    for name in $(seq -f 'node%g' "$count"); do boot "$name"; done
}

boot() {
    local name=$1 folder=$state/hosts/$1
    is_node "$name"
    ! is_up "$name" || die "$name is up"
    [ "${2:-}" = --old-disk ] || rm -rf "$state/disks/$name"
    rm -f "$folder"/{process,ready,plugged,dark}
    setsid nsenter --target "$(process_of head)" --pid -- \
        unshare --pid --net --mount --ipc --uts --fork --propagation private /bin/bash "$here/first.sh" "$name" \
        < /dev/null > "$folder/log" 2>&1 &
    holds_soon is_up "$name" || die "$name did not start: $(cat "$folder/log")"
    on_switch ip link delete "port-$name" 2> /dev/null || true
    on_switch ip link add "port-$name" type veth peer name eth0 netns "$(process_of "$name")"
    on_switch ip link set "port-$name" master switch up
    touch "$folder/plugged"
    holds_soon test -e "$folder/ready" || die "$name did not get ready: $(cat "$folder/log")"
    holds_soon answers "$name" || die "$name does not answer over the network"
}

# A process namespace ends with its first process; that process is gone when all others are.
end_host() {
    local pid
    pid=$(process_of "$1")
    kill -KILL "$pid"
    holds_soon test ! -d "/proc/$pid" || die "$1 does not end"
    rm -f "$state/hosts/$1/process"
}

down() {
    [ -d "$state" ] || return 0
    is_state "$state" || die "$state is no state of test hosts: remove it yourself"
    local pid
    if pid=$(first_process head); then kill -KILL "$pid"; fi
    # The keeper removes the folder; without a keeper, this process does.
    if ! holds_soon test ! -d "$state"; then
        flock --nonblock "$state/lock" true || die "the keeper of $state does not end: $(cat "$state/keeper.log")"
        rm -rf "$state"
    fi
}

status() {
    local name
    for folder in "$state"/hosts/*/; do
        name=$(basename "$folder")
        if is_up "$name"; then
            echo "$name up $(address_of "$name") process $(first_process "$name")"
        else
            echo "$name lost"
        fi
    done
}

leftovers() {
    local found=0 process
    say() {
        echo "$1"
        found=1
    }
    [ ! -e "$state" ] || say "folder $state"
    for process in /proc/[0-9]*; do
        # Processes come and go while we look.
        { tr '\0' '\n' < "$process/environ" | grep -Fxc "BIVOUAC_TEST_HOSTS=$state"; } > /dev/null 2>&1 || continue
        [ "$(readlink "$process/ns/net")" != "$(readlink /proc/self/ns/net)" ] || continue
        say "process ${process#/proc/}: $(tr '\0' ' ' < "$process/cmdline")"
    done
    if grep -F " $state" /proc/self/mounts; then say "mounts (above)"; fi
    if ip -brief link | grep -E '^(switch|port-)'; then say "network interfaces (above)"; fi
    return "$found"
}

run_on() {
    local name=$1 pid
    shift
    is_known "$name"
    pid=$(process_of "$name")
    # shellcheck source=tests/hosts/mpi.env
    . "$here/mpi.env"
    enter_one_group
    # shellcheck disable=SC2016 # The inner shell expands them.
    exec nsenter --target "$pid" --mount --uts --ipc --net --pid -- /bin/bash -c '
        cd "$0" 2> /dev/null || cd /
        exec "$@"' "$PWD" "$@"
}

command=${1:-}
[ $# -eq 0 ] || shift
case "$command" in
up) up "$@" ;;
exec) [ $# -ge 2 ] || die "exec: which host, which command?" && run_on "$@" ;;
kill) is_node "${1:-}" && end_host "$1" ;;
poweroff)
    is_node "${1:-}"
    touch "$state/hosts/$1/dark"
    on_switch ip link set "port-$1" down
    end_host "$1"
    ;;
cut) is_node "${1:-}" && on_switch ip link set "port-$1" down ;;
heal)
    is_node "${1:-}"
    on_switch ip link set "port-$1" up
    # Neighbours need a second to forget that the host was absent.
    holds_soon answers "$1" || die "$1 does not answer over the network"
    ;;
# Process -1 stands for all processes of the host but its first one.
freeze) is_node "${1:-}" && run_on "$1" /bin/kill -STOP -- -1 ;;
thaw) is_node "${1:-}" && run_on "$1" /bin/kill -CONT -- -1 ;;
boot) boot "${1:-}" "${2:-}" ;;
status) status ;;
down) down ;;
leftovers) leftovers ;;
can) can ;;
--help | -h) usage ;;
*)
    usage >&2
    exit 2
    ;;
esac
