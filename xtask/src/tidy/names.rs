//! Names that only their author understands do not come back.

use crate::tree::{Finding, Tree};

/// Type names that say nothing without a second word, or that only this project understands.
const TYPES: &[&str] = &[
    "Aside", "Answer", "Begun", "Bell", "Below", "Books", "Expected", "Fail", "Fate", "Floor", "Front", "Gather", "Gave", "Habits", "Held",
    "Hybrid", "Keeper", "Lane", "Lent", "Look", "Missed", "Nonsense", "Not", "Patience", "Place", "Purpose", "Reads", "Refused", "Room",
    "Said", "Seat", "Shelf", "Slot", "Sought", "State", "Terms", "Thought", "Told", "Trial", "Trouble", "Unusable", "Way", "World",
];

/// Functions and methods.
const FUNCTIONS: &[&str] =
    &["answer_at_once", "are_wanted_elsewhere", "book", "cut_in_place", "give_way", "lend", "meet", "page_sum", "put_out", "think", "told"];

/// Files and folders, without the suffix.
const FILES: &[&str] = &["ahead", "aside", "books", "driven", "lines", "patience", "seats", "shelf"];

/// Looks at each definition of the crates, and at each path.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.starts_with("crates/") && path.ends_with(".rs")) {
        if let Some(name) = path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part)).find(|part| FILES.contains(part)) {
            findings.push(Finding::file(path, format!("`{name}` is a private word: use the field's term (docs/glossary.md)")));
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = defined(line) {
                findings.push(Finding::line(path, index, format!("`{name}` is a private word: use the field's term (docs/glossary.md)")));
            }
        }
    }
    findings
}

/// The banned name that a line defines.
fn defined(line: &str) -> Option<&'static str> {
    let words: Vec<&str> = line.split(|char: char| !(char.is_alphanumeric() || char == '_')).filter(|word| !word.is_empty()).collect();
    words
        .windows(2)
        .find_map(|pair| {
            let banned = match pair[0] {
                "struct" | "enum" | "trait" | "type" | "union" => TYPES,
                "fn" => FUNCTIONS,
                _ => return None,
            };
            banned.iter().find(|name| **name == pair[1]).copied()
        })
        .filter(|_| !line.trim_start().starts_with("//"))
}

#[cfg(test)]
mod test {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        lint(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn names_of_the_field_are_right() {
        assert_eq!(count("crates/a/src/slot.rs", "pub struct ProcessSlot;\nstruct TierState {}\nfn flush() {}\n// struct Seat\n"), 0);
    }

    #[test]
    fn each_private_name_is_found() {
        let text = "pub struct Seat {\npub(crate) enum Told<'a> {\nfn page_sum(a: u8) {\ntype State = u8;\n";
        assert_eq!(count("crates/a/src/b.rs", text), 4);
        assert_eq!(count("crates/a/src/seats/mod.rs", ""), 1);
    }
}
