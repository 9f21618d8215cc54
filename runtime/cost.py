"""What a step costs by its number of rows, as measured while running. Pure: numbers in, numbers out.

The time of a step over its rows is a staircase, and no two machines have the same (four rows may cost less than three).
So it is kept as measured, one entry for each number of rows, never as a fitted line. What has not been measured lies
between its measured neighbours (at least as long as fewer rows took, at most as long as more rows took, or as running
the fewer ones several times), and is known from the first time on that it is tried.

Interruptions by other programs only ever make a step longer, and the cost rises with the context: so each entry is the
lower quartile of its last few measurements, and measurements of long ago are forgotten, which makes them be tried
again.
"""

from __future__ import annotations

import bisect
import math
from collections import deque

NUM_KEPT = 16
"""Measurements behind each entry."""

UNKNOWN_POWER = 0.5
"""The power of its rows by which the time of a step is taken to rise where nothing has been measured: 0 is a machine
whose rows are free, 1 one where they all cost the same."""

TILE_ROWS = 4
"""Rows that kernels compute together."""

MAX_AGE_STEPS = 2000
"""Steps after which a measurement is forgotten."""


class StepCosts:
    """Seconds a step by its number of rows, as measured while running."""

    def __init__(self) -> None:
        self._measured: dict[int, deque[tuple[int, float]]] = {}
        self._counts: list[int] = []  # the keys of _measured, sorted
        self._seconds: dict[int, float] = {}  # of each, its lower quartile
        self._step = 0

    def note(self, num_rows: int, seconds: float) -> None:
        """A step of `num_rows` rows, each with its logits, took `seconds`."""
        self._step += 1
        if num_rows not in self._measured:
            self._measured[num_rows] = deque(maxlen=NUM_KEPT)
            bisect.insort(self._counts, num_rows)
        self._measured[num_rows].append((self._step, seconds))
        self._seconds[num_rows] = _lower_quartile(self._measured[num_rows])
        if self._step % 64 == 0:
            self._forget()

    def measured(self, num_rows: int) -> float | None:
        """Seconds, where they are known."""
        return self._seconds.get(num_rows)

    def age(self, num_rows: int) -> int | None:
        """Steps since that number of rows was last measured."""
        kept = self._measured.get(num_rows)
        return None if kept is None else self._step - kept[-1][0]

    def estimate(self, num_rows: int) -> float | None:
        """Seconds, measured or between the measured neighbours; ``None`` before anything was measured."""
        found = self._seconds.get(num_rows)
        if found is not None and len(self._measured[num_rows]) > 1:
            return found
        between = self._between(num_rows)
        if found is None:
            return between
        return found if between is None else float((found * min(found, between)) ** 0.5)  # it may have been disturbed

    def least(self, num_rows: int) -> float | None:
        """Seconds if so many rows cost no more than the next fewer ones that are known; ``None``: none are, or so many
        fewer that this says nothing."""
        at = bisect.bisect_left(self._counts, num_rows)
        fewer = self._counts[at - 1] if at else 0
        return self._seconds[fewer] if fewer and num_rows <= max(TILE_ROWS, 2 * fewer) else None

    def lowest(self, num_rows: int) -> float | None:
        """Seconds of the shortest step of those kept; ``None``: none is."""
        kept = self._measured.get(num_rows)
        return None if kept is None else min(seconds for _, seconds in kept)

    def num_measured(self, num_rows: int) -> int:
        """How many measurements stand behind that number of rows."""
        kept = self._measured.get(num_rows)
        return 0 if kept is None else len(kept)

    def _between(self, num_rows: int) -> float | None:
        """What others make likely for `num_rows`, itself left out: time rises as a power of the rows from the nearest
        fewer ones to some that are more. The lowest of those powers counts, so that one disturbed step hides nothing.
        """
        counts, seconds = self._counts, self._seconds
        at = bisect.bisect_left(counts, num_rows)
        after = at + 1 if at < len(counts) and counts[at] == num_rows else at
        more = counts[after:]
        if at == 0:
            return min(seconds[count] for count in more) if more else None
        fewer = counts[at - 1]
        low = min([seconds[fewer], *(seconds[count] for count in more)])
        power = min((_power(fewer, low, count, seconds[count]) for count in more), default=UNKNOWN_POWER)
        return float(low * (num_rows / fewer) ** power)

    def _forget(self) -> None:
        for num_rows in list(self._counts):
            kept = self._measured[num_rows]
            while kept and self._step - kept[0][0] > MAX_AGE_STEPS:
                kept.popleft()
            if kept:
                self._seconds[num_rows] = _lower_quartile(kept)
            else:
                del self._measured[num_rows], self._seconds[num_rows]
                self._counts.remove(num_rows)


def _power(fewer: int, low: float, more: int, high: float) -> float:
    """The power of its rows by which time rises between two measurements: 0 on a flat stretch, at most 1."""
    return min(1.0, max(0.0, math.log(high / low) / math.log(more / fewer)))


def _lower_quartile(kept: deque[tuple[int, float]]) -> float:
    return sorted(seconds for _, seconds in kept)[(len(kept) - 1) // 4]
