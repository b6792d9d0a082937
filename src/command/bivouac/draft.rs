//! A file that a command writes for other programs. It receives its name only when all of it is good.
#![forbid(unsafe_code)]

use std::fs::File;
use std::path::{Path, PathBuf};

/// A file without its final name. A draft that is dropped leaves no file.
pub struct Draft {
    /// The temporary name; `None` as soon as the file has its final name.
    temp: Option<PathBuf>,
    path: PathBuf,
}

impl Draft {
    /// Creates an empty file next to its final place, and opens it for writing.
    ///
    /// # Errors
    /// The path does not name a file, or no file can be created in its folder.
    pub fn create(path: &Path) -> Result<(Draft, File), String> {
        let name = path
            .file_name()
            .ok_or_else(|| format!("{} does not end in a file name", path.display()))?
            .to_string_lossy();
        let temp = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let mut draft = Draft { temp: None, path: path.to_owned() };
        let file = File::options().write(true).create_new(true).open(&temp);
        let file = file.map_err(|error| draft.failed("write", &error))?;
        draft.temp = Some(temp);
        Ok((draft, file))
    }

    /// The message for an action on the file that the system has refused.
    pub fn failed(&self, action: &str, error: &std::io::Error) -> String {
        format!(
            "cannot {action} {}: {error}. Does the folder exist, is it writable, and does it have room?",
            self.path.display()
        )
    }

    /// Gives the file its final name, and replaces a file that has this name.
    ///
    /// # Errors
    /// The system refuses to rename the file.
    pub fn publish(mut self) -> Result<(), String> {
        if let Some(temp) = &self.temp {
            std::fs::rename(temp, &self.path).map_err(|error| self.failed("rename to", &error))?;
        }
        self.temp = None;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // The file may be gone already, and nobody is left to hear about an error.
        let _ = self.temp.as_ref().map(std::fs::remove_file);
    }
}
