//! What a daemon needs to hand its descriptors to the program that replaces it, by execve(2).
#![expect(unsafe_code, reason = "numbers of descriptors, and signals to one thread")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::io::FdFlags;
use rustix::thread::Pid;

/// Its default action is to be ignored: one that comes late, to the new program, does no harm.
const SIGNAL: libc::c_int = libc::SIGURG;
/// Signals that ask a daemon to end.
const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// Standard input, output and error are passed on anyway.
const FIRST: RawFd = 3;

/// Whether this process has passed descriptors on: those without close-on-exec may have owners since.
static HAS_PASSED: AtomicBool = AtomicBool::new(false);

/// Lets the next program of this process have a descriptor, or no longer.
///
/// # Errors
/// As fcntl(2).
pub fn set_passed_on(file: BorrowedFd<'_>, is_passed_on: bool) -> io::Result<()> {
    HAS_PASSED.store(true, SeqCst);
    let flags = if is_passed_on { FdFlags::empty() } else { FdFlags::CLOEXEC };
    Ok(rustix::io::fcntl_setfd(file, flags)?)
}

/// Takes a descriptor that the program before this one passed on, once. All that this program opens itself is closed at the next execve(2);
/// so a descriptor that is not has no owner here, until this function gives it one.
///
/// # Errors
/// It was not passed on, or was taken already.
pub fn take_passed_on(number: RawFd) -> io::Result<OwnedFd> {
    let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} {why}"));
    if number < FIRST || HAS_PASSED.load(SeqCst) {
        return Err(refused("was not passed on"));
    }
    // SAFETY: only asks the kernel about the number, and sets a flag of it; it is closed by nobody meanwhile if it has no owner.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(file).map_err(|_| refused("is not open"))?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(refused("was not passed on, or was taken already"));
    }
    rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and was without an owner as said above. The flag keeps it from being taken again.
    Ok(unsafe { OwnedFd::from_raw_fd(file.as_raw_fd()) })
}

extern "C" fn nothing(_: libc::c_int) {}

/// Ends a system call of one thread of this process with EINTR, if it waits in one that signals end. A thread that does not wait notices
/// nothing.
pub fn interrupt_thread(thread: Pid) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: a zeroed `sigaction` is one without flags and with an empty mask; without SA_RESTART, system calls end. The handler does
        // nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: sends a signal whose handler does nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.as_raw_nonzero().get(), SIGNAL) };
}

/// Delays signals that ask this daemon to end, or delivers those that were delayed. The next program inherits the delay, and the signals.
pub fn delay_ending_signals(is_delayed: bool) {
    // SAFETY: a signal set is plain memory, which `sigemptyset` initializes; the mask is that of the calling thread.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDING {
            libc::sigaddset(&raw mut set, signal);
        }
        let how = if is_delayed { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_what_was_passed_on_is_taken_and_only_once() {
        // As the program before would have left it: nobody owns it.
        let file = std::fs::File::open("/dev/null").expect("opens");
        let left = rustix::io::dup(&file).expect("duplicated");
        let number = left.as_raw_fd();
        let _ = std::mem::ManuallyDrop::new(left);
        assert!(take_passed_on(file.as_raw_fd()).is_err() && take_passed_on(1).is_err() && take_passed_on(60_000).is_err());
        let taken = take_passed_on(number).expect("taken");
        assert!(take_passed_on(number).is_err());
        set_passed_on(taken.as_fd(), true).expect("set");
        assert!(take_passed_on(number).is_err(), "it has an owner");
    }

    #[test]
    fn a_thread_that_waits_is_interrupted() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        let (send, thread) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            send.send(rustix::thread::gettid()).expect("awaited");
            rustix::io::read(&reader, &mut [0_u8; 1])
        });
        let thread = thread.recv().expect("started");
        while !waiting.is_finished() {
            interrupt_thread(thread);
            std::thread::yield_now();
        }
        assert_eq!(waiting.join().expect("ended"), Err(rustix::io::Errno::INTR));
        drop(writer);
    }
}
