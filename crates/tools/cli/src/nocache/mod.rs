//! `hotshelf nocache`: runs a program with the library `libhotshelf_nocache` preloaded, which keeps its files out of the page cache.
//! What that library can see, and what not: docs/decisions/34-measuring-without-the-page-cache.md.

mod chosen;
mod library;
mod program;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::anyhow;
use cachedfs::Size;
use clap::Args;

/// Holds the arguments of `hotshelf nocache`.
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
    /// Let what was written last, up to so much, be on its way to the device when the call returns, and be read from memory till then:
    /// as with that little memory, for devices that gain by many requests at once [default: 0, each write waits; at most 128MiB]
    #[arg(long, value_name = "SIZE")]
    pub write_cache: Option<Size>,
    /// Run even if the program cannot be intercepted; the programs it starts may be
    #[arg(long)]
    pub anyway: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub words: Vec<OsString>,
}

/// The library that is preloaded.
///
/// # Errors
/// It is not there.
pub fn library() -> anyhow::Result<PathBuf> {
    library::find()
}

/// `hotshelf nocache`: becomes the program, so that status and signals are its own.
pub fn nocache(args: &NocacheArgs) -> anyhow::Result<bool> {
    let (name, words) = args.words.split_first().ok_or_else(|| anyhow!("no program is named"))?;
    let mut chosen = chosen::variable(&args.device, &args.path, args.no_io_uring)?;
    if let Some(bytes) = write_cache(args.write_cache)? {
        chosen.push_str(&format!(",w{bytes}"));
    }
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
        .env("LD_PRELOAD", first(&library, shm::environment::var_os("LD_PRELOAD").as_deref()))
        .exec();
    Err(anyhow!("{} cannot be run: {error}", found.display()))
}

/// In bytes; none: writes wait.
fn write_cache(size: Option<Size>) -> anyhow::Result<Option<u64>> {
    // As many pages as the library has room for.
    const MOST: u64 = 128 << 20;
    match size {
        None | Some(Size::Bytes(0)) => Ok(None),
        Some(Size::Bytes(bytes)) if bytes < 4096 => {
            Err(crate::Usage(format!("--write-cache {bytes} is {bytes} bytes: did you mean {bytes}MiB?")).into())
        }
        Some(Size::Bytes(bytes)) if bytes <= MOST => Ok(Some(bytes)),
        Some(size) => Err(crate::Usage(format!("--write-cache {size}: give bytes, at most {}", Size::Bytes(MOST))).into()),
    }
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

    use cachedfs::Size;

    use super::{first, write_cache};

    #[test]
    fn a_write_cache_has_bounds() {
        assert_eq!(write_cache(None).expect("good"), None);
        assert_eq!(write_cache(Some(Size::Bytes(0))).expect("good"), None);
        assert_eq!(write_cache(Some(Size::Bytes(64 << 20))).expect("good"), Some(64 << 20));
        assert!(write_cache(Some(Size::Bytes((128 << 20) + 1))).is_err());
        assert!(write_cache(Some(Size::Bytes(16))).expect_err("a unit forgotten").to_string().contains("16MiB"));
        assert!(write_cache(Some(Size::Percent(5))).is_err());
    }

    #[test]
    fn what_is_preloaded_anyway_stays() {
        assert_eq!(first(Path::new("/l.so"), None), "/l.so");
        assert_eq!(first(Path::new("/l.so"), Some("".as_ref())), "/l.so");
        assert_eq!(first(Path::new("/l.so"), Some("/x.so:/y.so".as_ref())), "/l.so:/x.so:/y.so");
    }
}
