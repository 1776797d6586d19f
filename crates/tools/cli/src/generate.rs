//! Man pages and completions, from the command definitions.

use std::io::Write;

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

/// clap_complete completes for fish the values of options only: these are those of arguments without one.
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
