//! `bivouac run` and the scripts of `launch/` under PBS, LSF and Flux. Scripts play these systems, and answer as the systems' documentation
//! says, because none of the systems was available.

use super::bed::{Bed, Ended};
use super::common::limit::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SYSTEMS: [&str; 3] = ["PBS", "LSF", "Flux"];

/// A bed in which commands play a batch system and note their arguments in `log`. It has three hosts with two slots each, and `left`
/// seconds. A host is down if `down` has a file with its name.
fn bed(job: &str, system: &str, left: u64) -> Bed {
    let bed = Bed::with(job);
    let here = bed.path().display();
    let note = format!("#!/bin/bash\ncd {here}\necho \"${{0##*/}} $*\" >> log\n");
    fs::create_dir(bed.path().join("down")).unwrap();
    fs::write(bed.path().join("nodefile"), "n1\nn1\nn2\nn2\nn3\nn3\n").unwrap();
    let scripts: &[(&str, String)] = match system {
        "PBS" => &[
            (
                "qstat",
                format!(
                    "echo 'Job Id: 42.server'; echo '    Job_Name = heat'; echo '    Resource_List.walltime = 10:00:00'
                     echo \"    stime = $(date -d \"-36000 seconds +{left} seconds\" '+%a %b %e %H:%M:%S %Y')\""
                ),
            ),
            ("pbs_tmrsh", "[ ! -e \"down/$1\" ]".into()),
            ("qsub", "echo 43.server".into()),
            ("pbsdsh", "while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"".into()),
        ],
        "LSF" => &[
            ("bjobs", format!("printf '%d:%02d L\\n' {} {}", left / 3600, left / 60 % 60)),
            ("blaunch", "[ ! -e \"down/$1\" ] && shift && exec \"$@\"".into()),
            ("brequeue", String::new()),
        ],
        _ => &[(
            "flux",
            format!(
                "case \"$*\" in
                 'getattr hostlist') echo 'n[1-3]' ;;
                 'getattr jobid') echo fJob42 ;;
                 'job timeleft') echo {left} ;;
                 hostlist*) for host; do :; done; [ ! -e \"down/$host\" ] ;;
                 resource*) echo 3 ;;
                 run*) exec ./job \"$@\" ;;
                 exec*) shift 3; for _ in 1 2 3; do \"$@\"; done ;;
                 *batch*) echo fJob43 ;;
                 *) exit 1 ;;
                 esac"
            ),
        )],
    };
    for (name, body) in scripts {
        bed.script(name, &format!("{note}{body}\n"));
    }
    bed
}

/// The variables that the system sets in a job.
fn within<'c>(command: &'c mut Command, bed: &Bed, system: &str) -> &'c mut Command {
    command.env("PATH", bed.search_path());
    match system {
        "PBS" => command.env("PBS_JOBID", "42.server").env("PBS_NODEFILE", bed.path().join("nodefile")),
        "LSF" => command.env("LSB_JOBID", "42").env("LSB_JOBINDEX", "0").env("LSB_MCPU_HOSTS", "n1 2 n2 2 n3 2"),
        _ => command.env("FLUX_URI", "local:///nowhere"),
    }
}

/// A supervisor with these options, in a job of this system.
fn supervised(bed: &Bed, system: &str, options: &[&str]) -> Command {
    let mut command = bed.run_command(options);
    match system {
        "Flux" => command.args(["--", "flux", "run", "-n", "4", "program"]),
        _ => command.args(["--launcher", "openmpi", "--", "./job", "-n", "4", "program"]),
    };
    within(&mut command, bed, system);
    command
}

fn log(bed: &Bed) -> Vec<String> {
    let text = fs::read_to_string(bed.path().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn has(bed: &Bed, line: &str) -> bool {
    log(bed).iter().any(|logged| logged == line)
}

/// How a system queues a job again: as options of `bivouac run`, and as the command that is then called.
fn requeue(system: &str) -> (&'static str, &'static str) {
    match system {
        "PBS" => ("--requeue=qsub next.pbs", "qsub next.pbs"),
        "LSF" => ("--requeue", "brequeue 42"),
        _ => ("--requeue=flux --parent batch next.flux", "flux --parent batch next.flux"),
    }
}

#[test]
fn hosts_are_those_of_the_allocation_and_a_lost_one_is_replaced_by_a_spare() {
    for system in SYSTEMS {
        let bed = bed("[ $attempt = 1 ] || exit 0; touch down/n1; exit 1", system, 7200);
        bed.finish(supervised(&bed, system, &["--spares", "1"])).expect(0);
        let attempts = bed.attempts();
        let seats = |attempt: &Value| attempt["hosts"].to_string();
        assert_eq!(seats(&attempts[0]), r#"["n1:2","n2:2"]"#, "{system}");
        assert_eq!(seats(&attempts[1]), r#"["n3:2","n2:2"]"#, "{system}");
        let starts = bed.starts();
        match system {
            "Flux" => assert_eq!(starts[1], "run --nodes 2 --requires=hosts:n3,n2 -n 4 program"),
            // Open MPI sorts a host list as the batch system does, but does not sort a file with the host of each rank.
            _ => assert!(
                starts[1].contains("--map-by seq --hostfile") && starts[0].contains("--host n1:2,n2:2"),
                "{starts:?}"
            ),
        }
        let probe = match system {
            "PBS" => "pbs_tmrsh n1 true",
            "LSF" => "blaunch n1 true",
            _ => "flux hostlist --quiet --fallback --intersect avail n1",
        };
        assert!(has(&bed, probe), "{system}: {:?}", log(&bed));
    }
}

#[test]
fn near_the_end_of_the_allocation_the_job_is_halted_and_comes_again() {
    for system in SYSTEMS {
        // LSF reports whole minutes.
        let (left, reserve) = if system == "LSF" { (120, "118s") } else { (33, "30s") };
        let job = "status 5 1 false; while [ ! -e stop ]; do sleep 0.05; done; status 6 2 true 'the end is near'";
        let bed = bed(job, system, left);
        let (option, call) = requeue(system);
        let supervisor = bed.start(supervised(&bed, system, &["--reserve", reserve, option]));
        wait_until("the end is near", || bed.events().contains(&"halting".to_owned()));
        // The system's signal at the end of the time then cancels nothing.
        supervisor.signal(Signal::SIGTERM);
        let halted = || bed.events().iter().filter(|event| *event == "halting").count();
        wait_until("the signal is heard", || halted() == 2);
        fs::write(bed.path().join("stop"), "").unwrap();
        supervisor.wait().expect(10);
        assert!(has(&bed, call), "{system}: {:?}", log(&bed));
        assert_eq!(bed.events().iter().filter(|event| *event == "requeued").count(), 1, "{system}");
    }
}

/// A supervisor that receives this signal in the middle of an allocation.
fn after(signal: Signal, system: &str) -> (Bed, Ended) {
    let bed = bed(
        "status 5 1 false; echo ready > ready
         until grep -q '\"now\"' $BIVOUAC_RUN_DIRECTORY/halt.json; do sleep 0.05; done
         status 6 2 true asked",
        system,
        7200,
    );
    let supervisor = bed.start(supervised(&bed, system, &[requeue(system).0]));
    bed.wait_for_file("ready");
    supervisor.signal(signal);
    let ended = supervisor.wait().expect(10);
    (bed, ended)
}

#[test]
fn sigterm_cancels_the_job_and_a_warning_does_not() {
    for system in SYSTEMS {
        let (bed, ended) = after(Signal::SIGTERM, system);
        ended.says(&["the job is not queued again: it was cancelled"]);
        assert!(!has(&bed, requeue(system).1), "{system}");
        let (bed, _) = after(Signal::SIGUSR1, system);
        assert!(has(&bed, requeue(system).1), "{system}: {:?}", log(&bed));
    }
}

#[test]
fn what_cannot_queue_a_job_again_says_so_before_the_job_starts() {
    for (system, reason) in [("PBS", "only its operators"), ("Flux", "does not queue")] {
        let bed = bed("true", system, 7200);
        bed.finish(supervised(&bed, system, &["--requeue"])).expect(2).says(&["--requeue:", reason, "--requeue='"]);
        assert!(bed.starts().is_empty());
    }
    // The message names a command that failed, with its output.
    let bed = bed("status 5 1 false; sleep 2; status 6 2 true 'the end is near'", "PBS", 20);
    bed.script("qsub", "#!/bin/sh\necho 'qsub: no such queue' >&2; exit 1\n");
    let options = ["--end-time", "+3s", "--reserve", "2s", "--requeue=qsub next.pbs"];
    bed.finish(supervised(&bed, "PBS", &options))
        .says(&["the job is not queued again: qsub next.pbs", "no such queue"]);
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    for (system, name, value) in [("LSF", "LSB_MCPU_HOSTS", "n1 2 n2"), ("PBS", "PBS_NODEFILE", "/none")] {
        let bed = bed("true", system, 7200);
        let mut command = supervised(&bed, system, &[]);
        command.env(name, value);
        bed.finish(command).expect(2).says(&[name]);
        assert!(bed.starts().is_empty());
    }
    // Not every Flux lists the hosts; then its error is passed on.
    let bed = bed("true", "Flux", 7200);
    bed.script("flux", "#!/bin/sh\necho 'flux-getattr: hostlist: No such file' >&2; exit 1\n");
    bed.finish(supervised(&bed, "Flux", &[])).expect(2).says(&["flux getattr hostlist", "No such file"]);
}

// ------------------------------------------------------------------------------------------- the scripts to copy

/// A command that runs the template of a system in a job of that system.
fn script(bed: &Bed, system: &str) -> Command {
    let folder = system.to_lowercase();
    let script = Path::new(env!("WORKSPACE_ROOT")).join(format!("launch/{folder}/job.{folder}"));
    let mut command = Command::new("bash");
    command.arg(script).current_dir(bed.path()).env_clear();
    within(&mut command, bed, system);
    match system {
        "PBS" => command.env("PBS_O_WORKDIR", bed.path()).env("PBS_JOBNAME", "heat"),
        "LSF" => command.env("LS_SUBCWD", bed.path()).env("LSB_JOBNAME", "heat"),
        _ => &mut command,
    };
    command
}

/// Runs the template of a system to its end, with this text as the body of `bivouac run`.
fn template(bed: &Bed, system: &str, supervisor: &str) -> Output {
    let here = bed.path().display();
    let note = format!("#!/bin/bash\ncd {here}\n");
    bed.script("bivouac", &format!("{note}echo \"bivouac $*\" >> log\n[ $1 = run ] || exec ./on-node\n{supervisor}\n"));
    bed.script("on-node", &format!("{note}echo \"to $BIVOUAC_GLOBAL_DIRECTORY of $BIVOUAC_JOB_NAME\" >> log\n"));
    bed.script("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n");
    script(bed, system).output().unwrap()
}

#[test]
fn the_scripts_start_the_supervisor_with_ranks_for_all_nodes_but_the_spare() {
    for system in SYSTEMS {
        let bed = bed("true", system, 7200);
        let output = template(&bed, system, "exit 0");
        assert!(output.status.success(), "{system}: {output:?}");
        let call = log(&bed).into_iter().find(|line| line.starts_with("bivouac run")).expect(system);
        let here = bed.path().display();
        assert!(call.contains(&format!("--run-directory {here}/bivouac-run/heat --spares 1")), "{call}");
        let (launcher, again) = match system {
            "PBS" => {
                ("-- mpirun -n 4 -x BIVOUAC_", format!("--requeue=qsub -W depend=afterany:42.server {here}/job.pbs"))
            }
            "LSF" => ("-- mpirun -n 4 -x BIVOUAC_", "--requeue --".to_owned()),
            _ => (
                "-- flux run -n 4 ./heat2d",
                format!("--requeue=flux --parent batch --dependency=afterany:fJob42 {here}/job.flux"),
            ),
        };
        assert!(call.contains(launcher) && call.contains(&again), "{call}");
        assert!(call.ends_with("./heat2d --steps 1000000 --every 1000"), "{call}");
    }
}

#[test]
fn with_too_few_nodes_left_each_one_is_drained_and_the_next_job_submitted() {
    let too_few = "echo '{}' >> bivouac-run/heat/attempts.jsonl; exit 13";
    for system in SYSTEMS {
        for (supervisor, expected) in [(too_few, 3), ("exit 13", 0), ("exit 12", 0)] {
            let bed = bed("true", system, 7200);
            fs::create_dir_all(bed.path().join("bivouac-run/heat")).unwrap();
            let output = template(&bed, system, supervisor);
            assert!([Some(12), Some(13)].contains(&output.status.code()), "{system}: {output:?}");
            let here = bed.path().display();
            let drained = format!("to {here}/bivouac of heat");
            assert_eq!(
                log(&bed).iter().filter(|line| **line == drained).count(),
                expected,
                "{system}: {:?}",
                log(&bed)
            );
            let next = match system {
                "PBS" => format!("qsub -W depend=afterany:42.server {here}/job.pbs"),
                "LSF" => "brequeue 42".to_owned(),
                _ => format!("flux --parent batch --dependency=afterany:fJob42 {here}/job.flux"),
            };
            assert_eq!(has(&bed, &next), expected > 0, "{system}: {:?}", log(&bed));
            if system == "PBS" && expected > 0 {
                let lines = |line: &&String| line.starts_with("pbsdsh -n ");
                let log = log(&bed);
                let asked: Vec<&str> = log.iter().filter(lines).filter_map(|line| line.split(' ').nth(2)).collect();
                assert!(["0", "2", "4"].iter().all(|number| asked.contains(number)), "{asked:?}");
            }
        }
    }
}

#[test]
fn a_node_that_cannot_be_drained_is_named() {
    for system in ["PBS", "LSF"] {
        let bed = bed("true", system, 7200);
        fs::create_dir_all(bed.path().join("bivouac-run/heat")).unwrap();
        let drain = if system == "PBS" { "pbsdsh" } else { "blaunch" };
        bed.script(drain, "#!/bin/bash\ncase \"$*\" in '-n 2 '* | 'n2 '*) exit 7 ;; esac\n");
        let output = template(&bed, system, "echo '{}' >> bivouac-run/heat/attempts.jsonl; exit 13");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("bivouac drain failed on n2 (exit status 7)") && !said.contains("n1"), "{said}");
    }
}

#[test]
fn elements_of_an_array_have_names_of_their_own() {
    for (system, variable) in [("PBS", "PBS_ARRAY_INDEX"), ("LSF", "LSB_JOBINDEX")] {
        let bed = bed("true", system, 7200);
        let supervisor = "echo \"$BIVOUAC_JOB_NAME\" >> log; exit 0";
        bed.script("bivouac", &format!("#!/bin/bash\ncd {}\n{supervisor}\n", bed.path().display()));
        bed.script("mpirun", "#!/bin/sh\necho 'HYDRA build details:'\n");
        let mut command = script(&bed, system);
        // In LSF, an element has the name of the array.
        let name = if system == "LSF" { ("LSB_JOBNAME", "heat[1-20]") } else { ("PBS_JOBNAME", "heat") };
        command.envs([name, (variable, "3")]);
        assert!(command.status().unwrap().success());
        assert!(has(&bed, "heat-3"), "{:?}", log(&bed));
    }
}
