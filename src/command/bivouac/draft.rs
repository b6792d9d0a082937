//! A file that a command writes for other programs, and that gets its name when all of it is good.
#![forbid(unsafe_code)]

use std::fs::File;
use std::path::{Path, PathBuf};

/// A file that does not have its name yet. If it is given up, it leaves nothing behind.
pub struct Draft {
    /// The name that it has so far; none when it has its own.
    temp: Option<PathBuf>,
    path: PathBuf,
}

impl Draft {
    /// Opens an empty file for writing, next to its final place.
    ///
    /// # Errors
    /// The path names no file, or its folder cannot be written in.
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

    /// What to say when the system refuses an action on it.
    pub fn failed(&self, action: &str, error: &std::io::Error) -> String {
        format!(
            "cannot {action} {}: {error}. Does the folder exist, is it writable, and does it have room?",
            self.path.display()
        )
    }

    /// Gives it its name, in the place of what has it now.
    ///
    /// # Errors
    /// The system refuses.
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
        // It may be gone, and there is nobody left to tell.
        let _ = self.temp.as_ref().map(std::fs::remove_file);
    }
}
