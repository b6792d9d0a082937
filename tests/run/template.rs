//! `launch/slurm/job.sbatch` with scripts that play SLURM and `bivouac`: this tests what the script itself does.

use super::bed::Bed;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A bed in which the script runs on node1 of node[1-3]. Each command notes its arguments in `log`. `bivouac run` has this body, and `srun`
/// runs its command here.
fn bed(supervisor: &str) -> Bed {
    let bed = Bed::new();
    let here = bed.path().display();
    let note = format!("#!/bin/bash\ncd {here}\n");
    bed.script("bivouac", &format!("{note}echo \"bivouac $1\" >> log\n[ $1 = run ] || exit 0\n{supervisor}\n"));
    bed.script(
        "scontrol",
        &format!(
            "{note}case \"$*\" in
             'show hostnames '*) printf 'node%s\\n' 1 2 3 ;;
             'show config') echo 'SlurmdPort = 6818' ;;
             *) echo \"scontrol $*\" >> log ;;
             esac\n"
        ),
    );
    bed.script(
        "srun",
        &format!(
            "{note}while [[ $1 = -* ]]; do [[ $1 != --nodelist=* ]] || node=${{1#*=}}; shift; done
             export node
             case $1 in bash) exec \"$@\" ;; *) exec ./on-node \"$@\" ;; esac\n"
        ),
    );
    bed.script("on-node", &format!("{note}exec \"$@\"\n"));
    // The guard sleeps between its checks; here each sleep ends at once.
    bed.script("sleep", &format!("{note}exit 0\n"));
    // For the guard, slurmd answers according to the words in `answers`; when these are used up, the guard ends.
    bed.script(
        "timeout",
        &format!(
            "{note}shift
             case \"$*\" in *dev/tcp*) ;; *) exec \"$@\" ;; esac
             echo >> asked
             answer=$(sed -n \"$(wc -l < asked)p\" answers)
             [ -n \"$answer\" ] || {{ kill $PPID; touch over; }}
             [ \"$answer\" = yes ]\n"
        ),
    );
    bed
}

/// Runs the template to its end, as if it was submitted by `sbatch` with these variables.
fn run(bed: &Bed, variables: &[(&str, &str)]) -> Output {
    let script = Path::new(env!("WORKSPACE_ROOT")).join("launch/slurm/job.sbatch");
    let mut command = Command::new("bash");
    command.arg(script).current_dir(bed.path()).env_clear().env("PATH", bed.search_path());
    command.env("SLURM_SUBMIT_DIR", bed.path()).env("SLURM_JOB_NAME", "heat").env("SLURM_JOB_ID", "42");
    command.env("SLURM_JOB_NUM_NODES", "3").env("SLURM_NTASKS_PER_NODE", "2").env("SLURM_JOB_NODELIST", "node[1-3]");
    command.env("SLURMD_NODENAME", "node3").envs(variables.iter().copied());
    command.output().unwrap()
}

fn log(bed: &Bed) -> Vec<String> {
    let text = fs::read_to_string(bed.path().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The index of a line in `log`.
fn at(bed: &Bed, line: &str) -> Option<usize> {
    log(bed).iter().position(|logged| logged == line)
}

/// A supervisor that made an attempt and has too few nodes now.
const TOO_FEW_NODES: &str = "echo '{}' >> bivouac-run/heat/attempts.jsonl; exit 13";

#[test]
fn a_job_with_too_few_nodes_is_drained_and_queued_again_if_it_could_run_at_all() {
    for (supervisor, expected) in [(TOO_FEW_NODES, true), ("exit 13", false), ("exit 12", false)] {
        let bed = bed(supervisor);
        fs::create_dir_all(bed.path().join("bivouac-run/heat")).unwrap();
        // A file that an earlier run left does not count.
        fs::write(bed.path().join("bivouac-run/heat/attempts.jsonl"), "{}\n").unwrap();
        let output = run(&bed, &[]);
        assert!([Some(12), Some(13)].contains(&output.status.code()), "{output:?}");
        let log = log(&bed);
        let drained = log.iter().filter(|line| *line == "bivouac drain").count();
        assert_eq!((drained, log.contains(&"scontrol requeue 42".to_owned())), (3 * usize::from(expected), expected));
    }
}

#[test]
fn the_guard_believes_in_silence_only_where_there_was_an_answer_before() {
    let cases = [("no no no no no", false), ("no yes no no yes no no yes", false), ("no yes no yes no no no", true)];
    for (answers, expected) in cases {
        // In the first case, `over` marks the end of the guard; in the last case, the guard's request does.
        let bed = bed("until [ -e over ] || grep -q requeue log; do /bin/sleep 0.02; done");
        fs::write(bed.path().join("answers"), answers.replace(' ', "\n") + "\n").unwrap();
        assert!(run(&bed, &[("SLURMD_NODENAME", "node1")]).status.success());
        assert_eq!(log(&bed).contains(&"scontrol requeue 42".to_owned()), expected, "{answers}");
    }
}

#[test]
fn the_steps_of_the_script_see_its_variables_also_after_sbatch_export_none() {
    let bed = bed("echo \"export $SLURM_EXPORT_ENV\" >> log");
    assert!(run(&bed, &[("SLURM_EXPORT_ENV", "NONE")]).status.success());
    assert_eq!(log(&bed), ["bivouac run", "export ALL"]);
}

#[test]
fn each_node_is_drained_to_the_end_whatever_signal_comes_and_failures_are_named() {
    let bed = bed(&format!("echo $PPID > script.pid; {TOO_FEW_NODES}"));
    fs::create_dir_all(bed.path().join("bivouac-run/heat")).unwrap();
    bed.script(
        "on-node",
        "#!/bin/bash
         case $node in
         node1) echo \"to $BIVOUAC_GLOBAL_DIRECTORY\" >> log ;;
         node2) exit 7 ;;
         # The signal before the time limit; it reaches the script while it waits.
         node3)
             for signal in USR1 TERM; do kill -$signal \"$(cat script.pid)\"; /bin/sleep 0.3; done
             echo drained >> log ;;
         esac\n",
    );
    let output = run(&bed, &[]);
    assert_eq!(output.status.code(), Some(13), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("bivouac drain failed on node2 (exit status 7)") && !said.contains("node1"), "{said}");
    assert!(at(&bed, &format!("to {}/bivouac", bed.path().display())).is_some(), "{:?}", log(&bed));
    let (drained, queued) = (at(&bed, "drained"), at(&bed, "scontrol requeue 42"));
    assert!(drained.is_some() && drained < queued, "{:?}", log(&bed));
}

#[test]
fn a_configuration_file_may_name_the_global_directory() {
    let bed = bed("echo \"to ${BIVOUAC_GLOBAL_DIRECTORY-unset}\" >> log");
    assert!(run(&bed, &[("BIVOUAC_CONFIG", "my.toml")]).status.success());
    assert!(run(&bed, &[("BIVOUAC_GLOBAL_DIRECTORY", "/scratch")]).status.success());
    assert_eq!(log(&bed), ["bivouac run", "to unset", "bivouac run", "to /scratch"]);
}

/// A node's root has no rights on a file system that "squashes" root, so only the user sees the global directory.
#[test]
fn the_epilog_looks_for_the_global_directory_as_its_owner() {
    for (is_there, expected) in [(true, vec!["bivouac drain", "bivouac clean"]), (false, vec![])] {
        let bed = bed("exit 0");
        bed.script(
            "runuser",
            &format!(
                "#!/bin/bash
                 [ \"$1 $2 $3\" = '-u me --' ] || exit 9
                 shift 3
                 case \"$*\" in 'test -d /squashed') exec {is_there} ;; *) exec \"$@\" ;; esac\n"
            ),
        );
        // Something remains in the memory of the node.
        let script = Path::new(env!("WORKSPACE_ROOT")).join("launch/slurm/epilog.sh");
        let mut command = Command::new("bash");
        command.args(["-c", "compgen() { true; }; . \"$0\""]).arg(script).env("PATH", bed.search_path());
        command.env("SLURM_JOB_USER", "me").env("EPILOG_GLOBAL", "/squashed");
        assert!(command.status().unwrap().success());
        assert_eq!(log(&bed), expected);
    }
}
