//! `libveloc-client.so`, and C and C++ programs that are linked with it and compiled with VELOC's names only.

use super::{compile, compile_with, root};
use std::path::{Path, PathBuf};

/// Compiles the library into `folder/lib`.
pub fn client(folder: &Path) {
    std::fs::create_dir_all(folder.join("lib")).expect("made");
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libveloc-client.so"];
    compile(folder, "lib/libveloc-client.so", &[root().join("src/capi/veloc/client.c")], &shared);
}

/// Compiles a program of the package into `folder` and links it with the library there.
pub fn program(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let path = root().join(source);
    let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
    let library = format!("-L{}", folder.join("lib").display());
    compile_with(folder, &name, &[path], options, &[&library, "-lveloc-client", "-lpthread"])
}
