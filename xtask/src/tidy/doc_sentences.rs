//! A public item says in a sentence what it does; a word or two, or "look there", say nothing.

use crate::tree::{Finding, Tree};

/// Fewer words than these are no sentence.
const WORDS: usize = 5;

/// The keywords of items, in the order of a declaration.
const ITEMS: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type", "union", "mod"];
const BEFORE_ITEMS: &[&str] = &["const", "async", "unsafe", "extern", "\"C\""];

/// Looks at every `pub` item and field of the crates' sources.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = tree.texts().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs"));
    for (path, text) in sources {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(name) = public_item(line) else { continue };
            let words = documentation(&lines[..index]);
            if words < WORDS {
                findings.push(Finding::line(
                    path,
                    index,
                    format!("`{name}` is public and has {words} words of documentation: say what it does"),
                ));
            }
        }
    }
    findings
}

/// The name of the item that a line makes public; a module in a separate file is documented there.
fn public_item(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let mut words = rest.split_whitespace().peekable();
    let mut item = None;
    while let Some(word) = words.next() {
        if ITEMS.contains(&word)
            && !(word == "const" && words.peek().is_some_and(|next| ITEMS.contains(next) || BEFORE_ITEMS.contains(next)))
        {
            item = Some((word, words.next()?));
            break;
        }
        if !BEFORE_ITEMS.contains(&word) {
            // A field: `pub name: Type`.
            return word.strip_suffix(':').filter(|name| name.chars().all(|char| char.is_alphanumeric() || char == '_'));
        }
    }
    let (keyword, name) = item?;
    // The documentation of an item that a macro names is at the macro's use.
    if name.starts_with('$') || keyword == "mod" && line.trim_end().ends_with(';') {
        return None;
    }
    Some(name.split(|char: char| !(char.is_alphanumeric() || char == '_')).next().unwrap_or(name))
}

/// The words of the documentation right before an item, attributes in between passed over.
fn documentation(before: &[&str]) -> usize {
    let mut words = 0;
    let mut is_attribute = false;
    for line in before.iter().rev().map(|line| line.trim()) {
        if let Some(text) = line.strip_prefix("///") {
            words += text.split_whitespace().count();
        } else if words == 0 && line.starts_with("//") {
            // A comment for maintainers, between the documentation and the item.
        } else if words == 0 && (is_attribute || line.starts_with("#[") || line.ends_with(")]")) {
            is_attribute = !line.starts_with("#[");
        } else {
            break;
        }
    }
    words
}

#[cfg(test)]
mod test {
    use super::*;

    fn count(text: &str) -> usize {
        lint(&Tree::of(&[("crates/a/src/b.rs", text)])).len()
    }

    #[test]
    fn sentences_are_right() {
        assert_eq!(count("/// Returns the number of bytes read.\n#[must_use]\npub const fn read() {}\n"), 0);
        assert_eq!(count("pub(crate) fn a() {}\npub use b::C;\npub mod file;\nfn d() {}\n"), 0);
        assert_eq!(count("/// How many pages are dirty\n/// now.\n#[expect(\n    a,\n    reason = \"b\"\n)]\npub dirty: u64,\n"), 0);
        assert_eq!(count("/// Returns the number of bytes read.\n// C declares it with `...`.\n#[inline]\npub fn read() {}\n"), 0);
        assert_eq!(count("#[derive(Debug)]\npub struct $name(Reply);\n"), 0);
    }

    #[test]
    fn words_alone_are_wrong() {
        let wrong = [
            "/// See the module.\npub struct A;\n",
            "pub fn a() {}\n",
            "/// Its size.\npub size: u64,\n",
            "/// Opens.\n#[inline]\npub unsafe extern \"C\" fn a() {}\n",
            "/// Pages.\npub const PAGES: u64 = 1;\n",
        ];
        for text in wrong {
            assert_eq!(count(text), 1, "{text}");
        }
    }
}
