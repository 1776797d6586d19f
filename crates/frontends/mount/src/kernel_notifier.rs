//! Telling the kernel that the attributes it has of a file are not right any more.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::wire::notice_header;

/// fuse_kernel.h: `enum fuse_notify_code`.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const DELETE: i32 = 6;

/// Does nothing before the file system is mounted.
#[derive(Debug, Default)]
pub struct KernelNotifier {
    device: OnceLock<Arc<OwnedFd>>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

/// Lets notices pass, or keeps them: one that waits for a lock of the kernel cannot be interrupted, and ends only while requests are
/// answered.
#[derive(Debug, Default)]
struct Gate {
    under_way: usize,
    is_closed: bool,
}

/// A notice that is under way.
struct NoticeUnderWay<'a>(&'a KernelNotifier);

impl Drop for NoticeUnderWay<'_> {
    fn drop(&mut self) {
        self.0.gate.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

impl KernelNotifier {
    /// Enables notifications once the file system is mounted.
    pub fn begin(&self, device: Arc<OwnedFd>) {
        let _ = self.device.set(device);
    }

    /// Keeps back the notices that come from now on: their threads wait, and may end while they do. Returns whether none is under way by
    /// the deadline; if not, the gate is open again.
    pub fn close(&self, deadline: Instant) -> bool {
        let mut gate = self.gate.lock();
        gate.is_closed = true;
        while gate.under_way > 0 && !self.changed.wait_until(&mut gate, deadline).timed_out() {}
        gate.is_closed = gate.under_way == 0;
        self.changed.notify_all();
        gate.is_closed
    }

    /// Lets notices pass again, also those that were kept back.
    pub fn open(&self) {
        self.gate.lock().is_closed = false;
        self.changed.notify_all();
    }

    fn pass(&self) -> NoticeUnderWay<'_> {
        let mut gate = self.gate.lock();
        while gate.is_closed {
            self.changed.wait(&mut gate);
        }
        gate.under_way += 1;
        NoticeUnderWay(self)
    }

    /// Sends a notice, which consists of these parts.
    fn send(&self, ino: u64, code: i32, parts: &[&[u8]]) {
        let _under_way = self.pass();
        self.write(ino, code, parts);
    }

    fn write(&self, ino: u64, code: i32, parts: &[&[u8]]) {
        let Some(device) = self.device.get() else { return };
        let header = notice_header(code, parts.iter().map(|part| part.len()).sum());
        let message: Vec<IoSlice<'_>> = std::iter::once(&header[..]).chain(parts.iter().copied()).map(IoSlice::new).collect();
        match rustix::io::writev(device, &message) {
            // It knows nothing of the file, most often.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => tracing::debug!(ino, code, %error, "the kernel did not take a notice"),
        }
    }

    /// `fuse_notify_inval_inode_out`.
    fn invalidate(&self, ino: u64, offset: i64, length: i64) {
        self.send(ino, INVAL_INODE, &[&ino.to_ne_bytes(), &offset.to_ne_bytes(), &length.to_ne_bytes()]);
    }

    /// Answers that were given before now, and that the kernel has not looked at yet, count for nothing either.
    pub fn invalidate_attributes(&self, ino: u64) {
        self.invalidate(ino, -1, 0);
    }
}

impl KernelNotifier {
    /// Makes the kernel drop a name whose file was removed below, if it still stands for this file. Waits while the directory is locked:
    /// never to be called by a thread that serves requests.
    pub fn drop_removed_name(&self, parent: u64, ino: u64, name: &OsStr) {
        // `fuse_notify_delete_out`, and the name with its NUL.
        let Ok(length) = u32::try_from(name.len()) else { return };
        let numbers = [parent.to_ne_bytes(), ino.to_ne_bytes()];
        self.send(ino, DELETE, &[&numbers[0], &numbers[1], &length.to_ne_bytes(), &[0; 4], name.as_bytes(), &[0]]);
    }

    /// Makes the kernel look a name up again. Waits while the directory is locked: never to be called by a thread that serves requests.
    pub fn drop_name(&self, parent: u64, name: &OsStr) {
        // `fuse_notify_inval_entry_out`, and the name with its NUL.
        let Ok(length) = u32::try_from(name.len()) else { return };
        self.send(parent, INVAL_ENTRY, &[&parent.to_ne_bytes(), &length.to_ne_bytes(), &[0; 4], name.as_bytes(), &[0]]);
    }

    /// Makes the kernel drop all pages and the attributes of a file. Waits for pages that are locked: never to be called by a thread that
    /// serves requests.
    pub fn drop_all_pages(&self, ino: u64) {
        self.invalidate(ino, 0, 0);
    }

    /// Calls `send` with a function that makes the kernel drop all pages and the attributes of a file, unless notices are kept back: then
    /// the result is false. Never to be called by a thread that serves requests.
    pub fn try_send(&self, send: impl FnOnce(&dyn Fn(u64))) -> bool {
        let mut gate = self.gate.lock();
        if gate.is_closed {
            return false;
        }
        gate.under_way += 1;
        drop(gate);
        let _under_way = NoticeUnderWay(self);
        send(&|ino| self.write(ino, INVAL_INODE, &[&ino.to_ne_bytes(), &0_i64.to_ne_bytes(), &0_i64.to_ne_bytes()]));
        true
    }

    /// The kernel's pages of this part are not right any more, nor the attributes. Waits for pages that are locked: never to be called by
    /// a thread that serves requests.
    pub fn drop_pages(&self, ino: u64, offset: u64, length: usize) {
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else { return self.invalidate_attributes(ino) };
        self.invalidate(ino, offset, length);
    }
}

impl hybridfs::Listener for KernelNotifier {
    fn attributes_changed(&self, ino: u64) {
        self.invalidate_attributes(ino);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_notice_has_the_form_that_the_kernel_reads() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let notifier = KernelNotifier::default();
        notifier.begin(Arc::new(writer));
        let mut bytes = [0; 128];
        notifier.drop_pages(0x42, 100, 200);
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(40));
        let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight"))).collect();
        assert_eq!(words[..5], [40 | 2 << 32, 0, 0x42, 100, 200]);
        notifier.drop_removed_name(7, 8, OsStr::new("abc"));
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(44));
        let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight"))).collect();
        assert_eq!(words[..5], [44 | 6 << 32, 0, 7, 8, 3]);
        assert_eq!(&bytes[40..44], b"abc\0");
        notifier.drop_name(7, OsStr::new("abc"));
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(36));
        let words: Vec<u64> = bytes[..32].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight"))).collect();
        assert_eq!((&words[..], &bytes[32..36]), (&[36 | 3 << 32, 0, 7, 3][..], &b"abc\0"[..]));
    }

    #[test]
    fn a_closed_gate_keeps_notices_back_and_does_not_close_over_one_under_way() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let notifier = KernelNotifier::default();
        notifier.begin(Arc::new(writer));
        let under_way = notifier.pass();
        assert!(!notifier.close(Instant::now()));
        // It is open again.
        notifier.invalidate_attributes(7);
        let soon = Instant::now() + Duration::from_secs(20);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| notifier.close(soon));
            drop(under_way);
            assert!(closing.join().expect("ends"));
        });
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).expect("set");
        let mut bytes = [0; 128];
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(40));
        std::thread::scope(|scope| {
            let kept_back = scope.spawn(|| notifier.invalidate_attributes(8));
            assert_eq!(rustix::io::read(&reader, &mut bytes), Err(Errno::AGAIN));
            notifier.open();
            kept_back.join().expect("ends");
        });
        assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(40));
    }
}
