//! Another size for an image.
//!
//! The store is closed, so that the log has nothing. Pages of the bitmaps that the new shape has in other places are written there:
//! where nothing of the old shape is. Then a superblock with the new shape is written, and its copy. The one that is whole and newer
//! counts, and all that it names is there.

use super::Store;
use super::checkpoint::CheckpointMark;
use super::inner::StoreCore;
use crate::disk::QueueClass;
use crate::error::Error;
use crate::layout::superblock::{COPIES, Superblock};
use crate::layout::{Shape, bitmap};
use crate::units::{BLOCK_BYTES, Block};

/// Pages written in one go.
const PAGES_AT_ONCE: usize = 256;

/// Changes the size of an image, as [`Store::resize`] says.
pub fn resize(mut store: Store, blocks: u64) -> Result<Shape, Error> {
    store.keeper = None;
    let inner = &store.inner;
    let (old, new) = (inner.shape, inner.shape.resized(blocks)?);
    if blocks > inner.disk.blocks() {
        return Err(Error::Sizes("the image is to be larger than the device"));
    }
    if old == new {
        store.close()?;
        return Ok(new);
    }
    let moves = old.page_at(0) != new.page_at(0);
    if moves && overlap(region(old), region(new)) {
        return Err(Error::Sizes("the difference is too small: the new bitmaps would lie over the old ones"));
    }
    let kept = new.data_blocks.min(old.data_blocks);
    let in_use = |from: u64, to: u64| from < to && !inner.state.read().used.all(from..to, false);
    if in_use(kept, old.data_blocks) {
        return Err(Error::Sizes("files are in the part that is to be cut off"));
    }
    let mut last = inner.last.lock();
    let mark = CheckpointMark { clean: true, life: last.superblock.life, log: None, always: true };
    inner.checkpoint_as(&mut last, mark)?;
    let superblock = Superblock { generation: last.superblock.generation + 1, shape: new, ..last.superblock };
    write_pages(inner, &superblock, if moves { 0 } else { old.node_pages() + old.data_pages() })?;
    inner.disk.flush()?;
    for at in COPIES {
        inner.disk.write_blocks(QueueClass::Control, &[(at, &superblock.encode(at))])?;
        inner.disk.flush()?;
    }
    Ok(new)
}

/// Where the bitmaps are.
fn region(shape: Shape) -> (Block, Block) {
    (shape.page_at(0), shape.page_at(shape.node_pages() + shape.data_pages()))
}

fn overlap((a, a_end): (Block, Block), (b, b_end): (Block, Block)) -> bool {
    a < b_end && b < a_end
}

/// Pages from one on, in their first slots. The second ones say nothing, whatever an older shape had there.
fn write_pages(inner: &StoreCore, superblock: &Superblock, from: u64) -> Result<(), Error> {
    let shape = superblock.shape;
    let (of_nodes, all) = (shape.node_pages(), shape.node_pages() + shape.data_pages());
    let (state, nodes) = (inner.state.read(), inner.nodes.lock());
    let empty = vec![0; bitmap::PAGE_WORDS];
    let pages: Vec<u64> = (from..all).collect();
    for some in pages.chunks(PAGES_AT_ONCE) {
        let mut bytes = Vec::with_capacity(some.len() * 2 * BLOCK_BYTES);
        for page in some {
            let words =
                if *page < of_nodes { nodes.used_bits().page(*page as usize) } else { state.used.page((*page - of_nodes) as usize) };
            let words = words.unwrap_or(&empty);
            bytes.extend(bitmap::encode(words, shape.page_at(*page), superblock.generation, superblock.image()));
            bytes.resize(bytes.len() + BLOCK_BYTES, 0);
        }
        inner.disk.write_blocks(QueueClass::Metadata, &[(shape.page_at(some[0]), &bytes)])?;
    }
    Ok(())
}
