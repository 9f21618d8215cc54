"""Pages in files, up to a cap, shared with other processes. Raises what the disk raises; its caller decides what that
means.

``<directory>/<fingerprint>/<2 digits>/<parent>-<hash>.kv``, and a ``model.json`` that says what the fingerprint stands
for. Files appear whole, by renaming; whoever finds one gone computes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ingle.runtime.blocks import ChainHash
from ingle.runtime.page import SUFFIX, BadPage, Page, read_page, read_tokens, write_page
from ingle.runtime.page_files import ABOUT, about

_TEMPORARY = ".tmp-"


class DiskTier:
    """Pages in files under `directory`, the oldest deleted beyond `max_bytes` over all fingerprints."""

    def __init__(self, directory: Path, fingerprint: bytes, max_bytes: int, about: dict[str, str]) -> None:
        self.root = directory
        self.folder = directory / fingerprint.hex()
        self.fingerprint = fingerprint
        self.max_bytes = max_bytes
        self._about = about
        self._bytes_until_collection: int | None = None  # unknown until the first write

    def path(self, parent: ChainHash, name: ChainHash) -> Path:
        return self.folder / parent.hex()[:2] / f"{parent.hex()}-{name.hex()}{SUFFIX}"

    def contains(self, parent: ChainHash, name: ChainHash) -> bool:
        return self.path(parent, name).exists()

    def size(self, parent: ChainHash, name: ChainHash) -> int:
        """Bytes of the file; 0 where there is none."""
        try:
            return self.path(parent, name).stat().st_size
        except OSError:
            return 0

    def get(self, parent: ChainHash, name: ChainHash) -> Page | None:
        """The page, checked, and its time of last use renewed. A bad file is deleted; raises `BadPage` to say so."""
        path = self.path(parent, name)
        try:
            page = read_page(path, self.fingerprint, parent, name)
        except OSError:
            return None
        except BadPage:
            with suppress(OSError):
                path.unlink()
            raise
        with suppress(OSError):
            os.utime(path)
        return page

    def children(self, parent: ChainHash) -> Iterator[tuple[ChainHash, tuple[int, ...]]]:
        """(name, tokens) of the pages that follow `parent`, as far as they can be read."""
        with suppress(OSError):
            for path in list((self.folder / parent.hex()[:2]).glob(f"{parent.hex()}-*{SUFFIX}")):
                with suppress(OSError, BadPage, ValueError):
                    yield ChainHash(bytes.fromhex(path.stem.partition("-")[2])), read_tokens(path)

    def put(self, page: Page) -> None:
        """Write a page under a temporary name and rename it. Raises OSError."""
        path = self.path(page.parent, page.hash)
        if path.exists():
            return
        if self._bytes_until_collection is None:
            self._describe()
            self._bytes_until_collection = self._collect()
        try:
            num_bytes = self._write(page, path)
        except FileNotFoundError:  # somebody has just removed the folder
            num_bytes = self._write(page, path)
        self._bytes_until_collection -= num_bytes
        if self._bytes_until_collection < 0:
            self._bytes_until_collection = self._collect()

    def _write(self, page: Page, path: Path) -> int:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = _temporary_in(path.parent)
        try:
            num_bytes = write_page(page, temporary, self.fingerprint)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        return num_bytes

    def recall(self, key: str) -> str | None:
        """What `remember` was told, by this process or another."""
        return about(self.folder).get(key)

    def remember(self, key: str, value: str) -> None:
        """Keep a fact about how this fingerprint's model runs here, beside its pages. Raises OSError."""
        self._write_about({**self._about, **about(self.folder), key: value})

    def _describe(self) -> None:
        """Make the folder and say in it what its fingerprint stands for."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / ABOUT).exists():
            self._write_about(self._about)

    def _write_about(self, facts: dict[str, str]) -> None:
        temporary = _temporary_in(self.folder)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=2)
        temporary.replace(self.folder / ABOUT)

    def _collect(self) -> int:
        """If pages take more than the cap, delete those used longest ago until nine tenths of it are left. And what
        dead writers left behind. Gives the bytes to write before the next time, which is soon: others write too."""
        for path in (*self.root.glob(f"*/{_TEMPORARY}*"), *self.root.glob(f"*/*/{_TEMPORARY}*")):
            if not _is_alive(path.name):
                with suppress(OSError):
                    path.unlink()
        files: list[tuple[float, int, Path]] = []
        for path in self.root.glob(f"*/*/*{SUFFIX}"):
            with suppress(OSError):
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        used = sum(size for _, size, _ in files)
        if used > self.max_bytes:
            for _, size, path in sorted(files, key=lambda item: item[0]):
                with suppress(OSError):
                    path.unlink()
                    used -= size
                if used <= 0.9 * self.max_bytes:
                    break
        return max(0, min(self.max_bytes - used, self.max_bytes // 20))


def _temporary_in(folder: Path) -> Path:
    """A new name, with our process's number in it so that others know whether it is still being written."""
    return folder / f"{_TEMPORARY}{os.getpid()}-{os.urandom(6).hex()}"


def _is_alive(temporary_name: str) -> bool:
    """Whether the process that made this temporary file still runs."""
    number = temporary_name.removeprefix(_TEMPORARY).partition("-")[0]
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True
    return True
