//! Write-back and eviction around one access.
//!
//! A page is evicted when the access is done with it. Three things make that more than one call:
//! - *Edges.* A reader of lines reads a page in forty pieces; with little memory, too, it would read the page from the device once. So
//!   while accesses are sequential, the page they stopped in and the kernel's read-ahead stay. The next access elsewhere evicts both
//!   first.
//! - *Large folios.* The kernel keeps folios of up to 2 MiB and evicts only whole ones. So ranges start where such a folio would.
//! - *Other writers.* Pages that another process has just written are written back first.

use crate::byte_range::{ByteRange, drop_range, write_all, write_out};
use crate::files::{Direction, File, ResidualPages};
use crate::{sys, write_behind};

const PAGE: u64 = 4096;
/// Size of the largest folio.
const PIECE: u64 = 2 << 20;
/// More than the kernel's read-ahead on any device.
const AHEAD: u64 = 16 << 20;

/// Returns the range to evict after an access to `range`, given the end of the previous one, and what remains in memory.
fn after(direction: Direction, last: u64, range: ByteRange) -> (ByteRange, ResidualPages) {
    // Writes have no read-ahead and create no larger folio.
    let (piece, ahead) = if direction == Direction::Read { (PIECE, AHEAD) } else { (PAGE, PAGE - 1) };
    let from = range.from / piece * piece;
    if range.from == last {
        return (ByteRange { from, to: range.to / PAGE * PAGE }, ResidualPages::Behind);
    }
    (ByteRange { from, to: range.to.saturating_add(ahead) }, ResidualPages::InFlight)
}

/// Returns what sequential accesses up to `last` left in memory.
fn left_behind(direction: Direction, last: u64) -> ByteRange {
    let (piece, ahead) = if direction == Direction::Read { (PIECE, AHEAD) } else { (PAGE, PAGE) };
    ByteRange { from: last / piece * piece, to: last.saturating_add(ahead) }
}

/// Prepares an access at `at`: it must find no pages of earlier accesses, unless it continues them.
pub fn before(file: File, direction: Direction, at: u64) {
    let (last, left) = file.last(direction);
    if left == ResidualPages::Behind && at != last {
        drop_range(file.fd, left_behind(direction, last));
        file.set_last(direction, last, ResidualPages::InFlight);
    }
    let other = if direction == Direction::Read { Direction::Write } else { Direction::Read };
    if let (last, ResidualPages::Behind) = file.last(other) {
        drop_range(file.fd, page(last));
    }
}

/// Returns the page in which an access stopped.
fn page(last: u64) -> ByteRange {
    ByteRange { from: last / PAGE * PAGE, to: last.div_ceil(PAGE) * PAGE }
}

/// Finishes an access: written data is on the device, and its pages are evicted.
pub fn done(file: File, direction: Direction, range: ByteRange) {
    if range.from >= range.to {
        return;
    }
    if write_behind::is_on() {
        if direction == Direction::Write && write_behind::take(file, range) {
            file.set_last(direction, range.to, ResidualPages::Nothing);
            return;
        }
        // A read does not wait for writes in flight, as with little memory.
        if direction == Direction::Write {
            write_out(file, range);
        }
    } else {
        write_out(file, range);
    }
    let (last, before) = file.last(direction);
    let (gone, left) = after(direction, last, range);
    drop_range(file.fd, gone);
    if before == ResidualPages::InFlight && left == ResidualPages::InFlight {
        // The device completed this access after those reads.
        drop_range(file.fd, left_behind(direction, last));
    }
    file.set_last(direction, range.to, left);
}

/// Handles a read at the end of file: the read-ahead is no longer needed.
pub fn at_end(file: File) {
    let (last, left) = file.last(Direction::Read);
    if left != ResidualPages::Nothing {
        let _ = sys::drop_pages(file.fd, last / PIECE * PIECE, 0);
        file.set_last(Direction::Read, last, ResidualPages::Nothing);
    }
}

/// Evicts the whole file: when it is closed, truncated, or open at exit.
pub fn all(file: File) {
    if write_behind::is_on() {
        write_all(file);
    }
    let _ = sys::drop_pages(file.fd, 0, 0);
    for direction in [Direction::Read, Direction::Write] {
        file.set_last(direction, file.last(direction).0, ResidualPages::Nothing);
    }
}

/// Evicts the whole file, including data that may have been written unseen.
pub fn all_written(file: File) {
    write_all(file);
    all(file);
}

#[cfg(test)]
mod test {
    use super::{AHEAD, ByteRange, Direction, PIECE, ResidualPages, after, left_behind};

    fn range(from: u64, to: u64) -> ByteRange {
        ByteRange { from, to }
    }

    #[test]
    fn what_follows_keeps_the_page_it_stopped_in() {
        assert_eq!(after(Direction::Read, 0, range(0, 100)), (range(0, 0), ResidualPages::Behind));
        assert_eq!(after(Direction::Read, 4000, range(4000, 5000)), (range(0, 4096), ResidualPages::Behind));
        assert_eq!(
            after(Direction::Read, PIECE + 4096, range(PIECE + 4096, PIECE + 8192)),
            (range(PIECE, PIECE + 8192), ResidualPages::Behind)
        );
    }

    #[test]
    fn what_jumps_keeps_nothing() {
        assert_eq!(after(Direction::Read, 0, range(4096, 8192)), (range(0, 8192 + AHEAD), ResidualPages::InFlight));
        assert_eq!(after(Direction::Read, 7, range(PIECE - 1, PIECE + 1)), (range(0, PIECE + 1 + AHEAD), ResidualPages::InFlight));
        assert_eq!(after(Direction::Read, 7, range(u64::MAX - 10, u64::MAX)).0.from, u64::MAX / PIECE * PIECE);
    }

    #[test]
    fn a_write_drops_its_own_pages_alone() {
        assert_eq!(after(Direction::Write, 0, range(PIECE + 5000, PIECE + 9000)).0, range(PIECE + 4096, PIECE + 9000 + 4095));
        assert_eq!(after(Direction::Write, 5000, range(5000, 9000)), (range(4096, 8192), ResidualPages::Behind));
        assert_eq!(left_behind(Direction::Write, 9000), range(8192, 9000 + 4096));
    }

    #[test]
    fn what_is_left_behind_lies_around_the_last_end() {
        assert_eq!(left_behind(Direction::Read, 5 * PIECE + 3), range(5 * PIECE, 5 * PIECE + 3 + AHEAD));
        assert_eq!(left_behind(Direction::Read, 5 * PIECE), range(5 * PIECE, 5 * PIECE + AHEAD));
    }
}
