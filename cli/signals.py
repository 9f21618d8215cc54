# Ctrl-C and SIGTERM. While an answer runs they only ask the engine to stop; otherwise they raise.
# A Python exception inside llama.cpp's abort callback would be lost, hence the difference.
"""``Signals``: one object a process, installed by ``main``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from ingle.cli.errors import Terminated


class Interruptible(Protocol):
    def interrupt(self) -> None:
        """Stop the step in progress; callable from a signal handler."""


class Signals:
    """Routes SIGINT, SIGTERM and SIGHUP. Outside `answering` they raise KeyboardInterrupt and Terminated."""

    def __init__(self) -> None:
        self._engine: Interruptible | None = None
        self._received: int | None = None

    def install(self) -> None:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # nohup and shells that start background jobs set some to "ignore": that is somebody's wish.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    @contextmanager
    def answering(self, engine: Interruptible) -> Iterator[None]:
        """While inside, signals interrupt `engine`. What arrived is in `stopped_by` afterwards."""
        self._received = None
        self._engine = engine
        try:
            yield
        finally:
            self._engine = None

    @property
    def stopped_by(self) -> int | None:
        """The signal that arrived during the last `answering`, if one did."""
        return self._received

    def raise_if_stopped(self) -> None:
        """Raise what the signal would have raised outside an answer."""
        if self._received is not None:
            _raise(self._received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._engine is None:
            _raise(number)
        self._received = number
        if self._engine is not None:
            self._engine.interrupt()


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(number)
