//! Values that a shell completes, of options that take others, too.

use clap::Arg;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};

/// Words that a shell completes, of a value that may be another one, too.
#[derive(Clone, Copy)]
pub struct Suggested(pub &'static [&'static str]);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
