//! Sends replies to the kernel.
//!
//! Through the device it is one write(2), from whatever thread. In a queue the answer lies where the request was, and the thread that
//! received it hands it over; so it is put down in the request's [`ReplySlot`], which that thread looks into.
//!
//! A reply may come too late: the watchdog has replied. Each call that sends returns whether the kernel got the reply; if not, the file
//! system undoes what the kernel does not know of.

use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fusedev::Entry;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::encode;
use super::in_flight::Ticket;

/// What fits into an answer itself: the longest of fixed size is that of CREATE.
const SHORT: usize = encode::ENTRY + 16;

thread_local! {
    /// Reused between replies: fresh memory would be zeroed each time.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A reply that the kernel waits for. Dropping it without a reply sends EIO.
#[derive(Debug)]
pub struct PendingReply {
    unique: u64,
    device: Arc<OwnedFd>,
    channel: ReplyChannel,
}

#[derive(Debug)]
enum ReplyChannel {
    Device {
        room: Vec<u8>,
        /// With a request that the watchdog may reply to.
        ticket: Option<Ticket>,
    },
    Queue {
        place: Arc<ReplySlot>,
        /// With a request whose answer goes where it was itself.
        entry: Option<Entry>,
        /// Else data are collected here.
        room: Vec<u8>,
    },
    Gone,
}

/// The place where the thread of a queue finds the reply.
#[derive(Debug, Default)]
pub struct ReplySlot {
    done: Mutex<Option<FinishedReply>>,
    bell: Condvar,
}

/// Holds a reply until the queue's thread hands it to the kernel.
#[derive(Debug)]
pub struct FinishedReply {
    unique: u64,
    error: Option<Errno>,
    /// In the entry's room already, which comes back here.
    entry: Option<Entry>,
    length: usize,
    short: [u8; SHORT],
    long: Vec<u8>,
}

impl ReplySlot {
    /// Waits for the answer, and writes it into the request's entry (the one that was lent, or the one that was kept).
    pub fn take(&self, kept: Option<Entry>) -> Option<Entry> {
        let mut done = self.done.lock();
        let done = loop {
            match done.take() {
                Some(done) => break done,
                None => self.bell.wait(&mut done),
            }
        };
        let in_place = done.entry.is_some();
        let mut entry = done.entry.or(kept)?;
        if !in_place {
            let data = if done.long.is_empty() { &done.short[..done.length] } else { &done.long[..done.length] };
            entry.room()[..data.len()].copy_from_slice(data);
        }
        entry.address(encode::header(done.unique, done.error, done.length), done.length);
        Some(entry)
    }

    fn put(&self, done: FinishedReply) {
        *self.done.lock() = Some(done);
        self.bell.notify_one();
    }
}

impl PendingReply {
    /// Creates a reply that is sent by the device that the request came from.
    pub fn by_device(unique: u64, device: &Arc<OwnedFd>) -> PendingReply {
        PendingReply { unique, device: Arc::clone(device), channel: ReplyChannel::Device { room: Vec::new(), ticket: None } }
    }

    /// Creates a reply as [`PendingReply::by_device`] does, to a request that the watchdog may reply to.
    pub fn with_ticket(unique: u64, device: &Arc<OwnedFd>, ticket: Ticket) -> PendingReply {
        PendingReply { unique, device: Arc::clone(device), channel: ReplyChannel::Device { room: Vec::new(), ticket: Some(ticket) } }
    }

    /// Creates a reply that is sent by a queue. `lent` is the request's entry, if the reply may be written directly into it.
    pub fn by_queue(unique: u64, device: &Arc<OwnedFd>, place: &Arc<ReplySlot>, lent: Option<Entry>) -> PendingReply {
        let channel = ReplyChannel::Queue { place: Arc::clone(place), entry: lent, room: Vec::new() };
        PendingReply { unique, device: Arc::clone(device), channel }
    }

    /// Returns the FUSE device of the mount.
    pub fn device(&self) -> &Arc<OwnedFd> {
        &self.device
    }

    /// Returns a buffer for `length` bytes of data to send.
    pub fn room(&mut self, length: usize) -> &mut [u8] {
        match &mut self.channel {
            ReplyChannel::Queue { entry: Some(entry), .. } => {
                let room = entry.room();
                let length = length.min(room.len());
                &mut room[..length]
            }
            ReplyChannel::Device { room, .. } | ReplyChannel::Queue { room, .. } => {
                if room.capacity() == 0 {
                    *room = ROOM.take();
                }
                if room.len() < length {
                    room.resize(length, 0);
                }
                &mut room[..length]
            }
            ReplyChannel::Gone => &mut [],
        }
    }

    /// Sends so many bytes of the room. Returns whether the kernel got the reply.
    pub fn send_room(mut self, length: usize) -> bool {
        match std::mem::replace(&mut self.channel, ReplyChannel::Gone) {
            ReplyChannel::Device { room, ticket } => {
                let is_sent = self.write(ticket, None, &room[..length]);
                keep(room);
                is_sent
            }
            ReplyChannel::Queue { place, entry, room } => {
                place.put(FinishedReply { unique: self.unique, error: None, entry, length, short: [0; SHORT], long: room });
                true
            }
            ReplyChannel::Gone => false,
        }
    }

    /// Sends these bytes as the reply. Returns whether the kernel got it.
    pub fn send(mut self, data: &[u8]) -> bool {
        match std::mem::replace(&mut self.channel, ReplyChannel::Gone) {
            ReplyChannel::Device { room, ticket } => {
                let is_sent = self.write(ticket, None, data);
                keep(room);
                is_sent
            }
            ReplyChannel::Queue { place, entry, .. } => {
                let mut done =
                    FinishedReply { unique: self.unique, error: None, entry, length: data.len(), short: [0; SHORT], long: Vec::new() };
                match (&mut done.entry, done.short.get_mut(..data.len())) {
                    (Some(entry), _) => entry.room()[..data.len()].copy_from_slice(data),
                    (None, Some(short)) => short.copy_from_slice(data),
                    (None, None) => done.long = data.to_vec(),
                }
                place.put(done);
                true
            }
            ReplyChannel::Gone => false,
        }
    }

    /// Replies with an error number instead of data. Returns whether the kernel got it.
    pub fn fail(mut self, error: Errno) -> bool {
        self.failed(error)
    }

    fn failed(&mut self, error: Errno) -> bool {
        match std::mem::replace(&mut self.channel, ReplyChannel::Gone) {
            ReplyChannel::Device { room, ticket } => {
                ticket.iter().for_each(|ticket| ticket.note_error(error));
                let is_sent = self.write(ticket, Some(error), &[]);
                keep(room);
                is_sent
            }
            ReplyChannel::Queue { place, entry, .. } => {
                let (unique, error) = (self.unique, Some(error));
                place.put(FinishedReply { unique, error, entry, length: 0, short: [0; SHORT], long: Vec::new() });
                true
            }
            ReplyChannel::Gone => false,
        }
    }

    fn write(&self, ticket: Option<Ticket>, error: Option<Errno>, data: &[u8]) -> bool {
        if ticket.is_some_and(|ticket| !ticket.claim()) {
            tracing::debug!(unique = self.unique, "a reply came too late");
            return false;
        }
        let header = encode::header(self.unique, error, data.len());
        match rustix::io::writev(&self.device, &[IoSlice::new(&header), IoSlice::new(data)]) {
            Ok(_) => true,
            // The caller does not wait any more, or the mount is gone.
            Err(gone @ (Errno::NOENT | Errno::NODEV | Errno::PERM)) => {
                tracing::debug!(unique = self.unique, %gone, "nobody waits");
                false
            }
            Err(error) => {
                tracing::error!(unique = self.unique, %error, "an answer was not taken");
                false
            }
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.failed(Errno::IO);
    }
}

/// For this thread's next answer.
fn keep(room: Vec<u8>) {
    if room.capacity() > 0 {
        ROOM.set(room);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::wire::decode::RequestHeader;
    use crate::wire::in_flight::InFlight;

    fn queue() -> (Arc<ReplySlot>, Arc<OwnedFd>, Entry) {
        let null = std::fs::File::open("/dev/null").expect("opens");
        (Arc::default(), Arc::new(null.into()), Entry::new(8192).expect("memory"))
    }

    #[test]
    fn a_short_answer_and_a_long_one_come_into_the_entry() {
        let (place, device, mut entry) = queue();
        for data in [&[1_u8; 8][..], &[2; SHORT], &[3; 4000]] {
            PendingReply::by_queue(5, &device, &place, None).send(data);
            entry = place.take(Some(entry)).expect("kept");
            let request = entry.request().expect("fits");
            assert_eq!((request.rest, &request.header[..16]), (data, &encode::header(5, None, data.len())[..]));
        }
    }

    #[test]
    fn data_are_put_where_they_are_sent_from() {
        let (place, device, entry) = queue();
        let mut answer = PendingReply::by_queue(5, &device, &place, Some(entry));
        answer.room(100)[..3].copy_from_slice(b"abc");
        assert_eq!(answer.room(1 << 20).len(), 8192);
        answer.send_room(3);
        let entry = place.take(None).expect("lent");
        assert_eq!(entry.request().expect("fits").rest, b"abc");
    }

    #[test]
    fn exactly_one_reply_to_a_request_reaches_the_kernel() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let device = Arc::new(OwnedFd::from(writer));
        let requests = Arc::<InFlight>::default();
        let begin = |unique| {
            let head = RequestHeader { opcode: 1, unique, ino: 7, uid: 0, gid: 0, pid: 0 };
            PendingReply::with_ticket(unique, &device, requests.begin(&head, 0).expect("room"))
        };
        let take_over = || {
            let mut all = Vec::new();
            requests.each(|request| all.push(request));
            assert!(all.iter().all(|request| requests.take_over(request)));
        };
        assert!(begin(2).send(b"in time"));
        // The watchdog replies to these; whatever the call has to say later is discarded, and the caller knows.
        let late = [begin(4), begin(6), begin(8), begin(10)];
        take_over();
        assert_eq!(requests.unfinished(), 4);
        let [data, mut room, error, dropped] = late;
        room.room(3);
        assert!(!data.send(b"late") && !room.send_room(3) && !error.fail(Errno::IO));
        drop(dropped);
        assert_eq!(requests.unfinished(), 0);
        assert!(begin(12).fail(Errno::NOENT));
        drop(device);
        let mut sent = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(OwnedFd::from(reader)), &mut sent).expect("read");
        let expected = [&encode::header(2, None, 7)[..], b"in time", &encode::header(12, Some(Errno::NOENT), 0)].concat();
        assert_eq!(sent, expected);
    }

    #[test]
    fn what_is_forgotten_is_an_error() {
        let (place, device, entry) = queue();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(PendingReply::by_queue(5, &device, &place, None)));
            let entry = place.take(Some(entry)).expect("kept");
            assert_eq!(entry.request().expect("fits").header[..16], encode::header(5, Some(Errno::IO), 0));
        });
    }
}
