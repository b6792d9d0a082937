# shellcheck shell=bash
# Sourced: waiting in scripts.

# Fails unless a condition (a command) holds within the time that tests wait for one thing (tests/common/limit.rs).
holds_soon() {
    local end=$((SECONDS + 180))
    while ! "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.02
    done
}
