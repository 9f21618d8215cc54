# Every command of the README does what it is there for.
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Shell

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
# These install or run everything: tests/test_scripts.py and the tests themselves stand for them.
ELSEWHERE = ("scripts/run", "scripts/test", "scripts/check")


def commands() -> list[str]:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    return [line.split("  #")[0].rstrip() for line in lines]


def test_the_readme_has_its_commands() -> None:
    assert len(commands()) == 9


@pytest.mark.parametrize("line", [line for line in commands() if not line.startswith(ELSEWHERE)])
def test_command(shell: Shell, line: str) -> None:
    installed = Path(sys.executable).parent
    result = shell(f"cd '{ROOT}' && {line.replace('.venv/bin/', f'{installed}/')}")
    assert (result.code, result.err) == (0, "")
    assert bool(result.out) is not line.endswith("chat"), "a chat without input says nothing"


def test_program(shell: Shell) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) > 3


def test_the_tree_is_true() -> None:
    (tree,) = re.findall(r"## What is where\n\n```\n(.*?)```", README, re.DOTALL)
    for line in tree.splitlines():
        assert (ROOT / line.split()[0]).is_dir(), line
    for link in re.findall(r"\]\(([a-z][^):]*)\)", README):
        assert (ROOT / link).exists(), link
