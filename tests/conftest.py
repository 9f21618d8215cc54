# What every test may use: the real model, once a session, in the user's ordinary cache so that it is downloaded once.
from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF: real weights, small enough for tests."""
    from ingle.models.resolve import resolve

    return resolve("smollm2").path
