//! How long the others waited around a kill.

use std::sync::atomic::Ordering::SeqCst;

use crate::ledger::{Ledger, Slot, now};

/// Who was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Killed {
    Leader,
    Another,
    Nobody,
}

/// Milliseconds, one for each kill.
#[derive(Default)]
pub struct Stalls {
    /// Calls that read or write pages, when somebody was killed who did not lead.
    followers: Vec<f64>,
    /// When it was the leader.
    leaders: Vec<f64>,
    /// While nobody was killed, for comparison.
    quiet: Vec<f64>,
    /// All calls, sync and truncation too: these wait for disks.
    all: Vec<f64>,
}

impl Stalls {
    /// Somebody is about to be killed.
    pub fn begin(&mut self, ledger: &Ledger, others: &[u32]) {
        for slot in others {
            ledger.slot(*slot, Slot::Longest).store(0, SeqCst);
            ledger.slot(*slot, Slot::LongestOfAll).store(0, SeqCst);
        }
    }

    /// It was a while ago.
    pub fn end(&mut self, ledger: &Ledger, others: &[u32], killed: Killed) {
        let (mut longest, mut of_all) = (0, 0);
        for slot in others {
            let word = |word| ledger.slot(*slot, word).load(SeqCst);
            let (since, call) = (word(Slot::Since), word(Slot::Call) as u8);
            let running = if since == 0 { 0 } else { now().saturating_sub(since) };
            longest = longest.max(word(Slot::Longest)).max(if call.is_ascii_uppercase() { running } else { 0 });
            of_all = of_all.max(word(Slot::LongestOfAll)).max(running);
        }
        if !others.is_empty() {
            let list = match killed {
                Killed::Leader => &mut self.leaders,
                Killed::Another => &mut self.followers,
                Killed::Nobody => &mut self.quiet,
            };
            list.push(longest as f64 / 1e6);
            if killed != Killed::Nobody {
                self.all.push(of_all as f64 / 1e6);
            }
        }
    }

    /// For people.
    pub fn print(&mut self) {
        let lists = [
            ("nobody", &mut self.quiet),
            ("the leader", &mut self.leaders),
            ("another", &mut self.followers),
            ("anybody, sync and cut", &mut self.all),
        ];
        for (who, list) in lists {
            list.sort_by(f64::total_cmp);
            let at =
                |share: f64| list.get(((list.len() as f64 * share) as usize).min(list.len().saturating_sub(1))).copied().unwrap_or(0.0);
            let over = list.iter().filter(|stall| **stall > 50.0).count();
            println!(
                "  longest call around a kill of {who}: median {:.1} ms, 9 of 10 {:.1}, longest {:.1}; over 50 ms: {over} of {}",
                at(0.5),
                at(0.9),
                at(1.0),
                list.len()
            );
        }
    }
}
