//! The intercepted functions: the C library's, or those of the next preloaded library.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A function that is looked up when the library is loaded.
pub struct NextSymbol {
    name: &'static CStr,
    found: AtomicUsize,
}

const ABSENT: usize = 1;

impl NextSymbol {
    /// Names the next function to look up.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicUsize::new(0) }
    }

    /// Returns its address. `None`: no library has it.
    #[inline]
    pub fn get(&self) -> Option<usize> {
        let found = match self.found.load(Ordering::Relaxed) {
            0 => self.find(),
            found => found,
        };
        (found != ABSENT).then_some(found)
    }

    #[cold]
    fn find(&self) -> usize {
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        let found = if found == 0 { ABSENT } else { found };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The return value of a hook without an intercepted function.
pub trait MissingSymbol {
    /// Returns failure, with ENOSYS.
    fn absent() -> Self;
}

fn not_there() {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

impl MissingSymbol for i32 {
    fn absent() -> Self {
        not_there();
        -1
    }
}

impl MissingSymbol for isize {
    fn absent() -> Self {
        not_there();
        -1
    }
}

impl MissingSymbol for usize {
    fn absent() -> Self {
        not_there();
        0
    }
}

impl<T> MissingSymbol for *mut T {
    fn absent() -> Self {
        not_there();
        core::ptr::null_mut()
    }
}

impl MissingSymbol for () {
    fn absent() {}
}

/// Intercepts functions of the C library: in the body the name in brackets calls the original.
macro_rules! hooks {
    ($(fn $name:ident [$real:ident] ($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => { $(
        #[allow(missing_docs, non_snake_case, clippy::missing_safety_doc, clippy::redundant_closure)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(dead_code)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? {
            type Real = unsafe extern "C-unwind" fn($($type),*) $(-> $result)?;
            static NEXT: $crate::next::NextSymbol = $crate::next::NextSymbol::new(
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                });
            extern "C" fn find() {
                let _ = NEXT.get();
            }
            #[cfg(not(test))]
            #[used]
            #[unsafe(link_section = ".init_array")]
            static FIND: extern "C" fn() = find;
            #[cfg(test)]
            let _ = find;
            let Some(address) = NEXT.get() else { return $crate::next::MissingSymbol::absent() };
            // SAFETY: the function of that name, by its prototype in the C library.
            let function = unsafe { core::mem::transmute::<usize, Real>(address) };
            // SAFETY: the program's own call, with its own arguments.
            #[allow(unused_variables)]
            let $real = |$($arg: $type),*| unsafe { function($($arg),*) };
            $body
        }
    )* };
}
pub(crate) use hooks;
