# `ingle bench --draft`: what guessing ahead wins or costs, and how often the guesses are right.
# This file may not know how a result is shown, nor how drafts are made.
"""Plain against drafting: two engines side by side answer the same requests in turns, and which goes first alternates.
So both have the same machine, whatever else it does."""

from __future__ import annotations

import statistics as exact
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from ingle.cli.bench import statistics
from ingle.cli.bench.engine_target import request_of
from ingle.cli.bench.interruption import Interruption
from ingle.cli.bench.result import Result, Row
from ingle.cli.bench.work import Message, Work
from ingle.models.chat_template import ChatTemplate
from ingle.models.gguf_info import ModelInfo
from ingle.models.resolve import ModelRef
from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.request import FinishReason, RequestOutput

Live = Callable[[str], None]

_CODE = '''def totals(orders):
    """Cents by customer, the largest first."""
    found = {}
    for order in orders:
        if order.is_cancelled:
            continue
        for item in order.items:
            cents = item.price_cents * item.count
            found[order.customer] = found.get(order.customer, 0) + cents
    return sorted(found.items(), key=lambda pair: -pair[1])
'''

PROMPTS = {
    "edit": (f"Rename `found` to `sums` in this code, change nothing else, answer with the code only.\n\n{_CODE}", 0.0),
    "code": ("Write a CSV parser in Python as a class, with quoting and escapes.", 0.0),
    "prose": ("Tell a long story about a lighthouse keeper who finds a letter in a bottle.", 1.0),
}
"""What is asked where the user has no file: a text and a temperature. Drafts are right most often in the first."""


def own_works(max_tokens: int) -> list[tuple[str, Work]]:
    """(label, request) of each of `PROMPTS`."""
    return [
        (label, Work((Message("user", text),), max_tokens, False, "", {"temp": temperature}))
        for label, (text, temperature) in PROMPTS.items()
    ]


@dataclass(slots=True)
class Series:
    """One request: tokens a second of each answer from its first token on, a pair at the same index."""

    label: str
    work: Work
    plain_ts: list[float] = field(default_factory=list)
    draft_ts: list[float] = field(default_factory=list)
    num_output: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class DraftBench:
    """`config` has the drafts; the other side is the same without. `interruption` may be set between answers and
    within."""

    def __init__(
        self,
        ref: ModelRef,
        info: ModelInfo,
        config: EngineConfig,
        works: Sequence[tuple[str, Work]],
        *,
        num_repetitions: int,
        seed: int,
        live: Live,
    ) -> None:
        self._ref = ref
        self._info = info
        self._config = config
        self._series = [Series(label, work) for label, work in works]
        self._num_repetitions = num_repetitions
        self._seed = seed
        self._live = live
        self.interruption = Interruption()

    def run(self, result: Result) -> None:
        """Measure every pair, one more first that does not count and from which the length of drafts is learnt; the
        rows are what has been measured."""
        try:
            template = ChatTemplate.from_info(self._info)
            with ExitStack() as stack:
                plain, drafting = (
                    stack.enter_context(Engine.open(self._ref.path, config, model_info=self._info))
                    for config in (replace(self._config, draft=None), self._config)
                )
                result.warnings += drafting.info.notes
                for number in range(self._num_repetitions + 1):
                    for series in self._series:
                        self._live(f"{series.label}: pair {number} of {self._num_repetitions}")
                        self._run_pair(series, plain, drafting, template, number)
                        if self.interruption.is_set():
                            return
        finally:
            result.rows = [self._row(series) for series in self._series if series.plain_ts]
            if not self.interruption.is_set():
                short = [series.label for series in self._series if not series.plain_ts]
                result.warnings += [f"{label}: no answer of two tokens or more to measure" for label in short]

    def _run_pair(self, series: Series, plain: Engine, drafting: Engine, template: ChatTemplate, number: int) -> None:
        order = (plain, drafting) if number % 2 == 0 else (drafting, plain)
        work = replace(series.work, sampling={"seed": self._seed + number, **series.work.sampling})
        found = {engine is drafting: self._ask(engine, template, work) for engine in order}
        before, after = found[False], found[True]
        if number and before is not None and after is not None:
            series.plain_ts.append(before[0])
            series.draft_ts.append(after[0])
            metrics = after[1].metrics
            series.num_output.append(metrics.num_output_tokens)
            series.num_draft_tokens += metrics.num_draft_tokens
            series.num_accepted_tokens += metrics.num_accepted_tokens

    def _ask(self, engine: Engine, template: ChatTemplate, work: Work) -> tuple[float, RequestOutput] | None:
        """Tokens a second from the first token on, and the last output. None when interrupted, or where there was
        nothing after the first token."""
        if self.interruption.is_set():
            return None
        engine.clear_cache()
        with self.interruption.asking(engine, request_of(engine, template, work)) as request_id:
            if request_id is None:
                return None
            first_s: float | None = None
            last: RequestOutput | None = None
            num_first = 0
            for last in engine.stream(request_id):
                if first_s is None:
                    first_s, num_first = time.perf_counter(), len(last.new_tokens)
        if last is None or first_s is None or last.finish_reason == FinishReason.ABORT:
            return None
        num_later = last.metrics.num_output_tokens - num_first
        return (num_later / (time.perf_counter() - first_s), last) if num_later else None

    def _row(self, series: Series) -> Row:
        speedup = [after / before for before, after in zip(series.plain_ts, series.draft_ts, strict=True)]
        interval = statistics.median_interval(speedup)
        draft = self._config.draft
        assert draft is not None
        drafted, accepted = series.num_draft_tokens, series.num_accepted_tokens
        return {
            "kind": "drafts",
            "test": series.label,
            "model": self._ref.name,
            "model_filename": str(self._ref.path),
            "draft_model": None if draft.model is None else str(draft.model),
            "draft_tokens": draft.num_tokens,
            "n_threads": self._config.threads(),
            "type_k": self._config.type_k,
            "type_v": self._config.type_v,
            "median_output_tokens": exact.median(series.num_output),
            "num_draft_tokens": drafted,
            "num_accepted_tokens": accepted,
            "acceptance": accepted / drafted if drafted else None,
            "median_plain_ts": exact.median(series.plain_ts),
            "median_draft_ts": exact.median(series.draft_ts),
            "median_speedup": exact.median(speedup),
            "ci95_speedup": [interval.low, interval.high],
            "outliers": statistics.outliers(speedup),
            "samples": {"plain_ts": series.plain_ts, "draft_ts": series.draft_ts},
        }
