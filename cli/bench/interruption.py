# Ctrl-C while answers are measured. May be set by a signal handler.
"""``Interruption``: remembered, and passed on to the engine at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingle.runtime.engine import Engine
from ingle.runtime.request import Request, RequestId


class Interruption:
    """Not set at first."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._is_set = False

    def interrupt(self) -> None:
        self._is_set = True
        if self._engine is not None:
            self._engine.interrupt()

    def is_set(self) -> bool:
        """To be asked anew each time: a signal handler sets it."""
        return self._is_set

    @contextmanager
    def asking(self, engine: Engine, request: Request) -> Iterator[RequestId | None]:
        """The request in `engine`, which is interrupted with this inside the ``with``; None: it is set already."""
        self._engine = engine
        try:
            request_id = engine.add(request)
            yield None if self._is_set else request_id  # `add` forgets interruptions
        finally:
            self._engine = None
