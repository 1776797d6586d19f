//! What is unfinished is an issue, not a mark in the code; a test that is not run is no test.

use crate::tree::{Finding, Tree};

/// Words, put together here so that this file is not found.
const WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const CALLS: &[&str] = &[concat!("to", "do!("), concat!("#[ig", "nore")];

/// Looks at every text file.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !matches!(*path, "Cargo.lock" | "LICENSE")) {
        for (index, line) in text.lines().enumerate() {
            let word = WORDS.iter().find(|word| has_word(line, word));
            let call = CALLS.iter().find(|call| path.ends_with(".rs") && line.contains(**call));
            if let Some(mark) = word.or(call) {
                findings.push(Finding::line(path, index, format!("`{mark}` left behind: finish it or open an issue")));
            }
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn finished_text_is_right() {
        let text = "mktemp -d name.XXXXXX\nlet todos = 1;\n";
        assert_eq!(lint(&Tree::of(&[("a.rs", text), ("b.sh", text)])), []);
    }

    #[test]
    fn each_mark_is_found() {
        let lines: Vec<String> =
            WORDS.iter().map(|word| format!("// {word}: later")).chain(CALLS.iter().map(|call| format!("{call})"))).collect();
        assert_eq!(lint(&Tree::of(&[("a.rs", &lines.join("\n"))])).len(), lines.len());
        assert_eq!(lint(&Tree::of(&[("a.md", &lines.join("\n"))])).len(), WORDS.len());
    }
}
