//! `bivouac config`: the settings that take effect here, and where each of them comes from.
#![forbid(unsafe_code)]

use crate::ending::Ending;
use crate::output::{SCHEMA, complain, plain, print, print_json};
use bivouac_core::Config;
use bivouac_core::config::{ConfigSource, Effective, Origin};
use serde::Serialize;
use std::path::PathBuf;

/// The arguments of `bivouac config`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac config                                 the settings that a program started here would use
  bivouac config --config bivouac.toml           the same, with a file that the program names
  bivouac config --changed                       only settings that are set somewhere

The output is a configuration file. A comment after each value says where the value comes from: a file and a line, a
variable, or the default.

Exit status: 0 done; 2 wrong usage, or the settings have mistakes, which are all listed.")]
pub struct Args {
    /// The file that the program names, instead of the one that BIVOUAC_CONFIG names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show only settings that are set somewhere
    #[arg(long)]
    changed: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    settings: Vec<Setting>,
}

#[derive(Serialize)]
struct Setting {
    key: &'static str,
    /// The value as a TOML literal.
    value: String,
    /// `default`, `file` or `environment`.
    source: &'static str,
    path: Option<PathBuf>,
    line: Option<usize>,
    variable: Option<String>,
    /// The value must be the same on all ranks.
    all_ranks: bool,
}

impl Setting {
    fn of(effective: Effective) -> Setting {
        let Effective { key, value, origin, is_job: all_ranks } = effective;
        let (source, path, line, variable) = match origin {
            None => ("default", None, None, None),
            Some(Origin::File { path, line }) => ("file", Some(path), Some(line), None),
            Some(Origin::Text { line }) => ("text", None, Some(line), None),
            Some(Origin::Variable { name }) => ("environment", None, None, Some(name)),
            Some(Origin::Program) => ("program", None, None, None),
        };
        Setting { key, value, source, path, line, variable, all_ranks }
    }
}

/// Prints the settings.
pub fn run(args: &Args) -> Ending {
    let source = args.config.as_deref().map_or(ConfigSource::Environment, ConfigSource::File);
    let mut effective = match Config::effective(source) {
        Ok(effective) => effective,
        Err(problems) => {
            complain(&problems.to_string());
            return Ending::Trouble;
        }
    };
    effective.retain(|setting| !args.changed || setting.origin.is_some());
    match args.json {
        true => print_json(&Document { schema: SCHEMA, settings: effective.into_iter().map(Setting::of).collect() }),
        false => print(&text(&effective)),
    }
    Ending::Good
}

/// Formats the settings as a configuration file. Pure.
fn text(effective: &[Effective]) -> String {
    let assignment = |setting: &Effective| {
        let leaf = setting.key.split_once('.').map_or(setting.key, |(_, leaf)| leaf);
        format!("{leaf} = {}", setting.value)
    };
    let width = effective.iter().map(|setting| assignment(setting).chars().count()).max().unwrap_or(0).min(40);
    let (mut text, mut last) = (String::new(), "");
    for setting in effective {
        let section = setting.key.split_once('.').map_or("", |(section, _)| section);
        if section != last {
            text += &format!("{}[{section}]\n", if last.is_empty() { "" } else { "\n" });
            last = section;
        }
        let origin = setting.origin.as_ref().map_or_else(|| "default".into(), |origin| plain(&origin.to_string()));
        text += &format!("{:width$}  # {origin}\n", assignment(setting));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back_as_the_same_settings() {
        let given = "[job]\nname = \"a \\\"b\\\" # c\"\n[memory]\nbudget = \"1 GiB\"\n[global]\nkeep_last = 5\n";
        let effective = Config::effective(ConfigSource::Text(given)).expect("right");
        let text = text(&effective);
        // The user who runs this test may have settings in the environment.
        assert_eq!(Config::from_toml(&text), Config::with_settings(ConfigSource::Text(given), &[]), "{text}");
        assert!(
            text.contains("keep_last = 5") && text.contains("  # line 6\n") && text.contains("  # default\n"),
            "{text}"
        );
    }
}
