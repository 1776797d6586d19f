//! MariaDB: loads the largest table of TPC-H and runs query 1 over it, with cold caches.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tpchgen::distribution::Distributions;
use tpchgen::generators::LineItemGenerator;
use tpchgen::text::TextPool;

use super::drives::{Drives, drop_page_cache};
use super::result_table::{Metric, ResultTable};
use crate::experiment::Need;
use crate::experiment::{Context, Experiment, RunScale};
use crate::lab::{DriveSpeed, Lab, throttle};
use crate::outcome::Outcome;
use crate::programs;

const NAME: &str = "tpch-mariadb";

/// The experiment as `hotshelf bench` lists it.
pub const EXPERIMENT: Experiment = Experiment {
    name: NAME,
    about: "MariaDB with its data on the mount and on ext4: TPC-H's lineitem is loaded, and query 1 asked when nothing of it is in memory",
    source: "HyCache, Fig. 14",
    paper: "9 % faster than ext4 on the HDD over all (MySQL, MyISAM, scale 1 and 100)",
    peers: "ext4 on the same HDD stand-in",
    devices: "loop devices over files in --dir: HDD 144 and 142 MB/s, SSD 480 and 330 MB/s (the paper's Table I), by a control group",
    needs: &[
        Need::Root,
        Need::Loop,
        Need::Fuse,
        Need::Throttle,
        Need::Program("mariadbd", "mariadb-server"),
        Need::Program("mariadb-install-db", "mariadb-server"),
        Need::Program("mariadb", "mariadb-client"),
        Need::Program("mkfs.ext4", "e2fsprogs"),
    ],
    room_mib: (260, 7000),
    takes: (6, 400),
    run,
};

const LOAD: Metric = ("time_load", "s");
const QUERY: Metric = ("time_query", "s");
const SIDES: [&str; 2] = ["hotshelf", "ext4 on the HDD"];

/// The table uses MyISAM; InnoDB would fill the drives with its log and files.
const WITHOUT_INNODB: [&str; 2] = ["--skip-innodb", "--default-storage-engine=MyISAM"];

const TABLE: &str = "CREATE DATABASE tpch CHARACTER SET latin1; CREATE TABLE tpch.lineitem (l_orderkey INTEGER NOT NULL, \
    l_partkey INTEGER NOT NULL, l_suppkey INTEGER NOT NULL, l_linenumber INTEGER NOT NULL, l_quantity DECIMAL(15,2) NOT NULL, \
    l_extendedprice DECIMAL(15,2) NOT NULL, l_discount DECIMAL(15,2) NOT NULL, l_tax DECIMAL(15,2) NOT NULL, \
    l_returnflag CHAR(1) NOT NULL, l_linestatus CHAR(1) NOT NULL, l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL, \
    l_receiptdate DATE NOT NULL, l_shipinstruct CHAR(25) NOT NULL, l_shipmode CHAR(10) NOT NULL, l_comment VARCHAR(44) NOT NULL) \
    ENGINE=MyISAM";
const QUERY_1: &str = "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), \
    sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), \
    avg(l_extendedprice), avg(l_discount), count(*) FROM tpch.lineitem WHERE l_shipdate <= date '1998-12-01' - interval '72' day \
    GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus";

fn run(context: &Context) -> anyhow::Result<Outcome> {
    let mut lab = Lab::new(context)?;
    let scale = context.pick(0.01, 1.0);
    context.progress.set_message("making the table's rows");
    let rows = lab.dir().join("lineitem.tbl");
    make_rows(context, &rows, scale)?;
    let system_tables = make_system_tables(&mut lab)?;
    let mib = context.pick(100, 2500);
    let drives = Drives::new(&mut lab, (mib, mib), &DriveSpeed::SSD, &DriveSpeed::HDD_SEQUENTIAL, &[])?;
    let dirs = [drives.pair.dir.join("data"), drives.plain_hdd()?.join("data")];
    let below = drives.pair.ssd.join("data");
    context.progress.set_length(u64::from(context.runs) * 2);
    let (mut table, mut answers) = (ResultTable::new(NAME), Vec::new());
    context.interleave(SIDES.len(), |_, side| {
        context.progress.set_message(SIDES[side]);
        let files = [&dirs[side], &below].map(|dir| dir.join("tpch/lineitem.MYD"));
        programs::run(context, "cp", &["-a".as_ref(), system_tables.as_os_str(), dirs[side].as_os_str()])?;
        let server = Server::start(&mut lab, &dirs[side])?;
        server.ask(TABLE)?;
        let begun = Instant::now();
        server.ask(&format!("LOAD DATA LOCAL INFILE '{}' INTO TABLE tpch.lineitem FIELDS TERMINATED BY '|'", rows.display()))?;
        drop_page_cache(&files)?;
        table.add(SIDES[side], &case(scale), LOAD, begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        answers.push(server.ask(QUERY_1)?);
        table.add(SIDES[side], &case(scale), QUERY, begun.elapsed().as_secs_f64());
        server.stop()?;
        std::fs::remove_dir_all(&dirs[side])?;
        Ok(())
    })?;
    let same = answers.windows(2).all(|pair| pair[0] == pair[1]) && answers[0].lines().count() == 4;
    ensure!(same, "the answers are not the same on both sides, or not TPC-H's four groups");
    let mut outcome = Outcome { rows: table.rows(), ..Outcome::default() };
    let why = "MariaDB's own work is most of it, as in the paper; the paper's figure is over loading and asking together";
    for metric in [LOAD, QUERY] {
        outcome.claims.extend(table.claim(&case(scale), metric, SIDES[0], SIDES[1]).map(|claim| claim.paper(1.0 / 1.09).why(why)));
    }
    outcome.notes.push(format!("scale {scale}; rows by the crate tpchgen; MyISAM; the drives are slowed down by {}", throttle::how()));
    outcome.notes.push("the load ends when the table is on its drive; both sides gave the same answer to query 1".into());
    Ok(outcome)
}

fn case(scale: f64) -> String {
    format!("scale {scale}")
}

fn make_rows(context: &Context, path: &Path, scale: f64) -> anyhow::Result<()> {
    let mut file = BufWriter::new(File::create(path).with_context(|| format!("{}", path.display()))?);
    let few_comments;
    let rows = if context.scale == RunScale::Small {
        // The standard pool of comments has 300 MiB and takes longer to generate than the rows.
        let distributions = Distributions::static_default();
        few_comments = TextPool::new(1 << 20, distributions);
        LineItemGenerator::new_with_distributions_and_text_pool(scale, 1, 1, distributions, &few_comments)
    } else {
        LineItemGenerator::new(scale, 1, 1)
    };
    for (at, row) in rows.iter().enumerate() {
        if at % 10_000 == 0 {
            context.check_stopped()?;
        }
        writeln!(file, "{row}").with_context(|| format!("{}", path.display()))?;
    }
    file.flush().with_context(|| format!("{}", path.display()))
}

/// Creates the data directory of a new server. It is created in memory and copied to the drives, because its thousand flushes are not part
/// of the measurement.
fn make_system_tables(lab: &mut Lab<'_>) -> anyhow::Result<PathBuf> {
    lab.context().progress.set_message("making MariaDB's own tables");
    let dir = lab.tmpfs("system", 64)?.join("data");
    std::fs::create_dir(&dir)?;
    let data = format!("--datadir={}", dir.display());
    let words = ["--no-defaults", "--user=root", &data, "--skip-test-db", "--auth-root-authentication-method=normal"];
    let words: Vec<&std::ffi::OsStr> = words.into_iter().chain(WITHOUT_INNODB).map(std::ffi::OsStr::new).collect();
    programs::run(lab.context(), "mariadb-install-db", &words)?;
    Ok(dir)
}

/// A server with its own data directory.
struct Server<'c> {
    context: &'c Context,
    child: Child,
    socket: PathBuf,
}

impl<'c> Server<'c> {
    fn start(lab: &mut Lab<'c>, dir: &Path) -> anyhow::Result<Server<'c>> {
        let (context, data) = (lab.context(), format!("--datadir={}", dir.display()));
        let socket = lab.dir().join("sock");
        let log = File::create(lab.dir().join("mariadb.log"))?;
        let child = Command::new(crate::programs::find("mariadbd").context("mariadbd")?)
            .args(["--no-defaults", "--user=root", &data, "--skip-networking", "--local-infile=1", "--skip-grant-tables"])
            .args(WITHOUT_INNODB)
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--pid-file={}", lab.dir().join("pid").display()))
            .arg(format!("--tmpdir={}", lab.dir().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("mariadbd")?;
        lab.will_end(&child)?;
        let mut server = Server { context, child, socket };
        server.wait()?;
        Ok(server)
    }

    /// Waits until the server answers.
    fn wait(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while self.ask("SELECT 1").is_err() {
            self.context.check_stopped()?;
            if let Some(status) = self.child.try_wait()? {
                bail!("mariadbd ended: {status}");
            }
            ensure!(Instant::now() < until, "mariadbd does not answer within a minute");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn ask(&self, sql: &str) -> anyhow::Result<String> {
        let socket = format!("--socket={}", self.socket.display());
        let words = ["--no-defaults", &socket, "--local-infile=1", "--batch", "--skip-column-names", "-e", sql];
        let said = programs::run(self.context, "mariadb", &words.map(std::ffi::OsStr::new))?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    fn stop(mut self) -> anyhow::Result<()> {
        self.ask("SHUTDOWN")?;
        let status = programs::wait(self.context, &mut self.child)?;
        ensure!(status.success(), "mariadbd ended: {status}");
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn rows_have_the_columns_of_the_table() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("rows");
        make_rows(&Context::small(".".into()), &path, 0.001).expect("made");
        let text = std::fs::read_to_string(path).expect("read");
        // Each row also ends with a separator.
        assert!(text.lines().count() > 5_000 && text.lines().all(|line| line.split('|').count() == TABLE.matches("l_").count() + 1));
    }
}
