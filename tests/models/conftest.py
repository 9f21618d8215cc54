# What every test of this package gets.
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ingle.models import hub, pip_download
from tests.models.fake_hub import FakeHub
from tests.models.wheels import MODEL, write_wheel


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this package may see or touch the user's own folders and settings."""
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    monkeypatch.delenv("INGLE_MODEL", raising=False)
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # where nobody listens
    monkeypatch.setenv("HF_TOKEN", "hf_test")


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder that every user may enter and nobody but its owner write to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def unprivileged() -> Callable[[], AbstractContextManager[None]]:
    """Inside `with unprivileged():` permissions count even where the tests run as root."""

    @contextmanager
    def as_nobody() -> Iterator[None]:
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(user)

    return as_nobody


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
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the hub's client wanted to wait; it need not."""
    waits: list[float] = []
    monkeypatch.setattr(hub, "_sleep", waits.append)
    return waits


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, waited: list[float]) -> Iterator[FakeHub]:
    """An empty hub, for this process and for those it starts."""
    import huggingface_hub
    from huggingface_hub import constants

    huggingface_hub.close_session()
    with FakeHub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        template = running.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield running
        huggingface_hub.close_session()


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running pip fails the test."""

    def refuse(*_: object, **__: object) -> Path:
        raise AssertionError("pip was run")

    monkeypatch.setattr(pip_download, "download_wheel", refuse)
