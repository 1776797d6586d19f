//! Unsafe code lives behind a few walls; every other crate root forbids it.

use crate::tree::{Finding, Tree};

/// Hardware, shared memory, the io_uring driver, FUSE's device, the policy loader and the C edges.
const ALLOWED: &[&str] = &["block", "pci", "shm", "fusedev", "policy", "capi", "sqlitevfs", "preload", "nocache"];

const LINE: &str = "#![forbid(unsafe_code)]";

/// Looks at each library and program root.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (dir, manifest) in tree.crates() {
        let name = manifest["package"].get("name").and_then(toml::Value::as_str).unwrap_or("");
        if ALLOWED.contains(&name) {
            continue;
        }
        for root in roots(tree, dir) {
            let forbids = tree.text(&root).is_some_and(|text| text.lines().any(|line| line.trim_end() == LINE));
            if !forbids {
                findings.push(Finding::file(&root, format!("a crate root without `{LINE}`")));
            }
        }
    }
    findings
}

fn roots(tree: &Tree, dir: &str) -> Vec<String> {
    let src = format!("{dir}/src/");
    let is_root = |below: &str| match below.split('/').collect::<Vec<_>>()[..] {
        ["lib.rs" | "main.rs"] | ["bin", _, "main.rs"] => true,
        ["bin", file] => file.ends_with(".rs"),
        _ => false,
    };
    tree.texts().map(|(path, _)| path).filter(|path| path.strip_prefix(&src).is_some_and(is_root)).map(str::to_owned).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    fn package(name: &str) -> String {
        format!("[package]\nname = \"{name}\"\n")
    }

    #[test]
    fn forbidden_or_allowed_is_right() {
        let tree = Tree::of(&[
            ("crates/frontends/mount/Cargo.toml", &package("mount")),
            ("crates/frontends/mount/src/lib.rs", "//! Text.\n#![forbid(unsafe_code)]\n"),
            ("crates/frontends/mount/src/part.rs", "//! Text.\n"),
            ("crates/base/shm/Cargo.toml", &package("shm")),
            ("crates/base/shm/src/lib.rs", "//! Text.\n"),
        ]);
        assert_eq!(lint(&tree), []);
    }

    #[test]
    fn every_root_is_looked_at() {
        let tree = Tree::of(&[
            ("crates/tools/cli/Cargo.toml", &package("cli")),
            ("crates/tools/cli/src/main.rs", "fn main() {}\n"),
            ("crates/tools/cli/src/lib.rs", "// #![forbid(unsafe_code)]\n"),
            ("crates/tools/cli/src/bin/other.rs", "fn main() {}\n"),
        ]);
        assert_eq!(lint(&tree).len(), 3);
    }
}
