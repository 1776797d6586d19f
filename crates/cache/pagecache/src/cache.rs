//! The books of all frames.
//!
//! The life of a frame; each arrow is the call that makes it:
//!
//! ```text
//!            allocate               filled                        settled, or flush_ended(Ok)
//!   Free ---------------> Filling ---------> Clean <----------------------------------------------+
//!    ^ ^                   | |  |             |                                                   |
//!    | |    fill_failed    | |  | dirtied     | dirtied                                           |
//!    | +-------------------+ |  +-----+   +---+                                                   |
//!    |                       |        v   v   writing             written             flush_began |
//!    | released   fill_lost  |        Dirty ----------> Writing ----------> Written ----------> Flushing
//!    +---------- Lent <------+        ^ ^ ^              |   |                 |                  |
//!    |                                | | | write_failed |   | dirtied         | dirtied          | dirtied, or
//!    | removed, evicted               | | +--------------+   v                 |                  | flush_ended(Err)
//!    | (of Clean, Dirty, Written,     | |   or written    Rewritten            |                  |
//!    |  Flushing)                     | +--------------------+                 |                  |
//!    |                                +----------------------------------------+------------------+
//!   unpin of the last one
//!    |          removed, fill_failed while pinned        write_lost of Writing, Rewritten --> Stuck, and
//!   Orphan <----------------------------------------     released --> Dirty again
//! ```
//!
//! Only Clean, Written and Flushing frames without a pin are evicted. A page whose write failed is Dirty, with a mark: it
//! is nobody's victim, and a flush tries it again. A device that did not answer may still read or write the memory: such
//! frames are Stuck or Lent, and are left alone until the device lets go.
//!
//! A page may be written to while it is on its way to the device (the device may then take part of the new bytes: harmless,
//! for it is dirty again and no flush has vouched for the new bytes). A layer that adds checksums must copy first.

use std::io;
use std::ops::Range;

use block::{Arena, Error, Span};

use crate::files::{Failures, File, Files};
use crate::frame::{BOOK, Frame, List, ORDER, State};
use crate::index::{Index, hash};
use crate::order::{Order, Replacement, Victim};
use crate::units::{FileKey, FileNo, FrameId, PAGE_BYTES, PageIndex};

/// Victims looked at before all are.
const SCAN: u32 = 64;

/// How a page cache is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Frames of memory.
    pub frames: u32,
    /// Files known at a time, open or with pages.
    pub files_max: u32,
    /// Which page leaves next.
    pub replacement: Replacement,
    /// With fewer free frames than this, pages are evicted ahead of need...
    pub free_low: u32,
    /// ...until there are so many.
    pub free_high: u32,
    /// All memory is touched when the cache is made; otherwise as it is used. (Huge pages of hugetlb are there at once anyway.)
    pub eager: bool,
}

impl Config {
    /// For so many frames: S3-FIFO, one file, memory as it is used; 1/64 of the frames kept free, at most 1024.
    pub fn new(frames: u32) -> Config {
        let low = (frames / 64).min(1024);
        Config { frames, files_max: 1, replacement: Replacement::default(), free_low: low, free_high: low * 2, eager: false }
    }
}

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// In this frame.
    Hit(FrameId),
    /// On its way into this frame.
    Filling(FrameId),
    /// Not here.
    Miss,
}

/// What a frame is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Somebody waits.
    Demand,
    /// Somebody may want it soon: no page that was asked for more than once leaves for it, and the free frames are not used up.
    Ahead,
}

/// Whether there was a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Room {
    /// This one. Its page is Filling.
    Frame(FrameId),
    /// This one has to be written back first, with others around it; then try again.
    Dirty(FrameId),
    /// None: all are in transfer, pinned, or could not be written.
    None,
}

/// Whether the device has given the memory of a failed request back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gave {
    /// It does not touch it any more.
    Back,
    /// It may: until [`PageCache::released`].
    Not,
}

/// See the module.
#[derive(Debug)]
pub struct PageCache {
    arena: Arena,
    frames: Box<[Frame]>,
    index: Index,
    order: Order,
    files: Files,
    /// Frames that were used and are free; the last one first, for its memory is warm.
    free: List<ORDER>,
    /// Frames from here on were never used.
    fresh: u32,
    /// Frames that are not free.
    used: u32,
    /// Most frames to use.
    limit: u32,
    free_low: u32,
    free_high: u32,
    /// Dirty, Writing, Rewritten and Stuck.
    unwritten: u32,
    /// Dirty pages get this age.
    epoch: u8,
}

/// Ages count modulo this.
pub const EPOCHS: u8 = 64;

impl PageCache {
    /// With memory of this process alone, of huge pages where there are any.
    ///
    /// # Errors
    /// No memory.
    pub fn new(config: &Config) -> io::Result<PageCache> {
        Ok(PageCache::over(Arena::private(config.frames as usize * PAGE_BYTES)?, config))
    }

    /// Over the first frames of memory that is there and nobody else's.
    pub fn over(arena: Arena, config: &Config) -> PageCache {
        let frames = config.frames;
        assert!(frames > 0 && frames < u32::MAX, "{frames} frames");
        assert!(arena.region().len() / PAGE_BYTES >= frames as usize, "less memory than frames");
        if config.eager {
            arena.region().fill(0..frames as usize * PAGE_BYTES, 0);
        }
        PageCache {
            arena,
            frames: vec![Frame::FREE; frames as usize].into(),
            index: Index::new(frames),
            order: Order::new(config.replacement, frames),
            files: Files::new(config.files_max),
            free: List::default(),
            fresh: 0,
            used: 0,
            limit: frames,
            free_low: config.free_low,
            free_high: config.free_high,
            unwritten: 0,
            epoch: 0,
        }
    }

    // ---- files

    /// Names a file; none when there is no place for another one. To be closed as often as it was opened.
    pub fn open_file(&mut self, key: FileKey) -> Option<FileNo> {
        self.files.open(key)
    }

    /// Its pages stay until they are evicted or removed.
    pub fn close_file(&mut self, file: FileNo) {
        self.files.close(file);
    }

    /// What went wrong with a file.
    #[inline]
    pub fn failures(&self, file: FileNo) -> Failures {
        self.files.get(file).failures
    }

    // ---- pages

    /// Where a page is. Changes nothing: see [`PageCache::touch`].
    #[inline]
    pub fn lookup(&self, file: FileNo, page: PageIndex) -> Lookup {
        let found = self.index.find(page_hash(file, page), |number| {
            let frame = &self.frames[number as usize];
            frame.page == page.0 && frame.file == file.0
        });
        match found {
            None => Lookup::Miss,
            Some(number) if self.frames[number as usize].word.state() == State::Filling => Lookup::Filling(FrameId(number)),
            Some(number) => Lookup::Hit(FrameId(number)),
        }
    }

    /// A page was asked for: it stays longer.
    #[inline]
    pub fn touch(&mut self, frame: FrameId) {
        self.order.touch(&mut self.frames, frame);
    }

    /// A frame for a page that is not here, Filling from now on.
    pub fn allocate(&mut self, file: FileNo, page: PageIndex, purpose: Purpose) -> Room {
        debug_assert_eq!(self.lookup(file, page), Lookup::Miss, "the page is here already");
        let ahead = purpose == Purpose::Ahead;
        if self.free() <= if ahead { self.free_low / 2 } else { 0 } {
            match self.evict(ahead) {
                Room::Frame(_) => {}
                other => return other,
            }
        }
        let Some(frame) = self.take_free() else { return Room::None };
        let entry = &mut self.frames[frame.at()];
        (entry.page, entry.file, entry.word) = (page.0, file.0, Default::default());
        entry.word.set_state(State::Filling);
        entry.word.set_ahead(ahead);
        let hash = page_hash(file, page);
        self.index.insert(hash, frame.0);
        self.order.insert(&mut self.frames, frame, hash);
        self.files.get_mut(file).pages += 1;
        Room::Frame(frame)
    }

    /// The bytes have come.
    pub fn filled(&mut self, frame: FrameId) {
        self.expect(frame, State::Filling);
        self.set(frame, State::Clean);
    }

    /// They will not: the page is not here any more. Whoever pinned it finds it an Orphan.
    pub fn fill_failed(&mut self, frame: FrameId, gave: Gave) {
        self.expect(frame, State::Filling);
        self.detach(frame, None);
        match gave {
            Gave::Back => self.retire(frame),
            Gave::Not => self.frames[frame.at()].word.set_state(State::Lent),
        }
    }

    /// Bytes were written into the page; all of them, if it was Filling.
    #[inline]
    pub fn dirtied(&mut self, frame: FrameId) {
        match self.state(frame) {
            State::Dirty | State::Rewritten | State::Stuck => {}
            State::Writing => self.set(frame, State::Rewritten),
            _ => self.make_dirty(frame, false),
        }
    }

    fn make_dirty(&mut self, frame: FrameId, failed: bool) {
        let epoch = self.epoch;
        self.set(frame, State::Dirty);
        let word = &mut self.frames[frame.at()].word;
        word.set_epoch(epoch);
        word.set_failed(failed);
        self.file_mut(frame).failed += u32::from(failed);
    }

    /// A dirty page is on its way to the device.
    pub fn writing(&mut self, frame: FrameId) {
        self.expect(frame, State::Dirty);
        self.set(frame, State::Writing);
    }

    /// It has arrived. `safe`: where a loss of power does not reach it.
    pub fn written(&mut self, frame: FrameId, safe: bool) {
        match self.state(frame) {
            State::Rewritten => self.make_dirty(frame, false),
            State::Writing => self.set(frame, if safe { State::Clean } else { State::Written }),
            other => panic!("{other:?} pages are not written"),
        }
    }

    /// It has not: the page is dirty still, and the file has failed once more.
    pub fn write_failed(&mut self, frame: FrameId, gave: Gave, error: Error) {
        assert!(matches!(self.state(frame), State::Writing | State::Rewritten), "{:?} pages are not written", self.state(frame));
        self.make_dirty(frame, true);
        if gave == Gave::Not {
            self.set(frame, State::Stuck);
        }
        self.file_mut(frame).failures.tell(error);
    }

    /// The device has given memory back that it had kept.
    pub fn released(&mut self, frame: FrameId) {
        match self.state(frame) {
            State::Stuck => self.set(frame, State::Dirty),
            State::Lent => self.retire(frame),
            other => panic!("{other:?} frames are not lent"),
        }
    }

    /// Drops a page that is in no transfer, dirty or not. Whoever pinned it keeps the bytes as they are.
    pub fn remove(&mut self, frame: FrameId) {
        let state = self.state(frame);
        assert!(state.is_safe() || state == State::Dirty, "{state:?} pages cannot be removed");
        self.count_leaving(frame, state);
        self.detach(frame, None);
        self.retire(frame);
    }

    /// A page that is written but not flushed will not be there when the flush fails.
    fn count_leaving(&mut self, frame: FrameId, state: State) {
        match state {
            State::Written => self.file_mut(frame).written_left += 1,
            State::Flushing => self.file_mut(frame).flushing_left += 1,
            _ => {}
        }
    }

    // ---- flushes

    /// Everything Written becomes Flushing: a flush that is submitted now vouches for it. False when one is under way.
    pub fn flush_began(&mut self, file: FileNo) -> bool {
        let known = self.files.get_mut(file);
        if std::mem::replace(&mut known.flush_runs, true) {
            return false;
        }
        known.flushing_left = std::mem::take(&mut known.written_left);
        while let Some(frame) = self.files.get(file).written.head() {
            self.set(frame, State::Flushing);
        }
        true
    }

    /// It has ended: what it vouched for is safe, or dirty again. If it failed, what had left meanwhile is lost.
    pub fn flush_ended(&mut self, file: FileNo, status: Result<(), Error>) {
        self.files.get_mut(file).flush_runs = false;
        while let Some(frame) = self.files.get(file).flushing.head() {
            match status {
                Ok(()) => self.set(frame, State::Clean),
                Err(_) => self.make_dirty(frame, false),
            }
        }
        let known = self.files.get_mut(file);
        let left = std::mem::take(&mut known.flushing_left);
        if let Err(error) = status {
            known.failures.tell(error);
            known.failures.losses += u32::from(left > 0);
        }
    }

    // ---- pins

    /// Keeps a page in its frame; false when it has 65535 pins already.
    #[inline]
    pub fn pin(&mut self, frame: FrameId) -> bool {
        let word = &mut self.frames[frame.at()].word;
        let pins = word.pins();
        if pins == 0xffff {
            return false;
        }
        word.set_pins(pins + 1);
        true
    }

    /// Takes one pin back.
    #[inline]
    pub fn unpin(&mut self, frame: FrameId) {
        let word = &mut self.frames[frame.at()].word;
        let pins = word.pins();
        assert!(pins > 0, "unpinned more often than pinned");
        word.set_pins(pins - 1);
        if pins == 1 && word.state() == State::Orphan {
            self.retire(frame);
        }
    }

    // ---- memory

    /// What the frames are pieces of: to be registered with each queue.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// A frame's memory, as requests name it. Its address was translated when the arena was registered; the name itself is
    /// arithmetic, which is cheaper than to look it up.
    #[inline]
    pub fn span(&self, frame: FrameId) -> Span {
        Span { arena: self.arena.id(), bytes: PAGE_BYTES as u32, at: (frame.at() * PAGE_BYTES) as u64 }
    }

    /// Its address, for who has it pinned.
    #[inline]
    pub fn address(&self, frame: FrameId) -> *const u8 {
        self.arena.region().address(frame.at() * PAGE_BYTES)
    }

    /// Copies out, from its byte `from` on.
    #[inline]
    pub fn read(&self, frame: FrameId, from: usize, to: &mut [u8]) {
        debug_assert!(from + to.len() <= PAGE_BYTES);
        self.arena.region().read(frame.at() * PAGE_BYTES + from, to);
    }

    /// Copies in.
    #[inline]
    pub fn write(&self, frame: FrameId, to: usize, from: &[u8]) {
        debug_assert!(to + from.len() <= PAGE_BYTES);
        self.arena.region().write(frame.at() * PAGE_BYTES + to, from);
    }

    /// Sets bytes to zero.
    pub fn clear(&self, frame: FrameId, bytes: Range<usize>) {
        let begin = frame.at() * PAGE_BYTES;
        self.arena.region().fill(begin + bytes.start..begin + bytes.end, 0);
    }

    // ---- room

    /// Frames to be had at once.
    #[inline]
    pub fn free(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Frames in all.
    pub fn frames(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Most frames that are used.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Uses at most so many frames from now on (one at least, all at most); pages leave as room is asked for. Memory of frames
    /// that are not used stays the process's.
    pub fn set_limit(&mut self, frames: u32) {
        self.limit = frames.clamp(1, self.frames());
        self.order.set_limit(self.limit);
    }

    /// Whether it is time to evict ahead of need.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.free() < self.free_low
    }

    /// Evicts ahead of need. What has to be written back first is named; all that can leave has left otherwise.
    pub fn evict_ahead(&mut self) -> Room {
        while self.free() < self.free_high {
            match self.evict(false) {
                Room::Frame(_) => {}
                other => return other,
            }
        }
        Room::None
    }

    /// One page leaves (or more, if the limit was lowered). `Room::Frame`: there is a free frame now.
    fn evict(&mut self, cold: bool) -> Room {
        // Enough for every frame to use up its rounds.
        let all = self.frames().saturating_mul(5);
        loop {
            let found = match self.order.victim(&mut self.frames, SCAN, cold) {
                Victim::None if !cold => self.order.victim(&mut self.frames, all, cold),
                found => found,
            };
            match found {
                Victim::None => return Room::None,
                Victim::Dirty(frame) => return Room::Dirty(frame),
                Victim::Leaves(frame) => {
                    let entry = &self.frames[frame.at()];
                    let hash = page_hash(FileNo(entry.file), PageIndex(entry.page));
                    self.count_leaving(frame, entry.word.state());
                    self.detach(frame, Some(hash));
                    self.retire(frame);
                    if self.free() > 0 {
                        return Room::Frame(frame);
                    }
                }
            }
        }
    }

    // ---- what is dirty

    /// Pages with bytes that the device has not taken.
    #[inline]
    pub fn unwritten(&self) -> u32 {
        self.unwritten
    }

    /// Dirty pages of a file that can be written now: not those that failed, nor those a device keeps.
    pub fn cleanable(&self, file: FileNo) -> u32 {
        let file = self.files.get(file);
        file.dirty.len() - file.failed
    }

    /// Dirty pages of a file whose last write failed.
    pub fn failed(&self, file: FileNo) -> u32 {
        self.files.get(file).failed
    }

    /// Pages of a file that a device may still read, after a write that got no answer.
    pub fn stuck(&self, file: FileNo) -> u32 {
        self.files.get(file).stuck
    }

    /// Pages of a file on their way to the device.
    pub fn in_writing(&self, file: FileNo) -> u32 {
        self.files.get(file).writing
    }

    /// Pages of a file that the device has, but may lose.
    pub fn unflushed(&self, file: FileNo) -> u32 {
        let file = self.files.get(file);
        file.written.len() + file.flushing.len() + file.written_left + file.flushing_left
    }

    /// The dirty page of a file that waits longest.
    pub fn oldest(&self, file: FileNo) -> Option<FrameId> {
        self.files.get(file).dirty.head()
    }

    /// Pages made dirty from now on have this age: a number that goes up modulo [`EPOCHS`].
    pub fn set_epoch(&mut self, epoch: u8) {
        self.epoch = epoch % EPOCHS;
    }

    /// Epochs since a page became dirty.
    pub fn age(&self, frame: FrameId) -> u8 {
        (self.epoch + EPOCHS - self.frames[frame.at()].word.epoch()) % EPOCHS
    }

    /// The frame of a dirty page that can be written now and has not failed.
    pub fn cleanable_at(&self, file: FileNo, page: PageIndex) -> Option<FrameId> {
        let Lookup::Hit(frame) = self.lookup(file, page) else { return None };
        (self.state(frame) == State::Dirty && !self.has_failed(frame)).then_some(frame)
    }

    /// Adds a file's Dirty pages in a range, in the order of their pages, as many as `into` has room for: those that became
    /// dirty first. `failed`: also those whose last write failed. Returns whether those are all.
    pub fn collect_dirty(&self, file: FileNo, pages: &Range<u64>, failed: bool, into: &mut Vec<FrameId>) -> bool {
        let from = into.len();
        let wanted = |frame: &FrameId| {
            let Frame { page, word, .. } = self.frames[frame.at()];
            word.state() == State::Dirty && (failed || !word.has_failed()) && pages.contains(&page)
        };
        let mut dirty = self.files.get(file).dirty.iter(&self.frames).filter(wanted);
        let room = into.capacity() - from;
        into.extend(dirty.by_ref().take(room));
        into[from..].sort_unstable_by_key(|frame| self.frames[frame.at()].page);
        dirty.next().is_none()
    }

    /// Walks over the pages of a file in a range that are here at all, whatever their state: the first one at or after a
    /// position, with its position; the first position is 0. In the order of pages, or of frames if those are fewer. Pages that come
    /// or go between two calls are met or not.
    pub fn next_in(&self, file: FileNo, pages: &Range<u64>, from: u64) -> Option<(u64, FrameId)> {
        let length = pages.end.saturating_sub(pages.start);
        if length <= u64::from(self.frames()) {
            return (from..length).find_map(|at| match self.lookup(file, PageIndex(pages.start + at)) {
                Lookup::Hit(frame) | Lookup::Filling(frame) => Some((at, frame)),
                Lookup::Miss => None,
            });
        }
        (from as u32..self.fresh).map(FrameId).find_map(|frame| {
            let Frame { page, file: other, word, .. } = self.frames[frame.at()];
            let is_here = !matches!(word.state(), State::Free | State::Lent | State::Orphan);
            (is_here && other == file.0 && pages.contains(&page)).then_some((u64::from(frame.0), frame))
        })
    }

    /// Where a page is in its life.
    #[inline]
    pub fn state(&self, frame: FrameId) -> State {
        self.frames[frame.at()].word.state()
    }

    /// Which page of which file it is, or was.
    pub fn page(&self, frame: FrameId) -> (FileNo, PageIndex) {
        let frame = &self.frames[frame.at()];
        (FileNo(frame.file), PageIndex(frame.page))
    }

    /// Whether it was read ahead and nobody has asked for it yet.
    pub fn is_ahead(&self, frame: FrameId) -> bool {
        self.frames[frame.at()].word.is_ahead()
    }

    /// Whether its last write failed.
    pub fn has_failed(&self, frame: FrameId) -> bool {
        self.frames[frame.at()].word.has_failed()
    }

    // ---- the arrows

    fn expect(&self, frame: FrameId, state: State) {
        assert_eq!(self.state(frame), state, "frame {}", frame.0);
    }

    fn file_mut(&mut self, frame: FrameId) -> &mut File {
        self.files.get_mut(FileNo(self.frames[frame.at()].file))
    }

    /// Every change of state comes through here: lists and counts follow.
    fn set(&mut self, frame: FrameId, to: State) {
        let from = self.state(frame);
        if from != to && !matches!((from, to), (State::Dirty, State::Stuck) | (State::Stuck, State::Dirty)) {
            self.leave(frame, from);
            self.frames[frame.at()].word.set_state(to);
            self.enter(frame, to);
        }
        self.frames[frame.at()].word.set_state(to);
        let file = self.file_mut(frame);
        match (from, to) {
            (State::Stuck, State::Stuck) => {}
            (State::Stuck, _) => file.stuck -= 1,
            (_, State::Stuck) => file.stuck += 1,
            _ => {}
        }
        self.unwritten += u32::from(to.is_unwritten());
        self.unwritten -= u32::from(from.is_unwritten());
    }

    fn leave(&mut self, frame: FrameId, from: State) {
        let word = &mut self.frames[frame.at()].word;
        let failed = word.has_failed();
        word.set_failed(false);
        let file = self.files.get_mut(FileNo(self.frames[frame.at()].file));
        file.failed -= u32::from(failed);
        match from {
            State::Dirty | State::Stuck => file.dirty.unlink(&mut self.frames, frame),
            State::Written => file.written.unlink(&mut self.frames, frame),
            State::Flushing => file.flushing.unlink(&mut self.frames, frame),
            State::Writing | State::Rewritten => file.writing -= 1,
            _ => {}
        }
    }

    fn enter(&mut self, frame: FrameId, to: State) {
        let file = self.files.get_mut(FileNo(self.frames[frame.at()].file));
        match to {
            State::Dirty | State::Stuck => file.dirty.push_tail(&mut self.frames, frame),
            State::Written => file.written.push_tail(&mut self.frames, frame),
            State::Flushing => file.flushing.push_tail(&mut self.frames, frame),
            State::Writing | State::Rewritten => file.writing += 1,
            _ => {}
        }
    }

    /// Takes the page out of the frame, and the frame out of everything but its pins.
    fn detach(&mut self, frame: FrameId, evicted: Option<u32>) {
        let (file, page) = self.page(frame);
        assert!(self.index.remove(page_hash(file, page), frame.0), "a page without an entry");
        self.order.remove(&mut self.frames, frame, evicted);
        self.set(frame, State::Orphan);
        self.files.get_mut(file).pages -= 1;
        self.files.release_unused(file);
    }

    /// A frame without a page is free, or an Orphan while it is pinned.
    fn retire(&mut self, frame: FrameId) {
        let word = &mut self.frames[frame.at()].word;
        if word.pins() > 0 {
            word.set_state(State::Orphan);
            return;
        }
        *word = Default::default();
        self.free.push_head(&mut self.frames, frame);
        self.used -= 1;
    }

    fn take_free(&mut self) -> Option<FrameId> {
        if self.free() == 0 {
            return None;
        }
        self.used += 1;
        self.free.pop_head(&mut self.frames).or_else(|| {
            self.fresh += 1;
            Some(FrameId(self.fresh - 1))
        })
    }

    /// Looks whether all books agree; panics if not. For tests and for those who doubt: it looks at every frame.
    pub fn check(&self) {
        let states = || self.frames.iter().map(|frame| frame.word.state());
        let count = |wanted: &dyn Fn(State) -> bool| states().filter(|state| wanted(*state)).count() as u32;
        let free = count(&|state| state == State::Free);
        assert_eq!(free + self.used, self.frames(), "free and used frames are all");
        assert_eq!(self.free.len() + self.frames() - self.fresh, free, "free frames are listed");
        assert_eq!(count(&|state| state.is_unwritten()), self.unwritten, "unwritten pages are counted");
        let paged = count(&|state| !matches!(state, State::Free | State::Lent | State::Orphan));
        assert_eq!(self.order.len(), paged, "each page is in one queue");
        assert_eq!(self.files.iter().map(|file| file.pages).sum::<u32>(), paged, "each page is of one file");
        for (queue, frame) in self.order.iter(&self.frames) {
            assert_eq!(self.frames[frame.at()].word.queue(), queue);
            let (file, page) = self.page(frame);
            let found = self.lookup(file, page);
            assert!(found == Lookup::Hit(frame) || found == Lookup::Filling(frame), "{page:?} is {found:?}, not {frame:?}");
        }
        for file in self.files.iter() {
            let all = |list: &List<BOOK>, wanted: &[State]| list.iter(&self.frames).all(|frame| wanted.contains(&self.state(frame)));
            assert!(all(&file.dirty, &[State::Dirty, State::Stuck]) && all(&file.written, &[State::Written]));
            assert!(all(&file.flushing, &[State::Flushing]));
            let failed = file.dirty.iter(&self.frames).filter(|frame| self.has_failed(*frame)).count();
            assert_eq!(failed as u32, file.failed, "failed pages are counted");
        }
        let listed: u32 = self.files.iter().map(|file| file.dirty.len() + file.writing).sum();
        assert_eq!(listed, self.unwritten, "unwritten pages are listed");
        let orphan = self.frames.iter().find(|frame| frame.word.state() == State::Orphan && frame.word.pins() == 0);
        assert!(orphan.is_none(), "an orphan nobody looks at");
    }
}

impl Failures {
    fn tell(&mut self, error: Error) {
        self.times += 1;
        self.last = Some(error);
    }
}

#[inline]
fn page_hash(file: FileNo, page: PageIndex) -> u32 {
    hash(0, u64::from(file.0), page.0)
}
