//! Completions that wait to be polled: a ring of fixed size.

use crate::request::Completion;

/// A first-in, first-out ring with a fixed capacity.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    entries: Box<[Completion]>,
    first: usize,
    len: usize,
}

impl CompletionRing {
    /// Creates a ring for at least `depth` completions.
    pub(crate) fn new(depth: u32) -> CompletionRing {
        CompletionRing { entries: vec![Completion::EMPTY; (depth as usize).next_power_of_two()].into(), first: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, completion: Completion) {
        assert!(self.len < self.entries.len(), "more completions than requests");
        let at = (self.first + self.len) & (self.entries.len() - 1);
        self.entries[at] = completion;
        self.len += 1;
    }

    /// Moves as many completions as fit into `to`, and returns their number.
    pub(crate) fn take(&mut self, to: &mut [Completion]) -> usize {
        let count = self.len.min(to.len());
        for place in &mut to[..count] {
            *place = self.entries[self.first];
            self.first = (self.first + 1) & (self.entries.len() - 1);
        }
        self.len -= count;
        count
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}
