//! The rules of the configuration: the settings of a file by its path.

use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ssdcache::{AdmissionRule, Mode};

use crate::config::{Admit, RuleConfig};
use crate::error::Error;
use crate::options::Options;

/// The compiled rules of the configuration.
#[derive(Debug)]
pub struct Rules {
    globs: GlobSet,
    rules: Vec<RuleConfig>,
}

/// The settings that apply to one open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holds {
    /// The mode, within the instance's.
    pub mode: Mode,
    /// The admission of pages to the SSD.
    pub admit: AdmissionRule,
    /// Whether its pages stay in memory.
    pub pin: bool,
}

impl Rules {
    /// # Errors
    /// A glob is not valid.
    pub fn new(rules: &[RuleConfig]) -> Result<Rules, Error> {
        let mut set = GlobSetBuilder::new();
        let wrong = |error: globset::Error| Error::invalid(format!("[cache] rules: {error}"));
        for rule in rules {
            // A glob without a slash matches the last component, in any directory.
            let glob = if rule.glob.contains('/') { rule.glob.clone() } else { format!("**/{}", rule.glob) };
            set.add(GlobBuilder::new(&glob).literal_separator(true).build().map_err(wrong)?);
        }
        Ok(Rules { globs: set.build().map_err(wrong)?, rules: rules.to_vec() })
    }

    /// Returns the settings of an open: those of its options, else of the first rule that matches, else the default.
    pub fn of(&self, path: &Path, options: &Options) -> Holds {
        let first = if self.rules.is_empty() { None } else { self.globs.matches(path).first().map(|at| &self.rules[*at]) };
        let rule = first.cloned().unwrap_or_default();
        let admit = match options.admit.unwrap_or(rule.admit) {
            Admit::Never => AdmissionRule::Never,
            Admit::Normal => AdmissionRule::Normal,
            Admit::Always => AdmissionRule::Always,
        };
        // An open may use the cache less than the owner's rule allows, but not more.
        let mode = options.mode.unwrap_or_default().within(rule.mode.unwrap_or_default());
        Holds { mode, admit, pin: options.pin || rule.pin }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_first_that_matches_holds_and_an_open_asks_for_less() {
        let rule = |glob: &str, mode, admit, pin| RuleConfig { glob: glob.into(), mode, admit, pin };
        let rules =
            Rules::new(&[rule("*.log", Some(Mode::WriteThrough), Admit::Never, false), rule("/data/**", None, Admit::Always, true)])
                .expect("globs");
        let of = |path: &str, options: &Options| rules.of(Path::new(path), options);
        let plain = Options::default();
        assert_eq!(of("/data/x.log", &plain), Holds { mode: Mode::WriteThrough, admit: AdmissionRule::Never, pin: false });
        assert_eq!(of("/data/a/b", &plain), Holds { mode: Mode::WriteBack, admit: AdmissionRule::Always, pin: true });
        assert_eq!(of("/else", &plain), Holds { mode: Mode::WriteBack, admit: AdmissionRule::Normal, pin: false });
        let back = Options { mode: Some(Mode::WriteBack), admit: Some(Admit::Normal), ..plain };
        assert_eq!(of("/x.log", &back).mode, Mode::WriteThrough);
        assert_eq!(of("/x.log", &back).admit, AdmissionRule::Normal);
        assert_eq!(of("/else", &Options { mode: Some(Mode::ReadOnly), ..plain }).mode, Mode::ReadOnly);
    }
}
