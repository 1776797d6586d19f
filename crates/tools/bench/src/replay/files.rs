//! The replacement policies of files on the SSD, with one page a file.

use policy::{FileId, Ghost, Policy, Record};

use super::Cache;

/// A file policy with room for a number of files of one size. Without the second-touch filter, every miss is admitted. The ghosts that
/// `s3-fifo` leaves to its caller are the last evicted files, nine tenths of the capacity.
pub struct Files {
    policy: Box<dyn Policy>,
    ghost: Option<Ghost>,
    room: usize,
    now_s: u32,
}

impl Files {
    /// Creates a cache with the policy of this name.
    ///
    /// # Errors
    /// There is no policy of that name.
    pub fn new(name: &str, room: u32) -> anyhow::Result<Files> {
        let ghost = (name == "s3-fifo").then(|| Ghost::new(room as usize - room as usize / 10, u32::MAX));
        Ok(Files { policy: policy::by_name(name)?, ghost, room: room as usize, now_s: 0 })
    }
}

impl Cache for Files {
    fn access(&mut self, page: u64) -> bool {
        self.now_s = self.now_s.saturating_add(1);
        let file = FileId(page);
        if self.policy.record(file).is_some() {
            self.policy.touch(file, self.now_s);
            return true;
        }
        while self.policy.len() >= self.room {
            let Some(victim) = self.policy.victim(1, &mut |_| true) else { break };
            self.policy.remove(victim);
            if let Some(ghost) = &mut self.ghost {
                ghost.touch(victim, self.now_s);
            }
        }
        let was_here = self.ghost.as_mut().is_some_and(|ghost| {
            let seen = ghost.seen(file).is_some();
            ghost.forget(file);
            seen
        });
        self.policy.insert(Record { file, size: 1, last_open_s: self.now_s, opens: 1 + u16::from(was_here) });
        false
    }
}
