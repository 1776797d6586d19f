//! The house's own rules, one file each. A finding says where, what, and the way out.

mod build_paths;
mod circles;
mod crate_names;
mod dead_files;
mod dependencies;
mod doc_sentences;
mod environment;
mod final_newline;
mod forbid_unsafe;
mod large_files;
mod layers;
mod line_width;
mod links;
mod lock_sources;
mod long;
mod markers;
mod named_tests;
mod names;
mod words;

use std::path::Path;

use anyhow::{Result, bail};

use crate::tree::{Finding, Tree};

type Lint = fn(&Tree) -> Vec<Finding>;

const LINTS: &[(&str, Lint)] = &[
    ("layers", layers::lint),
    ("crate-names", crate_names::lint),
    ("forbid-unsafe", forbid_unsafe::lint),
    ("dependencies", dependencies::lint),
    ("links", links::lint),
    ("lock-sources", lock_sources::lint),
    ("dead-files", dead_files::lint),
    ("environment", environment::lint),
    ("markers", markers::lint),
    ("named-tests", named_tests::lint),
    ("build-paths", build_paths::lint),
    ("line-width", line_width::lint),
    ("final-newline", final_newline::lint),
    ("large-files", large_files::lint),
    ("words", words::lint),
    ("names", names::lint),
    ("doc-sentences", doc_sentences::lint),
    ("circles", circles::lint),
    ("long", long::lint),
];

/// Every lint over the checkout at `root`.
pub fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut count = 0;
    for (name, lint) in LINTS {
        for finding in lint(&tree) {
            eprintln!("{}: {} [{name}]", finding.at, finding.what);
            count += 1;
        }
    }
    if count > 0 {
        bail!("tidy: {count} to mend");
    }
    println!("tidy: {} rules, nothing to mend", LINTS.len());
    Ok(())
}

/// What one rule finds below a folder.
pub fn show(root: &Path, rule: &str, folder: &str) -> Result<()> {
    let tree = Tree::read(root)?;
    let Some((_, lint)) = LINTS.iter().find(|(name, _)| *name == rule) else { bail!("tidy has no rule `{rule}`") };
    let found: Vec<Finding> = lint(&tree).into_iter().filter(|finding| finding.at.starts_with(folder)).collect();
    for finding in &found {
        println!("{}: {}", finding.at, finding.what);
    }
    println!("{rule}: {}", found.len());
    Ok(())
}
