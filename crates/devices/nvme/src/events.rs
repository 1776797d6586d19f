//! Asynchronous events of a controller. Each completed event request names a log page. The driver reads that page, then sends the next
//! request. It handles one event at a time, in steps that do not block.

use crate::admin::{AdminError, Ticket};
use crate::entry::{CompletionEntry, Entry, log};
use crate::identify::Smart;
use crate::notice::Notice;
use crate::progress::{Bringup, EventWork};
use crate::shared::{Inner, Shared};

/// Type, information and log page of an event.
fn parts(answer: &CompletionEntry) -> (u8, u8, u8) {
    let result = answer.result();
    (result as u8 & 7, (result >> 8) as u8, (result >> 16) as u8)
}

/// Polls the admin queue and handles events. Does not block, not even for the lock.
pub(crate) fn serve(shared: &Shared) {
    if let Some(mut inner) = shared.inner.try_lock() {
        serve_locked(shared, &mut inner);
    }
}

pub(crate) fn serve_locked(shared: &Shared, inner: &mut Inner) {
    if shared.is_gone() {
        return;
    }
    inner.admin.poll();
    advance(shared, inner);
}

/// Does what can be done now.
fn advance(shared: &Shared, inner: &mut Inner) {
    loop {
        let work = match std::mem::take(&mut inner.event) {
            EventWork::None => begin(shared, inner),
            EventWork::Log(event, ticket) => go_on(shared, inner, event, ticket),
            EventWork::Rescan(mut bringup) => match bringup.advance(shared, inner) {
                Ok(false) => Some(EventWork::Rescan(bringup)),
                Ok(true) => {
                    if std::mem::take(&mut inner.changed) {
                        shared.namespaces_changed();
                    }
                    inner.notices.add(Notice::Namespaces);
                    None
                }
                Err(trouble) => {
                    tracing::warn!("{}: looking at its namespaces again: {trouble}", shared.function.name);
                    inner.notices.add(Notice::Namespaces);
                    None
                }
            },
        };
        match work {
            // Waits for an answer.
            Some(work) => {
                inner.event = work;
                return;
            }
            None if !inner.admin.has_event() => return,
            None => {}
        }
    }
}

/// Takes the next event and reads the log page that it names. That read re-enables events of the same kind.
fn begin(shared: &Shared, inner: &mut Inner) -> Option<EventWork> {
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
        Some(ticket) => Some(EventWork::Log(event, ticket)),
        None => end(inner, &event, None),
    }
}

fn go_on(shared: &Shared, inner: &mut Inner, event: CompletionEntry, ticket: Ticket) -> Option<EventWork> {
    match inner.admin.take(ticket, shared.clock.now()) {
        None => Some(EventWork::Log(event, ticket)),
        Some(Ok(_)) => {
            let smart = Smart::from_page(&inner.admin.page(ticket));
            end(inner, &event, Some(smart))
        }
        // After a reset all requests for events are new.
        Some(Err(AdminError::Reset)) => None,
        Some(Err(_)) => end(inner, &event, None),
    }
}

fn end(inner: &mut Inner, event: &CompletionEntry, smart: Option<Smart>) -> Option<EventWork> {
    // Without room for it there is none until the next reset; nothing else depends on it.
    let _ = inner.request_event();
    let (kind, information, page) = parts(event);
    match (kind, smart) {
        (2, _) if page == log::CHANGED_NAMESPACES => return Some(EventWork::Rescan(Bringup::rescan())),
        (1, Some(smart)) => inner.notices.add(Notice::Smart(smart)),
        (0, _) => inner.notices.add(Notice::Error(information)),
        _ => inner.notices.add(Notice::Other(kind, information)),
    }
    None
}
