//! Every dependency comes from the public registry: a lock file that names a mirror builds nowhere else.

use crate::tree::{Finding, Tree};

const PUBLIC: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// Looks at the `source` lines of Cargo.lock.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let text = tree.text("Cargo.lock").unwrap_or("");
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with("source = ") && *line != PUBLIC)
        .map(|(index, line)| Finding::line("Cargo.lock", index, format!("`{line}` is not the public registry")))
        .collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_public_registry_is_right() {
        assert_eq!(lint(&Tree::of(&[("Cargo.lock", &format!("[[package]]\nname = \"a\"\n{PUBLIC}\n"))])), []);
    }

    #[test]
    fn a_mirror_or_a_git_source_is_wrong() {
        let lock = "source = \"registry+https://mirror.example/index\"\nsource = \"git+https://forge.example/a\"\n";
        assert_eq!(lint(&Tree::of(&[("Cargo.lock", lock)])).len(), 2);
    }
}
