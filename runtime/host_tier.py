"""Pages in RAM, up to a cap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ingle.runtime.blocks import ChainHash
from ingle.runtime.page import Page


class HostTier:
    """Pages in RAM, least recently used first out beyond `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._pages: OrderedDict[ChainHash, Page] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, name: ChainHash) -> bool:
        return name in self._pages

    def get(self, name: ChainHash) -> Page | None:
        if name in self._pages:
            self._pages.move_to_end(name)
        return self._pages.get(name)

    def put(self, page: Page) -> None:
        if page.num_bytes > self.max_bytes or page.hash in self._pages:
            return
        self._pages[page.hash] = page
        self.num_bytes += page.num_bytes
        while self.num_bytes > self.max_bytes:
            _, oldest = self._pages.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def discard(self, name: ChainHash) -> None:
        if (page := self._pages.pop(name, None)) is not None:
            self.num_bytes -= page.num_bytes

    def children(self, parent: ChainHash) -> Iterator[tuple[ChainHash, tuple[int, ...]]]:
        """(name, tokens) of the pages that follow `parent`."""
        return ((page.hash, page.tokens) for page in self._pages.values() if page.parent == parent)
