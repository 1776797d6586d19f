use super::seal::Seal;
use super::superblock::{COPIES, Root, Superblock};
use super::version::VERSION;
use super::{Shape, bitmap, put_u32};
use crate::error::Error;
use crate::tree::NodeAt;
use crate::units::{Block, Extent, Lsn};

#[test]
fn regions_of_every_size_lie_side_by_side_within_the_device() {
    for blocks in [2048, 5000, 1 << 16, 1 << 20, 1 << 28, 1 << 38] {
        let shape = Shape::new(blocks, None, None).expect("fits");
        assert!(shape.data_start().0 + shape.data_blocks <= blocks);
        assert!(blocks - shape.data_start().0 - shape.data_blocks < 1 << 20, "little is left over");
        assert_eq!(shape.page_at(0), shape.log_start().after(shape.log_blocks));
        assert_eq!(shape.node_at(0), Some(shape.page_at(shape.node_pages() + shape.data_pages())));
        assert_eq!(shape.node_at(shape.nodes as u32 - 1).map(|at| at.after(super::NODE_BLOCKS)), Some(shape.data_start()));
        assert!(shape.nodes > u64::from(u32::MAX) || shape.node_at(shape.nodes as u32).is_none());
        let last = shape.data_start().after(shape.data_blocks - 1);
        assert!(shape.data_range(Extent::new(last, 1)).is_some() && shape.data_range(Extent::new(last, 2)).is_none());
        assert!(shape.data_range(Extent::new(Block(0), 1)).is_none() && shape.data_range(Extent::new(last, 0)).is_none());
        assert!(shape.data_range(Extent::new(Block(u64::MAX), 1)).is_none());
    }
    assert!(matches!(Shape::new(1000, None, None), Err(Error::Sizes(_))));
    assert!(matches!(Shape::new(10_000, Some(4096), None), Err(Error::Sizes(_))));
    assert!(matches!(Shape::new(10_000, None, Some(u64::MAX)), Err(Error::Sizes(_))));
}

fn superblock() -> Superblock {
    Superblock {
        uuid: *b"0123456789abcdef",
        generation: 7,
        shape: Shape::new(1 << 16, None, None).expect("fits"),
        clean: true,
        life: 3,
        lsn: Lsn(99),
        log_position: 1234,
        roots: [Root { at: NodeAt { slot: 5, sum: 6 }, level: 1 }, Root { at: NodeAt { slot: 8, sum: 9 }, level: 0 }],
    }
}

#[test]
fn a_superblock_is_read_as_it_was_written_and_only_from_its_place() {
    let ours = superblock();
    for at in COPIES {
        let mut block = ours.encode(at);
        assert_eq!(Superblock::decode(&block, at), Ok(ours));
        assert_eq!(Superblock::decode(&block, Block(9)), Err(Error::NoImage));
        block[511] ^= 1;
        assert_eq!(Superblock::decode(&block, at), Err(Error::NoImage));
        assert_eq!(Superblock::decode(&block[..100], at), Err(Error::NoImage));
    }
}

#[test]
fn the_version_before_is_read_and_a_later_one_refused() {
    let (ours, at) = (superblock(), COPIES[0]);
    let of = |version: u32| {
        let mut block = ours.encode(at);
        put_u32(&mut block, 32, version);
        let seal = Seal::peek(&block).expect("a whole one");
        seal.put(&mut block[..512]);
        Superblock::decode(&block, at)
    };
    let later = Error::Later { version: VERSION + 1, known: VERSION };
    assert_eq!((of(1), of(VERSION), of(VERSION + 1)), (Ok(ours), Ok(ours), Err(later)));
    assert!(matches!(of(0), Err(Error::Damaged { .. })));
}

#[test]
fn a_page_of_a_bitmap_counts_at_its_place_and_in_its_image() {
    let words: Vec<u64> = (0..bitmap::PAGE_WORDS as u64).collect();
    let mut page = bitmap::encode(&words, Block(5), 7, 1);
    assert_eq!(bitmap::generation(&page, Block(5), 1), Some(7));
    assert_eq!(bitmap::words(&page).collect::<Vec<_>>(), words);
    assert_eq!((bitmap::generation(&page, Block(6), 1), bitmap::generation(&page, Block(5), 2)), (None, None));
    page[4000] ^= 4;
    assert_eq!(bitmap::generation(&page, Block(5), 1), None);
}
