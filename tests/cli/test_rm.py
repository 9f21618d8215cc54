# `ingle rm`: what is asked, what is said, what is refused. What goes and stays is tests/models/test_store.py's.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from ingle.cli.errors import UsageProblem
from ingle.cli.remove import remove
from ingle.cli.settings import used_path
from ingle.models import last_used
from ingle.models.errors import ModelNotFound
from tests.cli.shelf_of import Machine
from tests.cli.shelf_of import machine as make_machine
from tests.models.gguf_bytes import tiny_model

MODEL = tiny_model().to_bytes()
NAME = "acme/tiny-GGUF:Q8_0"
INGLE = [sys.executable, "-m", "ingle.cli.start"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return make_machine(tmp_path, monkeypatch)


def test_a_model_goes(machine: Machine) -> None:
    repo = machine.repo()
    last_used.mark(used_path(os.environ), repo.add("tiny-Q8_0.gguf", MODEL))
    assert machine.run(remove, [NAME, NAME.lower()], yes=True, as_json=False) == (
        0,
        f"{NAME} deleted, 4 kB freed\n",
        "",
    )
    assert not repo.folder.exists()
    assert list(used_path(os.environ).iterdir()) == []


def test_as_json(machine: Machine) -> None:
    repo = machine.repo()
    repo.add("tiny-Q8_0.gguf", MODEL, commit="b" * 40, ref=None)
    repo.add("tiny-Q8_0.gguf", MODEL)
    repo.add("tiny-F16.gguf", MODEL + b"x")
    code, out, err = machine.run(remove, [NAME, "acme/tiny-GGUF:F16"], yes=True, as_json=True)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["version"], answer["freed_bytes"]) == (1, len(MODEL) + 1)
    rows = [(row["name"], row["removed"], row["freed_bytes"], len(row["kept"])) for row in answer["models"]]
    assert rows == [(NAME, True, 0, 1), ("acme/tiny-GGUF:F16", True, len(MODEL) + 1, 0)]


def test_nothing_goes_before_all_names_are_known(machine: Machine) -> None:
    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    with pytest.raises(ModelNotFound, match="absent"):
        machine.run(remove, [NAME, "acme/absent"], yes=True, as_json=False)
    assert link.exists()


def test_files_of_the_user_are_left_to_the_user(machine: Machine) -> None:
    inside = machine.put(machine.mine / "a b.gguf", MODEL)
    outside = machine.put(machine.root / "elsewhere.gguf", MODEL)
    for path in (inside, outside):
        with pytest.raises(UsageProblem, match="is a file of yours") as caught:
            machine.run(remove, [str(path)], yes=True, as_json=False)
        assert path.exists()
        assert str(path) in str(caught.value.hint)
    assert f"rm '{inside}'" in str(caught.value.hint) or outside.exists()


def test_what_stays_is_said_and_told_by_the_exit_code(machine: Machine) -> None:
    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    (machine.mine / "x.gguf").symlink_to(link)
    code, out, err = machine.run(remove, [NAME], yes=True, as_json=False)
    assert (code, out) == (1, f"{NAME} stays\n")
    assert "x.gguf of yours leads to it" in err
    assert link.exists()


def test_stored_pages_are_mentioned(machine: Machine) -> None:
    import numpy as np

    from ingle.runtime.blocks import HASH_BYTES, ChainHash
    from ingle.runtime.page import SUFFIX, Page, write_page
    from ingle.runtime.page_files import ABOUT

    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    hashes = [ChainHash(bytes([n]) * HASH_BYTES) for n in range(3)]
    folder = machine.ours / "kv" / hashes[0].hex()
    (folder / "00").mkdir(parents=True)
    (folder / ABOUT).write_text(json.dumps({"model": "Tiny One", "file": str(link)}))
    page = folder / "00" / f"{hashes[1].hex()}-{hashes[2].hex()}{SUFFIX}"
    write_page(Page(hashes[1], hashes[2], (1,), np.zeros(1000, dtype=np.uint8)), page, bytes(hashes[0]))
    _, _, err = machine.run(remove, [NAME], yes=True, as_json=False)
    assert "1 stored page of it" in err
    assert "ingle cache clear --model 'Tiny One'" in err
    assert page.exists()


def test_without_somebody_to_ask(machine: Machine) -> None:
    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    done = subprocess.run([*INGLE, "rm", NAME], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr.splitlines()[1]
    assert link.exists()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_it_asks_on_a_terminal(machine: Machine, answer: str, code: int) -> None:
    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    environ = {**os.environ, "TERM": "dumb"}
    child = pexpect.spawn(INGLE[0], [*INGLE[1:], "rm", NAME], env=environ, encoding="utf-8", timeout=20)
    child.expect_exact(f"Delete {NAME} (frees 4 kB)? [y/N] ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
    assert link.exists() == bool(code)
