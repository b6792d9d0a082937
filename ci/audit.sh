#!/usr/bin/env bash
# Nothing binary and nothing larger than 1 MiB is tracked. The golden fixtures of the format, which are binary by
# nature, may be, up to 64 KiB each.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! git rev-parse --is-inside-work-tree > /dev/null 2>&1; then
    echo "no git work tree: nothing to audit"
    exit 0
fi

complaints=0
complain() {
    echo "$1" >&2
    complaints=$((complaints + 1))
}

while IFS= read -r -d '' file; do
    [ -f "$file" ] || continue
    bytes=$(stat -c %s "$file")
    case "$file" in
    tests/golden/*) [ "$bytes" -le 65536 ] || complain "$file: $bytes bytes; a fixture may have 64 KiB" ;;
    *)
        [ "$bytes" -le 1048576 ] || complain "$file: $bytes bytes; 1 MiB is the most"
        # A file that grep takes for text, or an empty one.
        [ "$bytes" -eq 0 ] || LC_ALL=C grep -qI '' "$file" || complain "$file: binary"
        ;;
    esac
done < <(git ls-files -z)
[ "$complaints" -eq 0 ]
