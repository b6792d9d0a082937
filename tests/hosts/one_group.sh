# shellcheck shell=bash
# Sourced: puts this shell, and all that it starts, into one group of the scheduler.
#
# Linux makes a group of each session (setsid) and divides the processors between groups. Linux 6.18 lets such groups wait for each
# other: of four test hosts whose ranks compute on two cores, some received no time at all for 5 to 35 s. In one group, nobody
# waits longer than some milliseconds. If a container or a batch system has put us into a group, that group is kept.

one_group=
enter_one_group() {
    local root
    # The older hierarchy of control groups, with one tree for each resource; then the newer one.
    if grep -qE '^[0-9]+:([a-z_,]+,)?cpu(,[a-z_,]+)?:/$' /proc/self/cgroup; then
        root=$(awk '$3 == "cgroup" && $4 ~ /(^|,)cpu(,|$)/ { print $2; exit }' /proc/self/mounts)
    elif grep -qx '0::/' /proc/self/cgroup; then
        root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
        grep -qw cpu "$root/cgroup.subtree_control" 2> /dev/null || return 0
    fi
    [ -n "${root:-}" ] || return 0
    mkdir -p "$root/bivouac-tests" 2> /dev/null || return 0
    echo 0 2> /dev/null > "$root/bivouac-tests/cgroup.procs" || return 0
    one_group=$root
}

# The last one to leave removes it.
leave_one_group() {
    [ -n "$one_group" ] || return 0
    echo 0 2> /dev/null > "$one_group/cgroup.procs" || true
    rmdir "$one_group/bivouac-tests" 2> /dev/null || true
}
