# Signals that arrive at the wrong moment are not lost.
from __future__ import annotations

import signal
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from ingle.cli import signals as signals_module
from ingle.cli.errors import Terminated
from ingle.cli.signals import Signals


class Interrupted:
    count = 0

    def interrupt(self) -> None:
        self.count += 1


def swallow(signals: Signals, number: int) -> None:
    """As ctypes does it with what is raised in a callback."""
    with suppress(KeyboardInterrupt, Terminated):
        signals._handle(number, None)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_swallowed_outside_an_answer_it_is_raised_before_the_next(number: int, kind: type[BaseException]) -> None:
    signals = Signals()
    swallow(signals, number)
    with pytest.raises(kind):
        signals.raise_if_stopped()
    with pytest.raises(kind), signals.answering(Interrupted()):
        pytest.fail("the answer must not begin")


def test_caught_it_is_over() -> None:
    signals = Signals()
    swallow(signals, signal.SIGINT)
    signals.was_caught()
    with signals.answering(Interrupted()):
        pass
    signals.raise_if_stopped()


def test_before_the_request_is_added_it_interrupts_again_afterwards() -> None:
    signals, engine = Signals(), Interrupted()
    with signals.answering(engine):
        signals.interrupt_again()
        assert engine.count == 0
        signals._handle(signal.SIGTERM, None)
        engine.count = 0  # Engine.add
        signals.interrupt_again()
        assert engine.count == 1


def test_an_interrupted_answer_does_not_stop_the_next() -> None:
    signals = Signals()
    with signals.answering(Interrupted()):
        signals._handle(signal.SIGINT, None)
    assert signals.stopped_by == signal.SIGINT
    with signals.answering(Interrupted()):
        assert signals.stopped_by is None


def test_only_our_own_exceptions_are_passed_over_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "__unraisablehook__", told.append)
    for error in (KeyboardInterrupt(), Terminated(signal.SIGTERM), ValueError()):
        signals_module._unraisable(SimpleNamespace(exc_value=error))  # type: ignore[arg-type]
    assert [hook.exc_value.__class__ for hook in told] == [ValueError]  # type: ignore[attr-defined]
