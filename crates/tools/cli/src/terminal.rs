//! The only place from which text goes to standard output and standard error. Of the log, `daemon.rs` takes care.
//!
//! Names of files, answers of daemons and contents of images are written by others. A control character among them could move the
//! cursor, change the terminal's title or forge a line. So each is shown as `\u00xx`, which is also right inside JSON; a line feed, too,
//! except where a text has several lines by intention (`say_lines!`). `println!` and its like are forbidden in this crate
//! (clippy's `print_stdout` and `print_stderr`).

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::Write;

/// Prints one line to standard output. Line feeds in it are shown as `\u000a`.
macro_rules! say {
    ($($word:tt)*) => { $crate::terminal::print(&format_args!($($word)*), false) };
}

/// Prints a text that may have several lines to standard output. Names in it must have been checked for line feeds.
macro_rules! say_lines {
    ($($word:tt)*) => { $crate::terminal::print(&format_args!($($word)*), true) };
}

/// Prints one line to standard error, with the program's name before it.
macro_rules! complain {
    ($($word:tt)*) => { $crate::terminal::print_error(&format_args!($($word)*)) };
}

/// Whether a terminal may do something else with a character than show it.
fn is_control(letter: char) -> bool {
    // The last ones change the direction of the text around them, or end a line in some programs.
    letter.is_control() || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape_if(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_escaped(letter) {
            true => escaped.push_str(&format!("\\u{:04x}", letter as u32)),
            false => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

/// Returns the text as one line without control characters.
pub fn line(text: &str) -> Cow<'_, str> {
    escape_if(text, is_control)
}

/// Returns the text without control characters other than line feeds.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape_if(text, |letter| letter != '\n' && is_control(letter))
}

/// Prints to standard output; `several`: lines. Use `say!`.
pub fn print(words: &Arguments<'_>, several: bool) {
    let text = words.to_string();
    let text = if several { lines(&text) } else { line(&text) };
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        cannot_print(&error);
    }
}

/// Prints to standard error. Use `complain!`.
pub fn print_error(words: &Arguments<'_>) {
    // If that fails too, there is no way to report it.
    let _ = writeln!(std::io::stderr(), "hotshelf: {}", line(&words.to_string()));
}

/// Ends the program without an error if the reader closed the pipe.
fn cannot_print(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    print_error(&format_args!("the output cannot be written: {error}"));
    std::process::exit(1);
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_the_rest_stays() {
        for plain in ["", "a name with spaces, \u{fc} and \u{65e5}", "back\\slash"] {
            assert!(matches!(line(plain), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(line("a\x1b[2Jb\nc\x7f\u{9b}\u{202e}"), "a\\u001b[2Jb\\u000ac\\u007f\\u009b\\u202e");
        assert_eq!(lines("a\x1bb\nc\r"), "a\\u001bb\nc\\u000d");
        let json = lines("{\"name\": \"\u{9b}\"}").into_owned();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).expect("still JSON")["name"], "\u{9b}");
    }
}
