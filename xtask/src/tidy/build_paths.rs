//! Nothing may depend on, or tell, where it was built.

use crate::tree::{Finding, Tree};

/// Put together here so that this file is not found.
const PLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Looks at every text file for absolute paths of a build machine.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.lines().enumerate() {
            if let Some(place) = PLACES.iter().find(|place| begins_path(line, place)) {
                let what = format!("an absolute path below `{place}`: use a path of the checkout, a variable or an example path");
                findings.push(Finding::line(path, index, what));
            }
        }
    }
    findings
}

/// Whether `place` is there as the beginning of a path, not as a part in the middle of one.
fn begins_path(line: &str, place: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')' | '*' | '>');
    line.match_indices(place).any(|(at, _)| !line[..at].ends_with(inside))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn relative_and_example_paths_are_right() {
        let inside = PLACES.iter().map(|place| format!("$SCRATCH{place}a ${{X}}{place}b\n")).collect::<String>();
        assert_eq!(lint(&Tree::of(&[("a.sh", &inside), ("b.md", "hotshelf mount --ssd /ssd/pool\n")])), []);
    }

    #[test]
    fn each_place_is_found() {
        for place in PLACES {
            assert_eq!(lint(&Tree::of(&[("a.sh", &format!("cd {place}main\n"))])).len(), 1, "{place}");
            assert_eq!(lint(&Tree::of(&[("a.rs", &format!("\"{place}main\"\n"))])).len(), 1, "{place}");
        }
    }
}
