//! Memory that the server maps by its descriptor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use parking_lot::Mutex;
use shm::Region;

use super::client::{Client, RequestError};
use super::peer::Peer;
use super::wire::{Body, DMA_READ_WRITE, command};
use crate::function::{DeviceAddress, DmaError, DmaSpace};

const PAGE: u64 = 4096;
/// The first address; and behind all others there is a gap, so that what is a little off hits nothing.
const FIRST: u64 = 1 << 32;
/// No address is as high: devices have 48 bits at least.
const END: u64 = 1 << 47;

pub(super) struct Space {
    client: Arc<Client>,
    peer: Peer,
    inner: Mutex<Inner>,
}

struct Inner {
    next: u64,
    mapped: BTreeMap<u64, Arc<Region>>,
    /// Regions whose unmapping the server did not confirm.
    kept: Vec<Arc<Region>>,
    cut: bool,
}

impl Space {
    /// Creates a space in which nothing is mapped.
    pub fn new(client: Arc<Client>, peer: Peer) -> Space {
        let inner = Inner { next: FIRST, mapped: BTreeMap::new(), kept: Vec::new(), cut: false };
        Space { client, peer, inner: Mutex::new(inner) }
    }
}

impl DmaSpace for Space {
    fn allocate(&self, bytes: usize) -> Result<Arc<Region>, DmaError> {
        Ok(Arc::new(Region::shared("hotshelf-device", bytes)?))
    }

    fn map(&self, region: &Arc<Region>) -> Result<DeviceAddress, DmaError> {
        let fd = region.fd().ok_or(DmaError::NotShareable)?;
        let bytes = (region.len() as u64).next_multiple_of(PAGE);
        let at = {
            let mut inner = self.inner.lock();
            if inner.cut {
                return Err(DmaError::CutOff);
            }
            let at = inner.next;
            inner.next =
                at.checked_add(bytes + PAGE).filter(|next| *next < END).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
            // Recorded before the request: without a reply, the server may have mapped it all the same.
            inner.mapped.insert(at, Arc::clone(region));
            at
        };
        let body = Body::new().u32(32).u32(DMA_READ_WRITE).u64(0).u64(at).u64(bytes);
        match self.client.request(command::DMA_MAP, &body.0, &[fd.as_fd()]) {
            Ok(_) => Ok(DeviceAddress(at)),
            Err(RequestError::Refused(error)) => {
                self.inner.lock().mapped.remove(&at);
                Err(DmaError::System(error))
            }
            Err(RequestError::Lost(_)) => {
                self.unmap(region, DeviceAddress(at));
                Err(DmaError::CutOff)
            }
        }
    }

    fn unmap(&self, region: &Arc<Region>, at: DeviceAddress) {
        if self.inner.lock().mapped.remove(&at.0).is_none() {
            return;
        }
        let bytes = (region.len() as u64).next_multiple_of(PAGE);
        let body = Body::new().u32(24).u32(0).u64(at.0).u64(bytes);
        let done = self.client.request(command::DMA_UNMAP, &body.0, &[]).is_ok();
        if !done && !self.peer.has_ended(&self.client.link) {
            self.inner.lock().kept.push(Arc::clone(region));
        }
    }

    fn cut_off(&self) -> bool {
        self.inner.lock().cut = true;
        self.client.lose();
        let ended = self.peer.has_ended(&self.client.link);
        if ended {
            self.inner.lock().kept.clear();
        }
        ended
    }
}
