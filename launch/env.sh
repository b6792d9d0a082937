# Sourced by the scripts of launch/ and ci/: finds cargo, and makes mpirun start more ranks than there are cores, also
# as root (in containers). Sets the array `mpirun_command`; MPIRUN names another mpirun. Settings that the caller's
# environment already has stay as they are.

if ! command -v cargo > /dev/null && [ -x "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"
    export PATH
fi

mpirun_command=("${MPIRUN:-mpirun}")
case "$("${mpirun_command[0]}" --version 2> /dev/null | head -n 2)" in
*"Open MPI"* | *OpenRTE* | *PRRTE*)
    mpirun_command+=(--oversubscribe)
    # Open MPI refuses root and too many ranks unless told otherwise. The first two serve mpirun itself, the next
    # two a program that calls mpirun without our options (Open MPI 4, then 5).
    export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}"
    export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"
    export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"
    export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"
    # With more ranks than cores a rank that waits must let the others run.
    export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
    export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy:-none}"
    # Containers often forbid reading another process's memory; the copy through shared memory always works.
    export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
    ;;
esac
