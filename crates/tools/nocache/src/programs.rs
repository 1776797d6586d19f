//! Started programs, and the end of this one. A child gets this library through its environment; if the program passes an environment
//! without our two variables, they are added.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_void};

use crate::next::hooks;
use crate::{config, evict, files, maps, rings, stdio};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const MOST: usize = 4096;

/// Path of this library.
static HERE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

extern "C" fn begin() {
    // SAFETY: a structure of pointers that the call fills in; zero is a valid value of each.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the address of a function of this library, and valid memory for the result.
    if unsafe { libc::dladdr(begin as *const c_void, &raw mut found) } != 0 {
        HERE.store(found.dli_fname.cast_mut(), Ordering::Release);
    }
    rings::begin();
    if config::chosen().is_some_and(|config| config.no_rings) {
        rings::refuse();
    }
}

/// Handles exit: streams, open files, mappings.
extern "C" fn end() {
    if config::chosen().is_some() {
        stdio::settle_all();
        (0..3).filter_map(files::look).for_each(evict::all_written);
        end_files();
    }
}

fn end_files() {
    rings::look();
    (0..=files::highest()).filter_map(files::used).for_each(evict::all);
    maps::finish();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[cfg(test)]
const _: [extern "C" fn(); 2] = [begin, end];

type ArgList = *const *const c_char;

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len().max(1)).any(|window| window == part)
}

/// An environment with our variables, in fixed memory: the caller may be a vfork child.
struct ChildEnvironment {
    words: [*const c_char; MOST],
    count: usize,
    preload: [u8; 2 * MOST],
}

impl ChildEnvironment {
    fn push(&mut self, word: *const c_char) -> Option<()> {
        // The last entry stays null.
        *self.words.get_mut(..MOST - 1)?.get_mut(self.count)? = word;
        self.count += 1;
        Some(())
    }

    /// Adds `LD_PRELOAD=` with this library first, then the previous value.
    fn preload(&mut self, library: &[u8], others: &[u8]) -> Option<()> {
        let mut used = 0;
        for part in [PRELOAD, library, if others.is_empty() { b"" } else { b":" }, others, b"\0"] {
            self.preload.get_mut(used..used + part.len())?.copy_from_slice(part);
            used += part.len();
        }
        self.push(self.preload.as_ptr().cast())
    }

    /// # Safety
    /// `words` is an environment: pointers to strings, then null.
    unsafe fn complete(&mut self, words: ArgList, library: &[u8], kept: &'static [u8]) -> Option<()> {
        let name = config::VARIABLE.to_bytes();
        let (mut has_ours, mut others) = (false, &[][..]);
        for at in 0.. {
            // SAFETY: promised by the caller; the first null ends it.
            let word = unsafe { *words.add(at) };
            if word.is_null() {
                break;
            }
            // SAFETY: as above.
            let text = unsafe { CStr::from_ptr(word) }.to_bytes();
            if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
                // The program turned it off.
                if value == b"off" {
                    return None;
                }
                has_ours = true;
            }
            match text.strip_prefix(PRELOAD) {
                Some(value) => others = value,
                None => self.push(word)?,
            }
        }
        if contains(others, library) && has_ours {
            return None;
        }
        if !has_ours {
            self.push(kept.as_ptr().cast())?;
        }
        self.preload(library, if contains(others, library) { b"" } else { others })
    }
}

/// Starts a program with an environment that has our variables.
fn with_ours(words: ArgList, start: impl FnOnce(ArgList) -> c_int) -> c_int {
    let library = HERE.load(Ordering::Acquire);
    let Some(config) = config::chosen().filter(|_| !library.is_null()) else { return start(words) };
    let mut ours = ChildEnvironment { words: [core::ptr::null(); MOST], count: 0, preload: [0; 2 * MOST] };
    // SAFETY: the name the dynamic linker keeps of this library.
    let library = unsafe { CStr::from_ptr(library) }.to_bytes();
    // SAFETY: the program's environment; null is an empty one for Linux.
    let complete = words.is_null() || unsafe { ours.complete(words, library, config.kept()) }.is_none();
    start(if complete { words } else { ours.words.as_ptr() })
}

unsafe extern "C" {
    static environ: ArgList;
}

fn current() -> ArgList {
    // SAFETY: the C library's own variable.
    unsafe { environ }
}

mod behind {
    //! The two calls that take an environment.

    use libc::{c_char, c_int};

    use super::{ArgList, with_ours};
    use crate::next::hooks;

    hooks! {
        fn execve[real](path: *const c_char, words: ArgList, environment: ArgList) -> c_int {
            with_ours(environment, |environment| real(path, words, environment))
        }
        fn execvpe[real](file: *const c_char, words: ArgList, environment: ArgList) -> c_int {
            with_ours(environment, |environment| real(file, words, environment))
        }
    }
}

hooks! {
    fn execv[_real](path: *const c_char, words: ArgList) -> c_int {
        // SAFETY: the program's own words.
        unsafe { behind::execve(path, words, current()) }
    }
    fn execvp[_real](file: *const c_char, words: ArgList) -> c_int {
        // SAFETY: the program's own words.
        unsafe { behind::execvpe(file, words, current()) }
    }
    fn fexecve[real](fd: c_int, words: ArgList, environment: ArgList) -> c_int {
        with_ours(environment, |environment| real(fd, words, environment))
    }
    fn execveat[real](dir: c_int, path: *const c_char, words: ArgList, environment: ArgList, flags: c_int) -> c_int {
        with_ours(environment, |environment| real(dir, path, words, environment, flags))
    }
    fn posix_spawn[real](
        child: *mut c_int, path: *const c_char, actions: *const c_void, how: *const c_void, words: ArgList, environment: ArgList,
    ) -> c_int {
        with_ours(environment, |environment| real(child, path, actions, how, words, environment))
    }
    fn posix_spawnp[real](
        child: *mut c_int, file: *const c_char, actions: *const c_void, how: *const c_void, words: ArgList, environment: ArgList,
    ) -> c_int {
        with_ours(environment, |environment| real(child, file, actions, how, words, environment))
    }
    fn _exit[real](code: c_int) {
        end_files();
        real(code)
    }
    fn _Exit[real](code: c_int) {
        end_files();
        real(code)
    }
}

#[cfg(test)]
mod test {
    use core::ffi::CStr;

    use super::{ChildEnvironment, MOST};

    fn completed(words: &[&CStr]) -> Option<Vec<String>> {
        let mut given: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        given.push(core::ptr::null());
        let mut ours = ChildEnvironment { words: [core::ptr::null(); MOST], count: 0, preload: [0; 2 * MOST] };
        // SAFETY: strings and a null.
        unsafe { ours.complete(given.as_ptr(), b"/l.so", b"HOTSHELF_NOCACHE=all\0") }?;
        let texts = ours.words.iter().take_while(|word| !word.is_null());
        // SAFETY: each is one of the strings, or made by us with a zero byte.
        Some(texts.map(|word| unsafe { CStr::from_ptr(*word) }.to_str().expect("text").to_owned()).collect())
    }

    #[test]
    fn an_environment_that_lost_our_variables_gets_them_back() {
        assert_eq!(completed(&[c"A=b"]).expect("changed"), ["A=b", "HOTSHELF_NOCACHE=all", "LD_PRELOAD=/l.so"]);
        assert_eq!(completed(&[c"LD_PRELOAD=/x.so"]).expect("changed"), ["HOTSHELF_NOCACHE=all", "LD_PRELOAD=/l.so:/x.so"]);
        let kept = completed(&[c"HOTSHELF_NOCACHE=d1:2"]).expect("changed");
        assert_eq!(kept, ["HOTSHELF_NOCACHE=d1:2", "LD_PRELOAD=/l.so"]);
    }

    #[test]
    fn an_environment_that_has_them_or_says_no_is_left_alone() {
        assert!(completed(&[c"LD_PRELOAD=/x.so:/l.so", c"HOTSHELF_NOCACHE=all"]).is_none());
        assert!(completed(&[c"HOTSHELF_NOCACHE=off"]).is_none());
        assert!(completed(&vec![c"A=b"; MOST]).is_none());
    }
}
