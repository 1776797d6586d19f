//! Runs the unit tests. Cargo builds them and starts each test program through this program (its `runner`), which passes over a program
//! that passed before and has not changed since.
//!
//! What a program does depends on its own bytes, its arguments and the files that it reads at run time; the key of a result is all three.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tree::Tree;

/// The directory of results, and the key of the files that tests read: set for the runner.
const RESULTS: &str = "XTASK_TEST_RESULTS";
const DATA: &str = "XTASK_TEST_DATA";

/// Builds all unit tests, and runs those that changed since they passed, or every one.
pub fn run(root: &Path, is_every_one: bool) -> Result<()> {
    let args = ["test", "--quiet", "--workspace", "--no-default-features", "--lib", "--bins"];
    println!("xtask: cargo {}", args.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).stdin(Stdio::null());
    if !is_every_one {
        let me = std::env::current_exe().context("finding this program")?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let results = root.join(target).join("xtask-passed");
        std::fs::create_dir_all(&results).with_context(|| format!("{}", results.display()))?;
        command.env(RESULTS, results).env(DATA, data_key(&Tree::read(root)?).to_string());
        command.arg("--config").arg(format!("target.'cfg(all())'.runner = [{:?}, \"run-test\"]", me.display().to_string()));
    }
    command.args(args);
    if !command.status().context("starting cargo")?.success() {
        bail!("`cargo {}` failed", args.join(" "));
    }
    Ok(())
}

/// Runs a test program, unless it passed before with the same key. Returns whether it passed.
pub fn run_test(program: &Path, args: &[String]) -> Result<bool> {
    let results = std::env::var_os(RESULTS).context("cargo calls this, for `cargo xtask check`")?;
    let bytes = std::fs::read(program).with_context(|| format!("{}", program.display()))?;
    let mut hasher = DefaultHasher::new();
    (bytes, args, std::env::var_os(DATA)).hash(&mut hasher);
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    let result = Path::new(&results).join(format!("{name}-{:016x}", hasher.finish()));
    if result.exists() {
        println!("{name}: unchanged since it passed");
        return Ok(true);
    }
    let status = Command::new(program).args(args).status().with_context(|| format!("starting {}", program.display()))?;
    if status.success() {
        forget(Path::new(&results), &name)?;
        std::fs::write(&result, "").with_context(|| format!("{}", result.display()))?;
    }
    Ok(status.success())
}

/// Removes earlier results of a program.
fn forget(results: &Path, name: &str) -> Result<()> {
    for entry in std::fs::read_dir(results)?.flatten() {
        if entry.file_name().to_string_lossy().rsplit_once('-').is_some_and(|(other, _)| other == name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns a key of all files that a test may read at run time: everything but sources in Rust, which are in the program.
fn data_key(tree: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    tree.files().filter(|(path, _)| !path.ends_with(".rs")).for_each(|file| file.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_files_that_tests_may_read_count() {
        let key = |files: &[(&str, &str)]| data_key(&Tree::of(files));
        let before = key(&[("docs/a.md", "one"), ("crates/a/src/lib.rs", "fn a() {}")]);
        assert_eq!(before, key(&[("docs/a.md", "one"), ("crates/a/src/lib.rs", "fn b() {}")]));
        assert_ne!(before, key(&[("docs/a.md", "two"), ("crates/a/src/lib.rs", "fn a() {}")]));
        assert_ne!(before, key(&[("docs/b.md", "one"), ("crates/a/src/lib.rs", "fn a() {}")]));
    }
}
