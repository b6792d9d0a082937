//! Launchers: what their command lines say, how a host list is replaced, and how the process is started.
//!
//! A launcher's own options end where the program's name begins. To find that place, one has to know which options take
//! a value; the tables below list them. What follows the name is the program's business and is never changed.
#![forbid(unsafe_code)]

use crate::asking;
use crate::hosts::{self, Host};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The text that is replaced by the number of ranks in the command line of a job whose number of ranks may change.
pub const RANKS: &str = "{ranks}";

/// The longest time for a submission: a server that queues jobs may be slow, but a supervisor must end.
const SUBMIT_MAX: Duration = Duration::from_secs(60);

/// A variable that the ranks are to see, and its value.
pub type Variable = (&'static str, String);

/// A family of launchers, which share their command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Family {
    /// Open MPI's mpirun, mpiexec and prterun.
    Openmpi,
    /// MPICH's mpiexec (Hydra) and Intel MPI's mpirun.
    Hydra,
    /// SLURM's srun.
    Srun,
    /// `flux run`.
    Flux,
    /// Anything else: it is started unchanged, on this machine, and never moved.
    None,
}

/// Options, without their dashes, whose value is one or two separate words.
struct Arity {
    one: &'static str,
    two: &'static str,
}

impl Arity {
    /// How many words the value of this option takes.
    fn of(&self, name: &str) -> usize {
        let lists = |list: &str| list.split(' ').any(|listed| listed == name);
        if lists(self.one) { 1 } else { 2 * usize::from(lists(self.two)) }
    }
}

/// Names without dashes. Open MPI takes long names with one dash or two; versions 4 and 5 share this table.
const OPENMPI: Arity = Arity {
    one: "add-host add-hostfile am app bind-to c cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank \
          debugger default-hostfile display dvm dvm-uri exec-agent forward-signals gpu-support H hnp host \
          hostfile keepalive launch-agent launcher-hostfile machinefile map-by max-restarts max-vm-size N n np \
          npernode npersocket ompi-server output output-directory output-filename path personality pmixam ppr \
          prefix preload-files prtemca-params pset rank-by rankfile report-events report-pid report-uri rf \
          runtime-options spawn-timeout stdin timeout tune wd wdir with-ft x xml-file xterm",
    two: "gmca gpmixmca gprtemca mca omca pmixmca prtemca",
};

const HYDRA: Arity = Arity {
    one: "arch bind-to bootstrap bootstrap-exec bootstrap-exec-args ckpoint-interval ckpoint-num \
          ckpoint-prefix ckpointlib configfile demux envexcl envlist errfile-pattern f genvexcl genvlist \
          gpus-per-proc host hostfile hosts iface launcher launcher-exec localhost localroot machine \
          machinefile machines map-by membind n nameserver np order-nodes outfile-pattern path perhost \
          pmi-port ppn prepend-pattern rmk topolib umask usize wdir",
    two: "env genv",
};

/// Options that may take a value, but only after `=`, are not listed.
const SRUN: Arity = Arity {
    one: "A accel-bind account acctg-freq B bb bbf bcast-exclude begin C c chdir cluster-constraint clusters \
          comment constraint container context core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu \
          cpus-per-task D d deadline delay-boot dependency distribution e epilog error exclude export \
          extra-node-info F G gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres \
          gres-flags hint i input J job-name jobid L licenses M m mail-type mail-user mcs-label mem mem-bind \
          mem-per-cpu mem-per-gpu mincpus mpi msg-timeout N n network nodefile nodelist nodes ntasks \
          ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres o open-mode output \
          p partition prefer priority profile prolog q qos r relative reservation S signal slurmd-debug \
          sockets-per-node switches T t task-epilog task-prolog thread-spec threads threads-per-core time \
          time-min tmp treewidth tres-bind tres-per-task uid W w wait wckey x",
    two: "",
};

const FLUX: Arity = Arity {
    one: "add-file B bank bcc begin-time c cc cores cores-per-task cwd dependency env env-file env-remove error flags g \
          gpus-per-node gpus-per-task i input job-name label-file n N nodes ntasks o output q queue requires rlimit S s setattr \
          setopt signal t taskmap tasks-per-core tasks-per-node time-limit urgency wait-event watch-event",
    two: "",
};

/// The options that name hosts.
const OPENMPI_HOSTS: [&str; 5] = ["H", "host", "hostfile", "machinefile", "default-hostfile"];
const HYDRA_HOSTS: [&str; 7] = ["f", "host", "hostfile", "hosts", "machine", "machinefile", "machines"];
const SRUN_HOSTS: [&str; 6] = ["w", "nodelist", "F", "nodefile", "N", "nodes"];
const FLUX_HOSTS: [&str; 3] = ["N", "nodes", "requires"];

/// Options of `flux run` that set the number of ranks by the number of cores or nodes; with these, `flux run` takes no other number.
const FLUX_PER_RESOURCE: [&str; 3] = ["cores", "tasks-per-core", "tasks-per-node"];
/// Options of `flux run` that choose which variables its tasks see; without any of them, tasks see all variables.
const FLUX_ENVIRONMENT: [&str; 3] = ["env", "env-file", "env-remove"];

/// One word or group of words of a launcher's command line.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Item {
    /// An option without its dashes, its values if it has any (in words of their own, or after `=`), and its words as written.
    Option { name: String, values: Vec<String>, words: Vec<String> },
    /// The program and everything that follows, up to the end or to the next `:`.
    Program(Vec<String>),
}

/// The hosts that a job is to compute on.
#[derive(Clone, Copy)]
pub struct Seats<'a> {
    /// The hosts, in the order of their ranks.
    pub hosts: &'a [Host],
    /// The hosts are in the order in which they were given.
    pub in_order: bool,
    /// A file with the host of each rank ([`Seats::tasks`]), for an Open MPI that would sort a list as its batch system does.
    pub file: Option<&'a str>,
}

impl Seats<'_> {
    /// The host of each rank.
    pub fn tasks(&self, ranks: u32) -> Vec<&str> {
        let slots = |host: &Host| host.slots.unwrap_or(1).min(ranks) as usize;
        let tasks = self.hosts.iter().flat_map(|host| std::iter::repeat_n(host.name.as_str(), slots(host)));
        tasks.take(ranks as usize).collect()
    }
}

/// A command line of a launcher, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandLine {
    /// The family to which it belongs.
    pub family: Family,
    /// The launcher, with its subcommand if it has one.
    launcher: Vec<String>,
    /// One part for each program; there are several if the command line has `:`.
    parts: Vec<Vec<Item>>,
    /// What srun exports if the command line does not say it: `SLURM_EXPORT_ENV`, which `sbatch --export` sets.
    export: Option<String>,
    /// The number of ranks is ours to set, as the hosts are.
    is_elastic: bool,
}

/// The family of a launcher by its name, or by what it says about itself.
pub fn family_of(program: &str) -> Family {
    let name = Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match name.as_str() {
        "srun" => return Family::Srun,
        "flux" => return Family::Flux,
        "mpiexec.hydra" | "mpiexec.mpich" | "mpirun.mpich" => return Family::Hydra,
        "mpirun.openmpi" | "mpiexec.openmpi" | "orterun" | "prterun" => return Family::Openmpi,
        name if name.starts_with("mpirun") || name.starts_with("mpiexec") => {}
        _ => return Family::None,
    }
    let answer = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = answer.map(|answer| String::from_utf8_lossy(&answer.stdout).to_lowercase()).unwrap_or_default();
    match text {
        text if ["open mpi", "openrte", "prrte"].iter().any(|word| text.contains(word)) => Family::Openmpi,
        text if ["hydra", "intel(r) mpi", "mpich"].iter().any(|word| text.contains(word)) => Family::Hydra,
        _ => Family::None,
    }
}

impl CommandLine {
    /// Takes a command line apart.
    ///
    /// # Errors
    /// It has no program, or an option lacks its value.
    pub fn parse(command: &[String], family: Family) -> Result<CommandLine, String> {
        let verbs = 1 + usize::from(family == Family::Flux);
        let (launcher, words) = command.split_at_checked(verbs).ok_or("no command was given after --")?;
        if family == Family::Flux && launcher[1] != "run" {
            return Err(format!("flux {} cannot be supervised: use flux run", launcher[1]));
        }
        let launcher = launcher.to_vec();
        let arity = match family {
            Family::Openmpi => &OPENMPI,
            Family::Hydra => &HYDRA,
            Family::Srun => &SRUN,
            Family::Flux => &FLUX,
            Family::None => {
                let parts = vec![vec![Item::Program(words.to_vec())]];
                return Ok(CommandLine { family, launcher, parts, export: None, is_elastic: false });
            }
        };
        let groups: Vec<&[String]> = match family {
            Family::Srun | Family::Flux => vec![words],
            _ => words.split(|word| word == ":").collect(),
        };
        let parts = groups.into_iter().map(|words| parse_part(words, arity, family)).collect::<Result<_, _>>()?;
        Ok(CommandLine { family, launcher, parts, export: None, is_elastic: false })
    }

    /// What srun would export according to its environment.
    pub fn set_export(&mut self, export: Option<String>) {
        self.export = export;
    }

    /// Declares that the number of ranks changes from attempt to attempt: options that give it are removed, ours is added, and [`RANKS`] is
    /// replaced in all words.
    ///
    /// # Errors
    /// There are several programs, and nobody knows which of them is to have more or fewer ranks.
    pub fn set_elastic(&mut self) -> Result<(), String> {
        if self.parts.len() > 1 {
            return Err("--ranks cannot be used with several programs on one command line (separated by ':'): it is not clear which of \
                        them should have fewer ranks".into());
        }
        self.is_elastic = true;
        Ok(())
    }

    /// The options that give the number of ranks.
    fn rank_options(&self) -> &'static [&'static str] {
        match self.family {
            Family::Openmpi => &["n", "np", "c"],
            Family::Hydra => &["n", "np"],
            Family::Srun | Family::Flux => &["n", "ntasks"],
            Family::None => &[],
        }
    }

    fn values<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.parts.iter().flatten().filter_map(move |item| match item {
            Item::Option { name, values, .. } if names.contains(&name.as_str()) => values.first().map(String::as_str),
            _ => None,
        })
    }

    /// The number of ranks that the command line asks for, if it says so for each of its programs.
    ///
    /// # Errors
    /// A number cannot be read.
    pub fn ranks(&self) -> Result<Option<u32>, String> {
        if self.family == Family::None {
            return Ok(None);
        }
        let numbers: Vec<&str> = self.values(self.rank_options()).collect();
        if numbers.len() < self.parts.len() {
            return Ok(None);
        }
        let sum = numbers.iter().try_fold(0u32, |sum, text| {
            let number = text.parse::<u32>().ok().filter(|number| *number > 0);
            sum.checked_add(number?)
        });
        sum.map(Some).ok_or_else(|| format!("{numbers:?} is not a number of ranks"))
    }

    /// The hosts that the command line itself names, if it names any. Reads the host file if the command line names one.
    ///
    /// # Errors
    /// A list or a file cannot be read; the error says which.
    pub fn hosts(&self) -> Result<Option<Vec<Host>>, String> {
        let (lists, files): (&[&str], &[&str]) = match self.family {
            Family::Openmpi => (&["H", "host"], &["hostfile", "machinefile", "default-hostfile"]),
            Family::Hydra => (&["host", "hosts"], &["f", "hostfile", "machine", "machinefile", "machines"]),
            Family::Srun => (&["w", "nodelist"], &["F", "nodefile"]),
            // A constraint says which hosts would do, not which hosts exist.
            Family::Flux | Family::None => return Ok(None),
        };
        let lists: Vec<&str> = self.values(lists).collect();
        if !lists.is_empty() {
            return hosts::parse_list(&lists.join(",")).map(Some);
        }
        match self.values(files).next() {
            None => Ok(None),
            Some(path) => hosts::read_file(Path::new(path)).map(Some),
        }
    }

    /// The remote shell that the launcher uses, if the command line names one.
    pub fn agent(&self) -> Option<String> {
        let of = |item: &Item| match item {
            Item::Option { name, values, .. } if values.first().is_some_and(|value| value == "plm_rsh_agent") => {
                (OPENMPI.of(name) == 2).then(|| values.get(1).cloned()).flatten()
            }
            Item::Option { name, values, .. } if name == "launcher-exec" || name == "bootstrap-exec" => {
                values.first().cloned()
            }
            _ => None,
        };
        self.parts.iter().flatten().find_map(of)
    }

    /// The words that start the job: on these hosts if any are given, otherwise where the command line says. The variables are
    /// passed to the ranks.
    pub fn words(&self, seats: Option<&Seats<'_>>, ranks: u32, variables: &[Variable]) -> Vec<String> {
        let mut words = self.launcher.clone();
        for (number, part) in self.parts.iter().enumerate() {
            if number > 0 {
                words.push(":".into());
            }
            words.extend(self.leading(number, seats, ranks, variables));
            for item in part {
                match item {
                    Item::Option { name, .. } if seats.is_some() && self.names_hosts(name) => {}
                    Item::Option { name, .. } if self.is_elastic && self.rank_options().contains(&name.as_str()) => {}
                    Item::Option { name, values, .. } if self.family == Family::Srun && name == "export" => {
                        let list = values.first().map_or("", |list| list);
                        words.push(format!("--export={}", with_variables(list, variables)));
                    }
                    Item::Option { words: written, .. } => words.extend(written.iter().cloned()),
                    Item::Program(written) => {
                        words.extend(self.last_variables(variables));
                        words.extend(written.iter().cloned());
                    }
                }
            }
        }
        if self.is_elastic {
            words.iter_mut().for_each(|word| *word = word.replace(RANKS, &ranks.to_string()));
        }
        words
    }

    /// The words that are added after `flux run`'s own rules about variables, which are applied in their order.
    fn last_variables(&self, variables: &[Variable]) -> Vec<String> {
        let has_rules = self.family == Family::Flux && self.values(&FLUX_ENVIRONMENT).next().is_some();
        variables.iter().filter(|_| has_rules).map(|(name, _)| format!("--env={name}")).collect()
    }

    /// Does an Open MPI command line itself say where ranks are placed, or has it several programs, each of which would start anew?
    fn maps_itself(&self) -> bool {
        let mapping = "map-by rank-by rankfile rf N npernode pernode npersocket ppr bynode byslot bycore nolocal";
        let maps =
            |item: &Item| matches!(item, Item::Option { name, .. } if mapping.split(' ').any(|word| word == name));
        self.parts.len() > 1 || self.parts.iter().flatten().any(maps)
    }

    fn names_hosts(&self, name: &str) -> bool {
        match self.family {
            Family::Openmpi => OPENMPI_HOSTS.contains(&name),
            Family::Hydra => HYDRA_HOSTS.contains(&name),
            Family::Srun => SRUN_HOSTS.contains(&name),
            Family::Flux => FLUX_HOSTS.contains(&name),
            Family::None => false,
        }
    }

    /// The words that are inserted before a program's own options.
    fn leading(&self, part: usize, seats: Option<&Seats<'_>>, ranks: u32, variables: &[Variable]) -> Vec<String> {
        let hosts = seats.map(|seats| seats.hosts);
        let mut words: Vec<String> = Vec::new();
        let mut push = |new: &[&str]| words.extend(new.iter().map(|word| (*word).to_owned()));
        let list = |hosts: &[Host], of: &dyn Fn(&Host) -> String| hosts.iter().map(of).collect::<Vec<_>>().join(",");
        let says_ranks = self.ranks().is_ok_and(|ranks| ranks.is_some());
        let adds_ranks = self.is_elastic || (!says_ranks && hosts.is_some() && self.parts.len() == 1);
        match self.family {
            Family::Openmpi => {
                variables.iter().for_each(|(name, _)| push(&["-x", name]));
                match seats {
                    Some(Seats { in_order: false, file: Some(file), .. }) if !self.maps_itself() => {
                        push(&["--map-by", "seq", "--hostfile", file]);
                    }
                    Some(seats) => push(&["--host", &list(seats.hosts, &Host::to_string)]),
                    None => {}
                }
                if adds_ranks {
                    push(&["-n", &ranks.to_string()]);
                }
            }
            // Global options must precede the first program.
            Family::Hydra if part == 0 => {
                variables.iter().for_each(|(name, value)| push(&["-genv", name, value]));
                if let Some(hosts) = hosts {
                    push(&["-hosts", &list(hosts, &Host::to_string)]);
                }
                if adds_ranks {
                    push(&["-n", &ranks.to_string()]);
                }
            }
            Family::Srun => {
                if let Some(seats) = seats {
                    push(&["--nodes", &seats.hosts.len().to_string()]);
                    if seats.in_order || self.values(&["m", "distribution"]).next().is_some() {
                        push(&["--nodelist", &list(seats.hosts, &|host| host.name.clone())]);
                    } else {
                        // srun sorts a list of nodes, unless it is a list with the node of each task.
                        push(&["--distribution", "arbitrary", "--nodelist", &seats.tasks(ranks).join(",")]);
                    }
                }
                if adds_ranks {
                    push(&["--ntasks", &ranks.to_string()]);
                }
                if let Some(list) = self.export.as_deref().filter(|_| self.values(&["export"]).next().is_none()) {
                    push(&[&format!("--export={}", with_variables(list, variables))]);
                }
            }
            Family::Flux => {
                let by_resource = self.values(&FLUX_PER_RESOURCE).next().is_some();
                if let Some(hosts) = hosts {
                    let own: Vec<String> =
                        self.values(&["requires"]).map(|theirs| format!("({theirs}) and ")).collect();
                    let names = list(hosts, &|host| host.name.clone());
                    push(&["--nodes", &hosts.len().to_string(), &format!("--requires={}hosts:{names}", own.concat())]);
                }
                if adds_ranks && !by_resource {
                    push(&["--ntasks", &ranks.to_string()]);
                }
            }
            Family::Hydra | Family::None => {}
        }
        words
    }
}

/// The value of srun's `--export`, together with our variables.
fn with_variables(list: &str, variables: &[Variable]) -> String {
    if list.split(',').any(|part| part == "ALL") {
        return list.to_owned();
    }
    let theirs = Some(list).filter(|list| !["", "NONE"].contains(list));
    let all: Vec<&str> = theirs.into_iter().chain(variables.iter().map(|(name, _)| *name)).collect();
    all.join(",")
}

fn parse_part(words: &[String], arity: &Arity, family: Family) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let bare = word.trim_start_matches('-');
        if bare.len() == word.len() || bare.is_empty() {
            items.push(Item::Program(words[at..].to_vec()));
            return Ok(items);
        }
        let item = option(&words[at..], bare, arity, family)?;
        at += match &item {
            Item::Option { words, .. } => words.len(),
            Item::Program(_) => 0,
        };
        items.push(item);
    }
    Err("the command line names no program to start".into())
}

/// Parses the option that `words` begins with.
fn option(words: &[String], bare: &str, arity: &Arity, family: Family) -> Result<Item, String> {
    let is_long = words[0].starts_with("--");
    if let Some((name, value)) = bare.split_once('=') {
        let values = vec![value.to_owned()];
        return Ok(Item::Option { name: name.into(), values, words: words[..1].to_vec() });
    }
    // srun and flux: `-n8`, and a cluster of flags such as `-lu`.
    if matches!(family, Family::Srun | Family::Flux) && !is_long && bare.chars().count() > 1 {
        let (name, value) = bare.split_at(bare.chars().next().map_or(0, char::len_utf8));
        let values = if arity.of(name) == 1 { vec![value.to_owned()] } else { Vec::new() };
        return Ok(Item::Option { name: name.into(), values, words: words[..1].to_vec() });
    }
    let count = arity.of(bare);
    let values = words.get(1..=count).ok_or_else(|| format!("{} lacks its value", words[0]))?;
    Ok(Item::Option { name: bare.into(), values: values.to_vec(), words: words[..=count].to_vec() })
}

/// Has a shell command submit the next job, waits for it, and returns what it says.
///
/// # Errors
/// The command cannot be started, takes too long, or fails; the error has its status and its message.
pub fn submit(command: &str) -> Result<String, String> {
    let said = asking::run(Command::new("/bin/sh").arg("-c").arg(command), SUBMIT_MAX);
    let said = said.map_err(|why| format!("{command}: {why}"))?;
    match said.status.success() {
        true => Ok(format!("the next job has been submitted: {}", said.out.trim())),
        false => Err(format!("{command}: {} {}", said.status, said.err.trim())),
    }
}

/// Starts a job in its own process group, with our standard output and error, so that nothing that happens to the
/// supervisor affects the job. A standard input that is a file is read from its start in each attempt; any other is empty.
///
/// The shell in between writes its process id, which remains that of the launcher, to `pid_file` before the launcher starts. Therefore
/// a new supervisor can find the job even if this supervisor dies at the next instruction. If the shell cannot write, the launcher
/// starts nevertheless.
///
/// # Errors
/// Any error that the system reports.
pub fn start(words: &[String], variables: &[Variable], pid_file: &Path) -> io::Result<Child> {
    const INPUT: &str = "/proc/self/fd/0";
    // The input is examined before it is opened: opening a pipe to which nobody writes would wait forever.
    let input = match std::fs::metadata(INPUT) {
        Ok(metadata) if metadata.is_file() => Stdio::from(File::open(INPUT)?),
        _ => Stdio::null(),
    };
    // noclobber: the file must not be there, not even as a symbolic link.
    let script = "set -C; echo $$ > \"$0\"; exec \"$@\"";
    let mut command = Command::new("/bin/sh");
    if std::env::var_os("SLURM_JOB_ID").is_some() && std::env::var_os("SLURM_OVERLAP").is_none() {
        // The step of a lost node may never end; without this variable, the next step would wait for its resources.
        command.env("SLURM_OVERLAP", "1");
    }
    command.args(["-c", script]).arg(pid_file).args(words).envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(input).process_group(0).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, family: Family) -> CommandLine {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        CommandLine::parse(&words, family).unwrap()
    }

    fn rewritten(text: &str, family: Family) -> String {
        let hosts = hosts::parse_list("a:2,b:2").unwrap();
        let seats = Seats { hosts: &hosts, in_order: true, file: Some("/run/seats") };
        line(text, family).words(Some(&seats), 4, &variables()).join(" ")
    }

    fn variables() -> [Variable; 1] {
        [("BIVOUAC_RUN_DIRECTORY", "/run".to_owned())]
    }

    #[test]
    fn flux_gets_a_constraint_that_names_the_hosts() {
        assert_eq!(
            rewritten("flux run -n 4 -o mpi=none prog -N 1", Family::Flux),
            "flux run --nodes 2 --requires=hosts:a,b -n 4 -o mpi=none prog -N 1"
        );
        assert_eq!(
            rewritten("flux run -N2 -n4 --requires=gpu|big --env=-* prog", Family::Flux),
            "flux run --nodes 2 --requires=(gpu|big) and hosts:a,b -n4 --env=-* --env=BIVOUAC_RUN_DIRECTORY prog"
        );
        assert_eq!(rewritten("flux run prog", Family::Flux), "flux run --nodes 2 --requires=hosts:a,b --ntasks 4 prog");
        assert_eq!(
            rewritten("flux run -N 2 --tasks-per-node=2 prog", Family::Flux),
            "flux run --nodes 2 --requires=hosts:a,b --tasks-per-node=2 prog"
        );
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(CommandLine::parse(&words("flux batch job"), Family::Flux).unwrap_err().contains("flux run"));
        assert!(CommandLine::parse(&words("flux"), Family::Flux).is_err());
    }

    #[test]
    fn open_mpi_hosts_are_replaced_wherever_they_are_named() {
        let wanted = "mpirun -x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -np 4 prog -H x --host y";
        for text in [
            "mpirun -np 4 prog -H x --host y",
            "mpirun -H c,d -np 4 prog -H x --host y",
            "mpirun --host c:2,d:2 -np 4 prog -H x --host y",
            "mpirun -host c -np 4 prog -H x --host y",
            "mpirun -np 4 --hostfile f prog -H x --host y",
            "mpirun -hostfile f -np 4 prog -H x --host y",
            "mpirun --machinefile f -np 4 prog -H x --host y",
            "mpirun --machinefile=f -np 4 prog -H x --host y",
        ] {
            assert_eq!(rewritten(text, Family::Openmpi), wanted, "{text}");
        }
    }

    #[test]
    fn open_mpi_options_with_values_do_not_hide_the_program() {
        let text =
            "mpirun --mca btl tcp,self -x PATH --map-by node --oversubscribe --bind-to none -n 8 ./sim -n 3 -H q";
        let line = line(text, Family::Openmpi);
        assert_eq!(line.ranks(), Ok(Some(8)));
        assert_eq!(line.hosts(), Ok(None));
        assert_eq!(
            line.words(None, 8, &variables()).join(" "),
            text.replacen("mpirun", "mpirun -x BIVOUAC_RUN_DIRECTORY", 1)
        );
    }

    #[test]
    fn ranks_that_the_command_line_does_not_give_are_fixed() {
        assert_eq!(
            rewritten("mpirun prog", Family::Openmpi),
            "mpirun -x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -n 4 prog"
        );
        assert_eq!(rewritten("srun prog", Family::Srun), "srun --nodes 2 --nodelist a,b --ntasks 4 prog");
        assert_eq!(
            rewritten("mpiexec prog", Family::Hydra),
            "mpiexec -genv BIVOUAC_RUN_DIRECTORY /run -hosts a:2,b:2 -n 4 prog"
        );
    }

    #[test]
    fn the_number_of_ranks_is_replaced_where_it_may_change() {
        let hosts = hosts::parse_list("a:2,b:1").unwrap();
        let words = |text: &str, family, is_placed: bool, in_order| {
            let mut line = line(text, family);
            line.set_elastic().unwrap();
            let seats = Seats { hosts: &hosts, in_order, file: None };
            line.words(is_placed.then_some(&seats), 3, &[]).join(" ")
        };
        for text in [
            "mpirun -np 8 prog --ranks={ranks} -n 8",
            "mpirun -n {ranks} prog --ranks={ranks} -n 8",
            "mpirun prog --ranks={ranks} -n 8",
        ] {
            let wanted = "mpirun --host a:2,b:1 -n 3 prog --ranks=3 -n 8";
            assert_eq!(words(text, Family::Openmpi, true, true), wanted);
            assert_eq!(words(text, Family::Openmpi, false, true), wanted.replace("--host a:2,b:1 ", ""));
            assert_eq!(words(text, Family::Hydra, true, true), wanted.replace("--host", "-hosts"));
        }
        let text = "srun --ntasks=8 -N 4 --mpi=pmix prog {ranks}";
        let rest = "--ntasks 3 --mpi=pmix prog 3";
        assert_eq!(words(text, Family::Srun, true, true), format!("srun --nodes 2 --nodelist a,b {rest}"));
        let arbitrary = "srun --nodes 2 --distribution arbitrary --nodelist a,a,b";
        assert_eq!(words(text, Family::Srun, true, false), format!("{arbitrary} {rest}"));
        assert_eq!(words("srun -n8 prog", Family::Srun, false, true), "srun --ntasks 3 prog");
        assert_eq!(words("./start -n {ranks}", Family::None, false, true), "./start -n 3");
        assert!(
            line("mpirun -n 1 a : -n 2 b", Family::Openmpi).set_elastic().unwrap_err().contains("several programs")
        );
        // Without --ranks, braces in the command line are not changed.
        assert_eq!(
            rewritten("mpirun -n 4 prog {ranks}", Family::Openmpi),
            "mpirun -x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -n 4 prog {ranks}"
        );
    }

    #[test]
    fn several_programs_share_the_hosts() {
        let text = "mpirun -n 1 --host c master : -n 3 --host d worker --host e";
        assert_eq!(line(text, Family::Openmpi).ranks(), Ok(Some(4)));
        assert_eq!(
            rewritten(text, Family::Openmpi),
            "mpirun -x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -n 1 master : -x BIVOUAC_RUN_DIRECTORY --host a:2,b:2 -n 3 worker --host e"
        );
        assert_eq!(
            rewritten("mpiexec -hosts c -n 1 master : -n 3 worker", Family::Hydra),
            "mpiexec -genv BIVOUAC_RUN_DIRECTORY /run -hosts a:2,b:2 -n 1 master : -n 3 worker"
        );
    }

    #[test]
    fn hydra_hosts_are_replaced() {
        let wanted = "mpiexec -genv BIVOUAC_RUN_DIRECTORY /run -hosts a:2,b:2 -n 4 -ppn 2 prog -f x";
        for text in [
            "mpiexec -n 4 -ppn 2 prog -f x",
            "mpiexec -hosts c,d -n 4 -ppn 2 prog -f x",
            "mpiexec -f hosts.txt -n 4 -ppn 2 prog -f x",
            "mpiexec -machinefile hosts.txt -n 4 -ppn 2 prog -f x",
            "mpiexec -n 4 -host c -ppn 2 prog -f x",
        ] {
            assert_eq!(rewritten(text, Family::Hydra), wanted, "{text}");
        }
        assert_eq!(line("mpiexec -genv A b -np 3 prog", Family::Hydra).ranks(), Ok(Some(3)));
    }

    #[test]
    fn srun_nodes_are_replaced() {
        let wanted = "srun --nodes 2 --nodelist a,b -n 4 --mpi=pmix prog -w x -N 9";
        for text in [
            "srun -n 4 --mpi=pmix prog -w x -N 9",
            "srun -N 2 -n 4 --mpi=pmix prog -w x -N 9",
            "srun -N2 -w c,d -n 4 --mpi=pmix prog -w x -N 9",
            "srun --nodes=2 --nodelist=c,d -n 4 --mpi=pmix prog -w x -N 9",
            "srun --nodelist c --nodes 3 -n 4 --mpi=pmix prog -w x -N 9",
        ] {
            assert_eq!(rewritten(text, Family::Srun), wanted, "{text}");
        }
        assert_eq!(line("srun -n8 -lu prog", Family::Srun).ranks(), Ok(Some(8)));
        assert_eq!(line("srun --ntasks=8 -K prog", Family::Srun).ranks(), Ok(Some(8)));
        assert_eq!(line("srun -Q -E --kill-on-bad-exit -n 2 prog", Family::Srun).ranks(), Ok(Some(2)));
    }

    #[test]
    fn srun_keeps_the_order_of_seats_that_spares_have_taken() {
        let hosts = hosts::parse_list("a:2,e:2,c:3").unwrap();
        let seats = Seats { hosts: &hosts, in_order: false, file: None };
        let words = |text: &str| line(text, Family::Srun).words(Some(&seats), 6, &variables()).join(" ");
        let arbitrary = "--distribution arbitrary --nodelist a,a,e,e,c,c";
        assert_eq!(words("srun -n 6 prog"), format!("srun --nodes 3 {arbitrary} -n 6 prog"));
        // A distribution that the user has chosen is kept.
        assert_eq!(words("srun -n 6 -m cyclic prog"), "srun --nodes 3 --nodelist a,e,c -n 6 -m cyclic prog");
    }

    #[test]
    fn open_mpi_in_a_batch_system_keeps_the_order_of_seats_that_spares_have_taken() {
        let hosts = hosts::parse_list("a:2,e:2,c:2").unwrap();
        let words = |text: &str, in_order, file| {
            let seats = Seats { hosts: &hosts, in_order, file };
            line(text, Family::Openmpi).words(Some(&seats), 6, &[]).join(" ")
        };
        assert_eq!(words("mpirun -n 6 p", false, Some("/f")), "mpirun --map-by seq --hostfile /f -n 6 p");
        for (in_order, file) in [(true, Some("/f")), (false, None)] {
            assert_eq!(words("mpirun -n 6 p", in_order, file), "mpirun --host a:2,e:2,c:2 -n 6 p");
        }
        let own = words("mpirun -n 6 --map-by node p", false, Some("/f"));
        assert_eq!(own, "mpirun --host a:2,e:2,c:2 -n 6 --map-by node p");
    }

    #[test]
    fn srun_hands_the_variable_on_whatever_it_exports() {
        let export = |value: &str| {
            line(&format!("srun -n 4 --export={value} prog"), Family::Srun).words(None, 4, &variables())[3].clone()
        };
        assert_eq!(export("NONE"), "--export=BIVOUAC_RUN_DIRECTORY");
        assert_eq!(export("A,B=3"), "--export=A,B=3,BIVOUAC_RUN_DIRECTORY");
        assert_eq!(export("ALL,A=1"), "--export=ALL,A=1");
    }

    #[test]
    fn srun_hands_the_variable_on_whatever_its_environment_exports() {
        let words = |text: &str, export: &str| {
            let mut line = line(text, Family::Srun);
            line.set_export(Some(export.to_owned()));
            line.words(None, 4, &variables()).join(" ")
        };
        assert_eq!(words("srun -n 4 prog", "NONE"), "srun --export=BIVOUAC_RUN_DIRECTORY -n 4 prog");
        assert_eq!(words("srun -n 4 prog", "ALL"), "srun --export=ALL -n 4 prog");
        // An option takes precedence over the environment.
        assert_eq!(words("srun --export=A prog", "NONE"), "srun --export=A,BIVOUAC_RUN_DIRECTORY prog");
    }

    #[test]
    fn hosts_and_agent_are_taken_from_the_command_line() {
        let hosts =
            |text: &str, family| line(text, family).hosts().map(|hosts| hosts.map(|hosts| hosts::names(&hosts)));
        assert_eq!(hosts("mpirun -H a:2,b -host c prog", Family::Openmpi), Ok(Some("a:2, b, c".into())));
        assert_eq!(hosts("srun -w n[1-2] prog", Family::Srun), Ok(Some("n1, n2".into())));
        assert_eq!(hosts("prog --host a", Family::None), Ok(None));
        assert!(hosts("mpirun --hostfile /nonexistent prog", Family::Openmpi).unwrap_err().contains("/nonexistent"));
        let agent = |text: &str, family| line(text, family).agent();
        assert_eq!(agent("mpirun --mca plm_rsh_agent my-ssh prog", Family::Openmpi).as_deref(), Some("my-ssh"));
        assert_eq!(agent("mpiexec -launcher-exec my-ssh prog", Family::Hydra).as_deref(), Some("my-ssh"));
        assert_eq!(agent("mpirun -n 1 prog --mca plm_rsh_agent x", Family::Openmpi), None);
    }

    #[test]
    fn broken_command_lines_are_refused() {
        let refused = |text: &str, family| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            assert!(CommandLine::parse(&words, family).is_err(), "{text}");
        };
        refused("", Family::Openmpi);
        refused("mpirun", Family::Openmpi);
        refused("mpirun -n", Family::Openmpi);
        refused("mpirun --mca btl", Family::Openmpi);
        refused("mpirun -n 2 prog :", Family::Openmpi);
        refused("srun -n 4", Family::Srun);
        for number in ["0", "x", "-3", "99999999999"] {
            assert!(line(&format!("mpirun -n {number} prog"), Family::Openmpi).ranks().is_err(), "{number}");
        }
    }

    #[test]
    fn any_other_program_is_left_as_it_is() {
        let text = "./simulate --host a -n 3";
        assert_eq!(rewritten(text, Family::None), text);
        assert_eq!(line(text, Family::None).ranks(), Ok(None));
        assert_eq!(family_of("./simulate"), Family::None);
        assert_eq!(family_of("/usr/bin/srun"), Family::Srun);
        assert_eq!(family_of("mpiexec.hydra"), Family::Hydra);
    }
}
