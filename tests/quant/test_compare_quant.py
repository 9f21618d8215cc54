# scripts/compare_quant.py: which floors a reference is held to. What it measures is measured by nobody here.
from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compare_quant.py"), run_name="compare_quant")


@pytest.mark.parametrize(
    ("name", "gain", "limit_s"),
    [
        ("SmolLM2 135M Instruct", 0.30, 120.0),
        ("Smollm2 135M 8k Lc100K Mix1 Ep2", 0.30, 120.0),
        ("Qwen2.5 Coder 0.5B Instruct AWQ", 0.10, 600.0),
    ],
)
def test_floors_are_of_one_model(name: str, gain: float, limit_s: float) -> None:
    floors = SCRIPT["floors_of"](name)
    assert (floors.gains["Q4_0"], floors.limit_s) == (gain, limit_s)


@pytest.mark.parametrize("name", ["", "SmolLM2 360M", "Llama 3.2 1B", "Qwen2.5 Coder 1.5B Instruct", "Gemma 3 270m"])
def test_models_of_the_same_architecture_have_none(name: str) -> None:
    assert SCRIPT["floors_of"](name) is None


def test_counts_as_typed() -> None:
    assert [SCRIPT["count"](text) for text in ("16k", "16K", "100")] == [16384, 16384, 100]
