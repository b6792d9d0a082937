# shellcheck shell=bash disable=SC2034,SC2154
# Sourced: the addresses of the hosts. They are private to each set of hosts, so every set uses the same ones.

network=10.77.0
address_of() {
    if [ "$1" = head ]; then echo "$network.254"; else echo "$network.${1#node}"; fi
}
