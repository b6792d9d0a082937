//! The section `[redundancy]`: which scheme protects which checkpoints against the loss of nodes.
//!
//! A [`Scheme`] has one spelling (`partner(2)`, `xor(8)`, `rs(4,2)`), and [`NamePolicies`] is a table of exceptions for
//! single checkpoint names. Both read what they print.
#![forbid(unsafe_code)]

use super::kinds::{FROM_ONE, SCHEME, SPAN};
use super::names::is_name;
use super::raw::Raw;
use super::values::{Choice, LevelPolicy};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The maximum number of copies that `partner` makes.
const COPIES_MAX: u32 = 8;
/// The maximum number of parity members of an `rs` set.
const PARITY_MAX: u32 = 8;
/// The maximum number of members of a set.
const MEMBERS_MAX: u32 = 64;
/// The copies of a bare `partner`.
const COPIES: u32 = 1;
/// The members of a bare `xor`.
const MEMBERS: u32 = 8;

/// How the ranks of a redundancy set cover each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Scheme {
    /// There is no redundancy.
    #[default]
    None,
    /// Each rank's shard is stored whole on this many other ranks as well.
    Partner {
        /// Copies in addition to the original, 1 to 8.
        copies: u32,
    },
    /// Parity by exclusive or, spread over the set.
    Xor {
        /// Members of a set, 2 to 64; the equivalent of one of them is parity.
        members: u32,
    },
    /// Reed-Solomon parity, spread over the set.
    Rs {
        /// The number of members whose equivalent is data, at least 1.
        data: u32,
        /// The number of members whose equivalent is parity, 1 to 8; at most 64 members in all.
        parity: u32,
    },
}

impl Scheme {
    /// The number of members of a set that may be lost at once.
    pub fn parity(&self) -> u32 {
        match *self {
            Scheme::None => 0,
            Scheme::Partner { copies } => copies,
            Scheme::Xor { .. } => 1,
            Scheme::Rs { parity, .. } => parity,
        }
    }

    /// The number of members of a set: a rank and its copies, or data and parity together.
    pub fn members(&self) -> u32 {
        match *self {
            Scheme::None => 1,
            Scheme::Partner { copies } => copies.saturating_add(1),
            Scheme::Xor { members } => members,
            Scheme::Rs { data, parity } => data.saturating_add(parity),
        }
    }

    fn is_allowed(&self) -> bool {
        match *self {
            Scheme::None => true,
            Scheme::Partner { copies } => (1..=COPIES_MAX).contains(&copies),
            Scheme::Xor { members } => (2..=MEMBERS_MAX).contains(&members),
            Scheme::Rs { data, parity } => {
                data >= 1 && (1..=PARITY_MAX).contains(&parity) && self.members() <= MEMBERS_MAX
            }
        }
    }
}

/// Prints the spelling that [`Scheme::from_str`] reads back: `none`, `partner(1)`, `xor(8)`, `rs(4,2)`.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::None => f.write_str("none"),
            Scheme::Partner { copies } => write!(f, "partner({copies})"),
            Scheme::Xor { members } => write!(f, "xor({members})"),
            Scheme::Rs { data, parity } => write!(f, "rs({data},{parity})"),
        }
    }
}

/// The text is not a scheme, or its numbers are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a redundancy scheme must be {}", SCHEME_ALLOWED)]
pub struct NotAScheme;

/// The schemes, in words.
pub(super) const SCHEME_ALLOWED: &str = "\"none\", \"partner\" or \"partner(N)\" with 1 to 8 copies, \"xor\" or \
    \"xor(N)\" with 2 to 64 members, or \"rs(K,M)\" with K data and M parity members, where K is at least 1, M is 1 to 8, \
    and there are at most 64 in all";

/// Reads a scheme. Blanks around words and numbers have no effect.
impl FromStr for Scheme {
    type Err = NotAScheme;

    fn from_str(text: &str) -> Result<Self, NotAScheme> {
        let text = text.trim();
        let (word, numbers) = match text.split_once('(') {
            None => (text, Vec::new()),
            Some((word, rest)) => {
                let inner = rest.strip_suffix(')').ok_or(NotAScheme)?;
                let numbers: Option<Vec<u32>> = inner.split(',').map(|text| whole_number(text.trim())).collect();
                (word.trim_end(), numbers.ok_or(NotAScheme)?)
            }
        };
        let scheme = match (word, numbers[..].as_ref()) {
            ("none", []) => Scheme::None,
            ("partner", []) => Scheme::Partner { copies: COPIES },
            ("partner", [copies]) => Scheme::Partner { copies: *copies },
            ("xor", []) => Scheme::Xor { members: MEMBERS },
            ("xor", [members]) => Scheme::Xor { members: *members },
            ("rs", [data, parity]) => Scheme::Rs { data: *data, parity: *parity },
            _ => return Err(NotAScheme),
        };
        if scheme.is_allowed() { Ok(scheme) } else { Err(NotAScheme) }
    }
}

/// Reads a number that consists of digits only. Rust's parser would also accept a sign.
fn whole_number<T: FromStr>(text: &str) -> Option<T> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Where copies and parity are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PartStore {
    /// In node memory.
    #[default]
    Memory,
    /// In node memory and on the local tier.
    Local,
}

impl PartStore {
    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            PartStore::Memory => "memory",
            PartStore::Local => "local",
        }
    }
}

impl fmt::Display for PartStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The source of the failure domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum DomainSource {
    /// None: each node is a failure domain of its own.
    #[default]
    Node,
    /// SLURM's topology: the leaf switch of a node is its failure domain.
    Slurm,
    /// A topology file in the form of `config/topology.toml`.
    File(PathBuf),
}

/// Which checkpoints are protected against the loss of nodes, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct RedundancyConfig {
    /// The scheme of all names that [`RedundancyConfig::names`] does not list.
    pub scheme: Scheme,
    /// Every n-th checkpoint of a name is protected (1: all).
    pub every: Choice<u64>,
    /// In addition, a checkpoint is protected whenever this long has passed since the last protected one. Zero: never for that reason.
    pub every_seconds: Duration,
    /// Exceptions for single checkpoint names.
    pub names: NamePolicies,
    /// Where copies and parity are kept.
    pub store: PartStore,
    /// The source of the failure domains.
    pub domains: DomainSource,
}

impl Default for RedundancyConfig {
    fn default() -> Self {
        RedundancyConfig {
            scheme: Scheme::None,
            every: Choice::Fixed(1),
            every_seconds: Duration::ZERO,
            names: NamePolicies::default(),
            store: PartStore::Memory,
            domains: DomainSource::Node,
        }
    }
}

impl RedundancyConfig {
    /// Are the parts that ranks keep for each other on local storage before their level counts?
    pub fn has_stored_parts(&self) -> bool {
        self.store == PartStore::Local
    }

    /// The scheme for checkpoints of this name, and which of them it protects.
    ///
    /// Only `every` and `every_seconds` of the second value are used here. A checkpoint's copies and parity stay as long as its shards, so
    /// the `keep_…` fields have their defaults. [`crate::policy::is_due`] takes this value.
    pub fn policy_for(&self, name: &str) -> (Scheme, LevelPolicy) {
        let found = self.names.0.iter().find(|policy| policy.name == name);
        let own = found.cloned().unwrap_or_default();
        let policy = LevelPolicy {
            every: own.every.map_or(self.every, Choice::Fixed),
            every_seconds: own.every_seconds.unwrap_or(self.every_seconds),
            ..LevelPolicy::default()
        };
        (own.scheme.unwrap_or(self.scheme), policy)
    }

    /// All schemes that protect anything, each listed once: the general scheme first, then the schemes of exceptions.
    pub fn schemes(&self) -> Vec<Scheme> {
        let own = self.names.0.iter().filter_map(|policy| policy.scheme);
        let mut schemes = Vec::new();
        for scheme in [self.scheme].into_iter().chain(own) {
            if scheme != Scheme::None && !schemes.contains(&scheme) {
                schemes.push(scheme);
            }
        }
        schemes
    }

    /// The first scheme that protects anything: the general scheme, or the scheme of an exception. `None` if nothing does.
    pub fn first_scheme(&self) -> Option<Scheme> {
        let own = self.names.0.iter().filter_map(|policy| policy.scheme);
        [self.scheme].into_iter().chain(own).find(|scheme| *scheme != Scheme::None)
    }
}

/// The settings for one checkpoint name; `None` where the general setting applies.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct NamePolicy {
    /// The checkpoint name.
    pub name: String,
    /// Its scheme.
    pub scheme: Option<Scheme>,
    /// Every n-th checkpoint is protected, from 1.
    pub every: Option<u64>,
    /// In addition, a checkpoint is protected whenever this long has passed since the last protected one.
    pub every_seconds: Option<Duration>,
}

/// Exceptions for single checkpoint names, in the order of the text.
///
/// They are written as a TOML table, here on one line, as in an environment variable:
///
/// ```
/// use bivouac::config::NamePolicies;
///
/// let text = r#"{ mesh = "none", heat = { scheme = "rs(2,2)", every = 5 }, wind = { every_seconds = "10min" } }"#;
/// let policies: NamePolicies = text.parse()?;
/// assert_eq!(policies.as_slice()[1].every, Some(5));
/// # Ok::<(), bivouac::config::NotNamePolicies>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
pub struct NamePolicies(Vec<NamePolicy>);

impl NamePolicies {
    /// The exceptions.
    pub fn as_slice(&self) -> &[NamePolicy] {
        &self.0
    }

    pub(super) fn read(raw: &Raw) -> Option<NamePolicies> {
        let table = raw.table()?;
        table.iter().map(|(name, value)| name_policy(name, value)).collect::<Option<_>>().map(NamePolicies)
    }

    pub(super) fn show(&self) -> Raw {
        let of = |policy: &NamePolicy| {
            let scheme = policy.scheme.map(|scheme| ("scheme".to_owned(), (SCHEME.show)(&scheme)));
            let every = policy.every.map(|every| ("every".to_owned(), (FROM_ONE.show)(&every)));
            let seconds = policy.every_seconds.map(|span| ("every_seconds".to_owned(), (SPAN.show)(&span)));
            let value = match (scheme, every, seconds) {
                (Some((_, scheme)), None, None) => scheme,
                (scheme, every, seconds) => Raw::Table([scheme, every, seconds].into_iter().flatten().collect()),
            };
            (policy.name.clone(), value)
        };
        Raw::Table(self.0.iter().map(of).collect())
    }
}

/// The text is not a table of exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exceptions for checkpoint names must be {}", NAMES_ALLOWED)]
pub struct NotNamePolicies;

/// The form of the table, in words.
pub(super) const NAMES_ALLOWED: &str = "a table with a key for each checkpoint name, whose value is a scheme, or a table with scheme, \
    every (a whole number from 1) and every_seconds (a duration): { mesh = \"none\", heat = { scheme = \"rs(2,2)\", every = 5 } }";

impl FromStr for NamePolicies {
    type Err = NotNamePolicies;

    fn from_str(text: &str) -> Result<Self, NotNamePolicies> {
        NamePolicies::read(&Raw::Word(text.to_owned())).ok_or(NotNamePolicies)
    }
}

/// Prints the text that [`NamePolicies::from_str`] reads back.
impl fmt::Display for NamePolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.show(), f)
    }
}

fn name_policy(name: &str, value: &Raw) -> Option<NamePolicy> {
    let mut policy = NamePolicy { name: Some(name).filter(|name| is_name(name))?.to_owned(), ..NamePolicy::default() };
    match value {
        Raw::Text(_) => policy.scheme = Some((SCHEME.read)(value)?),
        Raw::Table(settings) if !settings.is_empty() => {
            for (key, value) in settings {
                match key.as_str() {
                    "scheme" => policy.scheme = Some((SCHEME.read)(value)?),
                    "every" => policy.every = Some((FROM_ONE.read)(value)?),
                    "every_seconds" => policy.every_seconds = Some((SPAN.read)(value)?),
                    _ => return None,
                }
            }
        }
        _ => return None,
    }
    Some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policies(text: &str) -> NamePolicies {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn schemes_are_read_in_all_their_notations() {
        for (text, scheme, parity, members) in [
            ("none", Scheme::None, 0, 1),
            ("partner", Scheme::Partner { copies: 1 }, 1, 2),
            ("partner(8)", Scheme::Partner { copies: 8 }, 8, 9),
            ("xor", Scheme::Xor { members: 8 }, 1, 8),
            (" xor ( 2 ) ", Scheme::Xor { members: 2 }, 1, 2),
            ("xor(64)", Scheme::Xor { members: 64 }, 1, 64),
            ("rs(1,1)", Scheme::Rs { data: 1, parity: 1 }, 1, 2),
            ("rs(56, 8)", Scheme::Rs { data: 56, parity: 8 }, 8, 64),
        ] {
            assert_eq!(text.parse(), Ok(scheme), "{text}");
            assert_eq!((scheme.parity(), scheme.members()), (parity, members), "{text}");
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
    }

    #[test]
    fn what_is_no_scheme_is_refused() {
        for text in [
            "",
            "None",
            "xor()",
            "xor(1)",
            "xor(65)",
            "xor(+8)",
            "xor(8",
            "xor 8",
            "xor(8))",
            "xor(8)x",
            "partner(0)",
            "partner(9)",
            "partner(1,1)",
            "none(1)",
            "rs",
            "rs(4)",
            "rs(0,1)",
            "rs(4,0)",
            "rs(4,9)",
            "rs(60,5)",
            "rs(4,2,1)",
            "rs(4294967295,2)",
            "rs(99999999999,2)",
            "raid",
        ] {
            assert_eq!(text.parse::<Scheme>(), Err(NotAScheme), "{text}");
        }
    }

    #[test]
    fn exceptions_override_only_what_they_name() {
        let config = RedundancyConfig {
            scheme: Scheme::Xor { members: 4 },
            every: 2.into(),
            every_seconds: Duration::from_secs(9),
            names: policies(
                r#"{ mesh = "none", heat = { scheme = "rs(2,2)", every = 5 }, wind = { every_seconds = "10min" },
                "a.b" = { every = 3, scheme = "partner" } }"#,
            ),
            ..RedundancyConfig::default()
        };
        let brief = |name: &str| {
            let (scheme, policy) = config.policy_for(name);
            (scheme.to_string(), policy.every.fixed().expect("fixed"), policy.every_seconds.as_secs())
        };
        assert_eq!(brief("other"), ("xor(4)".to_owned(), 2, 9));
        assert_eq!(brief("mesh"), ("none".to_owned(), 2, 9));
        assert_eq!(brief("heat"), ("rs(2,2)".to_owned(), 5, 9));
        assert_eq!(brief("wind"), ("xor(4)".to_owned(), 2, 600));
        assert_eq!(brief("a.b"), ("partner(1)".to_owned(), 3, 9));
        let order: Vec<_> = config.names.as_slice().iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(order, ["mesh", "heat", "wind", "a.b"]);
    }

    #[test]
    fn exceptions_that_say_nothing_or_too_much_are_refused() {
        for text in [
            "",
            "mesh",
            "'none'",
            "{ mesh }",
            "{ mesh = 'none' } x",
            "{ mesh = {} }",
            "{ mesh = 'raid' }",
            "{ mesh = 7 }",
            "{ mesh = ['none'] }",
            "{ '' = 'none' }",
            "{ mesh = { every = 0 } }",
            "{ mesh = { every = -1 } }",
            "{ mesh = { every = '5' } }",
            "{ mesh = { every_seconds = 'soon' } }",
            "{ mesh = { every_seconds = '99999999d' } }",
            "{ mesh = { Scheme = 'none' } }",
            "{ mesh = { scheme = 'none', scheme = 'xor' } }",
            "{ mesh = 'none', mesh = 'xor' }",
            "{ 'a/b' = 'none' }",
            "{ '..' = 'none' }",
            "mesh: none",
        ] {
            assert_eq!(text.parse::<NamePolicies>(), Err(NotNamePolicies), "{text}");
        }
    }

    #[test]
    fn the_first_scheme_may_be_an_exceptions() {
        let mut config = RedundancyConfig::default();
        assert_eq!(config.first_scheme(), None);
        config.names = policies("{ mesh = { scheme = 'none', every = 3 }, heat = 'xor(3)' }");
        assert_eq!(config.first_scheme(), Some(Scheme::Xor { members: 3 }));
        config.scheme = Scheme::Partner { copies: 1 };
        assert_eq!(config.first_scheme(), Some(config.scheme));
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_refused_or_reads_back_equal(text in any::<String>(), nearly in "\\{ [a-c]=('none'|\\{[a-c{}= ,'0-9evry_sond]{0,30}) ?\\}") {
            for text in [text, nearly] {
                if let Ok(scheme) = text.parse::<Scheme>() {
                    prop_assert_eq!(scheme.to_string().parse(), Ok(scheme));
                }
                if let Ok(policies) = text.parse::<NamePolicies>() {
                    prop_assert_eq!(policies.to_string().parse(), Ok(policies));
                }
            }
        }

        #[test]
        fn lists_read_back_equal(
            entries in proptest::collection::btree_map(
                "[a-z.,( -]{1,12}".prop_filter("a name", |name| is_name(name)),
                (proptest::option::of(2u32..65), proptest::option::of(1u64..), proptest::option::of(0u64..4_000_000_000)),
                1..6,
            ),
        ) {
            let list = entries.into_iter().map(|(name, (members, every, millis))| NamePolicy {
                name,
                scheme: members.map(|members| Scheme::Xor { members }),
                every,
                every_seconds: millis.map(Duration::from_millis),
            });
            let list = list.filter(|p| p.scheme.is_some() || p.every.is_some() || p.every_seconds.is_some());
            let policies = NamePolicies(list.collect());
            prop_assert_eq!(policies.to_string().parse(), Ok(policies));
        }
    }
}
