//! Few dependencies, each with a line on why: in the workspace's table, and nowhere else.

use crate::tree::{Finding, Tree};

const TABLE: &str = "[workspace.dependencies]";

/// Looks for the comment on each line of the table, and for versions given in a crate's own manifest.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(text) = tree.text("Cargo.toml") {
        findings.extend(without_reason(text));
    }
    for (dir, manifest) in tree.crates() {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(entries) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
            for (name, entry) in entries {
                if entry.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    let what = format!("`{name}` is not taken from the workspace: list it in {TABLE} with its reason");
                    findings.push(Finding::file(&format!("{dir}/Cargo.toml"), what));
                }
            }
        }
    }
    findings
}

fn without_reason(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim_end() == TABLE;
        }
        // A new entry begins in the first column; ours are explained in ARCHITECTURE.md.
        let entry = line.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '"');
        if !inside || !entry || line.contains("path = \"crates/") {
            continue;
        }
        if comment(line).is_none_or(|reason| reason.trim().is_empty()) {
            let name = line.split([' ', '=']).next().unwrap_or(line);
            findings.push(Finding::line("Cargo.toml", index, format!("`{name}` without a reason: add `# why` to its line")));
        }
    }
    findings
}

/// What follows the first `#` outside quotes.
fn comment(line: &str) -> Option<&str> {
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted => return Some(&line[at + 1..]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_reason_on_each_line_is_right() {
        let tree = Tree::of(&[
            (
                "Cargo.toml",
                "[workspace.dependencies]\n# ours\npolicy = { path = \"crates/base/policy\" }\nanyhow = \"1\" # errors\n\n[x]\ny = 1\n",
            ),
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[dependencies]\nanyhow.workspace = true\n"),
        ]);
        assert_eq!(lint(&tree), []);
    }

    #[test]
    fn no_reason_an_empty_one_and_a_version_of_ones_own_are_wrong() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace.dependencies]\nanyhow = \"1\"\nclap = \"4\" # \nodd = \"1#\"\n"),
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[dev-dependencies]\nanyhow = \"1\"\n"),
        ]);
        let at: Vec<String> = lint(&tree).into_iter().map(|finding| finding.at).collect();
        assert_eq!(at, ["Cargo.toml:2", "Cargo.toml:3", "Cargo.toml:4", "crates/a/Cargo.toml"]);
    }
}
