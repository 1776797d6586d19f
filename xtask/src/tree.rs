//! The files of the checkout, read once, as the lints see them.
//!
//! Lints are pure functions of a [`Tree`]; their tests build one in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Every file by its path relative to the root, with `/` between components.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// The files git knows or would add: what is ignored is not ours to judge.
    pub fn read(root: &Path) -> Result<Tree> {
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("starting git: tidy looks at what git would keep")?;
        if !list.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&list.stderr).trim());
        }
        let mut tree = Tree::default();
        for path in list.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
            let path = std::str::from_utf8(path).context("a file name that is not UTF-8")?;
            let full = root.join(path);
            // Deleted files, links and nested checkouts have no content to check.
            if full.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
                tree.files.insert(path.to_owned(), std::fs::read(&full).with_context(|| format!("reading {path}"))?);
            }
        }
        Ok(tree)
    }

    /// Every file and its bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    /// Every file that is text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(_, bytes)| !bytes.contains(&0)).filter_map(|(path, bytes)| Some((path, std::str::from_utf8(bytes).ok()?)))
    }

    /// One text file.
    pub fn text(&self, path: &str) -> Option<&str> {
        std::str::from_utf8(self.files.get(path)?).ok()
    }

    /// Whether there is such a file.
    pub fn has(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// The crates: every manifest with a package, as (directory, manifest).
    pub fn crates(&self) -> impl Iterator<Item = (&str, toml::Table)> {
        self.texts().filter_map(|(path, text)| {
            let dir = path.strip_suffix("/Cargo.toml")?;
            let manifest: toml::Table = text.parse().ok()?;
            // A manifest with a separate workspace is a comparison program, which the workspace does not build.
            (manifest.contains_key("package") && !manifest.contains_key("workspace")).then_some((dir, manifest))
        })
    }
}

/// What a lint found: where, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path, with the line where there is one.
    pub at: String,
    /// What is wrong, and the way out.
    pub what: String,
}

impl Finding {
    /// About a whole file.
    pub fn file(path: &str, what: impl Into<String>) -> Finding {
        Finding { at: path.to_owned(), what: what.into() }
    }

    /// About a line, counted from 0.
    pub fn line(path: &str, index: usize, what: impl Into<String>) -> Finding {
        Finding { at: format!("{path}:{}", index + 1), what: what.into() }
    }
}

#[cfg(test)]
impl Tree {
    /// A tree in memory, for the lints' tests.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect() }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn crates_are_the_manifests_with_a_package() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\n"),
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("crates/b/Cargo.toml", "[workspace]\n"),
            ("bench/guest/Cargo.toml", "[workspace]\n[package]\nname = \"guest\"\n"),
        ]);
        let found: Vec<&str> = tree.crates().map(|(dir, _)| dir).collect();
        assert_eq!(found, ["crates/a"]);
    }

    #[test]
    fn binary_files_are_no_text() {
        let tree = Tree::of(&[("a", "text\n"), ("b", "\0")]);
        assert_eq!(tree.texts().count(), 1);
        assert_eq!(tree.files().count(), 2);
    }
}
