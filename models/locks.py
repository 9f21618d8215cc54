# One process at a time. filelock is imported when the first lock is taken.
"""``locked``: hold a lock file between processes. The lock dies with its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingle.models.errors import StoreError, store_error
from ingle.models.progress import Progress


@contextmanager
def locked(
    path: Path,
    progress: Progress,
    *,
    doing: str = "downloading",
    mode: int = 0o600,
    home: str = "XDG_CACHE_HOME",
) -> Iterator[None]:
    """Hold the lock file `path`; says so when it has to wait for another that is `doing` the same. `home`: the variable
    that moves it elsewhere.

    Raises StoreError where it cannot be made, or the file system has no locks.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=mode)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"another process is {doing} this model: waiting for it")
            lock.acquire()
    except OSError as error:
        raise store_error(error, f"lock {path}", home) from None
    except NotImplementedError:
        raise StoreError(f"{path.parent} is on a file system without locks", f"Point {home} at another.") from None
    try:
        yield
    finally:
        lock.release()
