# scripts/compare_bench.py and make_benchmarks.py, as far as they go without a long measurement.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.bench import saved
from ingle.cli.bench.result import Result
from tests.cli.bench.samples import engine_row, serving_row

ROOT = Path(__file__).parent.parent.parent.parent


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


def test_the_page_has_commands_tables_and_the_other_tools_figures(data_home: dict[str, str], tmp_path: Path) -> None:
    settings = {"mode": "engine", "model": "x", "seed": 0, "depth": [0], "generate": [128], "prompt": [0]}
    keep("engine", [engine_row()], settings)
    keep("serving", [serving_row()], {"mode": "serving", "concurrency": [1, 4], "seed": 3, "slo": {"ttft_s": 0.5}})
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps([engine_row(speeds=[200.0])]))
    page = tmp_path / "page.md"
    arguments = ["engine", "serving", "--llama-bench", str(theirs), "--output", str(page)]
    done = script("make_benchmarks.py", *arguments, **data_home)
    assert (done.returncode, done.stderr) == (0, "")
    text = page.read_text()
    assert "`ingle bench tiny.gguf --seed 0 -d 0 -n 128 -p 0`" in text
    assert "`ingle bench tiny.gguf --concurrency 1,4 --seed 3 --slo ttft=0.5s`" in text
    assert "| tg128 | 100.00 | 200.00 | 0.500 |" in text
    assert "A CPU" in text
    assert "/home/somebody" not in text


def test_incomplete_results_make_no_page(data_home: dict[str, str], tmp_path: Path) -> None:
    keep("cut", [engine_row()], {}, is_complete=False, stopped_by="Ctrl-C")
    page = tmp_path / "page.md"
    done = script("make_benchmarks.py", "cut", "--output", str(page), **data_home)
    assert (done.returncode, done.stderr) == (1, "error: cut is incomplete (Ctrl-C): measure it again\n")
    assert not page.exists()
    assert script("make_benchmarks.py", "none", **data_home).returncode == 2
