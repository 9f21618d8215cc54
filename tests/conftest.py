# What every test may use: the real model, once a session, in the user's ordinary cache so that it is downloaded once.
from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # before numpy: as `ingle quantize` has it, where cli/quantize.py says why


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF: real weights, small enough for tests."""
    from ingle.models.resolve import resolve

    return resolve("smollm2").path
