# The command as a user has it: through bash, with its own settings folder and nothing of the caller's INGLE_*.
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingle.models.places import models_dir

ESCAPE = "\x1b"


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def err_lines(self) -> list[str]:
        return self.err.splitlines()


class Shell:
    """Runs command lines. `$MODEL` is the real model; extra keyword arguments are environment variables."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self.environ = dict(environ)
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, line: str, *, stdin: bytes = b"", **environ: str) -> Result:
        done = subprocess.run(
            ["bash", "-c", line],
            input=stdin,
            capture_output=True,
            env={**self.environ, **environ},
            cwd=self.folder,
            timeout=120,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    def start(self, line: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """The command itself, not a shell around it, so that a signal reaches it."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ,
            cwd=self.folder,
        )
        self.started.append(process)
        return process


@pytest.fixture
def shell(tmp_path: Path, smollm2_path: Path) -> Iterator[Shell]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("INGLE_", "XDG_"))}
    kept |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(smollm2_path),
        "INGLE_MODEL": str(smollm2_path),
        "XDG_CACHE_HOME": str(tmp_path / "stored"),  # of the user's, only the models
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    (tmp_path / "stored" / "ingle").mkdir(parents=True)
    (tmp_path / "stored" / "ingle" / "models").symlink_to(models_dir())
    running = Shell(kept, tmp_path)
    yield running
    for process in running.started:  # a test that failed may have left one
        process.kill()
