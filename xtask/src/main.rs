//! The workshop: `cargo xtask check` is what CI runs before the tests, in one command.
//!
//! Holds no part of the product and no crate depends on it. Every in-house rule is one file in `tidy`.
#![forbid(unsafe_code)]

mod cargo;
mod deny;
mod figures;
mod header;
mod manual;
mod tidy;
mod tree;
mod unit_tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask check            formatting, clippy, unit tests that changed since they passed, tidy: all must pass
       cargo xtask check --all      the same with every unit test
       cargo xtask tidy             the house's own rules, alone
       cargo xtask tidy RULE [DIR]  what one rule finds, below a folder
       cargo xtask deny             licences of dependencies; with cargo-deny installed, advisories and sources too
       cargo xtask header [--check] include/hotshelf.h and hotshelf(3), from the C interface's comments
       cargo xtask figures [--check] the documents' tables of figures and the chart, from bench/stored/readme.jsonl
       cargo xtask reference        docs/reference/commands.md, keys of a mount's configuration, contrib/example.toml
       cargo xtask man DIR          man pages of the hotshelf command, written to DIR
       cargo xtask completions DIR  shell completions, written to DIR";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["check"] => check(false),
        ["check", "--all"] => check(true),
        ["tidy"] => root().and_then(|root| tidy::run(&root).and(figures::run(&root, true))),
        ["tidy", rule] => root().and_then(|root| tidy::show(&root, rule, "")),
        ["tidy", rule, dir] => root().and_then(|root| tidy::show(&root, rule, dir)),
        ["header"] => root().and_then(|root| header::run(&root, false)),
        ["header", "--check"] => root().and_then(|root| header::run(&root, true)),
        ["deny"] => root().and_then(|root| deny::run(&root)),
        ["figures"] => root().and_then(|root| figures::run(&root, false)),
        ["figures", "--check"] => root().and_then(|root| figures::run(&root, true)),
        // For cargo: see `unit_tests`.
        ["run-test", program, args @ ..] => {
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            unit_tests::run_test(Path::new(program), &args).and_then(|passed| if passed { Ok(()) } else { bail!("{program} failed") })
        }
        [what @ ("man" | "completions"), dir] => generate(what, dir),
        ["reference"] => generate("reference", "docs/reference").and(generate("example", "contrib")),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The directory of the workspace: the parent of this crate's.
fn root() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").context("run me as `cargo xtask`")?;
    Ok(Path::new(&here).parent().context("xtask/ has a parent")?.to_owned())
}

/// Runs every step even after one failed, so that one run shows all there is to mend; then prints what each step took.
fn check(is_every_test: bool) -> Result<()> {
    let root = root()?;
    let (mut failed, mut times) = (Vec::new(), Vec::new());
    let mut step = |name: &'static str, run: &dyn Fn() -> Result<()>| {
        let begin = Instant::now();
        if let Err(error) = run() {
            eprintln!("xtask: {name}: {error:#}");
            failed.push(name);
        }
        times.push(format!("{name} {:.1} s", begin.elapsed().as_secs_f64()));
    };
    step("tidy", &|| tidy::run(&root));
    step("header", &|| header::run(&root, true));
    step("figures", &|| figures::run(&root, true));
    step("deny", &|| deny::run(&root));
    step("fmt", &|| cargo::run(&root, &["fmt", "--all", "--", "--check"]));
    // Without default features: the allocator takes minutes to compile, and no check needs it.
    let clippy = ["clippy", "--workspace", "--all-targets", "--no-default-features", "--", "-D", "warnings"];
    step("clippy", &|| cargo::run(&root, &clippy));
    step("unit tests", &|| unit_tests::run(&root, is_every_test));
    println!("check: {}", times.join(", "));
    if failed.is_empty() {
        println!("check: all is well");
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

fn generate(what: &str, dir: &str) -> Result<()> {
    cargo::run(&root()?, &["run", "--quiet", "--package", "cli", "--no-default-features", "--", "generate", what, dir])
}
