# A machine with some models on it, for the tests of list, show and rm: everything below one folder.
from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingle.cli.output import Output
from tests.models.hub_cache import HubRepo


@dataclass
class Machine:
    """Where things lie. `run` calls a command's function in this process: exit code, stdout, stderr."""

    root: Path

    @property
    def mine(self) -> Path:
        return self.root / "mine"

    @property
    def ours(self) -> Path:
        return self.root / "xdg" / "cache" / "ingle"

    def repo(self, name: str = "acme/tiny-GGUF") -> HubRepo:
        return HubRepo(self.root / "hub", name)

    def put(self, path: Path, content: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def run(self, command: Callable[..., int], *arguments: Any, **flags: Any) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        code = command(Output(out, err), *arguments, **flags)
        return code, out.getvalue(), err.getvalue()


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "xdg" / name.lower()))
    for name in ("INGLE_MODEL", "INGLE_KV_STORE", "INGLE_QUIET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("INGLE_MODEL_DIRS", str(tmp_path / "mine"))
    return Machine(tmp_path)
