//! An empty store.

use std::io::Read;

use super::batch;
use super::settings::FormatOptions;
use crate::disk::{Disk, QueueClass};
use crate::error::Error;
use crate::layout::superblock::{COPIES, Root, Superblock};
use crate::layout::{Shape, bitmap};
use crate::space::bits::Bitmap;
use crate::tree::{NodeStamp, Tree};
use crate::units::{BLOCK_BYTES, Block, Extent, Lsn};

/// Blocks written in one go.
const BLOCKS_AT_ONCE: u64 = 256;

/// The tag of an image in its nodes.
pub fn tag(uuid: &[u8; 16]) -> u32 {
    crc32c::crc32c(uuid)
}

/// Writes an empty store, as [`super::Store::format`] says.
pub fn format(disk: &Disk, options: &FormatOptions) -> Result<(), Error> {
    let blocks = options.blocks.unwrap_or(disk.blocks());
    if blocks > disk.blocks() {
        return Err(Error::Sizes("the image is to be larger than the device"));
    }
    let shape = Shape::new(blocks, options.log_bytes, options.metadata_bytes)?;
    if disk.geometry().read_only {
        return Err(Error::ReadOnly);
    }
    let uuid = options.uuid.map_or_else(random, Ok)?;
    // Until the end there is no image here, neither the old one nor the new one.
    let nothing = vec![0; BLOCK_BYTES];
    disk.write_blocks(QueueClass::Control, &COPIES.map(|at| (at, &nothing[..])))?;
    disk.flush()?;
    if options.discard {
        discard(disk, shape)?;
    }
    zero(disk, shape.log_start(), shape.log_blocks)?;
    let mut superblock = Superblock {
        uuid,
        generation: 1,
        shape,
        clean: true,
        life: 1,
        lsn: Lsn(0),
        log_position: 0,
        roots: [Root { at: crate::tree::NodeAt { slot: 0, sum: 0 }, level: 0 }; 2],
    };
    write_roots(disk, &mut superblock)?;
    write_pages(disk, &superblock)?;
    disk.flush()?;
    let copies = COPIES.map(|at| (at, superblock.encode(at)));
    disk.write_blocks(QueueClass::Control, &copies.each_ref().map(|(at, block)| (*at, &block[..])))?;
    disk.flush()
}

fn write_roots(disk: &Disk, superblock: &mut Superblock) -> Result<(), Error> {
    for tree in batch::TreeId::ALL {
        let stamp = NodeStamp { tag: tag(&superblock.uuid), generation: 1, tree: tree as u8 };
        let frozen = Tree::default().freeze(vec![tree as u32]);
        let at = frozen.write_out(stamp, |slot, page| {
            let at = superblock.shape.node_at(slot).expect("there are more nodes than trees");
            disk.write_blocks(QueueClass::Metadata, &[(at, &page)])
        })?;
        superblock.roots[tree as usize].at = at;
    }
    Ok(())
}

fn write_pages(disk: &Disk, superblock: &Superblock) -> Result<(), Error> {
    let shape = superblock.shape;
    let mut nodes = Bitmap::new(shape.nodes);
    nodes.set(0..batch::TreeId::ALL.len() as u64, true);
    let used: Box<[u64]> = nodes.take_dirty().remove(0).1;
    let empty = vec![0; bitmap::PAGE_WORDS].into_boxed_slice();
    let pages = shape.node_pages() + shape.data_pages();
    let mut bytes = Vec::new();
    let mut from = 0;
    for page in 0..pages {
        let at = shape.page_at(page);
        bytes.extend(bitmap::encode(if page == 0 { &used } else { &empty }, at, 1, superblock.image()));
        bytes.resize(bytes.len() + BLOCK_BYTES, 0);
        if (page + 1 - from) * 2 >= BLOCKS_AT_ONCE || page + 1 == pages {
            disk.write_blocks(QueueClass::Metadata, &[(shape.page_at(from), &bytes)])?;
            bytes.clear();
            from = page + 1;
        }
    }
    Ok(())
}

fn zero(disk: &Disk, at: Block, blocks: u64) -> Result<(), Error> {
    let nothing = vec![0; BLOCKS_AT_ONCE as usize * BLOCK_BYTES];
    let mut done = 0;
    while done < blocks {
        let now = BLOCKS_AT_ONCE.min(blocks - done);
        disk.write_blocks(QueueClass::Control, &[(at.after(done), &nothing[..now as usize * BLOCK_BYTES])])?;
        done += now;
    }
    Ok(())
}

/// In pieces of 1 GiB.
fn discard(disk: &Disk, shape: Shape) -> Result<(), Error> {
    const PIECE: u64 = 1 << 18;
    let mut at = 0;
    while at < shape.blocks {
        let blocks = PIECE.min(shape.blocks - at);
        disk.discard(Extent::new(Block(at), blocks as u32))?;
        at += blocks;
    }
    Ok(())
}

fn random() -> Result<[u8; 16], Error> {
    let mut uuid = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut uuid));
    read.map(|()| uuid).map_err(|_| Error::NoResources)
}
