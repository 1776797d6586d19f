//! A device that refuses writes for good.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use block::Op;
use rawfs::Settings;
use rawfs::fs::{Fs, FsSettings};
use sim::device::fault::{Fault, FaultRule, FaultTrigger};

use super::machine::Machine;
use super::{SCHEMA, connect, formatted, is_clean, is_whole, modes, mount, rows, unmount};

/// Opens an image as SQLite does when it is named.
fn open_as_named(machine: &Arc<Machine>) -> Fs {
    let settings = Settings { node_cache_bytes: 1 << 20, background: false, ..Settings::default() };
    let files = FsSettings { write_back: Duration::ZERO, ..FsSettings::default() };
    hotshelf_sqlite::image::open_on(machine.disk(), || Some(machine.disk()), &settings, &files).expect("opens")
}

/// The device fails writes, also when the image is closed and opened again: all that was acknowledged is read, and nothing else. When it
/// takes writes again, the next opening writes.
#[test]
fn an_image_whose_device_refuses_all_writes_is_read() {
    for mode in modes().into_iter().filter(|mode| mode.synchronous == "full" && mode.undoes()) {
        for (n, is_closed) in [(1, false), (2, false), (5, false), (1, true)] {
            let machine = formatted(12 << 20);
            let name = format!("/refused-{}-{n}-{is_closed}", mode.journal);
            mount(&machine, &name);
            let db = connect(&name);
            db.run(&mode.pragmas()).expect("set");
            db.run(SCHEMA).expect("made");
            db.run("insert into t values(1, randomblob(20000)); insert into u values(2, randomblob(70000))").expect("made");
            let refuse = |from, error| machine.faults.add(FaultRule::new(FaultTrigger::From(from), Fault::Fail(error)).on(&[Op::Write]));
            let mut acknowledged = vec![[(1, 1), (1, 2)]];
            if is_closed {
                drop(db);
                unmount(&name).close().expect("closed");
            } else {
                refuse(n, block::Error::Media);
                let mut keys =
                    (3..9).filter(|key| db.run(&format!("insert into t values({key}, randomblob(3000))")).is_ok()).collect::<Vec<i64>>();
                keys.insert(0, 1);
                acknowledged = vec![[(keys.len() as i64, keys.iter().sum()), (1, 2)]];
                assert_eq!(rows(&db), Ok(acknowledged[0]), "{mode:?}, {n}: while writes fail");
                machine.faults.clear();
                refuse(1, block::Error::NoSpace);
                drop(db);
                let _ = unmount(&name).close();
                // The statement that failed last may be on the device.
                let (count, sum) = acknowledged[0][0];
                acknowledged.extend((3..9).map(|key| [(count + 1, sum + key), (1, 2)]));
            }
            machine.faults.clear();
            refuse(1, block::Error::NoSpace);
            hotshelf_sqlite::image::mount(Path::new(&name), open_as_named(&machine)).expect("mounted");
            let db = connect(&name);
            let seen = rows(&db).unwrap_or_else(|code| panic!("{mode:?}, {n}: reading fails with {code}"));
            assert!(acknowledged.contains(&seen), "{mode:?}, {n}: {seen:?} is none of {acknowledged:?}");
            is_whole(&db, "for reading only");
            assert!(db.run("insert into t values(20, zeroblob(10))").is_err(), "{mode:?}, {n}: nothing can be written");
            assert_eq!(rows(&db), Ok(seen), "{mode:?}, {n}");
            drop(db);
            unmount(&name).close().expect("closed");
            machine.faults.clear();
            hotshelf_sqlite::image::mount(Path::new(&name), open_as_named(&machine)).expect("mounted");
            let db = connect(&name);
            assert_eq!(rows(&db), Ok(seen), "{mode:?}, {n}: when it takes writes again");
            db.run("insert into t values(20, zeroblob(10))").expect("written");
            drop(db);
            let fs = unmount(&name);
            is_clean(&fs);
            fs.close().expect("closed");
        }
    }
}
