//! A disk of 7200 turns a minute, without caches: one arm, seek by distance, rotation by angle, transfer by length.

use block::{Geometry, Op, Request};

use crate::model::Mechanics;

const TURN_NS: f64 = 60e9 / 7200.0;
const BYTES_OF_TRACK: f64 = 1_250_000.0;
const COMMAND_NS: u64 = 100_000;

/// Seeks take 1 ms and 14 ms times the root of the part of the disk that is crossed: 8.5 ms on average. A command costs
/// 0.1 ms before the arm moves, unless it was in the drive's queue while another was served. 150 MB/s. What a drive that
/// reorders has had for half a second goes first.
pub struct Disk {
    pub reorders: bool,
    head: u64,
    ends: u64,
}

pub fn geometry() -> Geometry {
    Geometry::plain(512, 2 << 30)
}

impl Disk {
    /// A drive that serves what it has in order, or what it reaches first (native command queueing).
    pub fn new(reorders: bool) -> Disk {
        Disk { reorders, head: 0, ends: 0 }
    }

    fn begin(&self, arrived: u64) -> u64 {
        if arrived + COMMAND_NS < self.ends { self.ends } else { self.ends.max(arrived + COMMAND_NS) }
    }

    /// When the first block is under the head.
    fn positioned(&self, request: &Request, arrived: u64) -> u64 {
        let distance = request.lba.0.abs_diff(self.head) as f64 / geometry().blocks as f64;
        let seek = if distance == 0.0 { 0.0 } else { 1e6 + 14e6 * distance.sqrt() };
        let there = self.begin(arrived) as f64 + seek;
        let angle = request.lba.0 as f64 * 512.0 / BYTES_OF_TRACK;
        // A nanosecond early is not a turn late.
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
