//! Comma-separated values.

/// As RFC 4180 has it.
pub(crate) fn quoted(word: &str) -> String {
    if word.contains([',', '"', '\n']) { format!("\"{}\"", word.replace('"', "\"\"")) } else { word.to_owned() }
}
