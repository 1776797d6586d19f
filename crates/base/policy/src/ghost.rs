//! The second-touch filter: the files that were recently opened on the HDD.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::FileId;

/// A bounded memory of opens: the file seen first is forgotten first.
#[derive(Debug)]
pub struct Ghost {
    seen: HashMap<FileId, Seen>,
    order: VecDeque<(FileId, u64)>,
    next_place: u64,
    entries: usize,
    window_s: u32,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    last_s: u32,
    times: u16,
    /// Its entry in `order`; an entry with another number is from before `forget`.
    place: u64,
}

impl Ghost {
    /// Remembers up to `entries` files for `window_s` seconds.
    pub fn new(entries: usize, window_s: u32) -> Ghost {
        Ghost { seen: HashMap::new(), order: VecDeque::new(), next_place: 0, entries: entries.max(1), window_s }
    }

    /// Sets the window in seconds within which a second open counts as repeated.
    pub fn set_window(&mut self, window_s: u32) {
        self.window_s = window_s;
    }

    /// Records an open; returns whether there was another within the window.
    pub fn touch(&mut self, file: FileId, now_s: u32) -> bool {
        if let Some(seen) = self.seen.get_mut(&file) {
            let again = now_s.saturating_sub(seen.last_s) <= self.window_s;
            seen.last_s = now_s;
            seen.times = seen.times.saturating_add(1);
            return again;
        }
        while self.order.len() >= self.entries {
            if let Some((oldest, place)) = self.order.pop_front()
                && self.seen.get(&oldest).is_some_and(|seen| seen.place == place)
            {
                self.seen.remove(&oldest);
            }
        }
        let place = self.next_place;
        self.next_place += 1;
        self.seen.insert(file, Seen { last_s: now_s, times: 1, place });
        self.order.push_back((file, place));
        false
    }

    /// Drops a file (it was promoted). Its place in the bound is given back when its turn comes.
    pub fn forget(&mut self, file: FileId) {
        self.seen.remove(&file);
    }

    /// Returns the last open and the number of opens.
    pub fn seen(&self, file: FileId) -> Option<(u32, u16)> {
        self.seen.get(&file).map(|seen| (seen.last_s, seen.times))
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

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

    #[test]
    fn a_file_that_comes_back_after_forget_keeps_its_new_place() {
        let mut ghost = Ghost::new(3, 100);
        ghost.touch(FileId(1), 0);
        ghost.forget(FileId(1));
        ghost.touch(FileId(2), 1);
        ghost.touch(FileId(1), 2);
        // The old place of 1 goes, not 1.
        ghost.touch(FileId(3), 3);
        assert_eq!(ghost.seen(FileId(1)), Some((2, 1)));
        assert!(ghost.touch(FileId(1), 4));
    }

    #[test]
    fn a_clock_that_goes_back_is_within_the_window() {
        let mut ghost = Ghost::new(1, 0);
        assert!(!ghost.touch(FileId(1), 1000));
        assert!(ghost.touch(FileId(1), 10));
        assert_eq!(ghost.seen(FileId(1)), Some((10, 2)));
    }

    /// One place in the bound: a file and its opens, or nothing any more.
    type SeenRecord = Option<(u64, u32, u16)>;

    proptest! {
        #[test]
        fn remembers_as_a_plain_list_would(
            entries in 0..8usize,
            window in 0..20u32,
            steps in proptest::collection::vec((0..12u64, 0..8u32, any::<bool>()), 0..300),
        ) {
            let mut ghost = Ghost::new(entries, window);
            let mut places: Vec<SeenRecord> = Vec::new();
            let mut now = 0;
            for (file, later, forget) in steps {
                now += later;
                let at = places.iter().position(|place| place.is_some_and(|(other, ..)| other == file));
                if forget {
                    ghost.forget(FileId(file));
                    if let Some(at) = at {
                        places[at] = None;
                    }
                } else if let Some(at) = at {
                    let (_, last, times) = places[at].expect("found above");
                    places[at] = Some((file, now, times + 1));
                    prop_assert_eq!(ghost.touch(FileId(file), now), now - last <= window);
                } else {
                    prop_assert!(!ghost.touch(FileId(file), now));
                    places.push(Some((file, now, 1)));
                    if places.len() > entries.max(1) {
                        places.remove(0);
                    }
                }
                for file in 0..12 {
                    let known = places.iter().flatten().find(|(other, ..)| *other == file);
                    prop_assert_eq!(ghost.seen(FileId(file)), known.map(|(_, last, times)| (*last, *times)));
                }
            }
        }
    }
}
