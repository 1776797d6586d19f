//! Identifiers of commands: the slot, and in the bits above the slot's generation. So a late, duplicate or stray completion entry does
//! not complete another command.

/// The split of the 16 bits between slot and generation, by the number of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cids {
    bits: u32,
}

impl Cids {
    /// Creates identifiers for 1 to 4095 slots. No identifier is all ones: some controllers take that for "no command".
    pub(crate) fn new(slots: usize) -> Cids {
        assert!((1..4096).contains(&slots), "{slots} slots");
        Cids { bits: usize::BITS - slots.leading_zeros() }
    }

    #[inline]
    pub(crate) fn make(self, slot: usize, generation: u16) -> u16 {
        slot as u16 | generation << self.bits
    }

    #[inline]
    pub(crate) fn slot(self, cid: u16) -> usize {
        usize::from(cid & ((1 << self.bits) - 1))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn no_slot_has_all_ones_and_generations_differ() {
        for slots in [1, 2, 3, 4, 31, 32, 127, 128, 4095] {
            let cids = Cids::new(slots);
            for slot in [0, slots / 2, slots - 1] {
                let all: Vec<u16> = (0..8).map(|generation| cids.make(slot, generation)).collect();
                assert!(all.iter().all(|cid| *cid != u16::MAX && cids.slot(*cid) == slot));
                assert!((1..8).all(|at| all[at] != all[at - 1]), "{slots} slots");
            }
            let step = if cfg!(miri) { 1021 } else { 1 };
            assert!((0..=u16::MAX).step_by(step).all(|generation| cids.make(slots - 1, generation) != u16::MAX));
        }
    }
}
