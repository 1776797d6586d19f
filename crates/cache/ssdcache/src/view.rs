//! What other processes see of the map: without locks, without belief.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shm::Region;

use crate::cache::VerifyResult;
use crate::checksum::page_checksum;
use crate::index::LookupKey;
use crate::open_error::CacheOpenError;
use crate::shared::SharedMap;
use crate::slots::{FILES_MAX, PageName, SlotSnapshot};
use crate::superblock::{FIRST, Shape};
use crate::units::{DevicePage, FileKey, Item, PAGE_INDEX_END, Page, PageIndex, SsdSlot};

/// Lookups before a reader learns that nothing is sure. Each is over before the next, so a removal, which takes less than a
/// microsecond, disturbs one or two.
const TRIES_MAX: usize = 16;

/// A page that was found: where, and what its bytes have to add up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViewHit {
    /// What is read at [`Item::at`].
    pub item: Item,
    /// The sequence number of its segment.
    pub seq: u64,
    held: SlotSnapshot,
}

impl ViewHit {
    /// Whether nobody but the SSD has it.
    pub fn is_dirty(&self) -> bool {
        self.held.is_dirty()
    }
}

/// What a lookup in the shared map found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewLookup {
    /// Not on the SSD. Or put there but not written yet: then a frame has it, or it is the same below.
    Miss,
    /// Here; what is read has to be verified.
    Hit(ViewHit),
    /// Not found, but the map is being exchanged (milliseconds, or until there is a leader): look again.
    Unsure,
}

/// The map, for processes that do not lead. Writes only marks of use.
#[derive(Clone, Debug)]
pub struct View {
    shared: SharedMap,
}

impl View {
    /// The map at a place in the segment, which has so many bytes for it.
    ///
    /// # Errors
    /// `Segment`: nothing was formatted there, or its sizes make no sense.
    pub fn attach(region: &Arc<Region>, at: usize, bytes: usize) -> Result<View, CacheOpenError> {
        Ok(View { shared: SharedMap::attach(region, at, bytes)? })
    }

    /// The sizes of the cache.
    pub fn shape(&self) -> Shape {
        self.shared.shape()
    }

    /// Where a page is looked for; `number` is what [`crate::SsdCache::hold`] gave the file. None: it cannot be here.
    #[inline]
    pub fn sought(&self, number: u32, page: PageIndex) -> Option<LookupKey> {
        (page.0 < PAGE_INDEX_END && number < FILES_MAX).then(|| LookupKey::new(PageName::new(number, page)))
    }

    /// The page will be looked up soon.
    #[inline]
    pub fn prefetch(&self, sought: &LookupKey) {
        self.shared.prefetch(sought);
    }

    /// It will be looked up at once. Best some time after `prefetch`.
    #[inline]
    pub fn prefetch_found(&self, sought: &LookupKey) {
        self.shared.prefetch_found(sought);
    }

    /// Where a page is, by the number of its file.
    pub fn lookup(&self, number: u32, key: FileKey, page: PageIndex) -> ViewLookup {
        self.sought(number, page).map_or(ViewLookup::Miss, |sought| self.lookup_sought(&sought, key))
    }

    /// Likewise one that is sought: of the file with this key, or what is read will not be what it is said to be.
    #[inline(always)]
    pub fn lookup_sought(&self, sought: &LookupKey, key: FileKey) -> ViewLookup {
        let name = sought.name();
        for _ in 0..TRIES_MAX {
            let gate = self.shared.gate();
            match self.shared.find_word(sought).map(|(slot, word)| self.found(slot, word, name, key)) {
                Some(Some(found)) if self.is_written(&found) => return ViewLookup::Hit(found),
                // It changed since its word was read.
                Some(None) => {}
                _ if self.shared.is_still(gate) => return ViewLookup::Miss,
                _ => {}
            }
            std::hint::spin_loop();
        }
        ViewLookup::Unsure
    }

    #[inline(always)]
    fn found(&self, slot: SsdSlot, word: u64, name: PageName, key: FileKey) -> Option<ViewHit> {
        let held = self.shared.held_with(slot, word)?;
        let seq = self.shared.seq(self.place(slot).0).load(Ordering::Acquire);
        let item = Item { key, page: name.page(), slot, at: DevicePage(FIRST + u64::from(slot.0)) };
        Some(ViewHit { item, seq, held })
    }

    #[inline]
    fn place(&self, slot: SsdSlot) -> (usize, u32) {
        let pages = self.shared.shape().segment_pages;
        ((slot.0 / pages) as usize, slot.0 % pages)
    }

    /// The head's bounds are published before a page is put into it: a reader that has seen the page sees them.
    #[inline]
    fn is_written(&self, found: &ViewHit) -> bool {
        let (seq, written) = self.shared.head();
        found.seq != seq || self.place(found.item.slot).1 < written
    }

    /// Whether these bytes, read at the item's place, are the page. `VerifyResult::Bad`: it is still there, and the SSD has lost it.
    #[inline]
    pub fn verify(&self, found: &ViewHit, bytes: &Page) -> VerifyResult {
        let item = &found.item;
        if page_checksum(bytes, item.key, item.page, item.at, found.seq) == found.held.checksum {
            return VerifyResult::Good;
        }
        self.why_not(found)
    }

    /// Why other bytes were read than those of the page.
    #[cold]
    fn why_not(&self, found: &ViewHit) -> VerifyResult {
        let item = &found.item;
        let gate = self.shared.gate();
        let is_there = item.slot.0 < self.shared.slots()
            && self.shared.held(item.slot) == Some(found.held)
            && self.shared.seq(self.place(item.slot).0).load(Ordering::Acquire) == found.seq
            && self.shared.is_still(gate);
        if is_there { VerifyResult::Bad } else { VerifyResult::Changed }
    }

    /// Counts a hit of a reader: the page may stay longer.
    #[inline]
    pub fn touch(&self, found: &ViewHit) {
        if found.item.slot.0 < self.shared.slots() {
            self.shared.touch(found.item.slot, found.held);
        }
    }
}

#[cfg(test)]
mod test {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::shared::{format_shared, meanwhile, shared_bytes};

    /// Full enough for long ways through the index.
    const SHAPE: Shape = Shape { segment_pages: 64, segments: 4 };
    const STAY: u64 = 170;

    fn name(page: u64) -> PageName {
        PageName::new(3, PageIndex(page))
    }

    /// Pages that are there all the time, and others that come and go.
    struct Leader {
        shared: SharedMap,
        rng: fastrand::Rng,
        stay: Vec<u32>,
        guests: Vec<Option<u32>>,
        free: Vec<u32>,
    }

    impl Leader {
        fn new(seed: u64) -> (Leader, View) {
            let region = Arc::new(Region::private(shared_bytes(SHAPE), shm::PageSize::Small).expect("memory"));
            format_shared(&region, 0, SHAPE);
            let shared = SharedMap::attach(&region, 0, region.len()).expect("formatted");
            let stay: Vec<u32> = (0..STAY as u32).collect();
            for slot in &stay {
                shared.set(SsdSlot(*slot), name(u64::from(*slot)), false, 0, *slot);
                shared.enter(name(u64::from(*slot)), SsdSlot(*slot));
            }
            shared.set_head(9, 0);
            let view = View::attach(&region, 0, region.len()).expect("formatted");
            let free = (STAY as u32..SHAPE.slots()).collect();
            let mut leader = Leader { shared, rng: fastrand::Rng::with_seed(seed), stay, guests: vec![None; 80], free };
            leader.exchange();
            (leader, view)
        }

        /// Moves one from slot to slot, or takes one in or out.
        fn change(&mut self) {
            let slot = self.free.swap_remove(self.rng.usize(..self.free.len()));
            if self.rng.bool() {
                let page = self.rng.usize(..self.stay.len());
                self.shared.set(SsdSlot(slot), name(page as u64), false, 0, slot);
                assert_eq!(self.shared.enter(name(page as u64), SsdSlot(slot)), Some(SsdSlot(self.stay[page])));
                self.shared.clear(SsdSlot(self.stay[page]));
                self.free.push(std::mem::replace(&mut self.stay[page], slot));
                return;
            }
            let guest = self.rng.usize(..self.guests.len());
            let page = STAY + guest as u64;
            if let Some(old) = self.guests[guest].take() {
                self.shared.remove(name(page));
                self.shared.clear(SsdSlot(old));
                self.free.extend([old, slot]);
            } else {
                self.shared.set(SsdSlot(slot), name(page), false, 0, slot);
                self.shared.enter(name(page), SsdSlot(slot));
                self.guests[guest] = Some(slot);
            }
        }

        /// Takes one out and in again, so that it comes behind guests; a reader that looks only before and after does not see it.
        fn go_and_come(&mut self) {
            let page = self.rng.usize(..self.stay.len());
            self.shared.remove(name(page as u64));
            self.shared.enter(name(page as u64), SsdSlot(self.stay[page]));
        }

        /// As a successor: the same in private memory, then for all.
        fn exchange(&mut self) {
            let own = SharedMap::private(SHAPE).expect("memory");
            self.shared.publish(&own).expect("the same shape");
            own.publish(&self.shared).expect("the same shape");
        }
    }

    /// Also while the map is exchanged.
    fn look(view: &View, page: u64, unsure: &mut u32) {
        match view.lookup(3, FileKey(1), PageIndex(page)) {
            ViewLookup::Hit(found) => {
                assert_eq!(found.item.page.0, page);
                assert_eq!(found.held.checksum, found.item.slot.0, "word and checksum of one moment");
                view.touch(&found);
            }
            ViewLookup::Miss => panic!("page {page} was there all the time"),
            ViewLookup::Unsure => *unsure += 1,
        }
    }

    /// A reader that cannot read a page must know whether the backing file is as new.
    #[test]
    fn what_only_the_ssd_has_is_reported() {
        let (leader, view) = Leader::new(3);
        let (slot, dirty) = (SsdSlot(leader.free[0]), name(STAY));
        leader.shared.set(slot, dirty, true, 0, 77);
        leader.shared.enter(dirty, slot);
        let found = |page| match view.lookup(3, FileKey(1), PageIndex(page)) {
            ViewLookup::Hit(found) => found,
            other => panic!("page {page}: {other:?}"),
        };
        assert!(found(STAY).is_dirty() && !found(0).is_dirty());
        leader.shared.cleaned(slot);
        assert!(!found(STAY).is_dirty());
    }

    #[test]
    fn who_looks_slowly_misses_nothing() {
        let (leader, view) = Leader::new(5);
        let (leader, mut rng) = (Rc::new(RefCell::new(leader)), fastrand::Rng::with_seed(6));
        let mut unsure = 0;
        let reads = if cfg!(miri) { 200 } else { 30_000 };
        for n in 0..reads {
            let (of_changes, mut chance) = (Rc::clone(&leader), rng.fork());
            // Many changes in a few of its steps, or few in many.
            let (often, many) = if n % 2 == 0 { (8, 1..4) } else { (24, 1..60) };
            meanwhile::set(Some(Box::new(move || {
                if chance.u8(..often) == 0 {
                    let mut leader = of_changes.borrow_mut();
                    for _ in 0..chance.u8(many.clone()) {
                        if chance.u8(..8) == 0 { leader.go_and_come() } else { leader.change() }
                    }
                    if chance.u8(..) == 0 {
                        leader.exchange();
                    }
                }
            })));
            look(&view, rng.u64(..STAY), &mut unsure);
            meanwhile::set(None);
        }
        println!("unsure: {unsure} of {reads}");
        assert!(unsure < reads / 20, "{unsure}");
    }

    #[test]
    fn threads_look_while_it_changes() {
        let (mut leader, view) = Leader::new(7);
        let done = AtomicBool::new(false);
        let reads = if cfg!(miri) { 200 } else { 100_000 };
        std::thread::scope(|scope| {
            let reader = |seed| {
                let view = view.clone();
                move || {
                    let (mut rng, mut unsure) = (fastrand::Rng::with_seed(seed), 0);
                    (0..reads).for_each(|_| look(&view, rng.u64(..STAY), &mut unsure));
                }
            };
            let readers = [scope.spawn(reader(1)), scope.spawn(reader(2))];
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    (0..200).for_each(|_| leader.change());
                    leader.exchange();
                }
            });
            let ended = readers.map(|reader| reader.join());
            done.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok), "a reader missed a page");
        });
    }
}
