# The load generator: who is sent when, whatever the target does.
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import scipy.stats

from ingle.cli.bench import load
from ingle.cli.bench.http_target import HttpTarget
from ingle.cli.bench.load import Stop
from ingle.cli.bench.target import Answer, Occupancy
from ingle.cli.bench.work import Message, Work
from tests.cli.bench.fake_server import Handler, polite, serving

WORKS = [Work((Message("user", str(number)),), max_tokens=2) for number in range(12)]


class FakeTarget:
    """`reply` is called with each answer, on the thread that asks."""

    def __init__(self, reply: Callable[[Answer], None]) -> None:
        self._reply = reply
        self.was_stopped = False

    def ask(self, answer: Answer) -> None:
        answer.sent_s = time.perf_counter()
        self._reply(answer)
        answer.finished_s = time.perf_counter()

    def stop(self) -> None:
        self.was_stopped = True

    def occupancy(self) -> list[Occupancy]:
        return []

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def quiet(_done: int, _total: int) -> None:
    pass


class Gate:
    """Lets nobody through before `count` have come."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)

    def __call__(self, answer: Answer) -> None:
        self._barrier.wait(timeout=20)
        answer.deliveries_s.append(time.perf_counter())


def test_a_target_that_stalls_delays_no_request() -> None:
    """It answers nothing before all have been sent: a generator that waited for any would wait for ever. And latency
    counts from the moment each was meant to be sent, fixed beforehand."""
    target = FakeTarget(Gate(len(WORKS)))
    offsets_s = load.send_offsets(len(WORKS), 500.0, seed=1)
    answers = load.open_loop(target, WORKS, offsets_s, Stop(target), quiet)
    assert [answer.work for answer in answers] == WORKS
    start = answers[0].intended_s
    assert [answer.intended_s - start for answer in answers] == pytest.approx(offsets_s)
    last_sent_s = max(answer.sent_s or 0.0 for answer in answers)
    for answer in answers:
        assert answer.sent_s is not None
        assert answer.sent_s >= answer.intended_s
        assert answer.deliveries_s[0] >= last_sent_s
        assert answer.ttft_s == answer.deliveries_s[0] - answer.intended_s
    assert answers[0].ttft_s is not None
    assert answers[0].ttft_s >= offsets_s[-1], "the first waited for the last, and all of that is its latency"


def test_a_server_that_stalls_delays_no_request() -> None:
    gate = threading.Barrier(len(WORKS))

    def stalls(handler: Handler, body: dict[str, Any]) -> None:
        gate.wait(timeout=20)
        polite(handler, body)

    with serving(stalls) as fake:
        target = HttpTarget(fake.url, None, 20.0)
        offsets_s = load.send_offsets(len(WORKS), 500.0, seed=1)
        answers = load.open_loop(target, WORKS, offsets_s, Stop(target), quiet)
        target.close()
    assert [answer.error for answer in answers] == [None] * len(WORKS)
    assert answers[0].ttft_s is not None
    assert answers[0].ttft_s >= offsets_s[-1]


def test_arrivals_are_a_poisson_process() -> None:
    offsets = load.send_offsets(2000, 50.0, seed=3)
    gaps = [after - before for before, after in pairwise(offsets)]
    assert offsets[0] == 0
    assert scipy.stats.kstest(gaps, scipy.stats.expon(scale=1 / 50).cdf).pvalue > 0.01
    assert load.send_offsets(5, 50.0, seed=3) == offsets[:5]
    assert load.send_offsets(5, 50.0, seed=4) != offsets[:5]


def test_the_closed_loop_keeps_so_many_under_way() -> None:
    """The gate opens for three at a time: fewer at once would hang, and more are never seen."""
    gate = Gate(3)
    now = most = 0
    lock = threading.Lock()

    def reply(answer: Answer) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        gate(answer)
        with lock:
            now -= 1

    target = FakeTarget(reply)
    counts: list[tuple[int, int]] = []
    answers = load.closed_loop(target, WORKS, 3, Stop(target), lambda done, total: counts.append((done, total)))
    assert [answer.work for answer in answers] == WORKS
    assert most == 3
    assert counts[-1] == (12, 12)


def test_stop_sends_no_more() -> None:
    def reply(answer: Answer) -> None:
        if answer.work is WORKS[2]:
            stop.interrupt()

    target = FakeTarget(reply)
    stop = Stop(target)
    answers = load.closed_loop(target, WORKS, 1, stop, quiet)
    assert [answer.work for answer in answers] == WORKS[:3]
    assert target.was_stopped
    assert load.open_loop(target, WORKS, [0.0] * 12, stop, quiet) == []
