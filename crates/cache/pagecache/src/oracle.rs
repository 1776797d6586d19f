//! The page cache against a slow, obvious model: a map of pages and plain lists; the same calls to both, the same answers.

use std::collections::{BTreeMap, VecDeque};

use block::Error;
use proptest::prelude::*;

use crate::*;

const FRAMES: u32 = 12;
const PAGES: u64 = 24;

type Key = (usize, u64);

#[derive(Clone, Debug)]
struct Page {
    frame: FrameId,
    state: State,
    failed: bool,
    pins: u32,
    hits: u32,
    ahead: bool,
}

impl Page {
    fn become_(&mut self, state: State, failed: bool) {
        (self.state, self.failed) = (state, failed);
    }
}

/// The queues as plain lists of keys, the pages in a map.
struct Model {
    replacement: Replacement,
    frames: u32,
    pages: BTreeMap<Key, Page>,
    queues: [VecDeque<Key>; 2],
    ghosts: VecDeque<Key>,
    filled_up: bool,
    /// Frames without a page that are not free: state and pins.
    outside: BTreeMap<FrameId, (State, u32)>,
    flush_runs: [bool; 2],
    left: [(u32, u32); 2],
    failures: [Failures; 2],
}

impl Model {
    fn new(replacement: Replacement) -> Model {
        Model {
            replacement,
            frames: FRAMES,
            pages: BTreeMap::new(),
            queues: Default::default(),
            ghosts: VecDeque::new(),
            filled_up: false,
            outside: BTreeMap::new(),
            flush_runs: [false; 2],
            left: [(0, 0); 2],
            failures: Default::default(),
        }
    }

    fn free(&self) -> u32 {
        self.frames.saturating_sub((self.pages.len() + self.outside.len()) as u32)
    }

    fn insert(&mut self, key: Key, frame: FrameId, ahead: bool) {
        let ghost = self.ghosts.iter().position(|other| *other == key);
        ghost.map(|at| self.ghosts.remove(at));
        let spare = !self.filled_up && self.queues[0].len() >= (self.frames / 10).max(1) as usize;
        let main = ghost.is_some() || spare || self.replacement != Replacement::S3Fifo;
        self.queues[usize::from(main)].push_back(key);
        self.pages.insert(key, Page { frame, state: State::Filling, failed: false, pins: 0, hits: 0, ahead });
    }

    fn take(&mut self, key: Key) -> Page {
        self.queues.iter_mut().for_each(|queue| queue.retain(|other| *other != key));
        self.pages.remove(&key).expect("known")
    }

    fn touch(&mut self, key: Key) {
        let page = self.pages.get_mut(&key).expect("known");
        if !std::mem::replace(&mut page.ahead, false) {
            page.hits = (page.hits + 1).min(3);
        } else {
            page.ahead = false;
        }
        if self.replacement == Replacement::Lru {
            self.queues[1].retain(|other| *other != key);
            self.queues[1].push_back(key);
        }
    }

    /// What `allocate` will say, with the key of the victim.
    fn make_room(&mut self, ahead: bool) -> (bool, Option<Key>) {
        let small_share = ((self.frames / 10).max(1)) as usize;
        let s3 = self.replacement == Replacement::S3Fifo;
        let first = if (ahead && s3) || self.queues[0].len() >= small_share { 0 } else { 1 };
        let scans: &[usize] = if ahead && s3 { &[0] } else { &[first, 1 - first] };
        // Once more, with more patience, if somebody waits.
        let scans = scans.iter().map(|queue| (*queue, 64)).chain(scans.iter().map(|queue| (*queue, if ahead { 0 } else { FRAMES * 5 })));
        for (queue, steps) in scans.collect::<Vec<_>>() {
            let (leaves, found) = self.scan(queue, steps, ahead);
            if let Some(key) = found {
                if leaves {
                    let page = self.take(key);
                    self.filled_up = true;
                    if queue == 0 {
                        self.ghosts.push_back(key);
                        if self.ghosts.len() > (FRAMES - FRAMES / 10) as usize {
                            self.ghosts.pop_front();
                        }
                    }
                    self.count_leaving(key.0, page.state);
                }
                return (leaves, Some(key));
            }
        }
        (false, None)
    }

    fn count_leaving(&mut self, file: usize, state: State) {
        match state {
            State::Written => self.left[file].0 += 1,
            State::Flushing => self.left[file].1 += 1,
            _ => {}
        }
    }

    fn scan(&mut self, queue: usize, steps: u32, cold: bool) -> (bool, Option<Key>) {
        let s3 = self.replacement == Replacement::S3Fifo;
        let (mut at, mut dirty) = (0, None);
        for _ in 0..steps {
            let Some(key) = self.queues[queue].get(at).copied() else { break };
            let last = at + 1 == self.queues[queue].len();
            let page = self.pages.get_mut(&key).expect("in a queue");
            let to = match (s3, queue, page.hits) {
                _ if cold && (page.hits > 0 || page.ahead) => None,
                (true, 0, 2..) => {
                    page.hits = 0;
                    Some(1)
                }
                (true, 1, 1..) => {
                    page.hits -= 1;
                    Some(1)
                }
                _ if matches!(page.state, State::Filling | State::Writing | State::Rewritten) => None,
                _ if page.pins > 0 || page.failed || page.state == State::Stuck => Some(queue),
                _ if page.state == State::Dirty => {
                    dirty = dirty.or(Some(key));
                    None
                }
                _ => return (true, Some(key)),
            };
            match to {
                None => at += 1,
                Some(to) => {
                    self.queues[queue].remove(at);
                    self.queues[to].push_back(key);
                }
            }
            if last {
                at = 0;
            }
        }
        (false, dirty)
    }
}

/// Both, side by side.
struct Pair {
    cache: PageCache,
    files: [FileNo; 2],
    model: Model,
}

impl Pair {
    fn new(replacement: Replacement) -> Pair {
        let config = Config { replacement, files_max: 2, free_low: 2, free_high: 4, ..Config::new(FRAMES) };
        let mut cache = PageCache::new(&config).expect("memory");
        let files = [10, 20].map(|key| cache.open_file(FileKey(key)).expect("room for two"));
        Pair { cache, files, model: Model::new(replacement) }
    }

    fn allocate(&mut self, key: Key, ahead: bool) {
        let reserve = if ahead { 1 } else { 0 };
        let room = |model: &mut Model| if model.free() <= reserve { model.make_room(ahead) } else { (true, None) };
        let (frames, wanted) = (self.model.free(), room(&mut self.model));
        let got = self.cache.allocate(self.files[key.0], PageIndex(key.1), if ahead { Purpose::Ahead } else { Purpose::Demand });
        match (wanted, got) {
            ((true, _), Room::Frame(frame)) => self.model.insert(key, frame, ahead),
            ((false, Some(dirty)), Room::Dirty(frame)) => assert_eq!(self.model.pages[&dirty].frame, frame),
            ((false, None), Room::None) => {}
            (wanted, got) => panic!("{wanted:?} was expected of {frames} free frames, {got:?} came"),
        }
    }

    /// One call on a page that is here, if its state allows it.
    fn on_page(&mut self, key: Key, what: u8) {
        let Some(page) = self.model.pages.get_mut(&key) else { return };
        let (frame, cache, failures) = (page.frame, &mut self.cache, &mut self.model.failures[key.0]);
        match (what, page.state) {
            (0, State::Filling) => {
                cache.filled(frame);
                page.become_(State::Clean, false);
            }
            (1 | 2, State::Filling) => {
                let gave = if what == 1 { Gave::Back } else { Gave::Not };
                cache.fill_failed(frame, gave);
                let page = self.model.take(key);
                match gave {
                    Gave::Back if page.pins > 0 => _ = self.model.outside.insert(frame, (State::Orphan, page.pins)),
                    Gave::Back => {}
                    Gave::Not => _ = self.model.outside.insert(frame, (State::Lent, page.pins)),
                }
            }
            (3..=5, state) => {
                cache.dirtied(frame);
                match state {
                    State::Dirty | State::Rewritten | State::Stuck => {}
                    State::Writing => page.become_(State::Rewritten, false),
                    _ => page.become_(State::Dirty, false),
                }
            }
            (6 | 7, State::Dirty) => {
                cache.writing(frame);
                page.become_(State::Writing, false);
            }
            (8 | 9, State::Writing | State::Rewritten) => {
                cache.written(frame, what == 8);
                match page.state {
                    State::Rewritten => page.become_(State::Dirty, false),
                    _ => page.become_(if what == 8 { State::Clean } else { State::Written }, false),
                }
            }
            (10 | 11, State::Writing | State::Rewritten) => {
                let gave = if what == 10 { Gave::Back } else { Gave::Not };
                cache.write_failed(frame, gave, Error::Media);
                page.become_(if what == 10 { State::Dirty } else { State::Stuck }, true);
                (failures.times, failures.last) = (failures.times + 1, Some(Error::Media));
            }
            (12, State::Stuck) => {
                cache.released(frame);
                page.become_(State::Dirty, true);
            }
            (13, State::Clean | State::Written | State::Flushing | State::Dirty) => {
                cache.remove(frame);
                let page = self.model.take(key);
                self.model.count_leaving(key.0, page.state);
                if page.pins > 0 {
                    self.model.outside.insert(frame, (State::Orphan, page.pins));
                }
            }
            (14, _) => {
                assert!(cache.pin(frame));
                page.pins += 1;
            }
            (15, _) if page.pins > 0 => {
                cache.unpin(frame);
                page.pins -= 1;
            }
            (16..=18, state) if state.is_resident() => {
                cache.touch(frame);
                self.model.touch(key);
            }
            _ => {}
        }
    }

    fn on_file(&mut self, file: usize, what: u8) {
        let Model { pages, flush_runs, left, failures, .. } = &mut self.model;
        let mine = pages.range_mut((file, 0)..(file + 1, 0)).map(|(_, page)| page);
        match what {
            0 => {
                let begins = !std::mem::replace(&mut flush_runs[file], true);
                assert_eq!(self.cache.flush_began(self.files[file]), begins);
                if begins {
                    mine.filter(|page| page.state == State::Written).for_each(|page| page.state = State::Flushing);
                    left[file] = (0, left[file].0);
                }
            }
            _ if flush_runs[file] => {
                flush_runs[file] = false;
                let status = if what == 1 { Ok(()) } else { Err(Error::Gone) };
                self.cache.flush_ended(self.files[file], status);
                let state = if status.is_ok() { State::Clean } else { State::Dirty };
                mine.filter(|page| page.state == State::Flushing).for_each(|page| page.state = state);
                let lost = std::mem::take(&mut left[file].1) > 0;
                if status.is_err() {
                    failures[file].times += 1;
                    failures[file].last = Some(Error::Gone);
                    failures[file].losses += u32::from(lost);
                }
            }
            _ => {}
        }
    }

    /// Calls on the frames without a page.
    fn on_outside(&mut self, what: u8) {
        let Some((&frame, &(state, pins))) = self.model.outside.iter().next() else { return };
        match (what, state, pins) {
            (0, State::Lent, 0) => {
                self.cache.released(frame);
                self.model.outside.remove(&frame);
            }
            (0, State::Lent, _) => {
                self.cache.released(frame);
                self.model.outside.insert(frame, (State::Orphan, pins));
            }
            (_, State::Orphan, 1) => {
                self.cache.unpin(frame);
                self.model.outside.remove(&frame);
            }
            (_, _, 1..) => {
                self.cache.unpin(frame);
                self.model.outside.insert(frame, (state, pins - 1));
            }
            _ => {}
        }
    }

    fn compare(&self) {
        self.cache.check();
        assert_eq!(self.cache.free(), self.model.free());
        for (file, no) in self.files.into_iter().enumerate() {
            let mine = || self.model.pages.range((file, 0)..(file + 1, 0));
            for page in 0..PAGES {
                let wanted = match self.model.pages.get(&(file, page)) {
                    None => Lookup::Miss,
                    Some(page) if page.state == State::Filling => Lookup::Filling(page.frame),
                    Some(page) => Lookup::Hit(page.frame),
                };
                assert_eq!(self.cache.lookup(no, PageIndex(page)), wanted, "page {page} of file {file}");
            }
            for ((_, number), page) in mine() {
                assert_eq!((self.cache.state(page.frame), self.cache.has_failed(page.frame)), (page.state, page.failed), "page {number}");
            }
            let dirty: Vec<FrameId> = mine().filter(|(_, page)| page.state == State::Dirty).map(|(_, page)| page.frame).collect();
            let mut found = Vec::with_capacity(FRAMES as usize);
            assert!(self.cache.collect_dirty(no, &(0..PAGES), true, &mut found));
            assert_eq!(found, dirty, "in the order of their pages");
            assert_eq!(self.cache.failed(no) as usize, mine().filter(|(_, page)| page.failed).count());
            assert_eq!(self.cache.stuck(no) as usize, mine().filter(|(_, page)| page.state == State::Stuck).count());
            assert_eq!(self.cache.failures(no), self.model.failures[file]);
            for range in [PAGES / 3..PAGES / 2, PAGES / 3..u64::MAX] {
                let (mut from, mut met) = (0, Vec::new());
                while let Some((at, frame)) = self.cache.next_in(no, &range, from) {
                    (from, _) = (at + 1, met.push(frame));
                }
                met.sort_unstable();
                let mut wanted: Vec<FrameId> = mine().filter(|((_, page), _)| range.contains(page)).map(|(_, page)| page.frame).collect();
                wanted.sort_unstable();
                assert_eq!(met, wanted, "pages {range:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("FULL").is_some_and(|full| full == "1") { 20_000 } else { 300 }))]
    #[test]
    fn keeps_books_as_a_map_and_lists_would(
        replacement in prop_oneof![Just(Replacement::Lru), Just(Replacement::Fifo), Just(Replacement::S3Fifo)],
        steps in proptest::collection::vec((0..30u8, 0..2usize, 0..PAGES, any::<bool>()), 0..400),
    ) {
        let mut pair = Pair::new(replacement);
        for (what, file, page, flag) in steps {
            match what {
                0..=18 => pair.on_page((file, page), what),
                19..=25 if !pair.model.pages.contains_key(&(file, page)) => pair.allocate((file, page), what == 25),
                // Most pages are filled at once, or little else would happen.
                19..=24 => pair.on_page((file, page), 0),
                26 | 27 => pair.on_file(file, (page % 3) as u8),
                28 => pair.on_outside(u8::from(flag)),
                _ => {}
            }
            pair.compare();
        }
    }
}

/// Fills one page after the other; tells which leave.
fn pages_after(replacement: Replacement, accesses: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut cache = PageCache::new(&Config { replacement, free_low: 0, ..Config::new(20) }).expect("memory");
    let file = cache.open_file(FileKey(1)).expect("room");
    for page in accesses {
        match cache.lookup(file, PageIndex(page)) {
            Lookup::Hit(frame) => cache.touch(frame),
            _ => match cache.allocate(file, PageIndex(page), Purpose::Demand) {
                Room::Frame(frame) => cache.filled(frame),
                other => panic!("{other:?}"),
            },
        }
    }
    (0..1000).filter(|page| cache.lookup(file, PageIndex(*page)) != Lookup::Miss).collect()
}

#[test]
fn a_scan_displaces_only_newcomers() {
    let hot = [0, 1, 2, 3, 4, 5, 6, 7];
    let hot = hot.into_iter().chain(hot).chain(hot);
    let scanned = |replacement| pages_after(replacement, hot.clone().chain(100..900));
    assert_eq!(scanned(Replacement::S3Fifo)[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(scanned(Replacement::Lru), (880..900).collect::<Vec<_>>());
    assert_eq!(pages_after(Replacement::Fifo, (0..20).chain([0, 20])), (1..21).collect::<Vec<_>>(), "a hit saves nothing");
}

#[test]
fn ages_follow_the_epochs_and_a_lower_limit_is_kept() {
    let mut cache = PageCache::new(&Config { eager: true, ..Config::new(8) }).expect("memory");
    let file = cache.open_file(FileKey(1)).expect("room");
    cache.set_epoch(62);
    for page in 0..8 {
        let Room::Frame(frame) = cache.allocate(file, PageIndex(page), Purpose::Demand) else { panic!("full") };
        if page == 7 { cache.dirtied(frame) } else { cache.filled(frame) }
    }
    cache.set_epoch(65);
    assert_eq!(cache.age(cache.oldest(file).expect("dirty")), 3);
    cache.set_limit(3);
    assert_eq!(cache.allocate(file, PageIndex(8), Purpose::Demand), Room::Frame(FrameId(5)), "the last one freed comes first");
    assert_eq!((cache.free(), cache.limit()), (0, 3));
    cache.check();
}

#[test]
fn files_have_places_as_long_as_they_are_open_or_have_pages() {
    let mut cache = PageCache::new(&Config { files_max: 2, ..Config::new(4) }).expect("memory");
    let [a, b] = [1, 2].map(|key| cache.open_file(FileKey(key)).expect("room"));
    assert_eq!(cache.open_file(FileKey(3)), None);
    let Room::Frame(frame) = cache.allocate(a, PageIndex(0), Purpose::Demand) else { panic!("full") };
    cache.filled(frame);
    cache.close_file(a);
    assert_eq!(cache.open_file(FileKey(3)), None, "a page of the first file is still here");
    assert_eq!(cache.open_file(FileKey(1)), Some(a));
    cache.close_file(a);
    cache.close_file(b);
    assert_eq!(cache.open_file(FileKey(3)), Some(b));
    cache.remove(frame);
    assert_eq!(cache.open_file(FileKey(4)), Some(a));
}
