//! SECURITY.md promises nothing without a test: each file that it names is there.

use crate::tree::{Finding, Tree};

const CONTRACT: &str = "SECURITY.md";

/// Looks at every path of the checkout that the contract names.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(CONTRACT) else { return vec![Finding::file(CONTRACT, "is missing: it says who may do what to whom")] };
    let is_there =
        |path: &str| tree.has(path) || tree.files().any(|(file, _)| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')));
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = line.split(|c: char| c.is_whitespace() || ",;|()[]`".contains(c)).map(|word| word.trim_end_matches(['.', ':']));
        for path in words.filter(|word| ["tests/", "crates/", "docs/"].iter().any(|dir| word.starts_with(dir))) {
            if !is_there(path) {
                findings.push(Finding::line(
                    CONTRACT,
                    index,
                    format!("`{path}` is not there: name the test that shows it, or take the line out"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_named_is_there() {
        let there = ("tests/system/62-a.sh", "");
        let tree = |text: &str| Tree::of(&[("SECURITY.md", text), there, ("crates/base/shm/src/lock/a.rs", "")]);
        assert_eq!(lint(&tree("| x | tests/system/62-a.sh, crates/base/shm/src/lock |\n")), []);
        assert_eq!(lint(&tree("| x | tests/system/63-b.sh |\n\nand `crates/none`.\n")).len(), 2);
        assert_eq!(lint(&Tree::of(&[there])).len(), 1);
    }
}
