//! Man pages and completions, from the command definitions.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, GenerateArgs, Product};

/// Writes them into a directory.
pub fn generate(args: &GenerateArgs) -> anyhow::Result<bool> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
    match args.what {
        Product::Man => clap_mangen::generate_to(Cli::command(), &args.dir).context("writing man pages")?,
        Product::Completions => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut Cli::command(), "hotshelf", &args.dir).context("writing completions")?;
            }
        }
    }
    Ok(true)
}
