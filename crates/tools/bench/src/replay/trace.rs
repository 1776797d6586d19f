//! Traces: page numbers in order of their requests.
//!
//! Supported formats, each also compressed with gzip (detected by content):
//! - one page number in a line; lines that begin with `*` are skipped (traces of the LIRS authors);
//! - a table of disk requests with the header `version,time,op,size,lbn`: bytes and 512-byte blocks, split into 4 KiB pages (CloudPhysics
//!   traces of libCacheSim). Columns may be in any order; `time`, `op` and `version` are ignored.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use flate2::bufread::MultiGzDecoder;

const BLOCK: u64 = 512;
const PAGE: u64 = 4096;
/// The limit of page numbers in both caches.
const PAGE_END: u64 = ssdcache::PAGE_INDEX_END;
/// Maximum requests of one trace: 8 bytes of memory each.
const REQUESTS_MAX: usize = 1 << 28;

/// A named sequence of page numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// File name without extensions, or a description.
    pub name: String,
    /// All requested pages, in order.
    pub pages: Vec<u64>,
    /// Number of distinct pages requested.
    pub distinct: u64,
}

impl Trace {
    /// Creates a trace from pages.
    pub fn new(name: &str, pages: Vec<u64>) -> Trace {
        let distinct = pages.iter().collect::<HashSet<_>>().len() as u64;
        Trace { name: name.into(), pages, distinct }
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is invalid; the error names it.
    pub fn read(path: &Path) -> anyhow::Result<Trace> {
        let shown = path.display();
        let mut file = BufReader::new(File::open(path).with_context(|| format!("{shown}"))?);
        let is_gzip = file.fill_buf().with_context(|| format!("{shown}"))?.starts_with(&[0x1f, 0x8b]);
        file.rewind().with_context(|| format!("{shown}"))?;
        let text: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let pages = parse(BufReader::new(text)).with_context(|| format!("{shown}"))?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Trace::new(name.split('.').next().unwrap_or(&name), pages))
    }

    /// Returns a percentage of the distinct pages, as in the published figures; at least one.
    pub fn share(&self, percent: f64) -> u32 {
        ((self.distinct as f64 * percent / 100.0) as u32).max(1)
    }
}

/// The format of a line.
enum TraceFormat {
    Numbers,
    /// Columns of size and block.
    Table(usize, usize),
}

fn parse(text: impl BufRead) -> anyhow::Result<Vec<u64>> {
    let (mut pages, mut form) = (Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        let line = line.with_context(|| format!("line {}", at + 1))?;
        let line = line.trim();
        let form = match &form {
            Some(form) => form,
            None if line.contains(',') => {
                form = Some(header(line)?);
                continue;
            }
            None => form.insert(TraceFormat::Numbers),
        };
        if line.is_empty() || line.starts_with('*') {
            continue;
        }
        line_of(form, line, &mut pages).with_context(|| format!("line {}: `{}`", at + 1, line.chars().take(60).collect::<String>()))?;
    }
    ensure!(!pages.is_empty(), "there is no request in it");
    Ok(pages)
}

fn header(line: &str) -> anyhow::Result<TraceFormat> {
    let column = |name: &str| line.split(',').position(|word| word.trim() == name);
    match (column("size"), column("lbn")) {
        (Some(size), Some(lbn)) => Ok(TraceFormat::Table(size, lbn)),
        _ => bail!("its first line names no columns `size` and `lbn`: `{}`", line.chars().take(60).collect::<String>()),
    }
}

fn line_of(form: &TraceFormat, line: &str, pages: &mut Vec<u64>) -> anyhow::Result<()> {
    let number = |word: Option<&str>| word.and_then(|word| word.trim().parse::<u64>().ok()).context("a number is missing");
    let range = match form {
        TraceFormat::Numbers => {
            let page = number(Some(line))?;
            page..page.checked_add(1).context("too large a page")?
        }
        TraceFormat::Table(size, lbn) => {
            let [size, lbn] = [*size, *lbn].map(|column| number(line.split(',').nth(column)));
            let begin = lbn?.checked_mul(BLOCK).context("too large a block")?;
            let end = begin.checked_add(size?).context("too long a request")?;
            begin / PAGE..end.div_ceil(PAGE)
        }
    };
    ensure!(range.end <= PAGE_END, "pages beyond 32 TiB are not cached");
    ensure!((range.end - range.start) as usize <= REQUESTS_MAX - pages.len(), "more than {REQUESTS_MAX} requests");
    pages.extend(range);
    Ok(())
}

/// Generates traces: a Zipf distribution, the same with scans in between, and a loop slightly larger than most caches. The seed determines
/// them.
pub fn synthetic(seed: u64, requests: usize) -> Vec<Trace> {
    const PAGES: u64 = 20_000;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut zipf = Zipf::new(PAGES, 0.9);
    let skewed: Vec<u64> = (0..requests).map(|_| zipf.draw(&mut random)).collect();
    let mut scanned = Vec::with_capacity(requests);
    let mut next = PAGES;
    for piece in skewed.chunks(1000) {
        scanned.extend(piece);
        scanned.extend(next..next + 500);
        next += 500;
    }
    scanned.truncate(requests);
    let loops = (0..requests as u64).map(|at| at % (PAGES / 8)).collect();
    vec![Trace::new("zipf 0.9", skewed), Trace::new("zipf 0.9 and scans", scanned), Trace::new("loop", loops)]
}

/// Draws ranks with a frequency of 1 / rank^power, by cumulative sums; the pages are scattered.
#[derive(Debug)]
pub struct Zipf {
    sums: Vec<f64>,
    pages: Vec<u64>,
}

impl Zipf {
    /// Creates a generator of pages 0 to `pages`, at least one; power 0 is uniform.
    pub fn new(pages: u64, power: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=pages).map(|rank| {
            sum += (rank as f64).powf(-power);
            sum
        });
        let sums = sums.collect();
        let mut pages: Vec<u64> = (0..pages).collect();
        // Popularity is independent of position.
        fastrand::Rng::with_seed(pages.len() as u64).shuffle(&mut pages);
        Zipf { sums, pages }
    }

    /// Returns the next random page.
    pub fn draw(&mut self, random: &mut fastrand::Rng) -> u64 {
        let at = random.f64() * self.sums.last().copied().unwrap_or(0.0);
        let rank = self.sums.partition_point(|sum| *sum < at);
        self.pages[rank.min(self.pages.len() - 1)]
    }
}

#[cfg(test)]
mod test {
    use std::io::Write;

    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Vec<u64>> {
        parse(text.as_bytes())
    }

    #[test]
    fn both_forms_are_read() {
        assert_eq!(parsed("3\n*\n1\r\n* 7\n\n3\n").expect("numbers"), [3, 1, 3]);
        let table = "version,time,op,size,lbn\n1,5,2a,512,0\n1,6,28,8192,7\n1,7,28,4096,16\n";
        assert_eq!(parsed(table).expect("a table"), [0, 0, 1, 2, 2], "a request that begins in one page and ends in the next but one");
        assert_eq!(parsed("lbn,size\n8,1\n").expect("a table"), [1]);
    }

    #[test]
    fn what_is_no_trace_is_reported_with_its_line() {
        let wrong = |text: &str| format!("{:#}", parsed(text).expect_err("no trace"));
        assert!(wrong("1\n2\nthree\n").contains("line 3: `three`"));
        assert!(wrong("size,lbn\n512\n").contains("line 2"));
        assert!(wrong("time,op\n1,2\n").contains("lbn"));
        assert!(wrong("").contains("no request"));
        assert!(wrong("18446744073709551615\n").contains("too large"));
        assert!(wrong("size,lbn\n18446744073709551615,0\n").contains("32 TiB"));
        assert!(wrong("size,lbn\n1,18446744073709551615\n").contains("too large"));
        assert!(wrong("size,lbn\n8796093022208,0\n").contains("more than"));
    }

    #[test]
    fn gzip_is_recognized_by_its_bytes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("some.trace");
        let mut file = flate2::write::GzEncoder::new(File::create(&path).expect("made"), flate2::Compression::default());
        file.write_all(b"1\n2\n1\n").expect("written");
        file.finish().expect("written");
        assert_eq!(Trace::read(&path).expect("read"), Trace { name: "some".into(), pages: vec![1, 2, 1], distinct: 2 });
        std::fs::write(&path, "4\n").expect("written");
        assert_eq!(Trace::read(&path).expect("read").pages, [4]);
    }

    #[test]
    fn what_is_made_up_is_the_same_each_time() {
        let [zipf, scans, loops]: [Trace; 3] = synthetic(1, 10_000).try_into().expect("three");
        assert_eq!(zipf, synthetic(1, 10_000)[0]);
        assert!(scans.distinct > 3000 && loops.distinct == 2500);
        let count = |page: u64| zipf.pages.iter().filter(|other| **other == page).count();
        let most = zipf.pages.iter().map(|page| count(*page)).take(100).max().expect("some");
        assert!(most > 300, "the most popular page is requested {most} times");
    }
}
