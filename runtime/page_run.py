"""Reading a run of pages ahead of whoever restores them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Protocol

from ingle.runtime.blocks import ChainHash
from ingle.runtime.page import Page

READERS = 2
"""Threads that read files while others are being restored."""

READ_AHEAD_BYTES = 64 * 2**20
"""Pages read and not yet restored may take so much memory."""


class Pages(Protocol):
    """What a run asks of a `PageStore`."""

    def resident(self, name: ChainHash) -> Page | None: ...
    def read(self, parent: ChainHash, name: ChainHash) -> Page | None: ...
    def keep(self, page: Page) -> None: ...
    def page_bytes(self, parent: ChainHash, name: ChainHash) -> int: ...


class PageRun:
    """Pages of one chain, in order. Other threads begin at once to read and check the files, a bounded number of bytes
    ahead, while whoever iterates is still busy with something else. To be closed."""

    def __init__(self, store: Pages, chain: Sequence[ChainHash]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # here: it imports logging, and most starts restore nothing

        self.chain = chain
        self._store = store
        self._links = pairwise(chain)
        self._ahead: deque[Callable[[], Page | None]] = deque()
        self._num_ahead = READERS + 1
        if len(chain) > 1 and (page_bytes := store.page_bytes(chain[0], chain[1])):
            self._num_ahead = max(self._num_ahead, READ_AHEAD_BYTES // page_bytes)
        self._reader = ThreadPoolExecutor(READERS, "ingle-read")
        self._read_ahead()

    def _read_ahead(self) -> None:
        for parent, name in islice(self._links, self._num_ahead - len(self._ahead)):
            if (page := self._store.resident(name)) is not None:
                self._ahead.append(partial(_itself, page))
            else:
                self._ahead.append(self._reader.submit(self._store.read, parent, name).result)

    def __iter__(self) -> Iterator[Page]:
        while self._ahead and (page := self._ahead.popleft()()) is not None:
            self._read_ahead()
            self._store.keep(page)
            yield page

    def close(self) -> None:
        """Read no further."""
        self._reader.shutdown(cancel_futures=True)
        self._ahead.clear()


def _itself(page: Page) -> Page:
    return page
