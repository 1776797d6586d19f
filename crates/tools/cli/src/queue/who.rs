//! Names of users and groups, as the system knows them (getent(1) asks all its sources), and numbers.

use std::process::{Command, Stdio};

use anyhow::bail;
use block::broker::Who;

/// Parses a user or group such as `alice`, `1000`, `@readers` or `@100`.
pub fn parse(text: &str) -> anyhow::Result<Who> {
    let (database, name) = match text.strip_prefix('@') {
        Some(group) => ("group", group),
        None => ("passwd", text),
    };
    // A number that is too big is none, whatever getent makes of it.
    let number = match name.bytes().all(|byte| byte.is_ascii_digit()) {
        true => name.parse().ok(),
        false => look_up(database, name).and_then(|line| line.split(':').nth(2)?.parse().ok()),
    };
    match number {
        // The number that means "none".
        None | Some(u32::MAX) => bail!("there is no such {}: `{name}`", if database == "group" { "group" } else { "user" }),
        Some(number) if database == "group" => Ok(Who::Group(number)),
        Some(number) => Ok(Who::User(number)),
    }
}

/// For people: the name if there is one, else the number.
pub fn name(who: Who) -> String {
    let (database, sign, number) = match who {
        Who::Anybody => return "anybody".to_owned(),
        Who::User(number) => ("passwd", "", number),
        Who::Group(number) => ("group", "@", number),
    };
    let name = look_up(database, &number.to_string()).and_then(|line| line.split(':').next().map(str::to_owned));
    format!("{sign}{}", name.unwrap_or_else(|| number.to_string()))
}

/// The line of a user or group, by name or number.
fn look_up(database: &str, key: &str) -> Option<String> {
    if key.is_empty() || key.starts_with('-') || key.contains(':') {
        return None;
    }
    if let Ok(out) = Command::new("getent").args([database, key]).stdin(Stdio::null()).stderr(Stdio::null()).output() {
        return String::from_utf8(out.stdout).ok()?.lines().next().map(str::to_owned);
    }
    let all = std::fs::read_to_string(format!("/etc/{database}")).ok()?;
    let matches = |line: &&str| line.split(':').next() == Some(key) || line.split(':').nth(2) == Some(key);
    all.lines().find(matches).map(str::to_owned)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn users_and_groups_by_name_and_number() {
        assert_eq!(parse("1234567").expect("a number"), Who::User(1_234_567));
        assert_eq!(parse("@0").expect("a number"), Who::Group(0));
        assert_eq!(parse("root").expect("a name"), Who::User(0));
        assert_eq!(name(Who::User(0)), "root");
        assert_eq!(name(Who::Group(4_000_000_000)), "@4000000000");
        for wrong in ["", "@", "no-such-user-here", "-1", "4294967295", "4294967296", "a:b", "--help"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
