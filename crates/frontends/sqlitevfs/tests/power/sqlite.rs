//! The machine's own SQLite, loaded as a library: what the tests run on the VFS.
#![expect(unsafe_code, reason = "calls C functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use hotshelf_sqlite::Api;
use libloading::{Library, Symbol};

type Row = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

/// SQLite, and the functions of it that are called here.
pub struct Sqlite {
    open: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, *const c_char) -> c_int,
    exec: unsafe extern "C" fn(*mut c_void, *const c_char, Option<Row>, *mut c_void, *mut *mut c_char) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// Loaded once; its VFS `hotshelf` is registered.
pub fn sqlite() -> &'static Sqlite {
    static LOADED: OnceLock<Sqlite> = OnceLock::new();
    LOADED.get_or_init(|| {
        // SAFETY: SQLite's library does nothing when it is loaded.
        let library = unsafe { Library::new("libsqlite3.so.0") }.expect("SQLite's library: scripts/setup.sh installs it");
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the functions have the types that sqlite3.h says.
                let symbol: Symbol<'static, _> = unsafe { library.get(concat!($name, "\0").as_bytes()) }.expect($name);
                *symbol
            }};
        }
        let api = Api {
            vfs_find: function!("sqlite3_vfs_find"),
            vfs_register: function!("sqlite3_vfs_register"),
            uri_parameter: function!("sqlite3_uri_parameter"),
            malloc: function!("sqlite3_malloc"),
            log: function!("sqlite3_log"),
            result_text: function!("sqlite3_result_text"),
        };
        hotshelf_sqlite::register(api).expect("registered");
        Sqlite { open: function!("sqlite3_open_v2"), exec: function!("sqlite3_exec"), close: function!("sqlite3_close") }
    })
}

/// A connection.
pub struct Connection(*mut c_void);

// SAFETY: SQLite is built for threads; one uses it at a time.
unsafe impl Send for Connection {}

impl Connection {
    /// To a database by its URI, made if it is not there.
    pub fn open(uri: &str) -> Result<Connection, c_int> {
        let (uri, mut db) = (CString::new(uri).expect("text"), std::ptr::null_mut());
        // SAFETY: READWRITE, CREATE and URI; strings that end with a zero.
        match unsafe { (sqlite().open)(uri.as_ptr(), &raw mut db, 2 | 4 | 64, std::ptr::null()) } {
            0 => Ok(Connection(db)),
            code => {
                drop(Connection(db));
                Err(code)
            }
        }
    }

    /// Runs statements; the columns of all rows, with a bar between them.
    pub fn run(&self, sql: &str) -> Result<Vec<String>, c_int> {
        unsafe extern "C" fn row(to: *mut c_void, count: c_int, values: *mut *mut c_char, _: *mut *mut c_char) -> c_int {
            // SAFETY: what `run` gives, and SQLite's strings, some of them null.
            unsafe {
                let one = |n: c_int| {
                    let value = *values.offset(n as isize);
                    if value.is_null() { String::new() } else { CStr::from_ptr(value).to_string_lossy().into_owned() }
                };
                (*to.cast::<Vec<String>>()).push((0..count).map(one).collect::<Vec<_>>().join("|"));
            }
            0
        }
        let (sql, mut rows) = (CString::new(sql).expect("text"), Vec::new());
        // SAFETY: an open connection; the rows go to a list that outlives the call.
        match unsafe { (sqlite().exec)(self.0, sql.as_ptr(), Some(row), (&raw mut rows).cast(), std::ptr::null_mut()) } {
            0 => Ok(rows),
            code => Err(code),
        }
    }

    /// The first column of the only row, as a number.
    pub fn number(&self, sql: &str) -> i64 {
        self.run(sql).unwrap_or_else(|code| panic!("{sql}: {code}"))[0].parse().expect("a number")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        let code = unsafe { (sqlite().close)(self.0) };
        assert_eq!(code, 0, "closed");
    }
}
