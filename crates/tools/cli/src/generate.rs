//! Writes man pages, shell completions and the reference of commands, from the definitions of the commands.

mod man;
mod reference;

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, GenerateArgs, Product};
use crate::completion;

/// Writes the wanted files into a directory.
pub fn generate(args: &GenerateArgs) -> anyhow::Result<bool> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
    match args.what {
        Product::Man => man::write(&args.dir)?,
        Product::Reference => {
            let page = args.dir.join("commands.md");
            std::fs::write(&page, reference::commands()).with_context(|| format!("{}", page.display()))?;
            change(&args.dir.join("mount-configuration.md"), reference::mount_configuration)?;
        }
        Product::Example => change(&args.dir.join("example.toml"), reference::example)?,
        Product::Completions => {
            for (shell, mut command) in [(Shell::Bash, Cli::command()), (Shell::Zsh, completion::for_zsh()), (Shell::Fish, Cli::command())]
            {
                let written = clap_complete::generate_to(shell, &mut command, "hotshelf", &args.dir).context("writing completions")?;
                let script = std::fs::read_to_string(&written).context("writing completions")?;
                let script = match shell {
                    Shell::Bash => script + &completion::bash(),
                    Shell::Zsh => completion::zsh(&script),
                    _ => script + &completion::fish(),
                };
                std::fs::write(&written, script).context("writing completions")?;
            }
        }
    }
    Ok(true)
}

/// Brings the generated part of a document up to date.
fn change(path: &Path, generated: fn(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let named = || format!("{}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    std::fs::write(path, generated(&text).with_context(named)?).with_context(named)
}
