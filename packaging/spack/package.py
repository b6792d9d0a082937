# Not tried: Spack was not available where this was written. The commands are those of ci/install.sh, which is tested.
from spack.package import *


class Bivouac(Package):
    """Collective checkpoint and restart for MPI simulations on CPUs and GPUs."""

    # The folder with the archive of ci/release.sh, and its checksum, which is next to it: for now, a site's mirror.
    url = "file:///opt/archives/bivouac-0.1.0.tar.xz"

    license("MIT OR Apache-2.0")

    version("0.1.0", sha256="0" * 64)

    variant("cuda", default=True, description="GPU memory; the driver is found when a program runs")
    variant("numa", default=True, description="Pages and threads of NUMA nodes")
    variant("fortran", default=True, description="The Fortran module")

    depends_on("c", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("rust@1.90:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("hwloc@2.8:")
    depends_on("numactl", when="+numa")

    def install(self, spec, prefix):
        features = ["mpi", "hwloc"] + [name for name in ("cuda", "numa") if spec.satisfies(f"+{name}")]
        env["MPICC"] = spec["mpi"].mpicc
        env["MPIFC"] = spec["mpi"].mpifc if spec.satisfies("+fortran") else "none"
        # Cargo's own files belong to the stage.
        env["CARGO_HOME"] = join_path(self.stage.path, "cargo")
        Executable("ci/install.sh")(prefix, "--features", ",".join(features))

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.share.bivouac.python)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def a_killed_program_continues(self):
        """Takes a checkpoint on two ranks, kills them, and restarts from it."""
        with working_dir("spack-test", create=True):
            mpicc = Executable(self.spec["mpi"].mpicc)
            source = join_path(self.stage.source_path, "packaging", "spack", "killed.c")
            mpicc(source, f"-I{self.prefix.include}", f"-L{self.prefix.lib}", f"-Wl,-rpath,{self.prefix.lib}", "-lbivouac", "-o", "killed")
            mpirun = which("mpirun", "mpiexec", "srun")
            mpirun("-n", "2", "./killed", fail_on_error=False)
            output = mpirun("-n", "2", "./killed", output=str)
            assert "version 3, state good" in output, output
