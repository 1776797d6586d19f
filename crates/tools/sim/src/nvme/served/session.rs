//! One host session. Every message is checked: invalid requests are refused, malformed messages end the session.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvme::registers::DOORBELLS;
use pci::Mmio as _;
use pci::user::Link;
use pci::user::link::as_event;
use pci::user::wire::{
    Body, CAPABILITY_SPARSE, DEVICE_PCI, DEVICE_RESET, FDS_MAX, Fields, IRQ_EVENTFD, IRQ_MSIX, IRQS, Message, REGION_CAPABILITIES,
    REGION_CONFIGURATION, REGION_INFO_BYTES, REGION_MAPPABLE, REGION_READABLE, REGION_REGISTERS, REGION_WRITABLE, REGIONS, SET_EVENTFD,
    SET_NONE, SET_TRIGGER, UNMAP_ALL, command,
};
use rustix::io::Errno;
use shm::Region;

use super::{REGISTER_BYTES, Server, ring};

/// How long a host may take to read a reply.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of one mapping, and maximum offset in its file.
const MAPPED_MAX: u64 = 1 << 36;
const CONFIGURATION_BYTES: usize = 256;
const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":4096}}\0";

/// A reply with its attachments.
struct ReplyMessage<'a> {
    body: Body,
    fds: Vec<BorrowedFd<'a>>,
}

impl From<Body> for ReplyMessage<'_> {
    fn from(body: Body) -> Self {
        ReplyMessage { body, fds: Vec::new() }
    }
}

pub(super) struct Session<'a> {
    server: &'a Server,
    link: &'a Link,
    configuration: [u8; CONFIGURATION_BYTES],
    /// The version message comes first.
    has_version: bool,
}

impl<'a> Session<'a> {
    /// Creates a session for a connected host.
    pub fn new(server: &'a Server, link: &'a Link) -> Session<'a> {
        let mut configuration = [0; CONFIGURATION_BYTES];
        // Vendor and device of QEMU's controllers; class NVMe.
        configuration[..4].copy_from_slice(&[0x36, 0x1b, 0x10, 0x00]);
        configuration[8..12].copy_from_slice(&[2, 2, 8, 1]);
        Session { server, link, configuration, has_version: false }
    }

    /// Serves the host until it disconnects or sends a malformed message.
    pub fn run(&mut self) {
        while let Ok(message) = self.link.receive(None) {
            let header = message.header;
            if header.is_reply() {
                return;
            }
            let answer = self.answer(message);
            let until = Some(Instant::now() + TIMEOUT);
            let sent = match answer {
                _ if header.wants_no_reply() => Ok(()),
                Ok(answer) => self.link.send(&header.reply().message(&answer.body.0), &answer.fds, until),
                Err(error) => self.link.send(&header.failure(error.raw_os_error()).message(&[]), &[], until),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, message: Message) -> Result<ReplyMessage<'a>, Errno> {
        let Message { header, body, fds } = message;
        if !self.has_version && header.command != command::VERSION {
            return Err(Errno::INVAL);
        }
        let fields = Fields(&body);
        let short = Errno::INVAL;
        match header.command {
            command::VERSION => self.version(fields).ok_or(short)?,
            command::GET_INFO => Ok(Body::new().u32(16).u32(DEVICE_PCI | DEVICE_RESET).u32(REGIONS).u32(IRQS).into()),
            command::GET_REGION_INFO => self.region_info(fields).ok_or(short),
            command::GET_REGION_IO_FDS => self.bells(fields).ok_or(short),
            command::GET_IRQ_INFO => self.irq_info(fields).ok_or(short),
            command::SET_IRQS => self.set_irqs(fields, fds).ok_or(short),
            command::DMA_MAP => self.map(fields, fds),
            command::DMA_UNMAP => self.unmap(fields, &body),
            command::REGION_READ => self.read(fields).ok_or(short),
            command::REGION_WRITE => self.write(fields, &body).ok_or(short),
            command::RESET => {
                // Registers only; memory and events stay.
                self.server.controller.write32(nvme::registers::CC, 0);
                Ok(Body::new().into())
            }
            _ => Err(Errno::NOTSUP),
        }
    }

    /// Handles the version message. `None`: too short; other versions are refused.
    fn version(&mut self, mut fields: Fields<'_>) -> Option<Result<ReplyMessage<'a>, Errno>> {
        let (major, _minor) = (fields.u16()?, fields.u16()?);
        if major != 0 {
            return Some(Err(Errno::NOTSUP));
        }
        self.has_version = true;
        Some(Ok(Body::new().u16(0).u16(1).bytes(CAPABILITIES).into()))
    }

    fn region_info(&self, mut fields: Fields<'_>) -> Option<ReplyMessage<'a>> {
        let (argsz, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let info = |needs: usize, flags: u32, capabilities: usize, bytes: usize| {
            Body::new().u32(needs as u32).u32(flags).u32(index).u32(capabilities as u32).u64(bytes as u64).u64(0)
        };
        let flags = REGION_READABLE | REGION_WRITABLE;
        match index {
            REGION_REGISTERS => {
                let needs = REGION_INFO_BYTES + 32;
                let flags = flags | REGION_MAPPABLE | REGION_CAPABILITIES;
                let body = info(needs, flags, REGION_INFO_BYTES, REGISTER_BYTES);
                if (argsz as usize) < needs {
                    return Some(body.into());
                }
                let area = (DOORBELLS as u64, (REGISTER_BYTES - DOORBELLS) as u64);
                let body = body.u16(CAPABILITY_SPARSE).u16(1).u32(0).u32(1).u32(0).u64(area.0).u64(area.1);
                Some(ReplyMessage { body, fds: self.server.page.fd().into_iter().collect() })
            }
            REGION_CONFIGURATION => Some(info(REGION_INFO_BYTES, flags, 0, CONFIGURATION_BYTES).into()),
            index if index < REGIONS => Some(info(REGION_INFO_BYTES, 0, 0, 0).into()),
            _ => None,
        }
    }

    /// Returns one eventfd for all doorbells.
    fn bells(&self, mut fields: Fields<'_>) -> Option<ReplyMessage<'a>> {
        let (argsz, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        (index == REGION_REGISTERS).then_some(())?;
        let body = Body::new().u32(16 + 40).u32(0).u32(index).u32(1);
        if argsz < 16 + 40 {
            return Some(body.into());
        }
        self.server.has_bell.store(true, Ordering::Release);
        let body = body.u64(DOORBELLS as u64).u64((REGISTER_BYTES - DOORBELLS) as u64).u32(0).u32(0).u32(0).u32(0).u64(0);
        Some(ReplyMessage { body, fds: vec![self.server.bell.as_fd()] })
    }

    fn vectors(&self) -> u32 {
        u32::from(pci::IrqSource::vectors(&self.server.controller))
    }

    fn irq_info(&self, mut fields: Fields<'_>) -> Option<ReplyMessage<'a>> {
        let (_, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let count = if index == IRQ_MSIX { self.vectors() } else { 0 };
        (index < IRQS).then(|| Body::new().u32(16).u32(if count > 0 { IRQ_EVENTFD } else { 0 }).u32(index).u32(count).into())
    }

    fn set_irqs(&self, mut fields: Fields<'_>, fds: Vec<OwnedFd>) -> Option<ReplyMessage<'a>> {
        let (_, flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (start, count) = (fields.u32()?, fields.u32()?);
        let end = start.checked_add(count).filter(|end| *end <= self.vectors() && index == IRQ_MSIX)?;
        match flags {
            flags if flags == SET_EVENTFD | SET_TRIGGER && fds.len() == count as usize && fds.len() <= FDS_MAX => {
                let events = fds.into_iter().map(as_event).collect::<Option<Vec<_>>>()?;
                (start..end).zip(events).for_each(|(vector, event)| self.server.controller.set_event(vector, Some(event)));
            }
            // No vector at all: disables interrupts.
            flags if flags == SET_NONE | SET_TRIGGER => {
                let (start, end) = if count == 0 { (0, self.vectors()) } else { (start, end) };
                (start..end).for_each(|vector| self.server.controller.set_event(vector, None));
            }
            _ => return None,
        }
        Some(Body::new().into())
    }

    /// Maps memory that cannot shrink, and no other.
    fn map(&self, mut fields: Fields<'_>, fds: Vec<OwnedFd>) -> Result<ReplyMessage<'a>, Errno> {
        let words = (|| Some((fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?, fields.u64()?)))();
        let (_, _, from, at, bytes) = words.ok_or(Errno::INVAL)?;
        let whole = [from, at, bytes].iter().all(|number| number.is_multiple_of(4096));
        let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Errno::INVAL)?;
        if !whole || bytes == 0 || bytes > MAPPED_MAX || from > MAPPED_MAX {
            return Err(Errno::INVAL);
        }
        let region = Region::attach(fd, (from + bytes) as usize).map_err(|_| Errno::INVAL)?;
        let mapped = self.server.controller.map_at(at, region, from as usize, bytes as usize);
        mapped.then(|| Body::new().into()).ok_or(Errno::EXIST)
    }

    fn unmap(&self, mut fields: Fields<'_>, body: &[u8]) -> Result<ReplyMessage<'a>, Errno> {
        let words = (|| Some((fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?)))();
        let (_, flags, at, bytes) = words.ok_or(Errno::INVAL)?;
        let (at, bytes) = match flags {
            0 => (at, bytes),
            UNMAP_ALL => (0, u64::MAX),
            _ => return Err(Errno::NOTSUP),
        };
        let found = self.server.controller.unmap_at(at, bytes) || flags == UNMAP_ALL;
        found.then(|| Body::new().bytes(&body[..24]).into()).ok_or(Errno::NOENT)
    }

    /// Returns (region, offset, bytes) of an access within its region.
    fn access(fields: &mut Fields<'_>) -> Option<(u32, usize, usize)> {
        let (at, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let most = match region {
            REGION_REGISTERS => REGISTER_BYTES,
            REGION_CONFIGURATION => CONFIGURATION_BYTES,
            _ => return None,
        };
        let (at, count) = (usize::try_from(at).ok()?, count as usize);
        let whole = region == REGION_CONFIGURATION || (matches!(count, 4 | 8) && at.is_multiple_of(4));
        (count > 0 && at.checked_add(count)? <= most && whole).then_some((region, at, count))
    }

    fn read(&self, mut fields: Fields<'_>) -> Option<ReplyMessage<'a>> {
        let (region, at, count) = Session::access(&mut fields)?;
        let body = Body::new().u64(at as u64).u32(region).u32(count as u32);
        if region == REGION_CONFIGURATION {
            return Some(body.bytes(&self.configuration[at..at + count]).into());
        }
        let word = |at: usize| match at {
            at if at >= DOORBELLS => self.server.page.u32(at).load(Ordering::Acquire),
            at => self.server.controller.read32(at),
        };
        let body = body.u32(word(at));
        Some(if count == 8 { body.u32(word(at + 4)) } else { body }.into())
    }

    fn write(&mut self, mut fields: Fields<'_>, body: &[u8]) -> Option<ReplyMessage<'a>> {
        let (region, at, count) = Session::access(&mut fields)?;
        let data = Some(fields.0).filter(|data| data.len() == count)?;
        match region {
            // Only the command register is writable.
            REGION_CONFIGURATION if at == 4 => self.configuration[4..4 + count.min(2)].copy_from_slice(&data[..count.min(2)]),
            REGION_CONFIGURATION => {}
            _ => {
                for (number, word) in data.as_chunks::<4>().0.iter().enumerate() {
                    let (at, value) = (at + 4 * number, u32::from_ne_bytes(*word));
                    match at {
                        at if at >= DOORBELLS => self.server.page.u32(at).store(value, Ordering::Release),
                        at => self.server.controller.write32(at, value),
                    }
                }
                ring(&self.server.bell);
            }
        }
        Some(Body::new().bytes(&body[..16]).into())
    }
}
