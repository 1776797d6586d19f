//! Splits long requests into parts that the device accepts: by bytes per transfer, and by pieces of memory.

use super::io::Data;
use super::job::Cursor;
use crate::buffer::Span;
use crate::error::Error;
use crate::geometry::Geometry;
use crate::request::Op;

/// The limits of one transfer, rounded so that every part but the last is a multiple of the block size and the alignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) block_shift: u32,
    /// Parts end at multiples of this.
    unit_bytes: u64,
    transfer_bytes_max: u64,
    segments_max: usize,
}

impl Limits {
    pub(super) fn new(geometry: &Geometry) -> Limits {
        assert!(geometry.block_bytes.is_power_of_two() && geometry.memory_align.is_power_of_two(), "{geometry:?}");
        let unit_bytes = u64::from(geometry.block_bytes.max(geometry.memory_align));
        let transfer_bytes_max = u64::from(geometry.transfer_bytes_max) / unit_bytes * unit_bytes;
        assert!(transfer_bytes_max > 0 && geometry.segments_max > 0, "a device that takes nothing: {geometry:?}");
        Limits {
            block_shift: geometry.block_bytes.trailing_zeros(),
            unit_bytes,
            transfer_bytes_max,
            segments_max: usize::from(geometry.segments_max),
        }
    }

    /// Returns whether the request is a single transfer: one piece of memory (`single`), or an operation without data.
    #[inline]
    pub(super) fn is_one_part(&self, op: Op, blocks: u64, single: bool) -> bool {
        if op.has_data() { single && blocks << self.block_shift <= self.transfer_bytes_max } else { blocks <= u64::from(u32::MAX) }
    }

    /// Returns the blocks of the next part and the cursor after it, and stores the memory of the part in `spans`.
    ///
    /// # Errors
    /// The pieces of memory are too small: as many as the device accepts in one transfer do not make up a block.
    pub(super) fn next(&self, op: Op, blocks: u64, data: &Data, from: Cursor, spans: &mut Vec<Span>) -> Result<(u32, Cursor), Error> {
        spans.clear();
        let left = blocks - from.blocks;
        if !op.has_data() {
            let part = u32::try_from(left).unwrap_or(1 << 31);
            return Ok((part, Cursor { blocks: from.blocks + u64::from(part), ..from }));
        }
        let wanted = (left << self.block_shift).min(self.transfer_bytes_max);
        let mut bytes = self.gather(data, from, wanted, spans);
        if bytes < left << self.block_shift {
            let surplus = bytes % self.unit_bytes;
            trim(spans, surplus);
            bytes -= surplus;
        }
        if bytes == 0 {
            return Err(Error::Misaligned);
        }
        let part = u32::try_from(bytes >> self.block_shift).expect("no more than a transfer");
        let to = advance(data, from, bytes);
        Ok((part, Cursor { blocks: from.blocks + u64::from(part), ..to }))
    }

    /// Appends the pieces of the next `wanted` bytes, as many as the device accepts. Returns their total length in bytes.
    fn gather(&self, data: &Data, from: Cursor, wanted: u64, spans: &mut Vec<Span>) -> u64 {
        let (mut bytes, mut skip) = (0, from.bytes);
        for at in from.piece..data.len() {
            let piece = data.piece(at);
            let take = u64::from(piece.bytes - skip).min(wanted - bytes);
            if take > 0 {
                spans.push(piece.part(skip, u32::try_from(take).expect("a part of a piece")));
            }
            bytes += take;
            skip = 0;
            if bytes == wanted || spans.len() == self.segments_max {
                break;
            }
        }
        bytes
    }
}

/// Removes `surplus` bytes from the end.
fn trim(spans: &mut Vec<Span>, mut surplus: u64) {
    while surplus > 0 {
        let last = spans.last_mut().expect("as many bytes as were collected");
        if u64::from(last.bytes) > surplus {
            last.bytes -= u32::try_from(surplus).expect("less than a piece");
            return;
        }
        surplus -= u64::from(last.bytes);
        spans.pop();
    }
}

/// Returns the cursor `bytes` further on.
fn advance(data: &Data, from: Cursor, mut bytes: u64) -> Cursor {
    let mut to = from;
    while bytes > 0 {
        let rest = u64::from(data.piece(to.piece).bytes - to.bytes);
        if bytes < rest {
            to.bytes += u32::try_from(bytes).expect("less than a piece");
            return to;
        }
        bytes -= rest;
        to = Cursor { piece: to.piece + 1, bytes: 0, ..to };
    }
    to
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::buffer::Arena;
    use crate::request::Request;
    use crate::units::{Lba, Tag};

    /// Checks that every part passes the device's own check, and that the parts together are the whole request, in order.
    #[test]
    fn parts_fit_and_make_the_whole() {
        let arena = Arena::private(1 << 20).expect("memory");
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
            let geometry = Geometry {
                transfer_bytes_max: 4096 * random.u32(1..4) + 512 * random.u32(..8),
                segments_max: random.u16(1..5),
                memory_align: 1 << random.u32(2..=12),
                ..Geometry::plain(512, 1 << 20)
            };
            let unit = geometry.block_bytes.max(geometry.memory_align);
            let piece_unit = if random.bool() { unit } else { geometry.memory_align.max(256) };
            let mut pieces: Vec<Span> = (0..random.usize(1..9))
                .map(|n| arena.span(n * 65_536 + (unit as usize) * random.usize(..3), piece_unit * random.u32(1..9)))
                .collect();
            let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
            let odd = u32::try_from(bytes % u64::from(unit)).expect("small");
            if odd > 0 {
                pieces.push(arena.span(900_000 / 4096 * 4096, unit - odd));
            }
            check(&geometry, pieces);
        }
    }

    fn check(geometry: &Geometry, pieces: Vec<Span>) {
        let limits = Limits::new(geometry);
        let bytes = |spans: &[Span]| -> Vec<(u64, u32)> {
            let mut joined: Vec<(u64, u32)> = Vec::new();
            for span in spans {
                match joined.last_mut() {
                    Some((at, bytes)) if *at + u64::from(*bytes) == span.at => *bytes += span.bytes,
                    _ => joined.push((span.at, span.bytes)),
                }
            }
            joined
        };
        let data = Data::Spans(pieces.clone());
        let blocks = data.bytes() >> limits.block_shift;
        let (mut cursor, mut spans, mut all) = (Cursor::default(), Vec::new(), Vec::new());
        while cursor.blocks < blocks {
            match limits.next(Op::Read, blocks, &data, cursor, &mut spans) {
                Ok((part, next)) => {
                    let request = Request::read(Tag(0), Lba(cursor.blocks), part);
                    assert_eq!(geometry.check(&request, &spans), Ok(()), "{spans:?} of {geometry:?}");
                    all.extend_from_slice(&spans);
                    assert_eq!(next.blocks, cursor.blocks + u64::from(part));
                    cursor = next;
                }
                Err(_) => return assert!(spans.is_empty(), "given up though there were whole blocks"),
            }
        }
        assert_eq!(bytes(&all), bytes(&pieces));
    }
}
