//! What the kernel may have cached of open files, which all open handles of a file share.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::direct_writes::{DirectWrites, KernelCacheState};

/// The states of all open files, by inode number, with the number of open handles.
#[derive(Default)]
pub struct KernelPages(Mutex<HashMap<u64, (usize, Arc<KernelCacheState>)>>);

/// The state of one open file; the last handle removes it.
pub struct OpenFilePages {
    number: u64,
    state: Arc<KernelCacheState>,
    all: Arc<KernelPages>,
}

impl KernelPages {
    /// Returns the state of a file that is opened.
    pub fn open(self: &Arc<Self>, number: u64, direct_writes: &DirectWrites) -> OpenFilePages {
        let mut open_files = self.0.lock();
        let (handles, state) = open_files.entry(number).or_insert_with(|| (0, direct_writes.cached()));
        *handles += 1;
        OpenFilePages { number, state: Arc::clone(state), all: Arc::clone(self) }
    }

    /// Returns whether a file is open.
    pub fn is_open(&self, number: u64) -> bool {
        self.0.lock().contains_key(&number)
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
        let mut open_files = self.all.0.lock();
        if let Some((handles, _)) = open_files.get_mut(&self.number) {
            *handles -= 1;
            if *handles == 0 {
                open_files.remove(&self.number);
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
    }
}
