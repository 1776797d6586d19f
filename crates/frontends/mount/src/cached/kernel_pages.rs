//! What the kernel may have cached of open files, which all open handles of a file share.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::direct_writes::{DirectWrites, KernelCacheState};

/// The states of all files that are open or read from the cache alone, by inode number.
#[derive(Default)]
pub struct KernelPages(Mutex<HashMap<u64, Shared>>);

/// What the handles of one file share.
struct Shared {
    state: Arc<KernelCacheState>,
    /// How many handles there are.
    handles: usize,
    /// How many of them have the file open on the slow side.
    opened: usize,
}

/// The state of one file; the last handle removes it.
pub struct OpenFilePages {
    number: u64,
    is_opened: bool,
    state: Arc<KernelCacheState>,
    all: Arc<KernelPages>,
}

impl KernelPages {
    /// Returns the state of a file that is opened.
    pub fn open(self: &Arc<Self>, number: u64, direct_writes: &DirectWrites) -> OpenFilePages {
        self.add(number, direct_writes, true)
    }

    /// Returns the state of a file that is read from the cache alone.
    pub fn read_unopened(self: &Arc<Self>, number: u64, direct_writes: &DirectWrites) -> OpenFilePages {
        self.add(number, direct_writes, false)
    }

    fn add(self: &Arc<Self>, number: u64, direct_writes: &DirectWrites, is_opened: bool) -> OpenFilePages {
        let mut files = self.0.lock();
        let shared = files.entry(number).or_insert_with(|| Shared { state: direct_writes.cached(), handles: 0, opened: 0 });
        shared.handles += 1;
        shared.opened += usize::from(is_opened);
        OpenFilePages { number, is_opened, state: Arc::clone(&shared.state), all: Arc::clone(self) }
    }

    /// Returns whether a file is open on the slow side.
    pub fn is_open(&self, number: u64) -> bool {
        self.0.lock().get(&number).is_some_and(|shared| shared.opened > 0)
    }
}

impl Deref for OpenFilePages {
    type Target = KernelCacheState;

    fn deref(&self) -> &KernelCacheState {
        &self.state
    }
}

impl Drop for OpenFilePages {
    fn drop(&mut self) {
        let mut files = self.all.0.lock();
        if let Some(shared) = files.get_mut(&self.number) {
            shared.handles -= 1;
            shared.opened -= usize::from(self.is_opened);
            if shared.handles == 0 {
                files.remove(&self.number);
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn handles_of_a_file_share_a_state_that_the_last_one_removes() {
        let (pages, writes) = (Arc::<KernelPages>::default(), DirectWrites::default());
        let (first, second, other) = (pages.open(7, &writes), pages.open(7, &writes), pages.open(8, &writes));
        assert!(Arc::ptr_eq(&first.state, &second.state) && !Arc::ptr_eq(&first.state, &other.state));
        drop(first);
        assert!(pages.is_open(7));
        drop(second);
        assert!(!pages.is_open(7) && pages.is_open(8));
        let unopened = pages.read_unopened(8, &writes);
        assert!(Arc::ptr_eq(&unopened.state, &other.state));
        drop(other);
        assert!(!pages.is_open(8) && Arc::ptr_eq(&unopened.state, &pages.open(8, &writes).state));
    }
}
