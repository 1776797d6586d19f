//! What is done around one access: written out, and dropped.
//!
//! A page is dropped when the access is through with it. Three things make that more than one call:
//! - *Edges.* A reader of lines reads a page in forty pieces; in scarce memory too it would read it from the device once. So while
//!   accesses follow each other, the page they stopped in stays, and so does what the kernel has read ahead. The next access that
//!   goes elsewhere drops both first.
//! - *Large folios.* The kernel keeps up to 2 MiB as one piece, and drops only pieces that lie in the range altogether. So ranges
//!   begin where such a piece would.
//! - *Other hands.* Pages that somebody else has just written are written out first.

use libc::c_int;

use crate::files::{self, Direction, File, ResidualPages};
use crate::{sys, write_behind};

const PAGE: u64 = 4096;
/// The largest piece of the page cache that is dropped as one.
const PIECE: u64 = 2 << 20;
/// More than the kernel reads ahead on any device.
const AHEAD: u64 = 16 << 20;

/// A range of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Where it begins.
    pub from: u64,
    /// Where it ends.
    pub to: u64,
}

/// What is to be dropped after an access to `range`, given where the one before it ended; and what is left.
fn after(direction: Direction, last: u64, range: ByteRange) -> (ByteRange, ResidualPages) {
    // Nothing is read ahead of a write, and it makes no piece larger than itself.
    let (piece, ahead) = if direction == Direction::Read { (PIECE, AHEAD) } else { (PAGE, PAGE - 1) };
    let from = range.from / piece * piece;
    if range.from == last {
        return (ByteRange { from, to: range.to / PAGE * PAGE }, ResidualPages::Behind);
    }
    (ByteRange { from, to: range.to.saturating_add(ahead) }, ResidualPages::InFlight)
}

/// What accesses that followed each other up to `last` have left.
fn left_behind(direction: Direction, last: u64) -> ByteRange {
    let (piece, ahead) = if direction == Direction::Read { (PIECE, AHEAD) } else { (PAGE, PAGE) };
    ByteRange { from: last / piece * piece, to: last.saturating_add(ahead) }
}

fn drop_range(fd: c_int, range: ByteRange) {
    // A length of zero would be everything.
    if range.from < range.to {
        let _ = sys::drop_pages(fd, range.from, range.to - range.from);
    }
}

/// Before an access at `at`: it is to find nothing of the ones before, unless it goes on where they stopped.
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

/// The page an access stopped in.
fn page(last: u64) -> ByteRange {
    ByteRange { from: last / PAGE * PAGE, to: last.div_ceil(PAGE) * PAGE }
}

/// After an access: what it wrote is on the device, and its pages are gone.
pub fn done(file: File, direction: Direction, range: ByteRange) {
    if range.from >= range.to {
        return;
    }
    if write_behind::is_on() {
        if direction == Direction::Write && write_behind::take(file, range) {
            file.set_last(direction, range.to, ResidualPages::Nothing);
            return;
        }
        // What is on its direction is not waited for by a read, as with little memory.
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
        // The device has answered this access after those reads.
        drop_range(file.fd, left_behind(direction, last));
    }
    file.set_last(direction, range.to, left);
}

/// The range is on the device when it returns.
pub fn write_out(file: File, range: ByteRange) {
    let outcome = if file.is_whole() { Err(libc::ENOSYS) } else { sys::write_out(file.fd, range.from, range.to - range.from) };
    match outcome {
        Ok(()) => {}
        // The number has become something else without our seeing it.
        Err(libc::ESPIPE | libc::EBADF) => files::forget(file.fd),
        // No device took it, which is for the program's own fsync to hear of.
        Err(libc::EIO | libc::ENOSPC | libc::EDQUOT) => {}
        Err(_) => drop(sys::write_all(file.fd)),
    }
}

/// A read found the end: what was read ahead is no longer needed.
pub fn at_end(file: File) {
    let (last, left) = file.last(Direction::Read);
    if left != ResidualPages::Nothing {
        let _ = sys::drop_pages(file.fd, last / PIECE * PIECE, 0);
        file.set_last(Direction::Read, last, ResidualPages::Nothing);
    }
}

/// All of the file: when it is closed, cut, or left open at the end.
pub fn all(file: File) {
    if write_behind::is_on() {
        write_all(file);
    }
    let _ = sys::drop_pages(file.fd, 0, 0);
    for direction in [Direction::Read, Direction::Write] {
        file.set_last(direction, file.last(direction).0, ResidualPages::Nothing);
    }
}

/// The same, with what may have been written unseen.
pub fn all_written(file: File) {
    write_all(file);
    all(file);
}

fn write_all(file: File) {
    if file.is_whole() {
        let _ = sys::write_all(file.fd);
    } else {
        let _ = sys::write_out(file.fd, 0, 0);
    }
}

/// The range of an access that moved the position by `count`, of which others may have moved it, too.
pub fn moved(before: u64, now: u64, count: u64) -> ByteRange {
    let from = now.saturating_sub(count);
    if before.saturating_add(count) == now {
        ByteRange { from, to: now }
    } else {
        ByteRange { from: from.min(before), to: now.max(before + count) }
    }
}

#[cfg(test)]
mod test {
    use super::{AHEAD, ByteRange, Direction, PIECE, ResidualPages, after, left_behind, moved};

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

    #[test]
    fn a_position_that_others_moved_too_gives_the_larger_range() {
        assert_eq!(moved(10, 20, 10), range(10, 20));
        assert_eq!(moved(10, 30, 10), range(10, 30));
        assert_eq!(moved(0, 100, 10), range(0, 100));
        assert_eq!(moved(100, 50, 10), range(40, 110));
    }
}
