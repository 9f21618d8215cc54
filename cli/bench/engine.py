# `ingle bench MODEL`: how fast prompts are read and tokens generated, by depth, in every context asked for.
# This file may not know how a result is shown.
"""The engine's part.

Measured as llama-bench does, so that figures can be laid side by side: bare decoding, no sampling, the prompt in
chunks of a batch, one token a decode. `--concurrency 1` measures the whole of Ingle, sampling included.

Contexts are made once and kept. Each case is run until it has settled; then all cases take turns, one run each, back
and forth, so that what changes about the machine meets all of them alike.
"""

from __future__ import annotations

import statistics as exact
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ingle.cli.bench import bandwidth, statistics
from ingle.cli.bench.case import Case, Setup, shortened
from ingle.cli.bench.decode import DecodeLoop
from ingle.cli.bench.energy import EnergyCounters
from ingle.cli.bench.opened import OpenedModel
from ingle.cli.bench.result import Result, Row
from ingle.runtime import llama
from ingle.runtime.llama_context import Interrupt

MAX_WARM_RUNS = 10
WARM_TOKENS = 32
"""Generating so many tells whether it has settled."""

Live = Callable[[str], None]


@dataclass(slots=True)
class Series:
    """The runs of one case so far. Nanoseconds, and joules where the machine counts them."""

    case: Case
    num_warm_runs: int = 0
    is_steady: bool = False
    began: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    samples_ns: list[int] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)


class EngineBench:
    """All cases of one command. `run` may be cut short by `interrupt`; what there is then stands in the result."""

    def __init__(
        self,
        models: Sequence[OpenedModel],
        cases: Sequence[Case],
        *,
        gpu_layers: int | Literal["auto", "all"],
        num_repetitions: int,
        seed: int,
        interrupt: Interrupt,
        counters: EnergyCounters | None,
        live: Live,
    ) -> None:
        self._models = models
        self._series = [Series(case) for case in cases]
        self._gpu_layers = gpu_layers
        self._num_repetitions = num_repetitions
        self._seed = seed
        self._interrupt = interrupt
        self._counters = counters
        self._live = live
        self._loops: dict[Setup, DecodeLoop] = {}

    def run(self, result: Result) -> None:
        """Measure everything; the rows of `result` are what has been measured, also when this raises.

        Raises Stopped when interrupted, EngineError where a case cannot be.
        """
        with ExitStack() as stack:
            try:
                self._measure_bandwidth(result)
                self._open(stack)
                for series in self._series:
                    self._warm(series)
                for number in range(self._num_repetitions):
                    self._live(f"run {number + 1} of {self._num_repetitions}")
                    for series in self._series if number % 2 == 0 else reversed(self._series):
                        self.run_once(series, number)
            finally:
                result.rows = [self._row(series, result) for series in self._series if series.samples_ns]

    def run_once(self, series: Series, number: int) -> None:
        """Time one case. What is to be measured beside it, in turns, overrides this."""
        self._live(f"{series.case.name}: run {number + 1} of {self._num_repetitions}{_so_far(series)}")
        timing = self._loops[series.case.setup].measure(series.case)
        series.samples_ns.append(timing.nanoseconds)
        if timing.joules is not None:
            series.joules.append(timing.joules)

    def _measure_bandwidth(self, result: Result) -> None:
        for num_threads in sorted({series.case.setup.num_threads for series in self._series}):
            self._live(f"memory bandwidth with {num_threads} threads")
            result.read_bandwidth[str(num_threads)] = bandwidth.measure(num_threads)

    def _open(self, stack: ExitStack) -> None:
        for setup in dict.fromkeys(series.case.setup for series in self._series):
            cells = max(series.case.num_cells for series in self._series if series.case.setup == setup)
            model = self._models[setup.model]
            config = setup.config(self._gpu_layers)
            loop = DecodeLoop(model.weights, model.info, config, cells, self._interrupt, self._seed, self._counters)
            stack.callback(loop.close)
            self._loops[setup] = loop

    def _warm(self, series: Series) -> None:
        case = shortened(series.case, WARM_TOKENS)
        loop = self._loops[case.setup]

        def run() -> float:
            self._live(f"{series.case.name}: warming up")
            return loop.measure(case).nanoseconds / case.num_tokens

        series.num_warm_runs, series.is_steady = statistics.warm(run, max_runs=MAX_WARM_RUNS)

    def _row(self, series: Series, result: Result) -> Row:
        case, model = series.case, self._models[series.case.setup.model]
        return {
            "kind": "engine",
            "test": case.name,
            **_llama_bench_keys(series, model, result),
            **_own_keys(series, model, result),
        }


def _so_far(series: Series) -> str:
    if not series.samples_ns:
        return ""
    return f" · {series.case.num_tokens * 1e9 / exact.median(series.samples_ns):.1f} t/s"


def _llama_bench_keys(series: Series, model: OpenedModel, result: Result) -> dict[str, Any]:
    """What scripts that read llama-bench's JSON look for, under its names."""
    case, setup = series.case, series.case.setup
    speeds = [case.num_tokens * 1e9 / sample for sample in series.samples_ns]
    is_gpu = llama.supports_gpu_offload()
    devices = llama.devices()
    return {
        "build_commit": result.machine.get("llama_cpp_commit", ""),
        "build_number": 0,
        "cpu_info": result.machine.get("cpu", ""),
        "gpu_info": ", ".join(devices[:-1]) if is_gpu else "",
        "backends": "GPU" if is_gpu else "CPU",
        "model_filename": str(model.ref.path),
        "model_type": model.weights.description,
        "model_size": model.weights.size_bytes,
        "model_n_params": model.info.num_params,
        "n_batch": setup.n_batch,
        "n_ubatch": setup.n_batch,
        "n_threads": setup.num_threads,
        "type_k": setup.type_k,
        "type_v": setup.type_v,
        "n_gpu_layers": model.num_gpu_layers,
        "flash_attn": {None: -1, False: 0, True: 1}[setup.flash_attn],
        "n_prompt": case.num_prompt,
        "n_gen": case.num_generated,
        "n_depth": case.depth,
        "test_time": series.began,
        "avg_ns": round(exact.fmean(series.samples_ns)),
        "stddev_ns": round(_deviation(series.samples_ns)),
        "avg_ts": exact.fmean(speeds),
        "stddev_ts": _deviation(speeds),
        "samples_ns": series.samples_ns,
        "samples_ts": speeds,
    }


def _own_keys(series: Series, model: OpenedModel, result: Result) -> dict[str, Any]:
    """What llama-bench does not say. The model goes by the name it was asked for; bytes and joules are a token's."""
    case = series.case
    speeds = [case.num_tokens * 1e9 / sample for sample in series.samples_ns]
    interval = statistics.median_interval(speeds)
    row: dict[str, Any] = {
        "model": model.ref.name,
        "median_ts": exact.median(speeds),
        "ci95_ts": [interval.low, interval.high],
        "outliers": statistics.outliers(speeds),
        "num_warm_runs": series.num_warm_runs,
        "is_steady": series.is_steady,
        "bytes_per_token": None,
        "roofline_share": None,
        "joules_per_token": exact.median(series.joules) / case.num_tokens if series.joules else None,
    }
    if case.num_generated and model.num_gpu_layers == 0:
        bytes_per_token = bandwidth.weight_bytes_per_token(model.info)
        mean_depth = case.depth + case.num_generated / 2
        bytes_per_token += mean_depth * model.info.kv_bytes_per_token(case.setup.type_k, case.setup.type_v)
        roof = result.read_bandwidth[str(case.setup.num_threads)]
        row["bytes_per_token"] = round(bytes_per_token)
        row["roofline_share"] = bytes_per_token * row["median_ts"] / roof
    return row


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; 0 for one value, as llama-bench has it."""
    return exact.stdev(values) if len(values) > 1 else 0.0
