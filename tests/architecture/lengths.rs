//! Lengths of functions: a function that does not fit on a screen has a seam at which it can be split.

use super::{Source, end_of_item, is_word, sources};

/// The maximum number of lines of a function, from its `fn` to its closing brace.
const LINES_MAX: usize = 80;

/// The functions outside of tests that are longer, each with its file, its line, its name and its length.
fn complaints_about_lengths(source: &Source) -> Vec<String> {
    let tokens = &source.tokens;
    let mut complaints = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].text == "fn" && !source.in_test[*at]) {
        // A function type has no name.
        let Some(name) = tokens.get(at + 1).filter(|name| name.text.starts_with(is_word)) else { continue };
        let (first, last) = (tokens[at].line, tokens[end_of_item(tokens, at) - 1].line);
        let lines = last + 1 - first;
        if lines > LINES_MAX {
            let (path, name) = (&source.path, &name.text);
            complaints.push(format!("{path}:{first}: function {name} has {lines} lines, more than {LINES_MAX}"));
        }
    }
    complaints
}

#[test]
fn no_function_has_more_than_eighty_lines() {
    let complaints: Vec<String> = sources().iter().flat_map(complaints_about_lengths).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn long_functions_are_noticed() {
    let complain = |text: &str| complaints_about_lengths(&Source::new("src/core/tier/mod.rs", text));
    // A function of this many lines, after this text.
    let long =
        |before: &str, name: &str, lines: usize| format!("{before}fn {name}() {{\n{}}}\n", "g();\n".repeat(lines - 2));
    assert_eq!(complain(&long("", "f", 80)), [""; 0]);
    assert_eq!(complain(&long("", "f", 81)), ["src/core/tier/mod.rs:1: function f has 81 lines, more than 80"]);
    let second = long("", "short", 10) + &long("/// It.\n#[must_use]\npub(super) const ", "second", 100);
    assert_eq!(complain(&second), ["src/core/tier/mod.rs:13: function second has 100 lines, more than 80"]);
    let method = format!("impl A {{\n{}}}\n", long("", "method", 81));
    assert_eq!(complain(&method), ["src/core/tier/mod.rs:2: function method has 81 lines, more than 80"]);
    // Comments, strings and items inside a function do not end it, however many lines they take.
    let lines = "\n".repeat(80);
    for inside in [format!("// }}{lines}"), format!("/* }} {lines} */"), format!("let text = \"}}{lines}\";")] {
        assert_eq!(complain(&format!("fn f() {{ {inside} }}")).len(), 1, "{inside:?}");
    }
    assert_eq!(complain(&format!("fn f(array: [u8; 2],{lines}) {{}}")).len(), 1, "arguments count");
    assert_eq!(complain(&format!("trait A {{ fn f(); {lines} }}")), [""; 0], "it has no body");
    assert_eq!(complain(&format!("struct A {{ f: fn(u8), {lines} }}")), [""; 0], "a type");
    // If an inner function is too long, so is the one around it.
    assert_eq!(complain(&format!("fn outer() {{\n{}}}\n", long("", "inner", 81))).len(), 2);
    // Tests may have any length.
    assert_eq!(complain(&long("#[test]\n", "f", 100)), [""; 0]);
    assert_eq!(complain(&format!("#[cfg(test)]\nmod tests {{\n{}}}\n", long("", "f", 100))), [""; 0]);
    assert_eq!(complain(&long("#[cfg(not(test))]\n", "f", 100)).len(), 1);
}
