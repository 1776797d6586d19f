//! Threads of the library.
#![expect(unsafe_code, reason = "pthread_sigmask(3)")]

/// Starts a thread that blocks the program's signals. Returns whether it succeeded.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: both sets are filled before they are read.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.is_ok()
    }
}
