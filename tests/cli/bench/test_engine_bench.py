# The engine's part on tiny models: names, keys, what is measured and what is left when it is cut short.
from __future__ import annotations

import dataclasses
import statistics as exact
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.bench import bandwidth, columns, opened
from ingle.cli.bench.case import Case, Setup, Sweep, expand
from ingle.cli.bench.decode import DecodeLoop, Stopped
from ingle.cli.bench.energy import EnergyCounters, Zone
from ingle.cli.bench.engine import EngineBench
from ingle.cli.bench.result import Result
from ingle.cli.output import Output
from ingle.models.gguf_info import read_model_info
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import InvalidRequest, OutOfMemory
from ingle.runtime.llama_context import Interrupt
from tests import tiny_models

SETUP = Setup(0, 1, 32, "f16", "f16", None)


def sweep(**changes: Any) -> Sweep:
    values: dict[str, Any] = {
        "prompts": (48,),
        "generations": (4,),
        "depths": (0, 40),
        "threads": (1,),
        "batches": (32,),
        "types_k": ("f16",),
        "types_v": ("f16",),
        "flash_attns": (None,),
    }
    return Sweep(**{**values, **changes})


@contextmanager
def opened_models(*paths: Path) -> Iterator[list[opened.OpenedModel]]:
    with opened.open_models([str(path) for path in paths], EngineConfig(), Output(), offline=True) as models:
        yield models


@pytest.fixture(autouse=True)
def roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "measure", lambda _num_threads: 1e9)


def run(path: Path, cases: list[Case], interrupt: Interrupt | None = None, repetitions: int = 3) -> Result:
    result = Result(settings={})
    with opened_models(path) as models:
        EngineBench(
            models,
            cases,
            gpu_layers="auto",
            num_repetitions=repetitions,
            seed=0,
            interrupt=interrupt or Interrupt(),
            counters=None,
            live=lambda _text: None,
        ).run(result)
    return result


def test_all_combinations_each_a_row() -> None:
    cases = expand(sweep(prompts=(512, 0), generations=(128,), depths=(0, 2048), threads=(1, 2)), 2)
    assert [case.name for case in cases[:4]] == ["pp512", "tg128", "pp512 @ d2048", "tg128 @ d2048"]
    assert len(cases) == 16
    assert [(case.setup.model, case.setup.num_threads) for case in cases[::4]] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert expand(sweep(prompts=(0,), generations=(0,)), 1) == []


@pytest.mark.parametrize("write", [tiny_models.write_llama, tiny_models.write_gemma3, tiny_models.write_mamba])
def test_rows_of_a_tiny_model(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / "tiny.gguf")
    rows = run(path, expand(sweep(), 1)).rows
    assert [row["test"] for row in rows] == ["pp48", "tg4", "pp48 @ d40", "tg4 @ d40"]
    for row in rows:
        num_tokens = row["n_prompt"] or row["n_gen"]
        assert len(row["samples_ns"]) == 3
        assert row["samples_ts"] == [num_tokens * 1e9 / sample for sample in row["samples_ns"]]
        assert row["avg_ns"] == round(exact.fmean(row["samples_ns"]))
        assert row["stddev_ts"] == pytest.approx(exact.stdev(row["samples_ts"]))
        assert row["median_ts"] == exact.median(row["samples_ts"])
        assert row["ci95_ts"][0] <= row["median_ts"] <= row["ci95_ts"][1]
        assert row["num_warm_runs"] >= 3
    reading, generating = rows[2], rows[3]
    assert (reading["n_prompt"], reading["n_gen"], reading["n_depth"]) == (48, 0, 40)
    assert (reading["n_batch"], reading["n_ubatch"], reading["n_threads"], reading["flash_attn"]) == (32, 32, 1, -1)
    assert (reading["bytes_per_token"], reading["joules_per_token"]) == (None, None)
    info = read_model_info(path)
    weights = sum(t.num_bytes for t in info.tensors if t.name != "token_embd.weight")
    assert generating["bytes_per_token"] == weights + 42 * info.kv_bytes_per_token()
    assert generating["roofline_share"] == pytest.approx(generating["bytes_per_token"] * generating["median_ts"] / 1e9)


def test_the_keys_are_llama_benchs() -> None:
    wanted = (
        "build_commit, cpu_info, gpu_info, backends, model_filename, model_type, model_size, model_n_params, n_batch, "
        "n_ubatch, n_threads, type_k, type_v, n_gpu_layers, flash_attn, n_prompt, n_gen, n_depth, test_time, avg_ns, "
        "stddev_ns, avg_ts, stddev_ts, samples_ns, samples_ts"
    )
    assert set(wanted.split(", ")) <= ROW.keys()


ROW: dict[str, Any] = {
    "kind": "engine",
    "test": "tg128 @ d2048",
    "build_commit": "abc",
    "cpu_info": "cpu",
    "gpu_info": "",
    "backends": "CPU",
    "model_filename": "/m.gguf",
    "model_type": "llama 1B Q4_1",
    "model_size": 96_000_000,
    "model_n_params": 134_515_008,
    "n_batch": 512,
    "n_ubatch": 512,
    "n_threads": 2,
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": 0,
    "flash_attn": -1,
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 2048,
    "test_time": "2026-01-01T00:00:00Z",
    "avg_ns": 1_000_000_000,
    "stddev_ns": 10,
    "avg_ts": 128.0,
    "stddev_ts": 0.5,
    "samples_ns": [1_000_000_000],
    "samples_ts": [128.0],
    "model": "m",
}


def test_the_markdown_table_is_llama_benchs() -> None:
    lines = columns.write_md([ROW]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert cells[2] == ["llama 1B Q4_1", "91.55 MiB", "134.52 M", "CPU", "2", "tg128 @ d2048", "128.00 ± 0.50"]
    assert len({len(line) for line in lines}) == 1


def test_depth_is_restored_and_means_the_same(tmp_path: Path) -> None:
    """What stands behind a restored depth is as long as what was computed, every time."""
    path = tiny_models.write_llama(tmp_path / "tiny.gguf")
    case = Case(SETUP, 0, 4, 40)
    with opened_models(path) as (model,):
        loop = DecodeLoop(model.weights, model.info, SETUP.config("auto"), case.num_cells, Interrupt(), 0, None)
        for _ in range(3):
            loop.measure(case)
            assert loop._context.num_positions(0) == 44
        assert loop._saved is not None
        assert loop._saved[0] == 40
        loop.close()


def test_joules_are_of_what_is_measured_alone(tmp_path: Path) -> None:
    """A counter that goes up by one joule at each reading: one run reads it twice, so spends one."""
    zone = tmp_path / "energy_uj"
    zone.write_text("0")

    class Ticking(EnergyCounters):
        num_read = 0

        def read(self) -> tuple[int, ...] | None:
            self.num_read += 1
            return (self.num_read * 1_000_000,)

    path = tiny_models.write_llama(tmp_path / "tiny.gguf")
    result = Result(settings={})
    with opened_models(path) as models:
        EngineBench(
            models,
            expand(sweep(depths=(40,)), 1),
            gpu_layers="auto",
            num_repetitions=2,
            seed=0,
            interrupt=Interrupt(),
            counters=Ticking([Zone(zone, 2**40)]),
            live=lambda _text: None,
        ).run(result)
    assert [row["joules_per_token"] for row in result.rows] == [1 / 48, 1 / 4]


def test_being_interrupted_leaves_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_models.write_llama(tmp_path / "tiny.gguf")
    interrupt = Interrupt()
    measure = DecodeLoop.measure
    calls: list[Case] = []

    def counted(loop: DecodeLoop, case: Case) -> Any:
        calls.append(case)
        if len(calls) > 50:  # of which the first 40 at most are to warm up
            interrupt.is_set = True
        return measure(loop, case)

    monkeypatch.setattr(DecodeLoop, "measure", counted)
    result = Result(settings={})
    with opened_models(path) as models:
        bench = EngineBench(
            models,
            expand(sweep(), 1),
            gpu_layers="auto",
            num_repetitions=50,
            seed=0,
            interrupt=interrupt,
            counters=None,
            live=lambda _text: None,
        )
        with pytest.raises(Stopped):
            bench.run(result)
    assert 0 < len(result.rows) <= 4
    assert all(row["samples_ns"] for row in result.rows)


def test_what_is_compared_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forth and back: no case is always the first, nor all of one before all of the other."""
    paths = [tiny_models.write_llama(tmp_path / f"{name}.gguf", seed=seed) for seed, name in enumerate("ab")]
    order: list[int] = []
    measure = DecodeLoop.measure

    def noted(loop: DecodeLoop, case: Case) -> Any:
        order.append(case.setup.model)
        return measure(loop, case)

    monkeypatch.setattr(DecodeLoop, "measure", noted)
    result = Result(settings={})
    with opened_models(*paths) as models:
        EngineBench(
            models,
            expand(sweep(prompts=(0,), depths=(0,)), 2),
            gpu_layers="auto",
            num_repetitions=4,
            seed=0,
            interrupt=Interrupt(),
            counters=None,
            live=lambda _text: None,
        ).run(result)
    assert order[-8:] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert [row["model"] for row in result.rows] == ["a", "b"]


def test_a_context_that_cannot_be_is_refused_before_llama_cpp(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "tiny.gguf")
    with opened_models(path) as (model,), pytest.raises(OutOfMemory, match="GB of KV cache"):
        DecodeLoop(model.weights, model.info, SETUP.config("auto"), 2**40, Interrupt(), 0, None)
    with pytest.raises(InvalidRequest):
        Setup(0, 1, 32, "f16", "q4_0", False).config("auto")


def test_models_that_cannot_be_in_memory_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tiny_models.write_llama(tmp_path / f"{name}.gguf") for name in "ab"]
    monkeypatch.setattr(opened, "total_memory_bytes", lambda: paths[0].stat().st_size)
    with opened_models(paths[0]):
        pass
    with pytest.raises(OutOfMemory, match="all models together"), opened_models(*paths):
        pass


def test_experts_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    info = read_model_info(tiny_models.write_llama(tmp_path / "tiny.gguf"))
    everything = bandwidth.weight_bytes_per_token(info)
    renamed = [
        type(t)(t.name.replace("ffn_up.", "ffn_up_exps."), t.shape, t.type, t.num_bytes, t.offset) for t in info.tensors
    ]
    metadata = {**info.metadata, "llama.expert_count": 8, "llama.expert_used_count": 2}
    moe = dataclasses.replace(info, tensors=renamed, metadata=metadata)
    up = sum(t.num_bytes for t in info.tensors if "ffn_up." in t.name)
    assert bandwidth.weight_bytes_per_token(moe) == everything - 0.75 * up
