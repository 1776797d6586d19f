//! The queue that records.

use std::io::{self, Write};

use block::{Clock, Completion, Queue, Request, Span, Status, Submit, Tag, Time};

use super::format::{EVENT_BYTES_MAX, Encoder, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, HEADER_BYTES, QueueEvent, RecordingHeader, frame_crc};

/// Records all requests of a queue. Events are buffered; each 32 KiB are written at once, which blocks the queue. After a write error the
/// recording ends, the queue continues, and [`RecordingQueue::finish`] returns the error.
pub struct RecordingQueue<Q, C, W: Write> {
    queue: Q,
    clock: C,
    begin: Time,
    /// The destination, or the error that ended the recording.
    to: Result<W, io::ErrorKind>,
    at: u64,
    encoder: Encoder,
    /// Head of the frame, events.
    frame: Vec<u8>,
}

impl<Q: Queue, C: Clock, W: Write> RecordingQueue<Q, C, W> {
    /// Wraps a queue and writes the header.
    ///
    /// # Errors
    /// The header cannot be written.
    pub fn new(queue: Q, clock: C, mut to: W) -> io::Result<RecordingQueue<Q, C, W>> {
        let header = RecordingHeader { geometry: queue.geometry().clone(), depth: queue.depth() };
        to.write_all(&header.to_bytes())?;
        let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + FRAME_BYTES_MAX);
        frame.resize(FRAME_HEAD_BYTES, 0);
        let begin = clock.now();
        Ok(RecordingQueue { queue, clock, begin, to: Ok(to), at: HEADER_BYTES as u64, encoder: Encoder::default(), frame })
    }

    /// Writes the buffered events. Returns the inner queue and the destination.
    ///
    /// # Errors
    /// The recording is incomplete.
    pub fn finish(mut self) -> io::Result<(Q, W)> {
        self.write_frame();
        let mut to = self.to.map_err(io::Error::from)?;
        to.flush()?;
        Ok((self.queue, to))
    }

    /// Returns the inner queue, mutably.
    pub fn below(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn now(&self) -> Time {
        Time(self.clock.now().0 - self.begin.0)
    }

    fn push(&mut self, event: &QueueEvent) {
        if self.frame.len() + EVENT_BYTES_MAX > FRAME_HEAD_BYTES + FRAME_BYTES_MAX {
            self.write_frame();
        }
        self.encoder.push(event, &mut self.frame);
    }

    #[cold]
    fn write_frame(&mut self) {
        let length = self.frame.len() - FRAME_HEAD_BYTES;
        if length == 0 {
            return;
        }
        let crc = frame_crc(self.at, &self.frame[FRAME_HEAD_BYTES..]);
        self.frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
        self.frame[4..8].copy_from_slice(&crc.to_le_bytes());
        if let Ok(to) = &mut self.to
            && let Err(error) = to.write_all(&self.frame)
        {
            self.to = Err(error.kind());
        }
        self.at += self.frame.len() as u64;
        self.frame.truncate(FRAME_HEAD_BYTES);
    }
}

impl<Q: Queue, C: Clock, W: Write + Send> block::QueueWrapper for RecordingQueue<Q, C, W> {
    type Inner = Q;
    const CHANGES_POLLING: bool = true;

    fn inner(&self) -> &Q {
        &self.queue
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        let taken = self.queue.submit(request, data);
        if taken == Submit::Queued {
            self.push(&QueueEvent::Submit(self.now(), *request));
        }
        taken
    }

    fn ring(&mut self) {
        self.push(&QueueEvent::Ring(self.now()));
        self.queue.ring();
    }

    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        let count = self.queue.poll(completions);
        if count > 0 {
            let now = self.now();
            for completion in &completions[..count] {
                self.push(&QueueEvent::Complete(now, completion.tag, completion.status));
            }
        }
        count
    }

    fn cancel(&mut self, tag: Tag) {
        self.push(&QueueEvent::Cancel(self.now(), tag));
        self.queue.cancel(tag);
    }

    fn reset(&mut self) -> Status {
        let reset = self.queue.reset();
        self.push(&QueueEvent::Reset(self.now(), reset));
        reset
    }
}
