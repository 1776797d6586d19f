//! A model of a disk with 7200 rpm and without caches: one arm, seek by distance, rotation by angle, transfer by length.

use block::{Geometry, Op, Request};

use crate::model::Mechanics;

const TURN_NS: f64 = 60e9 / 7200.0;
const BYTES_OF_TRACK: f64 = 1_250_000.0;
const COMMAND_NS: u64 = 100_000;

/// A seek takes 1 ms plus 14 ms times the square root of the crossed fraction of the disk: 8.5 ms on average. A command costs 0.1 ms
/// before the arm moves, unless it was queued in the drive while another was served. The transfer rate is 150 MB/s. A drive that
/// reorders serves a request first once it has waited half a second.
pub struct Disk {
    /// Whether the drive reorders its queued requests.
    pub reorders: bool,
    head: u64,
    ends: u64,
}

/// Returns the geometry of the disk: 1 TiB.
pub fn geometry() -> Geometry {
    Geometry::plain(512, 2 << 30)
}

impl Disk {
    /// Makes a drive that serves requests in order, or those that it reaches first (native command queueing).
    pub fn new(reorders: bool) -> Disk {
        Disk { reorders, head: 0, ends: 0 }
    }

    fn begin(&self, arrived: u64) -> u64 {
        if arrived + COMMAND_NS < self.ends { self.ends } else { self.ends.max(arrived + COMMAND_NS) }
    }

    /// Returns when the first block is under the head.
    fn positioned(&self, request: &Request, arrived: u64) -> u64 {
        let distance = request.lba.0.abs_diff(self.head) as f64 / geometry().blocks as f64;
        let seek = if distance == 0.0 { 0.0 } else { 1e6 + 14e6 * distance.sqrt() };
        let there = self.begin(arrived) as f64 + seek;
        let angle = request.lba.0 as f64 * 512.0 / BYTES_OF_TRACK;
        // Rounding by a nanosecond must not cost a whole rotation.
        let turn = (angle - (there - 1.0) / TURN_NS).rem_euclid(1.0) * TURN_NS;
        (there + turn) as u64
    }
}

impl Mechanics for Disk {
    fn serve(&mut self, queued: &[(Request, u64)], now: u64) -> Option<(usize, u64)> {
        if queued.is_empty() || self.ends > now {
            return None;
        }
        let reached = |at: &usize| self.positioned(&queued[*at].0, queued[*at].1);
        let old = now.saturating_sub(queued[0].1) > 500_000_000;
        let at = if self.reorders && !old { (0..queued.len()).min_by_key(reached)? } else { 0 };
        let (request, arrived) = &queued[at];
        let bytes = if request.op == Op::Flush { 0.0 } else { f64::from(request.blocks) * 512.0 };
        self.ends = self.positioned(request, *arrived) + (bytes / BYTES_OF_TRACK * TURN_NS) as u64;
        self.head = request.lba.0 + u64::from(request.blocks);
        Some((at, self.ends))
    }
}
