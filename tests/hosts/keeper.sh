#!/usr/bin/env bash
# keeper.sh OWNER: starts `head`, waits until it or the process OWNER (if one is named) ends, and removes everything.
# While it lives, it holds the lock of the state's folder. If it is killed itself, the kernel ends the hosts, and the
# next `hosts.sh up` removes the folder.
set -euo pipefail

owner=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$BIVOUAC_TEST_HOSTS

# shellcheck source=tests/hosts/one_group.sh
. "$here/one_group.sh"
enter_one_group
exec 9> "$state/lock"
flock --nonblock 9
touch "$state/lock.held"
setpriv --pdeathsig KILL unshare --pid --kill-child --net --mount --ipc --uts --fork --propagation private \
    /bin/bash "$here/first.sh" head 9>&- &
if [ -n "$owner" ]; then
    setpriv --pdeathsig KILL tail --pid="$owner" --sleep-interval=0.2 --follow /dev/null 9>&- &
fi
wait -n || true
# `unshare` takes its child with it, and the child takes all other processes of all hosts.
mapfile -t left < <(jobs -p)
kill -KILL "${left[@]}" 2> /dev/null || true
wait || true
# Processes of lost hosts are gone before their namespace is; files may still be closing.
for _ in 1 2 3 4 5; do
    rm -rf "$state" && break
    sleep 0.1
done
leave_one_group
