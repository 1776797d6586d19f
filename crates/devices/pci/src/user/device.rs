//! From a socket to a function, in the order of the specification: version, what it is, its registers, its interrupts.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use shm::Region;

use super::client::{Client, RequestError};
use super::dma::Space;
use super::events::Events;
use super::link::{Link, as_event};
use super::peer::Peer;
use super::registers::{Mapped, Registers, WatchedRegister};
use super::wire::{
    Body, DEVICE_PCI, Fields, IRQ_EVENTFD, IRQ_MSIX, REGION_CAPABILITIES, REGION_CONFIGURATION, REGION_INFO_BYTES, REGION_MAPPABLE,
    REGION_REGISTERS, SET_EVENTFD, SET_TRIGGER, command, fds_max, sparse_areas,
};
use super::{UserError, UserOptions};
use crate::function::Function;

/// Registers beyond this are of no use to anybody.
const REGISTERS_MAX: u64 = 1 << 20;
/// Where in its file a server's registers may begin.
const FILE_MAX: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// The number of mapped areas and watched doorbells that are used at most.
const AREAS_MAX: usize = 16;
/// PCI configuration: the command register, and its bits for memory and for being the bus's master.
const PCI_COMMAND: u64 = 4;
const PCI_MEMORY_AND_MASTER: u16 = 6;

const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":32768}}\0";

/// Opens the function behind a socket.
///
/// # Errors
/// See [`UserError`]. A server that has another client keeps us waiting until [`UserOptions::reply_timeout`] is over.
pub fn open(socket: &Path) -> Result<Function, UserError> {
    open_with(socket, &UserOptions::default())
}

/// Opens it so.
///
/// # Errors
/// As [`open`].
pub fn open_with(socket: &Path, options: &UserOptions) -> Result<Function, UserError> {
    let link = Link::connect(socket).map_err(|error| UserError::Connect { socket: socket.to_owned(), error })?;
    let peer = Peer::of(&link);
    let client = Arc::new(Client::new(link, options.reply_timeout));
    let opening = Opening { socket, options, client };
    let fds_at_once = opening.version()?;
    opening.info()?;
    let registers = opening.registers()?;
    opening.become_master()?;
    let events = opening.interrupts(fds_at_once)?;
    let events = Events::new(&opening.client, events);
    let events = events.map_err(|error| UserError::Link { socket: socket.to_owned(), error: error.into() })?;
    let client = opening.client;
    Ok(Function {
        name: format!("vfio-user:{}", socket.display()),
        mmio: Arc::new(registers),
        dma: Arc::new(Space::new(client, peer)),
        irq: Arc::new(events),
    })
}

struct Opening<'a> {
    socket: &'a Path,
    options: &'a UserOptions,
    client: Arc<Client>,
}

/// What there is to know about a region.
struct RegionInfo {
    flags: u32,
    bytes: u64,
    file_at: u64,
    areas: Vec<(u64, u64)>,
    file: Option<OwnedFd>,
}

impl Opening<'_> {
    fn failed(&self, what: &'static str) -> impl Fn(RequestError) -> UserError {
        let socket = self.socket.to_owned();
        move |failed| match failed {
            RequestError::Refused(error) => UserError::Refused { socket: socket.clone(), what, error },
            RequestError::Lost(error) => UserError::Link { socket: socket.clone(), error },
        }
    }

    fn unusable(&self, what: &'static str) -> UserError {
        UserError::Unusable { socket: self.socket.to_owned(), what }
    }

    /// Descriptors that the server takes at once.
    fn version(&self) -> Result<usize, UserError> {
        let body = Body::new().u16(0).u16(1).bytes(CAPABILITIES);
        let answer = self.client.request(command::VERSION, &body.0, &[]).map_err(self.failed("our version"))?;
        match Fields(&answer.body).u16() {
            Some(0) => Ok(fds_max(answer.body.get(4..).unwrap_or(&[]))),
            _ => Err(self.unusable("it speaks another version of vfio-user")),
        }
    }

    fn info(&self) -> Result<(), UserError> {
        let body = Body::new().u32(16).u32(0).u32(0).u32(0);
        let answer = self.client.request(command::GET_INFO, &body.0, &[]).map_err(self.failed("what it is"))?;
        let mut fields = Fields(&answer.body);
        let (_, flags, regions) = (fields.u32(), fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
        if flags & DEVICE_PCI == 0 || regions == 0 {
            return Err(self.unusable("it is no PCI device"));
        }
        Ok(())
    }

    fn region(&self, index: u32, argsz: u32) -> Result<(RegionInfo, u32), UserError> {
        let body = Body::new().u32(argsz).u32(0).u32(index).u32(0).u64(0).u64(0);
        let answer = self.client.request(command::GET_REGION_INFO, &body.0, &[]).map_err(self.failed("its registers"))?;
        let mut fields = Fields(&answer.body);
        let words = (|| Some((fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?)))();
        let Some((needs, flags, _, capabilities_at, bytes, file_at)) = words else {
            return Err(self.failed("")(self.client.invalid("a region without its size")));
        };
        let has_areas = flags & REGION_CAPABILITIES != 0 && answer.body.len() > REGION_INFO_BYTES;
        let areas = if has_areas { sparse_areas(&answer.body, capabilities_at) } else { Some(Vec::new()) };
        let Some(areas) = areas else { return Err(self.failed("")(self.client.invalid("areas that make no sense"))) };
        Ok((RegionInfo { flags, bytes, file_at, areas, file: answer.fds.into_iter().next() }, needs))
    }

    fn registers(&self) -> Result<Registers, UserError> {
        let (mut info, needs) = self.region(REGION_REGISTERS, REGION_INFO_BYTES as u32)?;
        if needs as usize > REGION_INFO_BYTES && (needs as usize) < super::wire::MESSAGE_BYTES_MAX / 2 {
            info = self.region(REGION_REGISTERS, needs)?.0;
        }
        let bytes = info.bytes.min(REGISTERS_MAX);
        if bytes < 2 * PAGE {
            return Err(self.unusable("it has too few registers for a controller"));
        }
        let mapped = if self.options.mapped { map(info, bytes) } else { None };
        let bells = if mapped.is_some() { self.bells(bytes)? } else { Vec::new() };
        Ok(Registers { client: Arc::clone(&self.client), bytes: bytes as usize, mapped, bells })
    }

    /// Most servers have none, and look at their memory by themselves.
    fn bells(&self, bytes: u64) -> Result<Vec<WatchedRegister>, UserError> {
        let body = Body::new().u32(16 + 40 * AREAS_MAX as u32).u32(0).u32(REGION_REGISTERS).u32(0);
        let answer = match self.client.request(command::GET_REGION_IO_FDS, &body.0, &[]) {
            Ok(answer) => answer,
            Err(RequestError::Refused(_)) => return Ok(Vec::new()),
            Err(lost) => return Err(self.failed("")(lost)),
        };
        let events: Vec<Option<OwnedFd>> = answer.fds.into_iter().map(as_event).collect();
        let count = answer.body.get(12..).and_then(|rest| Fields(rest).u32()).unwrap_or(0) as usize;
        let mut bells = Vec::new();
        for entry in answer.body.get(16..).unwrap_or(&[]).as_chunks::<40>().0.iter().take(count.min(AREAS_MAX)) {
            let mut fields = Fields(entry);
            let words = (|| Some((fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?, fields.u32()?)))();
            // Only plain ones (type 0): any write of this area, whatever its value.
            let Some((from, long, index, 0, 0)) = words else { continue };
            let event = events.get(index as usize).and_then(Option::as_ref).and_then(|event| event.try_clone().ok());
            let end = from.saturating_add(long).min(bytes);
            if let Some(event) = event.filter(|_| from < end) {
                bells.push(WatchedRegister { area: from as usize..end as usize, event });
            }
        }
        Ok(bells)
    }

    /// Some servers have no configuration space, or one that says so already.
    fn become_master(&self) -> Result<(), UserError> {
        let mut now = [0; 2];
        let read = self.client.read(REGION_CONFIGURATION, PCI_COMMAND, &mut now);
        let command = u16::from_le_bytes(now) | PCI_MEMORY_AND_MASTER;
        let written = read.and_then(|()| self.client.write(REGION_CONFIGURATION, PCI_COMMAND, &command.to_le_bytes()));
        match written {
            Ok(()) | Err(RequestError::Refused(_)) => Ok(()),
            Err(lost) => Err(self.failed("")(lost)),
        }
    }

    /// A few at a time: descriptors beside a message are few.
    fn interrupts(&self, at_once: usize) -> Result<Vec<OwnedFd>, UserError> {
        let body = Body::new().u32(16).u32(0).u32(IRQ_MSIX).u32(0);
        let answer = match self.client.request(command::GET_IRQ_INFO, &body.0, &[]) {
            Ok(answer) => answer,
            Err(RequestError::Refused(_)) => return Ok(Vec::new()),
            Err(lost) => return Err(self.failed("")(lost)),
        };
        let mut fields = Fields(&answer.body);
        let (_, flags, _, count) = (fields.u32(), fields.u32().unwrap_or(0), fields.u32(), fields.u32().unwrap_or(0));
        if flags & IRQ_EVENTFD == 0 {
            return Ok(Vec::new());
        }
        let count = count.min(self.options.vectors_max.into());
        let event = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let made = (0..count).map(event).collect::<Result<Vec<OwnedFd>, _>>();
        let events = made.map_err(|error| UserError::Link { socket: self.socket.to_owned(), error: error.into() })?;
        for (number, some) in events.chunks(at_once).enumerate() {
            let start = (number * at_once) as u32;
            let body = Body::new().u32(20).u32(SET_EVENTFD | SET_TRIGGER).u32(IRQ_MSIX).u32(start).u32(some.len() as u32);
            let fds: Vec<_> = some.iter().map(|event| event.as_fd()).collect();
            self.client.request(command::SET_IRQS, &body.0, &fds).map_err(self.failed("interrupts"))?;
        }
        Ok(events)
    }
}

/// What can be mapped without trusting the server: memory that it cannot shrink. None: messages do.
fn map(info: RegionInfo, bytes: u64) -> Option<Mapped> {
    let RegionInfo { flags, file_at, areas, file, .. } = info;
    let fits = |(from, long): (u64, u64)| {
        let end = from.checked_add(long)?.min(bytes);
        (from < end && from.is_multiple_of(4)).then_some(from as usize..end as usize)
    };
    let whole = flags & REGION_CAPABILITIES == 0;
    let areas = if whole { vec![(0, bytes)] } else { areas };
    let areas: Vec<_> = areas.into_iter().take(AREAS_MAX).filter_map(fits).collect();
    let end = areas.iter().map(|area| area.end).max()?;
    if flags & REGION_MAPPABLE == 0 || file_at > FILE_MAX || !file_at.is_multiple_of(PAGE) {
        return None;
    }
    let region = Region::attach(file?, file_at as usize + end).ok()?;
    Some(Mapped { region, begin: file_at as usize, areas })
}
