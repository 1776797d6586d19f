//! Files in queues: one slab of records, doubly linked by index, found through one hash table of indices.
//!
//! 40 bytes a file in the slab and 5 to 10 in the index; no separate allocation for any file.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::{FileId, Record};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct ListSlot {
    record: Record,
    prev: u32,
    next: u32,
    /// The queue it is in; `NONE` when the slot is free.
    queue: u32,
}

/// Ends of one queue: the head is evicted first.
#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

/// Files in any number of queues.
#[derive(Debug, Default)]
pub struct Queues {
    slots: Vec<ListSlot>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    queues: Vec<Ends>,
}

impl Queues {
    fn slot(&self, file: FileId) -> Option<u32> {
        let hash = self.hasher.hash_one(file);
        self.index.find(hash, |at| self.slots[*at as usize].record.file == file).copied()
    }

    /// Returns the number of files in all queues.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the number of files in one queue.
    pub fn queue_len(&self, queue: u32) -> usize {
        self.queues.get(queue as usize).map_or(0, |ends| ends.len as usize)
    }

    /// Puts a new file at the tail of a queue.
    pub fn push(&mut self, queue: u32, record: Record) {
        debug_assert!(self.slot(record.file).is_none(), "pushed twice");
        let slot = ListSlot { record, prev: NONE, next: NONE, queue: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        let Queues { index, slots, hasher, .. } = self;
        let hash = hasher.hash_one(record.file);
        index.insert_unique(hash, at, |at| hasher.hash_one(slots[*at as usize].record.file));
        self.link_tail(queue, at);
    }

    fn link_tail(&mut self, queue: u32, at: u32) {
        while self.queues.len() <= queue as usize {
            self.queues.push(Ends { head: NONE, tail: NONE, len: 0 });
        }
        let ends = &mut self.queues[queue as usize];
        let tail = std::mem::replace(&mut ends.tail, at);
        ends.len += 1;
        if tail == NONE {
            ends.head = at;
        } else {
            self.slots[tail as usize].next = at;
        }
        let slot = &mut self.slots[at as usize];
        (slot.prev, slot.next, slot.queue) = (tail, NONE, queue);
    }

    fn unlink(&mut self, at: u32) {
        let ListSlot { prev, next, queue, .. } = self.slots[at as usize];
        let ends = &mut self.queues[queue as usize];
        ends.len -= 1;
        if prev == NONE {
            ends.head = next;
        } else {
            self.slots[prev as usize].next = next;
        }
        if next == NONE {
            self.queues[queue as usize].tail = prev;
        } else {
            self.slots[next as usize].prev = prev;
        }
    }

    /// Puts a file at the tail of a queue. Of a known file it only sets the size.
    pub fn insert(&mut self, queue: u32, record: Record) {
        if !self.resize(record.file, record.size) {
            self.push(queue, record);
        }
    }

    /// Sets the size of a file. Returns false if the file is not known.
    pub fn resize(&mut self, file: FileId, size: u64) -> bool {
        self.get_mut(file).map(|record| record.size = size).is_some()
    }

    /// Records an open of a file. Returns its changed record, if the file is known.
    pub fn record_open(&mut self, file: FileId, now_s: u32) -> Option<Record> {
        let record = self.get_mut(file)?;
        record.last_open_s = now_s;
        record.opens = record.opens.saturating_add(1);
        Some(*record)
    }

    /// Takes a known file to the tail of a queue.
    pub fn send_to_tail(&mut self, file: FileId, queue: u32) -> bool {
        let Some(at) = self.slot(file) else { return false };
        self.unlink(at);
        self.link_tail(queue, at);
        true
    }

    /// Removes a file and returns its record.
    pub fn remove(&mut self, file: FileId) -> Option<Record> {
        let at = self.slot(file)?;
        self.unlink(at);
        let hash = self.hasher.hash_one(file);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == at) {
            entry.remove();
        }
        self.slots[at as usize].queue = NONE;
        self.free.push(at);
        Some(self.slots[at as usize].record)
    }

    /// The record of a file.
    pub fn get(&self, file: FileId) -> Option<&Record> {
        self.slot(file).map(|at| &self.slots[at as usize].record)
    }

    /// The record of a file, to be changed (but for its id).
    pub fn get_mut(&mut self, file: FileId) -> Option<&mut Record> {
        self.slot(file).map(|at| &mut self.slots[at as usize].record)
    }

    /// The queue a file is in.
    pub fn queue_of(&self, file: FileId) -> Option<u32> {
        self.slot(file).map(|at| self.slots[at as usize].queue)
    }

    /// The first file of a queue.
    pub fn head(&self, queue: u32) -> Option<Record> {
        self.iter(queue).next()
    }

    /// The last file of a queue.
    pub fn tail(&self, queue: u32) -> Option<Record> {
        let tail = self.queues.get(queue as usize)?.tail;
        (tail != NONE).then(|| self.slots[tail as usize].record)
    }

    /// The file behind `file` in its queue.
    pub fn behind(&self, file: FileId) -> Option<Record> {
        let next = self.slots[self.slot(file)? as usize].next;
        (next != NONE).then(|| self.slots[next as usize].record)
    }

    /// A queue from its head.
    pub fn iter(&self, queue: u32) -> impl Iterator<Item = Record> + '_ {
        let mut at = self.queues.get(queue as usize).map_or(NONE, |ends| ends.head);
        std::iter::from_fn(move || {
            if at == NONE {
                return None;
            }
            let slot = &self.slots[at as usize];
            at = slot.next;
            Some(slot.record)
        })
    }

    /// The number of queues ever used.
    pub fn queues(&self) -> u32 {
        self.queues.len() as u32
    }
}
