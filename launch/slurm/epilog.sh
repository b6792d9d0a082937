#!/bin/bash
# For administrators: a piece of SLURM's Epilog, which runs as root on each node when a job leaves it. It brings what a dead
# job has left in the node's memory to the owner's global directory, and then removes it. Call it from your Epilog, or name it
# there (slurm.conf: Epilog=/etc/slurm/epilog.sh), and set the site's convention in the next line.
global=${EPILOG_GLOBAL:-/scratch/${SLURM_JOB_USER:?this is for the Epilog of SLURM}/bivouac}

as_owner() { timeout "${EPILOG_TIMEOUT:-300}" runuser -u "$SLURM_JOB_USER" -- "$@" > /dev/null 2>&1; }
# Root may not see the directory: many file systems give root the rights of nobody.
if compgen -G '/dev/shm/bivouac-*' > /dev/null && as_owner test -d "$global"; then
    # The nodes of a job do this at about the same time: a checkpoint is safe when all have brought their shards.
    as_owner bivouac drain --global "$global" --wait "${EPILOG_WAIT:-60s}"
    as_owner bivouac clean --all-dead --yes --global "$global"
fi
# An Epilog that fails takes its node out of service: nothing here is worth that.
exit 0
