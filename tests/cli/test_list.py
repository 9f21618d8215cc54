# `ingle list` on models written by hand.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingle.cli.complete import model_names
from ingle.cli.listing import Row, listing, parameters, table
from ingle.cli.settings import used_path
from ingle.models import last_used
from ingle.models.header_summary import Summary
from ingle.models.store import Place, StoredModel
from tests.cli.shelf_of import Machine
from tests.cli.shelf_of import machine as make_machine
from tests.models.gguf_bytes import tiny_model

MODEL = tiny_model().to_bytes()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return make_machine(tmp_path, monkeypatch)


def test_an_empty_shelf_says_what_to_do(machine: Machine) -> None:
    code, out, err = machine.run(listing, as_json=False)
    assert (code, out) == (0, "")
    assert "ingle pull smollm2" in err
    assert json.loads(machine.run(listing, as_json=True)[1]) == {"version": 1, "num_bytes": 0, "models": []}


def test_the_table(machine: Machine) -> None:
    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    machine.put(machine.mine / "bad.gguf", MODEL[:-9])
    machine.put(machine.mine / "bert.gguf", tiny_model(general__architecture=("str", "bert")).to_bytes())
    last_used.mark(used_path(os.environ), link)
    code, out, err = machine.run(listing, as_json=False)
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["NAME", "SIZE", "QUANT", "PARAMETERS", "CONTEXT", "ARCHITECTURE", "LICENCE", "LAST", "USED"]
    mine = str(machine.mine)
    assert [row.split() for row in rows[:2]] == [
        [f"{mine}/bert.gguf", *["4", "kB", "Q4_K_M", "2K", "-", "bert", "(no", "text)", "mit", "-"]],
        ["acme/tiny-GGUF:Q8_0", *["4", "kB", "Q8_0", "2K", "64", "llama", "mit", "just", "now"]],
    ]
    assert rows[2].startswith(f"{mine}/bad.gguf")
    assert "unusable: truncated: tensor 'blk.0.attn_q.weight'" in rows[2]
    assert len(rows) == 3
    column = head.index("ARCHITECTURE")
    assert [row[column:].split()[0] for row in rows[:2]] == ["bert", "llama"], "columns are aligned"


def test_as_json(machine: Machine) -> None:
    link = machine.repo().add("tiny-Q8_0.gguf", MODEL)
    machine.repo().add("README.md", b"---\nlicense: apache-2.0\n---\n")
    unnamed = tiny_model(general__license=None).to_bytes()
    other = machine.repo().add("other-F16.gguf", unnamed)
    answer = json.loads(machine.run(listing, as_json=True)[1])
    assert (answer["version"], answer["num_bytes"]) == (1, len(MODEL) + len(unnamed))
    by_name = {model["name"]: model for model in answer["models"]}
    assert by_name["acme/tiny-GGUF:Q8_0"] == {
        "name": "acme/tiny-GGUF:Q8_0",
        "place": "hub",
        "path": str(link),
        "files": [str(link)],
        "size_bytes": len(MODEL),
        "repo": "acme/tiny-GGUF",
        "revision": "a" * 40,
        "quant": "Q8_0",
        "num_params": 1568,
        "n_ctx_train": 64,
        "architecture": "llama",
        "licence": "mit",
        "not_generative": None,
        "last_used": None,
        "problem": None,
    }
    assert by_name["acme/tiny-GGUF:F16"]["licence"] == "apache-2.0", "from the model card"
    assert by_name["acme/tiny-GGUF:F16"]["path"] == str(other)


def test_names_cannot_move_the_cursor(machine: Machine) -> None:
    machine.put(machine.mine / "a\x1b[2J\n.gguf", MODEL)
    assert "\x1b" not in machine.run(listing, as_json=False)[1]


def test_a_folder_that_is_not_there_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLE_MODEL_DIRS", str(machine.root / "absent"))
    code, _, err = machine.run(listing, as_json=False)
    assert code == 0
    assert f"warning: cannot look into {machine.root}/absent" in err


@pytest.mark.parametrize(
    ("num", "text"),
    [(None, "-"), (999, "999"), (1568, "2K"), (134_515_008, "135M"), (999_900_000, "1.0B"), (7e10, "70B")],
)
def test_parameters(num: int | None, text: str) -> None:
    assert parameters(num) == text


def test_completion(machine: Machine) -> None:
    machine.repo().add("tiny-Q8_0.gguf", b"not even a model")
    assert model_names("AC") == ["acme/tiny-GGUF:Q8_0"]
    assert "smollm2" in model_names("")
    environ = {**os.environ, "_INGLE_COMPLETE": "complete_bash", "COMP_WORDS": "ingle show acm", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "ingle.cli.start"], env=environ, capture_output=True, text=True)
    assert "acme/tiny-GGUF:Q8_0" in done.stdout.split()


def test_a_model_that_was_run_was_last_used_now(machine: Machine) -> None:
    from tests.tiny_models import write_llama

    path = write_llama(machine.mine / "tiny.gguf")
    command = [sys.executable, "-m", "ingle.cli.start", "run", "hi", "--raw", "-n", "1", "-t", "1", "-m", str(path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    (row,) = json.loads(machine.run(listing, as_json=True)[1])["models"]
    (mark,) = used_path(os.environ).iterdir()
    assert row["last_used"] == mark.stat().st_mtime


def test_a_hundred_unchanged_headers_are_not_read_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        machine.put(machine.mine / f"{number}.gguf", MODEL)
    first = machine.run(listing, as_json=True)
    monkeypatch.setattr("ingle.models.header_summary.summarise", lambda path: pytest.fail(f"read {path} again"))
    assert machine.run(listing, as_json=True) == first


def test_no_model_no_hub_library_and_no_llama_cpp_is_loaded(machine: Machine) -> None:
    machine.repo().add("tiny-Q8_0.gguf", MODEL)
    program = (
        "import sys, atexit; from ingle.cli.app import main\n"
        "heavy = {'llama_cpp', 'jinja2', 'rich', 'numpy', 'huggingface_hub', 'gguf'}\n"
        "atexit.register(lambda: print(sorted(heavy & {*sys.modules})))\n"
        "main(['list'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "\x1b" not in done.stdout


def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_lines() -> None:
    def row(name: str, problem: str | None = None) -> Row:
        stored = StoredModel(name, Place.OURS, (Path(name),), 1_000_000, problem=problem)
        return Row(stored, Summary("llama", None, None, "apache-2.0", "Q4_0", 135_000_000, 8192), None)

    rows = [row("acme/tiny:Q4_0"), row("/a/folder/with/a/name/of/many/letters.incomplete", "unfinished")]
    whole = table(rows, None)
    assert whole[0].split() == [
        *["NAME", "SIZE", "QUANT", "PARAMETERS", "CONTEXT", "ARCHITECTURE", "LICENCE", "LAST", "USED"]
    ]
    assert whole[1].split() == ["acme/tiny:Q4_0", "1", "MB", "Q4_0", "135M", "8192", "llama", "apache-2.0", "-"]
    assert whole[0].startswith("NAME            SIZE  "), "what is unusable makes no column wider"
    assert whole[2].endswith("letters.incomplete  1 MB  unusable: unfinished")
    for width in range(40, 110):
        lines = table(rows, width)
        assert max(len(line) for line in lines[:2]) < width
        assert lines[1].startswith("acme/tiny:Q4_0  1 MB")
        assert set(lines[0].split()) <= set(whole[0].split())
    assert table(rows, 200) == whole
