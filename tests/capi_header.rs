//! `include/bivouac.h` agrees with the sources.
#![cfg(feature = "mpi")]
#![forbid(unsafe_code)]

use std::path::Path;

const SOURCES: [&str; 15] = [
    "status",
    "arguments",
    "session",
    "checkpoint",
    "restart",
    "boxes",
    "values",
    "columns",
    "rows",
    "parts",
    "history",
    "offload",
    "live",
    "stream",
    "files",
];

/// The header that cbindgen generates from the sources.
fn generated() -> String {
    let root = Path::new(env!("WORKSPACE_ROOT"));
    let folder = root.join("src/capi");
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a configuration");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        let file = folder.join(format!("{source}.rs"));
        if file.exists() {
            builder = builder.with_src(file);
        }
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    polished(&String::from_utf8(text).expect("UTF-8"))
}

/// Does what cbindgen has no setting for: handles become types that are pointers, negative constants get parentheses, and the
/// documentation uses C's terms.
fn polished(text: &str) -> String {
    let handles =
        ["session", "checkpoint", "pending", "restart", "history", "write_set", "boxes", "loaded_rows", "parts"];
    let mut out = String::new();
    for line in text.lines() {
        let is_forward = |name: &&str| line == format!("struct bvk_{name}_s;");
        if handles.iter().any(is_forward) {
            // The comment on the structure is already next to the handle's type.
            while let Some(line) = out.lines().next_back().filter(|line| line.starts_with("//")) {
                out.truncate(out.len() - line.len() - 1);
            }
            out.truncate(out.trim_end().len() + 1);
            continue;
        }
        let line = match line.rsplit_once(" -") {
            Some((define, number)) if define.starts_with("#define ") => format!("{define} (-{number})"),
            _ => line.replace("// # Safety", "// Requirements:"),
        };
        out.push_str(&without_links(&line));
        out.push('\n');
    }
    handles.iter().fold(out, |text, name| {
        let (pointer, handle) = (format!("struct bvk_{name}_s *"), format!("bvk_{name}_t "));
        // This changes everything except the definition of the handle itself.
        text.replace(&pointer, &handle).replace(&format!("typedef {handle}"), &format!("typedef {pointer}"))
    })
}

/// `[`name`](path)` and `[`name`]` become `name`.
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("[`") {
        let (name, after) = after.split_once("`]").unwrap_or((after, ""));
        let path = after.strip_prefix('(').and_then(|path| path.split_once(')'));
        out += &format!("{before}`{name}`");
        rest = path.map_or(after, |(_, after)| after);
    }
    out + rest
}

#[test]
fn every_structure_with_a_size_has_an_initialiser() {
    let made = generated();
    let structures: Vec<&str> = made
        .split("\nstruct bvk_")
        .skip(1)
        .filter_map(|rest| rest.split_once(" {\n"))
        .filter(|(_, members)| members.split("};").next().is_some_and(|members| members.contains("size_t size;")))
        .map(|(name, _)| name)
        .collect();
    assert!(structures.len() >= 5, "{structures:?}");
    for name in structures {
        let initialiser = format!("#define BVK_{}_INIT {{sizeof(bvk_{name}), ", name.to_uppercase());
        assert!(made.contains(&initialiser), "{name} has none");
    }
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(env!("WORKSPACE_ROOT")).join("include/bivouac.h");
    let made = generated();
    if std::env::var_os("BIVOUAC_TEST_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, &made).expect("written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == made,
        "include/bivouac.h has drifted: BIVOUAC_TEST_BLESS=1 cargo nextest run --test capi_header, and commit it"
    );
}

/// Without this test, a source that nobody has listed would leave its functions out.
#[test]
fn every_function_of_the_sources_is_in_the_header() {
    let root = Path::new(env!("WORKSPACE_ROOT"));
    let header = std::fs::read_to_string(root.join("include/bivouac.h")).expect("the header");
    let mut functions = 0;
    for entry in std::fs::read_dir(root.join("src/capi")).expect("the sources") {
        let path = entry.expect("an entry").path();
        // VELOC's interface has a header of its own.
        if path.extension().is_none_or(|extension| extension != "rs") || path.ends_with("veloc.rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a source");
        for after in source.split("extern \"C\" fn bvk_").skip(1) {
            let name = format!("bvk_{}(", after.split('(').next().unwrap_or_default());
            assert!(header.contains(&name), "{name} of {} is not in the header: list the source", path.display());
            functions += 1;
        }
    }
    assert!(functions > 90, "{functions} functions were found");
}
