//! Long functions, long argument lists and large files are divided, or say why not in a line `// long: REASON`.
//!
//! The line is above the function among its attributes and documentation, or the first line of the file. A reason without anything long
//! is an error too, so none outlives the code it is about.

use std::collections::BTreeSet;

use regex_lite::Regex;

use crate::tree::{Finding, Tree};

/// Lines of a function from its signature to its closing brace, without blank lines and comments.
const FUNCTION_LINES: usize = 60;
/// Arguments without `self`.
const ARGUMENTS: usize = 6;
/// Lines of a file before its module of tests.
const FILE_LINES: usize = 500;
/// Words of a sentence that gives a reason.
const REASON_WORDS: usize = 4;
const MARK: &str = "// long:";

/// Reports what is over a limit without a reason, and reasons that nothing needs.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let signature =
        Regex::new(r#"^ *(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?(?:extern "[^"]*" )?fn (\w+)"#).expect("a constant");
    tree.texts().filter(|(path, _)| path.ends_with(".rs")).flat_map(|(path, text)| judge(path, text, &signature)).collect()
}

fn judge(path: &str, text: &str, signature: &Regex) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let mut reasons: BTreeSet<usize> =
        lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with(MARK)).map(|(index, _)| index).collect();
    let mut findings: Vec<Finding> = reasons
        .iter()
        .filter(|index| lines[**index].split_whitespace().count() - 2 < REASON_WORDS)
        .map(|index| Finding::line(path, *index, "a reason is a sentence: say why this reads better in one piece"))
        .collect();
    let before_tests = test_module(&lines).unwrap_or(lines.len());
    let has_reason = reasons.remove(&0);
    if before_tests > FILE_LINES && !has_reason {
        let what = format!(
            "{before_tests} lines before the tests, at most {FILE_LINES}: divide the file by subject, or begin it with `{MARK} REASON`"
        );
        findings.push(Finding::file(path, what));
    } else if before_tests <= FILE_LINES && has_reason {
        findings.push(Finding::line(path, 0, "the file is not long: remove the reason"));
    }
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = signature.captures(line).map(|found| found[1].to_owned()) else { continue };
        let Some(what) = excess(&lines, index, &name) else { continue };
        match reason_above(&lines, index) {
            Some(reason) => _ = reasons.remove(&reason),
            None => findings.push(Finding::line(path, index, format!("`{name}` has {what}: divide it, or write `{MARK} REASON` above it"))),
        }
    }
    findings.extend(reasons.iter().map(|index| Finding::line(path, *index, "nothing long follows: remove the reason")));
    findings
}

/// What is too long about the function whose signature begins at a line.
fn excess(lines: &[&str], start: usize, name: &str) -> Option<String> {
    let arguments = count_arguments(&lines[start..], name);
    if arguments > ARGUMENTS && !is_of_foreign_trait(lines, start) {
        return Some(format!("{arguments} arguments, at most {ARGUMENTS}"));
    }
    let length = count_lines(&lines[start..]);
    (length > FUNCTION_LINES).then(|| format!("{length} lines, at most {FUNCTION_LINES}"))
}

/// Counts the lines of a formatted function: its closing brace has the indentation of its signature.
fn count_lines(lines: &[&str]) -> usize {
    let indent = lines[0].len() - lines[0].trim_start().len();
    let is_level = |line: &str| line.len() - line.trim_start().len() == indent;
    if lines[0].ends_with(['}', ';']) {
        return 1;
    }
    let body = lines.iter().position(|line| is_level(line) && line.trim_start().starts_with('}')).map_or(&lines[..1], |end| &lines[..=end]);
    // The declaration of a trait's method without a body.
    let ends_early = body.iter().skip(1).any(|line| is_level(line) && line.ends_with(';'));
    if ends_early { 1 } else { body.iter().filter(|line| is_code(line)).count() }
}

fn is_code(line: &str) -> bool {
    !line.trim().is_empty() && !line.trim_start().starts_with("//")
}

/// Counts the commas at the level of the argument list, after the generic parameters.
fn count_arguments(lines: &[&str], name: &str) -> usize {
    let head: String = lines.iter().take(40).map(|line| line.split("//").next().unwrap_or_default()).collect();
    let Some(at) = head.find(&format!("fn {name}")) else { return 0 };
    let mut depth = 0_usize;
    let (mut is_list, mut last, mut argument, mut count) = (false, ' ', String::new(), 0);
    let mut end = |argument: &mut String| {
        let is_self = argument.trim().trim_start_matches(['&', ' ']).split([' ', ':']).any(|word| word == "self");
        count += usize::from(!argument.trim().is_empty() && !is_self);
        argument.clear();
    };
    for char in head[at + 3 + name.len()..].chars() {
        match char {
            '(' if depth == 0 => (is_list, depth) = (true, 1),
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if last == '-' || last == '=' => {}
            ')' if is_list && depth == 1 => break,
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            ',' if is_list && depth == 1 => end(&mut argument),
            _ => {}
        }
        if is_list && (char != ',' || depth > 1) && !(char == '(' && depth == 1) {
            argument.push(char);
        }
        last = char;
    }
    end(&mut argument);
    count
}

/// The list of a trait's method is decided where the trait is declared.
fn is_of_foreign_trait(lines: &[&str], at: usize) -> bool {
    let block = lines[..at].iter().rev().find(|line| line.starts_with("impl") || line.starts_with('}'));
    lines[at].starts_with("    ") && block.is_some_and(|line| line.starts_with("impl") && line.contains(" for "))
}

/// The line of the reason among the attributes and the documentation above a function.
fn reason_above(lines: &[&str], at: usize) -> Option<usize> {
    let is_head = |line: &str| line.trim_start().starts_with("//") || line.trim_start().starts_with("#[") || line.trim() == ")]";
    (0..at).rev().take_while(|index| is_head(lines[*index])).find(|index| lines[*index].trim_start().starts_with(MARK))
}

/// The line at which the module of tests begins, which comes last in a file.
fn test_module(lines: &[&str]) -> Option<usize> {
    let is_test = |line: &str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
    (0..lines.len()).find(|at| {
        let next = lines[at + 1..].iter().find(|line| !line.starts_with("#["));
        is_test(lines[*at]) && next.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
    })
}

#[cfg(test)]
mod test {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        lint(&Tree::of(&[("a.rs", text)])).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_function_of_sixty_lines_is_short_enough_and_comments_do_not_count() {
        let body = |lines: usize| format!("fn a() {{\n{}    // a comment\n\n}}\n", "    b();\n".repeat(lines));
        assert_eq!(found(&body(58)), [""; 0]);
        assert!(found(&body(59))[0].starts_with("`a` has 61 lines"), "{:?}", found(&body(59)));
        let justified = format!("// long: one match over every call.\n#[inline]\n{}", body(59));
        assert_eq!(found(&format!("mod a;\n{justified}")), [""; 0]);
        assert_eq!(found("mod a;\n// long: one match over every call.\nfn a() {}\n"), ["nothing long follows: remove the reason"]);
    }

    #[test]
    fn arguments_are_counted_without_self_and_not_in_their_types() {
        let six = "fn a<T: Fn(u8, u8) -> u8>(&mut self, a: u8, b: [u8; 2], c: (u8, u8), d: Vec<A<u8, u8>>, e: &dyn Fn(u8, u8) -> u8, f: T)";
        assert_eq!(found(&format!("{six} {{}}\n")), [""; 0]);
        let seven = format!("{}, g: u8) {{}}\n", &six[..six.len() - 1]);
        assert!(found(&seven)[0].starts_with("`a` has 7 arguments"), "{:?}", found(&seven));
        assert_eq!(found(&format!("impl Trait for A {{\n    {seven}}}\n")), [""; 0]);
        assert_eq!(found(&format!("impl A {{\n    {seven}}}\n")).len(), 1);
        assert_eq!(found("fn a(\n    a: u8,\n    b: u8,\n    c: u8,\n    d: u8,\n    e: u8,\n    f: u8,\n) {\n}\n"), [""; 0]);
    }

    #[test]
    fn the_tests_of_a_file_do_not_count_and_its_reason_is_the_first_line() {
        let code = "use a;\n".repeat(500);
        let tests = format!("#[cfg(test)]\nmod test {{\n{}}}\n", "    use a;\n".repeat(100));
        assert_eq!(found(&format!("{code}{tests}")), [""; 0]);
        assert_eq!(found(&format!("{code}{code}{tests}")).len(), 1);
        assert_eq!(found(&format!("// long: a table of all calls.\n{code}{tests}")), [""; 0]);
        assert_eq!(found("// long: a table of all calls.\n"), ["the file is not long: remove the reason"]);
        assert_eq!(found(&format!("// long: big.\n{code}{code}")), ["a reason is a sentence: say why this reads better in one piece"]);
    }
}
