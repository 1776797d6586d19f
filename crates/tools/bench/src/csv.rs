//! Comma-separated values (CSV).

/// Quotes a field as in RFC 4180.
pub(crate) fn quoted(word: &str) -> String {
    if word.contains([',', '"', '\n']) { format!("\"{}\"", word.replace('"', "\"\"")) } else { word.to_owned() }
}
