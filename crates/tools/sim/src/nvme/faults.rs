//! Faults of the software controller.

use std::time::Duration;

use nvme::Status;

/// The fault of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The command is neither executed nor completed.
    Drop,
    /// The command is executed and never completed.
    DropAnswer,
    /// The command takes this much longer.
    Delay(Duration),
    /// The command is not executed and completes with this status.
    Status(Status),
    /// The command is executed and completed with an unknown identifier.
    WrongId,
    /// The command is executed and completed for the wrong queue.
    WrongQueue,
    /// The command completes, and again after this duration.
    Twice(Duration),
}

/// A fault and the commands that it affects.
#[derive(Clone, Copy, Debug)]
pub struct ControllerFaultRule {
    /// Affects admin commands; otherwise I/O commands.
    pub admin: bool,
    /// Affects this opcode only. `None`: any.
    pub opcode: Option<u8>,
    /// Affects one of this many commands at random; 1: each.
    pub one_in: u32,
    /// How often the rule applies.
    pub times: u32,
    /// The fault that is injected.
    pub fault: Fault,
}

impl ControllerFaultRule {
    /// Creates a rule for the next `times` I/O commands.
    pub fn next(times: u32, fault: Fault) -> ControllerFaultRule {
        ControllerFaultRule { admin: false, opcode: None, one_in: 1, times, fault }
    }

    /// Creates a rule for one of `one_in` I/O commands, permanently.
    pub fn one_in(one_in: u32, fault: Fault) -> ControllerFaultRule {
        ControllerFaultRule { one_in, ..ControllerFaultRule::next(u32::MAX, fault) }
    }

    /// Restricts the rule to this admin opcode.
    #[must_use]
    pub fn admin(self, opcode: u8) -> ControllerFaultRule {
        ControllerFaultRule { admin: true, opcode: Some(opcode), ..self }
    }

    /// Restricts the rule to this I/O opcode.
    #[must_use]
    pub fn on(self, opcode: u8) -> ControllerFaultRule {
        ControllerFaultRule { opcode: Some(opcode), ..self }
    }
}

/// All faults of a controller.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Rules in order; the first that matches applies.
    pub rules: Vec<ControllerFaultRule>,
    /// Commands on these blocks of any namespace fail with an unrecovered read or write fault.
    pub bad: std::ops::Range<u64>,
    /// The controller stays ready when it is disabled.
    pub stuck_ready: bool,
    /// The controller does not become ready when it is enabled.
    pub stuck_not_ready: bool,
    /// The controller fetches no commands until it is reset.
    pub frozen: bool,
    /// Abort commands complete with "not aborted".
    pub ignores_aborts: bool,
    /// Number of failing attempts to revoke DMA, plus one.
    pub cut_off_fails: u32,
    /// One of this many register reads returns a wrong value; 0: none.
    pub register_lies: u32,
    /// Time until the controller becomes ready.
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
