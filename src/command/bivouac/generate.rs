//! `bivouac generate`: the manual pages and the shell completions that `ci/install.sh` installs, made from the commands
//! themselves. Hidden, because nobody needs it once they are installed.
#![forbid(unsafe_code)]

use crate::Cli;
use crate::ending::Ending;
use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};

/// What to make, and where.
#[derive(clap::Args)]
pub struct Args {
    /// What to make
    #[arg(value_enum)]
    what: What,
    /// The folder to write to; it is made if it is not there
    directory: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// A manual page of the command and of each of its subcommands
    Man,
    /// Completions for bash, zsh and fish
    Completions,
}

/// Runs the command.
pub fn run(args: &Args) -> Ending {
    let made = std::fs::create_dir_all(&args.directory).and_then(|()| match args.what {
        What::Man => clap_mangen::generate_to(Cli::command(), &args.directory),
        What::Completions => completions(&args.directory),
    });
    match made {
        Ok(()) => Ending::Good,
        Err(error) => {
            eprintln!("cannot write to {}: {error}", args.directory.display());
            Ending::Trouble
        }
    }
}

fn completions(directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "bivouac", directory)?;
    }
    Ok(())
}
