//! The notices of a controller's events, kept for the user of the controller.

use std::collections::VecDeque;

use crate::identify::Smart;

/// An event that a controller reported by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Namespaces were added, removed or changed: see [`crate::Controller::namespaces`]. Open queues take the new size at their
    /// next poll (see [`crate::Namespace`]).
    Namespaces,
    /// The drive's health is critical.
    Smart(Smart),
    /// An error of the controller, by its information byte.
    Error(u8),
    /// An event that this driver does not know: its type and information.
    Other(u8, u8),
}

/// The number of notices kept until somebody takes them; older ones are dropped.
const NOTICES: usize = 16;

/// The notices that nobody took yet, oldest first.
#[derive(Default)]
pub(crate) struct Notices(VecDeque<Notice>);

impl Notices {
    pub(crate) fn take(&mut self) -> Option<Notice> {
        self.0.pop_front()
    }

    pub(crate) fn add(&mut self, notice: Notice) {
        if self.0.len() == NOTICES {
            self.0.pop_front();
        }
        self.0.push_back(notice);
    }
}
