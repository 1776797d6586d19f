// long: a table: every call of the C interface beside its model.
//! The calls: each is made of the library and of the kernel, and what they answer is the same.

use std::ffi::{CStr, CString, c_int, c_void};

use cachedfs::Mode;
use hotshelf::{UAIO_FDATASYNC, UAIO_FSYNC, UAIO_ONE_THREAD, UAIO_READ, UAIO_WAITS, UAIO_WRITE, uaio};
use libc::{iovec, timespec};

use crate::abi::{self, Outcome, c_path, done, outcome, said, sized};
use crate::setup::{DIRS, LONGEST, NAMES, SIDES};
use crate::worker::{HANDLES, Map, Pair, PinnedPage, Worker, call};

/// Bytes of a read or a write, at most.
const MOST: usize = 30_000;
/// Requests of one batch.
const REQUESTS: usize = 6;
/// What F_GETFL shows that a program set.
const SHOWN: c_int = libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_DSYNC | libc::O_SYNC;

impl Worker {
    pub fn step(&mut self) {
        if self.open.is_empty() {
            return self.open();
        }
        let which = self.rng.usize(..self.open.len());
        match self.rng.u16(..400) {
            0..=27 => self.open(),
            28..=41 => self.close(which),
            42..=45 => self.duplicate(which),
            46..=51 => self.flags(which),
            52..=119 => self.read(which),
            120..=199 => self.write(which),
            200..=213 => self.cut(which),
            214..=217 => self.cut_by_name(),
            218..=241 => self.allocate(which),
            242..=255 => self.seek(which),
            256..=265 => self.rename(),
            266..=271 => self.unlink(),
            272..=275 => self.make_directory(),
            276..=279 => self.list(),
            280..=297 => self.sync(which),
            298..=307 => self.set_times(which),
            308..=315 => self.chmod(which),
            316..=317 => self.chown(which),
            318..=323 => self.lock(which),
            324..=331 => self.record_lock(which),
            332..=343 => self.pin(which),
            344..=349 => self.view(which),
            350..=351 => self.map(which),
            352..=357 => self.mapped(),
            358..=371 => self.asynchronous(which),
            372 => self.switch(),
            _ => self.stat(which),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..8) {
            0..=2 => self.rng.usize(..20),
            3..=4 => self.rng.usize(..5000),
            5..=6 => 4096,
            _ => self.rng.usize(..MOST),
        };
        let first = self.rng.u8(..);
        (0..len).map(|n| first.wrapping_add((n / 7) as u8)).collect()
    }

    /// Where a call begins; seldom where no file is.
    fn place(&mut self) -> i64 {
        if self.rng.u8(..100) == 0 {
            return [-1, i64::MAX, i64::MAX - 4096, i64::MIN][self.rng.usize(..4)];
        }
        let at = self.rng.u64(..LONGEST) as i64;
        if self.rng.bool() { at / 4096 * 4096 } else { at }
    }

    fn is_read_only(&self) -> bool {
        self.mode() == Mode::ReadOnly
    }

    fn is_file(&self, which: usize) -> bool {
        let mut stat = abi::zeroed_stat();
        call!(libc::fstat(self.open[which].k, &raw mut stat)) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Of the shadow.
    fn size(&self, which: usize) -> u64 {
        let mut stat = abi::zeroed_stat();
        if call!(libc::fstat(self.open[which].k, &raw mut stat)) == 0 { stat.st_size as u64 } else { 0 }
    }

    /// A name, from the directory that is open or from the root.
    fn named(&self, side: usize, name: &str, is_relative: bool) -> CString {
        if is_relative { CString::new(name).expect("no zero byte") } else { c_path(&self.dir.join(SIDES[side]).join(name)) }
    }

    fn open(&mut self) {
        let mut flags = [libc::O_RDWR, libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY][self.rng.usize(..5)] | libc::O_CLOEXEC;
        let choices = [
            (libc::O_CREAT, 2),
            (libc::O_TRUNC, 10),
            (libc::O_APPEND, 6),
            (libc::O_EXCL | libc::O_CREAT, 12),
            (libc::O_DSYNC, 14),
            (libc::O_NONBLOCK, 16),
            (libc::O_NOFOLLOW, 16),
            (libc::O_DIRECT, 40),
            (libc::O_DIRECTORY, 60),
            (libc::O_PATH, 60),
        ];
        for (flag, one_of) in choices {
            if self.rng.usize(..one_of) == 0 {
                flags |= flag;
            }
        }
        let (mut name, how, bits) = (NAMES[self.rng.usize(..NAMES.len())], self.rng.u8(..8), 0o600 | self.rng.u32(..0o200));
        if self.rng.u8(..60) == 0 {
            (name, flags) = (["a", "d"][self.rng.usize(..2)], libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC);
        }
        if self.is_read_only() {
            flags &= !libc::O_TRUNC;
        }
        self.say(|| format!("open {name} {flags:#o} how {how}"));
        let [cached, plain] = [0, 1].map(|side| self.named(side, name, how == 1));
        let is_new = how == 0 && !self.is_read_only();
        let answers = match how {
            0 if is_new => [outcome(call!(abi::ucreat(cached.as_ptr(), bits))), outcome(call!(libc::creat(plain.as_ptr(), bits)))],
            1 => [
                outcome(call!(abi::uopenat(self.tops[0], cached.as_ptr(), flags, bits))),
                outcome(call!(libc::openat(self.tops[1], plain.as_ptr(), flags, bits))),
            ],
            _ => [outcome(call!(abi::uopen(cached.as_ptr(), flags, bits))), outcome(call!(libc::open(plain.as_ptr(), flags, bits)))],
        };
        self.same(&answers[0].map(|_| ()), &answers[1].map(|_| ()));
        if let [Ok(u), Ok(k)] = answers {
            self.keep(u as c_int, k as c_int, flags & libc::O_PATH != 0 && !is_new);
        }
    }

    fn keep(&mut self, u: c_int, k: c_int, is_path: bool) {
        if self.open.len() == HANDLES {
            self.close(self.rng.clone().usize(..HANDLES));
        }
        self.open.push(Pair { u, k, is_path });
    }

    fn duplicate(&mut self, which: usize) {
        let (how, is_path) = (self.rng.u8(..4), self.open[which].is_path);
        self.say(|| format!("duplicate {which} how {how}"));
        let Pair { u, k, .. } = self.open[which];
        if how == 0 {
            // Over another one, which is closed.
            let to = self.rng.usize(..self.open.len());
            if to != which {
                let (over_u, over_k) = (self.open[to].u, self.open[to].k);
                self.forget(to);
                let answers = [outcome(call!(abi::udup2(u, over_u))), outcome(call!(libc::dup2(k, over_k)))];
                self.same(&answers, &[Ok(over_u.into()), Ok(over_k.into())]);
                self.open[to].is_path = is_path;
                return;
            }
        }
        let answers = if how == 1 {
            [outcome(call!(abi::ufcntl(u, libc::F_DUPFD, 10))), outcome(call!(libc::fcntl(k, libc::F_DUPFD, 10)))]
        } else {
            [outcome(call!(abi::udup(u))), outcome(call!(libc::dup(k)))]
        };
        self.same(&answers[0].map(|_| ()), &answers[1].map(|_| ()));
        if let [Ok(u), Ok(k)] = answers {
            self.keep(u as c_int, k as c_int, is_path);
        }
    }

    /// What is mapped and pinned through a handle whose number another file gets.
    fn forget(&mut self, which: usize) {
        let u = self.open[which].u;
        let (of_it, others) = std::mem::take(&mut self.maps).into_iter().partition(|map| map.pair == u);
        self.maps = others;
        self.unmap(of_it);
        self.pinned.retain(|pinned| pinned.u != u);
    }

    fn flags(&mut self, which: usize) {
        let Pair { u, k, .. } = self.open[which];
        if self.rng.bool() {
            let flags = [0, libc::O_APPEND, libc::O_NONBLOCK, libc::O_APPEND | libc::O_NONBLOCK][self.rng.usize(..4)];
            self.say(|| format!("set flags {which} {flags:#o}"));
            let answers = [done(call!(abi::ufcntl(u, libc::F_SETFL, flags))), done(call!(libc::fcntl(k, libc::F_SETFL, flags)))];
            self.same(&answers[0], &answers[1]);
        }
        let answers = [outcome(call!(abi::ufcntl(u, libc::F_GETFL))), outcome(call!(libc::fcntl(k, libc::F_GETFL)))];
        let [cached, plain] = answers.map(|answer| answer.map(|flags| flags & i64::from(SHOWN)));
        self.same(&cached, &plain);
        let below = call!(abi::ufileno(u));
        let mut stats = [abi::zeroed_stat(); 2];
        let answers = [done(call!(libc::fstat(below, &raw mut stats[0]))), done(call!(libc::fstat(k, &raw mut stats[1])))];
        self.same(&(answers[0], stats[0].st_mode, stats[0].st_nlink), &(answers[1], stats[1].st_mode, stats[1].st_nlink));
    }

    fn read(&mut self, which: usize) {
        let (at, len, how) = (self.place(), self.rng.usize(..9_000), self.rng.u8(..6));
        self.say(|| format!("read {which} at {at} {len} how {how}"));
        let Pair { u, k, .. } = self.open[which];
        let mut bytes = [vec![0_u8; len], vec![0_u8; len]];
        let [iov_u, iov_k] = bytes.each_mut().map(|bytes| {
            let (first, second) = bytes.split_at_mut(len / 3);
            [first, second].map(|part| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
        });
        let [to_u, to_k] = bytes.each_mut().map(|bytes| bytes.as_mut_ptr().cast::<c_void>());
        let answers = match how {
            0 | 1 => [sized(call!(abi::uread(u, to_u, len))), sized(call!(libc::read(k, to_k, len)))],
            2 => [sized(call!(abi::ureadv(u, iov_u.as_ptr(), 2))), sized(call!(libc::readv(k, iov_k.as_ptr(), 2)))],
            3 => [sized(call!(abi::upreadv(u, iov_u.as_ptr(), 2, at))), sized(call!(libc::preadv(k, iov_k.as_ptr(), 2, at)))],
            _ => [sized(call!(abi::upread(u, to_u, len, at))), sized(call!(libc::pread(k, to_k, len, at)))],
        };
        self.same(&answers[0], &answers[1]);
        let differs = bytes[0].iter().zip(&bytes[1]).position(|(a, b)| a != b);
        self.same(&differs, &None);
    }

    fn write(&mut self, which: usize) {
        let (mut at, bytes, how) = (self.place(), self.bytes(), self.rng.u8(..6));
        if at > LONGEST as i64 {
            // A file of 2^63 bytes is for another test.
            at = -at;
        }
        self.say(|| format!("write {which} at {at} {} how {how}", bytes.len()));
        let Pair { u, k, .. } = self.open[which];
        let (from, len) = (bytes.as_ptr().cast::<c_void>(), bytes.len());
        let (first, second) = bytes.split_at(len / 3);
        let iov = [first, second].map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        if self.is_read_only() {
            if len > 0 {
                let answer = if how == 0 { sized(call!(abi::uwrite(u, from, len))) } else { sized(call!(abi::upwrite(u, from, len, at))) };
                self.refused(answer);
            }
            return;
        }
        let answers = match how {
            0 | 1 => [sized(call!(abi::uwrite(u, from, len))), sized(call!(libc::write(k, from, len)))],
            2 => [sized(call!(abi::uwritev(u, iov.as_ptr(), 2))), sized(call!(libc::writev(k, iov.as_ptr(), 2)))],
            3 => [sized(call!(abi::upwritev(u, iov.as_ptr(), 2, at))), sized(call!(libc::pwritev(k, iov.as_ptr(), 2, at)))],
            _ => [sized(call!(abi::upwrite(u, from, len, at))), sized(call!(libc::pwrite(k, from, len, at)))],
        };
        self.same(&answers[0], &answers[1]);
    }

    fn cut(&mut self, which: usize) {
        let len = self.place().min(LONGEST as i64);
        self.say(|| format!("cut {which} to {len}"));
        let Pair { u, k, .. } = self.open[which];
        let cached = done(call!(abi::uftruncate(u, len)));
        if self.is_read_only() {
            return self.refused(cached);
        }
        self.same(&cached, &done(call!(libc::ftruncate(k, len))));
    }

    fn cut_by_name(&mut self) {
        let (name, len) = (self.rng.usize(..NAMES.len()), self.place().min(LONGEST as i64));
        if self.is_read_only() {
            return;
        }
        self.say(|| format!("cut {name} by name to {len}"));
        let [cached, plain] = [0, 1].map(|side| c_path(&self.path(side, name)));
        let answers = [done(call!(abi::utruncate(cached.as_ptr(), len))), done(call!(libc::truncate(plain.as_ptr(), len)))];
        self.same(&answers[0], &answers[1]);
    }

    fn allocate(&mut self, which: usize) {
        let (at, len) = (self.place().min(LONGEST as i64), self.rng.i64(0..60_000));
        let (keep, hole) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
        let mode = [0, keep, keep | hole, keep | hole, hole][self.rng.usize(..5)];
        self.say(|| format!("allocate {which} mode {mode} at {at} {len}"));
        let Pair { u, k, .. } = self.open[which];
        let cached = done(call!(abi::ufallocate(u, mode, at, len)));
        if self.is_read_only() {
            let is_right = matches!(cached, Err(libc::EOPNOTSUPP | libc::EFBIG | libc::ENODEV));
            if !is_right {
                self.refused(cached);
            }
            return;
        }
        self.same(&cached, &done(call!(libc::fallocate(k, mode, at, len))));
    }

    fn seek(&mut self, which: usize) {
        let Pair { u, k, .. } = self.open[which];
        let to = self.place();
        if self.rng.u8(..4) == 0 && self.is_file(which) {
            return self.seek_hole(which, to);
        }
        let (to, whence) = match self.rng.u8(..4) {
            0 => (to, libc::SEEK_SET),
            1 => (to.saturating_sub(100_000), libc::SEEK_CUR),
            2 => (to.saturating_sub(300_000), libc::SEEK_END),
            _ => (0, libc::SEEK_SET),
        };
        self.say(|| format!("seek {which} {to} whence {whence}"));
        let answers = [outcome(call!(abi::ulseek(u, to, whence))), outcome(call!(libc::lseek(k, to, whence)))];
        self.same(&answers[0], &answers[1]);
        if answers[0].is_ok_and(|at| at > LONGEST as i64) {
            // What is written there would be a very long file.
            let answers = [outcome(call!(abi::ulseek(u, 0, libc::SEEK_SET))), outcome(call!(libc::lseek(k, 0, libc::SEEK_SET)))];
            self.same(&answers[0], &answers[1]);
        }
    }

    /// Where holes are is the file system's business; that data is not taken for a hole is ours.
    fn seek_hole(&mut self, which: usize, at: i64) {
        self.say(|| format!("seek hole {which} {at}"));
        let (Pair { u, k, is_path }, end) = (&self.open[which], self.size(which) as i64);
        let (u, k, is_path) = (*u, *k, *is_path);
        let whence = if self.rng.bool() { libc::SEEK_HOLE } else { libc::SEEK_DATA };
        match outcome(call!(abi::ulseek(u, at, whence))) {
            Ok(found) if whence == libc::SEEK_HOLE => {
                self.same(&(found >= at && found <= end), &true);
                let mut bytes = vec![0_u8; 4096 - (found % 4096) as usize];
                let got = call!(libc::pread(k, bytes.as_mut_ptr().cast(), bytes.len(), found));
                self.same(&bytes[..got.max(0) as usize].iter().all(|byte| *byte == 0), &true);
            }
            Ok(found) => {
                // What was passed over is a hole.
                self.same(&(found >= at && found < end), &true);
                let mut bytes = vec![0_u8; (found - at) as usize];
                let got = call!(libc::pread(k, bytes.as_mut_ptr().cast(), bytes.len(), at));
                self.same(&bytes[..got.max(0) as usize].iter().all(|byte| *byte == 0), &true);
            }
            Err(errno) if at < 0 || at >= end || is_path => self.same(&Err(errno), &outcome(call!(libc::lseek(k, at, whence)))),
            // No data behind it.
            Err(errno) => self.same(&(errno, whence), &(libc::ENXIO, libc::SEEK_DATA)),
        }
        let answers = [outcome(call!(abi::ulseek(u, 0, libc::SEEK_SET))), outcome(call!(libc::lseek(k, 0, libc::SEEK_SET)))];
        self.same(&answers[0], &answers[1]);
    }

    fn rename(&mut self) {
        let any = |rng: &mut fastrand::Rng| if rng.u8(..8) == 0 { DIRS[rng.usize(..DIRS.len())] } else { NAMES[rng.usize(..NAMES.len())] };
        let (from, to) = (any(&mut self.rng), any(&mut self.rng));
        let flags = [0, libc::RENAME_EXCHANGE, libc::RENAME_NOREPLACE][self.rng.usize(..3)];
        let how = self.rng.u8(..3);
        self.say(|| format!("rename {from} to {to} {flags} how {how}"));
        let [(a, b), (c, d)] = [0, 1].map(|side| (self.named(side, from, how == 1), self.named(side, to, how == 1)));
        let answers = match how {
            0 => [done(call!(abi::urename(a.as_ptr(), b.as_ptr()))), done(call!(libc::rename(c.as_ptr(), d.as_ptr())))],
            how => {
                let [u, k] = if how == 1 { self.tops } else { [libc::AT_FDCWD; 2] };
                [
                    done(call!(abi::urenameat2(u, a.as_ptr(), u, b.as_ptr(), flags))),
                    done(call!(libc::renameat2(k, c.as_ptr(), k, d.as_ptr(), flags))),
                ]
            }
        };
        self.same(&answers[0], &answers[1]);
    }

    fn unlink(&mut self) {
        let (name, how) = (NAMES[self.rng.usize(..NAMES.len())], self.rng.u8(..2));
        self.say(|| format!("unlink {name} how {how}"));
        let [cached, plain] = [0, 1].map(|side| self.named(side, name, how == 1));
        let answers = if how == 1 {
            [done(call!(abi::uunlinkat(self.tops[0], cached.as_ptr(), 0))), done(call!(libc::unlinkat(self.tops[1], plain.as_ptr(), 0)))]
        } else {
            [done(call!(abi::uunlink(cached.as_ptr()))), done(call!(libc::unlink(plain.as_ptr())))]
        };
        self.same(&answers[0], &answers[1]);
    }

    fn make_directory(&mut self) {
        let (name, how) = (DIRS[self.rng.usize(..DIRS.len())], self.rng.u8(..4));
        self.say(|| format!("directory {name} how {how}"));
        let [cached, plain] = [0, 1].map(|side| self.named(side, name, how == 1));
        let answers = match how {
            0 => [done(call!(abi::urmdir(cached.as_ptr()))), done(call!(libc::rmdir(plain.as_ptr())))],
            1 => [
                done(call!(abi::uunlinkat(self.tops[0], cached.as_ptr(), libc::AT_REMOVEDIR))),
                done(call!(libc::unlinkat(self.tops[1], plain.as_ptr(), libc::AT_REMOVEDIR))),
            ],
            _ => [done(call!(abi::umkdir(cached.as_ptr(), 0o755))), done(call!(libc::mkdir(plain.as_ptr(), 0o755)))],
        };
        self.same(&answers[0], &answers[1]);
    }

    fn list(&mut self) {
        let name = ["a", "b", "d", "e", "a/0", "."][self.rng.usize(..6)];
        self.say(|| format!("list {name}"));
        let [cached, plain] = [0, 1].map(|side| self.named(side, name, false));
        let dir = call!(abi::uopendir(cached.as_ptr()));
        let cached = if dir.is_null() { Err(abi::errno()) } else { Ok(dir) };
        let dir = call!(libc::opendir(plain.as_ptr()));
        let plain = if dir.is_null() { Err(abi::errno()) } else { Ok(dir) };
        self.same(&cached.map(|_| ()), &plain.map(|_| ()));
        let (Ok(cached), Ok(plain)) = (cached, plain) else { return };
        let collect = |next: &dyn Fn() -> *mut libc::dirent| {
            let mut names: Vec<(Vec<u8>, u8)> = Vec::new();
            loop {
                let entry = next();
                if entry.is_null() {
                    break;
                }
                // SAFETY: it stays until the next call, and its name is a string.
                let (name, kind) = unsafe { (CStr::from_ptr(&raw const (*entry).d_name as *const _), (*entry).d_type) };
                names.push((name.to_bytes().to_vec(), kind));
            }
            names.sort_unstable();
            names
        };
        let shadow = collect(&|| call!(libc::readdir(plain)));
        self.same(&collect(&|| call!(abi::ureaddir(cached))), &shadow);
        assert_eq!(call!(abi::urewinddir(cached)), 0, "{}", said());
        self.same(&collect(&|| call!(abi::ureaddir(cached))), &shadow);
        let answers = [done(call!(abi::uclosedir(cached))), done(call!(libc::closedir(plain)))];
        self.same(&answers[0], &answers[1]);
    }

    fn sync(&mut self, which: usize) {
        let how = self.rng.u8(..6);
        self.say(|| format!("sync {which} how {how}"));
        let Pair { u, k, .. } = self.open[which];
        let answers = match how {
            0..=2 => [done(call!(abi::ufsync(u))), done(call!(libc::fsync(k)))],
            3..=4 => [done(call!(abi::ufdatasync(u))), done(call!(libc::fdatasync(k)))],
            _ => {
                self.instance.flush(&mut |_, _| ()).unwrap_or_else(|error| panic!("flush: {error}"));
                [Ok(0); 2]
            }
        };
        self.same(&answers[0], &answers[1]);
    }

    fn set_times(&mut self, which: usize) {
        let how = self.rng.u8(..8);
        let time = |rng: &mut fastrand::Rng| timespec { tv_sec: rng.i64(0..2_000_000_000), tv_nsec: rng.i64(0..1_000_000_000) };
        let mut times = [time(&mut self.rng), time(&mut self.rng)];
        match how {
            0 => times[0].tv_nsec = libc::UTIME_OMIT,
            1 => times[1].tv_nsec = libc::UTIME_OMIT,
            2 => times[1].tv_nsec = libc::UTIME_NOW,
            3 => times[0].tv_nsec = 1_000_000_000,
            _ => {}
        }
        self.say(|| format!("times {which} {:?}", times.map(|time| (time.tv_sec, time.tv_nsec))));
        let Pair { u, k, .. } = self.open[which];
        let at = if how == 4 { std::ptr::null() } else { times.as_ptr() };
        let answers = [done(call!(abi::ufutimens(u, at))), done(call!(libc::futimens(k, at)))];
        self.same(&answers[0], &answers[1]);
        if answers[0].is_ok() && (how == 0 || how > 4) {
            let [cached, plain] = self.stats(which);
            self.same(&(cached.st_mtime, cached.st_mtime_nsec), &(plain.st_mtime, plain.st_mtime_nsec));
        }
    }

    fn stats(&self, which: usize) -> [libc::stat; 2] {
        let mut stats = [abi::zeroed_stat(); 2];
        let Pair { u, k, .. } = self.open[which];
        let answers = [done(call!(abi::ufstat(u, &raw mut stats[0]))), done(call!(libc::fstat(k, &raw mut stats[1])))];
        self.same(&answers[0], &answers[1]);
        stats
    }

    fn chmod(&mut self, which: usize) {
        let bits = 0o600 | self.rng.u32(..0o200);
        self.say(|| format!("chmod {which} {bits:#o}"));
        let Pair { u, k, .. } = self.open[which];
        let answers = [done(call!(abi::ufchmod(u, bits))), done(call!(libc::fchmod(k, bits)))];
        self.same(&answers[0], &answers[1]);
    }

    fn chown(&mut self, which: usize) {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (owner, group) = [own, (u32::MAX, u32::MAX), (u32::MAX, own.1), (own.0 + 1, own.1)][self.rng.usize(..4)];
        if owner == own.0 + 1 && own.0 == 0 {
            return;
        }
        self.say(|| format!("chown {which} {owner} {group}"));
        let Pair { u, k, .. } = self.open[which];
        let answers = [done(call!(abi::ufchown(u, owner, group))), done(call!(libc::fchown(k, owner, group)))];
        self.same(&answers[0], &answers[1]);
    }

    /// Keeps the lock until it is given back, or ends with the file's close.
    fn lock(&mut self, which: usize) {
        let operation = [libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN, 0][self.rng.usize(..4)] | libc::LOCK_NB;
        self.say(|| format!("lock {which} {operation}"));
        let Pair { u, k, .. } = self.open[which];
        let answers = [done(call!(abi::uflock(u, operation))), done(call!(libc::flock(k, operation)))];
        self.same(&answers[0], &answers[1]);
    }

    fn record_lock(&mut self, which: usize) {
        let kind = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK][self.rng.usize(..3)];
        let command = [libc::F_SETLK, libc::F_SETLK, libc::F_GETLK][self.rng.usize(..3)];
        if command == libc::F_GETLK && kind == libc::F_UNLCK {
            return;
        }
        let (start, len, whence) = (self.rng.i64(-50..1000), self.rng.i64(-50..500), [libc::SEEK_SET, libc::SEEK_END][self.rng.usize(..2)]);
        self.say(|| format!("record lock {which} {command} {kind} {start} {len} {whence}"));
        let Pair { u, k, .. } = self.open[which];
        // SAFETY: integers alone, for which zeroes are values.
        let mut locks: [libc::flock; 2] = unsafe { std::mem::zeroed() };
        for lock in &mut locks {
            (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) = (kind as _, whence as _, start, len);
        }
        let answers = [done(call!(abi::ufcntl(u, command, &raw mut locks[0]))), done(call!(libc::fcntl(k, command, &raw mut locks[1])))];
        // The kernel reports a conflicting lock with EAGAIN or EACCES alike.
        let [cached, plain] = answers.map(|answer| answer.map_err(|errno| if errno == libc::EACCES { libc::EAGAIN } else { errno }));
        self.same(&cached, &plain);
        if command == libc::F_GETLK && plain.is_ok() {
            let [cached, plain] = locks.map(|lock| {
                let is_free = c_int::from(lock.l_type) == libc::F_UNLCK;
                (lock.l_type, (!is_free).then_some((lock.l_start, lock.l_len)))
            });
            self.same(&cached, &plain);
        }
    }

    fn pin(&mut self, which: usize) {
        if self.pinned.len() == 2 || (!self.pinned.is_empty() && self.rng.bool()) {
            let PinnedPage { u, off, at } = self.pinned.swap_remove(0);
            self.say(|| format!("unpin {off}"));
            assert_eq!(call!(abi::uunpin(u, off, at)), 0, "{}", said());
            return;
        }
        let (off, len) = (self.place(), self.rng.usize(1..9000));
        self.say(|| format!("pin {which} {off} {len}"));
        let Pair { u, k, .. } = self.open[which];
        let mut at = std::ptr::null();
        let cached = sized(call!(abi::upin(u, off, len, &raw mut at)));
        let mut bytes = vec![0_u8; len.min(4096 - off.rem_euclid(4096) as usize)];
        self.same(&cached, &sized(call!(libc::pread(k, bytes.as_mut_ptr().cast(), bytes.len(), off))));
        if let Ok(got @ 1..) = cached {
            // SAFETY: so many bytes are there until they are given back, and no other process of this run calls meanwhile.
            let pinned = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), got as usize) };
            self.same(&(pinned == &bytes[..got as usize]), &true);
            self.pinned.push(PinnedPage { u, off, at });
        }
    }

    /// A copy of a range, with zeroes behind the end.
    fn view(&mut self, which: usize) {
        let (off, len) = (self.place(), self.rng.usize(..40_000));
        if off > LONGEST as i64 {
            return;
        }
        self.say(|| format!("view {which} {off} {len}"));
        let Pair { u, k, .. } = self.open[which];
        let at = call!(abi::umap(u, off, len));
        let mut bytes = vec![0_u8; len];
        let plain = sized(call!(libc::pread(k, bytes.as_mut_ptr().cast(), len, off)));
        if len == 0 || plain.is_err() {
            return self.same(&at.is_null(), &true);
        }
        assert!(!at.is_null(), "{}", said());
        // SAFETY: so many bytes are there until they are given back.
        let view = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
        self.same(&(view == &bytes[..]), &true);
        assert_eq!(call!(abi::uunmap(at)), 0, "{}", said());
    }

    /// The kernel's mapping of both, which shows what a read would until it is given back.
    fn map(&mut self, which: usize) {
        let len = self.size(which) as usize;
        let is_written = self.rng.u8(..3) == 0;
        if len == 0 || self.maps.len() == 2 {
            return;
        }
        let kind = if is_written || self.rng.bool() { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let access = if is_written { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        self.say(|| format!("map {which} {len} written {is_written}"));
        let Pair { u, k, .. } = self.open[which];
        let cached = call!(abi::ummap(std::ptr::null_mut(), len, access, kind, u, 0));
        let cached = if cached == libc::MAP_FAILED { Err(abi::errno()) } else { Ok(cached) };
        if is_written && self.is_read_only() && self.is_file(which) {
            return match cached {
                // As of each descriptor that is not open for writing.
                Err(libc::EACCES) => {}
                cached => self.refused(cached.map(|_| 0)),
            };
        }
        let plain = call!(libc::mmap(std::ptr::null_mut(), len, access, kind, k, 0));
        let plain = if plain == libc::MAP_FAILED { Err(abi::errno()) } else { Ok(plain) };
        self.same(&cached.map(|_| ()), &plain.map(|_| ()));
        if let (Ok(cached), Ok(plain)) = (cached, plain) {
            self.maps.push(Map { pair: u, sides: [cached, plain], len, is_written });
            self.mapped();
        }
    }

    fn mapped(&mut self) {
        if self.maps.is_empty() {
            return;
        }
        let which = self.rng.usize(..self.maps.len());
        if self.rng.u8(..8) == 0 {
            self.say(|| format!("unmap {which}"));
            let map = self.maps.swap_remove(which);
            return self.unmap(vec![map]);
        }
        let map = &self.maps[which];
        let (sides, is_written) = (map.sides, map.is_written);
        let at = self.open.iter().position(|pair| pair.u == map.pair).expect("closed with its file");
        // Behind the end there is SIGBUS, on both sides.
        let len = map.len.min(self.size(at) as usize);
        self.say(|| format!("mapped {which}, of handle {at}, {len} bytes"));
        let [cached, plain] = sides.map(|side| {
            // SAFETY: so many bytes of the file are mapped, and nobody makes it shorter meanwhile.
            unsafe { std::slice::from_raw_parts(side.cast::<u8>(), len) }
        });
        let differs = cached.iter().zip(plain).position(|(a, b)| a != b);
        self.same(&differs, &None);
        if is_written && len > 0 && !self.is_read_only() {
            let (at, byte) = (self.rng.usize(..len), self.rng.u8(..));
            let n = self.rng.usize(1..5000).min(len - at);
            self.say(|| format!("written at {at} {n}"));
            for side in sides {
                // SAFETY: as above, and mapped to be written.
                unsafe { side.cast::<u8>().add(at).write_bytes(byte, n) };
            }
        }
    }

    fn asynchronous(&mut self, which: usize) {
        if self.rng.u8(..20) == 0
            && let Some(aio) = self.aio.take()
        {
            self.say(|| "destroy requests".to_owned());
            assert_eq!(call!(abi::uaio_destroy(aio)), 0, "{}", said());
            return;
        }
        let aio = match self.aio {
            Some(aio) => aio,
            None => {
                let flags = [0, UAIO_ONE_THREAD, UAIO_ONE_THREAD | UAIO_WAITS][self.rng.usize(..3)];
                let aio = call!(abi::uaio_create_with(REQUESTS as u32, flags));
                assert!(!aio.is_null(), "{}", said());
                self.aio = Some(aio);
                self.aio_memory = call!(abi::uaio_memory(aio, REQUESTS * 8192)).cast();
                assert!(!self.aio_memory.is_null(), "{}", said());
                aio
            }
        };
        match self.rng.u8(..6) {
            0..=2 => self.reads(aio, which),
            3 => {
                let op = if self.rng.bool() { UAIO_FSYNC } else { UAIO_FDATASYNC };
                let Pair { u, k, .. } = self.open[which];
                self.say(|| format!("asynchronous sync {which}"));
                let request = uaio { ufd: u, op, buf: std::ptr::null_mut(), n: 0, off: 0, user: 7, result: 0 };
                let answers = self.together(aio, &[request]);
                self.same(&answers, &[(7, done(call!(libc::fsync(k))))].to_vec());
            }
            _ => self.asynchronous_write(aio, which),
        }
    }

    /// Submits all, and waits for all; in the order of their `user`.
    fn together(&mut self, aio: *mut abi::Requests, requests: &[uaio]) -> Vec<(u64, Outcome)> {
        let count = requests.len() as c_int;
        let mut ended = requests.to_vec();
        let forever = std::ptr::null();
        // uaio_submit ends at one that is wrong.
        let are_right = requests.iter().all(|request| request.off >= 0);
        if !are_right || self.rng.bool() {
            let got = call!(abi::uaio_submit_and_reap(aio, requests.as_ptr(), count, ended.as_mut_ptr(), count, count, forever));
            assert_eq!(got, count, "{}", said());
        } else {
            assert_eq!(call!(abi::uaio_submit(aio, requests.as_ptr(), count)), count, "{}", said());
            let mut all = 0;
            while all < count {
                let to = ended[all as usize..].as_mut_ptr();
                let got = call!(abi::uaio_reap(aio, to, 1, count - all, forever));
                assert!(got > 0, "{}", said());
                all += got;
            }
        }
        ended.sort_unstable_by_key(|request| request.user);
        let answer = |result: i64| if result < 0 { Err(-result as i32) } else { Ok(result) };
        ended.iter().map(|request| (request.user, answer(request.result))).collect()
    }

    fn reads(&mut self, aio: *mut abi::Requests, which: usize) {
        let count = self.rng.usize(1..=REQUESTS);
        let is_lent = self.rng.bool();
        self.say(|| format!("{count} asynchronous reads {which} lent {is_lent}"));
        let mut own = vec![0_u8; REQUESTS * 8192];
        let memory = if is_lent { self.aio_memory } else { own.as_mut_ptr() };
        let mut requests = Vec::new();
        for user in 0..count {
            let Pair { u, .. } = self.open[if user == 0 { which } else { self.rng.usize(..self.open.len()) }];
            let (off, n) = (self.place().min(LONGEST as i64), [4096, 4096, self.rng.usize(..8192)][self.rng.usize(..3)]);
            // SAFETY: each request has 8192 bytes that no other one uses.
            let buf = unsafe { memory.add(user * 8192) }.cast();
            requests.push(uaio { ufd: u, op: UAIO_READ, buf, n, off, user: user as u64, result: 0 });
        }
        let answers = self.together(aio, &requests);
        for (request, (_, cached)) in requests.iter().zip(answers) {
            let k = self.open.iter().find(|pair| pair.u == request.ufd).expect("open").k;
            let mut bytes = vec![0_u8; request.n];
            let plain = sized(call!(libc::pread(k, bytes.as_mut_ptr().cast(), request.n, request.off)));
            self.same(&cached, &plain);
            let got = plain.unwrap_or(0) as usize;
            // SAFETY: as above; the library has given it back.
            let found = unsafe { std::slice::from_raw_parts(request.buf.cast::<u8>(), got) };
            self.same(&found.iter().zip(&bytes[..got]).position(|(a, b)| a != b), &None);
        }
    }

    /// One anywhere; or several in ranges of their own, within the file.
    fn asynchronous_write(&mut self, aio: *mut abi::Requests, which: usize) {
        if self.is_read_only() {
            return;
        }
        let Pair { u, k, .. } = self.open[which];
        let (mut bytes, at) = (self.bytes(), self.place().min(LONGEST as i64));
        let room = self.size(which) as usize / REQUESTS;
        let is_several = room > 0 && self.rng.bool();
        let appends = call!(libc::fcntl(k, libc::F_GETFL)) & libc::O_APPEND != 0;
        let places: Vec<i64> = if is_several && !appends {
            bytes.truncate(room);
            (0..REQUESTS).map(|n| (n * room) as i64).collect()
        } else {
            vec![at]
        };
        self.say(|| format!("asynchronous writes {which} of {} at {places:?}", bytes.len()));
        let request = |(user, off): (usize, &i64)| {
            let buf = bytes.as_ptr().cast_mut().cast();
            uaio { ufd: u, op: UAIO_WRITE, buf, n: bytes.len(), off: *off, user: user as u64, result: 0 }
        };
        let requests: Vec<uaio> = places.iter().enumerate().map(request).collect();
        let answers = self.together(aio, &requests);
        for (request, (_, cached)) in requests.iter().zip(answers) {
            self.same(&cached, &sized(call!(libc::pwrite(k, request.buf, request.n, request.off))));
        }
    }

    fn stat(&mut self, which: usize) {
        let (name, how) = (NAMES[self.rng.usize(..NAMES.len())], self.rng.u8(..5));
        self.say(|| format!("stat {which} {name} how {how}"));
        let is_path = self.open[which].is_path;
        let shown = |stat: &libc::stat| {
            // A removed file's unwritten pages end with the last handle that can read or write it; one that only names it shows what is
            // below then (docs/cache-states.md).
            let size = if is_path && stat.st_nlink == 0 { None } else { Some(stat.st_size) };
            (size, stat.st_nlink, stat.st_mode, stat.st_uid, stat.st_gid)
        };
        let [cached, plain] = self.stats(which);
        // Directories are as long as their file system says.
        if plain.st_mode & libc::S_IFMT == libc::S_IFREG {
            self.same(&shown(&cached), &shown(&plain));
        }
        let [cached, plain] = [0, 1].map(|side| self.named(side, name, how == 3));
        let mut stats = [abi::zeroed_stat(); 2];
        let [first, second] = &mut stats;
        let answers = match how {
            0 => [done(call!(abi::ustat(cached.as_ptr(), first))), done(call!(libc::stat(plain.as_ptr(), second)))],
            1 => [done(call!(abi::ulstat(cached.as_ptr(), first))), done(call!(libc::lstat(plain.as_ptr(), second)))],
            4 => {
                let Pair { u, k, .. } = self.open[which];
                [
                    done(call!(abi::ufstatat(u, c"".as_ptr(), first, libc::AT_EMPTY_PATH))),
                    done(call!(libc::fstatat(k, c"".as_ptr(), second, libc::AT_EMPTY_PATH))),
                ]
            }
            how => {
                let [u, k] = if how == 3 { self.tops } else { [libc::AT_FDCWD; 2] };
                [
                    done(call!(abi::ufstatat(u, cached.as_ptr(), first, libc::AT_SYMLINK_NOFOLLOW))),
                    done(call!(libc::fstatat(k, plain.as_ptr(), second, libc::AT_SYMLINK_NOFOLLOW))),
                ]
            }
        };
        self.same(&answers[0], &answers[1]);
        if answers[1].is_ok() && stats[1].st_mode & libc::S_IFMT != libc::S_IFDIR {
            self.same(&shown(&stats[0]), &shown(&stats[1]));
        }
    }
}
