# `ingle quantize` as it is typed: what is written where, what is said, what is refused before anything is written.
from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingle.cli import quantize_speed
from ingle.cli.errors import InputProblem, UsageProblem
from ingle.cli.output import Output
from ingle.cli.quantize import QuantizeFlags, quantize
from ingle.models.gguf_info import read_model_info
from ingle.quant import pipeline
from ingle.quant.errors import BadRecipe
from ingle.quant.imatrix_file import ImatrixData, ImatrixEntry, read_imatrix, write_imatrix
from ingle.quant.recipe import choose_types, find_mix
from ingle.quant.source import Source
from tests.quant.layouts import Layout

LAYOUT = Layout(num_layers=2, width=64, num_heads=2, num_heads_kv=2, ffn=96)


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(quantize_speed, "PROMPT_TOKENS", 32)
    monkeypatch.setattr(quantize_speed, "GENERATED_TOKENS", 4)
    return LAYOUT.write(tmp_path / "tiny-F32.gguf")


def run(*to: str, **flags: Any) -> tuple[list[str], list[str]]:
    out, err = io.StringIO(), io.StringIO()
    flags = {"no_imatrix": "imatrix" not in flags, "awq": False, "gptq": False} | flags  # rounding alone
    assert quantize(QuantizeFlags(model="./tiny-F32.gguf", to=to, **flags), Output(out, err)) == 0
    return out.getvalue().splitlines(), err.getvalue().splitlines()


def write_importances(path: Path) -> Path:
    entries = {name: ImatrixEntry(4 * means, np.full(1, 4, np.float32)) for name, means in LAYOUT.importances().items()}
    write_imatrix(path, ImatrixData(entries, ("text.txt",), 3, 512))
    return path


def test_files_are_named_after_the_source(tmp_path: Path) -> None:
    out, err = run("q4_0", "int8", "Q8_0")
    assert [line.split()[0] for line in out if "bits a weight" in line] == ["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]
    for name in ("Q4_0", "Q8_0"):
        info = read_model_info(tmp_path / f"tiny-{name}.gguf")
        assert info.file_type == name
        assert info.metadata["ingle.quantize.source.file"] == "tiny-F32.gguf"
    assert out[1].endswith("(Q8_0 16, F32 7)")
    assert any("reading tiny-F32.gguf" in line for line in err)
    assert any("quantizing tiny-F32.gguf to Q4_0" in line for line in err)
    assert "Q4_0: 1 tensor in Q8_0 instead of Q6_K, whose blocks of 256 do not divide the rows" in err


def test_rows_that_no_block_divides_are_told() -> None:
    _, err = run("q4_k_m", dry_run=True)
    assert "Q4_K_M: 2 tensors in Q8_0 instead of Q6_K, whose blocks of 256 do not divide the rows" in "\n".join(err)


def test_json(model: Path, tmp_path: Path) -> None:
    import hashlib

    write_importances(tmp_path / "given.gguf")
    out, _ = run("q5_0", out=tmp_path / "small.gguf", imatrix=tmp_path / "given.gguf", keep_imatrix=True, json=True)
    told = json.loads(out[0])
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert told["version"] == 1
    assert told["model"] == {
        "path": "tiny-F32.gguf",
        "num_bytes": model.stat().st_size,
        "type": None,
        "sha256": digest,
    }
    kept = tmp_path / "small.imatrix.gguf"
    assert told["imatrix"] == {
        "path": str(tmp_path / "given.gguf"),
        "num_entries": 14,
        "num_missing": 2,
        "num_unseen_experts": 0,
        "kept": str(kept),
    }
    (file,) = told["files"]
    assert file["num_bytes"] == (tmp_path / "small.gguf").stat().st_size
    assert file["num_tensors"] == {"Q5_0": 15, "F32": 7, "Q8_0": 1}
    assert file["type"] == "Q5_0"
    metadata = read_model_info(tmp_path / "small.gguf").metadata
    assert metadata["ingle.quantize.source.sha256"] == digest
    assert metadata["quantize.imatrix.file"] == "given.gguf"
    assert metadata["quantize.imatrix.dataset"] == "text.txt"
    assert metadata["quantize.imatrix.entries_count"] == 14
    assert metadata["quantize.imatrix.chunks_count"] == 3
    given = read_imatrix(tmp_path / "given.gguf")
    assert read_imatrix(kept).entries.keys() == given.entries.keys()


def test_the_matrix_is_used(tmp_path: Path) -> None:
    write_importances(tmp_path / "given.gguf")
    run("q4_0", out=tmp_path / "with.gguf", imatrix=tmp_path / "given.gguf")
    run("q4_0", out=tmp_path / "without.gguf", no_imatrix=True)
    with Source(tmp_path / "tiny-F32.gguf") as source:
        recipe = choose_types(source.info, find_mix("q4_0"), has_imatrix=True)
        pipeline.quantize(source, tmp_path / "ours.gguf", recipe, pipeline.Treatment(imatrix=LAYOUT.importances()))
    with (
        Source(tmp_path / "with.gguf") as one,
        Source(tmp_path / "ours.gguf") as two,
        Source(tmp_path / "without.gguf") as three,
    ):
        name = "blk.1.attn_q.weight"
        assert np.array_equal(one.read(name), two.read(name))
        assert not np.array_equal(one.read(name), three.read(name))


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    out, _ = run("q4_0", dry_run=True, json=True)
    assert sorted(tmp_path.iterdir()) == before
    told = json.loads(out[0])
    assert told["dry_run"] is True
    assert told["model"]["sha256"] is None
    (file,) = told["files"]
    rows = {row["name"]: row for row in file["tensors"]}
    assert rows["blk.0.ffn_down.weight"] == {
        "name": "blk.0.ffn_down.weight",
        "shape": [96, 64],
        "from": "F32",
        "to": "Q4_0",
    }
    run("q4_0")
    assert 0 < (tmp_path / "tiny-Q4_0.gguf").stat().st_size - file["num_bytes"] < 20_000


def test_a_file_that_does_not_shrink_is_told(tmp_path: Path) -> None:
    run("q4_0", out=tmp_path / "small.gguf")
    out, err = io.StringIO(), io.StringIO()
    flags = QuantizeFlags(model="./small.gguf", to=("f16",), out=tmp_path / "large.gguf", allow_requantize=True)
    quantize(flags, Output(out, err))
    assert "warning: small.gguf is quantized already: what that has lost stays lost" in err.getvalue()
    assert f"warning: {tmp_path}/large.gguf is no smaller than its source: " in err.getvalue()
    with pytest.raises(BadRecipe, match="quantized already"):
        quantize(QuantizeFlags(model="./small.gguf", to=("f16",)), Output(out, err))


def test_what_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tiny-Q4_0.gguf").write_text("something else")
    with pytest.raises(UsageProblem, match=r"tiny-Q4_0\.gguf exists"):
        run("q4_0")
    assert (tmp_path / "tiny-Q4_0.gguf").read_text() == "something else"
    run("q4_0", force=True)
    assert read_model_info(tmp_path / "tiny-Q4_0.gguf").file_type == "Q4_0"
    write_importances(tmp_path / "given.gguf")
    (tmp_path / "tiny-Q5_0.imatrix.gguf").write_text("something else")
    with pytest.raises(UsageProblem, match=r"tiny-Q5_0\.imatrix\.gguf exists"):
        run("q5_0", imatrix=tmp_path / "given.gguf", keep_imatrix=True)
    assert not (tmp_path / "tiny-Q5_0.gguf").exists()
    assert (tmp_path / "tiny-Q5_0.imatrix.gguf").read_text() == "something else"


def test_several_files_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    run("q4_0", "q5_0", out=tmp_path / "folder")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["tiny-Q4_0.gguf", "tiny-Q5_0.gguf"]
    with pytest.raises(UsageProblem, match="no folder"):
        run("q4_0", "q5_0", out=tmp_path / "one.gguf")
    with pytest.raises(InputProblem, match="no such folder"):
        run("q4_0", out=tmp_path / "nowhere" / "one.gguf")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, ["--to is missing"]),
        (["--to", "q4_9"], 2, ["q4_9", "q4_0"]),
        (["--to", "q4_0", "--tensor-type", "ffn"], 2, ["'ffn' is not REGEX=TYPE"]),
        (["--to", "q4_0", "--tensor-type", "no_such=q8_0"], 2, ["no_such", "--dry-run"]),
        (["--to", "q4_0", "--imatrix", "none.dat"], 66, ["none.dat"]),
        (["--to", "q4_0", "--imatrix", "tiny-F32.gguf"], 76, ["no importance matrix"]),
        (["--to", "q4_0", "--imatrix", "x", "--no-imatrix"], 2, ["contradict"]),
        (["--to", "q4_0", "--keep-imatrix", "--no-imatrix"], 2, ["--no-imatrix"]),
        (["--to", "int4", "--dry-run"], 2, ["measuring"]),
        (["--target-size", "many"], 2, ["'many' is no size"]),
        (["--target-size", "1GB", "--target-bpw", "4"], 2, ["two targets"]),
        (["--to", "q4_0", "--for-draft", "x"], 2, ["--for-draft"]),
        (["--to", "q4_0", "--draft-vocab", "100"], 2, ["--draft-vocab", "--for-draft"]),
        (["--for-draft", "./tiny-F32.gguf", "--draft-vocab", "some"], 2, ["'some'", "auto, all"]),
        (["--for-draft", "./tiny-F32.gguf", "--draft-vocab", "9999"], 2, ["9999 would be all", "--draft-vocab all"]),
        (["--to", "q4_0", "--calib", "none.txt"], 66, ["none.txt"]),
        (["--to", "q4_0", "--calib", "."], 66, [". is a folder"]),
        (["--to", "q4_0", "--calib", "tiny-F32.gguf"], 66, ["not UTF-8"]),
        (["--target-bpw", "1"], 2, ["1 bits a weight cannot be met", "4.611", "raise the target"]),
        (["--target-bpw", "9", "--tensor-type", "no_such=q8_0"], 2, ["no_such", "--dry-run"]),
        (["--to", "q4_0", "-o", "/dev/null", "--force"], 2, ["/dev/null is no file"]),
        (["--to", "q4_0", "--eval", "none.txt"], 66, ["none.txt", "--eval"]),
        (["--to", "q4_0", "--plot", "x.pdf"], 2, [".png"]),
        (["--to", "f32", "-o", "tiny-F32.gguf", "--force"], 2, ["the model that is read"]),
    ],
)
def test_refusals(arguments: list[str], code: int, words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ingle.cli.app", "quantize", "./tiny-F32.gguf", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ},
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    for word in words:
        assert word in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-F32.gguf"]
