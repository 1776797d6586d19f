//! Registers, and the effect of writing them.

use block::Time;
use nvme::registers::{
    ACQ, AQA, ASQ, CAP, CC, CC_ENABLE, CC_SHUTDOWN_MASK, CSTS, CSTS_FATAL, CSTS_READY, CSTS_SHUTDOWN_DONE, CSTS_SHUTDOWN_MASK, DOORBELLS,
    REMOVED, VS, completion_doorbell, submission_doorbell,
};

use super::ControllerState;
use super::rings::{Completions, Submissions};

/// NVMe 2.0.
pub(super) const VERSION: u32 = 0x0002_0000;
/// CAP.TO: in half seconds.
const READY_HALF_SECONDS: u64 = 4;

impl ControllerState {
    fn capabilities(&self) -> u64 {
        u64::from(self.shape.entries_max - 1) | 1 << 16 | READY_HALF_SECONDS << 24 | u64::from(self.shape.stride_shift) << 32 | 1 << 37
    }

    pub(super) fn read_register(&mut self, at: usize, now: Time) -> u32 {
        self.change_status(now);
        if self.removed {
            return REMOVED;
        }
        let value = self.register(at);
        match self.faults.register_lies {
            0 => value,
            one_in if self.random.u32(..one_in) > 0 => value,
            _ => [value ^ 1 << self.random.u32(..32), self.random.u32(..), 0][self.random.usize(..3)],
        }
    }

    fn register(&self, at: usize) -> u32 {
        match at {
            CAP => self.capabilities() as u32,
            at if at == CAP + 4 => (self.capabilities() >> 32) as u32,
            VS => VERSION,
            CC => self.configuration,
            CSTS => self.status,
            AQA => self.admin_queues.0,
            _ => 0,
        }
    }

    pub(super) fn write_register(&mut self, at: usize, value: u32, now: Time) {
        if self.removed {
            return;
        }
        self.done.register_writes += 1;
        let (low, high) = (u64::from(value), u64::from(value) << 32);
        match at {
            CC => self.configure(value, now),
            AQA => self.admin_queues.0 = value,
            ASQ => self.admin_queues.1 = self.admin_queues.1 >> 32 << 32 | low,
            at if at == ASQ + 4 => self.admin_queues.1 = self.admin_queues.1 & 0xffff_ffff | high,
            ACQ => self.admin_queues.2 = self.admin_queues.2 >> 32 << 32 | low,
            at if at == ACQ + 4 => self.admin_queues.2 = self.admin_queues.2 & 0xffff_ffff | high,
            at if at >= DOORBELLS => self.doorbell((at - DOORBELLS) / (4 << self.shape.stride_shift), value),
            _ => {}
        }
        if self.shape.eager {
            self.step(now);
        }
    }

    fn doorbell(&mut self, index: usize, value: u32) {
        let Ok(number) = u16::try_from(index / 2) else { return };
        if index.is_multiple_of(2) { self.set_tail(number, value) } else { self.set_head(number, value) }
    }

    fn configure(&mut self, value: u32, now: Time) {
        let before = std::mem::replace(&mut self.configuration, value);
        if before & CC_ENABLE == 0 && value & CC_ENABLE != 0 && !self.faults.stuck_not_ready {
            self.changes_at = Some((now.after(self.faults.ready_after), CSTS_READY));
        }
        if before & CC_ENABLE != 0 && value & CC_ENABLE == 0 && !self.faults.stuck_ready {
            self.done.resets += 1;
            self.faults.frozen = false;
            self.drop_everything();
            self.status &= !(CSTS_FATAL | CSTS_SHUTDOWN_MASK);
            self.changes_at = Some((now.after(self.faults.ready_after), 0));
        }
        if value & CC_SHUTDOWN_MASK != 0 && before & CC_SHUTDOWN_MASK == 0 {
            self.done.shutdowns += 1;
            self.flush_all();
            self.status = self.status & !CSTS_SHUTDOWN_MASK | CSTS_SHUTDOWN_DONE;
        }
        self.change_status(now);
    }

    /// Applies status changes that are due. Returns whether the status changed.
    pub(super) fn change_status(&mut self, now: Time) -> bool {
        let Some((_, ready)) = self.changes_at.filter(|(at, _)| *at <= now) else { return false };
        self.changes_at = None;
        self.status = self.status & !CSTS_READY | ready;
        if ready != 0 {
            self.make_admin_queues();
        }
        true
    }

    fn make_admin_queues(&mut self) {
        let (sizes, submissions, completions) = self.admin_queues;
        let stride = 4 << self.shape.stride_shift;
        self.clear_doorbell(submission_doorbell(0, stride));
        self.clear_doorbell(completion_doorbell(0, stride));
        let (at, entries) = (submissions, (sizes & 0xfff) + 1);
        self.submissions.insert(0, Submissions { at, entries, head: 0, tail: 0, completions: 0 });
        let (at, entries) = (completions, (sizes >> 16 & 0xfff) + 1);
        self.completions.insert(0, Completions { at, entries, head: 0, tail: 0, phase: true, vector: Some(0) });
    }

    /// Drops all queues, as a reset does; commands in progress are done or not.
    pub(super) fn drop_everything(&mut self) {
        self.submissions.clear();
        self.completions.clear();
        self.shadow = None;
        self.requests_for_events.clear();
        self.masked_logs.clear();
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.give_up(pending);
        }
    }
}
