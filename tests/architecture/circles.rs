//! Circles of imports: files that can only be understood together.
//!
//! A file imports another one if it names something that is defined there, through any number of re-exports. A parent that only re-exports
//! its children's definitions does not import them. Two files that need each other are one thought in two files, and three may be one
//! thought with two parts; more are a knot.

use super::{Source, Token, sources, starts};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of files in one circle.
const CIRCLE_MAX: usize = 3;

/// A path of modules after the folder of their crate.
type Path = Vec<String>;

/// The paths in a file.
#[derive(Default)]
struct Names {
    /// Paths that the file names.
    used: Vec<Path>,
    /// Paths that the file re-exports.
    passed_on: Vec<Path>,
}

/// Reads the tree of names that begins at `at`, with `prefix` before each; `*` stands for everything.
fn expand(tokens: &[Token], mut at: usize, mut prefix: Path, found: &mut Vec<Path>) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    at = expand(tokens, at, prefix.clone(), found);
                    at += usize::from(tokens.get(at).is_some_and(|token| token.text == ","));
                }
                return at + 1;
            }
            "self" => {}
            "super" => _ = prefix.pop(),
            word if word == "*" || word.chars().all(|letter| letter.is_alphanumeric() || letter == '_') => {
                prefix.push(word.to_owned());
            }
            _ => break,
        }
        at += 1;
        if !starts(tokens, at, ": :") {
            break;
        }
        at += 2;
    }
    found.push(prefix);
    // This skips `as name`.
    if starts(tokens, at, "as") { at + 2 } else { at }
}

fn names(source: &Source, modules: &BTreeSet<Path>) -> Names {
    let (tokens, module) = (&source.tokens, source.place());
    let root = vec![source.crate_folder().to_owned()];
    let mut names = Names::default();
    let (mut depth, mut inline) = (0usize, Vec::new());
    for at in (0..tokens.len()).filter(|at| !source.in_test[*at]) {
        let text = tokens[at].text.as_str();
        match text {
            "{" => {
                depth += 1;
                if at >= 2 && tokens[at - 2].text == "mod" {
                    inline.push(depth);
                }
            }
            "}" => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        // Only the beginning of a path counts, and of paths in `use` only their first name.
        if !starts(tokens, at + 1, ": :") || (at > 0 && tokens[at - 1].text == ":") {
            continue;
        }
        let mut child = module.clone();
        child.push(text.to_owned());
        let (prefix, from) = match text {
            "crate" => (root.clone(), at + 3),
            "super" if inline.is_empty() => (module.clone(), at),
            "self" => (module.clone(), at),
            _ if inline.is_empty() && modules.contains(&child) => (module.clone(), at),
            _ => continue,
        };
        let begun = tokens[..at].iter().rposition(|token| matches!(token.text.as_str(), ";" | "}" | "{" | "]"));
        let head = &tokens[begun.map_or(0, |begun| begun + 1)..at];
        let is_passed_on =
            head.first().is_some_and(|first| first.text == "pub") && head.last().is_some_and(|last| last.text == "use");
        expand(tokens, from, prefix, if is_passed_on { &mut names.passed_on } else { &mut names.used });
    }
    names
}

/// The longest beginning of a path that is a module, and the word after it.
fn split<'p>(path: &'p Path, modules: &BTreeSet<Path>) -> Option<(Path, Option<&'p String>)> {
    let length = (0..=path.len()).rev().find(|length| modules.contains(&path[..*length]))?;
    Some((path[..length].to_vec(), path.get(length)))
}

/// The files that each file imports.
fn imports(sources: &[Source]) -> BTreeMap<Path, BTreeSet<Path>> {
    let files: Vec<&Source> = sources.iter().filter(|source| !source.in_test.iter().all(|test| *test)).collect();
    let modules: BTreeSet<Path> = files.iter().map(|source| source.place()).collect();
    let named: BTreeMap<Path, Names> = files.iter().map(|source| (source.place(), names(source, &modules))).collect();
    let mut passed_on: BTreeMap<(Path, String), Path> = BTreeMap::new();
    for (module, names) in &named {
        for path in &names.passed_on {
            if let (Some(word), Some((home, _))) = (path.last(), split(path, &modules)) {
                passed_on.insert((module.clone(), word.clone()), home);
            }
        }
    }
    let home_of = |path: &Path| {
        let (mut home, word) = split(path, &modules)?;
        while let Some(next) = word.and_then(|word| passed_on.get(&(home.clone(), word.clone()))) {
            if *next == home {
                break;
            }
            home.clone_from(next);
        }
        Some(home)
    };
    let of = |(module, names): (&Path, &Names)| {
        let homes = names.used.iter().filter_map(home_of).filter(|home| home != module);
        (module.clone(), homes.collect())
    };
    named.iter().map(of).collect()
}

/// The modules that a module reaches.
fn reached(from: &Path, imports: &BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<Path> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = open.pop() {
        for next in imports.get(&module).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

/// The circles, each once.
fn circles(sources: &[Source]) -> BTreeSet<BTreeSet<String>> {
    let imports = imports(sources);
    let reached: BTreeMap<&Path, BTreeSet<Path>> =
        imports.keys().map(|module| (module, reached(module, &imports))).collect();
    let circle = |module: &Path| {
        let others =
            reached[module].iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(module)));
        others.map(|path| path.join("::")).collect::<BTreeSet<String>>()
    };
    imports.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn no_circle_of_imports_has_more_than_three_files() {
    let knots: Vec<_> = circles(&sources()).into_iter().filter(|circle| circle.len() > CIRCLE_MAX).collect();
    assert!(knots.is_empty(), "{knots:#?}");
}

#[test]
fn circles_are_noticed_in_every_form() {
    let circles = |files: &[(&str, &str)]| {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        circles(&sources).into_iter().map(|circle| Vec::from_iter(circle).join(" ")).collect::<Vec<_>>()
    };
    let top = ("src/core/a/mod.rs", "mod b; mod c; mod d; pub use b::B; pub use c::{C, Other};");
    let knot = |b: &str, c: &str| {
        circles(&[top, ("src/core/a/b.rs", b), ("src/core/a/c.rs", c), ("src/core/a/d.rs", "pub struct D;")])
    };
    assert_eq!(knot("use super::c::C;", "use super::b::B;"), ["src/core/::a::b src/core/::a::c"]);
    assert_eq!(
        knot("use super::{C, d::D};", "use crate::a::b::{self, B};"),
        ["src/core/::a::b src/core/::a::c"],
        "through re-exports"
    );
    assert_eq!(
        knot("fn f() { super::c::g() }", "fn g() { crate::a::b::f() }"),
        ["src/core/::a::b src/core/::a::c"],
        "in code"
    );
    assert_eq!(knot("use super::c::C;", "use super::d::D;"), [""; 0]);
    assert_eq!(knot("use super::c::C;", "// super::b::B\n#[cfg(test)] mod tests { use super::super::b::B; }"), [""; 0]);
    // A parent uses what its children define, and they use the parent.
    let parent = ("src/core/e/mod.rs", "mod f; use f::F; struct E(F);");
    assert_eq!(circles(&[parent, ("src/core/e/f.rs", "use super::E;")]), ["src/core/::e src/core/::e::f"]);
    assert_eq!(circles(&[parent, ("src/core/e/f.rs", "struct F;")]), [""; 0]);
    let command = ("src/command/bivouac/main.rs", "mod ls; use ls::list;");
    assert_eq!(
        circles(&[command, ("src/command/bivouac/ls.rs", "use crate::Args; pub fn list() {}")]),
        ["src/command/bivouac/ src/command/bivouac/::ls"]
    );
}
