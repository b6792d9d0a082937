//! Gives the shared library the name that programs record when they are linked: its major version, and before 1.0 the
//! minor one, too, because each of those may change the interface.
//! And keeps what dependencies export (crc-fast, as `object_store` takes it, has an interface for C of its own) inside
//! it: a program may be linked with another copy.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    let minor = std::env::var("CARGO_PKG_VERSION_MINOR").expect("cargo sets it");
    let version = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbivouac.so.{version}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo::rerun-if-changed=build.rs");
}
