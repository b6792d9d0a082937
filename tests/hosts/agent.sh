#!/usr/bin/env bash
# agent.sh HOST COMMAND...: replaces ssh on the `head` of a set of test hosts. Starts the command on the host with a bare
# environment, provided that the host answers over the network. mpirun uses it as its remote shell.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/hosts/names.sh
. "$here/names.sh"
while [ "${1#-}" != "$1" ]; do shift; done # ssh's options
host=$1
shift
folder=$BIVOUAC_TEST_HOSTS/hosts/$host
lost() {
    echo "agent: no answer from host $host" >&2
    exit 255
}
ping -c 1 -W 1 -q "$(address_of "$host")" > /dev/null 2>&1 || lost
read -r _ pid _ 2> /dev/null < "$folder/process" || lost
status=0
# In a separate session: a signal to this process or its group ends nothing over there.
nsenter --target "$pid" --mount --uts --ipc --net --pid -- setsid --fork --wait \
    /usr/bin/env --ignore-environment PATH="$PATH" HOME="${HOME:-/root}" TMPDIR=/run/tmp BIVOUAC_TEST_HOSTS="$BIVOUAC_TEST_HOSTS" \
    /bin/sh -c "$*" || status=$?
# A host without power does not close the connection, so nobody may learn of its end through this process.
if [ "$status" -ne 0 ] && [ -e "$folder/dark" ]; then
    exec setpriv --pdeathsig KILL sleep infinity
fi
exit "$status"
