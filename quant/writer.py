# A GGUF file written from front to back: header first, then the tensors as they come. Whole or not at all.
# This file may not know where tensors come from or why they have the types they have.
"""``GgufWriter``: metadata and tensor table are known before the first tensor, so nothing is kept in memory.

The file has a temporary name beside its own until it has been read again and found whole, then it is renamed. A killed
process leaves that temporary behind; the next writer of the same file removes it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ingle.models.errors import StoreError
from ingle.models.ggml_types import BY_NAME, row_bytes
from ingle.models.gguf_header import HeaderError
from ingle.models.gguf_parser import parse_header
from ingle.models.mapped_file import MappedFile
from ingle.quant.gguf_values import EncodedValue, raw_string

ALIGNMENT: Final = 32
_VERSION: Final = 3
_SPACE_HINT: Final = "free some space, or name another place with -o"


class TensorSpec(NamedTuple):
    """A row of the tensor table. `shape` in ggml's order: columns first."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def num_bytes(self) -> int:
        rows = 1
        for n in self.shape[1:]:
            rows *= n
        return rows * row_bytes(self.type, self.shape[0])


def header_bytes(metadata: Mapping[str, EncodedValue], tensors: Sequence[TensorSpec]) -> bytes:
    """Everything before the first tensor, padding included."""
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [raw_string(key), value]
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [raw_string(tensor.name), shape, struct.pack("<IQ", BY_NAME[tensor.type].id, offset)]
        offset += padded(tensor.num_bytes)
    header = b"".join(parts)
    return header + bytes(padded(len(header)) - len(header))


def padded(size: int) -> int:
    return (size + ALIGNMENT - 1) & -ALIGNMENT


class GgufWriter:
    """One file. Used in a ``with``: left by an exception, or without `finish`, nothing remains.

    `metadata` must not hold ``general.alignment``: tensors are aligned to the format's default.
    """

    def __init__(self, path: Path, metadata: Mapping[str, EncodedValue], tensors: Sequence[TensorSpec]) -> None:
        assert "general.alignment" not in metadata
        self.path = path
        self._tensors = tensors
        self._header = header_bytes(metadata, tensors)
        self.size_bytes = len(self._header) + sum(padded(tensor.num_bytes) for tensor in tensors)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._fd: int | None = None
        self._index = 0
        self._written = 0  # bytes of the current tensor

    def __enter__(self) -> GgufWriter:
        """Raises StoreError when the folder cannot be written or has no room for the whole file."""
        folder = self.path.parent
        try:
            remove_leftovers(self.path)
            free = shutil.disk_usage(folder).free
            if free < self.size_bytes:
                raise StoreError(
                    f"{self.path} needs {self.size_bytes / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB left",
                    _SPACE_HINT,
                    errno=errno.ENOSPC,
                )
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
            self._fd = os.open(self._temporary, flags, 0o600)
        except OSError as error:
            raise _refused(self.path, error) from None
        self._put(self._header)
        return self

    def write(self, data: npt.NDArray[np.uint8] | npt.NDArray[np.float32]) -> None:
        """The next bytes of the current tensor, which ends when all of them are there. Raises StoreError."""
        spec = self._tensors[self._index]
        self._put(np.ascontiguousarray(data).data.cast("B"))
        self._written += data.nbytes
        assert self._written <= spec.num_bytes, f"too many bytes for {spec.name}"
        if self._written == spec.num_bytes:
            self._put(bytes(padded(self._written) - self._written))
            self._index, self._written = self._index + 1, 0

    def finish(self, check: Callable[[Path], object] | None = None) -> None:
        """Sync, read the header again, compare it with what was meant, and give the file its name.

        `check` may look at the whole file too, and raise. Raises StoreError.
        """
        assert self._index == len(self._tensors), f"{self._tensors[self._index].name} is not there"
        assert self._fd is not None
        try:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None
            self._verify()
            if check is not None:
                check(self._temporary)
            self._temporary.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise _refused(self.path, error) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._temporary.unlink(missing_ok=True)

    def _put(self, data: bytes | memoryview) -> None:
        assert self._fd is not None
        view = memoryview(data)
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise _refused(self.path, error) from None

    def _verify(self) -> None:
        try:
            with MappedFile(self._temporary) as buf:
                header = parse_header(buf)
        except HeaderError as error:
            raise StoreError(
                f"{self.path} was not written as it should be: {error.reason}", "check that disk"
            ) from None
        found = [TensorSpec(tensor.name, tensor.shape, tensor.type) for tensor in header.tensors]
        if found != list(self._tensors) or header.size_bytes != self.size_bytes:
            raise StoreError(f"{self.path} was not written as it should be", "check that disk")


def candidate_path(path: Path, name: str) -> Path:
    """Where one of several files is written that may take the place of `path`, and only one will."""
    return path.with_name(f".{path.name}.{os.getpid()}.{name}.gguf")


def put_in_place(candidate: Path, path: Path) -> None:
    """A finished candidate becomes `path`. Raises StoreError."""
    try:
        candidate.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _refused(path, error) from None


def remove_leftovers(path: Path) -> None:
    """Delete what killed processes left of `path`: pieces of it, candidates for its place (`candidate_path`), and of a
    candidate the same. Raises OSError."""
    pattern = re.compile(rf"\.+{re.escape(path.name)}\.(\d+)\.(?:partial|\w+\.gguf(?:\.\d+\.(?:partial|\w+\.gguf))*)")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match is not None and not is_alive(int(match[1])):
            entry.unlink(missing_ok=True)


def _refused(path: Path, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    hint = _SPACE_HINT if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "name another place with -o"
    return StoreError(f"cannot write {path}: {reason}", hint, errno=error.errno)


def is_alive(process: int) -> bool:
    """Whether a process of that number is running; where that cannot be asked, only our own counts."""
    if process == os.getpid() or os.name != "posix":
        return process == os.getpid()
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no such thing
            os.fsync(fd)
    finally:
        os.close(fd)
