//! Pages of the device for recovery: read many at once, and cached for a limited time.

use std::collections::BTreeMap;

use crate::units::{DevicePage, PAGE_BYTES, Page};

/// Most pages that are kept: 16 MiB.
pub(crate) const KEPT: usize = 4096;
/// Pages requested at once.
pub(crate) const AT_ONCE: usize = 256;

pub(crate) struct Reader<R> {
    read: R,
    kept: BTreeMap<u64, Box<Page>>,
    /// The page read last.
    pub(crate) buffer: Page,
    /// Pages asked for.
    pub(crate) reads: u64,
}

impl<R: FnMut(&[DevicePage], &mut dyn FnMut(usize, &Page))> Reader<R> {
    pub(crate) fn new(read: R) -> Reader<R> {
        Reader { read, kept: BTreeMap::new(), buffer: [0; PAGE_BYTES], reads: 0 }
    }

    /// Reads those that are not kept.
    pub(crate) fn fetch(&mut self, wanted: impl Iterator<Item = DevicePage>) {
        let kept = &mut self.kept;
        if kept.len() > KEPT {
            kept.clear();
        }
        let wanted: Vec<DevicePage> = wanted.filter(|at| !kept.contains_key(&at.0)).collect();
        for wanted in wanted.chunks(AT_ONCE) {
            self.reads += wanted.len() as u64;
            (self.read)(wanted, &mut |n, bytes| {
                if let Some(at) = wanted.get(n) {
                    kept.insert(at.0, Box::new(*bytes));
                }
            });
        }
    }

    /// Into the buffer.
    pub(crate) fn read(&mut self, at: DevicePage) -> bool {
        self.fetch(std::iter::once(at));
        let page = self.kept.get(&at.0);
        page.inspect(|page| self.buffer = ***page).is_some()
    }

    pub(crate) fn has(&self, at: DevicePage) -> bool {
        self.kept.contains_key(&at.0)
    }

    pub(crate) fn forget(&mut self) {
        self.kept.clear();
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }
}
