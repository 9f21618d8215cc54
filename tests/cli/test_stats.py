# Numbers about an answer.
from __future__ import annotations

from ingle.cli import stats
from ingle.runtime.request import RequestMetrics


def test_gaps_between_tokens() -> None:
    metrics = RequestMetrics(0.0, seed=1, num_prompt_tokens=3, itl_s=[n / 1e3 for n in range(100, 0, -1)])
    assert "between tokens 50.0 ms (P95 95.0, at most 100.0)" in stats.sentence(metrics)
    assert "between tokens" not in stats.sentence(RequestMetrics(0.0, seed=1, num_prompt_tokens=3))
