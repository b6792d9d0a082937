//! What people read holds to `docs/GLOSSARY.md`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("WORKSPACE_ROOT"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages, without the glossary itself. Figures and the list of changes say what others call things.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["README.md", "include/bivouac.h", "include/bivouac.hpp", "src/ARCHITECTURE.md"]
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

/// The words that the glossary refuses, in small letters.
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

/// Each line as prose: without code, comment signs and what surrounds words.
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
        // What ends a sentence stands between words; a dot inside of a word does not end one.
        let spoken = spoken.to_lowercase().replace([';', ':', '!', '?'], " . ").replace(". ", " . ");
        let words = spoken.split(|letter: char| !(letter.is_alphanumeric() || "'-_.".contains(letter)));
        let words = words
            .map(|word| if word == "." { word } else { word.trim_matches(|letter: char| !letter.is_alphanumeric()) });
        lines.push((number + 1, words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")));
    }
    lines
}

/// Where a text has one of these, also across the end of a line.
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

#[test]
fn refused_words_are_found_in_prose_and_not_in_code() {
    let glossary = "| term | meaning | not |\n|---|---|---|\n| time-out | How long. | timeout |\n| root | One. | |\n\n| not | but |\n|---|---|\n| goes on, go on | continues |\n";
    let refused = refused(glossary);
    assert_eq!(refused, ["timeout", "goes on", "go on"]);
    let text = "A `timeout` here, timeouts.abandon there.\n```c\nint timeout;\n```\n// The **Timeout** is long, and it goes\n// on.\nLet go. On it\n";
    assert_eq!(found(text, &refused), [(5, "timeout".to_owned()), (5, "goes on".to_owned())]);
}
