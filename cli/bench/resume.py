# `ingle bench --resume`: how long the first token takes when a prompt is computed, and when it comes from stored pages.
# This file may not know how a result is shown.
"""Cold against restored: the same document asked about by two engines, one after the other, the second with the first
one's pages. The store is a folder of its own, empty before each pair, and gone afterwards."""

from __future__ import annotations

import statistics as exact
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ingle.cli.bench import statistics
from ingle.cli.bench.interruption import Interruption
from ingle.cli.bench.result import Result, Row
from ingle.models.gguf_info import ModelInfo
from ingle.models.resolve import ModelRef
from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.request import FinishReason, Request, RequestMetrics, SamplingParams

QUESTION_TOKENS = 16
"""Asked about the document, different for each side, so never stored."""

ANSWER_TOKENS = 2

Live = Callable[[str], None]


@dataclass(slots=True)
class Series:
    """Milliseconds to the first token, a pair at the same index."""

    num_prompt: int
    cold_ms: list[float] = field(default_factory=list)
    restored_ms: list[float] = field(default_factory=list)
    restored_tokens: list[int] = field(default_factory=list)


class ResumeBench:
    """`interruption` may be set between answers and within."""

    def __init__(
        self,
        ref: ModelRef,
        info: ModelInfo,
        config: EngineConfig,
        prompts: tuple[int, ...],
        *,
        num_repetitions: int,
        seed: int,
        live: Live,
    ) -> None:
        self._ref = ref
        self._info = info
        self._config = config
        self._series = [Series(num_prompt) for num_prompt in prompts]
        self._num_repetitions = num_repetitions
        self._generator = np.random.default_rng(seed)
        self._live = live
        self.interruption = Interruption()

    def run(self, result: Result) -> None:
        """Measure every pair, one more first that does not count; the rows are what has been measured."""
        try:
            for number in range(self._num_repetitions + 1):
                for series in self._series:
                    self._live(f"{series.num_prompt} tokens: pair {number} of {self._num_repetitions}")
                    self._run_pair(series, counts=number > 0)
                    if self.interruption.is_set():
                        return
        finally:
            result.rows = [self._row(series) for series in self._series if series.restored_ms]

    def _run_pair(self, series: Series, *, counts: bool) -> None:
        document = self._tokens(series.num_prompt)
        with tempfile.TemporaryDirectory(prefix="ingle-bench-") as folder:
            config = replace(self._config, page_dir=Path(folder), max_host_bytes=0)
            cold = self._ask(config, document + self._tokens(QUESTION_TOKENS))
            restored = None if cold is None else self._ask(config, document + self._tokens(QUESTION_TOKENS))
        if counts and cold is not None and restored is not None:
            assert cold.ttft_s is not None
            assert restored.ttft_s is not None
            series.cold_ms.append(cold.ttft_s * 1e3)
            series.restored_ms.append(restored.ttft_s * 1e3)
            series.restored_tokens.append(restored.num_cached_tokens)

    def _ask(self, config: EngineConfig, tokens: list[int]) -> RequestMetrics | None:
        """In an engine of its own, closed before this returns. None when interrupted."""
        if self.interruption.is_set():
            return None
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = Request(tokens, sampling, ANSWER_TOKENS)
        with (
            Engine.open(self._ref.path, config, model_info=self._info) as engine,
            self.interruption.asking(engine, request) as request_id,
        ):
            if request_id is None:
                return None
            outputs = list(engine.stream(request_id))
        last = outputs[-1]
        return None if last.finish_reason == FinishReason.ABORT else last.metrics

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._generator.integers(0, self._info.vocab_size, size=count)]

    def _row(self, series: Series) -> Row:
        speedup = [cold / restored for cold, restored in zip(series.cold_ms, series.restored_ms, strict=True)]
        interval = statistics.median_interval(speedup)
        return {
            "kind": "resume",
            "test": f"resume{series.num_prompt}",
            "model": self._ref.name,
            "model_filename": str(self._ref.path),
            "n_prompt": series.num_prompt,
            "n_threads": self._config.threads(),
            "type_k": self._config.type_k,
            "type_v": self._config.type_v,
            "num_restored_tokens": round(exact.median(series.restored_tokens)),
            "median_cold_ttft_ms": exact.median(series.cold_ms),
            "median_restored_ttft_ms": exact.median(series.restored_ms),
            "median_speedup": exact.median(speedup),
            "ci95_speedup": [interval.low, interval.high],
            "outliers": statistics.outliers(series.restored_ms),
            "samples": {"cold_ttft": series.cold_ms, "restored_ttft": series.restored_ms},
        }
