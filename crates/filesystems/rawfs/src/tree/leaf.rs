//! A leaf: entries in key order in one page. Slots (offsets) grow from the front, cells from the back.

use std::cmp::Ordering;

use super::{DamagedNodeError, HEADER, NODE_BYTES, SearchKey};

/// Key length and value length, before their bytes.
const CELL_HEAD: usize = 4;
/// An entry's offset.
const SLOT: usize = 2;

/// What an entry takes of a page.
pub fn cost(key: usize, value: usize) -> usize {
    SLOT + CELL_HEAD + key + value
}

/// A page of entries. Keys are suffixes: what all of them share is in the parent.
#[derive(Clone)]
pub struct Leaf {
    page: Box<[u8]>,
    count: usize,
    /// Where the lowest cell begins.
    floor: usize,
    /// Bytes of cells that were removed.
    garbage: usize,
}

impl Leaf {
    /// Makes a leaf without any entries.
    pub fn new() -> Leaf {
        Leaf { page: vec![0; NODE_BYTES].into_boxed_slice(), count: 0, floor: NODE_BYTES, garbage: 0 }
    }

    /// Takes a page that was read: every offset and length is checked, that no entry lies in another, and that keys ascend.
    pub fn parse(page: Box<[u8]>, count: usize) -> Result<Leaf, DamagedNodeError> {
        if page.len() != NODE_BYTES || HEADER + count * SLOT > NODE_BYTES {
            return Err(DamagedNodeError("a leaf has more entries than room"));
        }
        let mut leaf = Leaf { page, count, floor: NODE_BYTES, garbage: 0 };
        let (mut cells, mut last, mut packed) = (0, NODE_BYTES, true);
        for index in 0..count {
            let at = leaf.slot(index);
            if at < HEADER + count * SLOT || at + CELL_HEAD > NODE_BYTES {
                return Err(DamagedNodeError("an entry lies outside its leaf"));
            }
            let bytes = CELL_HEAD + leaf.number(at) + leaf.number(at + 2);
            if at + bytes > NODE_BYTES {
                return Err(DamagedNodeError("an entry ends outside its leaf"));
            }
            cells += bytes;
            packed &= at + bytes == last;
            last = at;
            leaf.floor = leaf.floor.min(at);
            if index > 0 && leaf.key(index - 1) >= leaf.key(index) {
                return Err(DamagedNodeError("the keys of a leaf do not ascend"));
            }
        }
        // As we write them, one follows the other.
        if !packed && leaf.overlaps() {
            return Err(DamagedNodeError("entries of a leaf overlap"));
        }
        leaf.garbage = (NODE_BYTES - leaf.floor) - cells;
        Ok(leaf)
    }

    /// Whether an entry lies in another: who changed one in place would change the other's lengths.
    fn overlaps(&self) -> bool {
        let mut cells: Vec<_> = (0..self.count).map(|index| (self.slot(index), self.value_range(index).end)).collect();
        cells.sort_unstable();
        cells.windows(2).any(|pair| pair[0].1 > pair[1].0)
    }

    fn number(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.page[at], self.page[at + 1]]))
    }

    fn set_number(&mut self, at: usize, number: usize) {
        let number = u16::try_from(number).expect("a page's offsets have 16 bits");
        self.page[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }

    fn slot(&self, index: usize) -> usize {
        self.number(HEADER + index * SLOT)
    }

    /// Returns the number of its entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Bytes in use, the header's included.
    pub fn bytes(&self) -> usize {
        HEADER + self.count * SLOT + (NODE_BYTES - self.floor) - self.garbage
    }

    /// Returns the suffix of an entry's key.
    pub fn key(&self, index: usize) -> &[u8] {
        let cell = &self.page[self.slot(index)..];
        let (head, rest) = cell.split_at(CELL_HEAD);
        &rest[..usize::from(u16::from_le_bytes([head[0], head[1]]))]
    }

    fn value_range(&self, index: usize) -> std::ops::Range<usize> {
        let at = self.slot(index);
        let from = at + CELL_HEAD + self.number(at);
        from..from + self.number(at + 2)
    }

    /// Returns the value of an entry.
    pub fn value(&self, index: usize) -> &[u8] {
        &self.page[self.value_range(index)]
    }

    /// The same, to be changed in place.
    pub fn value_mut(&mut self, index: usize) -> &mut [u8] {
        let range = self.value_range(index);
        &mut self.page[range]
    }

    /// Returns all entries in key order.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.count).map(|index| (self.key(index), self.value(index)))
    }

    /// Where the key is, or where it would go.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let (sought, mut low, mut high) = (SearchKey::new(key), 0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            match sought.order_of(self.key(middle)) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Whether an entry of this cost still fits.
    pub fn has_room(&self, cost: usize) -> bool {
        self.bytes() + cost <= NODE_BYTES
    }

    /// Puts an entry in place `index`; the caller has asked for room.
    pub fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        let cell = CELL_HEAD + key.len() + value.len();
        if HEADER + (self.count + 1) * SLOT + cell > self.floor {
            self.compact();
        }
        let at = self.floor - cell;
        self.set_number(at, key.len());
        self.set_number(at + 2, value.len());
        self.page[at + CELL_HEAD..at + CELL_HEAD + key.len()].copy_from_slice(key);
        self.page[at + CELL_HEAD + key.len()..at + cell].copy_from_slice(value);
        self.floor = at;
        let slots = HEADER + index * SLOT..HEADER + self.count * SLOT;
        self.page.copy_within(slots, HEADER + (index + 1) * SLOT);
        self.set_number(HEADER + index * SLOT, at);
        self.count += 1;
    }

    /// Removes an entry from the leaf.
    pub fn remove(&mut self, index: usize) {
        let at = self.slot(index);
        self.garbage += CELL_HEAD + self.number(at) + self.number(at + 2);
        self.page.copy_within(HEADER + (index + 1) * SLOT..HEADER + self.count * SLOT, HEADER + index * SLOT);
        self.count -= 1;
    }

    /// Moves all cells to the end of the page; what was removed is overwritten.
    pub fn compact(&mut self) {
        let mut fresh = Leaf::new();
        for (index, (key, value)) in self.entries().enumerate() {
            let cell = CELL_HEAD + key.len() + value.len();
            let at = fresh.floor - cell;
            fresh.set_number(at, key.len());
            fresh.set_number(at + 2, value.len());
            fresh.page[at + CELL_HEAD..at + CELL_HEAD + key.len()].copy_from_slice(key);
            fresh.page[at + CELL_HEAD + key.len()..at + cell].copy_from_slice(value);
            fresh.floor = at;
            fresh.set_number(HEADER + index * SLOT, at);
            fresh.count += 1;
        }
        *self = fresh;
    }

    /// The page without what was removed; its header is the caller's.
    pub fn page(&self) -> Box<[u8]> {
        let mut clean = self.clone();
        clean.compact();
        clean.page
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn entries_may_lie_anywhere_but_not_in_each_other() {
        let mut leaf = Leaf::new();
        leaf.insert(0, b"a", &[0; 100]);
        leaf.insert(1, b"b", b"value");
        leaf.insert(2, b"c", b"more");
        leaf.remove(1);
        // With a gap where the second was.
        let (page, (a, c)) = (leaf.page.clone(), (leaf.slot(0), leaf.slot(1)));
        assert_eq!(Leaf::parse(page.clone(), 2).map(|leaf| (leaf.garbage, leaf.bytes())).ok(), Some((leaf.garbage, leaf.bytes())));
        let moved = |at: usize| {
            let mut page = page.clone();
            page.copy_within(c..c + CELL_HEAD + 5, at);
            page[HEADER + SLOT..HEADER + 2 * SLOT].copy_from_slice(&u16::try_from(at).expect("in the page").to_le_bytes());
            Leaf::parse(page, 2).map(drop)
        };
        assert_eq!(moved(a - 9), Ok(()), "where the removed one was");
        assert_eq!(moved(a - 8), Err(DamagedNodeError("an entry ends outside its leaf")), "its first byte is the first one's length now");
        assert_eq!(moved(a + 20), Err(DamagedNodeError("entries of a leaf overlap")));
    }
}
