# `ingle bench --concurrency/--rate`: what many users at once would see. Measures a target; knows no engine, no server.
# This file may not know how a result is shown.
"""Serving: levels of load take turns in rounds, and each becomes a row with vLLM's names."""

from __future__ import annotations

import dataclasses
import statistics as exact
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingle.cli.bench import load, statistics
from ingle.cli.bench.load import Stop
from ingle.cli.bench.result import Result, Row
from ingle.cli.bench.slo import Slo
from ingle.cli.bench.target import Answer, Occupancy, Target
from ingle.cli.bench.work import Work

MAX_ROUNDS = 3
MAX_WARM_REQUESTS = 8
WARM_TOLERANCE = 0.1

MAX_TIMELINE = 500
"""Moments of KV occupancy kept in a result."""

Live = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Level:
    """So many requests at a time, or so many a second."""

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s" if self.rate is not None else f"{self.concurrency} at a time"


@dataclass(slots=True)
class Round:
    """Answers of one stretch of load, in which nothing else was measured."""

    answers: list[Answer]
    occupancy: list[Occupancy]

    @property
    def duration_s(self) -> float:
        """From the first intended sending to the last end."""
        ends = [answer.finished_s for answer in self.answers if answer.finished_s is not None]
        return max(ends) - min(answer.intended_s for answer in self.answers) if ends else 0.0

    @property
    def num_output_tokens(self) -> int:
        return sum(answer.num_output_tokens for answer in self.answers if answer.error is None)


@dataclass(slots=True)
class Series:
    """All rounds of a level so far."""

    level: Level
    rounds: list[Round] = field(default_factory=list)


class ServingBench:
    """`make_works` gives the requests of a round: (how many, a name no other round has)."""

    def __init__(
        self,
        target: Target,
        levels: Sequence[Level],
        make_works: Callable[[int, str], list[Work]],
        *,
        num_requests: int,
        seed: int,
        slo: Slo | None,
        about: Row,
        stop: Stop,
        live: Live,
    ) -> None:
        self._target = target
        self._series = [Series(level) for level in levels]
        self._make_works = make_works
        self._num_requests = num_requests
        self._seed = seed
        self._slo = slo
        self._about = about
        self._stop = stop
        self._live = live

    def run(self, result: Result) -> None:
        """Measure everything, or until stopped; the rows of `result` are what has been measured either way."""
        try:
            self._warm(result)
            for number in range(MAX_ROUNDS):
                for series in self._series if number % 2 == 0 else reversed(self._series):
                    if not self._stop.is_set and number < self._num_rounds(series.level):
                        self._run_round(series, number)
        finally:
            result.rows = [row for series in self._series if (row := self._row(series)) is not None]

    def _warm(self, result: Result) -> None:
        works = iter(self._make_works(MAX_WARM_REQUESTS, "warm"))

        def run() -> float:
            self._live("warming up")
            work = dataclasses.replace(next(works), max_tokens=8)
            answers = load.closed_loop(self._target, [work], 1, self._stop, lambda _done, _total: None)
            return (answers[0].e2el_s if answers else None) or 0.0

        _, is_steady = statistics.warm(run, max_runs=MAX_WARM_REQUESTS, tolerance=WARM_TOLERANCE)
        if not is_steady and not self._stop.is_set:
            result.warnings.append(f"{MAX_WARM_REQUESTS} requests to warm up with did not settle")
        self._target.occupancy()

    def _num_rounds(self, level: Level) -> int:
        """As many as leave each round with something to do for everybody."""
        return max(1, min(MAX_ROUNDS, self._num_requests // (2 * (level.concurrency or 4))))

    def _run_round(self, series: Series, number: int) -> None:
        level, num_rounds = series.level, self._num_rounds(series.level)
        count = self._num_requests // num_rounds + (number < self._num_requests % num_rounds)
        works = self._make_works(count, f"{level} {number}")
        self._target.forget()

        def progress(done: int, total: int) -> None:
            self._live(f"{level}, round {number + 1} of {num_rounds}: {done} of {total} requests")

        if level.rate is not None:
            offsets_s = load.send_offsets(count, level.rate, self._seed + number)
            answers = load.open_loop(self._target, works, offsets_s, self._stop, progress)
        else:
            assert level.concurrency is not None
            answers = load.closed_loop(self._target, works, level.concurrency, self._stop, progress)
        answers = [answer for answer in answers if answer.error != load.STOPPED]
        if answers:
            series.rounds.append(Round(answers, self._target.occupancy()))

    def _row(self, series: Series) -> Row | None:
        if not series.rounds:
            return None
        answers = [answer for part in series.rounds for answer in part.answers]
        good = [answer for answer in answers if answer.error is None]
        duration_s = sum(part.duration_s for part in series.rounds)
        num_input = sum(answer.num_prompt_tokens for answer in good)
        num_output = sum(answer.num_output_tokens for answer in good)
        met = None if self._slo is None else sum(self._slo.is_met(answer) for answer in good)
        return {
            "kind": "serving",
            **self._about,
            "concurrency": series.level.concurrency,
            "request_rate": series.level.rate,
            "num_requests": len(answers),
            "num_rounds": len(series.rounds),
            "completed": len(good),
            "failed": len(answers) - len(good),
            "failures": dict(Counter(answer.error for answer in answers if answer.error is not None).most_common()),
            "duration_s": duration_s,
            "total_input_tokens": num_input,
            "total_output_tokens": num_output,
            "request_throughput": _rate(len(good), duration_s),
            "output_throughput": _rate(num_output, duration_s),
            "total_token_throughput": _rate(num_input + num_output, duration_s),
            "request_goodput": None if met is None else _rate(met, duration_s),
            **_latencies(good),
            **_cache(good, series.rounds),
            "output_throughput_samples": [_rate(part.num_output_tokens, part.duration_s) for part in series.rounds],
            "samples": {name: _samples(good, name) for name in ("ttft", "tpot", "itl", "e2el", "queue")},
            "kv_timeline": _timeline(series.rounds),
        }


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _samples(answers: Sequence[Answer], name: str) -> list[float]:
    """Milliseconds of every answer (of every gap, for itl), where there are any."""
    if name == "itl":
        return [round(gap * 1e3, 4) for answer in answers for gap in answer.itl_s]
    values = [getattr(answer, f"{name}_s") for answer in answers]
    return [round(value * 1e3, 4) for value in values if value is not None]


def _latencies(answers: Sequence[Answer]) -> Row:
    """{mean,median,std,p50,p95,p99}_{ttft,tpot,itl,e2el,queue}_ms, null where there is nothing to measure."""
    row: Row = {}
    for name in ("ttft", "tpot", "itl", "e2el", "queue"):
        samples = _samples(answers, name)
        summary = statistics.summarize(samples)
        for statistic in ("mean", "median", "std", "p50", "p95", "p99"):
            row[f"{statistic}_{name}_ms"] = None if summary is None else getattr(summary, statistic)
        if name in ("ttft", "tpot", "e2el"):
            interval = statistics.median_interval(samples) if samples else None
            row[f"ci95_{name}_ms"] = None if interval is None else [interval.low, interval.high]
            row[f"outliers_{name}"] = statistics.outliers(samples)
    return row


def _cache(answers: Sequence[Answer], rounds: Sequence[Round]) -> Row:
    """What the prefix cache and the KV blocks did; null where the target does not say."""
    cached = [answer.num_cached_tokens for answer in answers if answer.num_cached_tokens is not None]
    num_input = sum(answer.num_prompt_tokens for answer in answers)
    moments = [moment for part in rounds for moment in part.occupancy]
    shares = [moment.num_used / moment.num_total for moment in moments if moment.num_total]
    return {
        "num_cached_tokens": sum(cached) if cached else None,
        "prefix_cache_hit_rate": sum(cached) / num_input if cached and num_input else None,
        "num_preemptions": sum(answer.num_preemptions for answer in answers) if moments else None,
        "peak_kv_cache_usage": max(shares, default=None),
        "mean_kv_cache_usage": exact.fmean(shares) if shares else None,
    }


def _timeline(rounds: Sequence[Round]) -> list[Row]:
    """KV blocks over time, the rounds one after the other, thinned out evenly."""
    found: list[Row] = []
    elapsed_s = 0.0
    for part in rounds:
        start_s = min(answer.intended_s for answer in part.answers)
        for moment in part.occupancy:
            values = dataclasses.asdict(moment)
            found.append({**values, "time_s": round(elapsed_s + moment.time_s - start_s, 4)})
        elapsed_s += part.duration_s
    step = -(-len(found) // MAX_TIMELINE) or 1
    return found[::step]
