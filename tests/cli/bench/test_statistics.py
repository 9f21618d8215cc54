# Statistics against numpy's and scipy's, and against values worked out by hand.
from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from ingle.cli.bench import statistics

SAMPLE = [12.1, 11.9, 12.4, 13.0, 12.2, 11.8, 19.5, 12.0, 12.3, 12.6, 11.7, 12.05]


def test_summary_is_numpys_and_scipys() -> None:
    found = statistics.summarize(SAMPLE)
    assert found is not None
    assert found.mean == pytest.approx(np.mean(SAMPLE))
    assert found.median == found.p50 == pytest.approx(np.median(SAMPLE))
    assert found.std == pytest.approx(scipy.stats.tstd(SAMPLE))
    for share, value in ((95, found.p95), (99, found.p99)):
        assert value == pytest.approx(np.percentile(SAMPLE, share))
        assert value == pytest.approx(scipy.stats.mstats.mquantiles(SAMPLE, share / 100, alphap=1, betap=1)[0])


def test_summary_of_one_value_and_of_none() -> None:
    assert statistics.summarize([]) is None
    assert statistics.summarize([3.0]) == statistics.Summary(3.0, 3.0, 0.0, 3.0, 3.0, 3.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_median_interval_is_scipys_percentile_bootstrap(confidence: float) -> None:
    found = statistics.median_interval(SAMPLE, confidence=confidence, seed=7)
    expected = scipy.stats.bootstrap(
        (np.asarray(SAMPLE),),
        np.median,
        n_resamples=statistics.NUM_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(7),
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_same_samples_same_interval() -> None:
    assert statistics.median_interval(SAMPLE) == statistics.median_interval(list(SAMPLE))
    assert statistics.median_interval([5.0]) == statistics.Interval(5.0, 5.0)


def test_interval_of_a_ratio_holds_the_true_one() -> None:
    """Of 200 experiments with a true ratio of 0.8, about 95 of 100 intervals hold it."""
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        base = generator.normal(100, 4, 15)
        new = generator.normal(80, 4, 15)
        held += statistics.ratio_interval(new.tolist(), base.tolist()).includes(0.8)
    assert 180 <= held <= 199


def test_pairs_cancel_what_both_share() -> None:
    """Every pair is 10 % apart, and the machine became twice as slow on the way."""
    base = [float(value) for value in range(100, 200, 10)]
    new = [1.1 * value for value in base]
    paired = statistics.paired_ratio_interval(new, base)
    assert (paired.low, paired.high) == pytest.approx((1.1, 1.1))
    apart = statistics.ratio_interval(new, base)
    assert apart.high - apart.low > 0.2


def test_outliers_are_those_beyond_scaled_median_deviations() -> None:
    array = np.asarray(SAMPLE)
    spread = scipy.stats.median_abs_deviation(array, scale="normal")
    expected = np.nonzero(np.abs(array - np.median(array)) > 3.5 * spread)[0].tolist()
    assert statistics.outliers(SAMPLE) == expected == [6]
    assert statistics.outliers([1.0, 1.0, 9.0]) == []
    assert statistics.outliers([1.0, 1.0, 1.0, 1.0]) == []
    assert statistics.outliers([1.0, 1.0, 1.0, 1.5]) == [3]


def test_steady_looks_at_the_last_values_alone() -> None:
    assert not statistics.is_steady([10.0, 10.0])
    assert statistics.is_steady([50.0, 10.0, 10.1, 10.2])
    assert not statistics.is_steady([10.0, 10.0, 10.4])


def test_warming_ends_when_it_has_settled_or_never_does() -> None:
    falling = iter([100.0, 60.0, 40.0, 40.5, 40.2, 40.0, 1.0])
    assert statistics.warm(lambda: next(falling), max_runs=10) == (5, True)
    restless = iter(range(1, 100))
    assert statistics.warm(lambda: float(next(restless) ** 2), max_runs=6) == (6, False)
