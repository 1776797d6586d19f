//! Limits what clients can make the broker log: a few lines a second for each user, in printable characters.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The number of lines that a user may cause at once.
const BURST: u32 = 20;
/// The time after which a user may cause one more line.
const INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of users with an own allowance; further users share one.
const USERS_MAX: usize = 256;
/// The longest text of a client in a log line, in characters.
const TEXT_MAX: usize = 200;

/// The allowances of all users of a broker.
#[derive(Default, Debug)]
pub(super) struct LogLimit {
    users: Mutex<HashMap<Option<u32>, Allowance>>,
}

#[derive(Debug)]
struct Allowance {
    lines: u32,
    since: Instant,
    left_out: u64,
}

impl LogLimit {
    /// Returns whether a line that this user caused may be logged now, and logs how many lines were dropped before it.
    pub(super) fn may_log(&self, user: u32) -> bool {
        match self.allows(user, Instant::now()) {
            None => false,
            Some(left_out) => {
                if left_out > 0 {
                    tracing::warn!(user, left_out, "the log left out lines that this user caused");
                }
                true
            }
        }
    }

    /// Returns the number of lines dropped before this one, or `None` if this line must be dropped too.
    pub(super) fn allows(&self, user: u32, now: Instant) -> Option<u64> {
        let mut users = self.users.lock();
        if users.len() >= USERS_MAX && !users.contains_key(&Some(user)) {
            // A full allowance with nothing to report needs no memory.
            users.retain(|_, one| one.left_out > 0 || one.lines + gained(one, now) < BURST);
        }
        let key = (users.len() < USERS_MAX || users.contains_key(&Some(user))).then_some(user);
        let one = users.entry(key).or_insert(Allowance { lines: BURST, since: now, left_out: 0 });
        let gained = gained(one, now);
        if gained > 0 {
            one.lines = one.lines.saturating_add(gained).min(BURST);
            one.since = now;
        }
        if one.lines == 0 {
            one.left_out += 1;
            return None;
        }
        one.lines -= 1;
        Some(std::mem::take(&mut one.left_out))
    }
}

fn gained(one: &Allowance, now: Instant) -> u32 {
    let intervals = now.saturating_duration_since(one.since).as_millis() / INTERVAL.as_millis();
    u32::try_from(intervals).unwrap_or(u32::MAX).min(BURST)
}

/// Makes a client's text safe for the log: one line of printable ASCII characters, limited in length.
pub(super) fn printable(text: &str) -> String {
    let mut out: String = text.chars().take(TEXT_MAX).flat_map(char::escape_default).collect();
    if text.chars().nth(TEXT_MAX).is_some() {
        out.push_str("...");
    }
    // Quotes are harmless.
    out.replace("\\'", "'").replace("\\\"", "\"")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted_and_hurts_nobody_else() {
        let (limit, begin) = (LogLimit::default(), Instant::now());
        let logged = (0..1_000).filter(|_| limit.allows(1000, begin).is_some()).count();
        assert_eq!(logged, BURST as usize);
        assert_eq!(limit.allows(1001, begin), Some(0));
        assert_eq!(limit.allows(1000, begin + INTERVAL), Some(1_000 - u64::from(BURST)));
        assert_eq!(limit.allows(1000, begin + INTERVAL), None);
        // A client that changes its user gets only a bounded number of allowances.
        let logged = (2000..2000 + USERS_MAX as u32 + 2 * BURST).filter(|&user| limit.allows(user, begin).is_some()).count();
        assert!((USERS_MAX - 2..USERS_MAX + BURST as usize).contains(&logged), "{logged}");
        assert!(limit.users.lock().len() <= USERS_MAX + 1);
    }

    #[test]
    fn words_of_clients_are_one_printable_line() {
        assert_eq!(printable("plain `sda` \"x\""), "plain `sda` \"x\"");
        let hostile = printable("a\n2026 INFO root grants all\x1b[2J\r\u{9b}31m\u{202e}");
        assert!(hostile.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{hostile}");
        assert!(printable(&"x".repeat(100_000)).len() < TEXT_MAX + 10);
    }
}
