//! Random system calls from a seed, executed on a directory of this machine to compare file systems. `parity` compares a mount, and the
//! tests of rawfs compare the library.

#[expect(missing_docs, reason = "the calls are those of the system, and so are what they take")]
pub mod call;
pub mod generate;
pub mod tree;

use rustix::fs::{Gid, Uid};

use generate::USERS;

/// Makes a call as one of [`USERS`], on a thread with that user's credentials, so that the process remains root.
///
/// # Panics
/// The thread cannot become that user, or the call panics.
pub fn as_user<T: Send>(user: Option<usize>, run: impl FnOnce() -> T + Send) -> T {
    let Some(user) = user else { return run() };
    let become_user = || -> rustix::io::Result<()> {
        let user = &USERS[user];
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        rustix::thread::set_thread_groups(&user.groups.map(Gid::from_raw))?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user().expect("root may become anybody");
            run()
        });
        thread.join().expect("calls do not panic")
    })
}
