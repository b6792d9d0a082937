//! The texts that users read keep to `docs/GLOSSARY.md`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("WORKSPACE_ROOT"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages, without the glossary itself. Figures and the change log are left out, because they
/// use the terms of others.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = [
        "README.md",
        "ci/README.md",
        "ci/mutants.md",
        "fuzz/README.md",
        "include/bivouac.h",
        "include/bivouac.hpp",
        "launch/README.md",
        "launch/slurm/README.md",
        "packaging/README.md",
        "src/ARCHITECTURE.md",
        "src/capi/python/README.md",
        "src/hdf5/README.md",
        "tests/TRIALS.md",
    ]
    .iter()
    .map(|name| root().join(name))
    .collect();
    for (folder, ending) in [("docs", "md"), ("config", "toml")] {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder");
        let files = entries.map(|entry| entry.expect("an entry").path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|found| found == ending)));
    }
    pages.retain(|page| !page.ends_with("docs/GLOSSARY.md"));
    pages.sort();
    pages
}

/// The words that the glossary refuses, in lower case.
fn refused(glossary: &str) -> Vec<String> {
    let rows = glossary
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| term") && !line.starts_with("| not"));
    let words = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() == 3 { cells[2].to_owned() } else { cells[0].to_owned() }
    });
    words
        .flat_map(|words| words.split(", ").map(str::to_lowercase).collect::<Vec<_>>())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Each line as prose: without code, comment signs and the punctuation around words.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let spoken: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        // The end of a sentence becomes a word of its own; a dot inside a word does not end a sentence.
        let spoken = spoken.to_lowercase().replace([';', ':', '!', '?'], " . ").replace(". ", " . ");
        let words = spoken.split(|letter: char| !(letter.is_alphanumeric() || "'-_.".contains(letter)));
        let words = words
            .map(|word| if word == "." { word } else { word.trim_matches(|letter: char| !letter.is_alphanumeric()) });
        lines.push((number + 1, words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")));
    }
    lines
}

/// The places where a text contains one of these words, even across the end of a line.
fn found(text: &str, refused: &[String]) -> Vec<(usize, String)> {
    let lines = prose(text);
    let mut found = Vec::new();
    for (at, (number, line)) in lines.iter().enumerate() {
        let next = lines.get(at + 1).map_or("", |(_, next)| next.as_str());
        let both = format!(" {line} {next} ");
        for word in refused {
            let word = format!(" {word} ");
            let begins = both.find(&word).is_some_and(|begin| begin <= line.len());
            if begins {
                found.push((*number, word.trim().to_owned()));
            }
        }
    }
    found
}

#[test]
fn pages_use_the_words_of_the_glossary() {
    let refused = refused(&read(&root().join("docs/GLOSSARY.md")));
    assert!(refused.len() > 10, "{refused:?}");
    let wrong: Vec<String> = pages()
        .iter()
        .flat_map(|page| {
            let name = page.strip_prefix(root()).expect("below it").display().to_string();
            let found = found(&read(page), &refused);
            found.into_iter().map(move |(line, word)| format!("{name}:{line}: {word:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "docs/GLOSSARY.md has other words for these:\n{}", wrong.join("\n"));
}

/// The text of a page without fenced code and inline code.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        match is_code || is_fence {
            true => String::new(),
            false => line.split('`').step_by(2).collect::<Vec<_>>().join("``"),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of a page's links.
fn links(text: &str) -> Vec<String> {
    let text = without_code(text);
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page's headings, in the forms of Git hosts and mdBook.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut anchors: Vec<String> = Vec::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let letters = heading.trim().to_lowercase().replace(' ', "-");
        let anchor: String =
            letters.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect();
        let before = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(if before > 0 { format!("{anchor}-{before}") } else { anchor });
    }
    anchors
}

/// The links of a page whose targets do not exist.
fn broken(page: &Path, text: &str) -> Vec<String> {
    let leads = |link: &String| {
        let (path, anchor) = link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
        let target = if path.is_empty() { page.to_owned() } else { page.parent().expect("a folder").join(path) };
        let is_there = || target.exists();
        let has = |anchor| anchors(&read(&target)).iter().any(|known| known == anchor);
        link.starts_with("https://") || is_there() && anchor.is_none_or(has)
    };
    links(text).into_iter().filter(|link| !leads(link)).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let more = ["CHANGELOG.md", "benches/README.md", "docs/GLOSSARY.md"].map(|name| root().join(name));
    let is_page = |page: &PathBuf| page.extension().is_some_and(|ending| ending == "md");
    let all = pages().into_iter().chain(more).filter(is_page);
    let broken: Vec<String> = all
        .flat_map(|page| broken(&page, &read(&page)).into_iter().map(move |link| format!("{}: {link}", page.display())))
        .collect();
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn a_link_to_no_page_or_no_heading_is_found() {
    let page = root().join("docs/PYTHON.md");
    let text = "[a](C.md), [b](C.md#is-it-working), [c](https://mpi-forum.org), `[d](x)`\n```c\ncall[1](x);\n```\n## Here & there\n[e](#here--there)";
    assert_eq!(broken(&page, text), ["#here--there"], "what is in a text is not the page's");
    let text = "[a](NO.md), [b](C.md#no-such-heading), [c](../README.md#documentation)";
    assert_eq!(broken(&page, text), ["NO.md", "C.md#no-such-heading"]);
    assert_eq!(
        anchors("# Here & there\n```\n# no\n```\n## `bvk_x` of 1.5\n## Here & there"),
        ["here--there", "bvk_x-of-15", "here--there-1"]
    );
}

/// The table of contents of the site lists each page once.
#[test]
fn the_contents_of_the_site_have_each_page() {
    let contents = links(&read(&root().join("docs/SUMMARY.md")));
    let entries = std::fs::read_dir(root().join("docs")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    for name in names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md") {
        assert_eq!(contents.iter().filter(|link| **link == name).count(), 1, "{name} in docs/SUMMARY.md");
    }
}

#[test]
fn the_page_of_commands_is_what_the_commands_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new(env!("CARGO_BIN_EXE_bivouac")).args(["generate", "markdown"]).arg(folder.path()).status();
    assert!(made.expect("started").success());
    let page = root().join("docs/COMMANDS.md");
    let made = read(&folder.path().join("COMMANDS.md"));
    if std::env::var_os("BIVOUAC_TEST_BLESS").is_some() {
        std::fs::write(&page, &made).expect("written");
    }
    let is_same = read(&page) == made;
    assert!(is_same, "docs/COMMANDS.md is out of date: bivouac generate markdown docs");
}

#[test]
fn refused_words_are_found_in_prose_and_not_in_code() {
    let glossary = "| term | meaning | not |\n|---|---|---|\n| time-out | How long. | timeout |\n| root | One. | |\n\n| not | but |\n|---|---|\n| goes on, go on | continues |\n";
    let refused = refused(glossary);
    assert_eq!(refused, ["timeout", "goes on", "go on"]);
    let text = "A `timeout` here, timeouts.abandon there.\n```c\nint timeout;\n```\n// The **Timeout** is long, and it goes\n// on.\nLet go. On it\n";
    assert_eq!(found(text, &refused), [(5, "timeout".to_owned()), (5, "goes on".to_owned())]);
}
