//! A text file ends with a newline: without one, the next line added shows two changes.

use crate::tree::{Finding, Tree};

/// Looks at every text file that is not empty.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let open = tree.texts().filter(|(_, text)| !text.is_empty() && !text.ends_with('\n'));
    open.map(|(path, _)| Finding::file(path, "no newline at the end")).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn ended_empty_and_binary_files_are_right() {
        assert_eq!(lint(&Tree::of(&[("a", "text\n"), ("b", ""), ("c", "\0data")])), []);
    }

    #[test]
    fn an_open_end_is_wrong() {
        assert_eq!(lint(&Tree::of(&[("a", "text")])).len(), 1);
    }
}
