# Numbers → what can be said of them. Pure: knows no models, clocks or files.
"""Percentiles, medians with intervals, outliers, and whether a series has settled.

Intervals are percentile bootstraps (Efron 1979) over a generator of its own, so that the same samples give the same
interval. Outliers are those beyond 3.5 scaled median absolute deviations (Iglewicz and Hoaglin 1993). numpy is imported
by whoever calls, since this package's flags are read at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution → its standard deviation."""

OUTLIER_SIGMAS = 3.5

STEADY_WINDOW = 3
STEADY_TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value lies, with the confidence asked for."""

    low: float
    high: float

    def includes(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Summary:
    """A sample in seven numbers, in the unit of its values. `std` is the sample's (n − 1); 0 for one value."""

    mean: float
    median: float
    std: float
    p50: float
    p95: float
    p99: float


def summarize(values: Sequence[float]) -> Summary | None:
    """None for no values."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    p50, p95, p99 = (float(value) for value in np.percentile(array, [50, 95, 99]))
    std = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    return Summary(float(array.mean()), float(np.median(array)), std, p50, p95, p99)


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """Of the median of what `values`, one at least, were drawn from. A single value is its own interval."""
    medians = _resampled_medians(np.asarray(values, dtype=np.float64), np.random.default_rng(seed))
    return _middle(medians, confidence)


def ratio_interval(
    new: Sequence[float], base: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """Of median(new) / median(base), two independent samples of positive values."""
    generator = np.random.default_rng(seed)
    above = _resampled_medians(np.asarray(new, dtype=np.float64), generator)
    below = _resampled_medians(np.asarray(base, dtype=np.float64), generator)
    return _middle(above / below, confidence)


def paired_ratio_interval(
    new: Sequence[float], base: Sequence[float], *, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """Of the median of new[i] / base[i], where each pair was measured one right after the other."""
    ratios = np.asarray(new, dtype=np.float64) / np.asarray(base, dtype=np.float64)
    return median_interval(ratios.tolist(), confidence=confidence, seed=seed)


def _resampled_medians(values: Floats, generator: np.random.Generator) -> Floats:
    """[NUM_RESAMPLES]: medians of samples drawn with replacement, as many values each as there are."""
    picks = generator.integers(0, len(values), size=(NUM_RESAMPLES, len(values)))
    return np.asarray(np.median(values[picks], axis=1), dtype=np.float64)


def _middle(statistics: Floats, confidence: float) -> Interval:
    tail = 50 * (1 - confidence)
    low, high = np.percentile(statistics, [tail, 100 - tail])
    return Interval(float(low), float(high))


def outliers(values: Sequence[float]) -> list[int]:
    """Indices of the values that do not belong with the others. None below four values: nobody could tell."""
    if len(values) < 4:
        return []
    array = np.asarray(values, dtype=np.float64)
    distance = np.abs(array - np.median(array))
    spread = float(np.median(distance)) * MAD_TO_SIGMA
    # More than half of the values equal: whatever is not, by more than rounding, stands apart.
    limit = OUTLIER_SIGMAS * spread if spread > 0 else 1e-9 * max(abs(float(np.median(array))), 1e-300)
    return [int(index) for index in np.nonzero(distance > limit)[0]]


def is_steady(values: Sequence[float], *, window: int = STEADY_WINDOW, tolerance: float = STEADY_TOLERANCE) -> bool:
    """Whether the last `window` values lie within `tolerance` of their median (as a share of it)."""
    if len(values) < window:
        return False
    last = values[-window:]
    middle = sorted(last)[window // 2]
    return all(abs(value - middle) <= tolerance * abs(middle) for value in last)


def warm(run: Callable[[], float], *, max_runs: int, tolerance: float = STEADY_TOLERANCE) -> tuple[int, bool]:
    """Call `run` until what it returns has settled, `max_runs` times at most; (how often, whether it did)."""
    values: list[float] = []
    while len(values) < max_runs:
        values.append(run())
        if is_steady(values, tolerance=tolerance):
            return len(values), True
    return len(values), False
