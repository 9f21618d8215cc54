# Numbers about an answer.
from __future__ import annotations

from dataclasses import replace

import pytest

from ingle.cli import stats
from ingle.runtime.kv_manager import KVManager
from ingle.runtime.metrics import Counters, DraftCounters, EngineStats, collect
from ingle.runtime.request import RequestMetrics
from ingle.runtime.scheduler import Scheduler


@pytest.fixture
def figures() -> EngineStats:
    kv = KVManager(8, 32, 4, None, shares=True)
    return collect(Scheduler(kv, 64, 64, 2), kv, Counters(), 0, None, None)


def test_gaps_between_tokens() -> None:
    metrics = RequestMetrics(0.0, seed=1, num_prompt_tokens=3, itl_s=[n / 1e3 for n in range(100, 0, -1)])
    assert "between tokens 50.0 ms (P95 95.0, at most 100.0)" in stats.sentence(metrics)
    assert "between tokens" not in stats.sentence(RequestMetrics(0.0, seed=1, num_prompt_tokens=3))


@pytest.mark.parametrize(("decode_s", "plain_s", "lost"), [(0.0, 0.0, 0.0), (2.0, 3.0, 0.0), (4.0, 3.0, 0.25)])
def test_what_drafts_have_lost(decode_s: float, plain_s: float, lost: float) -> None:
    assert DraftCounters(decode_s=decode_s, plain_s=plain_s).lost_share == lost


def test_drafts() -> None:
    metrics = RequestMetrics(0.0, seed=1, num_prompt_tokens=3, num_draft_tokens=40, num_accepted_tokens=30)
    counters = DraftCounters(draft_s=0.25, verify_s=1.5, decode_s=2.0, plain_s=3.0)
    counters.note_draft(4, 3)
    counters.note_draft(5, 0)
    assert stats.guessed(metrics, None) == []
    (line,) = stats.guessed(metrics, counters.stats(0.08))
    assert line.startswith("drafts 40 tokens, 30 right (75%) · 1.5 a draft · 250 ms drafting, 1.5 s verifying · ")
    assert line.endswith(" · 1.50 times as fast as without")
    assert counters.stats(0.08).accepted_by_position == (1, 1, 1, 0, 0)
    assert stats.guessed(RequestMetrics(0.0, 1, 3), DraftCounters().stats(None)) == ["drafts 0 tokens, 0 right"]
    assert stats.drafts(metrics) == {"draft_tokens": 40, "accepted_tokens": 30}


def test_drafts_of_the_engine_are_told_in_words(figures: EngineStats) -> None:
    assert not any("draft" in line for line in stats.engine(figures))
    counters = DraftCounters()
    counters.note_draft(10, 10)
    counters.note_draft(10, 1)
    lines = stats.engine(replace(figures, drafts=counters.stats(0.08)))
    assert lines[:-2] == stats.engine(figures)
    assert lines[-2:] == [
        "drafts in all: 20 tokens in 2 drafts, 11 right · a token without takes 80 ms",
        "of the drafts, right up to their token 1, 2, …: 100%, 50%, 50%, 50%, 50%, 50%, 50%, 50%, …",
    ]
    given_up = stats.drafted(DraftCounters(num_given_up=2).stats(None))
    assert given_up == ["drafts in all: 0 tokens in 0 drafts, 0 right, 2 doubtful ones given up"]
    assert stats.drafted(DraftCounters().stats(None)) == ["drafts in all: 0 tokens in 0 drafts, 0 right"]
