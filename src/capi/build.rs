//! Gives the shared library the name that programs record when they are linked. This name contains the major version and, before 1.0, also
//! the minor version, because a change of either may change the interface. The script also hides the symbols of dependencies in the
//! library, because a program may be linked with another copy of them. (crc-fast, as `object_store` takes it, has a C interface of its
//! own.)

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    let minor = std::env::var("CARGO_PKG_VERSION_MINOR").expect("cargo sets it");
    let version = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbivouac.so.{version}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo::rerun-if-changed=build.rs");
}
