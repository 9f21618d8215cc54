# Ctrl-C and SIGTERM. While an answer runs they only ask the engine to stop; otherwise they raise.
# A Python exception inside a callback of llama.cpp is lost, hence the difference; and what was raised may have been, so
# it is remembered until somebody says that it was caught.
"""``Signals``: one object a process, installed by ``main``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from ingle.cli.errors import Terminated

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


class Interruptible(Protocol):
    def interrupt(self) -> None:
        """Stop the step in progress; callable from a signal handler."""


class Signals:
    """Routes SIGINT, SIGTERM and SIGHUP. Outside `answering` they raise KeyboardInterrupt and Terminated."""

    def __init__(self) -> None:
        self._engine: Interruptible | None = None
        self._received: int | None = None  # during the last answer
        self._raised: int | None = None  # outside of one, and nobody has said that it was caught

    def install(self) -> None:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # nohup and shells that start background jobs set some to "ignore": that is somebody's wish.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        sys.unraisablehook = _unraisable

    @contextmanager
    def answering(self, engine: Interruptible) -> Iterator[None]:
        """While inside, signals interrupt `engine`. What arrived is in `stopped_by` afterwards.

        Raises what was raised before and got lost on its way.
        """
        if self._raised is not None:
            _raise(self._raised)
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
        """Raise what the signal would have raised outside an answer, or what it did raise and somebody swallowed."""
        for number in (self._received, self._raised):
            if number is not None:
                _raise(number)

    def interrupt_again(self) -> None:
        """To be called after `Engine.add`, which forgets interruptions: what came since `answering` still counts."""
        if self._received is not None and self._engine is not None:
            self._engine.interrupt()

    def was_caught(self) -> None:
        """Whoever calls this has caught what a signal raised, and goes on."""
        self._raised = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._engine is None:
            self._raised = number
            _raise(number)
        self._received = number
        if self._engine is not None:
            self._engine.interrupt()


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(number)


def _unraisable(hook: UnraisableHookArgs) -> None:
    # ctypes says so when a callback swallows an exception. Ours are not lost, so there is nothing to say.
    if not isinstance(hook.exc_value, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(hook)
