//! The rules of `src/ARCHITECTURE.md` that a program can check, as ordinary tests.
//!
//! Sources are cut into tokens. Comments, strings and character literals fall away, so prose about `unsafe` or
//! `crate::` never counts. Each rule is a function from tokens to complaints, and is first tried on a small source that
//! breaks it: a check that cannot fail protects nothing.
#![forbid(unsafe_code)]

#[path = "architecture/circles.rs"]
mod circles;
#[path = "architecture/lengths.rs"]
mod lengths;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The modules of `bivouac-core` in their order: each may import from those before it and from itself, never from those after it.
const ORDER: [&str; 21] = [
    "base",
    "config",
    "format",
    "reduction",
    "policy",
    "comm",
    "device",
    "affinity",
    "segment",
    "live",
    "decomposition",
    "region",
    "cache",
    "catalog",
    "tier",
    "redundancy",
    "planner",
    "coordination",
    "transfer",
    "recovery",
    "session",
];

/// The only files (or folders, with a closing slash) that may use the keyword `unsafe`.
const UNSAFE: [&str; 12] = [
    "src/core/affinity/",
    "src/core/base/digest.rs",
    "src/core/base/pages.rs",
    "src/capi/",
    "src/core/comm/mpi.rs",
    "src/core/comm/mpi/",
    "src/core/device/cuda/",
    "src/core/redundancy/code/isal.rs",
    "src/core/live/memory.rs",
    "src/core/live/watch.rs",
    "src/core/segment/",
    "src/mpi-sys/bindings/",
];

/// The folders of the crates: of `bivouac-core`, the C interface, the command, and `bivouac`.
const CRATES: [&str; 4] = [CORE, "src/capi/", "src/command/bivouac/", "src/"];
const CORE: &str = "src/core/";

/// The only file that may name the unmaintained crate `bincode`.
const BINCODE: &str = "src/core/format/codec.rs";

// ---------------------------------------------------------------------------------------------- tokens

/// One token of a source: an identifier, a number, or one character of punctuation.
#[derive(Clone, PartialEq, Debug)]
struct Token {
    text: String,
    line: usize,
}

/// Cuts a source into tokens, without comments, strings, character literals and lifetimes.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let (mut at, mut line, mut out) = (0, 1, Vec::new());
    while at < chars.len() {
        let end = match chars[at] {
            c if c.is_whitespace() => at + 1,
            '/' if chars.get(at + 1) == Some(&'/') => end_of_line(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => end_of_block_comment(&chars, at),
            '"' => end_of_string(&chars, at),
            '\'' => end_of_quote(&chars, at),
            c if c.is_alphanumeric() || c == '_' => {
                let end = (at..chars.len()).find(|i| !is_word(chars[*i])).unwrap_or(chars.len());
                let word: String = chars[at..end].iter().collect();
                match end_of_prefixed_literal(&chars, &word, end) {
                    Some(end) => end,
                    None => {
                        out.push(Token { text: word, line });
                        end
                    }
                }
            }
            c => {
                out.push(Token { text: c.to_string(), line });
                at + 1
            }
        };
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_line(chars: &[char], at: usize) -> usize {
    (at..chars.len()).find(|i| chars[*i] == '\n').unwrap_or(chars.len())
}

fn end_of_block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// The end of a string whose opening quote is at `at`.
fn end_of_string(chars: &[char], mut at: usize) -> usize {
    at += 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of a character literal or of a lifetime.
fn end_of_quote(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => (at + 3..chars.len()).find(|i| chars[*i] == '\'').map_or(chars.len(), |i| i + 1),
        (Some(_), Some('\'')) => at + 3,
        _ => (at + 1..chars.len()).find(|i| !is_word(chars[*i])).unwrap_or(chars.len()),
    }
}

/// The end of `r"…"`, `r#"…"#`, `b"…"`, `c"…"`, `b'…'` and their relatives, if `word` is such a prefix.
fn end_of_prefixed_literal(chars: &[char], word: &str, end: usize) -> Option<usize> {
    match word {
        "b" if chars.get(end) == Some(&'\'') => Some(end_of_quote(chars, end)),
        "b" | "c" if chars.get(end) == Some(&'"') => Some(end_of_string(chars, end)),
        "r" | "br" | "cr" => {
            let hashes = chars[end..].iter().take_while(|c| **c == '#').count();
            let open = end + hashes;
            (chars.get(open) == Some(&'"')).then(|| {
                let closes = |i: &usize| {
                    chars[*i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
                };
                (open + 1..chars.len()).find(closes).map_or(chars.len(), |i| i + 1 + hashes)
            })
        }
        _ => None,
    }
}

/// Does the sequence start at `at`? Each word of `pattern` is one token.
fn starts(tokens: &[Token], at: usize, pattern: &str) -> bool {
    pattern.split(' ').enumerate().all(|(i, word)| tokens.get(at + i).is_some_and(|token| token.text == word))
}

// ---------------------------------------------------------------------------------------------- sources

/// One file under `src/`.
struct Source {
    /// Path from the package's root, with slashes.
    path: String,
    tokens: Vec<Token>,
    /// For each token: is it part of a test-only item?
    in_test: Vec<bool>,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let tokens = tokens(text);
        let in_test = test_marks(&tokens);
        Source { path: path.to_owned(), tokens, in_test }
    }

    /// The names of the modules around this file's items, from the crate's root.
    fn module(&self) -> Vec<String> {
        let inner = self.path.strip_prefix(self.crate_folder()).expect("it is in it").strip_suffix(".rs");
        let mut names: Vec<String> = inner.expect("sources end in .rs").split('/').map(str::to_owned).collect();
        if names.last().is_some_and(|last| last == "mod" || last == "lib" || last == "main") {
            names.pop();
        }
        names
    }

    /// The folder of the crate to which the file belongs.
    fn crate_folder(&self) -> &'static str {
        CRATES.into_iter().find(|folder| self.path.starts_with(folder)).expect("sources are under src/")
    }

    /// The file's module, after the folder of its crate.
    fn place(&self) -> Vec<String> {
        let mut place = vec![self.crate_folder().to_owned()];
        place.extend(self.module());
        place
    }

    /// The file in which this module is declared, and its own file; several forms for each, as Rust allows.
    fn ancestors(&self) -> Vec<String> {
        let folder = self.crate_folder();
        let mut files = vec![format!("{folder}lib.rs"), format!("{folder}main.rs")];
        let names = self.module();
        for depth in 1..=names.len() {
            let path = format!("{folder}{}", names[..depth].join("/"));
            files.extend([format!("{path}.rs"), format!("{path}/mod.rs"), format!("{path}/main.rs")]);
        }
        files
    }

    fn forbids_unsafe(&self) -> bool {
        (0..self.tokens.len()).any(|at| starts(&self.tokens, at, "# ! [ forbid ( unsafe_code ) ]"))
    }
}

/// Marks the tokens of items under `#[cfg(test)]` (or `#[cfg(all(test, …))]`, `#[test]`).
fn test_marks(tokens: &[Token]) -> Vec<bool> {
    let mut marks = vec![false; tokens.len()];
    let mut at = 0;
    while at < tokens.len() {
        if !is_test_attribute(tokens, at) {
            at += 1;
            continue;
        }
        let end = end_of_item(tokens, at);
        marks[at..end].fill(true);
        at = end;
    }
    marks
}

fn is_test_attribute(tokens: &[Token], at: usize) -> bool {
    ["# [ cfg ( test )", "# [ cfg ( all ( test ,", "# [ test ]"].iter().any(|form| starts(tokens, at, form))
}

/// The token after the item that starts at `at`: after its `;` or its closing brace, whichever comes first.
fn end_of_item(tokens: &[Token], at: usize) -> usize {
    let (mut brackets, mut braces) = (0i32, 0i32);
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets -= 1,
            "{" => braces += 1,
            "}" => braces -= 1,
            _ => {}
        }
        let closed = token.text == "}" && braces == 0;
        if brackets == 0 && (closed || (token.text == ";" && braces == 0)) {
            return i + 1;
        }
    }
    tokens.len()
}

fn root() -> &'static Path {
    Path::new(env!("WORKSPACE_ROOT"))
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    collect(&root().join("src"), &mut files);
    files.sort();
    assert!(files.len() > 10, "the sources were not found: {files:?}");
    let read = |file: &PathBuf| {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
        Source::new(&path, &std::fs::read_to_string(file).unwrap())
    };
    let mut sources: Vec<Source> = files.iter().map(read).collect();
    mark_test_files(&mut sources);
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// A file that is declared as `#[cfg(test)] mod name;` is a test from its first to its last token.
fn mark_test_files(sources: &mut [Source]) {
    let mut test_modules = BTreeSet::new();
    for source in sources.iter() {
        for at in 0..source.tokens.len() {
            if source.in_test[at] && source.tokens[at].text == "mod" && source.tokens[at + 2].text == ";" {
                let mut module = source.place();
                module.push(source.tokens[at + 1].text.clone());
                test_modules.insert(module);
            }
        }
    }
    for source in sources.iter_mut() {
        let module = source.place();
        if (1..=module.len()).any(|depth| test_modules.contains(&module[..depth])) {
            source.in_test.fill(true);
        }
    }
}

// ---------------------------------------------------------------------------------------------- imports

/// The top-level modules that a file names through `crate::` or `super::`, with their line numbers.
fn imports(source: &Source) -> Vec<(String, usize)> {
    let tokens = &source.tokens;
    // In other crates, `crate` means that crate itself.
    if source.crate_folder() != CORE {
        return Vec::new();
    }
    let depth_of_file = source.module().len();
    let (mut braces, mut inline, mut found) = (0usize, Vec::new(), Vec::new());
    for at in 0..tokens.len() {
        match tokens[at].text.as_str() {
            "{" => {
                braces += 1;
                // `mod name {` opens an inline module.
                if at >= 2 && tokens[at - 2].text == "mod" {
                    inline.push(braces);
                }
            }
            "}" => {
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
                braces = braces.saturating_sub(1);
            }
            "crate" if starts(tokens, at + 1, ": :") => found.extend(heads(tokens, at + 3)),
            "super" if starts(tokens, at + 1, ": :") && !(at >= 3 && starts(tokens, at - 3, "super : :")) => {
                let supers = (0..).take_while(|n| starts(tokens, at + 3 * n, "super : :")).count();
                if supers == depth_of_file + inline.len() {
                    found.extend(heads(tokens, at + 3 * supers));
                }
            }
            _ => {}
        }
    }
    found
}

/// The first names of a path or of a brace group of paths.
fn heads(tokens: &[Token], at: usize) -> Vec<(String, usize)> {
    let Some(first) = tokens.get(at) else { return Vec::new() };
    if first.text != "{" {
        return vec![(first.text.clone(), first.line)];
    }
    let (mut depth, mut expect, mut found) = (0, true, Vec::new());
    for token in &tokens[at..] {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => expect = true,
            name if depth == 1 && expect => {
                found.push((name.to_owned(), token.line));
                expect = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn complaints_about_imports(source: &Source) -> Vec<String> {
    let module = source.module();
    // Other crates have few files, and lib.rs names everything.
    let Some(own) = module.first().filter(|_| source.crate_folder() == CORE) else { return Vec::new() };
    let Some(own_place) = ORDER.iter().position(|name| name == own) else {
        return vec![format!("{}: module {own:?} has no place in the order (tests/architecture.rs)", source.path)];
    };
    let mut complaints = Vec::new();
    for (name, line) in imports(source) {
        let place = format!("{}:{line}", source.path);
        match ORDER.iter().position(|module| *module == name) {
            Some(other) if other > own_place => {
                complaints.push(format!("{place}: {own} imports from {name}, which stands below it"));
            }
            Some(_) => {}
            None => complaints.push(format!("{place}: crate::{name} is no module; import from the module it lives in")),
        }
    }
    complaints
}

/// The names of targets in a manifest are written out, so cargo would never build a target that was forgotten, and nobody would miss it.
fn undeclared(folder: &str, manifests: &[&str]) -> Vec<String> {
    let read = |name: &&str| std::fs::read_to_string(root().join(name)).expect("it is there");
    let declared: String = manifests.iter().map(read).collect();
    let entries = std::fs::read_dir(root().join(folder)).expect("it is there");
    let files = entries.filter_map(|entry| entry.expect("it can be read").file_name().into_string().ok());
    let programs = files.filter(|file| file.ends_with(".rs")).map(|file| format!("{folder}/{file}"));
    let is_declared = |program: &String| {
        ["", "../../"].iter().any(|above| declared.contains(&format!("path = \"{above}{program}\"")))
    };
    programs.filter(|program| !is_declared(program)).collect()
}

#[test]
fn every_test_and_bench_is_declared() {
    assert_eq!(undeclared("tests", &["src/command/Cargo.toml"]), [""; 0]);
    assert_eq!(undeclared("benches", &["Cargo.toml", "src/core/Cargo.toml", "src/capi/Cargo.toml"]), [""; 0]);
    assert!(undeclared("tests", &["src/core/Cargo.toml"]).contains(&"tests/architecture.rs".to_owned()));
}

#[test]
fn the_readme_asks_for_the_mpi_crate_as_we_do() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("it is there");
    let manifest = read("Cargo.toml");
    let of_all = manifest.split("[workspace.dependencies]").nth(1).expect("they have one version each");
    let ours = of_all.lines().find_map(|line| line.strip_prefix("mpi = {")).expect("we need it");
    let wanted = format!("mpi = {{{} }}", ours.replace(", optional = true", "").trim_end_matches([' ', '}']));
    assert!(read("README.md").lines().any(|line| line == wanted), "README.md has no line {wanted:?}");
}

#[test]
fn modules_import_only_from_modules_above_them() {
    let complaints: Vec<String> = sources().iter().flat_map(complaints_about_imports).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn upward_imports_are_noticed_in_every_form() {
    let count = |path: &str, text: &str| complaints_about_imports(&Source::new(path, text)).len();
    for text in [
        "use crate::session::Session;",
        "use crate::{base::ids, session::Session};",
        "use crate::{base::{ids, units}, tier, format::codec};",
        "fn f() { crate::session::open() }",
        "use super::session;",
        "mod inner { use super::super::session; }",
        "use crate::Error;",
    ] {
        assert_eq!(count("src/core/comm/mod.rs", text), 1, "{text}");
    }
    assert_eq!(count("src/core/comm/mpi.rs", "use super::super::session;"), 1);
    assert_eq!(count("src/core/unheard_of.rs", ""), 1);
    for text in [
        "use crate::base::session;",
        "use crate::{base::ids, format};",
        "// use crate::session;\n/* crate::session */ const S: &str = \"crate::session\";",
        "mod inner { use super::session; }",
        "const C: char = '\"'; use crate::base; const D: &str = r#\"crate::session \" \"#;",
    ] {
        assert_eq!(count("src/core/comm/mod.rs", text), 0, "{text}");
    }
    assert_eq!(count("src/core/comm/mpi.rs", "use super::session;"), 0);
    assert_eq!(count("src/core/lib.rs", "pub use crate::session::Session;"), 0);
    assert_eq!(count("src/command/bivouac/main.rs", "use crate::args::Args;"), 0);
}

// ---------------------------------------------------------------------------------------------- unsafe

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE.iter().any(|listed| if listed.ends_with('/') { path.starts_with(listed) } else { path == *listed })
}

fn complaints_about_unsafe(sources: &[Source]) -> Vec<String> {
    let by_path: BTreeMap<&str, &Source> = sources.iter().map(|source| (source.path.as_str(), source)).collect();
    // A file above an unsafe one in the module tree cannot forbid it for its children; but the file itself
    // must not use the keyword.
    let above_unsafe: BTreeSet<String> =
        sources.iter().filter(|source| may_be_unsafe(&source.path)).flat_map(Source::ancestors).collect();
    let mut complaints = Vec::new();
    for source in sources.iter().filter(|source| !may_be_unsafe(&source.path)) {
        for token in source.tokens.iter().filter(|token| token.text == "unsafe") {
            complaints.push(format!("{}:{}: `unsafe` outside the listed files", source.path, token.line));
        }
        let forbidden =
            source.ancestors().iter().any(|file| by_path.get(file.as_str()).is_some_and(|file| file.forbids_unsafe()));
        let is_crate_root = source.module().is_empty();
        let exempt = is_crate_root || above_unsafe.contains(&source.path) || source.tokens.is_empty();
        if !forbidden && !exempt {
            complaints.push(format!("{}: add #![forbid(unsafe_code)] to it or to a module above it", source.path));
        }
    }
    complaints
}

#[test]
fn unsafe_stands_only_in_the_listed_files_and_is_forbidden_elsewhere() {
    let complaints = complaints_about_unsafe(&sources());
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn unsafe_and_missing_forbids_are_noticed() {
    let complain = |files: &[(&str, &str)]| {
        complaints_about_unsafe(&files.iter().map(|(path, text)| Source::new(path, text)).collect::<Vec<_>>())
    };
    let forbid = "#![forbid(unsafe_code)]";
    assert_eq!(complain(&[("src/core/tier/mod.rs", "unsafe fn f() {}")]).len(), 2);
    assert_eq!(complain(&[("src/core/tier/mod.rs", "fn f() {}")]).len(), 1);
    assert_eq!(complain(&[("src/core/tier/mod.rs", "// #![forbid(unsafe_code)]\nfn f() {}")]).len(), 1);
    assert!(
        complain(&[("src/core/tier/mod.rs", forbid), ("src/core/tier/local.rs", "// unsafe\nfn f() {}")]).is_empty()
    );
    assert!(complain(&[("src/core/tier/mod.rs", forbid), ("src/core/tier/a/b.rs", "fn f() {}")]).is_empty());
    // Next to an unsafe file, a sibling needs its own line, and the parent may not use the keyword itself.
    assert!(complain(&[("src/core/comm/mod.rs", "mod mpi;"), ("src/core/comm/mpi.rs", "unsafe fn f() {}")]).is_empty());
    let comm = [
        ("src/core/comm/mod.rs", "unsafe fn f() {}"),
        ("src/core/comm/mpi.rs", ""),
        ("src/core/comm/threads.rs", "fn f() {}"),
    ];
    assert_eq!(complain(&comm).len(), 2);
    assert!(
        complain(&[("src/command/bivouac/main.rs", forbid), ("src/command/bivouac/ls.rs", "fn f() {}")]).is_empty()
    );
}

// ---------------------------------------------------------------------------------------------- words

/// Names that set loggers.
const LOGGERS: [&str; 3] = ["env_logger", "set_boxed_logger", "set_logger"];
/// The only file in which a poisoned lock means something, and the only one that starts threads.
const SYNC: &str = "src/core/base/sync.rs";
const THREADS: &str = "src/core/base/threads.rs";
/// The only file that uses the crate `log`.
const LOG: &str = "src/core/base/log.rs";

fn complaints_about_words(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let is_library = !source.path.starts_with("src/command/");
    let hears = source.path == LOG
        || (0..source.tokens.len()).any(|at| {
            let own = starts(&source.tokens, at, "use crate : : base : : log ;");
            own || starts(&source.tokens, at, "use bivouac_core : : base : : log ;")
        });
    for (at, token) in source.tokens.iter().enumerate() {
        let place = format!("{}:{}", source.path, token.line);
        if token.text == "bincode" && source.path != BINCODE {
            complaints.push(format!("{place}: bincode is named outside {BINCODE}"));
        }
        if is_library && token.text == "PoisonError" && source.path != SYNC {
            complaints.push(format!("{place}: locks are those of {SYNC}, which no panic poisons"));
        }
        let starts_thread = ["thread : : spawn", "thread : : Builder", "scope . spawn"];
        if is_library
            && !source.in_test[at]
            && source.path != THREADS
            && starts_thread.iter().any(|form| starts(&source.tokens, at, form))
        {
            complaints.push(format!("{place}: threads are started by {THREADS}, without signals"));
        }
        if starts(&source.tokens, at, ". unwrap (") && !source.in_test[at] {
            complaints.push(format!("{place}: .unwrap() outside tests; return the error, or expect() with the reason"));
        }
        if is_library && LOGGERS.contains(&token.text.as_str()) {
            complaints.push(format!("{place}: a program sets one logger, once; a library sets none"));
        }
        if is_library
            && !hears
            && starts(&source.tokens, at, "log : :")
            && (at == 0 || source.tokens[at - 1].text != ":")
        {
            complaints
                .push(format!("{place}: this is the crate, which nobody hears without a logger; use crate::base::log"));
        }
    }
    complaints
}

#[test]
fn what_has_a_file_of_its_own_stands_there_and_unwrap_stands_in_tests_only() {
    let complaints: Vec<String> = sources().iter().flat_map(complaints_about_words).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn misplaced_words_are_noticed() {
    let count = |path: &str, text: &str| complaints_about_words(&Source::new(path, text)).len();
    assert_eq!(count("src/core/tier/mod.rs", "use bincode::config;"), 1);
    assert_eq!(count(BINCODE, "use bincode::config;"), 0);
    assert_eq!(count("src/core/tier/mod.rs", "fn f() { log::info!(); }"), 1);
    assert_eq!(count("src/core/tier/mod.rs", "use crate::base::log;\nfn f() { log::info!(); }"), 0);
    assert_eq!(count("src/core/tier/mod.rs", "use std::sync::PoisonError;"), 1);
    assert_eq!(count(SYNC, "use std::sync::PoisonError;"), 0);
    for start in ["std::thread::spawn(f)", "std::thread::Builder::new()", "scope.spawn(f)"] {
        assert_eq!(count("src/core/tier/mod.rs", &format!("fn f() {{ {start}; }}")), 1, "{start}");
        assert_eq!(count("src/core/tier/mod.rs", &format!("#[cfg(test)] mod tests {{ fn f() {{ {start}; }} }}")), 0);
        assert_eq!(count(THREADS, &format!("fn f() {{ {start}; }}")), 0);
    }
    assert_eq!(count("src/core/session/mod.rs", "fn f() { env_logger::init(); }"), 1);
    assert_eq!(count("src/command/bivouac/main.rs", "fn f() { env_logger::init(); log::info!(); }"), 0);
    assert_eq!(count("src/core/tier/mod.rs", "fn f() { g().unwrap(); }"), 1);
    assert_eq!(count("src/core/tier/mod.rs", "fn f() { g().unwrap_or(1); } // .unwrap()"), 0);
    assert_eq!(count("src/core/tier/mod.rs", "#[cfg(test)]\nmod tests { fn f() { g().unwrap(); } }"), 0);
    assert_eq!(count("src/core/tier/mod.rs", "#[cfg(test)]\nmod tests;\nfn f() { g().unwrap(); }"), 1);
    assert_eq!(count("src/core/tier/mod.rs", "#[cfg(not(test))]\nfn f() { g().unwrap(); }"), 1);
    assert_eq!(count("src/core/tier/mod.rs", "#[cfg(test)]\nfn t(a: [u8; 2]) { }\nfn f() { g().unwrap(); }"), 1);
    let mut pair =
        [Source::new("src/core/tier/mod.rs", "#[cfg(test)] mod tests;"), Source::new("src/core/tier/tests.rs", "")];
    pair[1] = Source::new("src/core/tier/tests.rs", "fn f() { g().unwrap(); }");
    mark_test_files(&mut pair);
    assert!(complaints_about_words(&pair[1]).is_empty());
}

// ---------------------------------------------------------------------------------------------- document

/// The modules in the block that starts with ```` ```imports ````: the first word of each line.
fn documented_order(document: &str) -> Option<Vec<String>> {
    let mut lines = document.lines().skip_while(|line| line.trim() != "```imports");
    lines.next()?;
    let block = lines.take_while(|line| line.trim() != "```");
    Some(block.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

#[test]
fn the_import_table_of_the_document_is_the_one_that_is_checked() {
    let path = root().join("src/ARCHITECTURE.md");
    let document = match std::fs::read_to_string(&path) {
        Ok(document) => document,
        // A package without its document has no table that could be wrong.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let order = documented_order(&document).expect("src/ARCHITECTURE.md has a block that starts with ```imports");
    assert_eq!(order, ORDER, "src/ARCHITECTURE.md and tests/architecture.rs give different orders");
}

#[test]
fn the_import_table_is_read_line_by_line() {
    let document = "# A\n```\nno\n```\n```imports\nbase       pure\nconfig\n\n```\nafter\n";
    assert_eq!(documented_order(document).unwrap(), ["base", "config"]);
    assert_eq!(documented_order("```\nbase\n```"), None);
}
