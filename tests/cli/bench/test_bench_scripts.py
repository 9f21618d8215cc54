# scripts/compare_bench.py and make_benchmarks.py, as far as they go without a long measurement.
from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.bench import saved
from ingle.cli.bench.result import Result
from tests import tiny_models
from tests.cli.bench.samples import engine_row, serving_row

ROOT = Path(__file__).parent.parent.parent.parent
COMPARE = runpy.run_path(str(ROOT / "scripts" / "compare_bench.py"), run_name="compare_bench")


def script(name: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    return subprocess.run(whole, capture_output=True, text=True, check=False, env={**os.environ, **environ})


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return {"XDG_DATA_HOME": str(tmp_path / "data")}


def keep(name: str, rows: list[Any], settings: dict[str, Any], **changes: Any) -> None:
    models = [{"name": "tiny", "file": "/home/somebody/tiny.gguf", "sha256": "ab" * 32}]
    values: dict[str, Any] = {"machine": {"cpu": "A CPU", "memory_bytes": 8e9}, "models": models, "is_complete": True}
    saved.save(Result(settings=settings, rows=rows, **{**values, **changes}), saved.path_of(name))


def test_no_llama_bench_is_one_clear_line(tmp_path: Path) -> None:
    done = script("compare_bench.py", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: llama-bench is not on the PATH; --llama-bench PATH names one")
    assert script("compare_bench.py", "--llama-bench", str(tmp_path / "none")).stderr.endswith("is no program\n")


FAKE = """\
import json, signal, sys, time
if "--broken" in open({flags!r}).read():
    sys.exit("cannot load it")
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGCONT}})
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
runs, samples = int(options["-r"]), []
kind = "prompt" if options["-p"] != "0" else "generation"
print("llama-bench: benchmark 1/1: warmup", kind, "run", file=sys.stderr, flush=True)
for number in range(runs):
    started = time.perf_counter_ns()
    print(f"llama-bench: benchmark 1/1: {{kind}} run {{number + 1}}/{{runs}}", file=sys.stderr, flush=True)
    signal.sigwait({{signal.SIGCONT}})  # a run lasts until it has been stopped
    samples.append(time.perf_counter_ns() - started)
print(json.dumps([{{"samples_ns": samples, "build_commit": "c0ffee"}}]))
"""
"""Its progress and its clock as llama-bench has them: a run's clock is read before the run is told of."""


@pytest.fixture
def fake_llama_bench(tmp_path: Path) -> Path:
    (tmp_path / "flags").write_text("")
    (tmp_path / "fake.py").write_text(FAKE.format(flags=str(tmp_path / "flags")))
    program = tmp_path / "llama-bench"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "fake.py"} "$@"\n')
    program.chmod(0o755)
    return program


def test_what_llama_bench_stood_still_is_no_time_of_its_runs(fake_llama_bench: Path) -> None:
    with COMPARE["LlamaBench"]([str(fake_llama_bench), "-p", "0", "-n", "4", "-r", "3"]) as other:
        for _ in range(3):
            until = time.perf_counter() + 0.5  # the other program's run
            while time.perf_counter() < until:
                pass
            other.run()
        took, commit = other.result()
    assert commit == "c0ffee"
    assert len(took) == 3
    assert all(0 < nanoseconds < 400_000_000 for nanoseconds in took)


@pytest.mark.usefixtures("data_home")
def test_both_programs_run_every_test_in_turns(fake_llama_bench: Path, tmp_path: Path) -> None:
    tiny = tiny_models.write_llama(tmp_path / "tiny.gguf")
    arguments = ["--model", str(tiny), "--llama-bench", str(fake_llama_bench), "--pairs", "2", "--depth", "0,32"]
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    done = script("compare_bench.py", *arguments, "--json", str(figures))
    assert done.returncode in {0, 1}, done.stderr
    assert done.stderr == ""
    head, _, *rows, last = done.stdout.splitlines()
    assert head.startswith("tiny.gguf, ")
    assert head.endswith(" threads, 2 pairs of runs")
    assert [row[:18].rstrip() for row in rows] == ["pp512", "tg128", "pp512 @ d32", "tg128 @ d32"]
    assert last.endswith("c0ffee in llama-bench")
    keep("engine", [engine_row()], {"mode": "engine"})
    assert script("make_benchmarks.py", "engine", "--compared", str(figures), "--output", str(page)).returncode == 0
    told = json.loads(figures.read_text())
    assert "`scripts/compare-bench --pairs 2 --depth 0,32 --model tiny.gguf`" in page.read_text()
    for row in told["tests"]:
        assert f"| {row['test']} | {row['ingle_ts']:.2f} | {row['llama_bench_ts']:.2f} |" in page.read_text()
        assert row["ci95"][0] <= row["ratio"] <= row["ci95"][1]


def test_a_llama_bench_that_fails_is_one_clear_line(fake_llama_bench: Path, tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("--broken")
    tiny = tiny_models.write_llama(tmp_path / "tiny.gguf")
    done = script("compare_bench.py", "--model", str(tiny), "--llama-bench", str(fake_llama_bench), "--pairs", "2")
    assert (done.returncode, done.stderr) == (2, "error: llama-bench failed: cannot load it\n")
    done = script("compare_bench.py", "--model", str(tiny), "--llama-bench", "/bin/true")
    assert (done.returncode, done.stderr) == (2, "error: llama-bench failed: it made no run\n")
    assert script("compare_bench.py", "--pairs", "0").stderr.endswith("--pairs needs at least one\n")


def test_figures_that_cannot_be_written_are_one_clear_line(fake_llama_bench: Path, tmp_path: Path) -> None:
    tiny = tiny_models.write_llama(tmp_path / "tiny.gguf")
    arguments = ["--model", str(tiny), "--llama-bench", str(fake_llama_bench), "--pairs", "1", "--depth", "0"]
    done = script("compare_bench.py", *arguments, "--json", str(tmp_path / "none" / "figures.json"))
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}/none/figures.json: No such file or directory\n")
    assert "tg128" in done.stdout  # they have been printed


def test_the_page_has_commands_and_tables(data_home: dict[str, str], tmp_path: Path) -> None:
    settings = {"mode": "engine", "model": "x", "seed": 0, "depth": [0], "generate": [128], "prompt": [0]}
    keep("engine", [engine_row()], settings)
    keep("serving", [serving_row()], {"mode": "serving", "concurrency": [1, 4], "seed": 3, "slo": {"ttft_s": 0.5}})
    page = tmp_path / "page.md"
    done = script("make_benchmarks.py", "engine", "serving", "--output", str(page), **data_home)
    assert (done.returncode, done.stderr) == (0, "")
    text = page.read_text()
    assert "`ingle bench tiny.gguf --seed 0 -d 0 -n 128 -p 0`" in text
    assert "`ingle bench tiny.gguf --concurrency 1,4 --seed 3 --slo ttft=0.5s`" in text
    assert "llama-bench" not in text
    assert "A CPU" in text
    assert "/home/somebody" not in text


def test_incomplete_results_make_no_page(data_home: dict[str, str], tmp_path: Path) -> None:
    keep("cut", [engine_row()], {}, is_complete=False, stopped_by="Ctrl-C")
    page = tmp_path / "page.md"
    done = script("make_benchmarks.py", "cut", "--output", str(page), **data_home)
    assert (done.returncode, done.stderr) == (1, "error: cut is incomplete (Ctrl-C): measure it again\n")
    assert not page.exists()
    assert script("make_benchmarks.py", "none", **data_home).returncode == 2
