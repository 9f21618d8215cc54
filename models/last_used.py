# When a model file was last opened: an empty file each, named by a hash, whose time says it.
# This file may not know models' contents nor where the folder lies; it imports nothing that a start has not.
"""``mark(folder, path)`` when a model is opened; ``when(folder, path)`` for a list.

The folder says which paths were opened only to those who can guess them, and only its owner may look.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


def mark(folder: Path, path: Path) -> None:
    """Note that `path` is used now. What the disk refuses is not worth failing for: then nothing is noted."""
    with suppress(OSError):
        target = _file(folder, path)
        try:
            descriptor = os.open(target, os.O_CREAT | os.O_WRONLY, 0o600)
        except FileNotFoundError:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(target, os.O_CREAT | os.O_WRONLY, 0o600)
        os.close(descriptor)
        os.utime(target)


def when(folder: Path, path: Path) -> float | None:
    """Seconds since 1970 when `path` was last marked; None: never."""
    try:
        return _file(folder, path).stat().st_mtime
    except OSError:
        return None


def forget(folder: Path, path: Path) -> None:
    """Take the mark of `path` away."""
    with suppress(OSError):
        _file(folder, path).unlink()


def _file(folder: Path, path: Path) -> Path:
    real = os.fsencode(os.path.realpath(path))
    return folder / hashlib.sha256(real).hexdigest()[:32]
