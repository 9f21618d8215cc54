# scripts/*: what they do before and after the one long installation, without doing it again.
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = [
    *("scripts/run", "scripts/test", "scripts/check", "scripts/venv", ".ci/run"),
    *("scripts/compare-bench", "scripts/make-benchmarks"),
]
TOOLS = ("bash", "dirname", "sed", "cat", "grep", "rm", "env", "python3", "flock", "sleep")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what the scripts look at."""
    for name in ("scripts", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.fixture
def path_without_compiler(tmp_path: Path) -> str:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = sys.executable if name == "python3" else shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(Path(found).resolve())
    return str(tools)


@pytest.mark.parametrize("script", SCRIPTS)
def test_runs_and_parses(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_comparing_drafts_wants_to_know_the_models() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / "compare_spec.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for arguments, words in (
        ((), "--target"),
        (("--target", "a.gguf"), "the case code wants --draft FILE"),
        (("--target", "a.gguf", "--cases", "edit,nothing"), "no case called nothing"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr


def test_missing_compiler_is_one_line_with_the_remedy(clone: Path, path_without_compiler: str) -> None:
    done = subprocess.run(
        ["bash", str(clone / "scripts" / "run"), "hi"],
        env={"PATH": path_without_compiler, "HOME": str(clone), "PIP_CACHE_DIR": str(clone / "no-cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    for word in ("C++ compiler", "CMake", "apt install", "dnf install", "brew install"):
        assert word in line


def test_no_suitable_python_is_said(clone: Path, path_without_compiler: str) -> None:
    (Path(path_without_compiler) / "python3").unlink()
    done = subprocess.run(
        ["bash", str(clone / "scripts" / "run"), "hi"],
        env={"PATH": path_without_compiler, "HOME": str(clone)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Python 3.11 to 3.13" in done.stderr


def test_second_time_installs_nothing(clone: Path) -> None:
    """With the stamp of this pyproject there, `scripts/run` goes straight to the command, its arguments untouched."""
    bin_folder = clone / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (clone / ".venv" / ".ingle-installed").write_text(f"{clone}\n{(clone / 'pyproject.toml').read_text()}")
    ingle = bin_folder / "ingle"
    ingle.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    ingle.chmod(0o755)
    done = subprocess.run(
        ["bash", str(clone / "scripts" / "run"), "a b", "-n", "3"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "<run><a b><-n><3>"
    assert done.stderr == ""
