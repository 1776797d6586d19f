//! A model of flash with eight channels: each serves its stripes of 64 KiB in order of arrival.

use block::{Geometry, Op, Request};

use crate::model::Mechanics;

const CHANNELS: usize = 8;
const STRIPE: u64 = 64 << 10;

/// A read occupies its channel for 60 microseconds plus 2.5 ns per byte, a write for 5 microseconds plus 10 ns per byte. Together
/// the
/// channels transfer 3.2 and 0.8 GB/s.
#[derive(Default)]
pub struct Flash {
    free_at: [u64; CHANNELS],
}

/// Returns the geometry of the flash: 512 GiB.
pub fn geometry() -> Geometry {
    Geometry::plain(512, 1 << 30)
}

impl Mechanics for Flash {
    fn serve(&mut self, queued: &[(Request, u64)], now: u64) -> Option<(usize, u64)> {
        let (request, _) = queued.first()?;
        let (mut at, end) = (request.lba.0 * 512, (request.lba.0 + u64::from(request.blocks)) * 512);
        let mut ends = now + 10_000;
        while at < end {
            let bytes = (STRIPE - at % STRIPE).min(end - at);
            let free_at = &mut self.free_at[usize::try_from(at / STRIPE).expect("small") % CHANNELS];
            let busy = if request.op == Op::Read { 60_000 + bytes * 5 / 2 } else { 5_000 + bytes * 10 };
            *free_at = now.max(*free_at) + busy;
            ends = ends.max(*free_at);
            at += bytes;
        }
        Some((0, ends))
    }
}
