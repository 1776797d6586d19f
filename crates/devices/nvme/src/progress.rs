//! How far a bring-up and the handling of an event have got. `bringup` and `events` take the steps.

use block::Time;

use crate::admin::Ticket;
use crate::entry::CompletionEntry;
use crate::identify::{NamespaceError, NamespaceInfo};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Disable,
    Disabled,
    Enabled,
    Controller,
    Limits,
    Queues,
    Events,
    Doorbells,
    List,
    Namespace,
    Descriptors,
    Independent,
    Ready,
}

/// A bring-up: the steps of `bringup` that are done, and what they found.
pub(crate) struct Bringup {
    /// The step to do next.
    pub step: Step,
    /// The ticket of the command in flight.
    pub asked: Option<Ticket>,
    /// When the wait for a register ends.
    pub deadline: Time,
    /// Whether the namespaces are known from an earlier bring-up.
    pub again: bool,
    /// The namespaces that remain to be identified; the last is the next.
    pub ids: Vec<u32>,
    /// The namespaces identified so far.
    pub found: Vec<(u32, Result<NamespaceInfo, NamespaceError>)>,
}

impl Bringup {
    pub(crate) fn new(again: bool) -> Bringup {
        Bringup { step: Step::Disable, asked: None, deadline: Time::NEVER, again, ids: Vec::new(), found: Vec::new() }
    }

    /// Looks at the namespaces of a running controller again.
    pub(crate) fn rescan() -> Bringup {
        Bringup { step: Step::List, ..Bringup::new(false) }
    }

    /// Whether it waits for the admin queue, not for a register.
    pub(crate) fn waits_for_answer(&self) -> bool {
        self.asked.is_some()
    }
}

/// How far the handling of an event has got.
#[derive(Default)]
pub(crate) enum EventWork {
    #[default]
    None,
    /// The log page that an event named is being read.
    Log(CompletionEntry, Ticket),
    /// Namespaces are being identified again.
    Rescan(Bringup),
}
