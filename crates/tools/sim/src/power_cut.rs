//! Disks as a power cut may leave them.

use std::cmp::Ordering;

use crate::disk_log::{DiskEvent, DiskIndex};

/// The unit that a disk writes atomically, in bytes.
pub const SECTOR: usize = 512;

/// How much of the unflushed data reached the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLoss {
    /// Nothing: the cache was lost.
    Lost,
    /// Everything: the power cut came late.
    Kept,
    /// A prefix of the writes; the last one is torn.
    Prefix,
    /// Any subset of the writes, some of them torn.
    Any,
}

impl CacheLoss {
    /// Returns, for each of `writes` in order, the share of its sectors that arrives.
    pub fn shares(self, writes: usize, rng: &mut fastrand::Rng) -> Vec<f64> {
        let torn = 0.5;
        match self {
            CacheLoss::Lost => vec![0.0; writes],
            CacheLoss::Kept => vec![1.0; writes],
            CacheLoss::Prefix => {
                let whole = rng.usize(0..=writes);
                (0..writes)
                    .map(|n| match n.cmp(&whole) {
                        Ordering::Less => 1.0,
                        Ordering::Equal => torn,
                        Ordering::Greater => 0.0,
                    })
                    .collect()
            }
            CacheLoss::Any => {
                let share = rng.f64();
                let arrives = |rng: &mut fastrand::Rng| if rng.u8(0..8) == 0 { torn } else { 1.0 };
                (0..writes).map(|_| if rng.f64() < share { arrives(rng) } else { 0.0 }).collect()
            }
        }
    }
}

/// Walks a log once and returns the disks as a power cut at a position may leave them.
pub struct PowerCut<'a> {
    events: &'a [DiskEvent],
    at: usize,
    /// The durable content.
    media: Vec<Vec<u8>>,
    /// Writes since the last flush, by disk.
    pending: Vec<Vec<usize>>,
}

impl<'a> PowerCut<'a> {
    /// Starts at the beginning of the log. `media`: the disks at that time.
    pub fn new(events: &'a [DiskEvent], media: Vec<Vec<u8>>) -> PowerCut<'a> {
        let pending = vec![Vec::new(); media.len()];
        PowerCut { events, at: 0, media, pending }
    }

    /// Advances to the position before event `at`, which must not decrease.
    pub fn advance(&mut self, at: usize) {
        assert!(self.at <= at && at <= self.events.len(), "a log is gone through once");
        while self.at < at {
            match &self.events[self.at] {
                DiskEvent::Write { disk, .. } => self.pending[*disk].push(self.at),
                DiskEvent::Flush { disk } => {
                    for write in std::mem::take(&mut self.pending[*disk]) {
                        let (_, offset, data) = write_at(self.events, write);
                        self.media[*disk][offset..offset + data.len()].copy_from_slice(data);
                    }
                }
                DiskEvent::DurabilityMark(_) => {}
            }
            self.at += 1;
        }
    }

    /// Returns the disks after a power cut here.
    pub fn disks(&self, cache: CacheLoss, rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
        let mut disks = self.media.clone();
        for (disk, pending) in self.pending.iter().enumerate() {
            for (write, share) in pending.iter().zip(cache.shares(pending.len(), rng)) {
                self.apply(&mut disks[disk], *write, share, rng);
            }
        }
        disks
    }

    /// Applies a write. `share`: the share of its sectors that arrives.
    fn apply(&self, disk: &mut [u8], write: usize, share: f64, rng: &mut fastrand::Rng) {
        let (_, offset, data) = write_at(self.events, write);
        for (n, sector) in data.chunks(SECTOR).enumerate() {
            if rng.f64() < share {
                let at = offset + n * SECTOR;
                disk[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
}

fn write_at(events: &[DiskEvent], at: usize) -> (DiskIndex, usize, &[u8]) {
    match &events[at] {
        DiskEvent::Write { disk, offset, data } => (*disk, *offset as usize, data),
        other => unreachable!("{other:?} is no write"),
    }
}

#[cfg(test)]
mod test {
    use std::collections::HashSet;

    use super::*;

    fn write(disk: DiskIndex, sector: u64, value: u8, sectors: usize) -> DiskEvent {
        DiskEvent::Write { disk, offset: sector * SECTOR as u64, data: vec![value; sectors * SECTOR].into() }
    }

    fn first_bytes(disk: &[u8]) -> Vec<u8> {
        disk.chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn what_was_flushed_is_always_there_and_what_was_not_may_be() {
        let events = [write(0, 0, 1, 2), write(1, 0, 1, 1), DiskEvent::Flush { disk: 0 }, write(0, 1, 2, 2), write(0, 3, 3, 1)];
        let mut cut = PowerCut::new(&events, vec![vec![0; 4 * SECTOR], vec![0; SECTOR]]);
        cut.advance(events.len());
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(first_bytes(&cut.disks(CacheLoss::Lost, &mut rng)[0]), [1, 1, 0, 0]);
        assert_eq!(first_bytes(&cut.disks(CacheLoss::Kept, &mut rng)[0]), [1, 2, 2, 3]);
        let mut seen = HashSet::new();
        for _ in 0..5000 {
            let disks = cut.disks(CacheLoss::Any, &mut rng);
            let bytes = first_bytes(&disks[0]);
            assert!(bytes[0] == 1 && [1, 2].contains(&bytes[1]) && [0, 2].contains(&bytes[2]) && [0, 3].contains(&bytes[3]));
            seen.insert((bytes, disks[1][0]));
        }
        assert_eq!(seen.len(), 16, "every mixture comes up");
    }
}
