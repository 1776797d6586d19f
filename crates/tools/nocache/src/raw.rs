//! `syscall(2)`: system calls by number through the C library.

use libc::{c_int, c_long, off_t};

use crate::files::Direction::{Read, Write};
use crate::next::hooks;
use crate::transfer::{at, at_or_here, here};
use crate::{aio, copy, descriptors, rings};

hooks! {
    // One word more than all registers: the last is on the stack, where every caller's frame has a word.
    // long: the signature is that of syscall(2).
    fn syscall[real](number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
        let fd = a as c_int;
        let call = || real(number, a, b, c, d, e, f);
        match number {
            libc::SYS_read | libc::SYS_readv => here(fd, Read, call),
            libc::SYS_write | libc::SYS_writev => here(fd, Write, call),
            libc::SYS_pread64 | libc::SYS_preadv => at(fd, d as off_t, Read, call),
            libc::SYS_pwrite64 | libc::SYS_pwritev => at(fd, d as off_t, Write, call),
            libc::SYS_preadv2 => at_or_here(fd, d as off_t, Read, call),
            libc::SYS_pwritev2 => at_or_here(fd, d as off_t, Write, call),
            // SAFETY: the offsets are the program's, null or good.
            libc::SYS_sendfile => unsafe { copy::copied((b as c_int, c as *const off_t), (fd, core::ptr::null()), call) },
            // SAFETY: as above.
            libc::SYS_copy_file_range | libc::SYS_splice => unsafe {
                copy::copied((fd, b as *const off_t), (c as c_int, d as *const off_t), call)
            },
            libc::SYS_io_getevents => {
                let count = call();
                // SAFETY: so many events were filled in.
                unsafe { aio::events_ended(d as *const aio::IoEvent, count as c_int) };
                count
            }
            libc::SYS_io_uring_setup => rings::set_up(call()),
            libc::SYS_close => {
                descriptors::leave(fd);
                call()
            }
            _ => call(),
        }
    }
}
