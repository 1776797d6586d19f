//! Whether promotions are worth their copies.
//!
//! When more is in use than fits on the SSD, what comes up drives out what came up just before: every open costs two copies and
//! nothing is gained. So each promotion is followed up: how often is the file opened again before it leaves? When the promoted
//! bytes that leave were used less than three times on average, a file has to prove itself first: it comes up only after a number of opens
//! within a *residency*, the span in which it would have stayed on the SSD. The number doubles while promotions stay useless, and
//! halves when they are useful again or no useless promotion ended for some time. A working set that fits never leaves, so it is never held
//! back.

use std::collections::{HashMap, VecDeque};

/// Promoted bytes are judged when this share of the SSD has left.
const JUDGED_SHARE: u64 = 4;
/// Uses of a byte before it leaves: fewer are a waste, more than the second are a gain. A promotion costs two copies of the whole
/// file and their flushes, and a use may read little of it.
const USES_WASTED: f64 = 3.0;
const USES_GAINED: f64 = 6.0;
/// After so many uses a file was worth it, whenever it leaves.
const USES_MAX: u32 = 16;
/// Opens within a residency that are wanted at most.
const OPENS_MAX: u32 = 64;
/// The number halves after this time without a judgement of waste, seconds: the first time, and at most.
const FORGIVEN_S: (u32, u32) = (60, 3600);
/// Files that are followed up.
const FILES_MAX: usize = 1 << 17;

/// The follow-up of promotions.
#[derive(Debug, Default)]
pub(crate) struct PromotionFeedback {
    promoted: HashMap<u64, PromotedFile>,
    left_bytes: u64,
    used_bytes: u64,
    /// Opens within a residency before a file comes up; 0: as the policy has it.
    wanted: u32,
    changed_s: u32,
    /// Judgements of waste since promotions were last a gain.
    wasted: u32,
    shadow: ShadowCache,
}

#[derive(Clone, Copy, Debug)]
struct PromotedFile {
    bytes: u64,
    uses: u32,
    /// The open for which it was brought up comes next: it is no second use.
    awaited: bool,
}

impl PromotionFeedback {
    /// A file came up by itself. `awaited`: the open that brought it up is yet to be counted.
    pub(crate) fn promoted(&mut self, ino: u64, bytes: u64, awaited: bool) {
        self.shadow.forget(ino);
        if self.promoted.len() < FILES_MAX || self.promoted.contains_key(&ino) {
            self.promoted.insert(ino, PromotedFile { bytes, uses: 0, awaited });
        }
    }

    /// A file on the SSD was opened.
    pub(crate) fn used(&mut self, ino: u64, capacity: u64, now_s: u32) {
        let Some(file) = self.promoted.get_mut(&ino) else { return };
        if file.awaited {
            file.awaited = false;
            return;
        }
        file.uses += 1;
        if file.uses == USES_MAX {
            self.left(ino, capacity, now_s);
        }
    }

    /// A file left the SSD, or was removed. `capacity`: of the SSD.
    pub(crate) fn left(&mut self, ino: u64, capacity: u64, now_s: u32) {
        let Some(file) = self.promoted.remove(&ino) else { return };
        self.left_bytes += file.bytes;
        self.used_bytes += file.bytes * u64::from(file.uses.min(USES_MAX));
        if self.left_bytes < (capacity / JUDGED_SHARE).max(1) {
            return;
        }
        let uses = self.used_bytes as f64 / self.left_bytes as f64;
        if uses < USES_WASTED {
            self.wasted = (self.wasted + 1).min(16);
            self.want((self.wanted * 2).clamp(2, OPENS_MAX), now_s);
        } else if uses > USES_GAINED {
            self.wasted = 0;
            self.want(halved(self.wanted), now_s);
        } else {
            (self.left_bytes, self.used_bytes) = (0, 0);
        }
    }

    fn want(&mut self, opens: u32, now_s: u32) {
        (self.left_bytes, self.used_bytes) = (0, 0);
        self.changed_s = now_s;
        if (opens == 0) != (self.wanted == 0) {
            let state =
                if opens == 0 { "come up as before" } else { "have to prove themselves: what came up left before it was used again" };
            tracing::info!("files on the HDD {state}");
        }
        self.wanted = opens;
        if opens == 0 {
            self.shadow = ShadowCache::default();
        }
    }

    /// A file on the HDD is opened that the policy would bring up: whether it is worth it. `bytes` matters only while opens are
    /// wanted.
    pub(crate) fn may_come_up(&mut self, ino: u64, bytes: u64, capacity: u64, now_s: u32) -> bool {
        let forgiven_s = (FORGIVEN_S.0 << self.wasted.saturating_sub(1)).min(FORGIVEN_S.1);
        if self.wanted > 0 && now_s.saturating_sub(self.changed_s) >= forgiven_s {
            self.want(halved(self.wanted), now_s);
        }
        self.wanted == 0 || self.shadow.touch(ino, bytes, capacity) >= self.wanted
    }

    /// Opens within a residency that a file needs to come up; 0: as the policy has it.
    pub(crate) fn opens_wanted(&self) -> u32 {
        self.wanted
    }
}

/// Half of a number of opens; one is as good as none.
fn halved(opens: u32) -> u32 {
    if opens <= 2 { 0 } else { opens / 2 }
}

/// Files that would be on the SSD if each had come up, the one opened longest ago first. Only their numbers and sizes.
#[derive(Debug, Default)]
struct ShadowCache {
    files: HashMap<u64, ShadowEntry>,
    /// Number and turn; entries with an older turn than the file's are void.
    order: VecDeque<(u64, u64)>,
    turn: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct ShadowEntry {
    bytes: u64,
    turn: u64,
    opens: u32,
}

impl ShadowCache {
    /// Records an open and answers how many there were within this residency.
    fn touch(&mut self, ino: u64, bytes: u64, capacity: u64) -> u32 {
        self.turn += 1;
        let before = self.files.get(&ino).copied();
        let opens = before.map_or(0, |entry| entry.opens) + 1;
        self.bytes = self.bytes - before.map_or(0, |entry| entry.bytes) + bytes;
        self.files.insert(ino, ShadowEntry { bytes, turn: self.turn, opens });
        self.order.push_back((ino, self.turn));
        while (self.bytes > capacity || self.files.len() > FILES_MAX || self.order.len() > 2 * FILES_MAX) && !self.order.is_empty() {
            let Some((oldest, turn)) = self.order.pop_front() else { break };
            if self.files.get(&oldest).is_some_and(|entry| entry.turn == turn) {
                self.forget(oldest);
            }
        }
        opens
    }

    fn forget(&mut self, ino: u64) {
        if let Some(entry) = self.files.remove(&ino) {
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// An SSD with LRU order, and promotion at every open.
    struct Model {
        promotion_feedback: PromotionFeedback,
        capacity: u64,
        on_ssd: VecDeque<(u64, u64)>,
        used: u64,
        promoted_bytes: u64,
        hits: u64,
        opens: u64,
        opens_per_s: u64,
    }

    impl Model {
        fn new(capacity: u64) -> Model {
            Model {
                promotion_feedback: PromotionFeedback::default(),
                capacity,
                on_ssd: VecDeque::new(),
                used: 0,
                promoted_bytes: 0,
                hits: 0,
                opens: 0,
                opens_per_s: 100,
            }
        }

        fn open(&mut self, ino: u64, bytes: u64) {
            self.opens += 1;
            let now_s = 1000 + (self.opens / self.opens_per_s) as u32;
            if let Some(at) = self.on_ssd.iter().position(|(file, _)| *file == ino) {
                let entry = self.on_ssd.remove(at).expect("there");
                self.on_ssd.push_back(entry);
                self.hits += 1;
                return self.promotion_feedback.used(ino, self.capacity, now_s);
            }
            if !self.promotion_feedback.may_come_up(ino, bytes, self.capacity, now_s) {
                return;
            }
            self.promoted_bytes += bytes;
            self.promotion_feedback.promoted(ino, bytes, true);
            self.promotion_feedback.used(ino, self.capacity, now_s);
            self.on_ssd.push_back((ino, bytes));
            self.used += bytes;
            while self.used > self.capacity {
                let (file, size) = self.on_ssd.pop_front().expect("one too many");
                self.used -= size;
                self.promotion_feedback.left(file, self.capacity, now_s);
            }
        }
    }

    /// A sequence of numbers that looks random.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn more_in_use_than_fits_does_not_move_for_ever() {
        // Files, their size, the SSD: many times too small, half, cyclic and random.
        for (files, bytes, capacity) in
            [(2000, MIB, 256 * MIB), (500, 4 * MIB, 900 * MIB), (64, 100 * MIB, 2000 * MIB), (2000, 4096, 4 * MIB)]
        {
            for cyclic in [false, true] {
                let (mut model, mut seed) = (Model::new(capacity), 7);
                let opens = 100_000;
                for n in 0..opens {
                    let ino = if cyclic { n % files } else { random(&mut seed) % files };
                    model.open(ino, bytes);
                }
                // Without it nearly all of these come up.
                let all = (opens - model.hits) * bytes;
                let share = if files * bytes > 4 * capacity { 10 } else { 3 };
                assert!(model.promoted_bytes * share < all, "{files} {cyclic}: {} of {all}", model.promoted_bytes);
                // Reads of whole files from the HDD, and two copies of what comes up: at most twice the HDD alone.
                assert!(all + 2 * model.promoted_bytes < 2 * opens * bytes, "{files} {cyclic}");
            }
        }
    }

    #[test]
    fn a_working_set_that_fits_comes_up_at_once() {
        let (mut model, mut seed) = (Model::new(256 * MIB), 3);
        for _ in 0..20_000 {
            model.open(random(&mut seed) % 200, MIB);
        }
        assert_eq!((model.promoted_bytes, model.promotion_feedback.opens_wanted()), (200 * MIB, 0));
    }

    #[test]
    fn a_working_set_that_changes_now_and_then_comes_up_each_time() {
        let (mut model, mut seed) = (Model::new(256 * MIB), 3);
        for phase in 0..10 {
            for _ in 0..5000 {
                model.open(phase * 1000 + random(&mut seed) % 200, MIB);
            }
        }
        assert_eq!((model.promoted_bytes, model.promotion_feedback.opens_wanted()), (10 * 200 * MIB, 0));
    }

    #[test]
    fn what_fits_comes_up_again_soon_after_a_load_that_did_not() {
        let (mut model, mut seed) = (Model::new(256 * MIB), 5);
        for _ in 0..50_000 {
            model.open(random(&mut seed) % 5000, MIB);
        }
        assert!(model.promotion_feedback.opens_wanted() > 0);
        let (hits, opens) = (model.hits, 100_000);
        for _ in 0..opens {
            model.open(100_000 + random(&mut seed) % 150, MIB);
        }
        assert!(model.hits - hits > opens * 9 / 10, "{} of {opens}", model.hits - hits);
        assert!(model.promotion_feedback.opens_wanted() <= 8, "{}", model.promotion_feedback.opens_wanted());
    }

    #[test]
    fn hot_files_come_up_beside_a_scan() {
        let (mut model, mut seed) = (Model::new(256 * MIB), 5);
        let mut hot_hits = 0;
        for n in 0..60_000u64 {
            model.open(1000 + n, MIB);
            let hits = model.hits;
            model.open(random(&mut seed) % 20, MIB);
            hot_hits += model.hits - hits;
        }
        assert!(hot_hits > 57_000, "{hot_hits}");
    }

    #[test]
    fn the_shadow_is_bounded() {
        let mut shadow = ShadowCache::default();
        for ino in 0..1_000_000 {
            shadow.touch(ino % 300_000, 1, u64::MAX);
        }
        assert!(shadow.files.len() <= FILES_MAX && shadow.order.len() <= 2 * FILES_MAX);
        for _ in 0..1_000_000 {
            shadow.touch(1, 5, 100);
        }
        assert!(shadow.bytes <= 100 && shadow.order.len() <= 2 * FILES_MAX);
    }
}
