//! A source file that no target reaches is compiled by nobody and rots.
//!
//! Follows `mod name;`, `#[path = "..."]` and `include!("...")` line by line from every target's root. A
//! `mod name;` inside an inline module is looked for beside the file; we do not write such.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::tree::{Finding, Tree};

/// Checks each crate's `.rs` files below `src`, `tests`, `examples` and `benches`.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (dir, manifest) in tree.crates() {
        let mut reached = BTreeSet::new();
        for root in roots(tree, dir, &manifest) {
            reach(tree, &root, true, &mut reached);
        }
        for (path, _) in tree.texts() {
            let below = path.strip_prefix(dir).and_then(|rest| rest.strip_prefix('/'));
            let Some(below) = below.filter(|below| below.ends_with(".rs")) else { continue };
            let folder = below.split('/').next().unwrap_or("");
            if matches!(folder, "src" | "tests" | "examples" | "benches") && !reached.contains(path) {
                findings.push(Finding::file(path, "no `mod` and no target reaches it: name it or remove it"));
            }
        }
    }
    findings
}

/// The roots cargo finds by itself, and those the manifest names.
fn roots(tree: &Tree, dir: &str, manifest: &Table) -> Vec<String> {
    let mut roots: Vec<String> = ["src/lib.rs", "src/main.rs", "build.rs"].map(|file| format!("{dir}/{file}")).to_vec();
    let wanted = |key: &str| manifest["package"].get(key).and_then(Value::as_bool).unwrap_or(true);
    for (folder, switch) in [("src/bin", "autobins"), ("tests", "autotests"), ("examples", "autoexamples"), ("benches", "autobenches")] {
        let prefix = format!("{dir}/{folder}/");
        let found = tree.texts().map(|(path, _)| path).filter(|path| path.strip_prefix(&prefix).is_some_and(is_target));
        roots.extend(found.filter(|_| wanted(switch)).map(str::to_owned));
    }
    let lists = ["bin", "test", "example", "bench"].iter().filter_map(|kind| manifest.get(*kind)?.as_array()).flatten();
    let named = manifest.get("lib").into_iter().chain(lists).filter_map(|target| target.get("path")?.as_str());
    roots.extend(named.map(|path| format!("{dir}/{path}")));
    roots.retain(|root| tree.has(root));
    roots
}

fn is_target(below: &str) -> bool {
    match below.split('/').collect::<Vec<_>>()[..] {
        [file] => file.ends_with(".rs"),
        [_, file] => file == "main.rs",
        _ => false,
    }
}

fn reach(tree: &Tree, path: &str, root: bool, reached: &mut BTreeSet<String>) {
    let Some(text) = tree.text(path) else { return };
    if !reached.insert(path.to_owned()) {
        return;
    }
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    // The children of a root and of a mod.rs are beside it, those of another file in the folder of its name.
    let children = if root || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut given: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if let Some(value) = between(line, "#[path = \"", "\"") {
            given = Some(join(folder, value));
        }
        if let Some(value) = between(line, "include!(\"", "\"") {
            reach(tree, &join(folder, value), true, reached);
        }
        if let Some(name) = module(line) {
            if let Some(path) = given.take() {
                reach(tree, &path, true, reached);
                continue;
            }
            for candidate in [format!("{children}/{name}.rs"), format!("{children}/{name}/mod.rs")] {
                reach(tree, &candidate, false, reached);
            }
        }
    }
}

/// The name in `mod name;`, whatever its visibility and attributes on the same line.
fn module(line: &str) -> Option<&str> {
    if line.starts_with("//") {
        return None;
    }
    let head = line.split("//").next()?.trim_end().strip_suffix(';')?;
    let (before, name) = head.rsplit_once("mod ")?;
    let opens = before.is_empty() || before.ends_with([' ', ']']);
    let plain = name.trim_start_matches("r#");
    (opens && !plain.is_empty() && plain.chars().all(|c| c.is_alphanumeric() || c == '_')).then_some(plain)
}

fn between<'a>(line: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(open)?;
    rest.split_once(close).map(|(value, _)| value)
}

/// `folder/relative` without `.` and `..`.
fn join(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in relative.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod test {
    use super::*;

    const MANIFEST: (&str, &str) =
        ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n[[test]]\nname = \"odd\"\npath = \"tests/deep/odd.rs\"\n");

    #[test]
    fn every_way_to_reach_a_file_is_known() {
        let tree = Tree::of(&[
            MANIFEST,
            ("crates/a/src/lib.rs", "mod one;\npub(crate) mod two;\n#[path = \"other/place.rs\"]\nmod three;\n#[cfg(test)] mod four;\n"),
            ("crates/a/src/one.rs", "mod inner; // with a comment\n"),
            ("crates/a/src/one/inner.rs", "include!(\"../table.rs\");\n"),
            ("crates/a/src/table.rs", ""),
            ("crates/a/src/two/mod.rs", "mod deep;\n"),
            ("crates/a/src/two/deep.rs", ""),
            ("crates/a/src/other/place.rs", ""),
            ("crates/a/src/four.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/src/bin/big/main.rs", "mod part;\n"),
            ("crates/a/src/bin/big/part.rs", ""),
            ("crates/a/tests/whole/main.rs", "mod case;\n"),
            ("crates/a/tests/whole/case.rs", ""),
            ("crates/a/tests/deep/odd.rs", ""),
            ("crates/a/benches/speed.rs", ""),
        ]);
        assert_eq!(lint(&tree), []);
    }

    #[test]
    fn what_nobody_names_is_found() {
        let tree = Tree::of(&[
            MANIFEST,
            ("crates/a/src/lib.rs", "// mod dead;\nmod alive { }\n"),
            ("crates/a/src/dead.rs", ""),
            ("crates/a/src/alive.rs", ""),
            ("crates/a/tests/whole/case.rs", ""),
        ]);
        let at: Vec<String> = lint(&tree).into_iter().map(|finding| finding.at).collect();
        assert_eq!(at, ["crates/a/src/alive.rs", "crates/a/src/dead.rs", "crates/a/tests/whole/case.rs"]);
    }
}
