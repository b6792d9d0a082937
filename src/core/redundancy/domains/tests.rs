//! Tests of topologies from text, of the look-up of hosts, and of resistance to hostile text.
#![forbid(unsafe_code)]

use super::*;
use proptest::prelude::*;

const SAMPLE: &str = include_str!("../../../../config/topology.toml");

/// The output of `scontrol show topology` in SLURM 22.05.
const SCONTROL: &str = "\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=node[1-4]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[5-8,10]
SwitchName=root Level=1 LinkSpeed=1 Nodes=node[1-8,10] Switches=leaf[0-1]
";

fn hosts(list: &str) -> Vec<String> {
    list.split_whitespace().map(str::to_owned).collect()
}

fn toml(text: &str) -> Topology {
    Topology::from_toml(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn slurm(text: &str) -> Topology {
    Topology::from_slurm(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn of_node(list: &str, topology: &Topology) -> Vec<u32> {
    domains_of(&hosts(list), topology).unwrap_or_else(|error| panic!("{list}: {error}")).of_node
}

#[test]
fn the_example_file_says_what_its_comments_say() {
    let topology = toml(SAMPLE);
    let domains = domains_of(&hosts("node01 node16 node17 login2 data1 node1"), &topology).unwrap();
    let names: Vec<&str> = domains.of_node.iter().map(|domain| domains.names[*domain as usize].as_str()).collect();
    assert_eq!(names, ["rack-1", "rack-1", "rack-2", "service", "service", "node1"]);
    assert_eq!(domains.notes, ["The topology does not list node1: each of them counts as a separate failure domain."]);
    let by_switch = toml(&SAMPLE.replace("domain = \"rack\"", "domain = \"switch\""));
    assert_eq!(by_switch.count(), 4);
    assert_eq!(of_node("node01 node08 node09 node32", &by_switch), [0, 0, 1, 3]);
}

#[test]
fn one_section_need_not_be_chosen() {
    assert_eq!(of_node("a b c", &toml("[rack]\nr1 = 'a,b'\nr2 = ['c']\nr3 = []")), [0, 0, 1]);
}

#[test]
fn mistakes_in_a_file_are_told_with_their_place() {
    for (text, expected) in [
        ("", "the topology lists no hosts: it needs a section like [rack]"),
        ("domain = 'rack'", "the topology lists no hosts"),
        ("[rack]\nr1 = 'a\n", "line 2: "),
        ("domain = 1\n[rack]\nr1 = 'a'", "domain must be the name of a section"),
        ("domain = 'row'\n[rack]\nr1 = 'a'", "there is no [row]; the sections are: rack"),
        ("[rack]\nr1 = 'a'\n[switch]\ns1 = 'a'", "domain must name the section to use; the sections are: rack, switch"),
        ("rack = 'a'", "rack must be a section with a line for each failure domain"),
        ("[rack]\nr1 = 5", "[rack] r1 must be a list of hosts as a string, or an array of such strings"),
        ("[rack]\nr1 = ['a', 5]", "[rack] r1 must be"),
        ("[rack]\nr1 = 'node[1-'", "[rack] r1: brackets do not match in \"node[1-\""),
        ("[rack]\nr1 = ''", "[rack] r1: a host is missing"),
        ("[rack]\nr1 = 'a[1-600000]'\nr2 = 'b[1-600000]'", "[rack] r2: the list names more than 1000000 hosts"),
        // A section is read even if it is not chosen.
        ("domain = 'a'\n[a]\nx = 'y'\n[b]\nx = '['", "[b] x: brackets"),
    ] {
        let error = Topology::from_toml(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn leaf_switches_are_domains_and_upper_switches_are_not() {
    assert_eq!(of_node("node1 node4 node5 node10 node9", &slurm(SCONTROL)), [0, 0, 1, 1, 2]);
    let conf = "# our network\nSwitchName=s0 Nodes=n[0-1] # left\n\nswitchname=s1 NODES=n[2-3] LinkSpeed=100\n\
                SwitchName=s2 Switches=s[0-1]\n";
    assert_eq!(of_node("n0 n1 n2 n3", &slurm(conf)), [0, 0, 1, 1]);
    let joined = "SwitchName=s0 \\\n  Nodes=n[0-1]\nSwitchName=s1 Nodes=n2\n";
    assert_eq!(of_node("n1 n2", &slurm(joined)), [0, 1]);
    let blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n\
                  AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\nBlockSizes=2,4\n";
    assert_eq!(of_node("n1 n2 n3", &slurm(blocks)), [0, 0, 1]);
}

#[test]
fn slurm_without_a_topology_is_told_apart_from_strange_lines() {
    for text in ["", "# nothing\n", "SwitchName=s0\n", "SwitchName=s1 Nodes=a Switches=s0\n", "No topology here\n"] {
        assert!(matches!(Topology::from_slurm(text), Err(TopologyError::Nothing { .. })), "{text}");
    }
    let error = Topology::from_slurm("SwitchName=a Nodes=x\nSwitchName=b Nodes=x[1-\n").unwrap_err();
    assert_eq!(error.to_string(), "line 2: brackets do not match in \"x[1-\"");
    let topology = slurm("include other.conf\nSwitchName=a Nodes=x\nwhat=ever\n");
    let domains = domains_of(&hosts("x"), &topology).unwrap();
    assert_eq!(domains.notes, ["2 lines were not understood; the first is line 1."]);
}

#[test]
fn short_and_full_names_are_the_same_host() {
    let topology = toml("[rack]\na = 'node1,node2.b.example,10.0.0.1'\nb = '10.0.0.2,10'");
    assert_eq!(of_node("node1.b.example NODE2 node2.b.example Node1", &topology), [0, 0, 0, 0]);
    // A different domain part means a different host, and an address has no short form.
    assert_eq!(of_node("node2.c.example 10.0.0.2 10.0.0.1 10.0.0.3", &topology), [2, 1, 0, 3]);
    // A host that is listed by its full name is not confused with its namesake.
    let topology = toml("[rack]\na = 'node1'\nb = 'node1.b'\nc = 'node1.c'");
    assert_eq!(of_node("node1 node1.b node1.c node1.d", &topology), [0, 1, 2, 0]);
}

#[test]
fn a_host_in_two_domains_is_an_error_and_a_stranger_is_not() {
    let topology = toml("[rack]\na = 'x[1-3]'\nb = 'x[3-5],x3'");
    let error = domains_of(&hosts("x1 x3"), &topology).unwrap_err();
    assert_eq!(error.to_string(), "host x3 is listed in a and in b; a host may have only one failure domain");
    assert_eq!(of_node("x1 x5", &topology), [0, 1]);
    // This short name could be either of two hosts.
    let topology = toml("[rack]\na = 'y.a'\nb = 'y.b'");
    assert!(matches!(domains_of(&hosts("y"), &topology), Err(TopologyError::TwoDomains { .. })));
    // A host may be listed twice in the same domain.
    assert_eq!(of_node("z", &toml("[rack]\na = 'z,z'")), [0]);
}

#[test]
fn nodes_of_one_host_name_fail_together() {
    let topology = toml("[rack]\na = 'x'");
    assert_eq!(of_node("x other x other last", &topology), [0, 1, 0, 1, 2]);
    assert_eq!(of_node("", &topology), [0u32; 0]);
}

#[test]
fn a_large_topology_is_looked_up() {
    let text: String = (0..20_000).map(|leaf| format!("SwitchName=leaf{leaf} Nodes=node{leaf:05}n[01-50]\n")).collect();
    let topology = slurm(&text);
    let ours: Vec<String> = (0..20_000).map(|leaf| format!("node{leaf:05}n50.example")).collect();
    assert_eq!(domains_of(&ours, &topology).unwrap().of_node, (0..20_000).collect::<Vec<u32>>());
}

#[test]
fn hostile_text_gives_short_errors() {
    let repeat = |text: &str| text.repeat(300_000 / text.len());
    for text in [
        repeat("["),
        repeat("a."),
        repeat("[a]\n"),
        format!("[rack]\nr = '{}'", repeat("a[")),
        format!("[rack]\nr = '{}'", repeat("[0-999999999]")),
        format!("[rack]\nr = '{}'", repeat("x")),
        format!("[{}]\nr = 'x y'", repeat("y")),
        format!("domain = '{}'\n[rack]\nr = 'x'", repeat("z")),
        format!("[rack]\n'{}' = 5", repeat("k")),
        (0..20_000).map(|i| format!("[s{i}]\na = 'x'\n")).collect(),
    ] {
        let error = Topology::from_toml(&text).unwrap_err().to_string();
        assert!(error.len() < 2000, "{}", error.len());
    }
    assert!(matches!(Topology::from_toml(&"#".repeat(TEXT_BYTES_MAX + 1)), Err(TopologyError::TooLarge { .. })));
    assert!(matches!(Topology::from_slurm(&" ".repeat(TEXT_BYTES_MAX + 1)), Err(TopologyError::TooLarge { .. })));
    // This is one long line with many continuations. If it were copied at each of them, this would take minutes.
    let joined = format!("SwitchName={}{}", "s".repeat(TEXT_BYTES_MAX / 2), repeat("\\\n"));
    assert!(matches!(Topology::from_slurm(&joined), Err(TopologyError::Nothing { .. })));
    let error = Topology::from_slurm(&format!("SwitchName={} Nodes=[", repeat("s"))).unwrap_err().to_string();
    assert!(error.len() < 1000);
    // Even many unlisted hosts of the job make only one short note.
    let ours: Vec<String> = (0..100_000).map(|host| format!("h{host}")).collect();
    let domains = domains_of(&ours, &toml("[rack]\na = 'x'")).unwrap();
    assert_eq!(domains.of_node.len(), 100_000);
    assert!(domains.notes[0].ends_with("and 99992 more: each of them counts as a separate failure domain."));
}

proptest! {
    #[test]
    fn arbitrary_text_is_refused_or_answers(
        text in any::<String>(),
        words in proptest::collection::vec(
            prop_oneof![
                Just("SwitchName=s"), Just("Nodes=n[1-4]"), Just("Nodes=a,b"), Just("Switches=s"), Just("\n"), Just("#"),
                Just("\\\n"), Just("[rack]\n"), Just("r = 'a[1-3]'\n"), Just("domain = 'rack'\n"), Just("q = ['b']\n"), Just("="),
            ],
            0..12,
        ),
        ours in proptest::collection::vec("[ab][1-4]?(\\.x)?", 0..6),
    ) {
        for text in [text, words.join(" "), words.concat()] {
            for topology in [Topology::from_toml(&text), Topology::from_slurm(&text)] {
                match topology.and_then(|topology| domains_of(&ours, &topology)) {
                    Err(error) => prop_assert!(!error.to_string().is_empty()),
                    Ok(domains) => {
                        prop_assert_eq!(domains.of_node.len(), ours.len());
                        prop_assert!(domains.of_node.iter().all(|domain| (*domain as usize) < domains.names.len()));
                    }
                }
            }
        }
    }
}
