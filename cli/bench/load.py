# When requests are sent: a fixed number at a time (closed loop), or at times fixed beforehand (open loop).
# This file may not know what a target is made of.
"""The load generator.

In the open loop every send time is drawn before the first request leaves, each request has a thread of its own, and
latency counts from the time it was meant to be sent. So a target that stalls delays nothing but its own answers, and no
wait is left out of the figures (Tene's "coordinated omission").
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from ingle.cli.bench.target import Answer, Target
from ingle.cli.bench.work import Work

POLL_S = 0.05
"""How often the waiting thread looks about: for a signal, and to say how far things are."""

STOPPED = "stopped"


class Stop:
    """Asked for by a signal: no more requests, and those under way are given up."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.is_set = False

    def interrupt(self) -> None:
        self.is_set = True
        self._target.stop()


Progress = Callable[[int, int], None]
"""Called with how many answers there are, and of how many."""


def send_offsets(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which `count` requests leave: a Poisson process of `rate` a second, the first at 0."""
    generator = random.Random(f"{seed} arrivals")
    offsets, at = [], 0.0
    for _ in range(count):
        offsets.append(at)
        at += generator.expovariate(rate)
    return offsets


def closed_loop(
    target: Target, works: Sequence[Work], concurrency: int, stop: Stop, progress: Progress
) -> list[Answer]:
    """Keep `concurrency` requests under way until all `works` are answered. In the order in which they were sent."""
    answers: list[Answer] = []
    remaining = iter(works)
    lock = threading.Lock()

    def send() -> None:
        while not stop.is_set:
            with lock:
                work = next(remaining, None)
                if work is None:
                    return
                answer = Answer(work, time.perf_counter())
                answers.append(answer)
            target.ask(answer)

    threads = [threading.Thread(target=send, name="ingle-bench-user", daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    _wait(threads, answers, len(works), progress)
    return answers


def open_loop(
    target: Target, works: Sequence[Work], offsets_s: Sequence[float], stop: Stop, progress: Progress
) -> list[Answer]:
    """Send works[i] `offsets_s[i]` after the start, whatever has become of the others."""
    answers: list[Answer] = []
    threads: list[threading.Thread] = []
    started = time.perf_counter()

    def dispatch() -> None:
        for work, offset_s in zip(works, offsets_s, strict=True):
            answer = Answer(work, started + offset_s)
            while (left_s := answer.intended_s - time.perf_counter()) > 0 and not stop.is_set:
                time.sleep(min(left_s, POLL_S))
            if stop.is_set:
                return
            thread = threading.Thread(target=target.ask, args=(answer,), name="ingle-bench-user", daemon=True)
            answers.append(answer)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads for us: that is our limit, and is said
                answer.fail("no thread could be started for it")
                continue
            threads.append(thread)

    dispatcher = threading.Thread(target=dispatch, name="ingle-bench-dispatch", daemon=True)
    dispatcher.start()
    _wait([dispatcher], answers, len(works), progress)
    _wait(threads, answers, len(works), progress)
    return answers


def _wait(threads: Sequence[threading.Thread], answers: Sequence[Answer], total: int, progress: Progress) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(POLL_S)
            progress(sum(answer.finished_s is not None for answer in list(answers)), total)
