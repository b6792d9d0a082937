#!/usr/bin/env bash
# first.sh NAME: the first process of a host, in its fresh namespaces. It ends with the host, and the host ends with it.
set -euo pipefail

name=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$BIVOUAC_TEST_HOSTS
folder=$state/hosts/$name
# shellcheck source=tests/hosts/names.sh
. "$here/names.sh"

hostname "$name"

# A private file in place of each that must differ between hosts and boots.
echo "$name" > "$folder/hostname"
cat /proc/sys/kernel/random/uuid > "$folder/boot_id"
mkdir -p "$state/disks/$name"

# The machine's /proc is still in place: it shows this process's number outside, and in the head's process namespace.
read -r pid _ < /proc/self/stat
while read -r key _ inner _; do [ "$key" != NSpid: ] || break; done < /proc/self/status
echo "$pid $inner $(readlink /proc/self/ns/net)" > "$folder/process.new"

mount -t proc proc /proc
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o "size=${BIVOUAC_TEST_SHM:-512m},mode=1777" memory /dev/shm
mount -t tmpfs -o size=256m,mode=755 run /run
mkdir -m 1777 /run/tmp
mount --bind "$state/names" /etc/hosts
[ ! -e /etc/hostname ] || mount --bind "$folder/hostname" /etc/hostname
mount --bind "$state/disks/$name" "$state/local"
ip link set lo up

if [ "$name" = head ]; then
    ip link add switch type bridge stp_state 0 forward_delay 0
    ip address add "$(address_of head)/24" dev switch
    ip link set switch up
    mv "$folder/process.new" "$folder/process"
else
    mv "$folder/process.new" "$folder/process"
    until [ -e "$folder/plugged" ]; do sleep 0.01; done
    # The same network card as before: the neighbours remember it.
    ip link set eth0 address "$(printf '02:00:0a:4d:00:%02x' "${name#node}")"
    ip address add "$(address_of "$name")/24" dev eth0
    ip link set eth0 up
fi
touch "$folder/ready"

# Waiting also reaps orphans.
set +e
while :; do
    sleep 3600 &
    wait
done
