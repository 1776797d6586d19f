//! The prose uses the field's words. A reader who knows Linux storage should translate nothing (docs/glossary.md).
//!
//! A hit is a place to look at, not a verdict ("a lookup" is right): so the rule is a rate, not a ban.

use regex_lite::Regex;

use crate::tree::{Finding, Tree};

/// Hits in 10,000 words of prose. Well-kept projects of the field have 1 or 2.
const LIMIT: usize = 4;
/// Hits that are shown when there are too many.
const SHOWN: usize = 40;

/// Pattern, what makes a hit right when it follows, and the field's term.
const WORDS: &[(&str, &str, &str)] = &[
    (
        r"\b[Ww]ho\s(?:reads?|writes?|waits?|asks?|looks?|has|holds?|opens?|needs?|wants?|makes?|gives?|takes?|is|was|does)\b",
        "",
        "the reader, the caller, the client",
    ),
    (r"\b(?:is|are|was|were|be|been|being)\stold\b|\btells?\sof\b", "", "is notified, reports"),
    (r"\b(?:is|are|was|were)\sasked\b|\basks?\s(?:for|whether|it|the)\b", "", "requests, polls"),
    (r"\b(?:the\sfile|files|what\sis|its\sfiles)\sbelow\b|\bbelow\s(?:has|is|had)\b", "", "the backing file, the slow tier"),
    (r"\b[Bb]ooks?\b", "mark", "metadata, registry"),
    (r"\b[Ss]eats?\b", "", "process slot"),
    (r"\b[Bb]ells?\b", " character", "notifier, doorbell"),
    (r"\b[Ll]anes?\b", "", "queue, queue class"),
    (r"\b(?:he|him|his)\b", "", "it, they"),
    (r"\b[Cc]uts?\b.*\b(?:file|size|length|end)\b", "", "truncate"),
    (r"\bprocessors?\b", "", "CPU"),
    (r"\b(?:its|the|a|page|their)\ssums?\b", " of", "checksum"),
    (r"\bputs?\sout\b|\bare\sput\b", "", "flush"),
    (r"\b(?:for\s)?a\swhile\b", "", "a duration"),
    (r"\bin\sgood\sorder\b|\bclosed\sin\sorder\b", "", "cleanly"),
    (r"\bSee\sthe\smodule\b", "", "say what it does"),
    (r"\bto\sthe\sletter\b|\bas\sit\sis\b", "", "unchanged"),
    (r"\bleaves?\s(?:next|first|the\sSSD)\b|\bleaves?\smemory\b", "", "is evicted"),
    (r"\bgather(?:s|ed|ing)?\b", "", "batch, coalesce, write back"),
    (r"\bstands?\s(?:and|in\sthe)\swait\w*", "", "synchronous"),
    (r"\bthinks?\b|\bthought\b", "", "predict, hint"),
    (r"\bbegun\b", "", "started, submitted"),
    (r"\bit\smay\sbe\shad\b|\bcan\sbe\shad\b|\bto\sbe\shad\b", "", "available"),
    (r"\bin\svain\b|\bfor\sgood\b|\bof\sours\b|\bof\sits\sown\b", "", "plain words"),
];

/// Counts over comments, messages of at least three words, and Markdown.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let rules: Vec<(Regex, &str, &str)> =
        WORDS.iter().map(|(pattern, right, term)| (Regex::new(pattern).expect("a constant"), *right, *term)).collect();
    let message = Regex::new(r#""([^"]*\s[^"]*\s[^"]*)""#).expect("a constant");
    let (mut hits, mut total) = (Vec::new(), 0);
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with("tidy/words.rs")) {
        let Some(marks) = comment_marks(path) else { continue };
        for (index, line) in text.lines().enumerate() {
            let Some(prose) = prose(path, line, marks, &message) else { continue };
            total += prose.split_whitespace().count();
            for (pattern, right, term) in &rules {
                for hit in pattern.find_iter(prose).filter(|hit| right.is_empty() || !prose[hit.end()..].starts_with(right)) {
                    let word = hit.as_str().split_whitespace().take(3).collect::<Vec<_>>().join(" ");
                    hits.push(Finding::line(path, index, format!("`{word}`: the field says {term}")));
                }
            }
        }
    }
    if hits.len() * 10_000 <= LIMIT * total {
        return Vec::new();
    }
    let what = format!("{} private words in {total} words of prose: at most {LIMIT} in 10,000", hits.len());
    hits.truncate(SHOWN);
    hits.push(Finding::file("prose", what));
    hits
}

/// What begins a comment in a file of that name; none for files that are not looked at, and all of Markdown is prose.
fn comment_marks(path: &str) -> Option<&'static [&'static str]> {
    match path.rsplit_once('.')?.1 {
        "rs" => Some(&["//"]),
        "c" | "h" => Some(&["/*", "//", " *"]),
        "py" | "sh" => Some(&["#"]),
        "md" => Some(&[]),
        _ => None,
    }
}

fn prose<'a>(path: &str, line: &'a str, marks: &[&str], message: &Regex) -> Option<&'a str> {
    if marks.is_empty() {
        return Some(line);
    }
    let comment = marks.iter().filter_map(|mark| Some(line.find(mark)? + mark.len())).min();
    if let Some(start) = comment {
        return Some(&line[start..]);
    }
    let message = if path.ends_with(".rs") { message.captures(line)?.get(1)? } else { return None };
    Some(&line[message.start()..message.end()])
}

#[cfg(test)]
mod test {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        lint(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn the_terms_of_the_field_are_right() {
        assert_eq!(count("a.rs", "// The reader is notified, and the page is evicted.\nlet seat = lane(books);\n"), 0);
        assert_eq!(count("a.md", "A lookup; a bell character; the sum of both; a bookmark.\n"), 0);
    }

    #[test]
    fn each_way_to_write_prose_is_read() {
        // The hit and the total.
        assert_eq!(count("a.rs", "let a = 1; // who waits is told\n"), 3);
        assert_eq!(count("a.rs", "say(\"the seat is taken\");\n"), 2);
        assert_eq!(count("a.c", "/* It waited in vain. */\n"), 2);
        assert_eq!(count("a.sh", "# for a while\n"), 2);
        assert_eq!(count("a.md", "Cut to the size of the file.\n"), 2);
    }
}
