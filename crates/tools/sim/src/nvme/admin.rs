//! Admin commands.

use nvme::Status;
use nvme::entry::{Entry, admin, feature, log};
use nvme::identify::what;
use nvme::registers::{completion_doorbell, submission_doorbell};

use super::ControllerState;
use super::registers::VERSION;
use super::rings::{Completions, Submissions};

/// Maximum number of outstanding Asynchronous Event Requests.
const EVENT_REQUESTS: usize = 4;
const CONTIGUOUS: u32 = 1;
const INTERRUPTS: u32 = 2;
/// A completion queue is not deleted before its submission queue (figure 150).
const INVALID_DELETION: Status = Status(0x410c);

type Page = [u8; 4096];

fn put(page: &mut Page, at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

impl ControllerState {
    /// Executes an admin command; returns status and result. `None`: it completes later.
    pub(super) fn admin(&mut self, entry: &Entry) -> Option<(Status, u32)> {
        let answer = match entry.opcode() {
            admin::IDENTIFY => self.identify(entry),
            admin::CREATE_CQ => self.create_completions(entry),
            admin::CREATE_SQ => self.create_submissions(entry),
            admin::DELETE_SQ => self.delete_submissions(entry),
            admin::DELETE_CQ => self.delete_completions(entry),
            admin::SET_FEATURES | admin::GET_FEATURES => return Some(self.feature(entry)),
            admin::GET_LOG_PAGE => self.log_page(entry),
            admin::ABORT => return Some(self.abort(entry)),
            admin::DOORBELL_BUFFER if self.shape.doorbell_buffer => {
                self.shadow = Some(entry.data());
                Ok(())
            }
            admin::ASYNC_EVENT => {
                if self.requests_for_events.len() >= EVENT_REQUESTS {
                    return Some((Status::EVENT_LIMIT, 0));
                }
                self.requests_for_events.push(entry.cid());
                self.send_events();
                return None;
            }
            _ => Err(Status::INVALID_OPCODE),
        };
        Some((answer.err().unwrap_or(Status::OK), 0))
    }

    fn give(&mut self, entry: &Entry, page: &[u8]) -> Result<(), Status> {
        let pieces = self.memory.pieces(entry.data(), page.len()).ok_or(Status::DATA_TRANSFER)?;
        let mut at = 0;
        for (address, bytes) in pieces {
            self.memory.write(address, &page[at..at + bytes]).ok_or(Status::DATA_TRANSFER)?;
            at += bytes;
        }
        Ok(())
    }

    fn identify(&mut self, entry: &Entry) -> Result<(), Status> {
        let mut page = [0; 4096];
        match entry.dw(10) as u8 {
            what::CONTROLLER => self.identify_controller(&mut page),
            what::NAMESPACE => self.identify_namespace(entry.namespace(), &mut page)?,
            what::ACTIVE_NAMESPACES => {
                let later = self.namespaces.keys().filter(|id| **id > entry.namespace()).take(1024);
                later.enumerate().for_each(|(at, id)| put(&mut page, 4 * at, &id.to_le_bytes()));
            }
            what::DESCRIPTORS => {
                let id = entry.namespace();
                self.namespaces.get(&id).ok_or(Status::INVALID_NAMESPACE)?;
                put(&mut page, 0, &[3, 16]);
                put(&mut page, 4, &[id as u8; 16]);
                put(&mut page, 20, &[4, 1]);
            }
            what::INDEPENDENT_NAMESPACE => {
                let content = self.namespaces.get(&entry.namespace()).ok_or(Status::INVALID_NAMESPACE)?;
                (page[8], page[14]) = (u8::from(content.shape.write_protected), 1);
            }
            what::NVM_CONTROLLER => page[3] = self.shape.ranges_max,
            _ => return Err(Status::INVALID_FIELD),
        }
        self.give(entry, &page)
    }

    fn identify_controller(&self, page: &mut Page) {
        put(page, 0, &0x1b36_u16.to_le_bytes());
        put(page, 4, b"soft-1              ");
        put(page, 24, b"hotshelf software controller            ");
        put(page, 64, b"1       ");
        page[77] = self.shape.transfer_pages_shift;
        put(page, 80, &VERSION.to_le_bytes());
        put(page, 92, &(1_u32 << 8).to_le_bytes());
        put(page, 256, &(u16::from(self.shape.doorbell_buffer) << 8).to_le_bytes());
        page[258] = 3;
        page[259] = EVENT_REQUESTS as u8 - 1;
        put(page, 516, &64_u32.to_le_bytes());
        put(page, 520, &(1_u16 << 2 | 1 << 3).to_le_bytes());
        page[525] = u8::from(self.shape.volatile_cache);
    }

    fn identify_namespace(&self, id: u32, page: &mut Page) -> Result<(), Status> {
        let shape = self.namespaces.get(&id).ok_or(Status::INVALID_NAMESPACE)?.shape;
        for at in [0, 8, 16] {
            put(page, at, &shape.blocks.to_le_bytes());
        }
        page[26] = 1;
        // Deallocated blocks read as zeroes; Write Zeroes may deallocate.
        page[33] = 0b1001;
        page[99] = u8::from(shape.write_protected);
        put(page, 132, &shape.metadata_bytes.to_le_bytes());
        page[134] = shape.block_bytes.trailing_zeros() as u8;
        Ok(())
    }

    fn size(&self, entry: &Entry) -> Result<(u16, u32), Status> {
        let (number, entries) = (entry.dw(10) as u16, (entry.dw(10) >> 16) + 1);
        if number == 0 || number > self.shape.queues {
            return Err(Status::INVALID_QUEUE);
        }
        let right = (2..=self.shape.entries_max).contains(&entries) && entry.dw(11) & CONTIGUOUS != 0;
        if right { Ok((number, entries)) } else { Err(Status::INVALID_QUEUE_SIZE) }
    }

    fn create_completions(&mut self, entry: &Entry) -> Result<(), Status> {
        let (number, entries) = self.size(entry)?;
        let vector = (entry.dw(11) & INTERRUPTS != 0).then_some((entry.dw(11) >> 16) as u16);
        if self.completions.contains_key(&number) || vector.is_some_and(|vector| vector >= self.shape.vectors) {
            return Err(Status::INVALID_QUEUE);
        }
        let (at, phase) = (entry.data().0, true);
        self.clear_doorbell(completion_doorbell(number, 4 << self.shape.stride_shift));
        self.completions.insert(number, Completions { at, entries, head: 0, tail: 0, phase, vector });
        Ok(())
    }

    fn create_submissions(&mut self, entry: &Entry) -> Result<(), Status> {
        let (number, entries) = self.size(entry)?;
        let completions = (entry.dw(11) >> 16) as u16;
        if self.submissions.contains_key(&number) || completions == 0 || !self.completions.contains_key(&completions) {
            return Err(Status::INVALID_QUEUE);
        }
        self.clear_doorbell(submission_doorbell(number, 4 << self.shape.stride_shift));
        self.submissions.insert(number, Submissions { at: entry.data().0, entries, head: 0, tail: 0, completions });
        Ok(())
    }

    /// Commands in progress are completed as aborted, or not at all.
    fn delete_submissions(&mut self, entry: &Entry) -> Result<(), Status> {
        let number = entry.dw(10) as u16;
        if number == 0 || !self.submissions.contains_key(&number) {
            return Err(Status::INVALID_QUEUE);
        }
        let keys: Vec<_> = self.pending.iter().filter(|(_, pending)| pending.queue == number).map(|(key, _)| *key).collect();
        for pending in keys.iter().filter_map(|key| self.pending.remove(key)).collect::<Vec<_>>() {
            if self.random.bool() {
                self.answer((number, number), pending.entry.cid(), Status::QUEUE_DELETED, 0);
            }
            self.give_up(pending);
        }
        self.submissions.remove(&number);
        Ok(())
    }

    fn delete_completions(&mut self, entry: &Entry) -> Result<(), Status> {
        let number = entry.dw(10) as u16;
        if self.submissions.values().any(|ring| ring.completions == number) {
            return Err(INVALID_DELETION);
        }
        if number == 0 { Err(Status::INVALID_QUEUE) } else { self.completions.remove(&number).map(drop).ok_or(Status::INVALID_QUEUE) }
    }

    fn feature(&self, entry: &Entry) -> (Status, u32) {
        match entry.dw(10) as u8 {
            feature::NUMBER_OF_QUEUES => {
                let granted = u32::from(self.shape.queues - 1);
                (Status::OK, (entry.dw(11) & 0xffff).min(granted) | (entry.dw(11) >> 16).min(granted) << 16)
            }
            feature::ASYNC_EVENTS | feature::VOLATILE_WRITE_CACHE => (Status::OK, 0),
            _ => (Status::INVALID_FIELD, 0),
        }
    }

    fn abort(&mut self, entry: &Entry) -> (Status, u32) {
        let (queue, cid) = (entry.dw(10) as u16, (entry.dw(10) >> 16) as u16);
        let found = self.pending.iter().find(|(_, pending)| pending.queue == queue && pending.entry.cid() == cid);
        let Some(key) = found.map(|(key, _)| *key).filter(|_| !self.faults.ignores_aborts) else { return (Status::OK, 1) };
        if let Some(pending) = self.pending.remove(&key) {
            self.give_up(pending);
            self.answer((queue, queue), cid, Status::ABORTED, 0);
        }
        (Status::OK, 0)
    }

    fn log_page(&mut self, entry: &Entry) -> Result<(), Status> {
        let bytes = (((entry.dw(10) >> 16) as usize + 1) * 4).min(4096);
        let mut page = [0; 4096];
        let which = entry.dw(10) as u8;
        match which {
            log::SMART => {
                page[0] = self.critical;
                put(&mut page, 1, &310_u16.to_le_bytes());
                page[3] = 100;
            }
            log::CHANGED_NAMESPACES => {
                let changed = std::mem::take(&mut self.changed_namespaces);
                changed.iter().take(1024).enumerate().for_each(|(at, id)| put(&mut page, 4 * at, &id.to_le_bytes()));
            }
            log::ERRORS => {}
            _ => return Err(Status::INVALID_LOG),
        }
        self.masked_logs.retain(|masked| *masked != which);
        self.give(entry, &page[..bytes])?;
        self.send_events();
        Ok(())
    }

    /// Reports an asynchronous event once the host has a request outstanding.
    pub(super) fn tell_host(&mut self, event: (u8, u8, u8)) {
        if !self.waiting_events.contains(&event) {
            self.waiting_events.push(event);
        }
        self.send_events();
    }

    fn send_events(&mut self) {
        let masked = |event: &(u8, u8, u8)| self.masked_logs.contains(&event.2);
        let Some(at) = self.waiting_events.iter().position(|event| !masked(event)) else { return };
        let Some(cid) = self.requests_for_events.pop() else { return };
        let (kind, information, page) = self.waiting_events.remove(at);
        self.masked_logs.push(page);
        self.answer((0, 0), cid, Status::OK, u32::from(kind) | u32::from(information) << 8 | u32::from(page) << 16);
    }
}
