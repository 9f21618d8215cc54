"""The page store: KV blocks kept as bytes in RAM and in files, so that what was read once need not be read again.

A page is found by its chain hash: by anybody who has the same tokens before it, model and settings, in this process or
in one started next week. Pages are stored as blocks fill, and written by a thread of their own; a page that fails any
check is deleted and its tokens are computed again. Nothing here is ever an error to the user: a store that cannot
write stores less.
"""

from __future__ import annotations

import math
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ingle.models.gguf_info import ModelInfo
from ingle.models.memory import available_memory_bytes
from ingle.runtime.blocks import ChainHash
from ingle.runtime.config import EngineConfig
from ingle.runtime.disk_tier import DiskTier
from ingle.runtime.host_tier import HostTier
from ingle.runtime.page import BadPage, Page
from ingle.runtime.page_run import PageRun

QUEUE_BYTES = 256 * 2**20
"""Pages waiting to be written may take so much memory; beyond it new ones stay in RAM only."""

PAUSE = 60.0
"""The writer rests for so many times the processor time that a page took, unless the queue is half full or somebody
waits: a step whose cores are all in use is slowed by what the writer does, however politely it does it. A burst of
pages made steps on two cores 4 to 6 % longer without rests, 3 to 5 % with 20 and 1 to 2.5 % with 60."""

MAX_DISK_BYTES = 10 * 2**30

RATE = "compute_token_s"
"""The fact, beside a model's pages, of how long computing a token of a prompt takes."""

FLUSH_S = 10.0
"""How long `close` waits for the writer."""


class Tier(StrEnum):
    """Where a page was found."""

    HOST = "host"
    DISK = "disk"


@dataclass(slots=True)
class StoreStats:
    """Counts since the store was opened."""

    num_host_pages: int = 0
    host_bytes: int = 0
    num_written: int = 0
    num_dropped: int = 0  # not written: the queue was full, or the disk refused
    num_bad: int = 0  # deleted because a check failed
    disk_error: str | None = None


class PageStore:
    """Both tiers, and the thread that writes. Used from one thread; `disk` ``None``: RAM only."""

    def __init__(self, host: HostTier, disk: DiskTier | None) -> None:
        self._host = host
        self._disk = disk
        self._stats = StoreStats()
        self._queue: queue.SimpleQueue[Page | None] = queue.SimpleQueue()
        self._queued: dict[ChainHash, Page] = {}
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._hurry = threading.Event()  # the writer is not to rest
        self._is_awaited = False
        self._writer: threading.Thread | None = None

    def find(self, parent: ChainHash, name: ChainHash) -> Tier | None:
        """Whether there seems to be such a page. It may be gone, or bad, when it is asked for."""
        if name in self._host or name in self._queued:
            return Tier.HOST
        return Tier.DISK if self._disk is not None and self._disk.contains(parent, name) else None

    def get(self, parent: ChainHash, name: ChainHash) -> Page | None:
        """The page, checked, if it is there."""
        page = self.resident(name) or self.read(parent, name)
        if page is not None:
            self.keep(page)
        return page

    def get_run(self, chain: Sequence[ChainHash]) -> PageRun:
        """The pages named chain[1], chain[2], …, each following the one before, up to the first that is not there."""
        return PageRun(self, chain)

    def resident(self, name: ChainHash) -> Page | None:
        """The page, if it is in RAM."""
        return self._host.get(name) or self._queued.get(name)

    def keep(self, page: Page) -> None:
        """A page that was read from a file is in use: keep it in RAM too, as far as the cap allows."""
        self._host.put(page)

    def read(self, parent: ChainHash, name: ChainHash) -> Page | None:
        """The page in the file, checked, if it is there. Any thread may ask."""
        try:
            return self._disk.get(parent, name) if self._disk is not None else None
        except BadPage:
            self._stats.num_bad += 1
            return None

    def page_bytes(self, parent: ChainHash, name: ChainHash) -> int:
        """The size of the file; 0 where there is none."""
        return 0 if self._disk is None else self._disk.size(parent, name)

    def recall_rate(self) -> float | None:
        """Seconds to compute a token of a prompt, as measured by whoever used these pages last."""
        with suppress(ValueError):
            rate = float((self._disk.recall(RATE) if self._disk is not None else None) or "nan")
            return rate if 0 < rate < math.inf else None
        return None

    def remember_rate(self, seconds: float) -> None:
        """Keep it for the next process, if the disk allows."""
        if self._disk is not None:
            with suppress(OSError):
                self._disk.remember(RATE, f"{seconds:.3g}")

    def children(self, parent: ChainHash) -> dict[ChainHash, tuple[int, ...]]:
        """{name: tokens} of the pages that follow `parent`."""
        found = dict(self._host.children(parent))
        if self._disk is not None:
            found |= dict(self._disk.children(parent))
        return found

    def put(self, page: Page) -> None:
        """Keep a page: in RAM now, in a file soon."""
        self._host.put(page)
        if self._disk is None:
            return
        if self._stats.disk_error is not None:
            self._stats.num_dropped += 1
            return
        with self._lock:
            if page.hash in self._queued:
                return
            if self._queued_bytes + page.num_bytes > QUEUE_BYTES:
                self._stats.num_dropped += 1
                return
            self._queued[page.hash] = page
            self._queued_bytes += page.num_bytes
            self._idle.clear()
            if self._queued_bytes > QUEUE_BYTES // 2:
                self._hurry.set()
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="ingle-pages", daemon=True)
            self._writer.start()
        self._queue.put(page)

    def discard(self, page: Page) -> None:
        """Forget a page that turned out not to be what its name says."""
        self._stats.num_bad += 1
        self._host.discard(page.hash)
        if self._disk is not None:
            with suppress(OSError):
                self._disk.path(page.parent, page.hash).unlink()

    def stats(self) -> StoreStats:
        self._stats.num_host_pages = len(self._host)
        self._stats.host_bytes = self._host.num_bytes
        return self._stats

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until everything put so far is in files; False if that took longer than `timeout_s`."""
        self._is_awaited = True
        self._hurry.set()
        is_done = self._idle.wait(timeout_s)
        self._is_awaited = False
        return is_done

    def close(self) -> None:
        """Write what is queued and end the thread."""
        self._is_awaited = True
        self._hurry.set()
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join(FLUSH_S)

    def _write(self) -> None:
        """The writer thread. The first refusal of the disk ends the writing for this process."""
        assert self._disk is not None
        _give_way()
        while (page := self._queue.get()) is not None:
            started_s = time.thread_time()
            if self._stats.disk_error is None:
                try:
                    self._disk.put(page)
                    self._stats.num_written += 1
                except OSError as error:
                    self._stats.disk_error = error.strerror or str(error)
            if self._stats.disk_error is not None:
                self._stats.num_dropped += 1
            with self._lock:
                del self._queued[page.hash]
                self._queued_bytes -= page.num_bytes
                if not self._queued:
                    self._idle.set()
                if self._queued_bytes <= QUEUE_BYTES // 2 and not self._is_awaited:
                    self._hurry.clear()
            self._hurry.wait(PAUSE * (time.thread_time() - started_s))


def open_store(config: EngineConfig, fingerprint: bytes, model_info: ModelInfo) -> PageStore:
    """The store for one engine, in `config.page_dir`. Limits left open: a tenth of the free memory, and the lesser of
    10 GiB and a tenth of the free disk."""
    assert config.page_dir is not None
    max_host_bytes, max_disk_bytes = config.max_host_bytes, config.max_disk_bytes
    if max_host_bytes is None:
        max_host_bytes = available_memory_bytes() // 10
    if max_disk_bytes is None:
        max_disk_bytes = min(MAX_DISK_BYTES, _free_bytes(config.page_dir) // 10)
    about = {
        "model": model_info.name or model_info.path.stem,
        "file": str(model_info.path),
        "architecture": model_info.architecture,
        "type_k": config.type_k,
        "type_v": config.type_v,
        "created": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    disk = DiskTier(config.page_dir, fingerprint, max_disk_bytes, about) if max_disk_bytes else None
    return PageStore(HostTier(max_host_bytes), disk)


def _free_bytes(directory: Path) -> int:
    """Bytes free on the disk that `directory` is, or will be, on; 0 where that cannot be told."""
    for place in (directory, *directory.parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


def _give_way() -> None:
    """Let this thread run when nobody else wants the processor: steps come first. Threads have a priority of their own
    on Linux alone (setpriority(2))."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
