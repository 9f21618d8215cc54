# `ingle eval` as a user has it: a table, a JSON object, and clear refusals.
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingle.quant.evaluate import evaluate
from tests.quant.architectures import rewrite
from tests.tiny_models import WORDS, write_llama

TEXT = " ".join(word.strip("▁") for word in WORDS for _ in range(12))


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ingle.cli.start", "eval", *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "INGLE_QUIET": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    rng = np.random.default_rng(15)
    write_llama(folder / "model.gguf")
    rewrite(folder / "model.gguf", folder / "worse.gguf", lambda _, v: v + 0.05 * v.std() * rng.normal(size=v.shape))
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_json_is_what_evaluate_finds(folder: Path) -> None:
    model, worse, text = (folder / name for name in ("model.gguf", "worse.gguf", "text.txt"))
    done = run(worse, "--against", model, "--text", text, "--chunks", 1, "--json")
    assert done.returncode == 0, done.stderr
    found = evaluate(worse, TEXT, against=model, max_chunks=1)
    assert found.divergence is not None
    value = json.loads(done.stdout)
    assert value["version"] == 1
    assert value["num_scored_tokens"] == 255
    assert value["perplexity"] == pytest.approx(found.perplexity.value, rel=1e-4)
    assert value["against"]["model"] == "model"
    assert value["against"]["mean_kl"] == pytest.approx(found.divergence.mean_kl, rel=1e-3)
    assert value["against"]["same_top"] == pytest.approx(found.divergence.same_top)


def test_without_a_reference_there_is_perplexity_alone(folder: Path) -> None:
    done = run(folder / "model.gguf", "--text", folder / "text.txt", "--chunks", 1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["perplexity", "scored"]
    assert lines[1] == "scored     255 tokens in 1 chunk of 512"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("model.gguf", "--text", "nowhere.txt"), 66, "no such file"),
        (("model.gguf", "--text", "."), 66, "is a folder"),
        (("model.gguf", "--text", "model.gguf"), 66, "not"),
        (("model.gguf", "--text", "short.txt"), 76, "are scored at a time"),
        (("model.gguf", "--text", "text.txt", "--against", "model.gguf"), 2, "same file"),
        (("nowhere.gguf", "--text", "text.txt"), 66, "nowhere.gguf"),
        (("model.gguf",), 2, "--text"),
        (("model.gguf", "--text", "text.txt", "--chunks", "0"), 2, "--chunks"),
    ],
)
def test_refusals(folder: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    (folder / "short.txt").write_text("the cat")
    done = run(*(folder / part if "." in part and not part.startswith("--") else part for part in arguments))
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr
