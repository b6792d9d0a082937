//! `bivouac generate`: the manual pages and the shell completions that `ci/install.sh` installs, and `docs/COMMANDS.md`, all made from the
//! commands themselves. The command is hidden, because nobody needs it once these are installed.
#![forbid(unsafe_code)]

use crate::Cli;
use crate::ending::Ending;
use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_markdown::MarkdownOptions;
use std::io;
use std::path::{Path, PathBuf};

/// What to make, and where.
#[derive(clap::Args)]
pub struct Args {
    /// What to make
    #[arg(value_enum)]
    what: What,
    /// The folder to write to; it is created if missing
    directory: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// A manual page of the command and of each of its subcommands
    Man,
    /// Completions for bash, zsh and fish
    Completions,
    /// One page of all commands, COMMANDS.md
    Markdown,
}

/// Runs the command.
pub fn run(args: &Args) -> Ending {
    let made = std::fs::create_dir_all(&args.directory).and_then(|()| match args.what {
        What::Man => clap_mangen::generate_to(Cli::command(), &args.directory),
        What::Completions => completions(&args.directory),
        What::Markdown => std::fs::write(args.directory.join("COMMANDS.md"), markdown()),
    });
    match made {
        Ok(()) => Ending::Good,
        Err(error) => {
            eprintln!("cannot write to {}: {error}", args.directory.display());
            Ending::Trouble
        }
    }
}

/// Shows that the value of an option may be omitted, as `--help` does: the library that makes the page shows such a value as required.
fn values_that_may_be_left_out(mut page: String) -> String {
    let root = Cli::command();
    for option in root.get_subcommands().flat_map(clap::Command::get_arguments) {
        let may_be_left_out = option.get_num_args().is_some_and(|count| count.min_values() == 0);
        if let (true, Some(long), Some([value])) = (may_be_left_out, option.get_long(), option.get_value_names()) {
            page = page.replace(&format!("`--{long} <{value}>`"), &format!("`{option}`"));
        }
    }
    page
}

fn markdown() -> String {
    let options = MarkdownOptions::new().title("Commands".into()).show_footer(false).show_table_of_contents(false);
    let made = values_that_may_be_left_out(clap_markdown::help_markdown_custom::<Cli>(&options));
    let (mut page, mut is_example, mut is_item) = (String::new(), false, false);
    for line in made.lines().map(str::trim_end) {
        // Commands and tables are indented in the help, and fenced on a page. The texts that clap writes about an option's
        // values are indented, too.
        let word = line.trim_start();
        let begins_item = ["* ", "- ", "Default value", "Possible values"].iter().any(|begin| word.starts_with(begin));
        is_item = begins_item || is_item && (word.is_empty() || line.starts_with("    "));
        let is_command = line.starts_with("  ") && !is_item;
        if is_command != is_example {
            page.push_str(match (is_command, word.starts_with("bivouac ")) {
                (true, true) => "\n```sh\n",
                (true, false) => "\n```text\n",
                (false, _) => "```\n",
            });
        }
        is_example = is_command;
        page.push_str(if is_command { &line[2..] } else { line });
        page.push('\n');
    }
    format!("{}\n", page.trim_end())
}

fn completions(directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "bivouac", directory)?;
    }
    Ok(())
}
