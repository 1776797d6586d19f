//! Selects one of a handle's queues for each request.

use std::fmt;

use crate::request::{Class, Op};
use crate::units::Lba;

/// The properties of a request by which a queue is selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The operation of the request.
    pub op: Op,
    /// The first block of the request.
    pub lba: Lba,
    /// The class of the request, whose share of the device it uses.
    pub class: Class,
}

/// A user-defined rule, called for each request.
pub trait Select: Send + Sync {
    /// Returns the number of a queue. A number of `queues` or more is taken modulo `queues`.
    fn select(&self, request: &Features, queues: usize) -> usize;
}

/// The rule that selects among several queues.
#[derive(Default)]
pub enum Selector {
    /// Each queue in turn.
    #[default]
    RoundRobin,
    /// Ranges of this many blocks, assigned to the queues in turn, so that adjacent blocks share a queue.
    ByRange(u64),
    /// Reads use the first queue, writes the second, everything else the last.
    ByOp,
    /// By priority class.
    ByClass,
    /// A user-defined rule.
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
    /// Selects a queue. `turn` is the number of earlier requests.
    pub(super) fn choose(&self, request: &Features, turn: usize, queues: usize) -> usize {
        let wanted = match self {
            Selector::RoundRobin => turn,
            Selector::ByRange(blocks) => (request.lba.0 / (*blocks).max(1) % queues as u64) as usize,
            Selector::ByOp => match request.op {
                Op::Read => 0,
                Op::Write => 1,
                Op::Flush | Op::Discard | Op::WriteZeroes => queues - 1,
            },
            Selector::ByClass => usize::from(request.class.0),
            Selector::Own(own) => own.select(request, queues),
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
            fn select(&self, _: &Features, queues: usize) -> usize {
                queues - 1
            }
        }
        let choose =
            |selector: &Selector, op, lba, class, turn| selector.choose(&Features { op, lba: Lba(lba), class: Class(class) }, turn, 3);
        assert_eq!([0, 1, 2, 3].map(|turn| choose(&Selector::RoundRobin, Op::Read, 0, 0, turn)), [0, 1, 2, 0]);
        assert_eq!([0, 9, 10, 29, 30].map(|lba| choose(&Selector::ByRange(10), Op::Read, lba, 0, 0)), [0, 0, 1, 2, 0]);
        assert_eq!([0, 1, 5].map(|class| choose(&Selector::ByClass, Op::Read, 0, class, 0)), [0, 1, 2]);
        assert_eq!([Op::Read, Op::Write, Op::Flush].map(|op| choose(&Selector::ByOp, op, 0, 0, 0)), [0, 1, 2]);
        assert_eq!(choose(&Selector::Own(Box::new(Last)), Op::Read, 0, 0, 0), 2);
    }
}
