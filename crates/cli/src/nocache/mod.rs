//! `hotshelf nocache`: runs a program with the library `libhotshelf_nocache` preloaded, which keeps its files out of the page cache.
//! What that library can see, and what not: docs/decisions/0039-nocache-by-preloading.md.

mod chosen;
mod library;
mod program;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::anyhow;
use clap::Args;

/// `hotshelf nocache`.
#[derive(Debug, Args)]
pub struct NocacheArgs {
    /// Only this block device, its partitions, and the file systems on them (may be given several times)
    #[arg(long, value_name = "DEV")]
    pub device: Vec<PathBuf>,
    /// Only this file, or all below this directory (may be given several times)
    #[arg(long, value_name = "PATH")]
    pub path: Vec<PathBuf>,
    /// Refuse io_uring to the program and its children: they take other calls or say what is missing
    #[arg(long)]
    pub no_io_uring: bool,
    /// Run also a program that cannot be seen: the programs it starts may be
    #[arg(long)]
    pub anyway: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub words: Vec<OsString>,
}

/// `hotshelf nocache`: becomes the program, so that status and signals are its own.
pub fn nocache(args: &NocacheArgs) -> anyhow::Result<bool> {
    let (name, words) = args.words.split_first().ok_or_else(|| anyhow!("no program is named"))?;
    let chosen = chosen::variable(&args.device, &args.path, args.no_io_uring)?;
    let found = program::find(name)?;
    if !args.anyway
        && let Some(why) = program::unseen(&found, 0)?
    {
        return Err(anyhow!("{why}; --anyway runs it all the same, for the programs that it starts"));
    }
    let library = library::find()?;
    let error = Command::new(&found)
        .arg0(name)
        .args(words)
        .env("HOTSHELF_NOCACHE", chosen)
        .env("LD_PRELOAD", first(&library, std::env::var_os("LD_PRELOAD").as_deref()))
        .exec();
    Err(anyhow!("{} cannot be run: {error}", found.display()))
}

/// Ours before what is preloaded anyway.
fn first(library: &std::path::Path, others: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

#[cfg(test)]
mod test {
    use std::path::Path;

    use super::first;

    #[test]
    fn what_is_preloaded_anyway_stays() {
        assert_eq!(first(Path::new("/l.so"), None), "/l.so");
        assert_eq!(first(Path::new("/l.so"), Some("".as_ref())), "/l.so");
        assert_eq!(first(Path::new("/l.so"), Some("/x.so:/y.so".as_ref())), "/l.so:/x.so:/y.so");
    }
}
