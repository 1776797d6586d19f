"""Files through the hotshelf cache.

`open` is the built-in one's like; `File` is the unbuffered file below it. `init` and `shutdown` are optional.
"""

from ._files import File, Pin, discard, export, force, open, rename, stat, unlink
from ._library import init, shutdown, version

__all__ = ["File", "Pin", "discard", "export", "force", "init", "open", "rename", "shutdown", "stat", "unlink", "version"]
__version__ = "0.1.0"
