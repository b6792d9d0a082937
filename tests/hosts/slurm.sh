#!/usr/bin/env bash
# A real SLURM on the test hosts (hosts.sh): slurmctld on head, slurmd on each node, munge everywhere.
#
#   slurm.sh up             configures and starts it on all nodes; returns when they are idle
#   slurm.sh node HOST      starts the daemons of a node that was booted again
#   slurm.sh run COMMAND    runs a SLURM command on head
#   slurm.sh hurry JOB      starts a requeued job now that SLURM's own rule holds back for two minutes
#   slurm.sh can            ends with status 0 if SLURM is installed, and otherwise says what is missing
#
# Its files are in $BIVOUAC_TEST_HOSTS/slurm; the daemons end with their hosts.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export BIVOUAC_TEST_HOSTS="${BIVOUAC_TEST_HOSTS:-/tmp/bivouac-hosts/default}"
folder=$BIVOUAC_TEST_HOSTS/slurm
export SLURM_CONF="$folder/slurm.conf"
PATH=$PATH:/usr/sbin
hosts=$here/hosts.sh
# shellcheck source=tests/hosts/until.sh
. "$here/until.sh"

die() {
    echo "slurm.sh: $*" >&2
    exit 1
}

can() {
    local program status=0
    for program in slurmctld slurmd munged sbatch srun scontrol sinfo; do
        if ! command -v "$program" > /dev/null; then
            echo "missing: the command $program (ci/setup.sh --with-tests)"
            status=1
        fi
    done
    return "$status"
}

nodes() { find "$BIVOUAC_TEST_HOSTS/hosts" -mindepth 1 -maxdepth 1 -name 'node*' | wc -l; }

configure() {
    # Without cgroups (containers), accounting, and services of the machine. More CPUs than the machine has are fine.
    cat << END
ClusterName=test
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=node[1-$(nodes)] CPUs=2 RealMemory=1000 State=UNKNOWN
# An hour for each job that does not ask for less: the limit is that of the hosts (LIFETIME in bed.rs). A job in "urgent" takes
# the nodes of jobs in "work", which have a minute between the warning and the end.
PartitionName=work Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
# A lost node is noticed in seconds, not minutes, and a slow one is not taken for lost; jobs start and end at once.
SlurmdTimeout=12
SlurmctldTimeout=12
MessageTimeout=10
TCPTimeout=2
BatchStartTimeout=60
KillWait=2
CompleteWait=0
TreeWidth=64
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=1,bf_interval=1
MinJobAge=600
END
}

# daemon HOST NAME COMMAND...: starts it in the background of the host.
daemon() {
    local host=$1 name=$2
    shift 2
    "$hosts" exec "$host" setsid --fork "$@" < /dev/null >> "$folder/$name-$host.out" 2>&1
}

munge_on() {
    "$hosts" exec "$1" mkdir --parents --mode=755 /run/munge
    daemon "$1" munged "$(command -v munged)" --foreground --num-threads=1 --key-file="$folder/munge.key" \
        --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid --log-file=/run/munge/munged.log \
        --seed-file=/run/munge/munged.seed
    holds_soon "$hosts" exec "$1" test -S /run/munge/munge.socket.2 || die "munged does not start on $1"
}

node() {
    munge_on "$1"
    "$hosts" exec "$1" mkdir --parents /run/slurmd
    daemon "$1" slurmd "$(command -v slurmd)" -D -N "$1"
}

all_idle() {
    [ "$("$hosts" exec head sinfo --noheader --partition=work --states=idle --format=%D 2> /dev/null || true)" = "$(nodes)" ]
}

up() {
    local reason
    reason=$(can) || die "$reason"
    mkdir -p "$folder/state"
    (
        umask 077
        dd if=/dev/urandom of="$folder/munge.key" bs=128 count=1 status=none
    )
    configure > "$SLURM_CONF"
    # slurmd loads these two plugins although nothing here uses them.
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$folder/cgroup.conf"
    # Per host: folders of one job on two nodes must not collide in the common /tmp.
    echo 'PMIxCliTmpDirBase=/run/tmp' > "$folder/mpi.conf"
    munge_on head
    daemon head slurmctld "$(command -v slurmctld)" -D -c
    local name
    for name in $(seq -f 'node%g' "$(nodes)"); do node "$name" & done
    wait
    holds_soon all_idle || die "not all nodes are idle:
$("$hosts" exec head sinfo --Node --long 2>&1)
$(tail -n 5 "$folder"/*.log 2>&1)"
}

hurry() {
    # Credentials are revoked by the second: a start within the same second would count as one of the job's former life.
    sleep 2
    "$hosts" exec head scontrol update "jobid=$1" StartTime=now
}

command=${1:-}
[ $# -eq 0 ] || shift
case "$command" in
up) up ;;
node) node "${1:?which host?}" ;;
run) exec "$hosts" exec head "$@" ;;
hurry) hurry "${1:?which job?}" ;;
can) can ;;
*)
    sed -n '4,8s/^# \{0,3\}//p' "${BASH_SOURCE[0]}" >&2
    [ "$command" = --help ] || exit 2
    ;;
esac
