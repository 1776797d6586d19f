//! What goes wrong with the software controller.

use std::time::Duration;

use nvme::Status;

/// What becomes of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is not done and never answered.
    Drop,
    /// It is done and never answered.
    DropAnswer,
    /// It takes so much longer.
    Delay(Duration),
    /// It is not done, and ends with this.
    Status(Status),
    /// It is done, and answered under an identifier that nobody has.
    WrongId,
    /// It is done, and answered as if it were of another queue.
    WrongQueue,
    /// It is answered, and so much later once more.
    Twice(Duration),
}

/// Which commands a fault hits.
#[derive(Clone, Copy, Debug)]
pub struct ControllerFaultRule {
    /// Those of the admin queue, or those of the others.
    pub admin: bool,
    /// Of this operation; none: of any.
    pub opcode: Option<u8>,
    /// One of so many, at random; 1: each.
    pub one_in: u32,
    /// So often, then no more.
    pub times: u32,
    /// What happens.
    pub fault: Fault,
}

impl ControllerFaultRule {
    /// The next reads, writes and the like, `times` of them.
    pub fn next(times: u32, fault: Fault) -> ControllerFaultRule {
        ControllerFaultRule { admin: false, opcode: None, one_in: 1, times, fault }
    }

    /// One of so many, for ever.
    pub fn one_in(one_in: u32, fault: Fault) -> ControllerFaultRule {
        ControllerFaultRule { one_in, ..ControllerFaultRule::next(u32::MAX, fault) }
    }

    /// Of the admin queue.
    #[must_use]
    pub fn admin(self, opcode: u8) -> ControllerFaultRule {
        ControllerFaultRule { admin: true, opcode: Some(opcode), ..self }
    }

    /// Of this operation alone.
    #[must_use]
    pub fn on(self, opcode: u8) -> ControllerFaultRule {
        ControllerFaultRule { opcode: Some(opcode), ..self }
    }
}

/// All that goes wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The first that hits counts.
    pub rules: Vec<ControllerFaultRule>,
    /// Commands on these blocks of any namespace fail: reads as not readable, writes as not writable.
    pub bad: std::ops::Range<u64>,
    /// It does not become not ready when it is disabled.
    pub stuck_ready: bool,
    /// It does not become ready when it is enabled.
    pub stuck_not_ready: bool,
    /// It fetches nothing, until it is reset.
    pub frozen: bool,
    /// Aborts are answered with "not aborted".
    pub ignores_aborts: bool,
    /// Taking memory away cannot be confirmed, so often less one.
    pub cut_off_fails: u32,
    /// One of so many reads of a register gives a wrong value; 0: none.
    pub register_lies: u32,
    /// ReplyMode long it takes to become ready.
    pub ready_after: Duration,
}

impl Faults {
    pub(super) fn hit(&mut self, admin: bool, opcode: u8, random: &mut fastrand::Rng) -> Option<Fault> {
        let rule = self.rules.iter_mut().find(|rule| {
            let fits = rule.admin == admin && rule.opcode.is_none_or(|wanted| wanted == opcode) && rule.times > 0;
            fits && (rule.one_in <= 1 || random.u32(..rule.one_in) == 0)
        })?;
        rule.times = rule.times.saturating_sub(u32::from(rule.times != u32::MAX));
        Some(rule.fault)
    }
}
