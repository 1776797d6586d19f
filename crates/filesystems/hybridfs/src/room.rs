//! Room for a write that found its side full.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;

use crate::errno::Result;
use crate::moves::job::{MoveOutcome, MoveReason};
use crate::open::FileHandle;
use crate::pair::TieredFs;
use crate::report::TierName;

/// How often a writer that waits for room tries to move its file, which others use meanwhile: some 20 seconds.
const MOVE_TRIES: u32 = 200;

impl TieredFs {
    /// Waits until a write to this file can go on: other files are demoted, or this one is.
    pub(crate) fn make_room(&self, handle: &FileHandle, need: u64) -> Result<()> {
        let inode = &handle.inode;
        let _ = self.space.refresh(self.tiers(), &self.config);
        let (tier, file) = inode.any_fd();
        let size = self.tier(tier).stat_fd(file.as_fd())?.size;
        if tier == TierName::Hdd {
            return self.leave_full_hdd(inode.ino, size, need);
        }
        if self.space.fits_ssd(need) {
            return Ok(());
        }
        // Small files wait for colder ones to leave; a large one is what fills the SSD.
        if size < self.space.of(TierName::Ssd).capacity / 16 && self.others_leave(need) {
            return Ok(());
        }
        let failed_lately = self.mover.why_it_rests(inode.ino).is_some();
        let outcome = if failed_lately { MoveOutcome::Dropped } else { self.move_waiting(inode.ino, TierName::Hdd) };
        match outcome {
            MoveOutcome::Done | MoveOutcome::Already => Ok(()),
            // It cannot go there, but others can.
            _ if self.others_leave(need) => Ok(()),
            MoveOutcome::Failed(error) => Err(error),
            _ => Err(Errno::NOSPC),
        }
    }

    /// Waits for other files to be demoted, as long as some are.
    fn others_leave(&self, need: u64) -> bool {
        self.mover.wake();
        for _ in 0..50 {
            self.mover.wait_for_any(Duration::from_millis(100));
            let _ = self.space.refresh(self.tiers(), &self.config);
            if self.space.fits_ssd(need) {
                return true;
            }
            if self.mover.running().is_empty() {
                break;
            }
        }
        false
    }

    fn leave_full_hdd(&self, ino: u64, size: u64, need: u64) -> Result<()> {
        if self.space.of(TierName::Hdd).free > need + (1 << 16) {
            return Ok(());
        }
        if self.space.fits_ssd(size.saturating_add(need)) && self.move_waiting(ino, TierName::Ssd) == MoveOutcome::Done {
            return Ok(());
        }
        Err(Errno::NOSPC)
    }

    fn move_waiting(&self, ino: u64, to: TierName) -> MoveOutcome {
        let mut tries = 0;
        loop {
            let outcome = self.move_file(ino, to, MoveReason::Full, &mut |_, _| true);
            let is_passing = matches!(outcome, MoveOutcome::Busy | MoveOutcome::Dropped) && !self.mover.stopping() && !self.in_place(ino);
            // A move that goes on ends by itself, however large the file and slow the disk.
            tries += u32::from(!self.mover.is_moving(ino));
            if !is_passing || tries > MOVE_TRIES {
                return outcome;
            }
            self.mover.wait_for_any(Duration::from_millis(100));
        }
    }

    fn in_place(&self, ino: u64) -> bool {
        self.opens.lock().get(&ino).is_some_and(|open| open.held_in_place())
    }
}
