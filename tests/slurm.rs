//! Jobs whose hosts are lost, under a real SLURM on the test hosts: slurmctld, a slurmd on each node, and jobs submitted with sbatch.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

#[path = "hosts/bed.rs"]
mod bed;
#[path = "hosts/checks.rs"]
mod checks;
mod common;
#[path = "hosts/slurm.rs"]
mod slurm;

use bed::{Hosts, Job, RANKS, example, seconds};
use checks::{calm_digest, check_sources, protected, restored_by_all};
use slurm::{Batch, Slurm, copy_of_template};
use std::fs;

/// A job script without a supervisor, as users have anyway.
fn script(job: &Job, launcher: &str, program: &[&str]) -> String {
    let path = job.path("job.sh");
    let words: Vec<String> = program.iter().map(|word| format!("'{word}'")).collect();
    fs::write(&path, format!("#!/bin/bash\necho STARTED on $SLURM_JOB_NODELIST\n{launcher} {}\n", words.join(" ")))
        .unwrap();
    path
}

fn digest(out: &str) -> &str {
    let digests: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("digest ")).collect();
    assert_eq!(digests.len(), 1, "{out}");
    digests[0]
}

#[test]
fn a_job_runs_under_mpirun_and_goes_on_under_srun() {
    let Some(slurm) = Slurm::up(4) else { return };
    let job = Job::new(&slurm.hosts, "both");
    let wide = ["--nodes=4", "--ntasks-per-node=2"];
    let heat = |steps: &'static str| {
        [&example("heat2d")[..], "--grid", "96x96", "--every", "50", "--steps", steps].map(str::to_owned)
    };
    let run = |launcher: &str, steps| {
        let program = heat(steps);
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        slurm.submit(&job, &wide, &[&script(&job, launcher, &program)]).finish()
    };
    digest(&run("mpirun", "200"));
    let second = run("srun --mpi=pmix", "300");
    assert!(second.contains("restored version=200 "), "{second}");

    let calm = Job::new(&slurm.hosts, "calm");
    let program = heat("300");
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let calm = slurm.submit(&calm, &wide, &[&script(&calm, "mpirun", &program)]).finish();
    assert_eq!(digest(&second), digest(&calm));
}

/// The simple method of `launch/slurm/README.md`: each job waits for the failure of the one before it.
#[test]
fn a_chain_of_jobs_goes_on_after_a_host_was_lost_and_ends_with_the_first_success() {
    let Some(slurm) = Slurm::up(5) else { return };
    let job = Job::new(&slurm.hosts, "chain");
    let worker = job.worker(&["--versions", "12", "--hold", "8", "--wait", "system"]);
    let worker: Vec<&str> = worker.iter().map(String::as_str).collect();
    let script = script(&job, "mpirun", &worker);
    let wide = ["--nodes=4", "--ntasks-per-node=2", "--no-requeue", "--kill-on-invalid-dep=yes"];
    let after = |before: &Batch| format!("--dependency=afternotok:{}", before.id);
    let first = slurm.submit(&job, &wide, &[&script]);
    let second = slurm.submit(&job, &[&wide[..], &[&after(&first)]].concat(), &[&script]);
    let third = slurm.submit(&job, &[&wide[..], &[&after(&second)]].concat(), &[&script]);

    let hold = "hold version=8".to_owned();
    first.wait_until(&hold, || (0..RANKS).all(|rank| job.log(rank).lines().any(|line| line == hold)));
    slurm.hosts.power_off("node3");
    // An administrator, or a health check at the site, notices this sooner than SLURM's own time-out.
    slurm.run(&["scontrol", "update", "nodename=node3", "state=down", "reason=lost"]);
    job.go(8);
    assert_ne!(first.end(), "COMPLETED");
    second.finish();
    assert!(!second.field("NodeList").contains("node[1-4]"), "it ran on the lost host");
    assert_eq!(third.end(), "CANCELLED");
    for attempt in job.last_attempts() {
        assert_eq!(attempt.restored().version, 7);
        assert!(attempt.is_whole(), "{attempt:#?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The template

fn a_host_dies_under(launcher: &str) {
    let Some(slurm) = Slurm::up(5) else { return };
    let mut job = protected(&slurm.hosts, "xor(4)");
    job.set_launcher("LAUNCHER", launcher);
    // Ranks ask each other's nodes for each address, which they otherwise do only if a message is early. They ask after all ranks have
    // published their addresses. With pmix_base_async_modex as well, Open MPI's start fails on a slow machine, because it does not wait for
    // a rank that has published only a part.
    job.set_launcher("OMPI_MCA_pmix_base_collect_data", "0");
    let worker = job.worker(&["--versions", "20", "--hold", "8", "--wait", "node-loss"]);
    let script = copy_of_template(&job, "--job-name=protected --nodes=5 --ntasks-per-node=2", &worker);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_until("all ranks hold", || (0..RANKS).all(|rank| job.log(rank).contains("hold version=8")));
    slurm.hosts.power_off("node3");
    job.go(8);
    batch.finish();
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (7, 1));
    // Open MPI under SLURM numbers its ranks in the order of the allocation, so ranks of other hosts move as well.
    check_sources(&last);
    assert!((4..6).all(|rank| last[rank].restart_counter("restored_bytes.peers") > 0));
    assert_eq!(job.digest(), calm_digest(20, 20_001));
    assert_eq!(batch.field("Restarts"), "0", "it stayed in its allocation");
}

#[test]
fn a_host_dies_and_the_spare_of_the_allocation_takes_over_under_mpirun() {
    a_host_dies_under("mpirun");
}

#[test]
fn a_host_dies_and_the_spare_of_the_allocation_takes_over_under_srun() {
    a_host_dies_under("srun");
}

#[test]
fn a_host_dies_without_a_spare_in_the_allocation_and_srun_goes_on_with_fewer_ranks() {
    let Some(slurm) = Slurm::up(4) else { return };
    let (program, calm) = long_heat(&slurm.hosts, 8);
    let mut job = protected(&slurm.hosts, "partner(1)");
    job.set_launcher("LAUNCHER", "srun").set_launcher("SPARES", "0").set_launcher("RANKS_ALLOWED", "5..8");
    let script = copy_of_template(&job, "--job-name=protected --nodes=4 --ntasks-per-node=2", &program);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_for("committed version=200 level=node-loss");
    slurm.hosts.power_off("node3");
    // SLURM itself takes long to notice the loss, and the supervisor's watchdog takes longer than this test.
    slurm.run(&["scontrol", "update", "nodename=node3", "state=down", "reason=lost"]);
    let log = batch.finish();
    assert!(log.contains("started ranks=6 ") && number(&log, "restored version=") >= 200, "{log}");
    assert_eq!(digest(&log), calm);
    assert_eq!(batch.field("Restarts"), "0", "it stayed in its allocation");
}

/// A heat2d run that takes this long, and the digest of the same run undisturbed.
fn long_heat(hosts: &Hosts, seconds: u64) -> (Vec<String>, String) {
    let (steps, pause) = (seconds * 100, "10000");
    let program = |pause: &str| {
        let words =
            ["--grid", "96x96", "--every", "100", "--steps", &steps.to_string(), "--pause", pause].map(str::to_owned);
        std::iter::once(example("heat2d")).chain(words).collect::<Vec<String>>()
    };
    let mut calm = Job::new(hosts, "calm");
    calm.set("BIVOUAC_LOCAL_ENABLED", "false").set("BIVOUAC_GLOBAL_ENABLED", "false");
    let out = calm.start("calm", &program("0")).finish();
    (program(pause), digest(&out).to_owned())
}

/// The job was stopped with a last checkpoint and queued again. Checks that it continues from that checkpoint to its end.
fn goes_on_after_its_stop(batch: &Batch, calm: &str) {
    batch.wait_for("stopped step=");
    let stopped = number(&batch.log(), "stopped step=");
    batch.hurry();
    let log = batch.finish();
    assert_eq!(number(&log, "restored version="), stopped, "it did not go on from its last checkpoint\n{log}");
    assert_eq!(digest(&log), calm);
    assert_eq!(batch.field("Restarts"), "1");
}

/// The number after a word in the output.
fn number(log: &str, word: &str) -> u64 {
    let at = log.find(word).unwrap_or_else(|| panic!("no {word:?} in\n{log}"));
    let digits: String = log[at + word.len()..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn near_the_time_limit_it_takes_a_last_checkpoint_is_queued_again_and_goes_on() {
    let Some(slurm) = Slurm::up(5) else { return };
    let (program, calm) = long_heat(&slurm.hosts, 16);
    let mut job = protected(&slurm.hosts, "partner(1)");
    job.set_launcher("RESERVE", "110s");
    // The limit is two minutes, less 110 seconds for the last checkpoint.
    let script = copy_of_template(&job, "--job-name=protected --time=2 --nodes=5 --ntasks-per-node=2", &program);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_for("stopped step=");
    slurm.run(&["scontrol", "update", &format!("jobid={}", batch.id), "TimeLimit=60"]);
    goes_on_after_its_stop(&batch, &calm);
}

fn is_preempted_under(launcher: &str) {
    let Some(slurm) = Slurm::up(5) else { return };
    let (program, calm) = long_heat(&slurm.hosts, 7);
    let mut job = protected(&slurm.hosts, "partner(1)");
    job.set_launcher("LAUNCHER", launcher);
    let script = copy_of_template(&job, "--job-name=protected --nodes=5 --ntasks-per-node=2", &program);
    let batch = slurm.submit(&job, &[], &[&script]);
    // The level is the one that the program hears of first.
    batch.wait_for("committed version=100 ");
    // `slurm.sh` tells SLURM how much grace there is.
    let urgent =
        slurm.submit(&Job::new(&slurm.hosts, "urgent"), &["--partition=urgent", "--nodes=2"], &["--wrap=sleep 1"]);
    batch.wait_for("stopped step=");
    urgent.finish();
    goes_on_after_its_stop(&batch, &calm);
}

#[test]
fn when_preempted_it_does_the_same_in_its_time_of_grace_under_mpirun() {
    is_preempted_under("mpirun");
}

#[test]
fn when_preempted_it_does_the_same_in_its_time_of_grace_under_srun() {
    is_preempted_under("srun");
}

/// SLURM sends the same to a cancelled job as to a pre-empted one, and it would accept a requeue.
#[test]
fn a_cancelled_job_stays_cancelled() {
    let Some(slurm) = Slurm::up(3) else { return };
    let (program, _) = long_heat(&slurm.hosts, 60);
    let job = protected(&slurm.hosts, "partner(1)");
    let script = copy_of_template(&job, "--job-name=protected --nodes=3 --ntasks-per-node=2", &program);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_for("committed version=100 ");
    slurm.run(&["scancel", &batch.id]);
    let is_ending = || ["RUNNING", "COMPLETING"].contains(&batch.state().as_str());
    while is_ending() {
        slurm.hosts.check_time();
        std::thread::sleep(seconds(1) / 10);
    }
    assert_eq!(batch.state(), "CANCELLED", "{}", batch.log());
}

#[test]
fn the_network_of_a_host_is_cut_and_the_spare_takes_over() {
    let Some(slurm) = Slurm::up(5) else { return };
    let job = protected(&slurm.hosts, "partner(1)");
    let worker = job.worker(&["--versions", "14", "--hold", "8", "--wait", "node-loss"]);
    let script = copy_of_template(&job, "--job-name=protected --nodes=5 --ntasks-per-node=2", &worker);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_until("all ranks hold", || (0..RANKS).all(|rank| job.log(rank).contains("hold version=8")));
    slurm.hosts.cut("node4");
    job.go(8);
    batch.finish();
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (7, 1));
    check_sources(&last);
    assert_eq!(job.digest(), calm_digest(14, 20_001));
    assert_eq!(batch.field("Restarts"), "0", "it stayed in its allocation");
}

/// Without a spare, the allocation is of no more use: the data on its nodes is saved, and the job continues in another allocation.
#[test]
fn a_host_dies_without_a_spare_and_the_job_is_drained_queued_again_and_goes_on_elsewhere() {
    let Some(slurm) = Slurm::up(5) else { return };
    let mut job = protected(&slurm.hosts, "partner(1)");
    job.set_launcher("SPARES", "0");
    let worker = job.worker(&["--versions", "14", "--hold", "8", "--wait", "node-loss"]);
    let script = copy_of_template(&job, "--job-name=protected --nodes=4 --ntasks-per-node=2", &worker);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_until("all ranks hold", || (0..RANKS).all(|rank| job.log(rank).contains("hold version=8")));
    slurm.hosts.power_off("node3");
    job.go(8);
    batch.hurry();
    batch.finish();
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (7, 1));
    assert_eq!(job.digest(), calm_digest(14, 20_001));
    assert_eq!(batch.field("Restarts"), "1");
    assert_eq!(batch.field("NodeList"), "node[1-2,4-5]");
}

/// The tasks of an array are separate simulations: neither takes the other's checkpoints, and a signal to one does not affect the other.
#[test]
fn tasks_of_an_array_are_told_apart() {
    let Some(slurm) = Slurm::up(4) else { return };
    let (program, calm) = long_heat(&slurm.hosts, 8);
    let mut job = protected(&slurm.hosts, "none");
    job.set_launcher("SPARES", "0");
    let script = copy_of_template(&job, "--job-name=array --nodes=2 --ntasks-per-node=2", &program);
    let array = slurm.submit(&job, &["--array=1-2"], &[&script]);
    let [one, two] = ["1", "2"].map(|task| array.task(task));
    for task in [&one, &two] {
        task.wait_for("committed version=100 ");
    }
    // This is the signal that SLURM sends before the time limit.
    slurm.run(&["scancel", "--batch", "--signal=USR1", &one.id]);
    one.wait_for("stopped step=");
    let log = two.finish();
    assert!(!log.contains("stopped step="), "{log}");
    assert_eq!((digest(&log), two.field("Restarts").as_str()), (calm.as_str(), "0"));
    goes_on_after_its_stop(&one, &calm);
    let stores =
        std::fs::read_dir(job.global()).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let mut stores: Vec<String> = stores.filter(|name| name != "store").map(|name| name[..7].to_owned()).collect();
    stores.sort();
    assert_eq!(stores, ["array-1", "array-2"]);
}

/// The script itself, `mpirun` and the root rank die with the node. SLURM notices this, and the job finds the data on the other nodes.
#[test]
fn the_batch_host_dies_and_slurm_queues_the_job_again() {
    let Some(slurm) = Slurm::up(6) else { return };
    let job = protected(&slurm.hosts, "partner(1)");
    let worker = job.worker(&["--versions", "14", "--hold", "8", "--wait", "node-loss"]);
    let script = copy_of_template(&job, "--job-name=protected --nodes=5 --ntasks-per-node=2", &worker);
    let batch = slurm.submit(&job, &[], &[&script]);
    batch.wait_until("all ranks hold", || (0..RANKS).all(|rank| job.log(rank).contains("hold version=8")));
    assert_eq!(batch.field("BatchHost"), "node1");
    slurm.hosts.power_off("node1");
    job.go(8);
    batch.hurry();
    batch.finish();
    let last = job.last_attempts();
    let (version, generation, _) = restored_by_all(&last);
    assert_eq!((version, generation), (7, 1));
    check_sources(&last);
    assert_eq!(job.digest(), calm_digest(14, 20_001));
    assert_eq!(batch.field("Restarts"), "1");
}
