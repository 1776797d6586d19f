//! The second-touch filter: what was opened on the HDD not long ago.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::FileId;

/// A bounded memory of opens.
#[derive(Debug)]
pub struct Ghost {
    seen: HashMap<FileId, (u32, u16)>,
    order: VecDeque<FileId>,
    entries: usize,
    window_s: u32,
}

impl Ghost {
    /// Remembers up to `entries` files for `window_s` seconds.
    pub fn new(entries: usize, window_s: u32) -> Ghost {
        Ghost { seen: HashMap::new(), order: VecDeque::new(), entries: entries.max(1), window_s }
    }

    /// Notes an open; answers whether there was another within the window.
    pub fn touch(&mut self, file: FileId, now_s: u32) -> bool {
        if let Some((last, times)) = self.seen.get_mut(&file) {
            let again = now_s.saturating_sub(*last) <= self.window_s;
            *last = now_s;
            *times = times.saturating_add(1);
            return again;
        }
        while self.order.len() >= self.entries {
            if let Some(oldest) = self.order.pop_front() {
                self.seen.remove(&oldest);
            }
        }
        self.seen.insert(file, (now_s, 1));
        self.order.push_back(file);
        false
    }

    /// Drops a file (it was promoted). Its place in the bound is given back when its turn comes.
    pub fn forget(&mut self, file: FileId) {
        self.seen.remove(&file);
    }

    /// Last open and number of opens.
    pub fn seen(&self, file: FileId) -> Option<(u32, u16)> {
        self.seen.get(&file).copied()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_second_open_within_the_window_counts() {
        let mut ghost = Ghost::new(2, 100);
        assert!(!ghost.touch(FileId(1), 1000));
        assert!(ghost.touch(FileId(1), 1100));
        assert!(!ghost.touch(FileId(1), 1300));
        assert!(!ghost.touch(FileId(2), 1300));
        assert!(!ghost.touch(FileId(3), 1300));
        assert_eq!(ghost.seen(FileId(1)), None);
    }
}
