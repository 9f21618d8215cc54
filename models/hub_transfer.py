# One file of a repo: from a stream of bytes into the hub cache, resumed where it broke off, verified before it is used.
# This file may not know the hub's addresses or headers, nor import huggingface_hub: bytes come from whoever calls.
"""``store``: the file's path in its snapshot, after as little transfer as possible.

Bytes are appended to ``blobs/ETAG.incomplete`` as they come, so that a process killed at any moment loses none of them.
What is whole is synced and renamed when it has the hash that the hub lists, and removed when it has not.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from ingle.models.errors import DownloadFailed, ModelError, NoNetwork, store_error
from ingle.models.hub_cache import MAIN, commit_of, is_plain_name, lock_path, repo_folder
from ingle.models.hub_places import hub_cache_dir
from ingle.models.locks import locked
from ingle.models.progress import Progress

HOME: Final = "HF_HOME"  # the variable that moves the cache to another disk

_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)  # before a try that follows one which brought nothing
_READ_BYTES: Final = 1 << 20


class Cut(Exception):
    """The transfer broke off and may be tried again, after `pause_s` where the server says so.

    `error` is what to raise when patience is at its end.
    """

    def __init__(self, error: ModelError, pause_s: float | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes on their way, the first of them at `offset` of the file."""

    offset: int
    chunks: Iterator[bytes]


Opener = Callable[[int], AbstractContextManager[Body]]  # from this offset on; raises Cut and ModelError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file of a commit goes, and what it has to be."""

    repo_id: str
    commit: str
    name: str
    size_bytes: int
    sha256: str | None
    blob_id: str

    @property
    def etag(self) -> str:
        return self.sha256 or self.blob_id

    @property
    def pointer(self) -> Path:
        return repo_folder(self.repo_id) / "snapshots" / self.commit / self.name

    @property
    def blob(self) -> Path:
        return repo_folder(self.repo_id) / "blobs" / self.etag

    @property
    def partial(self) -> Path:
        return self.blob.with_name(f"{self.etag}.incomplete")

    def num_missing_bytes(self) -> int:
        """What would have to come over the network, were it fetched now."""
        if self.size_bytes in (_size(self.pointer), _size(self.blob)):
            return 0
        return max(self.size_bytes - (_size(self.partial) or 0), 0)

    def new_digest(self) -> hashlib._Hash:
        """SHA-256 of a large file's bytes; of a small one git's blob id: SHA-1 over a header and the bytes."""
        return hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


def require_room(places: Sequence[Place], *, force: bool) -> None:
    """Raise StoreError (ENOSPC) unless what is still missing of `places` fits on the cache's disk."""
    from ingle.models.wheel import require_free_space

    missing = sum(place.size_bytes if force else place.num_missing_bytes() for place in places)
    if missing:
        repo_id, blobs = places[0].repo_id, places[0].blob.parent
        folder = next(path for path in (blobs, *blobs.parents) if path.exists())
        require_free_space(folder, missing, f"download {repo_id}", home=HOME)


def store(
    place: Place, open_at: Opener, progress: Progress, sleep: Callable[[float], None], *, force: bool = False
) -> Path:
    """The path of the whole, verified file. Raises what `open_at` does, DownloadFailed and StoreError."""
    if not force and _size(place.pointer) == place.size_bytes:
        return place.pointer
    lock = lock_path(place.repo_id, place.etag)
    try:
        for folder in (lock.parent, place.blob.parent, place.pointer.parent):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(error, f"create folders in {hub_cache_dir()}", HOME) from None
    with locked(lock, progress, mode=0o644, home=HOME):
        if force:
            _remove(place.partial)
        if force or _size(place.blob) != place.size_bytes:
            _fetch(place, open_at, progress, sleep)
        try:
            _link(place)
        except OSError as error:
            raise store_error(error, f"write {place.pointer}", HOME) from None
    return place.pointer


def remember_revision(repo_id: str, revision: str | None, commit: str) -> None:
    """Note that `revision` (None: main) is `commit` now. Called when its files are there, so that a download that
    breaks off does not hide the version before it. Raises StoreError."""
    if commit_of(repo_id, revision) == commit or not is_plain_name(revision or MAIN):
        return
    path = repo_folder(repo_id) / "refs" / (revision or MAIN)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(commit, "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise store_error(error, f"write {path}", HOME) from None


def _fetch(place: Place, open_at: Opener, progress: Progress, sleep: Callable[[float], None]) -> None:
    """Bring `place.blob` about; the lock is held."""
    from ingle.models.wheel import sync_folder

    try:
        with place.partial.open("ab+", buffering=0) as out:
            growing = _Growing(place, out)
            num_resumed_bytes = growing.size_bytes
            if num_resumed_bytes:
                progress.note(f"{place.name}: {num_resumed_bytes / 1e6:.1f} MB are here, going on from there")
            _receive(growing, open_at, progress, sleep)
            is_right = growing.digest.hexdigest() == place.etag
            if is_right:
                os.fsync(out.fileno())
        if is_right:
            place.partial.replace(place.blob)
            sync_folder(place.blob.parent)
            return
        _remove(place.partial)
    except OSError as error:
        raise store_error(error, f"write {place.partial}", HOME) from None
    if not num_resumed_bytes:
        raise DownloadFailed(
            f"{place.name} failed verification: its bytes are not those that the hub lists",
            "What came is removed. Try again; if it happens again, something alters it on its way, such as a proxy.",
        )
    progress.note(f"what was here of {place.name} was damaged and is removed: fetching it from the beginning")
    _fetch(place, open_at, progress, sleep)


class _Growing:
    """A partial file, open for appending, and the hash of what it holds."""

    def __init__(self, place: Place, out: FileIO) -> None:
        self.place = place
        self._out = out
        self.size_bytes = 0
        self.digest = place.new_digest()
        if os.fstat(out.fileno()).st_size > place.size_bytes:
            self.restart()
        out.seek(0)
        while chunk := out.read(_READ_BYTES):
            self.digest.update(chunk)
            self.size_bytes += len(chunk)

    def restart(self) -> None:
        self._out.truncate(0)
        self.size_bytes = 0
        self.digest = self.place.new_digest()

    def append(self, chunk: bytes) -> None:
        """Adds `chunk`, as far as it belongs to the file."""
        rest = memoryview(chunk)[: self.num_missing_bytes]
        self.digest.update(rest)
        self.size_bytes += len(rest)
        while rest:
            rest = rest[self._out.write(rest) :]

    @property
    def num_missing_bytes(self) -> int:
        return self.place.size_bytes - self.size_bytes


def _receive(growing: _Growing, open_at: Opener, progress: Progress, sleep: Callable[[float], None]) -> None:
    """Append until the file is as long as it should be. Raises ModelError when tries in a row bring nothing."""
    place, num_failures = growing.place, 0
    progress.start(place.size_bytes, place.name, growing.size_bytes)
    try:
        while growing.num_missing_bytes:
            before = growing.size_bytes
            try:
                with open_at(before) as body:
                    if body.offset != before:
                        progress.finish()
                        progress.note("the server cannot send the rest alone: fetching from the beginning")
                        growing.restart()
                        before = 0
                        progress.start(place.size_bytes, place.name, 0)
                    for chunk in body.chunks:
                        growing.append(chunk)
                        progress.update(growing.size_bytes)
                        if not growing.num_missing_bytes:
                            return
                raise Cut(
                    NoNetwork(f"the hub sent only part of {place.name}", "Try again: what is here is kept."), None
                )
            except Cut as cut:
                num_failures = 0 if growing.size_bytes > before else num_failures + 1
                if num_failures > len(_PAUSES_S):
                    raise cut.error from None
                pause = cut.pause_s
                if pause is None:
                    pause = _PAUSES_S[num_failures - 1] if num_failures else 0.0
                if pause:
                    progress.note(f"{cut.error.message}: trying again in {pause:.0f} s")
                    sleep(pause)
    finally:
        progress.finish()


def _link(place: Place) -> None:
    """Point the snapshot's name at the blob; where links cannot be made, move the blob there. The lock is held."""
    pointer, blob = place.pointer, place.blob
    if pointer.is_symlink() and pointer.resolve() == blob.resolve():
        return
    temporary = pointer.with_name(f".{pointer.name}.{secrets.token_hex(4)}")
    try:
        temporary.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        blob.replace(pointer)
        return
    temporary.replace(pointer)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise store_error(error, f"remove {path}", HOME) from None
