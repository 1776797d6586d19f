//! Checks the licence of every dependency against deny.toml, and runs cargo-deny (advisories, bans, sources) where it is installed.
//!
//! Building cargo-deny takes longer than the rest of the check, so that it is optional here; the public CI always runs it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// Fails if a dependency has a licence that deny.toml does not allow, or if cargo-deny finds something.
pub fn run(root: &Path) -> Result<()> {
    let policy = std::fs::read_to_string(root.join("deny.toml")).context("reading deny.toml")?;
    let target = "x86_64-unknown-linux-gnu";
    let metadata = cargo::output(root, &["metadata", "--format-version", "1", "--locked", "--filter-platform", target])?;
    let metadata: Value = serde_json::from_str(&metadata).context("the answer of `cargo metadata`")?;
    let wrong = refused(&policy.parse().context("deny.toml")?, &metadata)?;
    if !wrong.is_empty() {
        bail!("licences that deny.toml does not allow: {}", wrong.join(", "));
    }
    let installed = Command::new("cargo-deny").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if installed.is_ok_and(|status| status.success()) {
        return cargo::run(root, &["deny", "--all-features", "check"]);
    }
    println!("xtask: cargo-deny is not installed: licences and sources were checked, advisories were not (CI does)");
    Ok(())
}

/// Returns the packages, with their licences, that the policy does not allow.
fn refused(policy: &toml::Table, metadata: &Value) -> Result<Vec<String>> {
    let licenses = policy.get("licenses").context("deny.toml has no [licenses]")?;
    let list = |value: Option<&toml::Value>| -> Vec<String> {
        value.and_then(toml::Value::as_array).into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let allowed = list(licenses.get("allow"));
    let exceptions = licenses.get("exceptions").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let license = package["license"].as_str().unwrap_or("no licence");
        let of_it = exceptions.iter().filter(|one| one.get("crate").and_then(toml::Value::as_str) == Some(name));
        let allowed: Vec<String> = of_it.flat_map(|one| list(one.get("allow"))).chain(allowed.iter().cloned()).collect();
        if !Expression::of(license).complies(&allowed) {
            wrong.push(format!("{name} ({license})"));
        }
    }
    Ok(wrong)
}

/// An SPDX licence expression being read: OR binds loosest, then AND, then WITH.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
}

impl<'a> Expression<'a> {
    fn of(text: &'a str) -> Expression<'a> {
        let parted = text.split_inclusive(['(', ')', '/', ' ']).flat_map(|part| match part.strip_suffix(['(', ')', '/', ' ']) {
            Some(word) => [word, &part[word.len()..]],
            None => [part, ""],
        });
        let words: Vec<&str> = parted.map(str::trim).filter(|word| !word.is_empty()).collect();
        Expression { words: words.into_iter().peekable() }
    }

    /// Whether the user of the package can comply by these licences alone.
    fn complies(mut self, allowed: &[String]) -> bool {
        self.any(allowed) && self.words.peek().is_none()
    }

    fn any(&mut self, allowed: &[String]) -> bool {
        let mut result = self.all(allowed);
        while self.words.next_if(|word| matches!(*word, "OR" | "/")).is_some() {
            result |= self.all(allowed);
        }
        result
    }

    fn all(&mut self, allowed: &[String]) -> bool {
        let mut result = self.one(allowed);
        while self.words.next_if_eq(&"AND").is_some() {
            result &= self.one(allowed);
        }
        result
    }

    fn one(&mut self, allowed: &[String]) -> bool {
        if self.words.next_if_eq(&"(").is_some() {
            let result = self.any(allowed);
            return self.words.next_if_eq(&")").is_some() && result;
        }
        let mut name = self.words.next().unwrap_or_default().to_owned();
        if self.words.next_if_eq(&"WITH").is_some() {
            name = format!("{name} WITH {}", self.words.next().unwrap_or_default());
        }
        allowed.contains(&name)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_says() {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
        for (text, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("MIT/GPL-3.0", true),
            ("Apache-2.0 / MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(GPL-3.0 OR Apache-2.0) AND Unicode-3.0", false),
            ("GPL-3.0 AND GPL-2.0 OR MIT", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("MIT)", false),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(Expression::of(text).complies(&allowed), expected, "{text}");
        }
    }

    #[test]
    fn an_exception_holds_for_its_crate_alone() {
        let policy = "[licenses]\nallow = [\"MIT\"]\nexceptions = [{ crate = \"a\", allow = [\"MPL-2.0\"] }]\n".parse().expect("a table");
        let package = |name: &str, license: Option<&str>| serde_json::json!({ "name": name, "license": license });
        let all = [package("a", Some("MPL-2.0")), package("b", Some("MPL-2.0")), package("c", Some("MIT")), package("d", None)];
        let wrong = refused(&policy, &serde_json::json!({ "packages": all })).expect("read");
        assert_eq!(wrong, ["b (MPL-2.0)", "d (no licence)"]);
    }
}
