//! Why a call failed.

use crate::units::Block;

/// Small, copied; front doors say it in words and as errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("{0}")]
    Device(block::Error),
    /// An earlier write or flush failed: nothing is taken any more until the image is opened again, which finds what is durable.
    #[error("a write to the device has failed ({0}): close the image and open it again, it will show what was saved")]
    Failed(block::Error),
    /// No superblock.
    #[error("no file system of hotshelf is here, or both its superblocks are damaged")]
    NoImage,
    /// Written by a later version.
    #[error("the image has format version {version}; this program knows {known}: use the later program")]
    Later {
        /// The version of the image.
        version: u32,
        /// The latest version that this program opens.
        known: u32,
    },
    /// The device is smaller than what is on it.
    #[error("the image has {image} blocks of 4 KiB, but the device only {device}: it was cut off")]
    Truncated {
        /// Blocks of the image.
        image: u64,
        /// Blocks that are there.
        device: u64,
    },
    /// Another image than the one asked for.
    #[error("this is another image: its UUID is not the one asked for")]
    Uuid,
    /// The device is too small, or the sizes asked for do not go together.
    #[error("sizes that do not fit: {0}")]
    Sizes(&'static str),
    /// What was read is not what was written.
    #[error("damaged: {what}, at block {}", at.0)]
    Damaged {
        /// What it should have been.
        what: &'static str,
        /// Where.
        at: Block,
    },
    /// No data block is free.
    #[error("no space is left: all data blocks are in use")]
    NoSpace,
    /// The metadata region is full for what adds to it.
    #[error("no space is left for metadata: remove files, or make the image again with more")]
    NoNodes,
    /// A key, a value or a batch over its bound.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// A patch of a key that is not there, or behind its value's end.
    #[error("there is no such value to patch")]
    Missing,
    /// The destination of a move has keys, or lies within its source.
    #[error("the destination of a move is not empty")]
    Occupied,
    /// Blocks outside the data region, used twice or freed twice.
    #[error("blocks are not what the batch says of them, at block {}", .0.0)]
    Blocks(Block),
    /// The device cannot be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// No memory or descriptors for queues and buffers.
    #[error("no memory or descriptors for the queues")]
    NoResources,
}

impl From<block::Error> for Error {
    fn from(error: block::Error) -> Error {
        Error::Device(error)
    }
}

impl Error {
    /// Returns the errno that programs get.
    pub fn errno(self) -> i32 {
        match self {
            Error::Device(error) | Error::Failed(error) => error.errno(),
            Error::NoSpace | Error::NoNodes => block::Error::NoSpace.errno(),
            Error::ReadOnly => block::Error::ReadOnly.errno(),
            Error::NoResources => block::Error::NoResources.errno(),
            Error::NoImage | Error::Later { .. } | Error::Uuid | Error::Sizes(_) | Error::TooLarge(_) => block::Error::Misaligned.errno(),
            Error::Truncated { .. } | Error::Damaged { .. } | Error::Missing | Error::Occupied | Error::Blocks(_) => {
                block::Error::Media.errno()
            }
        }
    }
}
