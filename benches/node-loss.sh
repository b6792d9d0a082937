#!/usr/bin/env bash
# From the death of a host to the first new step of the simulation, and the parts of that time:
#   benches/node-loss.sh [--out NAME] [--grid NXxNY]
#
# For each scheme and kind of death: heat2d with 128 MiB per rank on four test hosts with two ranks each and a spare one,
# under `bivouac run`; a host dies once a checkpoint is protected. Needs root (tests/hosts/hosts.sh) and 10 GiB of memory.
# The results go to benches/results/NAME.jsonl (default: node-loss), one JSON object a run, after a line about the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
. launch/env.sh
out=node-loss grid=11586x11586
while [ $# -gt 0 ]; do
    case "$1" in
    --out) out=$2 && shift 2 ;;
    --grid) grid=$2 && shift 2 ;;
    *) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//' && exit 0 ;;
    esac
done
cargo build --quiet --release --locked --example heat2d --bin bivouac
PATH=${CARGO_TARGET_DIR:-$root/target}/release/examples:${CARGO_TARGET_DIR:-$root/target}/release:$PATH
for variable in "${!BIVOUAC_@}"; do unset "$variable"; done
work=$(mktemp -d)
export BIVOUAC_TEST_HOSTS="$work/hosts/bench" BIVOUAC_CONFIG="$work/bivouac.toml"
hosts=$root/tests/hosts/hosts.sh
export BIVOUAC_TEST_SHM=2g
trap '"$hosts" down; rm -rf "$work"' EXIT

measure() {
    local scheme=$1 death=$2 supervisor died
    rm -rf "${work:?}/run" "$work/global" "$work/log"
    cat > "$BIVOUAC_CONFIG" << END
[job]
name = "bench"
[redundancy]
scheme = "$scheme"
[memory]
budget = "2 GiB"
[local]
enabled = false
[global]
directory = "$work/global"
every = 1000000
END
    "$hosts" up 5 --owner $$
    "$hosts" exec head bivouac run --hosts 'node[1-5]:2' --spares 1 --probe-timeout 2s --run-directory "$work/run" -- \
        mpirun -x BIVOUAC_CONFIG -x PATH -n 8 heat2d --grid "$grid" --steps 60 --every 6 --wait node-loss \
        --dir "$work/global" > "$work/log" 2>&1 < /dev/null &
    supervisor=$!
    until grep -q "^committed version=18 level=node-loss" "$work/log"; do
        kill -0 "$supervisor" || { cat "$work/log" >&2 && exit 1; }
        sleep 0.01
    done
    died=$(date +%s.%N)
    "$hosts" "$death" node3
    # The rest of the simulation is of no interest.
    until grep -q '"attempt":2,"event":"first-step"' "$work/run/timeline.jsonl"; do
        kill -0 "$supervisor" || { cat "$work/log" >&2 && exit 1; }
        sleep 0.05
    done
    awk -v died="$died" -v scheme="$scheme" -v death="$death" '
        { match($0, /"unix":[0-9.]+/); unix = substr($0, RSTART + 7, RLENGTH - 7)
          match($0, /"event":"[^"]+/); event = substr($0, RSTART + 9, RLENGTH - 9)
          if (unix + 0 > died + 0 && !(event in at)) { at[event] = unix; line[event] = $0 } }
        END {
            match(line["restored"], /in [0-9.]+ s/); all = substr(line["restored"], RSTART + 3, RLENGTH - 5)
            match(line["restored"], /, [0-9.]+ s of it/); elect = substr(line["restored"], RSTART + 2, RLENGTH - 10)
            printf "{\"figure\": \"node-loss\", \"scheme\": \"%s\", \"death\": \"%s\", \"detect_s\": %.3f, \"decide_s\": %.3f, ", scheme, death, at["ended"] - died, at["launched"] - at["ended"]
            printf "\"launch_s\": %.3f, \"elect_s\": %.3f, \"rebuild_and_load_s\": %.3f, ", at["restored"] - all - at["launched"], elect, all - elect
            printf "\"first_step_s\": %.3f, \"total_s\": %.3f}\n", at["first-step"] - at["restored"], at["first-step"] - died
        }' "$work/run/timeline.jsonl"
    kill "$supervisor"
    "$hosts" down
    wait "$supervisor" || true
}

model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u)
{
    printf '{"machine": "%s, %s CPUs, %s", "command": "benches/node-loss.sh --grid %s"}\n' "$model" "$(nproc)" "$(uname -r)" "$grid"
    for scheme in 'partner(1)' 'xor(4)' 'rs(2,2)'; do
        measure "$scheme" kill
        measure "$scheme" poweroff
    done
} | tee "benches/results/$out.jsonl"
