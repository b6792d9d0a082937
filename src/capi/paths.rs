//! Paths that a program was given, as C texts.
#![forbid(unsafe_code)]

use super::status::{Failure, Outcome};
use bivouac_core::session::Companion;
use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A companion by its series and the path that the program gave, and the path that the program was given last.
pub(super) type Known = ((String, PathBuf), Companion, Option<CString>);

/// Paths that a program was given, indexed by the names of their regions. They stay where they are for as long as the program may use
/// them.
#[derive(Default)]
pub(super) struct Paths(Vec<(String, CString)>);

impl Paths {
    pub fn find(&self, name: &str) -> Option<*const c_char> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, path)| path.as_ptr())
    }

    pub fn keep(&mut self, name: &str, path: &Path) -> Outcome<*const c_char> {
        let path = CString::new(path.as_os_str().as_bytes());
        let path = path.map_err(|_| Failure::argument("the path contains a zero byte"))?;
        let address = path.as_ptr();
        self.0.push((name.to_owned(), path));
        Ok(address)
    }
}
