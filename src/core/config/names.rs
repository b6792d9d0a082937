//! Names of jobs, groups and checkpoints.

/// Whether text can be a name. Names become parts of file names, so each must be a single, visible component.
pub(super) fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.trim() == text
        && !matches!(text, "." | "..")
        && !text.chars().any(|c| c == '/' || c.is_control())
}
