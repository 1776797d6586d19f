//! `name=value` words of a command line, and lines of them as output.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};

/// What was given.
pub struct Args(BTreeMap<String, String>);

impl Args {
    /// From words.
    ///
    /// # Errors
    /// A word without `=`.
    pub fn of(words: impl Iterator<Item = String>) -> anyhow::Result<Args> {
        let pair = |word: String| match word.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => Err(anyhow!("`{word}` is no name=value")),
        };
        words.map(pair).collect::<anyhow::Result<_>>().map(Args)
    }

    /// A value, or what it is if it is not given.
    ///
    /// # Errors
    /// It is not of its type.
    pub fn get<T: FromStr>(&mut self, name: &str, or: T) -> anyhow::Result<T> {
        match self.0.remove(name) {
            None => Ok(or),
            Some(value) => value.parse().map_err(|_| anyhow!("{name}={value}")),
        }
    }

    /// A value that has to be given.
    ///
    /// # Errors
    /// It is not.
    pub fn need(&mut self, name: &str) -> anyhow::Result<String> {
        self.0.remove(name).with_context(|| format!("{name}= is missing"))
    }

    /// Nothing else was given.
    ///
    /// # Errors
    /// Something was.
    pub fn end(&self) -> anyhow::Result<()> {
        if let Some((name, _)) = self.0.first_key_value() {
            bail!("there is no {name}=");
        }
        Ok(())
    }
}

/// One figure, in the line of all.
pub fn say(name: &str, value: impl Display) {
    print!("{name}={value} ");
}
