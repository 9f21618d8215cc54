# `ingle cache` on files that stand for pages: what is said, what is asked, what is deleted.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pexpect
import pytest

from ingle.runtime.blocks import HASH_BYTES, ChainHash
from ingle.runtime.page import SUFFIX, Page, write_page
from ingle.runtime.page_files import ABOUT

INGLE = [sys.executable, "-m", "ingle.cli.app", "cache"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TERM": "dumb"}


@pytest.fixture
def kv(tmp_path: Path) -> Path:
    """Two pages of model one, used 10 days ago, and one of model two."""
    directory = tmp_path / "ingle" / "kv"
    for model, count in (("Model One", 2), ("Model Two", 1)):
        fingerprint = bytes([count]) * HASH_BYTES
        folder = directory / fingerprint.hex()
        (folder / "00").mkdir(parents=True)
        (folder / ABOUT).write_text(json.dumps({"model": model, "type_k": "f16", "type_v": "q8_0"}))
        for number in range(count):
            parent, own = (ChainHash(bytes([digit]) * HASH_BYTES) for digit in (number, number + 1))
            path = folder / "00" / f"{parent.hex()}-{own.hex()}{SUFFIX}"
            write_page(Page(parent, own, (1, 2), np.zeros(1000, dtype=np.uint8)), path, fingerprint)
            if model == "Model One":
                ten_days_ago = path.stat().st_mtime - 864_000
                os.utime(path, (ten_days_ago, ten_days_ago))
    return directory


def pages(kv: Path) -> int:
    return len(list(kv.rglob(f"*{SUFFIX}")))


def cache(environ: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    command = [*INGLE, *arguments]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_info(environ: dict[str, str], kv: Path) -> None:
    code, out, err = cache(environ, "info")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:5] == ["Model", "Two", "f16/q8_0", "1", "page"]
    assert lines[1][:5] == ["Model", "One", "f16/q8_0", "2", "pages"]
    assert out.splitlines()[1].endswith("10 days ago")
    assert lines[2][:2] == ["3", "pages,"]
    assert str(kv) in out


def test_info_as_json(environ: dict[str, str], kv: Path) -> None:
    answer = json.loads(cache(environ, "info", "--json")[1])
    assert (answer["version"], answer["num_pages"], answer["directory"]) == (1, 3, str(kv))
    assert [(folder["model"], folder["num_pages"]) for folder in answer["folders"]] == [
        ("Model Two", 1),
        ("Model One", 2),
    ]
    assert answer["num_bytes"] == sum(path.stat().st_size for path in kv.rglob(f"*{SUFFIX}"))


def test_nothing_stored(environ: dict[str, str], tmp_path: Path) -> None:
    assert cache(environ, "info")[:2] == (0, f"0 pages, 0 B in {tmp_path}/ingle/kv\n")
    assert cache(environ, "verify")[:2] == (0, "0 good pages, 0 B, none of them bad\n")
    assert cache(environ, "clear", "--yes")[:2] == (0, "0 pages deleted, 0 B\n")


def test_verify_removes_what_is_bad(environ: dict[str, str], kv: Path) -> None:
    assert cache(environ, "verify") == (0, "3 good pages, 3 kB, none of them bad\n", "")
    path = next(kv.rglob(f"*{SUFFIX}"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert cache(environ, "verify") == (0, "2 good pages, 2 kB; 1 bad one removed\n", "")
    assert not path.exists()
    assert json.loads(cache(environ, "verify", "--json")[1]) == {
        "version": 1,
        "num_good": 2,
        "num_removed": 0,
        "num_bytes": 2000,
    }


def test_clear_without_somebody_to_ask(environ: dict[str, str], kv: Path) -> None:
    code, out, err = cache(environ, "clear")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith("error: ")
    assert "--yes" in err.splitlines()[1]
    assert pages(kv) == 3


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ([], 0),
        (["--model", "two"], 2),
        (["--older-than", "7d"], 1),
        (["--older-than", "2w"], 3),
        (["--model", "two", "--older-than", "1h"], 3),
        (["--model", "three"], 3),
    ],
)
def test_clear_deletes_what_is_meant(environ: dict[str, str], kv: Path, arguments: list[str], left: int) -> None:
    answer = json.loads(cache(environ, "clear", "--yes", "--json", *arguments)[1])
    assert answer["num_pages"] == 3 - left
    assert pages(kv) == left


@pytest.mark.parametrize("age", ["7", "d", "-1d", "7 days", "1.d"])
def test_an_age_that_makes_no_sense(environ: dict[str, str], age: str) -> None:
    code, _, err = cache(environ, "clear", "--yes", f"--older-than={age}")
    assert code == 2
    assert "7d" in err


@pytest.mark.parametrize(("answer", "left", "code"), [("y", 0, 0), ("n", 3, 1), ("", 3, 1)])
def test_clear_asks_on_a_terminal(environ: dict[str, str], kv: Path, answer: str, left: int, code: int) -> None:
    child = pexpect.spawn(INGLE[0], [*INGLE[1:], "clear"], env=environ, encoding="utf-8", timeout=20)
    child.expect_exact("Delete 3 pages (3 kB)? [y/N] ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
    assert pages(kv) == left


def test_without_a_command_it_says_what_there_is(environ: dict[str, str]) -> None:
    code, out, err = cache(environ)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ingle cache")


def test_no_model_and_no_llama_cpp_is_loaded(environ: dict[str, str], kv: Path) -> None:
    program = (
        "import sys, atexit; from ingle.cli.app import main\n"
        "atexit.register(lambda: print(sorted({'llama_cpp', 'jinja2', 'rich', 'prompt_toolkit'} & {*sys.modules})))\n"
        "main(['cache', 'verify'])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
