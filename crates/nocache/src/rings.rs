//! io_uring: reads and writes that no function is called for. A program may be refused it, then it takes other calls.

/// io_uring_setup answers ENOSYS from now on, to this process and its children. It costs them the right to become more privileged.
pub fn refuse() {
    // SAFETY: no memory is given.
    let there = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, 0) } != -1 || errno() != libc::ENOSYS;
    if !there {
        return;
    }
    let one = |code: u32, yes: u8, no: u8, value: u32| libc::sock_filter { code: code as u16, jt: yes, jf: no, k: value };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // The number is the first word of what the filter sees, and io_uring's is the same for every machine.
    let mut lines = [
        one(load, 0, 0, 0),
        one(equal, 0, 1, libc::SYS_io_uring_setup as u32),
        one(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        one(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    // SAFETY: the program and its lines live as long as the calls, which copy them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
    }
}

fn errno() -> libc::c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}
