//! A manual page of section 3 from the header: its first comment, and every function with the comment above it.

use std::fmt::Write;

/// Of a declaration, beside `.B `: fewer than a line of the house's files has.
const COLUMNS: usize = 130;

/// One declaration and what is said of it.
struct Entry {
    text: Vec<String>,
    declaration: String,
}

/// The page, in the language of man(7).
pub fn page(header: &str) -> String {
    let (about, entries) = read(header);
    let mut out = String::from(
        ".\\\" Made from include/hotshelf.h by `cargo xtask header`.\n.TH HOTSHELF 3 \"\" \"hotshelf\" \"Library Functions\"\n",
    );
    out.push_str(".SH NAME\nlibhotshelf \\- files through a cache, and raw devices, their queues and block cache\n");
    out.push_str(".SH SYNOPSIS\n.nf\n.B #include <hotshelf.h>\n.PP\n.B cc program.c $(pkg-config \\-\\-cflags \\-\\-libs hotshelf)\n.fi\n");
    out.push_str(".SH DESCRIPTION\n");
    paragraphs(&mut out, &about);
    let (functions, others): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.declaration.ends_with(");"));
    out.push_str(".SH FUNCTIONS\n");
    for entry in functions.iter().filter(|entry| !entry.declaration.starts_with("typedef")) {
        let _ = writeln!(out, ".TP\n.B {}", in_lines(&escape(&entry.declaration)));
        paragraphs(&mut out, &entry.text);
    }
    out.push_str(".SH TYPES AND CONSTANTS\n");
    let typedefs = functions.iter().filter(|entry| entry.declaration.starts_with("typedef"));
    for entry in others.iter().chain(typedefs) {
        let _ = writeln!(out, ".TP\n.B {}", in_lines(&escape(&entry.declaration)));
        paragraphs(&mut out, &entry.text);
    }
    out.push_str(".SH SEE ALSO\n.BR hotshelf (1)\n");
    out
}

/// The first comment, and what follows.
fn read(header: &str) -> (Vec<String>, Vec<Entry>) {
    let (mut about, mut entries) = (Vec::new(), Vec::new());
    let mut comment: Option<Vec<String>> = None;
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if let Some(first) = trimmed.strip_prefix("/*") {
            let mut text = Vec::new();
            let mut rest = first.to_owned();
            loop {
                let ended = rest.trim_end().ends_with("*/");
                let said = rest.trim().trim_end_matches("*/").trim_start_matches('*').trim().to_owned();
                text.push(said);
                if ended {
                    break;
                }
                let Some(next) = lines.next() else { break };
                rest = next.trim().to_owned();
            }
            match about.is_empty() {
                true => about = text,
                false => comment = Some(text),
            }
            continue;
        }
        // What is followed by an empty line is said of nothing.
        let Some(text) = comment.take().filter(|_| !trimmed.is_empty()) else { continue };
        let mut declaration = trimmed.to_owned();
        while !declaration.starts_with('#') && !declaration.ends_with(';') && !declaration.ends_with('{') {
            let Some(next) = lines.next() else { break };
            declaration.push(' ');
            declaration.push_str(next.trim());
        }
        entries.push(Entry { text, declaration: plain(&declaration) });
    }
    (about, entries)
}

/// As people write it.
fn plain(declaration: &str) -> String {
    let text = declaration.strip_prefix("#define ").unwrap_or(declaration).trim_end_matches('{').trim();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Comment lines as paragraphs: an empty line parts them.
fn paragraphs(out: &mut String, lines: &[String]) {
    let mut begun = false;
    for line in lines {
        match (line.is_empty(), begun) {
            (true, true) => begun = false,
            (true, false) => {}
            (false, _) => {
                if !begun && out.lines().last().is_some_and(|last| !last.starts_with('.')) {
                    out.push_str(".IP\n");
                }
                begun = true;
                let _ = writeln!(out, "{}", escape(line));
            }
        }
    }
}

fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('-', "\\-").replace('`', "");
    if text.starts_with('.') || text.starts_with('\'') { format!("\\&{text}") } else { text }
}

/// A request's text goes on in the next line behind a backslash (groff(7), "Line continuation").
fn in_lines(request: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in request.split_inclusive(' ') {
        if column + word.len() > COLUMNS {
            out.push_str("\\\n");
            column = 0;
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn functions_are_listed_with_what_is_said_of_them() {
        let header = "/* About.\n *\n * -1 and errno.\n */\n#define X\n/*\n * Opens.\n *\n * Returns 0.\n */\nint f(int a,\n      int b);\n\
                      /**\n * A flag.\n */\n#define F 1\n";
        let page = page(header);
        assert!(page.contains(".SH DESCRIPTION\nAbout.\n.IP\n\\-1 and errno.\n"), "{page}");
        assert!(page.contains(".TP\n.B int f(int a, int b);\nOpens.\n.IP\nReturns 0.\n"), "{page}");
        assert!(page.contains(".TP\n.B F 1\nA flag.\n"), "{page}");
    }

    #[test]
    fn a_long_declaration_goes_on_in_the_next_line() {
        let long = "int f(int a, int b, ".repeat(8);
        let lines = in_lines(&long);
        assert!(lines.contains("\\\n") && lines.lines().all(|line| line.len() <= COLUMNS + 1), "{lines}");
        assert_eq!(lines.replace("\\\n", ""), long);
    }
}
