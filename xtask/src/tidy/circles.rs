//! Two files that use each other can only be read together. A parent and its children are one story and may.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{Finding, Tree};

/// Reports each group of files of a crate that depend on one another in a circle.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (dir, _) in tree.crates() {
        let uses = graph(tree, dir);
        for group in circles(&uses) {
            let names: Vec<&str> = group.iter().map(|module| if module.is_empty() { "lib" } else { module.as_str() }).collect();
            let what = format!("the files {} use each other: move what they share into a third, or below its user", names.join(", "));
            findings.push(Finding::file(dir, what));
        }
    }
    findings
}

/// Which module (a path such as `a::b`; the root is empty) uses which others of its crate, without parents and children.
fn graph(tree: &Tree, dir: &str) -> BTreeMap<String, BTreeSet<String>> {
    let source = format!("{dir}/src/");
    let files: BTreeMap<String, &str> = tree
        .texts()
        .filter_map(|(path, text)| Some((module(path.strip_prefix(&source)?)?, text)))
        .filter(|(module, _)| !module.split("::").any(is_test))
        .collect();
    let mut uses = BTreeMap::new();
    for (module, text) in &files {
        let mut targets = BTreeSet::new();
        for path in paths(&without_tests(&code(text))) {
            let Some(target) = resolve(module, &path, &files) else { continue };
            let related = is_above(&target, module) || is_above(module, &target);
            if !related {
                targets.insert(target);
            }
        }
        uses.insert(module.clone(), targets);
    }
    uses
}

fn is_test(name: &str) -> bool {
    name == "test" || name == "tests" || name.starts_with("test_") || name.ends_with("_test")
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`. Programs beside the library are crates of their own and have no module here.
fn module(path: &str) -> Option<String> {
    let stem = path.strip_suffix(".rs")?;
    if stem == "main" || stem.starts_with("bin/") {
        return None;
    }
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    Some(if stem == "lib" { String::new() } else { stem.replace('/', "::") })
}

fn is_above(upper: &str, lower: &str) -> bool {
    upper.is_empty() || upper == lower || lower.strip_prefix(upper).is_some_and(|rest| rest.starts_with("::"))
}

/// The text without comments and the content of strings.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        let mut is_string = false;
        let mut last = ' ';
        let mut chars = line.chars().peekable();
        while let Some(char) = chars.next() {
            if char == '"' && last != '\\' && last != '\'' {
                is_string = !is_string;
            } else if !is_string && char == '/' && chars.peek() == Some(&'/') {
                break;
            } else if !is_string {
                code.push(char);
            }
            last = if last == '\\' { ' ' } else { char };
        }
        code.push('\n');
    }
    code
}

/// The code before the inline module of tests, which comes last in a file by the house's rule.
fn without_tests(code: &str) -> String {
    let end = code.find("#[cfg(test)]\nmod ").or_else(|| code.find("#[cfg(all(test")).unwrap_or(code.len());
    code[..end].to_owned()
}

/// Every path that begins with `crate::` or `super::`, groups in braces expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|char| char.is_alphanumeric() || matches!(char, '_' | ':' | '$')) {
                continue;
            }
            expand(&mut code[at..].chars().peekable(), &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Reads one path, or what is left of one inside braces, and adds it, or its members, to `found`.
fn expand(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let depth = before.len();
    loop {
        skip_space(chars);
        if chars.peek() == Some(&'{') {
            chars.next();
            loop {
                expand(chars, before, found);
                // Also passes over `as name`, and over what is no path.
                while let Some(&char) = chars.peek() {
                    if matches!(char, ',' | '}') {
                        break;
                    }
                    chars.next();
                }
                if chars.next() != Some(',') {
                    break;
                }
            }
            break;
        }
        let mut name = String::new();
        while let Some(&char) = chars.peek().filter(|char| char.is_alphanumeric() || **char == '_') {
            name.push(char);
            chars.next();
        }
        if name.is_empty() {
            break;
        }
        before.push(name);
        let mut ahead = chars.clone();
        if (ahead.next(), ahead.next()) != (Some(':'), Some(':')) {
            found.push(before.clone());
            break;
        }
        *chars = ahead;
    }
    if before.len() > depth && !found.last().is_some_and(|path| path.starts_with(before)) {
        found.push(before.clone());
    }
    before.truncate(depth);
}

fn skip_space(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while chars.peek().is_some_and(|char| char.is_whitespace()) {
        chars.next();
    }
}

/// The module that a path of `from` reaches: the longest one that is a file.
fn resolve(from: &str, path: &[String], files: &BTreeMap<String, &str>) -> Option<String> {
    let mut at: Vec<&str> = if path[0] == "crate" { Vec::new() } else { from.split("::").filter(|part| !part.is_empty()).collect() };
    let supers = path.iter().take_while(|part| *part == "super").count();
    for _ in 0..supers {
        at.pop()?;
    }
    let rest = if path[0] == "crate" { &path[1..] } else { &path[supers..] };
    let mut target = at.join("::");
    for part in rest {
        at.push(part);
        let longer = at.join("::");
        if files.contains_key(&longer) {
            target = longer;
        }
    }
    files.contains_key(&target).then_some(target)
}

/// The groups of modules that reach each other, by size of at least two.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = uses.keys().map(|from| (from, reach(from, uses))).collect();
    let mut groups = Vec::new();
    let mut seen = BTreeSet::new();
    for from in uses.keys() {
        let group: Vec<String> =
            reached[from].iter().filter(|to| reached.get(**to).is_some_and(|back| back.contains(from))).map(|to| (*to).clone()).collect();
        if group.len() > 1 && seen.insert(group.clone()) {
            groups.push(group);
        }
    }
    groups
}

fn reach<'a>(from: &'a String, uses: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&String> = vec![from];
    while let Some(module) = left.pop() {
        for next in uses.get(module).into_iter().flatten() {
            if reached.insert(next) {
                left.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod test {
    use super::*;

    fn count(files: &[(&str, &str)]) -> usize {
        let mut all = vec![("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"), ("crates/a/src/lib.rs", "mod b;\n")];
        all.extend_from_slice(files);
        lint(&Tree::of(&all)).len()
    }

    #[test]
    fn one_way_and_parents_are_right() {
        assert_eq!(count(&[("crates/a/src/b.rs", "use crate::c::D;\n"), ("crates/a/src/c.rs", "// crate::b\n")]), 0);
        assert_eq!(count(&[("crates/a/src/b.rs", "use self::c::D;\n"), ("crates/a/src/b/c.rs", "use super::E;\n")]), 0);
        let tests = "fn a() {}\n#[cfg(test)]\nmod test {\n    use crate::b::B;\n}\n";
        assert_eq!(count(&[("crates/a/src/b.rs", "use crate::c::D;\n"), ("crates/a/src/c.rs", tests)]), 0);
    }

    #[test]
    fn each_way_of_a_circle_is_found() {
        let back = [
            "use crate::b::B;\n",
            "use super::b;\n",
            "use crate::{d::D, b::{B, C}};\n",
            "use crate::{\n    d,\n    b,\n};\n",
            "fn f() { crate::b::g(\"x\"); }\n",
        ];
        for text in back {
            assert_eq!(count(&[("crates/a/src/b.rs", "use crate::c::D;\n"), ("crates/a/src/c.rs", text)]), 1, "{text}");
        }
    }

    #[test]
    fn a_circle_of_three_is_one_group() {
        let files =
            [("crates/a/src/b.rs", "use crate::c;\n"), ("crates/a/src/c.rs", "use crate::d;\n"), ("crates/a/src/d.rs", "use super::b;\n")];
        assert_eq!(count(&files), 1);
    }
}
