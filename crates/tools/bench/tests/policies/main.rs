//! The product's own cache code on traces, compared with published figures and slow oracles; and the effect of a scan on both tiers.
//!
//! Set HOTSHELF_TRACES to the directory of the published traces; tests that need them print `SKIP` without it.

mod lfu;
mod scan;
mod traces;

use std::path::PathBuf;

use bench::replay::Trace;
use bench::replay::reference::{self, Reference};

fn is_full() -> bool {
    std::env::var_os("FULL").is_some_and(|full| full == "1")
}

/// Returns a published trace and its figures. `None`: the trace is absent.
fn published(name: &str) -> Option<(Trace, Vec<&'static Reference>)> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces");
    let dir = std::env::var_os("HOTSHELF_TRACES").map_or(beside, PathBuf::from);
    let paths = ["csv.gz", "trace.gz"].map(|end| dir.join(format!("{name}.{end}")));
    let Some(path) = paths.iter().find(|path| path.exists()) else {
        println!("SKIP: no trace {name}: no ../shared/traces beside the checkout, and HOTSHELF_TRACES names no other place");
        return None;
    };
    let trace = Trace::read(path).expect("a trace");
    let figures: Vec<&Reference> = reference::ALL.iter().filter(|one| one.trace == name).collect();
    assert_eq!(figures.len(), 2);
    for one in &figures {
        assert_eq!((trace.pages.len() as u64, trace.distinct), (one.requests, one.distinct), "the trace of the published figures");
    }
    assert_eq!([trace.share(1.0), trace.share(10.0)], [figures[0].pages, figures[1].pages]);
    Some((trace, figures))
}
