//! Gives the shared library the name that programs record when they are linked: its major version, and before 1.0 the
//! minor one, too, because each of those may change the interface.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    let minor = std::env::var("CARGO_PKG_VERSION_MINOR").expect("cargo sets it");
    let version = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbivouac.so.{version}");
    println!("cargo::rerun-if-changed=src/capi/build.rs");
}
