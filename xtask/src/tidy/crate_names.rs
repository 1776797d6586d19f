//! A crate is named for what it holds; a name that fits everything says nothing.

use crate::tree::{Finding, Tree};

/// The banned word and what to do instead.
const BANNED: &[(&str, &str)] = &[
    ("util", "put each piece beside its one user, or name the noun it is about"),
    ("common", "name what its users have in common"),
    ("base", "name the layer it is"),
    ("helper", "name what it helps to make"),
    ("manager", "name what it holds or decides"),
    ("misc", "split it by noun"),
];

/// Looks at the words of every crate's name, and at its folder.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (dir, manifest) in tree.crates() {
        let at = format!("{dir}/Cargo.toml");
        let name = manifest["package"].get("name").and_then(toml::Value::as_str).unwrap_or("");
        for word in name.split(['-', '_']) {
            let singular = word.strip_suffix('s').unwrap_or(word);
            if let Some((_, instead)) = BANNED.iter().find(|(banned, _)| *banned == word || *banned == singular) {
                findings.push(Finding::file(&at, format!("`{name}` is a name for anything: {instead}")));
            }
        }
        if dir.rsplit('/').next() != Some(name) {
            findings.push(Finding::file(&at, format!("the crate `{name}` lives in `{dir}`: folder and crate have one name")));
        }
    }
    findings
}

#[cfg(test)]
mod test {
    use super::*;

    fn count(dir: &str, name: &str) -> usize {
        let text = format!("[package]\nname = \"{name}\"\n");
        lint(&Tree::of(&[(&format!("{dir}/Cargo.toml"), &text)])).len()
    }

    #[test]
    fn nouns_of_the_field_are_right() {
        assert_eq!(count("crates/cache/pagecache", "pagecache"), 0);
        assert_eq!(count("crates/database", "database"), 0);
    }

    #[test]
    fn words_for_anything_and_other_folders_are_wrong() {
        for name in ["util", "utils", "fs-common", "cache_manager"] {
            assert_eq!(count(&format!("crates/{name}"), name), 1, "{name}");
        }
        assert_eq!(count("crates/one", "other"), 1);
    }
}
