# The file of a conversation: JSON lines that are only ever added. Who says what in them is records.py's.
# This file may not know models, engines or terminals.
"""``Transcript``: one file of records, held by one process at a time.

A record is a JSON object on a line of its own, the first one the header. Each is written, flushed and synced as it
comes, so a process that dies loses at most the line it was writing. What it has written of that line is cut off by the
next append. Lines that are not JSON objects, further up, stay where they are and are passed over.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli.errors import BadTranscript, Busy, InputProblem
from ingle.models.places import ensure_private_dir

if TYPE_CHECKING:
    from filelock import BaseFileLock

KIND = "conversation"
VERSION = 1

SUFFIX = ".jsonl"

_BEGINNING = b'{"ingle": "conversation", '

Record = dict[str, Any]


class Transcript:
    """See the module. `records`: what was in the file when it was opened, the header first; empty for a new one."""

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.path = path
        self._lock = lock
        self._descriptor: int | None = None
        self._unwritten: list[bytes] = []
        data = read_bytes(path) if path.exists() else b""
        self.records, self._num_good, self._needs_newline = parse(data, path)

    @classmethod
    def open(cls, path: Path) -> Transcript:
        """Hold `path`, which need not exist: the first append makes it, so a chat in which nothing is said leaves none.

        Raises Busy when another process holds it, BadTranscript for a file that is not ours, StoreError.
        """
        lock = _locked(path)
        try:
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._lock.release()

    def append(self, *records: Mapping[str, Any]) -> None:
        """Add records; on disk when this returns. What an OSError kept from being written is tried again next time."""
        self._unwritten += map(_line, records)
        if self._descriptor is None:
            is_new = not self.path.exists()
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            if is_new:
                _sync_folder(self.path.parent)
        while self._unwritten:
            self._write(b"\n" * self._needs_newline + self._unwritten[0])
            self._needs_newline = False
            del self._unwritten[0]

    def move(self, path: Path) -> None:
        """Be `path` from here on, which must be free. Raises Busy, InputProblem, OSError."""
        lock = _locked(path)
        try:
            _refuse_existing(path)
            if self.path.exists():
                self.path.rename(path)
        except BaseException:
            lock.release()
            raise
        self._lock.release()
        self.path, self._lock = path, lock

    def copy(self, path: Path) -> Transcript:
        """A copy of it at `path`, which must be free; this one stays as it is. Raises as `move` does."""
        lock = _locked(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            _refuse_existing(path)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
                with open(self.path, "rb") as source:
                    shutil.copyfileobj(source, target)
                os.fsync(target.fileno())
            temporary.rename(path)
            return Transcript(path, lock)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            lock.release()
            raise

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, self._num_good)  # what a process that died left of a line
        os.lseek(self._descriptor, self._num_good, os.SEEK_SET)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._num_good)
            raise
        self._num_good += len(data)


def read(path: Path) -> list[Record]:
    """The records of a file, the header first; nothing is locked. Raises as `Transcript.open` does."""
    records, _, _ = parse(read_bytes(path), path)
    return records


def parse(data: bytes, path: Path) -> tuple[list[Record], int, bool]:
    """The records in `data`; how many of its bytes are whole lines; whether the last of them lacks its line end."""
    *lines, tail = data.split(b"\n")
    records = [record for line in lines if (record := _record(line)) is not None]
    last = _record(tail)
    if last is not None:
        records.append(last)
    num_good = len(data) - (len(tail) if last is None else 0)
    first = _record(lines[0]) if lines else last
    if first is None:
        # Our own process may have died while it wrote the header.
        if lines or not (_BEGINNING.startswith(tail) or tail.startswith(_BEGINNING)):
            raise _not_ours(path)
        return [], 0, False
    if first.get("ingle") != KIND or not isinstance(first.get("version"), int):
        raise _not_ours(path)
    if first["version"] > VERSION:
        raise BadTranscript(f"{path} was written by a later version of Ingle", "update Ingle, or begin another one")
    return records, num_good, last is not None


def header(**more: Any) -> Record:
    """The first record of a file."""
    return {"ingle": KIND, "version": VERSION, **more}


def read_bytes(path: Path) -> bytes:
    if not path.is_file():  # a pipe would keep us waiting
        raise InputProblem(f"{path} is not a file" if path.exists() else f"there is no conversation {path.stem!r}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputProblem(f"cannot read {path}: {error.strerror}", "check its permissions") from None


def _record(line: bytes) -> Record | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot hold
        return json.dumps(record).encode() + b"\n"


def _locked(path: Path) -> BaseFileLock:
    from filelock import FileLock, Timeout

    locks = ensure_private_dir(ensure_private_dir(path.parent) / ".locks")
    lock = FileLock(locks / path.name, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise Busy(
            f"the conversation {path.stem!r} is open in another process", "leave that one, or take another name"
        ) from None
    return lock


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise InputProblem(f"there is a conversation {path.stem!r} already", "take another name")


def _not_ours(path: Path) -> BadTranscript:
    return BadTranscript(f"{path} is not a conversation of Ingle's", "move it away, or take another name")


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not everywhere can a folder be synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
