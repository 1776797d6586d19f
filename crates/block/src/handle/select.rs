//! Which of its queues a handle gives a request to.

use std::fmt;

use super::io::Io;
use crate::request::{Class, Op};
use crate::units::Lba;

/// A rule of one's own, asked for each request.
pub trait Select: Send + Sync {
    /// A queue's number, below `queues`; what is not is taken modulo `queues`.
    fn select(&self, io: &Io, lba: Lba, queues: usize) -> usize;
}

/// Chooses among several queues.
#[derive(Default)]
pub enum Selector {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Ranges of so many blocks, dealt out in turn: neighbours stay together.
    ByRange(u64),
    /// Reads to the first, writes to the second, the rest to the last.
    ByOp,
    /// By priority class.
    ByClass,
    /// Asks.
    Own(Box<dyn Select>),
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Selector::RoundRobin => "RoundRobin",
            Selector::ByRange(_) => "ByRange",
            Selector::ByOp => "ByOp",
            Selector::ByClass => "ByClass",
            Selector::Own(_) => "Own",
        })
    }
}

impl Selector {
    /// `turn` is the number of requests before.
    pub(super) fn choose(&self, io: &Io, lba: Lba, class: Class, turn: usize, queues: usize) -> usize {
        let wanted = match self {
            Selector::RoundRobin => turn,
            Selector::ByRange(blocks) => (lba.0 / (*blocks).max(1) % queues as u64) as usize,
            Selector::ByOp => match io.op() {
                Op::Read => 0,
                Op::Write => 1,
                Op::Flush | Op::Discard | Op::WriteZeroes => queues - 1,
            },
            Selector::ByClass => usize::from(class.0),
            Selector::Own(own) => own.select(io, lba, queues),
        };
        wanted % queues
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_rule_chooses_as_it_says() {
        struct Last;
        impl Select for Last {
            fn select(&self, _: &Io, _: Lba, queues: usize) -> usize {
                queues - 1
            }
        }
        let choose = |selector: &Selector, io: &Io, lba, class, turn| selector.choose(io, Lba(lba), Class(class), turn, 3);
        let (flush, zero) = (Io::flush(), Io::write_zeroes(Lba(5), 1));
        assert_eq!([0, 1, 2, 3].map(|turn| choose(&Selector::RoundRobin, &flush, 0, 0, turn)), [0, 1, 2, 0]);
        assert_eq!([0, 9, 10, 29, 30].map(|lba| choose(&Selector::ByRange(10), &flush, lba, 0, 0)), [0, 0, 1, 2, 0]);
        assert_eq!([0, 1, 5].map(|class| choose(&Selector::ByClass, &flush, 0, class, 0)), [0, 1, 2]);
        let data = || super::super::io::Data::None;
        let ops = [Io::read(Lba(0), data()), Io::write(Lba(0), data()), zero];
        assert_eq!(ops.map(|io| choose(&Selector::ByOp, &io, 0, 0, 0)), [0, 1, 2]);
        assert_eq!(choose(&Selector::Own(Box::new(Last)), &flush, 0, 0, 0), 2);
    }
}
