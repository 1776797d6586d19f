//! A repository keeps what was written, not what was produced.

use crate::tree::{Finding, Tree};

const BYTES_MAX: usize = 1 << 20;

/// Looks at every file.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let big = tree.files().filter(|(_, bytes)| bytes.len() > BYTES_MAX);
    big.map(|(path, bytes)| Finding::file(path, format!("{} KiB: make it when it is needed, at most 1 MiB is kept", bytes.len() >> 10)))
        .collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_mebibyte_is_right() {
        assert_eq!(lint(&Tree::of(&[("a", &"a".repeat(BYTES_MAX))])), []);
    }

    #[test]
    fn a_byte_more_is_wrong() {
        assert_eq!(lint(&Tree::of(&[("a", &"a".repeat(BYTES_MAX + 1))])).len(), 1);
    }
}
