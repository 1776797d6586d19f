//! Writes man pages, shell completions and the reference of commands, from the definitions of the commands.

mod man;
mod reference;

use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, GenerateArgs, Product};

/// Writes the wanted files into a directory.
pub fn generate(args: &GenerateArgs) -> anyhow::Result<bool> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
    match args.what {
        Product::Man => man::write(&args.dir)?,
        Product::Reference => {
            let page = args.dir.join("commands.md");
            std::fs::write(&page, reference::commands()).with_context(|| format!("{}", page.display()))?;
        }
        Product::Completions => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let written = clap_complete::generate_to(shell, &mut Cli::command(), "hotshelf", &args.dir);
                let written = written.context("writing completions")?;
                if shell == Shell::Fish {
                    let mut file = std::fs::File::options().append(true).open(written).context("writing completions")?;
                    file.write_all(fish_values().as_bytes()).context("writing completions")?;
                }
            }
        }
    }
    Ok(true)
}

/// Completes the values of arguments without an option for fish: clap_complete does it for options only.
fn fish_values() -> String {
    let mut text = String::new();
    for command in Cli::command().get_subcommands() {
        let values = command.get_positionals().flat_map(clap::Arg::get_possible_values);
        let values: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        if !values.is_empty() {
            let (name, values) = (command.get_name(), values.join(" "));
            text += &format!("complete -c hotshelf -n \"__fish_hotshelf_using_subcommand {name}\" -a \"{values}\"\n");
        }
    }
    text
}
