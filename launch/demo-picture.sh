# What the demos end with, to be sourced: pictures of the plate. `shown` is the folder that keeps them, and `bivouac` the command.

# picture DIRECTORY FILE: draws the plate as it is in the newest checkpoint in this global directory. A run that was killed may have no
# checkpoint there yet, or may have it in an object store only.
picture() {
    local folder said="there is no complete checkpoint in $1"
    [ -x "$bivouac" ] || return 0
    mkdir -p "$shown"
    # The newest checkpoint may be incomplete.
    for folder in $(ls -dr "$1"/*/world/heat/g* 2> /dev/null || true); do
        if said=$("$bivouac" extract "$folder" temperature --picture -o "$shown/$2" 2>&1); then
            echo "   The plate in version $(basename "$folder" | sed 's/.*-v0*\([0-9]*\)-.*/\1/'): $shown/$2"
            return 0
        fi
    done
    echo "   There is no picture of the plate: $said"
    return 1
}
