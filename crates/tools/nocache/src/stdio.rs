//! Streams. The C library reads and writes for them internally. So after each call on a stream its file position is checked: if it moved,
//! data was transferred.

use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, c_char, c_int, c_long, c_void, off_t, size_t, ssize_t};

use crate::byte_range::ByteRange;
use crate::evict;
use crate::files::{self, Direction, File};
use crate::next::hooks;
use crate::{descriptors, sys, write_behind};

unsafe extern "C" {
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

fn standard() -> [*mut FILE; 3] {
    // SAFETY: pointers of the C library, which programs seldom change, and then to valid streams.
    unsafe { [stdin, stdout, stderr] }
}

/// Open streams, up to a limit: their buffers are flushed at exit.
static OPEN: [AtomicPtr<FILE>; 256] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 256];

fn opened(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() {
        descriptors::leave(number(stream));
        let free =
            |place: &&AtomicPtr<FILE>| place.compare_exchange(core::ptr::null_mut(), stream, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let _ = OPEN.iter().find(free);
    }
    stream
}

fn closed(stream: *mut FILE) {
    for place in &OPEN {
        let _ = place.compare_exchange(stream, core::ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn number(stream: *mut FILE) -> c_int {
    // SAFETY: a stream of the C library begins with these words; its user holds it. (`fileno` would change errno.)
    if stream.is_null() { -1 } else { unsafe { (*stream.cast::<StreamHead>()).number } }
}

/// Returns a stream's file if it is selected.
#[inline]
fn look(stream: *mut FILE) -> Option<File> {
    files::look(number(stream))
}

/// Handles the data moved by a call on the stream.
#[inline]
pub fn settle(stream: *mut FILE) {
    if let Some(file) = look(stream) {
        settle_chosen(stream, file);
    }
}

fn settle_chosen(stream: *mut FILE, file: File) {
    let Some(now) = sys::position(file.fd) else { return };
    let (last, _) = file.last(Direction::Read);
    if now == last {
        return;
    }
    // SAFETY: as in `number`.
    let head = unsafe { &*stream.cast::<StreamHead>() };
    let buffer = (head.buffer_end as u64).saturating_sub(head.buffer as u64);
    let from = if last < now { last } else { now.saturating_sub(buffer) };
    let range = ByteRange { from, to: now };
    evict::before(file, Direction::Read, from);
    // Read or written: the stream does not say.
    write_behind::take(file, range);
    evict::done(file, Direction::Read, range);
}

/// Makes a call on a stream and handles its data.
#[inline]
fn on<T>(stream: *mut FILE, call: impl FnOnce() -> T) -> T {
    let result = call();
    settle(stream);
    result
}

/// Makes a call that moves a stream to an earlier position, whose pages must not be cached.
fn moving<T>(stream: *mut FILE, call: impl FnOnce() -> T) -> T {
    if let Some(file) = look(stream) {
        settle_chosen(stream, file);
        evict::all(file);
    }
    on(stream, call)
}

/// The first words of the C library's FILE, fixed because macros compiled them into programs.
#[repr(C)]
struct StreamHead {
    flags: c_int,
    read_at: *const u8,
    read_end: *const u8,
    read_base: *const u8,
    write_base: *const u8,
    write_at: *const u8,
    write_end: *const u8,
    buffer: *const u8,
    buffer_end: *const u8,
    others: [usize; 5],
    number: c_int,
}

const _: () = assert!(core::mem::offset_of!(StreamHead, number) == 112);

/// Reads one byte: usually from the buffer, without a transfer.
fn byte_read(stream: *mut FILE, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: a stream of the C library begins with these words; its user holds it.
    let there = !stream.is_null() && unsafe { (*stream.cast::<StreamHead>()).read_at < (*stream.cast::<StreamHead>()).read_end };
    if there { call() } else { on(stream, call) }
}

fn byte_written(stream: *mut FILE, byte: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: a stream of the C library begins with these words; its user holds it.
    let room = !stream.is_null() && unsafe { (*stream.cast::<StreamHead>()).write_at < (*stream.cast::<StreamHead>()).write_end };
    if room && byte != c_int::from(b'\n') { call() } else { on(stream, call) }
}

/// Flushes a stream before it is closed. Returns the failure, which the C library may forget.
fn last_flush(stream: *mut FILE) -> c_int {
    let Some(file) = look(stream) else { return 0 };
    // SAFETY: the program's own stream, about to be closed by this very thread.
    let failed = unsafe { fflush(stream) };
    settle_chosen(stream, file);
    failed
}

/// Flushes all streams at exit, except those locked by another thread.
pub fn settle_all() {
    let others = OPEN.iter().map(|place| place.load(Ordering::Relaxed));
    for stream in standard().into_iter().chain(others).filter(|stream| !stream.is_null()) {
        if look(stream).is_none() {
            continue;
        }
        // SAFETY: a stream that was opened and not closed.
        if unsafe { ftrylockfile(stream) } == 0 {
            let input = stream == standard()[0];
            // SAFETY: it is locked by us; of what is read nothing is to be flushed.
            if !input && unsafe { (*stream.cast::<StreamHead>()).write_at > (*stream.cast::<StreamHead>()).write_base } {
                // SAFETY: as above; the lock is recursive.
                let _ = unsafe { fflush(stream) };
            }
            settle(stream);
            // SAFETY: we locked it.
            unsafe { funlockfile(stream) };
        }
    }
}

fn input() -> *mut FILE {
    standard()[0]
}

fn output() -> *mut FILE {
    standard()[1]
}

fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

hooks! {
    fn fopen[real](path: *const c_char, mode: *const c_char) -> *mut FILE { opened(real(path, mode)) }
    fn fopen64[real](path: *const c_char, mode: *const c_char) -> *mut FILE { opened(real(path, mode)) }
    fn fdopen[real](fd: c_int, mode: *const c_char) -> *mut FILE { opened(real(fd, mode)) }
    fn freopen[real](path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        let _ = last_flush(stream);
        descriptors::leave(number(stream));
        closed(stream);
        opened(real(path, mode, stream))
    }
    fn freopen64[real](path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        let _ = last_flush(stream);
        descriptors::leave(number(stream));
        closed(stream);
        opened(real(path, mode, stream))
    }
    fn fclose[real](stream: *mut FILE) -> c_int {
        let failed = last_flush(stream);
        let why = errno();
        descriptors::leave(number(stream));
        closed(stream);
        let result = real(stream);
        if failed != 0 && result == 0 {
            set_errno(why);
            return failed;
        }
        result
    }
    fn pclose[real](stream: *mut FILE) -> c_int {
        descriptors::leave(number(stream));
        real(stream)
    }
    fn closedir[real](dir: *mut libc::DIR) -> c_int {
        // SAFETY: the program's own directory, still open.
        let fd = if dir.is_null() { -1 } else { unsafe { libc::dirfd(dir) } };
        files::forget(fd);
        real(dir)
    }
    fn fflush[real](stream: *mut FILE) -> c_int {
        let result = on(stream, || real(stream));
        if stream.is_null() {
            OPEN.iter().map(|place| place.load(Ordering::Relaxed)).chain(standard()).for_each(settle);
        }
        result
    }
    fn fflush_unlocked[real](stream: *mut FILE) -> c_int { on(stream, || real(stream)) }
    fn fread[real](data: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        on(stream, || real(data, size, count, stream))
    }
    fn fread_unlocked[real](data: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        on(stream, || real(data, size, count, stream))
    }
    fn __fread_chk[real](data: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        on(stream, || real(data, room, size, count, stream))
    }
    fn __fread_unlocked_chk[real](data: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        on(stream, || real(data, room, size, count, stream))
    }
    fn fwrite[real](data: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        on(stream, || real(data, size, count, stream))
    }
    fn fwrite_unlocked[real](data: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
        on(stream, || real(data, size, count, stream))
    }
    fn fgets[real](line: *mut c_char, size: c_int, stream: *mut FILE) -> *mut c_char { on(stream, || real(line, size, stream)) }
    fn fgets_unlocked[real](line: *mut c_char, size: c_int, stream: *mut FILE) -> *mut c_char { on(stream, || real(line, size, stream)) }
    fn __fgets_chk[real](line: *mut c_char, room: size_t, size: c_int, stream: *mut FILE) -> *mut c_char {
        on(stream, || real(line, room, size, stream))
    }
    fn __fgets_unlocked_chk[real](line: *mut c_char, room: size_t, size: c_int, stream: *mut FILE) -> *mut c_char {
        on(stream, || real(line, room, size, stream))
    }
    fn getline[real](line: *mut *mut c_char, size: *mut size_t, stream: *mut FILE) -> ssize_t { on(stream, || real(line, size, stream)) }
    fn getdelim[real](line: *mut *mut c_char, size: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t {
        on(stream, || real(line, size, end, stream))
    }
    fn __getdelim[real](line: *mut *mut c_char, size: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t {
        on(stream, || real(line, size, end, stream))
    }
    fn fgetc[real](stream: *mut FILE) -> c_int { byte_read(stream, || real(stream)) }
    fn getc[real](stream: *mut FILE) -> c_int { byte_read(stream, || real(stream)) }
    fn _IO_getc[real](stream: *mut FILE) -> c_int { byte_read(stream, || real(stream)) }
    fn fgetc_unlocked[real](stream: *mut FILE) -> c_int { byte_read(stream, || real(stream)) }
    fn getc_unlocked[real](stream: *mut FILE) -> c_int { byte_read(stream, || real(stream)) }
    fn getchar[real]() -> c_int { byte_read(input(), || real()) }
    fn getchar_unlocked[real]() -> c_int { byte_read(input(), || real()) }
    fn __uflow[real](stream: *mut FILE) -> c_int { on(stream, || real(stream)) }
    fn __overflow[real](stream: *mut FILE, byte: c_int) -> c_int { on(stream, || real(stream, byte)) }
    fn fgetwc[real](stream: *mut FILE) -> c_int { on(stream, || real(stream)) }
    fn getwc[real](stream: *mut FILE) -> c_int { on(stream, || real(stream)) }
    fn fgetws[real](line: *mut c_void, size: c_int, stream: *mut FILE) -> *mut c_void { on(stream, || real(line, size, stream)) }
    fn fputc[real](byte: c_int, stream: *mut FILE) -> c_int { byte_written(stream, byte, || real(byte, stream)) }
    fn putc[real](byte: c_int, stream: *mut FILE) -> c_int { byte_written(stream, byte, || real(byte, stream)) }
    fn _IO_putc[real](byte: c_int, stream: *mut FILE) -> c_int { byte_written(stream, byte, || real(byte, stream)) }
    fn fputc_unlocked[real](byte: c_int, stream: *mut FILE) -> c_int { byte_written(stream, byte, || real(byte, stream)) }
    fn putc_unlocked[real](byte: c_int, stream: *mut FILE) -> c_int { byte_written(stream, byte, || real(byte, stream)) }
    fn putchar[real](byte: c_int) -> c_int { byte_written(output(), byte, || real(byte)) }
    fn putchar_unlocked[real](byte: c_int) -> c_int { byte_written(output(), byte, || real(byte)) }
    fn fputs[real](text: *const c_char, stream: *mut FILE) -> c_int { on(stream, || real(text, stream)) }
    fn fputs_unlocked[real](text: *const c_char, stream: *mut FILE) -> c_int { on(stream, || real(text, stream)) }
    fn puts[real](text: *const c_char) -> c_int { on(output(), || real(text)) }
    fn fputwc[real](letter: c_int, stream: *mut FILE) -> c_int { on(stream, || real(letter, stream)) }
    fn fputws[real](text: *const c_void, stream: *mut FILE) -> c_int { on(stream, || real(text, stream)) }
    fn fseek[real](stream: *mut FILE, at: c_long, from: c_int) -> c_int { moving(stream, || real(stream, at, from)) }
    fn fseeko[real](stream: *mut FILE, at: off_t, from: c_int) -> c_int { moving(stream, || real(stream, at, from)) }
    fn fseeko64[real](stream: *mut FILE, at: off_t, from: c_int) -> c_int { moving(stream, || real(stream, at, from)) }
    fn fsetpos[real](stream: *mut FILE, at: *const c_void) -> c_int { moving(stream, || real(stream, at)) }
    fn fsetpos64[real](stream: *mut FILE, at: *const c_void) -> c_int { moving(stream, || real(stream, at)) }
    fn rewind[real](stream: *mut FILE) { moving(stream, || real(stream)) }
    fn vfprintf[real](stream: *mut FILE, format: *const c_char, words: *mut c_void) -> c_int {
        on(stream, || real(stream, format, words))
    }
    fn vprintf[real](format: *const c_char, words: *mut c_void) -> c_int { on(output(), || real(format, words)) }
    fn __vfprintf_chk[real](stream: *mut FILE, flag: c_int, format: *const c_char, words: *mut c_void) -> c_int {
        on(stream, || real(stream, flag, format, words))
    }
    fn __vprintf_chk[real](flag: c_int, format: *const c_char, words: *mut c_void) -> c_int { on(output(), || real(flag, format, words)) }
    fn vfscanf[real](stream: *mut FILE, format: *const c_char, words: *mut c_void) -> c_int {
        on(stream, || real(stream, format, words))
    }
    fn vscanf[real](format: *const c_char, words: *mut c_void) -> c_int { on(input(), || real(format, words)) }
    fn __isoc99_vfscanf[real](stream: *mut FILE, format: *const c_char, words: *mut c_void) -> c_int {
        on(stream, || real(stream, format, words))
    }
    fn __isoc99_vscanf[real](format: *const c_char, words: *mut c_void) -> c_int { on(input(), || real(format, words)) }
}
