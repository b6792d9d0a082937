#!/usr/bin/env bash
# Shows that a simulation survives the loss of all its nodes with nothing but an object store: sets up, builds, starts a
# server that speaks S3 on this machine, and does with it what launch/demo.sh does with directories: the killed run continues
# from the bucket alone.
set -euo pipefail

usage() {
    cat << 'END'
launch/demo-object.sh [--ranks N] [--keep] [--help]
  --ranks N   ranks to start (default 4)
  --keep      keep the demo's directory and the bucket, and say where they are
END
}
case " $* " in *" --help "* | *" -h "*) usage && exit 0 ;; esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/ci/setup.sh" --with-object-store
. "$root/launch/env.sh"
target=${CARGO_TARGET_DIR:-$root/target}
server=$target/tools/bin/s3s-fs
[ -x "$server" ] || { echo "no server: $server (ci/setup.sh --with-object-store says why)" >&2 && exit 1; }

# HEAT2D names a program that has already been built, with the feature object-store.
heat2d=${HEAT2D:-}
if [ -z "$heat2d" ]; then
    echo "Building (about six minutes on two cores, the first time) ..."
    (cd "$root" && cargo build --release --locked --features object-store --example heat2d)
    heat2d=$target/release/examples/heat2d
fi

bucket=$(mktemp -d "${TMPDIR:-/tmp}/bivouac-bucket.XXXXXX")
settings=$bucket/settings.sh
mkdir "$bucket/demo"
served=
clean_up() {
    if [ -n "$served" ]; then
        kill "$served" 2> /dev/null || true
        wait "$served" 2> /dev/null || true
    fi
    case " $* " in *" --keep "*) echo "Kept: $bucket/demo" ;; *) rm -rf "$bucket" ;; esac
}
trap 'clean_up "$@"' EXIT
trap 'exit 130' INT TERM HUP

# The words below are not secrets: the server lives as long as this script, and answers this machine only.
export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-demo-demo AWS_REGION=us-east-1 NO_PROXY=127.0.0.1
# A port that nobody uses. Somebody may take it between this look and the server's start; then another one is tried.
for attempt in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 20000))
    "$server" --host 127.0.0.1 --port "$port" --access-key "$AWS_ACCESS_KEY_ID" --secret-key "$AWS_SECRET_ACCESS_KEY" \
        "$bucket" > "$bucket/server.log" 2>&1 &
    served=$!
    for _ in $(seq 100); do
        if ! kill -0 "$served" 2> /dev/null; then break; fi
        if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then break 2; fi
        sleep 0.05
    done
    wait "$served" || true
    served=
done
[ -n "$served" ] || { cat "$bucket/server.log" >&2 && echo "the server did not start" >&2 && exit 1; }
echo "An object store on port $port of this machine; the bucket is \"demo\"."

cat > "$settings" << END
export BIVOUAC_LOCAL_ENABLED=false BIVOUAC_GLOBAL_ENABLED=false
export BIVOUAC_OBJECT_URL=s3://demo/runs BIVOUAC_OBJECT_ENDPOINT=http://127.0.0.1:$port BIVOUAC_OBJECT_REQUIRED=true
END
HEAT2D=$heat2d DEMO_SETTINGS=$settings DEMO_LOSES_NODES=yes DEMO_CHECKPOINTS=${DEMO_CHECKPOINTS:-16} \
    "$root/launch/demo.sh" "$@"
objects=$(find "$bucket/demo" -name '*.bvc' | wc -l)
echo "The bucket has $objects containers: $(du -sh "$bucket/demo" | cut -f1)."
