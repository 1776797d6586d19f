//! A device that does nothing and completes at once, for measuring the layers above it.

use std::time::Duration;

use super::ring::CompletionRing;
use crate::buffer::{Arena, Span};
use crate::device::{Device, OpenError, QueueOptions};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::queue::{Queue, Submit};
use crate::request::{Completion, Request};
use crate::units::Tag;

/// A device that completes every request that fits its geometry, without accessing memory.
#[derive(Debug)]
pub struct NullDevice {
    geometry: Geometry,
}

impl NullDevice {
    /// Creates a device with the given geometry.
    pub fn new(geometry: Geometry) -> NullDevice {
        NullDevice { geometry }
    }

    /// Opens a queue, and returns it by its concrete type.
    pub fn open_queue(&self, depth: u32) -> NullQueue {
        NullQueue { geometry: self.geometry.clone(), depth, ended: CompletionRing::new(depth) }
    }
}

impl Device for NullDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>, OpenError> {
        Ok(Box::new(self.open_queue(options.depth)))
    }
}

/// A queue of a [`NullDevice`], which completes requests at once.
#[derive(Debug)]
pub struct NullQueue {
    geometry: Geometry,
    depth: u32,
    ended: CompletionRing,
}

impl Queue for NullQueue {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn register(&mut self, _: &Arena) -> Result<(), Error> {
        Ok(())
    }

    #[inline]
    fn submit(&mut self, request: &Request, data: &[Span]) -> Submit {
        if self.ended.len() as u32 >= self.depth {
            return Submit::Full;
        }
        self.ended.push(Completion { tag: request.tag, status: self.geometry.check(request, data) });
        Submit::Queued
    }

    fn ring(&mut self) {}

    #[inline]
    fn poll(&mut self, completions: &mut [Completion]) -> usize {
        self.ended.take(completions)
    }

    fn in_flight(&self) -> u32 {
        self.ended.len() as u32
    }

    fn wait(&mut self, _: Duration) {}

    fn cancel(&mut self, _: Tag) {}

    fn reset(&mut self) -> Result<(), Error> {
        self.ended.clear();
        Ok(())
    }

    fn owns_buffer(&self, _: Tag) -> bool {
        false
    }

    fn take_released(&mut self) -> Option<Tag> {
        None
    }
}
