//! From text to commands and their words, by the quoting rules of sh: blanks part words; `'...'` stays unchanged; in `"..."` a backslash
//! makes `$`, `` ` ``, `"`, `\` and the end of a line plain; elsewhere it makes anything plain; `#` begins a comment; `;` and the end
//! of a line end a command. Nothing is expanded.

/// A command as it was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsedCommand {
    /// Number of lines before the command.
    pub line: usize,
    /// The words of the command; at least one.
    pub words: Vec<Vec<u8>>,
}

/// Why a text is not a valid command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QuotingError {
    /// It ends within a quote, or behind a backslash: more of it may make it whole.
    Unfinished,
    /// Something that means more in a shell than here.
    Operator {
        /// Lines before it.
        line: usize,
        /// Which.
        byte: u8,
    },
}

/// Where a word is that is being typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partial {
    /// The words before it, of the same command.
    pub before: Vec<Vec<u8>>,
    /// Where it begins in the text, with its quote.
    pub start: usize,
    /// What it says so far.
    pub word: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    Nothing,
    Single,
    Double,
    Comment,
}

struct Lexer {
    within: QuoteState,
    escaped: bool,
    line: usize,
    /// Where the command that is read begins.
    first_line: usize,
    word: Option<(usize, Vec<u8>)>,
    words: Vec<Vec<u8>>,
    done: Vec<ParsedCommand>,
}

/// The commands in a text.
pub fn commands(text: &[u8]) -> Result<Vec<ParsedCommand>, QuotingError> {
    let mut lexer = Lexer::read(text)?;
    if lexer.escaped || matches!(lexer.within, QuoteState::Single | QuoteState::Double) {
        return Err(QuotingError::Unfinished);
    }
    lexer.end_command();
    Ok(lexer.done)
}

/// The word at the end of a text; an empty one behind a blank.
pub fn partial(text: &[u8]) -> Option<Partial> {
    let lexer = Lexer::read(text).ok().filter(|lexer| lexer.within != QuoteState::Comment)?;
    let (start, word) = lexer.word.unwrap_or((text.len(), Vec::new()));
    Some(Partial { before: lexer.words, start, word })
}

impl Lexer {
    fn read(text: &[u8]) -> Result<Lexer, QuotingError> {
        let within = QuoteState::Nothing;
        let mut lexer = Lexer { within, escaped: false, line: 0, first_line: 0, word: None, words: Vec::new(), done: Vec::new() };
        for (at, byte) in text.iter().enumerate() {
            lexer.next(at, *byte)?;
            lexer.line += usize::from(*byte == b'\n');
        }
        Ok(lexer)
    }

    fn next(&mut self, at: usize, byte: u8) -> Result<(), QuotingError> {
        if std::mem::take(&mut self.escaped) {
            self.escape(at, byte);
            return Ok(());
        }
        match (self.within, byte) {
            (QuoteState::Comment, b'\n') => {
                self.within = QuoteState::Nothing;
                self.end_command();
            }
            (QuoteState::Comment, _) => {}
            (QuoteState::Single, b'\'') | (QuoteState::Double, b'"') => self.within = QuoteState::Nothing,
            (QuoteState::Nothing | QuoteState::Double, b'\\') => {
                self.begin(at);
                self.escaped = true;
            }
            (QuoteState::Single | QuoteState::Double, _) => self.push(at, byte),
            (QuoteState::Nothing, _) => return self.plain(at, byte),
        }
        Ok(())
    }

    fn plain(&mut self, at: usize, byte: u8) -> Result<(), QuotingError> {
        match byte {
            b'\'' | b'"' => {
                self.begin(at);
                self.within = if byte == b'"' { QuoteState::Double } else { QuoteState::Single };
            }
            b' ' | b'\t' => self.end_word(),
            b'\n' | b';' => self.end_command(),
            b'#' if self.word.is_none() => self.within = QuoteState::Comment,
            b'|' | b'&' | b'<' | b'>' | b'(' | b')' => return Err(QuotingError::Operator { line: self.line, byte }),
            _ => self.push(at, byte),
        }
        Ok(())
    }

    /// What a backslash stood before.
    fn escape(&mut self, at: usize, byte: u8) {
        if byte == b'\n' {
            // Both are as if they were not there.
            if self.word.as_ref().is_some_and(|(start, word)| word.is_empty() && *start + 1 == at) {
                self.word = None;
            }
            return;
        }
        if self.within == QuoteState::Double && !b"$`\"\\".contains(&byte) {
            self.push(at, b'\\');
        }
        self.push(at, byte);
    }

    fn begin(&mut self, at: usize) -> &mut Vec<u8> {
        if self.word.is_none() && self.words.is_empty() {
            self.first_line = self.line;
        }
        &mut self.word.get_or_insert((at, Vec::new())).1
    }

    fn push(&mut self, at: usize, byte: u8) {
        self.begin(at).push(byte);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take().map(|(_, word)| word));
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.done.push(ParsedCommand { line: self.first_line, words: std::mem::take(&mut self.words) });
        }
    }
}

/// The word so that [`commands`] reads it unchanged.
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:,=@%~^".contains(&byte) || byte >= 0x80;
    if !word.is_empty() && word.bytes().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod test {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let texts = |words: Vec<Vec<u8>>| words.into_iter().map(|word| String::from_utf8(word).expect("text")).collect();
        commands(text.as_bytes()).expect("whole").into_iter().map(|typed| texts(typed.words)).collect()
    }

    #[test]
    fn words_are_those_of_sh() {
        assert_eq!(words("ls  -l\t/a"), [["ls", "-l", "/a"]]);
        assert_eq!(words(r#"write 'a b' "c \" \d" e\ f g''h"#), [["write", "a b", r#"c " \d"#, "e f", "gh"]]);
        assert_eq!(words("touch a;touch b\n\n;; # no\ncd x#y # yes"), [vec!["touch", "a"], vec!["touch", "b"], vec!["cd", "x#y"]]);
        assert_eq!(words("cat a\\\nb ''"), [["cat", "ab", ""]]);
        assert_eq!(words("cat \\\n a"), [["cat", "a"]]);
        assert_eq!(words("  \n\t"), [] as [Vec<String>; 0]);
    }

    #[test]
    fn what_is_not_whole_is_distinguished_from_what_is_wrong() {
        for text in ["cat 'a", "cat \"a\\", "cat a\\", "cat \"a\nb"] {
            assert_eq!(commands(text.as_bytes()), Err(QuotingError::Unfinished), "{text}");
        }
        assert_eq!(commands(b"pwd\nls > x"), Err(QuotingError::Operator { line: 1, byte: b'>' }));
        let lines: Vec<usize> = commands(b"a 'x\ny'\nb\\\n c; d").expect("whole").iter().map(|typed| typed.line).collect();
        assert_eq!(lines, [0, 2, 3]);
    }

    #[test]
    fn the_word_at_the_cursor() {
        let at = |text: &str| partial(text.as_bytes()).map(|it| (it.before.len(), it.start, String::from_utf8(it.word).expect("text")));
        assert_eq!(at("ls; cat 'a b/c"), Some((1, 8, "a b/c".into())));
        assert_eq!(at("cat "), Some((1, 4, String::new())));
        assert_eq!(at("ca"), Some((0, 0, "ca".into())));
        assert_eq!(at("cat # a"), None);
        assert_eq!(at("cat > a"), None);
    }

    /// What `shlex` makes of a text without what it does not know: `;`, operators, several lines.
    #[test]
    fn random_texts_give_the_words_of_another_reader() {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(31);
        println!("SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let signs = ["a", "b", " ", "  ", "\t", "'", "\"", "\\", "#", "$", "`", "-", "\u{e4}", "x y"];
        for _ in 0..20_000 {
            let text: String = (0..rng.usize(0..14)).map(|_| signs[rng.usize(0..signs.len())]).collect();
            let ours = commands(text.as_bytes()).ok().map(|mut all| all.pop().map_or(Vec::new(), |typed| typed.words));
            let theirs = shlex::bytes::split(text.as_bytes());
            assert_eq!(ours, theirs, "{text:?}");
        }
    }

    #[test]
    fn random_bytes_never_panic_and_quoted_words_come_back() {
        let mut rng = fastrand::Rng::with_seed(32);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..rng.usize(0..24)).map(|_| *b"ab '\"\\;#\n|>\xff\0\t".get(rng.usize(0..16)).unwrap_or(&b'a')).collect();
            let _ = commands(&bytes);
            if let Some(partial) = partial(&bytes) {
                assert!(partial.start <= bytes.len());
            }
            let list: Vec<String> =
                (0..rng.usize(1..4)).map(|_| (0..rng.usize(0..6)).map(|_| rng.char('\0'..'\u{17f}')).collect()).collect();
            let line: Vec<String> = list.iter().map(|word| quoted(word)).collect();
            let back = commands(line.join(" ").as_bytes()).expect("whole");
            assert_eq!(back[0].words, list.iter().map(|word| word.clone().into_bytes()).collect::<Vec<_>>(), "{line:?}");
        }
    }
}
