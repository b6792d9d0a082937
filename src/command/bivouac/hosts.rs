//! Turns host lists, as users, host files and batch systems write them, into hosts with slots.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;

/// The maximum number of hosts in a list: a mistyped range must not fill the memory.
const HOSTS_MAX: usize = 100_000;

/// A host and how many ranks it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name, as the launcher knows it.
    pub name: String,
    /// The number of ranks that it takes; `None` if nobody has said.
    pub slots: Option<u32>,
}

impl Host {
    /// Makes a host with that name.
    ///
    /// # Errors
    /// A launcher or a shell could read the name as an option, or as something other than a name.
    pub fn new(name: &str, slots: Option<u32>) -> Result<Host, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fits = !name.is_empty() && name.len() <= 255 && !name.starts_with('-') && name.chars().all(plain);
        if !fits {
            return Err(format!("{name:?} is not a host name: letters, digits, '.', '_' and '-' are allowed"));
        }
        Ok(Host { name: name.to_owned(), slots })
    }

    /// Is it this machine, which nobody needs to ask whether it answers?
    pub fn is_local(&self) -> bool {
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        ["localhost", "127.0.0.1", own.as_str()].contains(&self.name.as_str())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slots {
            Some(slots) => write!(f, "{}:{slots}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Hosts in words: `node1:2, node2:2`.
pub fn names(hosts: &[Host]) -> String {
    hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(", ")
}

/// The number of ranks that the hosts have room for.
pub fn room(hosts: &[Host]) -> u64 {
    hosts.iter().map(|host| u64::from(host.slots.unwrap_or(1))).sum()
}

/// Adds a host to a list. A host that is named again adds its slots (as `--host a,a` does).
fn add(hosts: &mut Vec<Host>, name: &str, slots: Option<u32>) -> Result<(), String> {
    let host = Host::new(name, slots)?;
    match hosts.iter_mut().find(|known| known.name == name) {
        Some(known) => {
            let sum = known.slots.unwrap_or(1).checked_add(slots.unwrap_or(1));
            known.slots = Some(sum.ok_or_else(|| format!("host {name} has too many slots"))?);
        }
        None => hosts.push(host),
    }
    if hosts.len() > HOSTS_MAX {
        return Err(format!("more than {HOSTS_MAX} hosts"));
    }
    Ok(())
}

fn slots_of(text: &str) -> Result<u32, String> {
    let slots = text.parse::<u32>().ok().filter(|slots| *slots > 0);
    slots.ok_or_else(|| format!("{text:?} is not a number of slots"))
}

/// Parses `a:2,b,c[01-04]:2`: names with slots and ranges.
///
/// # Errors
/// A part cannot be read; the error says which.
pub fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for part in split_outside_brackets(text)? {
        let (names, slots) = match part.rsplit_once(':') {
            Some((names, slots)) => (names, Some(slots_of(slots)?)),
            None => (part, None),
        };
        for name in expand(names)? {
            add(&mut hosts, &name, slots)?;
        }
    }
    if hosts.is_empty() {
        return Err("the host list is empty".into());
    }
    Ok(hosts)
}

/// Parses a host file, which has one host per line, with slots as Open MPI (`node1 slots=2`) or MPICH (`node1:2`)
/// writes them; `#` begins a comment.
///
/// # Errors
/// A line cannot be read; the error says which.
pub fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let at = |why: String| format!("line {number}: {why}");
        let (name, mut slots) = match first.split_once(':') {
            Some((name, slots)) => (name, Some(slots_of(slots).map_err(at)?)),
            None => (first, None),
        };
        for word in words {
            // Other keywords (max_slots, binding, if-names) do not change how many ranks a host takes.
            if let Some(number) = word.strip_prefix("slots=") {
                slots = Some(slots_of(number).map_err(at)?);
            }
        }
        add(&mut hosts, name, slots).map_err(at)?;
    }
    if hosts.is_empty() {
        return Err("the host file names no host".into());
    }
    Ok(hosts)
}

/// Reads a host file.
///
/// # Errors
/// The file cannot be read, or a line is wrong; the error says which.
pub fn read_file(path: &Path) -> Result<Vec<Host>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("host file {}: {error}", path.display()))?;
    parse_file(&text).map_err(|why| format!("host file {}: {why}", path.display()))
}

/// Parses names with ranges, as SLURM and Flux write them, and the tasks of each host, as SLURM writes them: `node[1-3,7]` and `2(x3),1`.
///
/// # Errors
/// A part cannot be read; the error says which.
pub fn parse_nodes(nodes: &str, tasks: Option<&str>) -> Result<Vec<Host>, String> {
    let mut names = Vec::new();
    for part in split_outside_brackets(nodes)? {
        names.extend(expand(part)?);
    }
    let counts = match tasks {
        Some(tasks) => counts(tasks, names.len())?,
        None => vec![None; names.len()],
    };
    let mut hosts = Vec::new();
    for (name, slots) in names.iter().zip(counts) {
        add(&mut hosts, name, slots)?;
    }
    if hosts.is_empty() {
        return Err("the node list is empty".into());
    }
    Ok(hosts)
}

/// Parses `node1 16 node2 8`: each host and its slots, as LSF writes them.
///
/// # Errors
/// A part cannot be read; the error says which.
pub fn parse_pairs(text: &str) -> Result<Vec<Host>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut hosts = Vec::new();
    for pair in words.chunks(2) {
        let [name, slots] = pair else { return Err(format!("{text:?} ends with a host without slots")) };
        add(&mut hosts, name, Some(slots_of(slots)?))?;
    }
    if hosts.is_empty() {
        return Err("the host list is empty".into());
    }
    Ok(hosts)
}

/// Expands `2(x3),1` to `2,2,2,1`; there must be exactly `nodes` counts.
fn counts(text: &str, nodes: usize) -> Result<Vec<Option<u32>>, String> {
    let wrong = || format!("{text:?} does not give the number of tasks on each of {nodes} nodes");
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')').and_then(|times| times.parse().ok())),
            None => (part, Some(1)),
        };
        let times: usize = times.ok_or_else(wrong)?;
        if counts.len().saturating_add(times) > nodes {
            return Err(wrong());
        }
        counts.extend(std::iter::repeat_n(Some(slots_of(number)?), times));
    }
    if counts.len() == nodes { Ok(counts) } else { Err(wrong()) }
}

fn split_outside_brackets(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0usize, 0i32);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(format!("{text:?}: brackets do not match"));
        }
    }
    if depth != 0 {
        return Err(format!("{text:?}: brackets do not match"));
    }
    parts.push(&text[start..]);
    Ok(parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect())
}

/// Expands `node[08-10,12]` to `node08`, `node09`, `node10`, `node12`; several brackets multiply.
fn expand(text: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = text.split_once('[') else { return Ok(vec![text.to_owned()]) };
    let (ranges, after) = rest.split_once(']').ok_or_else(|| format!("{text:?}: brackets do not match"))?;
    let mut middles = Vec::new();
    for range in ranges.split(',') {
        let wrong = || format!("{range:?} in {text:?} is not a range of numbers");
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return Err(wrong());
        }
        let bounds = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
        let (low, high) = bounds.filter(|(low, high)| low <= high).ok_or_else(wrong)?;
        if high - low >= HOSTS_MAX - middles.len().min(HOSTS_MAX) {
            return Err(format!("{text:?} names more than {HOSTS_MAX} hosts"));
        }
        // Leading zeros belong to the name.
        middles.extend((low..=high).map(|number| format!("{number:0width$}", width = first.len())));
    }
    let tails = expand(after)?;
    if middles.len().saturating_mul(tails.len()) > HOSTS_MAX {
        return Err(format!("{text:?} names more than {HOSTS_MAX} hosts"));
    }
    Ok(middles.iter().flat_map(|middle| tails.iter().map(move |tail| format!("{before}{middle}{tail}"))).collect())
}

/// Returns the hosts without those to be left out. Slots that nobody has given are filled in, so that all hosts except
/// the spares together take all ranks.
///
/// # Errors
/// No host is left besides the spares.
pub fn settle(hosts: Vec<Host>, exclude: &[Host], spares: usize, ranks: u32) -> Result<Vec<Host>, String> {
    let is_out = |host: &Host| exclude.iter().any(|out| out.name == host.name);
    let mut hosts: Vec<Host> = hosts.iter().filter(|host| !is_out(host)).cloned().collect();
    if hosts.len() <= spares {
        return Err(format!("{} hosts, of which {spares} are to be spares: none is left to compute", hosts.len()));
    }
    let working = (hosts.len() - spares) as u32;
    for host in &mut hosts {
        host.slots.get_or_insert_with(|| ranks.div_ceil(working).max(1));
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(hosts: Result<Vec<Host>, String>) -> String {
        names(&hosts.unwrap())
    }

    #[test]
    fn lists_have_slots_repetitions_and_ranges() {
        assert_eq!(text(parse_list("a:2,b:2")), "a:2, b:2");
        assert_eq!(text(parse_list("a,b")), "a, b");
        assert_eq!(text(parse_list("a,a,b")), "a:2, b");
        assert_eq!(text(parse_list("n[08-10,12]:4, x.example-1")), "n08:4, n09:4, n10:4, n12:4, x.example-1");
    }

    #[test]
    fn files_of_both_libraries_are_read() {
        assert_eq!(
            text(parse_file("# mine\nnode1 slots=2 max_slots=4\n\nnode2:3  # big\nnode3\n")),
            "node1:2, node2:3, node3"
        );
        assert!(parse_file("node1 slots=two\n").unwrap_err().starts_with("line 1: "));
        assert!(parse_file("# nothing\n").is_err());
    }

    #[test]
    fn pairs_of_hosts_and_slots_are_read() {
        assert_eq!(text(parse_pairs("a 16 b 8 a 1")), "a:17, b:8");
        for pairs in ["", "a", "a 1 b", "a x", "a 0", "-x 1"] {
            assert!(parse_pairs(pairs).is_err(), "{pairs}");
        }
    }

    #[test]
    fn node_lists_are_expanded() {
        assert_eq!(
            text(parse_nodes("node[1-3,7],head", Some("2(x3),1,4"))),
            "node1:2, node2:2, node3:2, node7:1, head:4"
        );
        assert_eq!(text(parse_nodes("r[1-2]n[01-02]", None)), "r1n01, r1n02, r2n01, r2n02");
        for (nodes, tasks) in
            [("node[1-3]", "2(x2)"), ("node[1-3]", "2(x4)"), ("node1", "0"), ("node1", "2(x99999999999999999999)")]
        {
            assert!(parse_nodes(nodes, Some(tasks)).is_err(), "{nodes} {tasks}");
        }
    }

    #[test]
    fn bad_lists_are_refused_and_large_ones_never_built() {
        let bad = [
            "",
            ",",
            "a:0",
            "a:x",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "n[1-",
            "n1]",
            "n[[1]]",
            "n[3-1]",
            "n[x]",
            "n[]",
            "n[1-]",
            "n[0-999999999]",
            "n[1-99999][1-99999][1-99999]",
            "a/b",
            "$(x)",
            "n[1-2147483648]",
            "a:4294967295,a:1",
        ];
        for list in bad {
            assert!(parse_list(list).is_err(), "{list}");
        }
    }

    #[test]
    fn slots_that_nobody_gave_hold_the_ranks_without_the_spares() {
        let hosts = parse_list("a,b,c,d,e").unwrap();
        assert_eq!(text(settle(hosts.clone(), &[], 1, 8)), "a:2, b:2, c:2, d:2, e:2");
        let exclude = parse_list("b").unwrap();
        assert_eq!(text(settle(hosts.clone(), &exclude, 1, 8)), "a:3, c:3, d:3, e:3");
        // A list of bad nodes may name more nodes than this job has.
        assert_eq!(settle(hosts.clone(), &parse_list("b,z").unwrap(), 0, 8).unwrap().len(), 4);
        assert!(settle(hosts, &[], 5, 8).is_err());
    }
}
