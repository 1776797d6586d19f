"""libhotshelf and its calls, with their types."""

import ctypes
import ctypes.util
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_void_p

SONAME = "libhotshelf.so.0"


def _load():
    named = os.environ.get("HOTSHELF_LIBRARY")
    try:
        return ctypes.CDLL(named or SONAME, use_errno=True)
    except OSError as error:
        hint = f"hotshelf: {error}: install libhotshelf, or say where it is with HOTSHELF_LIBRARY"
        raise ImportError(hint) from error


_lib = _load()

# What each call returns, and takes.
_CALLS = {
    "hs_init": (c_int, [c_char_p]),
    "hs_shutdown": (c_int, []),
    "hs_error": (c_char_p, []),
    "hs_version": (c_char_p, []),
    "hs_export": (c_int, [c_char_p, c_char_p]),
    "hs_discard": (c_int, [c_char_p]),
    "hs_force": (c_int, [c_char_p]),
    "uopen": (c_int, [c_char_p, c_int, c_uint]),
    "uclose": (c_int, [c_int]),
    "ufileno": (c_int, [c_int]),
    "uread": (c_ssize_t, [c_int, c_void_p, c_size_t]),
    "uwrite": (c_ssize_t, [c_int, c_void_p, c_size_t]),
    "upread": (c_ssize_t, [c_int, c_void_p, c_size_t, c_int64]),
    "upwrite": (c_ssize_t, [c_int, c_void_p, c_size_t, c_int64]),
    "ulseek": (c_int64, [c_int, c_int64, c_int]),
    "ufsync": (c_int, [c_int]),
    "ufdatasync": (c_int, [c_int]),
    "uftruncate": (c_int, [c_int, c_int64]),
    "ufstat": (c_int, [c_int, c_void_p]),
    "ustat": (c_int, [c_char_p, c_void_p]),
    "upin": (c_ssize_t, [c_int, c_int64, c_size_t, POINTER(c_void_p)]),
    "uunpin": (c_int, [c_int, c_int64, c_void_p]),
    "umap": (c_void_p, [c_int, c_int64, c_size_t]),
    "uunmap": (c_int, [c_void_p]),
    "urename": (c_int, [c_char_p, c_char_p]),
    "uunlink": (c_int, [c_char_p]),
}


def _typed(name):
    function = getattr(_lib, name)
    function.restype, function.argtypes = _CALLS[name]
    return function


calls = {name: _typed(name) for name in _CALLS}


def failure(path=None):
    """The OSError of this thread's last failure, with the library's own sentence."""
    number = ctypes.get_errno()
    sentence = calls["hs_error"]().decode(errors="replace") or os.strerror(number)
    return OSError(number, sentence) if path is None else OSError(number, sentence, path)


def sure(result, path=None):
    """What the call returned; -1 and None are failures."""
    if result == -1 or result is None:
        raise failure(path)
    return result


def init(config=None):
    """Begins with the configuration file `config`; None: $HOTSHELF_CONFIG, else the defaults. Optional."""
    sure(calls["hs_init"](None if config is None else os.fsencode(config)), config)


def shutdown():
    """Closes every file and leaves the cache. Runs at exit, too."""
    sure(calls["hs_shutdown"]())


def version():
    """The library's."""
    return calls["hs_version"]().decode()
