//! The geometry of a device, and the check of requests against it.

use crate::buffer::Span;
use crate::error::Error;
use crate::request::{Op, Request};

/// The properties of a device that limit its requests. They do not change while it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The size of a block in bytes: a power of two, 512 or more.
    pub block_bytes: u32,
    /// The number of blocks of the device.
    pub blocks: u64,
    /// The most bytes of one read or write.
    pub transfer_bytes_max: u32,
    /// The most pieces of memory of one read or write.
    pub segments_max: u16,
    /// The alignment of pieces of memory and of their lengths, in bytes: a power of two.
    pub memory_align: u32,
    /// Whether the device has a cache that loses data without power: a write is safe only after a flush, or with `fua`.
    pub volatile_cache: bool,
    /// Whether the device cannot be written.
    pub read_only: bool,
    /// Whether the device supports [`Op::Discard`].
    pub discard: bool,
    /// Whether the device supports [`Op::WriteZeroes`].
    pub write_zeroes: bool,
}

impl Geometry {
    /// Returns the geometry of a device of this size with generous limits.
    pub fn plain(block_bytes: u32, blocks: u64) -> Geometry {
        Geometry {
            block_bytes,
            blocks,
            transfer_bytes_max: 1 << 20,
            segments_max: 256,
            memory_align: 4,
            volatile_cache: false,
            read_only: false,
            discard: true,
            write_zeroes: true,
        }
    }

    /// Returns the size of the device in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }

    /// Checks that the device can execute this request.
    ///
    /// # Errors
    /// The error that the completion would report.
    pub fn check(&self, request: &Request, data: &[Span]) -> Result<(), Error> {
        match request.op {
            Op::Flush => return if data.is_empty() { Ok(()) } else { Err(Error::Misaligned) },
            Op::Discard if !self.discard => return Err(Error::Unsupported),
            Op::WriteZeroes if !self.write_zeroes => return Err(Error::Unsupported),
            _ => {}
        }
        if self.read_only && request.op.writes() {
            return Err(Error::ReadOnly);
        }
        let end = request.lba.0.checked_add(u64::from(request.blocks));
        if request.blocks == 0 || end.is_none_or(|end| end > self.blocks) {
            return Err(Error::OutOfRange);
        }
        if request.op.has_data() { self.check_data(request, data) } else { Ok(()) }
    }

    /// Returns whether `check` would accept a read or write of one piece of memory, in few instructions. If false, call `check`.
    #[inline(always)]
    pub(crate) fn takes_one(&self, request: &Request, span: Span) -> bool {
        let (at, bytes) = (span.at, u64::from(span.bytes));
        request.op.has_data()
            && !(self.read_only && request.op == Op::Write)
            && bytes == u64::from(request.blocks) * u64::from(self.block_bytes)
            && (at | bytes) & u64::from(self.memory_align - 1) == 0
            && (1..=self.transfer_bytes_max).contains(&span.bytes)
            && request.lba.0 <= self.blocks
            && u64::from(request.blocks) <= self.blocks - request.lba.0
    }

    fn check_data(&self, request: &Request, data: &[Span]) -> Result<(), Error> {
        let mut bytes = 0;
        for span in data {
            if (span.at | u64::from(span.bytes)) & u64::from(self.memory_align - 1) != 0 {
                return Err(Error::Misaligned);
            }
            bytes += u64::from(span.bytes);
        }
        let wanted = u64::from(request.blocks) * u64::from(self.block_bytes);
        let fits = bytes == wanted && wanted <= u64::from(self.transfer_bytes_max) && data.len() <= usize::from(self.segments_max);
        if fits { Ok(()) } else { Err(Error::Misaligned) }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::buffer::Arena;
    use crate::units::{Lba, Tag};

    #[test]
    fn what_does_not_fit_is_reported_with_its_reason() {
        let arena = Arena::private(65_536).expect("memory");
        let geometry = Geometry { transfer_bytes_max: 8192, memory_align: 512, segments_max: 2, ..Geometry::plain(512, 100) };
        let check = |request: Request, data: &[Span]| geometry.check(&request, data);
        let span = |at, bytes| arena.span(at, bytes);
        let read = |lba, blocks| Request::read(Tag(1), Lba(lba), blocks);
        assert_eq!(check(read(99, 1), &[span(0, 512)]), Ok(()));
        assert_eq!(check(read(99, 2), &[span(0, 1024)]), Err(Error::OutOfRange));
        assert_eq!(check(read(u64::MAX, 1), &[span(0, 512)]), Err(Error::OutOfRange));
        assert_eq!(check(read(0, 0), &[]), Err(Error::OutOfRange));
        assert_eq!(check(read(0, 1), &[span(4, 512)]), Err(Error::Misaligned));
        assert_eq!(check(read(0, 2), &[span(0, 512)]), Err(Error::Misaligned), "memory for one block only");
        assert_eq!(check(read(0, 17), &[span(0, 8704)]), Err(Error::Misaligned), "more than one transfer");
        assert_eq!(check(read(0, 3), &[span(0, 512), span(512, 512), span(1024, 512)]), Err(Error::Misaligned), "three pieces");
        assert_eq!(check(Request::flush(Tag(1)), &[]), Ok(()));
        let frozen = Geometry { read_only: true, discard: false, ..geometry.clone() };
        assert_eq!(frozen.check(&Request::write(Tag(1), Lba(0), 1), &[span(0, 512)]), Err(Error::ReadOnly));
        assert_eq!(frozen.check(&Request::discard(Tag(1), Lba(0), 1), &[]), Err(Error::Unsupported));
    }

    #[test]
    fn the_short_check_lets_through_what_the_long_one_does() {
        let arena = Arena::private(65_536).expect("memory");
        let writable = Geometry { transfer_bytes_max: 8192, memory_align: 512, ..Geometry::plain(512, 100) };
        let frozen = Geometry { read_only: true, ..writable.clone() };
        let mut through = 0;
        for (lba, blocks) in
            [0, 1, 83, 99, 100, 101, u64::MAX].into_iter().flat_map(|lba| [0, 1, 2, 16, 17].map(|blocks| (Lba(lba), blocks)))
        {
            for (at, bytes) in [0, 4, 512].into_iter().flat_map(|at| [0, 512, 1024, 8192, 8704].map(|bytes| (at, bytes))) {
                let span = arena.span(at, bytes);
                for request in [Request::read(Tag(1), lba, blocks), Request::write(Tag(1), lba, blocks)] {
                    for geometry in [&writable, &frozen] {
                        let long = geometry.check(&request, &[span]);
                        assert_eq!(geometry.takes_one(&request, span), long.is_ok(), "{request:?} {span:?}: {long:?}");
                        through += u32::from(long.is_ok());
                    }
                }
                assert!(!writable.takes_one(&Request::discard(Tag(1), lba, blocks), span));
            }
        }
        assert!(through > 20, "{through}");
    }
}
