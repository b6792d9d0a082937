#!/bin/bash
# A simulation with Bivouac under Flux. Copy this file, change the lines marked 1 and 2, and run `flux batch job.flux`.
# Tested with scripts that imitate Flux, not with Flux itself. launch/README.md explains the settings.

# 1. Name, time, nodes (those that compute and the spare):
# flux: --job-name=heat
# flux: --time-limit=12h
# flux: --nodes=5
# flux: --exclusive

# 2. The program, its ranks on each node, and this file, which the job submits again (Flux runs a copy):
# (If it does not call should_exit in each step, HANG_TIMEOUT must exceed the time between two checkpoints. For VELOC's interface,
# docs/VELOC.md says which lines below to delete.)
program=(./heat2d --steps 1000000 --every 1000)
per_node=${RANKS_PER_NODE:-2}
name=${NAME:-heat}
script=${SCRIPT:-$PWD/job.flux}

spares=${SPARES:-1}
# The numbers of ranks with which the program can run, such as 4..8/2: without a spare, the job continues with fewer.
elastic=(${RANKS_ALLOWED:+--ranks "$RANKS_ALLOWED"})

# The name ties a run to its checkpoints.
export BIVOUAC_JOB_NAME="$name"
if [ -z "${BIVOUAC_CONFIG:-}" ]; then
    export BIVOUAC_GLOBAL_DIRECTORY="${BIVOUAC_GLOBAL_DIRECTORY:-$PWD/bivouac}"
fi
export BIVOUAC_REDUNDANCY_SCHEME="${BIVOUAC_REDUNDANCY_SCHEME:-partner(1)}"

nodes=$(flux resource list --no-header --format '{nnodes}' --states all)
launch=(flux run -n "$(((nodes - spares) * per_node))")

# Flux does not requeue a job: the next one is submitted to the instance that this job belongs to, and waits for this one to
# end.
next="flux --parent batch --dependency=afterany:$(flux getattr jobid) $(printf %q "$script")"

run_directory=$PWD/bivouac-run/$name
count_attempts() { cat "$run_directory/attempts.jsonl" 2> /dev/null | wc -l; }
attempts=$(count_attempts)
bivouac run --run-directory "$run_directory" --spares "$spares" "${elastic[@]}" --hang-timeout "${HANG_TIMEOUT:-10min}" \
    --reserve "${RESERVE:-60s}" --requeue="$next" -- "${launch[@]}" "${program[@]}" &
supervisor=$!
# flux cancel
trap 'kill -TERM "$supervisor" 2> /dev/null' TERM HUP
while kill -0 "$supervisor" 2> /dev/null; do wait "$supervisor"; done
wait "$supervisor"
status=$?

# Too few nodes are left: save what they hold, and continue in another job. If there were too few for a first attempt, the next
# job would be no better.
if [ "$status" -eq 13 ] && [ "$(count_attempts)" -gt "$attempts" ]; then
    trap '' TERM HUP
    timeout "${DRAIN_TIMEOUT:-600}" flux exec --noinput --label-io bivouac drain ||
        echo "bivouac drain failed on at least one node (exit status $?)" >&2
    eval "$next"
fi
exit "$status"
