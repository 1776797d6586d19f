//! LFU compared with a slow oracle, exact to the request.
//!
//! The rule: the page with the fewest opens is evicted, counted up to 255; among equals, the one opened least recently. After ten opens
//! for each page (at least 10,000) all counts are halved, but not below one, and the order is kept.

use bench::replay::{Cache, Files, Trace, synthetic};

use crate::published;

const TOP: u32 = 255;

/// Pages and their opens, least recently opened first.
#[derive(Default)]
struct Oracle {
    pages: Vec<(u64, u32)>,
    room: usize,
    hits: usize,
}

impl Cache for Oracle {
    fn access(&mut self, page: u64) -> bool {
        if let Some(at) = self.pages.iter().position(|(other, _)| *other == page) {
            let (_, opens) = self.pages.remove(at);
            self.pages.push((page, TOP.min(opens + 1)));
            self.hits += 1;
            if self.hits > 10 * self.pages.len().max(1000) {
                self.hits = 0;
                // A stable sort keeps the order among equals.
                self.pages.sort_by_key(|(_, opens)| *opens);
                self.pages.iter_mut().for_each(|(_, opens)| *opens = (*opens / 2).max(1));
            }
            return true;
        }
        if self.pages.len() == self.room {
            let fewest = self.pages.iter().map(|(_, opens)| *opens).min().expect("full");
            let at = self.pages.iter().position(|(_, opens)| *opens == fewest).expect("there is one");
            self.pages.remove(at);
        }
        self.pages.push((page, 1));
        false
    }
}

fn exact(trace: &Trace, pages: u32) {
    let mut oracle = Oracle { room: pages as usize, ..Oracle::default() };
    let mut ours = Files::new("lfu", pages).expect("built in");
    for (at, page) in trace.pages.iter().enumerate() {
        assert_eq!(ours.access(*page), oracle.access(*page), "{}, {pages} pages: request {at}, of page {page}", trace.name);
    }
}

fn exact_on(name: &str) {
    if let Some((trace, figures)) = published(name) {
        figures.iter().for_each(|one| exact(&trace, one.pages));
    }
}

#[test]
fn sprite() {
    exact_on("sprite");
}

#[test]
fn two_pools() {
    exact_on("2_pools");
}

#[test]
fn multi2() {
    exact_on("multi2");
}

#[test]
fn what_is_made_up() {
    for trace in synthetic(3, 60_000) {
        [20, 600].into_iter().for_each(|pages| exact(&trace, pages));
    }
}

#[test]
fn the_beginning_of_cloud_physics_and_all_of_it_at_leisure() {
    let Some((mut trace, figures)) = published("cloudPhysicsIO") else { return };
    if !crate::is_full() {
        trace.pages.truncate(60_000);
    }
    exact(&trace, figures[0].pages);
}
