#!/bin/busybox sh
# shellcheck shell=dash
# The first process of the machine: mounts what it was given, runs the command, leaves its status, and ends the machine.
# /modules/order names the kernel's modules, each after those that it needs.

b=/bin/busybox
fail() {
    echo "first.sh: $*" > /dev/console
    $b sleep 1
    $b reboot -f
}

$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# Nothing but the tests moves pages: the kernel's thread that makes huge pages of small ones sleeps.
echo 4000000000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
for module in $($b cat /modules/order); do
    $b insmod "/modules/$module.ko" || echo "first.sh: no module $module" > /dev/console
done

plan9() {
    turns=0
    # The device may not be there yet.
    until $b mount -t 9p -o "$3,trans=virtio,version=9p2000.L,msize=524288,access=any" "$1" "$2" 2> /dev/null; do
        turns=$((turns + 1))
        [ "$turns" -lt 200 ] || fail "cannot mount $1 on $2"
        $b usleep 10000
    done
}
plan9 host /lower ro,cache=loose
$b mount -t tmpfs -o mode=755 layer /layer
$b mkdir /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work root /new || fail "cannot mount the root"
for folder in proc sys dev run tmp; do $b mkdir -p "/new/$folder"; done
for folder in proc sys dev; do $b mount --move "/$folder" "/new/$folder"; done
$b mount -t tmpfs -o mode=755 run /new/run
$b mkdir -p /new/dev/pts /new/dev/shm
$b mount -t devpts -o mode=600,ptmxmode=666 pts /new/dev/pts
$b mount -t tmpfs -o mode=1777 shm /new/dev/shm
$b ln -s /proc/self/fd /new/dev/fd
for pair in 0:stdin 1:stdout 2:stderr; do $b ln -s "fd/${pair%%:*}" "/new/dev/${pair#*:}"; done

run=$($b sed -n 's/.*bivouac\.run=\([^ ]*\).*/\1/p' /new/proc/cmdline)
$b mkdir -p "/new$run"
plan9 run "/new$run" rw,cache=none
[ -f "/new$run/command" ] || fail "no command in $run"
index=0
while read -r folder; do
    $b mkdir -p "/new$folder"
    plan9 "share$index" "/new$folder" rw,cache=mmap
    index=$((index + 1))
done < "/new$run/shares"
$b hostname numa-machine
$b ip link set lo up

$b setsid $b chroot /new /bin/bash "$run/command" < /dev/null > "/new$run/out" 2> "/new$run/err"
status=$?
$b sync
echo "$status" > "/new$run/status"
# QEMU's device for that ends it at once; a reboot takes longer.
printf '\020' | $b dd of=/new/dev/port bs=1 seek=1281 2> /dev/null
$b reboot -f
