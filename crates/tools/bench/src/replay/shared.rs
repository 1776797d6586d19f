//! The page cache in shared memory, used by one process.

use std::sync::Arc;

use pagecache::{FileNo, Inserted, Marks, Name, Page, Shape, SharedPages};
use pagecache::{PAGE_BYTES, PageIndex};
use shm::{PageSize, ProcessSlots, Region};

use super::Cache;

/// Content of every page: irrelevant here.
const BYTES: Page = [0; PAGE_BYTES];

/// [`SharedPages`] in private memory. All pages are of one file. The shape determines the number of frames.
#[derive(Debug)]
pub struct Shared(SharedPages);

impl Shared {
    /// Creates a cache of this shape.
    ///
    /// # Errors
    /// No memory.
    pub fn new(shape: &Shape, seed: u64) -> anyhow::Result<Shared> {
        let (processes_at, bytes) = (SharedPages::bytes(shape).next_multiple_of(PAGE_BYTES), SharedPages::bytes(shape));
        let region = Arc::new(Region::private(processes_at + ProcessSlots::BYTES, PageSize::Small)?);
        SharedPages::format(&region, 0, shape, seed);
        let processes = Arc::new(ProcessSlots::in_process(region.clone(), processes_at));
        let me = processes.attach()?;
        Ok(Shared(SharedPages::attach(&region, 0, bytes, &processes, me)?))
    }
}

impl Cache for Shared {
    fn access(&mut self, page: u64) -> bool {
        let name = Name { file: FileNo(1), page: PageIndex(page) };
        let ticket = self.0.ticket(name);
        if self.0.read(name, 0, &mut []) {
            return true;
        }
        // Nothing is marked or pinned and there is no other user: the insertion succeeds.
        let inserted = self.0.insert(name, &BYTES, Marks::NONE, ticket, 0);
        debug_assert_eq!(inserted, Inserted::Done);
        false
    }
}
