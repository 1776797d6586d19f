//! The objects behind the opaque pointers of the program, whatever their types.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::api_error::{ApiError, ApiResult};
use crate::table::{LookupError, Table};

/// The kinds of objects, in the order in which a shutdown closes them: each before the objects that it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseOrder {
    Handle,
    Queue,
    Device,
    Requests,
    Directory,
    FileSystemRequests,
    Transaction,
    FileSystemDirectory,
    /// File systems are closed after everything open on them.
    FileSystem,
}

impl CloseOrder {
    /// All kinds in their order, first to last.
    pub const ALL: [CloseOrder; 9] = [
        CloseOrder::Handle,
        CloseOrder::Queue,
        CloseOrder::Device,
        CloseOrder::Requests,
        CloseOrder::Directory,
        CloseOrder::FileSystemRequests,
        CloseOrder::Transaction,
        CloseOrder::FileSystemDirectory,
        CloseOrder::FileSystem,
    ];
}

/// A type of objects in the table.
pub trait ObjectKind: Send + Sync + Sized + 'static {
    /// Name of the type in messages.
    const NAME: &'static str;
    /// When a shutdown closes objects of this type.
    const CLOSE_ORDER: CloseOrder;
    /// Returns whether a call panicked inside, here or in a shared part: the object can only be closed.
    fn is_broken(&self) -> bool {
        false
    }
    /// Marks the object as broken after a panic.
    fn break_down(&self) {}
    /// Prepares the close at a shutdown; an error keeps the object open.
    fn prepare_shutdown(&self) -> ApiResult<()> {
        Ok(())
    }
    /// Closes what is inside, once no other call can reach the object. Returns errors that were not reported before.
    fn finish(&self) -> ApiResult<()>;
}

/// An object in the table, whose type is known again when a call names it.
trait StoredObject: Any + Send + Sync {
    fn close_order(&self) -> CloseOrder;
    fn closer(&self) -> fn(usize) -> ApiResult<i32>;
}

impl<K: ObjectKind> StoredObject for Arc<K> {
    fn close_order(&self) -> CloseOrder {
        K::CLOSE_ORDER
    }

    fn closer(&self) -> fn(usize) -> ApiResult<i32> {
        |number| end::<K, u8>(std::ptr::without_provenance(number), K::prepare_shutdown, K::finish)
    }
}

static OBJECTS: Table<Box<dyn StoredObject>> = Table::new();

/// Adds an object to the table and returns its opaque pointer.
pub fn enroll<K: ObjectKind, P>(object: Arc<K>) -> ApiResult<*mut P> {
    let full = |_| ApiError::new(libc::EMFILE, "too many devices, queues, handles, directories and file systems are open: close some");
    OBJECTS.insert(Box::new(object)).map(std::ptr::without_provenance_mut).map_err(full)
}

/// Marks an object as broken if its call panics.
struct PanicGuard<'a, K: ObjectKind>(&'a K);

impl<K: ObjectKind> Drop for PanicGuard<'_, K> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_down();
        }
    }
}

fn refused<K: ObjectKind>(number: usize, refused: LookupError) -> ApiError {
    match refused {
        LookupError::Unknown if number == 0 => ApiError::new(libc::EBADF, format!("NULL is no {}: was its opening checked?", K::NAME)),
        LookupError::Unknown => ApiError::new(libc::EBADF, format!("no such {}: closed already?", K::NAME)),
        LookupError::Poisoned => ApiError::new(libc::EIO, format!("an earlier call failed inside this {}: it can only be closed", K::NAME)),
    }
}

fn kind<K: ObjectKind>(object: &dyn StoredObject) -> ApiResult<&Arc<K>> {
    let object: &dyn Any = object;
    object.downcast_ref().ok_or_else(|| ApiError::new(libc::EBADF, format!("this pointer is no {}", K::NAME)))
}

/// Calls a method of the object behind an opaque pointer.
pub fn with<K: ObjectKind, P, T>(pointer: *const P, call: impl FnOnce(&Arc<K>) -> ApiResult<T>) -> ApiResult<T> {
    let inside = OBJECTS.enter(pointer.addr()).map_err(|why| refused::<K>(pointer.addr(), why))?;
    let object = kind::<K>(&**inside)?;
    if object.is_broken() {
        return Err(refused::<K>(pointer.addr(), LookupError::Poisoned));
    }
    let _watch = PanicGuard(&**object);
    call(object)
}

/// Closes an object. `agree` may refuse; after that no call can reach it.
pub fn end<K: ObjectKind, P>(
    pointer: *const P,
    agree: impl FnOnce(&K) -> ApiResult<()>,
    finish: impl FnOnce(&K) -> ApiResult<()>,
) -> ApiResult<i32> {
    let number = pointer.addr();
    {
        let inside = match OBJECTS.enter(number) {
            Err(LookupError::Poisoned) => return drop_poisoned(number),
            entered => entered.map_err(|why| refused::<K>(number, why))?,
        };
        let object = kind::<K>(&**inside)?;
        agree(object)?;
        if object.is_broken() {
            drop(inside);
            return drop_poisoned(number);
        }
    }
    let inside = OBJECTS.close(number).map_err(|why| refused::<K>(number, why))?;
    finish(kind::<K>(&**inside)?).map(|()| 0)
}

/// Drops a poisoned object without flushing; if that panics too, the rest is leaked.
fn drop_poisoned(number: usize) -> ApiResult<i32> {
    let closed = OBJECTS.close(number).ok();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(closed)));
    Ok(0)
}

/// Returns whether any object is open.
pub fn any_open() -> bool {
    !OBJECTS.open().is_empty()
}

/// Closes all objects of a kind, and with the last kind all that are poisoned. `note` gets the outcome of each.
pub fn close_all(order: CloseOrder, mut note: impl FnMut(ApiResult<i32>)) {
    for number in OBJECTS.open() {
        let close = match OBJECTS.enter(number) {
            Ok(inside) if inside.close_order() == order => inside.closer(),
            Err(LookupError::Poisoned) if order == CloseOrder::FileSystem => drop_poisoned,
            _ => continue,
        };
        note(close(number));
    }
}
