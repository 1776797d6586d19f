//! Runs the cargo that started this program.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs cargo in `root`, and fails as it fails.
pub fn run(root: &Path, args: &[&str]) -> Result<()> {
    println!("xtask: cargo {}", args.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(args).current_dir(root).stdin(Stdio::null()).status().context("starting cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed ({status})", args.join(" "));
    }
    Ok(())
}

/// Runs cargo in `root` and returns what it prints.
pub fn output(root: &Path, args: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo).args(args).current_dir(root).stdin(Stdio::null()).output().context("starting cargo")?;
    if !done.status.success() {
        bail!("`cargo {}` failed: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    String::from_utf8(done.stdout).context("the output of cargo is not UTF-8")
}
