//! Five traces at two sizes each: FIFO and LRU exact to the request, S3-FIFO within 1 %.

use bench::replay::{Cache, Files, Shared, misses};
use pagecache::Replacement;
use pagecache::Shape;

use crate::published;

fn shared(pages: u32, shards: u32, replacement: Replacement, seed: u64) -> Box<dyn Cache> {
    Box::new(Shared::new(&Shape { shards, replacement, ..Shape::new(pages) }, seed).expect("memory"))
}

fn files(pages: u32, name: &str) -> Box<dyn Cache> {
    Box::new(Files::new(name, pages).expect("built in"))
}

fn agrees(name: &str) {
    let Some((trace, figures)) = published(name) else { return };
    for one in figures {
        let exact = [
            ("frames, FIFO", shared(one.pages, 1, Replacement::Fifo, 1), one.fifo),
            ("frames, LRU", shared(one.pages, 1, Replacement::Lru, 1), one.lru),
            ("files, FIFO", files(one.pages, "fifo"), one.fifo),
            ("files, LRU", files(one.pages, "lru"), one.lru),
        ];
        for (what, mut cache, published) in exact {
            assert_eq!(misses(&mut *cache, &trace), published, "{name}, {} pages, {what}", one.pages);
        }
        // Hash collisions of the ghosts depend on the seed; with many pages only slightly.
        for seed in 1..=if one.pages < 1000 { 5 } else { 1 } {
            let ours = misses(&mut *shared(one.pages, 1, Replacement::S3Fifo, seed), &trace);
            near(name, &format!("frames, seed {seed}"), one.pages, one.s3_fifo, ours);
        }
    }
}

/// Asserts at most 1 % more misses than published.
fn near(name: &str, what: &str, pages: u32, published: u64, ours: u64) {
    let off = 100.0 * (ours as f64 / published as f64 - 1.0);
    println!("{name}, {pages} pages, {what}, S3-FIFO: {ours} misses, published {published} ({off:+.2} %)");
    assert!(off <= 1.0, "{name}, {pages} pages, {what}: S3-FIFO misses {ours} times, published {published}");
}

#[test]
fn cloud_physics() {
    if cfg!(debug_assertions) && !crate::is_full() {
        println!("SKIP: a million requests without optimisation take a minute: cargo test --release, or FULL=1");
        return;
    }
    agrees("cloudPhysicsIO");
}

#[test]
fn sprite() {
    agrees("sprite");
}

#[test]
fn two_pools() {
    agrees("2_pools");
}

#[test]
fn a_loop() {
    agrees("loop");
}

#[test]
fn multi2() {
    agrees("multi2");
}

/// The cost of independent shards.
#[test]
fn shards_of_the_usual_size_cost_little() {
    if cfg!(debug_assertions) && !crate::is_full() {
        println!("SKIP: millions of requests without optimisation take a minute: cargo test --release, or FULL=1");
        return;
    }
    let Some((trace, figures)) = published("cloudPhysicsIO") else { return };
    near("cloudPhysicsIO", "frames, 4 shards", figures[1].pages, figures[1].s3_fifo, {
        misses(&mut *shared(figures[1].pages, 4, Replacement::S3Fifo, 1), &trace)
    });
    let pages = trace.share(20.0);
    let usual = Shape::new(pages).shards;
    assert!(usual > 1);
    let [one, usual] = [1, usual].map(|shards| misses(&mut *shared(pages, shards, Replacement::S3Fifo, 1), &trace));
    assert!(usual as f64 <= one as f64 * 1.01, "{usual} misses, {one} with one shard");
}
