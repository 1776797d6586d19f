//! Changes bytes of an image, and corrects the checksums.

use rawfs::BLOCK_BYTES;

const NODE: usize = 16 << 10;
const HEADER: usize = 32;
const ROOTS: usize = 112;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
}

fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn seal(block: &mut [u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&block[..4]), &block[8..]);
    put_u32(block, 4, sum);
}

/// A byte that makes trouble, at one of some places.
fn spoil(bytes: &mut [u8], rng: &mut fastrand::Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.usize(..bytes.len());
    match rng.u8(..6) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes[at] = [0, 1, 2, 3, 4, 0x7f, 0x80, 0xfe, 0xff][rng.usize(..9)],
        2 => bytes[at] ^= 1 << rng.u8(..8),
        3 => bytes[at] = bytes[at].wrapping_add(1),
        4 => bytes[at] = bytes[at].wrapping_sub(1),
        _ => {
            let to = bytes.len().min(at + [2, 4, 8][rng.usize(..3)]);
            let fill = [0, 0xff, rng.u8(..)][rng.usize(..3)];
            bytes[at..to].fill(fill);
        }
    }
}

struct Shape {
    log: usize,
    log_blocks: usize,
    bitmaps: usize,
    nodes: usize,
    data: usize,
    slots: usize,
}

/// As the first superblock has it.
fn shape(image: &[u8]) -> Shape {
    let (log_blocks, slots, data) = (u64_at(image, 64), u64_at(image, 72), u64_at(image, 80));
    let bitmaps = (2 + log_blocks) * BLOCK_BYTES;
    let pages = slots.div_ceil(32_512) + data.div_ceil(32_512);
    let nodes = bitmaps + 2 * pages * BLOCK_BYTES;
    Shape { log: 2 * BLOCK_BYTES, log_blocks, bitmaps, nodes, data: nodes + slots * NODE, slots }
}

/// Does one to a few things to an image that was whole.
pub fn forge(image: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    let shape = shape(image);
    for _ in 0..rng.usize(1..5) {
        match rng.u8(..16) {
            0 => superblock(image, rng),
            1 => bitmap(image, &shape, rng),
            2 | 3 => group(image, &shape, rng),
            4..=11 => node(image, &shape, rng),
            12 => {
                // Without a checksum: a bit that was lost.
                let at = rng.usize(..image.len());
                image[at] ^= 1 << rng.u8(..8);
            }
            13 => {
                let at = shape.nodes + rng.usize(..shape.slots) * NODE;
                spoil(&mut image[at..at + NODE], rng);
            }
            14 => {
                let block = rng.usize(..shape.data.min(image.len()) / BLOCK_BYTES) * BLOCK_BYTES;
                image[block..block + BLOCK_BYTES].fill(0);
            }
            _ => {
                let at = rng.usize(shape.data..image.len());
                image[at] ^= 1;
            }
        }
    }
    if rng.u8(..64) == 0 {
        image.truncate(rng.usize(..image.len()) / BLOCK_BYTES * BLOCK_BYTES);
    }
    image.resize(image.len().max(BLOCK_BYTES), 0);
}

fn both_superblocks(image: &mut [u8]) {
    seal(&mut image[..512]);
    let mut copy = image[..512].to_vec();
    copy[8..16].copy_from_slice(&1u64.to_le_bytes());
    seal(&mut copy);
    image[BLOCK_BYTES..BLOCK_BYTES + 512].copy_from_slice(&copy);
}

fn superblock(image: &mut [u8], rng: &mut fastrand::Rng) {
    if rng.bool() {
        // One alone, and torn.
        let at = rng.usize(..2) * BLOCK_BYTES;
        return spoil(&mut image[at..at + 140], rng);
    }
    spoil(&mut image[[16, 32, 36, 56, 64, 72, 80, 88, 96, 104, 112, 124][rng.usize(..12)]..136], rng);
    both_superblocks(image);
}

fn bitmap(image: &mut [u8], shape: &Shape, rng: &mut fastrand::Rng) {
    let slots = (shape.nodes - shape.bitmaps) / BLOCK_BYTES;
    let at = shape.bitmaps + rng.usize(..slots) * BLOCK_BYTES;
    let page = &mut image[at..at + BLOCK_BYTES];
    if rng.bool() {
        spoil(&mut page[8..64], rng)
    } else {
        spoil(&mut page[32..200], rng)
    }
    if rng.u8(..4) > 0 {
        seal(page);
    }
}

fn group(image: &mut [u8], shape: &Shape, rng: &mut fastrand::Rng) {
    let starts = (0..shape.log_blocks).map(|block| shape.log + block * BLOCK_BYTES).filter(|at| image[*at..].starts_with(b"hsfL"));
    let starts: Vec<usize> = starts.collect();
    let Some(at) = starts.get(rng.usize(..starts.len().max(1))).copied() else { return };
    let bytes = u32_at(image, at + 52) as usize;
    let len = (64 + bytes).next_multiple_of(BLOCK_BYTES).min(shape.bitmaps - at);
    let group = &mut image[at..at + len];
    let from = if rng.u8(..4) == 0 { 8 } else { 64 };
    spoil(&mut group[from..(64 + bytes).min(len).max(from + 1)], rng);
    seal(group);
}

/// Where a child is named in its parent, and which node it is.
fn children(page: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut found) = (HEADER, Vec::new());
    for _ in 0..u16_at(page, 26) {
        if at + 14 > NODE {
            break;
        }
        let (separator, prefix, both) = (u16_at(page, at), u16_at(page, at + 2), u16_at(page, at + 4));
        found.push((at + 6, u32_at(page, at + 6) as usize));
        at += 14 + separator + prefix.saturating_sub(both);
    }
    found
}

/// A way from a root down: places of `slot, sum` pairs, from the superblock's on, and the node each leads to.
fn path_to_leaf(image: &[u8], shape: &Shape, rng: &mut fastrand::Rng) -> Vec<(usize, usize)> {
    let root = ROOTS + 12 * rng.usize(..2);
    let mut path_to_leaf = vec![(root, u32_at(image, root) as usize)];
    for _ in 0..16 {
        let (_, slot) = path_to_leaf[path_to_leaf.len() - 1];
        let at = shape.nodes + slot * NODE;
        if slot >= shape.slots || image[at + 24] == 0 || rng.u8(..5) == 0 {
            break;
        }
        let all = children(&image[at..at + NODE]);
        let Some((place, slot)) = all.get(rng.usize(..all.len().max(1))).copied() else { break };
        path_to_leaf.push((at + place, slot));
    }
    path_to_leaf
}

fn node(image: &mut [u8], shape: &Shape, rng: &mut fastrand::Rng) {
    let mut path_to_leaf = path_to_leaf(image, shape, rng);
    let (place, slot) = path_to_leaf[path_to_leaf.len() - 1];
    if slot >= shape.slots {
        return;
    }
    let at = shape.nodes + slot * NODE;
    if rng.u8(..12) == 0 && path_to_leaf.len() > 1 {
        // The way leads to another node, which others lead to as well.
        let other = rng.usize(..shape.slots);
        let sum = u32_at(image, shape.nodes + other * NODE);
        put_u32(image, place, other as u32);
        put_u32(image, place + 4, sum);
        path_to_leaf.pop();
    } else {
        change(&mut image[at..at + NODE], rng);
    }
    for (place, slot) in path_to_leaf.into_iter().rev() {
        let at = shape.nodes + slot * NODE;
        let sum = crc32c::crc32c(&image[at + 4..at + NODE]);
        put_u32(image, at, sum);
        put_u32(image, place + 4, sum);
    }
    both_superblocks(image);
}

/// Some of a node.
fn change(page: &mut [u8], rng: &mut fastrand::Rng) {
    // It may have been forged before.
    let (level, count) = (page[24], u16_at(page, 26).min((NODE - HEADER) / 2));
    match rng.u8(..10) {
        0 => spoil(&mut page[8..32], rng),
        1 => spoil(&mut page[HEADER..HEADER + 100], rng),
        2 => spoil(&mut page[HEADER..], rng),
        _ if level > 0 => {
            let all = children(page);
            let Some((at, _)) = all.get(rng.usize(..all.len().max(1))).copied() else { return };
            spoil(&mut page[at - 6..(at + 40).min(NODE)], rng);
        }
        _ if count == 0 => page[26] = rng.u8(..),
        kind => {
            let at = u16_at(page, HEADER + 2 * rng.usize(..count));
            if at + 4 > NODE {
                return;
            }
            let (key, value) = (u16_at(page, at), u16_at(page, at + 2));
            let end = (at + 4 + key + value).min(NODE);
            let value_at = (at + 4 + key).min(end);
            match kind {
                3 => spoil(&mut page[at..(at + 4 + key).min(NODE)], rng),
                4 | 5 => spoil(&mut page[value_at..end.min(value_at + 4)], rng),
                6 | 7 => spoil(&mut page[value_at..end.min(value_at + 96)], rng),
                _ => spoil(&mut page[end.min(value_at + 88)..end], rng),
            }
        }
    }
}
