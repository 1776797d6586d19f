//! Lines are read on one screen, also side by side with a change.

use crate::tree::{Finding, Tree};

const COLUMNS_MAX: usize = 140;

/// Looks at every text file; a table row or a link in Markdown cannot be broken.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let data = |path: &str| matches!(path, "Cargo.lock" | "LICENSE") || path.ends_with(".jsonl");
    for (path, text) in tree.texts().filter(|(path, _)| !data(path)) {
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !(path.ends_with(".md") && unbreakable(line)) {
                findings.push(Finding::line(path, index, format!("{columns} columns: at most {COLUMNS_MAX}")));
            }
        }
    }
    findings
}

fn unbreakable(line: &str) -> bool {
    line.trim_start().starts_with('|') || line.contains("://")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_last_column_and_table_rows_are_right() {
        let line = "é".repeat(COLUMNS_MAX);
        let row = format!("| {} |", "a".repeat(COLUMNS_MAX));
        assert_eq!(lint(&Tree::of(&[("a.rs", &line), ("a.md", &row)])), []);
    }

    #[test]
    fn one_column_more_is_wrong() {
        let line = "a".repeat(COLUMNS_MAX + 1);
        assert_eq!(lint(&Tree::of(&[("a.rs", &line), ("a.md", &line)])).len(), 2);
    }
}
