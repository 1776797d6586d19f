//! The words of vfio-user (libvfio-user's specification, version 0.1; QEMU's docs/interop/vfio-user): a header of 16 bytes, a body, and
//! descriptors beside it. Numbers are in the machine's own order.

use std::os::fd::OwnedFd;

/// The commands that a message can carry.
pub mod command {
    #![allow(missing_docs, reason = "the specification's names")]
    /// Negotiates the version and the capabilities of both sides.
    pub const VERSION: u16 = 1;
    /// Maps memory of the client for the device.
    pub const DMA_MAP: u16 = 2;
    /// Ends a mapping of the client's memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Reads the number of regions and interrupts.
    pub const GET_INFO: u16 = 4;
    /// Reads the size and the capabilities of a region.
    pub const GET_REGION_INFO: u16 = 5;
    /// Requests descriptors for fast access to a region.
    pub const GET_REGION_IO_FDS: u16 = 6;
    /// Reads the properties of a kind of interrupt.
    pub const GET_IRQ_INFO: u16 = 7;
    /// Sets how interrupts of a kind are signalled.
    pub const SET_IRQS: u16 = 8;
    /// Reads bytes of a region.
    pub const REGION_READ: u16 = 9;
    /// Writes bytes to a region.
    pub const REGION_WRITE: u16 = 10;
    /// Resets the device to its initial state.
    pub const RESET: u16 = 13;
}

/// The size of a header in bytes.
pub const HEADER_BYTES: usize = 16;
/// The maximum size of a message in bytes, including the header. All messages are much shorter.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of descriptors with a message.
pub const FDS_MAX: usize = 16;
/// Region 0: the registers (BAR 0).
pub const REGION_REGISTERS: u32 = 0;
/// Region 7: PCI configuration space.
pub const REGION_CONFIGURATION: u32 = 7;
/// Regions of a PCI device.
pub const REGIONS: u32 = 9;
/// Interrupts of index 2: MSI-X.
pub const IRQ_MSIX: u32 = 2;
/// Interrupt indexes of a PCI device.
pub const IRQS: u32 = 5;
/// Device info: it can be reset.
pub const DEVICE_RESET: u32 = 1;
/// Device info: it is a PCI device.
pub const DEVICE_PCI: u32 = 1 << 1;
/// Region info: the region can be read.
pub const REGION_READABLE: u32 = 1;
/// Region info: the region can be written.
pub const REGION_WRITABLE: u32 = 1 << 1;
/// Region info: the region can be mapped.
pub const REGION_MAPPABLE: u32 = 1 << 2;
/// Region info: a list of capabilities follows.
pub const REGION_CAPABILITIES: u32 = 1 << 3;
/// Bytes of a region's info without capabilities.
pub const REGION_INFO_BYTES: usize = 32;
/// The capability that lists what can be mapped.
pub const CAPABILITY_SPARSE: u16 = 1;
/// Interrupt info: it can be an eventfd.
pub const IRQ_EVENTFD: u32 = 1;
/// Set interrupts: no data comes with the message.
pub const SET_NONE: u32 = 1;
/// Set interrupts: eventfds come with the message.
pub const SET_EVENTFD: u32 = 1 << 2;
/// Set interrupts: the eventfds are for raising the interrupt.
pub const SET_TRIGGER: u32 = 1 << 5;
/// Memory may be read and written.
pub const DMA_READ_WRITE: u32 = 3;
/// Unmap: ends all mappings at once.
pub const UNMAP_ALL: u32 = 1 << 2;

const TYPE_MASK: u32 = 0xf;
const TYPE_REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const FAILED: u32 = 1 << 5;

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of the request; a reply repeats it.
    pub id: u16,
    /// The kind of the message: see [`command`].
    pub command: u16,
    /// The length of the whole message in bytes.
    pub bytes: u32,
    /// The type of the message, and flags.
    pub flags: u32,
    /// The errno value of a failed reply.
    pub error: u32,
}

impl Header {
    /// Returns the header of a request.
    pub fn request(id: u16, command: u16) -> Header {
        Header { id, command, bytes: 0, flags: 0, error: 0 }
    }

    /// Returns the header of a successful reply to this request.
    pub fn reply(self) -> Header {
        Header { flags: TYPE_REPLY, bytes: 0, error: 0, ..self }
    }

    /// Returns the header of a failed reply to this request.
    pub fn failure(self, errno: i32) -> Header {
        Header { flags: TYPE_REPLY | FAILED, error: errno.unsigned_abs(), ..self.reply() }
    }

    /// Returns whether the message is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & TYPE_MASK == TYPE_REPLY
    }

    /// Whether it says that the request failed.
    pub fn is_failure(&self) -> bool {
        self.flags & FAILED != 0
    }

    /// Whether its sender wants no answer.
    pub fn wants_no_reply(&self) -> bool {
        self.flags & NO_REPLY != 0
    }

    /// Parses a header as it was received.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Header {
        let mut fields = Fields(bytes);
        let mut next = || fields.u32().unwrap_or(0);
        let (first, bytes, flags, error) = (next(), next(), next(), next());
        Header { id: first as u16, command: (first >> 16) as u16, bytes, flags, error }
    }

    /// Encodes the header with its body, ready to be sent.
    pub fn message(mut self, body: &[u8]) -> Vec<u8> {
        self.bytes = (HEADER_BYTES + body.len()) as u32;
        let first = u32::from(self.id) | u32::from(self.command) << 16;
        Body::new().u32(first).u32(self.bytes).u32(self.flags).u32(self.error).bytes(body).0
    }
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    /// The header of the message.
    pub header: Header,
    /// The bytes that follow the header.
    pub body: Vec<u8>,
    /// The descriptors that came with the message.
    pub fds: Vec<OwnedFd>,
}

/// A body that is being made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// Creates a body without any bytes.
    pub fn new() -> Body {
        Body::default()
    }

    /// Appends these bytes to the body.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Body {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a number of two bytes.
    #[must_use]
    pub fn u16(self, value: u16) -> Body {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends a number of four bytes.
    #[must_use]
    pub fn u32(self, value: u32) -> Body {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends a number of eight bytes.
    #[must_use]
    pub fn u64(self, value: u64) -> Body {
        self.bytes(&value.to_ne_bytes())
    }
}

/// The unread rest of a body. Its methods return `None` if it is too short.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads a number of two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    /// Reads a number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    /// Reads a number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// Returns the value of `"max_msg_fds"` from the JSON of a version message, or 1 without it.
pub fn fds_max(words: &[u8]) -> usize {
    let words = String::from_utf8_lossy(words);
    let number = words.split_once("\"max_msg_fds\"").and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let digits: String = number.unwrap_or("").trim_start().chars().take_while(char::is_ascii_digit).take(6).collect();
    digits.parse().unwrap_or(1).clamp(1, FDS_MAX)
}

/// Parses the mappable areas of a region, as (first byte, bytes), from its info and capabilities. `None`: they are invalid.
pub fn sparse_areas(info: &[u8], capabilities_at: u32) -> Option<Vec<(u64, u64)>> {
    let mut areas = Vec::new();
    let mut at = capabilities_at as usize;
    let mut before = REGION_INFO_BYTES - 1;
    while at != 0 {
        // They go forward only.
        (at > before).then_some(())?;
        before = at;
        let mut fields = Fields(info.get(at..)?);
        let (id, _version, next) = (fields.u16()?, fields.u16()?, fields.u32()?);
        if id == CAPABILITY_SPARSE {
            let (count, _) = (fields.u32()?, fields.u32()?);
            for _ in 0..count {
                areas.push((fields.u64()?, fields.u64()?));
            }
        }
        at = next as usize;
    }
    Some(areas)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        let header = Header::request(7, command::DMA_MAP);
        let message = header.message(&[1, 2, 3]);
        let read = Header::from_bytes(message.first_chunk().expect("long enough"));
        assert_eq!(read, Header { bytes: 19, ..header });
        assert!(!read.is_reply() && !read.wants_no_reply());
        let failure = read.failure(22);
        assert!(failure.is_reply() && failure.is_failure());
        assert_eq!((failure.error, failure.id), (22, 7));
    }

    #[test]
    fn the_number_of_descriptors_is_found_in_words() {
        let of = |words: &str| fds_max(words.as_bytes());
        assert_eq!(of("{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}\0"), 8);
        assert_eq!(of("{\"capabilities\":{\"max_msg_fds\" : 64}}"), 16);
        for words in ["", "{}", "{\"max_msg_fds\":-1}", "\"max_msg_fds\"", "\"max_msg_fds\":99999999999"] {
            assert!((1..=16).contains(&of(words)), "{words}");
        }
        assert_eq!(of("{\"max_msg_fds\":0}"), 1);
    }

    #[test]
    fn areas_that_make_no_sense_are_refused() {
        let info = vec![0; REGION_INFO_BYTES];
        let list =
            |next: u32, count: u32| Body(info.clone()).u16(CAPABILITY_SPARSE).u16(1).u32(next).u32(count).u32(0).u64(4096).u64(8192).0;
        assert_eq!(sparse_areas(&list(0, 1), 32), Some(vec![(4096, 8192)]));
        assert_eq!(sparse_areas(&list(0, 1), 0), Some(vec![]));
        for (bytes, at) in
            [(list(0, 2), 32), (list(32, 1), 32), (list(31, 1), 32), (list(0, 1), 31), (list(0, 1), 4000), (list(0, u32::MAX), 32)]
        {
            assert_eq!(sparse_areas(&bytes, at), None);
        }
    }
}
