# A regular file as read-only bytes. The one place that decides what may be opened at all.
# This file may not know what is inside the file.
"""Mapping a model file into memory without ever hanging on a pipe or reading a device."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Final

from ingle.models.errors import BadModelFile, ModelNotFound

DAMAGED_HINT: Final = "The file is damaged or incomplete: fetch or copy it again."


class MappedFile:
    """The bytes of a regular file, mapped read-only, for the length of a `with`. Never opens a pipe or a device."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def __enter__(self) -> mmap.mmap:
        try:
            # O_NONBLOCK: should the path turn into a FIFO between the two looks, opening it must still not hang.
            self._check_regular(self._path.stat())
            fd = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            try:
                status = os.fstat(fd)
                self._check_regular(status)
                if status.st_size == 0:
                    raise BadModelFile(f"{self._path} is empty (0 bytes)", DAMAGED_HINT)
                self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            raise ModelNotFound(f"no such file: {self._path}", "Check the path.") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise BadModelFile(f"cannot read {self._path}: {reason}", "Check the file's permissions.") from None
        return self._map

    def __exit__(self, *_: object) -> None:
        if self._map is not None:
            self._map.close()

    def _check_regular(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise BadModelFile(f"{self._path} is a folder, not a GGUF file", "Name the .gguf file inside it.")
        if not stat.S_ISREG(status.st_mode):
            raise BadModelFile(f"{self._path} is not a regular file", "Name a .gguf file.")
