"""Open files: `File`, what it lends, and `open`."""

import ctypes
import io
import os
import weakref

from ._library import calls, failure, sure

_ACCESS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
           "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}
_read, _write, _pread, _pwrite = calls["uread"], calls["uwrite"], calls["upread"], calls["upwrite"]


def _flags(mode):
    """The flags of open(2) for a mode such as `r+b`."""
    kinds = [letter for letter in mode if letter in _ACCESS]
    if len(kinds) != 1 or len(set(mode)) != len(mode) or set(mode) - set("rwaxb+"):
        raise ValueError(f"invalid mode: {mode!r}")
    flags = _ACCESS[kinds[0]]
    return flags & ~os.O_ACCMODE | os.O_RDWR if "+" in mode else flags


class _Ufd:
    """A ufd, closed when the file is and nothing that it lent is in use any more."""

    def __init__(self, number):
        self.number = number
        self.lent = 0
        self.closing = False

    def close(self):
        self.closing = True
        if self.lent == 0 and self.number >= 0:
            number, self.number = self.number, -1
            sure(calls["uclose"](number))

    def unpin(self, offset, address):
        calls["uunpin"](self.number, offset, address)
        self.lent -= 1
        if self.closing:
            self.close()


def _buffer(data):
    """Address and length of any object with bytes in a row, and what keeps it there."""
    view = memoryview(data).cast("B") if not isinstance(data, bytes) else data
    if isinstance(view, bytes):
        return ctypes.cast(ctypes.c_char_p(view), ctypes.c_void_p), len(view), view
    if view.nbytes == 0:
        return None, 0, view
    if view.readonly:
        copy = bytes(view)
        return ctypes.cast(ctypes.c_char_p(copy), ctypes.c_void_p), len(copy), copy
    array = (ctypes.c_ubyte * view.nbytes).from_buffer(view)
    return ctypes.addressof(array), view.nbytes, array


def _memory(address, count, end, *arguments):
    """A memoryview of the library's memory, read-only; `end` is called when the last view of it is gone."""
    array = (ctypes.c_ubyte * count).from_address(address)
    weakref.finalize(array, end, *arguments).atexit = False
    return memoryview(array).cast("B").toreadonly()


class Pin:
    """Bytes of a page of the cache, without a copy: a memoryview in `view`, for `with` or until `release`.

    Views that were made of it (slices, numpy's arrays) keep the page where it is until they are gone, too.
    """

    def __init__(self, view):
        self.view = view

    def __enter__(self):
        return self.view

    def __exit__(self, *_):
        self.release()

    def __len__(self):
        return len(self.view)

    def release(self):
        """Lets go of the page."""
        self.view = memoryview(b"")


class File(io.RawIOBase):
    """A file through the cache, unbuffered.

    Args:
        path: of the file; or a ufd that is taken over.
        mode: as of `io.FileIO`: r, w, a or x, with + and b.
        flags: more flags of open(2), such as os.O_SYNC.
        permissions: of a new file.
    """

    def __init__(self, path, mode="r", flags=0, permissions=0o666):
        super().__init__()
        self._ufd = None
        access = _flags(mode)
        self.name = path
        self.mode = mode if "b" in mode else mode + "b"
        self._readable = access & os.O_ACCMODE != os.O_WRONLY
        self._writable = access & os.O_ACCMODE != os.O_RDONLY
        if isinstance(path, int):
            number = path
        else:
            number = sure(calls["uopen"](os.fsencode(path), access | flags, permissions), path)
        self._ufd = _Ufd(number)
        if "a" in mode:
            self.seek(0, os.SEEK_END)

    def _number(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._ufd.number

    def _reading(self):
        number = self._number()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        return number

    def _writing(self):
        number = self._number()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        return number

    @property
    def ufd(self):
        """The library's number for it."""
        return self._number()

    def fileno(self):
        """The kernel's descriptor below: what goes through it goes past the cache."""
        return sure(calls["ufileno"](self._number()))

    def isatty(self):
        return os.isatty(self.fileno())

    def readable(self):
        self._number()
        return self._readable

    def writable(self):
        self._number()
        return self._writable

    def seekable(self):
        return calls["ulseek"](self._number(), 0, os.SEEK_CUR) != -1

    def readinto(self, buffer):
        """Reads into any writable buffer. Returns the number of bytes; None: there are none yet."""
        return self._into(_read, self._reading(), buffer)

    def preadinto(self, buffer, offset):
        """As readinto, at an offset, without moving the position."""
        return self._into(_pread, self._reading(), buffer, offset)

    def _into(self, call, number, buffer, *offset):
        view = memoryview(buffer)
        if view.readonly:
            raise TypeError("a buffer that can be written to is needed")
        address, count, _kept = _buffer(view)
        return self._told(call(number, address, count, *offset))

    def _told(self, count):
        if count == -1:
            error = failure(self.name)
            if isinstance(error, BlockingIOError):
                return None
            raise error
        return count

    def pread(self, count, offset):
        """Up to `count` bytes at an offset, without moving the position."""
        data = bytearray(count)
        del data[self.preadinto(data, offset) or 0:]
        return bytes(data)

    def readall(self):
        """The rest of the file."""
        here = calls["ulseek"](self._reading(), 0, os.SEEK_CUR)
        rest = bytearray(max(stat(self).st_size - here, 0) + 1 if here != -1 else 65536)
        done = 0
        while True:
            with memoryview(rest) as view:
                count = self.readinto(view[done:])
            if not count:
                return None if count is None and done == 0 else bytes(rest[:done])
            done += count
            if done == len(rest):
                rest.extend(bytes(max(done, 65536)))

    def write(self, data):
        """Writes any buffer at the position. Returns the number of bytes."""
        number = self._writing()
        address, count, _kept = _buffer(data)
        return self._told(_write(number, address, count))

    def pwrite(self, data, offset):
        """As write, at an offset, without moving the position."""
        number = self._writing()
        address, count, _kept = _buffer(data)
        return self._told(_pwrite(number, address, count, offset))

    def seek(self, offset, whence=os.SEEK_SET):
        return sure(calls["ulseek"](self._number(), offset, whence), self.name)

    def tell(self):
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size=None):
        number = self._writing()
        size = self.tell() if size is None else size
        sure(calls["uftruncate"](number, size), self.name)
        return size

    def fsync(self):
        """When it returns, every byte that was written survives anything."""
        sure(calls["ufsync"](self._number()), self.name)

    def fdatasync(self):
        """As fsync, without what is not needed to read the bytes again."""
        sure(calls["ufdatasync"](self._number()), self.name)

    def pin(self, offset, count):
        """Up to `count` bytes of the cache's own memory, at most to the end of their page of 4096 bytes and of the file: a `Pin`."""
        number, address = self._reading(), ctypes.c_void_p()
        bytes_there = sure(calls["upin"](number, offset, count, ctypes.byref(address)), self.name)
        if bytes_there == 0:
            return Pin(memoryview(b""))
        self._ufd.lent += 1
        return Pin(_memory(address.value, bytes_there, self._ufd.unpin, offset, address.value))

    def view(self, offset, count):
        """A read-only memoryview of `count` bytes as they are now, in a row; behind the end of the file they are 0. It is a copy."""
        address = sure(calls["umap"](self._reading(), offset, count), self.name)
        return _memory(address, count, calls["uunmap"], address)

    def close(self):
        if self.closed:
            return
        try:
            super().close()
        finally:
            if self._ufd is not None:
                self._ufd.close()

    def __repr__(self):
        state = "closed" if self.closed else f"ufd={self._ufd.number}"
        return f"<hotshelf.File name={self.name!r} mode={self.mode!r} {state}>"


def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None):  # pylint: disable=redefined-builtin
    """As the built-in `open`, through the cache."""
    binary = "b" in mode
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    if not binary and buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    if "t" in mode and binary:
        raise ValueError("can't have text and binary mode at once")
    raw = File(file, mode.replace("t", ""))
    try:
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        if raw.readable() and raw.writable():
            buffered = io.BufferedRandom(raw, size)
        else:
            buffered = io.BufferedReader(raw, size) if raw.readable() else io.BufferedWriter(raw, size)
        if binary:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    except BaseException:
        raw.close()
        raise


class _Stat(ctypes.Structure):
    """struct stat of Linux: one form for x86-64, one for all newer machines."""

    _head = [("st_nlink", ctypes.c_uint64), ("st_mode", ctypes.c_uint32), ("st_uid", ctypes.c_uint32), ("st_gid", ctypes.c_uint32),
             ("_pad", ctypes.c_uint32), ("st_rdev", ctypes.c_uint64), ("st_size", ctypes.c_int64), ("st_blksize", ctypes.c_int64)]
    _newer = [("st_mode", ctypes.c_uint32), ("st_nlink", ctypes.c_uint32), ("st_uid", ctypes.c_uint32), ("st_gid", ctypes.c_uint32),
              ("st_rdev", ctypes.c_uint64), ("_pad", ctypes.c_uint64), ("st_size", ctypes.c_int64), ("st_blksize", ctypes.c_int32),
              ("_pad2", ctypes.c_int32)]
    _fields_ = [
        ("st_dev", ctypes.c_uint64), ("st_ino", ctypes.c_uint64), *(_head if os.uname().machine == "x86_64" else _newer),
        ("st_blocks", ctypes.c_int64), ("st_atime", ctypes.c_int64), ("st_atime_ns", ctypes.c_int64), ("st_mtime", ctypes.c_int64),
        ("st_mtime_ns", ctypes.c_int64), ("st_ctime", ctypes.c_int64), ("st_ctime_ns", ctypes.c_int64), ("_rest", ctypes.c_int64 * 3),
    ]

    def result(self):
        words = (self.st_mode, self.st_ino, self.st_dev, self.st_nlink, self.st_uid, self.st_gid, self.st_size)
        return os.stat_result((*words, self.st_atime, self.st_mtime, self.st_ctime))


def stat(file):
    """As os.stat, of a path or a `File`, with the size and times that what is in the cache makes."""
    found = _Stat()
    if isinstance(file, File):
        sure(calls["ufstat"](file.ufd, ctypes.byref(found)), file.name)
    else:
        sure(calls["ustat"](os.fsencode(file), ctypes.byref(found)), file)
    return found.result()


def rename(source, target):
    """As os.rename."""
    sure(calls["urename"](os.fsencode(source), os.fsencode(target)), source)


def unlink(path):
    """As os.unlink."""
    sure(calls["uunlink"](os.fsencode(path)), path)


def export(path, to):
    """Copies what the cache has of a stranded file to a new file.

    Stranded: another program changed, moved or removed it while pages of it were newer in the cache.
    """
    sure(calls["hs_export"](os.fsencode(path), os.fsencode(to)), path)


def discard(path):
    """Gives up what the cache has of a stranded file: the file as it is counts."""
    sure(calls["hs_discard"](os.fsencode(path)), path)


def force(path):
    """Writes what the cache has of a stranded file over the file."""
    sure(calls["hs_force"](os.fsencode(path)), path)
