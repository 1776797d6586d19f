//! Grants and queues as people read them.

use block::broker::protocol::QueueStat;
use block::broker::{Grant, Who};
use indicatif::BinaryBytes;

use super::who;

/// Prints the grants, one on each line.
pub fn grants(grants: &[Grant]) {
    if grants.is_empty() {
        say!("nobody may have queues: `hotshelf queue grant` allows somebody");
        return;
    }
    let head = ["GRANT", "WHO", "DEVICE", "FIRST", "BLOCKS", "QUEUES", "DEPTH", "ACCESS", "MEMORY", "LIMITS"];
    table(
        &head,
        grants.iter().map(|grant| {
            let terms = &grant.terms;
            let limits =
                [terms.bytes_per_s.map(|rate| format!("{}/s", size(rate))), terms.requests_per_s.map(|rate| format!("{rate} IOPS"))];
            let limits: Vec<String> = limits.into_iter().flatten().collect();
            vec![
                grant.id.0.to_string(),
                who::name(terms.who),
                terms.device.clone(),
                terms.first.to_string(),
                terms.blocks.map_or("to the end".into(), |blocks| blocks.to_string()),
                terms.queues.to_string(),
                terms.depth.to_string(),
                access(terms.read_only),
                size(terms.memory_bytes),
                if limits.is_empty() { "none".into() } else { limits.join(", ") },
            ]
        }),
    );
}

/// Prints the queues that are in use, one on each line.
pub fn queues(queues: &[QueueStat]) {
    if queues.is_empty() {
        say!("no queue is open");
        return;
    }
    let head = ["QUEUE", "USER", "PID", "DEVICE", "FIRST", "BLOCKS", "DEPTH", "ACCESS", "REQUESTS", "BYTES", "ERRORS", "REFUSED"];
    table(
        &head,
        queues.iter().map(|queue| {
            vec![
                queue.queue.to_string(),
                who::name(Who::User(queue.user)),
                queue.pid.to_string(),
                queue.device.clone(),
                queue.first.to_string(),
                queue.blocks.to_string(),
                queue.depth.to_string(),
                if queue.lost { "lost".into() } else { access(queue.read_only) },
                queue.requests.to_string(),
                size(queue.bytes),
                queue.errors.to_string(),
                queue.refused.to_string(),
            ]
        }),
    );
}

fn size(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

fn access(read_only: bool) -> String {
    if read_only { "read".into() } else { "read, write".into() }
}

/// Columns as wide as they need.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let rows: Vec<Vec<String>> = std::iter::once(head.iter().map(|word| (*word).to_owned()).collect()).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say!("{}", cells.join("  ").trim_end());
    }
}
