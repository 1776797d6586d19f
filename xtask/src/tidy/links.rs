//! Checks the links of the documents: every target and anchor exists, and the site of docs/ has every page and links no file outside.

use std::collections::BTreeMap;

use crate::tree::{Finding, Tree};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks every Markdown file; links with a scheme are not followed.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pages: BTreeMap<&str, &str> = tree.texts().filter(|(path, _)| path.ends_with(".md")).collect();
    for (path, text) in &pages {
        for (index, target) in links(text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if let Some(what) = wrong(tree, &pages, path, file, anchor) {
                findings.push(Finding::line(path, index, format!("`{target}`: {what}")));
            }
        }
    }
    if let Some(summary) = pages.get(SUMMARY) {
        let listed: Vec<String> = links(summary).filter_map(|(_, target)| resolved(SUMMARY, target)).collect();
        for path in pages.keys().filter(|path| path.starts_with("docs/") && **path != SUMMARY) {
            if !listed.iter().any(|one| one == path) {
                findings.push(Finding::file(path, format!("is not in {SUMMARY}: readers of the site cannot find it")));
            }
        }
    }
    findings
}

/// Returns what is wrong with one link, if anything.
fn wrong(tree: &Tree, pages: &BTreeMap<&str, &str>, from: &str, file: &str, anchor: &str) -> Option<String> {
    let target = if file.is_empty() { from.to_owned() } else { resolved(from, file)? };
    if from.starts_with("docs/") && !target.starts_with("docs/") {
        return Some("leaves docs/, so it is broken on the site: name the path instead".to_owned());
    }
    let is_folder = tree.files().any(|(path, _)| path.strip_prefix(&target).is_some_and(|rest| rest.starts_with('/')));
    if !tree.has(&target) && !is_folder {
        return Some("no such file".to_owned());
    }
    let text = pages.get(target.as_str()).filter(|_| !anchor.is_empty())?;
    (!headings(text).any(|heading| heading == anchor)).then(|| format!("no heading `{anchor}` in {target}"))
}

/// Yields line index and target of each inline link that has no scheme, outside of code.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().flat_map(move |(index, line)| {
        code ^= line.trim_start().starts_with("```");
        let parts = if code { Vec::new() } else { line.split("](").skip(1).collect() };
        let targets = parts.into_iter().filter_map(|part| part.split_once(')').map(|(target, _)| target));
        targets.filter(|target| !target.contains("://") && !target.contains('`') && !target.is_empty()).map(move |target| (index, target))
    })
}

/// Returns the path that a link means, relative to the root; nothing if it leaves the checkout.
fn resolved(from: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Yields the anchors of a page's headings, as forges and mdBook make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let mut code = false;
    let lines = text.lines().filter(move |line| {
        code ^= line.starts_with("```");
        !code && line.starts_with('#')
    });
    lines.map(|line| {
        let kept = line.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod test {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        lint(&Tree::of(files)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn links_to_files_folders_and_headings_are_right() {
        let files = [
            ("README.md", "[a](docs/a.md#the-1st-part), [b](docs), [c](https://example.org/none)\n```\n[no](none.md)\n```\n"),
            ("docs/SUMMARY.md", "- [a](a.md)\n- [b](sub/b.md)\n"),
            ("docs/a.md", "# A\n\n## The `1st` part\n\n[b](sub/b.md) [up](#a)\n"),
            ("docs/sub/b.md", "[a](../a.md)\n"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn broken_links_and_lost_pages_are_found() {
        let files = [
            ("README.md", "[a](docs/none.md) [b](docs/a.md#none)\n"),
            ("docs/SUMMARY.md", "- [a](a.md)\n"),
            ("docs/a.md", "[out](../README.md)\n"),
            ("docs/lost.md", ""),
        ];
        let what = found(&files);
        assert_eq!(what.len(), 4, "{what:?}");
        assert!(what[0].contains("no such file") && what[1].contains("no heading"), "{what:?}");
        assert!(what[2].contains("leaves docs/") && what[3].contains("SUMMARY"), "{what:?}");
    }
}
