//! `name=value` arguments of a command line, and output in the same form.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};

/// The arguments of a command line.
pub struct Args(BTreeMap<String, String>);

impl Args {
    /// Parses the arguments.
    ///
    /// # Errors
    /// An argument has no `=`.
    pub fn of(words: impl Iterator<Item = String>) -> anyhow::Result<Args> {
        let pair = |word: String| match word.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => Err(anyhow!("`{word}` is no name=value")),
        };
        words.map(pair).collect::<anyhow::Result<_>>().map(Args)
    }

    /// Returns a value, or `or` if it is missing.
    ///
    /// # Errors
    /// The value does not parse.
    pub fn get<T: FromStr>(&mut self, name: &str, or: T) -> anyhow::Result<T> {
        match self.0.remove(name) {
            None => Ok(or),
            Some(value) => value.parse().map_err(|_| anyhow!("{name}={value}")),
        }
    }

    /// Returns a mandatory value.
    ///
    /// # Errors
    /// The value is missing.
    pub fn need(&mut self, name: &str) -> anyhow::Result<String> {
        self.0.remove(name).with_context(|| format!("{name}= is missing"))
    }

    /// Checks that no argument is left.
    ///
    /// # Errors
    /// An unknown argument is left.
    pub fn end(&self) -> anyhow::Result<()> {
        if let Some((name, _)) = self.0.first_key_value() {
            bail!("there is no {name}=");
        }
        Ok(())
    }
}

/// Prints one figure in the output line.
pub fn say(name: &str, value: impl Display) {
    print!("{name}={value} ");
}
