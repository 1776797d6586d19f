//! Asynchronous events of a controller. Each completed event request names a log page. The driver reads that page, then sends the next
//! request. It handles one event at a time, in steps that do not block.

use std::collections::VecDeque;

use crate::admin::{AdminError, Ticket};
use crate::bringup::Bringup;
use crate::controller::{Inner, Shared};
use crate::entry::{CompletionEntry, Entry, log};
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

#[derive(Default)]
enum Work {
    #[default]
    None,
    /// The log page that an event named is being read.
    Log(CompletionEntry, Ticket),
    /// Namespaces are being identified again.
    Rescan(Bringup),
}

/// Asynchronous events: the one being handled, and the notices that nobody took yet.
#[derive(Default)]
pub(crate) struct Events {
    work: Work,
    notices: VecDeque<Notice>,
}

/// Type, information and log page of an event.
fn parts(answer: &CompletionEntry) -> (u8, u8, u8) {
    let result = answer.result();
    (result as u8 & 7, (result >> 8) as u8, (result >> 16) as u8)
}

impl Events {
    pub(crate) fn take(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Drops the event being handled: the controller was reset, so its command does not exist any more.
    pub(crate) fn clear(&mut self) {
        self.work = Work::None;
    }

    fn tell(&mut self, notice: Notice) {
        if self.notices.len() == NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Does what can be done now.
    pub(crate) fn advance(shared: &Shared, inner: &mut Inner) {
        loop {
            let work = match std::mem::take(&mut inner.events.work) {
                Work::None => begin(shared, inner),
                Work::Log(event, ticket) => go_on(shared, inner, event, ticket),
                Work::Rescan(mut bringup) => match bringup.advance(shared, inner) {
                    Ok(false) => Some(Work::Rescan(bringup)),
                    Ok(true) => {
                        if std::mem::take(&mut inner.changed) {
                            shared.namespaces_changed();
                        }
                        inner.events.tell(Notice::Namespaces);
                        None
                    }
                    Err(trouble) => {
                        tracing::warn!("{}: looking at its namespaces again: {trouble}", shared.function.name);
                        inner.events.tell(Notice::Namespaces);
                        None
                    }
                },
            };
            match work {
                // Waits for an answer.
                Some(work) => {
                    inner.events.work = work;
                    return;
                }
                None if !inner.admin.has_event() => return,
                None => {}
            }
        }
    }
}

/// Takes the next event and reads the log page that it names. That read re-enables events of the same kind.
fn begin(shared: &Shared, inner: &mut Inner) -> Option<Work> {
    let event = inner.admin.take_event()?;
    if !event.status().is_ok() {
        // It takes no more requests for events.
        return None;
    }
    let page = parts(&event).2;
    let ticket = match page {
        0 => None,
        page => shared.begin(inner, Entry::log_page(page, if page == log::CHANGED_NAMESPACES { 4096 } else { 512 }), true).ok(),
    };
    match ticket {
        Some(ticket) => Some(Work::Log(event, ticket)),
        None => end(inner, &event, None),
    }
}

fn go_on(shared: &Shared, inner: &mut Inner, event: CompletionEntry, ticket: Ticket) -> Option<Work> {
    match inner.admin.take(ticket, shared.clock.now()) {
        None => Some(Work::Log(event, ticket)),
        Some(Ok(_)) => {
            let smart = Smart::from_page(&inner.admin.page(ticket));
            end(inner, &event, Some(smart))
        }
        // After a reset all requests for events are new.
        Some(Err(AdminError::Reset)) => None,
        Some(Err(_)) => end(inner, &event, None),
    }
}

fn end(inner: &mut Inner, event: &CompletionEntry, smart: Option<Smart>) -> Option<Work> {
    // Without room for it there is none until the next reset; nothing else depends on it.
    let _ = inner.request_event();
    let (kind, information, page) = parts(event);
    match (kind, smart) {
        (2, _) if page == log::CHANGED_NAMESPACES => return Some(Work::Rescan(Bringup::rescan())),
        (1, Some(smart)) => inner.events.tell(Notice::Smart(smart)),
        (0, _) => inner.events.tell(Notice::Error(information)),
        _ => inner.events.tell(Notice::Other(kind, information)),
    }
    None
}
