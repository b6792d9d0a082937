//! Compares the MPI bindings that `src/mpi-sys` keeps with fresh ones: for the MPI of `mpicc`, for that of `mpicc.mpich` if
//! it is installed, and for the headers in the folder that `BIVOUAC_TEST_MPI_INCLUDE` names. With `BIVOUAC_TEST_BLESS`, the
//! fresh bindings are written.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Constants that Rust code uses as constants. Maximum lengths of texts differ between libraries of one kind; the kept
/// value must be large enough.
const EQUAL: [&str; 5] = ["MPI_APPNUM", "MPI_KEYVAL_INVALID", "MPI_SUCCESS", "MPI_UNDEFINED", "MPI_UNIVERSE_SIZE"];
const ENOUGH: [&str; 2] = ["MPI_MAX_ERROR_STRING", "MPI_MAX_OBJECT_NAME"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../mpi-sys")
}

/// The folders with the headers of a compiler, or `None` if the compiler is not installed.
fn includes(mpicc: &str) -> Option<Vec<String>> {
    let output = Command::new(mpicc).arg("-show").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.split_whitespace().filter_map(|word| word.strip_prefix("-I")).map(str::to_owned).collect())
}

/// The name of the bindings that belong to these headers.
fn kind(includes: &[String]) -> &'static str {
    let header = includes.iter().map(|folder| Path::new(folder).join("mpi.h")).find(|path| path.exists());
    let text = fs::read_to_string(header.expect("mpi.h is in one of them")).expect("it can be read");
    if text.contains("OPEN_MPI") { "openmpi" } else { "mpich" }
}

/// The bindings, and the checks of these bindings for a C compiler.
fn fresh(includes: &[String]) -> (String, String) {
    let functions = fs::read_to_string(folder().join("bindings/functions")).expect("it is there");
    let functions = functions.lines().collect::<Vec<_>>().join("|");
    let constants = EQUAL.iter().chain(&ENOUGH).copied().collect::<Vec<_>>().join("|");
    let bindings = bindgen::builder()
        .header(folder().join("shim.h").to_str().expect("UTF-8"))
        .clang_args(includes.iter().map(|folder| format!("-I{folder}")))
        .allowlist_function(format!("{functions}|RSMPI_.*"))
        .allowlist_var(format!("{constants}|RSMPI_.*"))
        .allowlist_type("MPI_Status|RSMPI_Fint")
        .new_type_alias("MPI_(Comm|Datatype|Errhandler|Group|Info|Message|Op|Request|Session|Win)")
        .derive_partialeq(true)
        .generate_comments(false)
        .disable_header_comment()
        .raw_line("// Made by bindgen (tests/mpi_bindings.rs).")
        .generate()
        .expect("bindgen can read it")
        .to_string();
    let checks = checks(&bindings);
    (without_checks(&bindings), checks)
}

/// The bindings without bindgen's own checks in Rust, which say nothing about another `mpi.h`: the C compiler checks that.
fn without_checks(bindings: &str) -> String {
    let mut kept = String::new();
    let mut is_check = false;
    for line in bindings.lines() {
        is_check |= line.starts_with("const _: () = {");
        // The `allow` attributes of a check come before it.
        if !is_check && !line.starts_with("#[allow(clippy::unnecessary_operation") {
            _ = writeln!(kept, "{line}");
        }
        is_check &= line != "};";
    }
    kept
}

fn checks(bindings: &str) -> String {
    let mut checks = "/* Made by tests/mpi_bindings.rs. */\n".to_owned();
    let joined = bindings.split_whitespace().collect::<Vec<_>>().join(" ");
    for (what, of) in [("Size of ", "sizeof"), ("Offset of field: ", "offsetof")] {
        for part in joined.split(&format!("[\"{what}")).skip(1) {
            let (name, rest) = part.split_once("\"]").expect("a name");
            let number = rest.split(" - ").nth(1).and_then(|rest| rest.split("usize").next()).expect("a number");
            let here = match name.split_once("::") {
                // A library may keep anything between these fields.
                Some((_, field)) if !field.starts_with("MPI_") => continue,
                Some((of_type, field)) => format!("{of}({}, {field})", in_c(of_type)),
                None => format!("{of}({})", in_c(name)),
            };
            _ = writeln!(checks, "SHIM_SAME(\"{name}\", {here}, {number})");
        }
    }
    for (names, rule) in [(&EQUAL[..], "SHIM_SAME"), (&ENOUGH[..], "SHIM_ENOUGH")] {
        for name in names {
            let number = joined.split(&format!("pub const {name}: ")).nth(1).or_else(|| {
                // This is an enumerator.
                joined.split(&format!("_{name}: ")).nth(1)
            });
            let number =
                number.and_then(|rest| rest.split(" = ").nth(1)?.split(';').next()).unwrap_or_else(|| panic!("{name}"));
            _ = writeln!(checks, "{rule}(\"{name}\", {name}, {number})");
        }
    }
    checks
}

/// The items of bindings, regardless of their order, of the names of parameters, and of the layout, which differ between releases of one
/// library, and of rustfmt. Only the constants that are used count.
fn items(bindings: &str) -> BTreeSet<String> {
    let text: String =
        bindings.lines().filter(|line| !line.starts_with("//")).flat_map(str::split_whitespace).collect();
    let text = text.replace(",)", ")").replace(",>", ">");
    let items = text.split(';').map(|item| item.trim_start_matches('}').trim_start_matches("unsafeextern\"C\"{"));
    let is_used = |item: &&str| {
        let constant = item.strip_prefix("pubconst").and_then(|rest| rest.split_once(':'));
        constant.is_none_or(|(name, _)| EQUAL.iter().chain(&ENOUGH).any(|used| name.ends_with(used)))
    };
    items.filter(is_used).map(without_parameters).collect()
}

/// A function with only the types of its parameters, and any other item unchanged.
fn without_parameters(item: &str) -> String {
    let Some((head, rest)) = item.strip_prefix("pubfn").and_then(|item| item.split_once('(')) else {
        return item.to_owned();
    };
    let is_name =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let of_type = |part| match str::split_once(part, ':') {
        Some((name, of_type)) if is_name(name) => of_type,
        _ => part,
    };
    let types = rest.split(',').map(of_type);
    format!("{head}({}", types.collect::<Vec<_>>().join(","))
}

/// The C name of the structure that has this name in Rust.
fn in_c(name: &str) -> String {
    if name.starts_with("ompi_") { format!("struct {name}") } else { name.to_owned() }
}

/// Is libclang installed? Bindings are made with it.
fn has_libclang() -> bool {
    let found = std::panic::catch_unwind(bindgen::clang_version).is_ok();
    if !found {
        eprintln!(
            "SKIPPED: libclang is not here: apt-get install libclang-dev, then cargo nextest run --test mpi_bindings"
        );
    }
    found
}

#[test]
fn kept_bindings_are_those_of_the_mpi_that_is_here() {
    if !has_libclang() {
        return;
    }
    let named = env::var("BIVOUAC_TEST_MPI_INCLUDE").ok().map(|folder| vec![folder]);
    let compiler = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let here: Vec<Vec<String>> = [includes(&compiler), includes("mpicc.mpich"), named].into_iter().flatten().collect();
    assert!(!here.is_empty(), "no MPI is here");
    for includes in here {
        let (rust, checks) = fresh(&includes);
        for (extension, text) in [("rs", rust), ("h", checks)] {
            let path = folder().join("bindings").join(kind(&includes)).with_extension(extension);
            if env::var_os("BIVOUAC_TEST_BLESS").is_some() {
                fs::write(&path, &text).expect("written");
            }
            let kept = fs::read_to_string(&path).unwrap_or_default();
            let (kept, fresh) = (items(&kept), items(&text));
            let differences: Vec<&String> = kept.symmetric_difference(&fresh).collect();
            assert!(
                differences.is_empty(),
                "{} differs from fresh ones of {includes:?}: BIVOUAC_TEST_BLESS=1 writes them. {differences:#?}",
                path.display()
            );
        }
    }
}
