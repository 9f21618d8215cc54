# `ingle quantize` from text to verdict on a tiny model: what is measured is kept, what harms is left, targets are met.
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingle.cli import quantize_speed
from ingle.cli.output import Output
from ingle.cli.quantize import QuantizeFlags, quantize
from ingle.models.gguf_info import read_model_info
from ingle.quant import evaluate, workshop
from ingle.quant.draft import expected_gain
from ingle.quant.errors import BadRecipe
from ingle.quant.evaluate import evaluate_together
from ingle.quant.imatrix_file import read_imatrix
from tests.quant.architectures import write_model
from tests.tiny_models import WORDS, write_lfm2

WORD_TEXT = [word.strip("▁") for word in WORDS if word.startswith("▁") and len(word) > 2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("source") / "tiny-F32.gguf", "qwen2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(quantize_speed, "PROMPT_TOKENS", 32)
    monkeypatch.setattr(quantize_speed, "GENERATED_TOKENS", 4)
    words = np.random.default_rng(5).choice(WORD_TEXT, 1500)
    (tmp_path / "text.txt").write_text(" ".join(words))
    return tmp_path


def run(source: Path, **flags: Any) -> tuple[dict[str, Any], str]:
    out, err = io.StringIO(), io.StringIO()
    flags = {"json": True, "calib": Path("text.txt")} | flags
    assert quantize(QuantizeFlags(model=str(source), **flags), Output(out, err)) == 0
    return json.loads(out.getvalue()), err.getvalue()


def test_a_verdict_that_evaluate_agrees_with(source: Path, folder: Path) -> None:
    told, _ = run(source, to=("q4_0", "int8"), plot=Path("drawn.svg"), keep_imatrix=True)
    coarse, fine = told["files"]
    assert {"awq", "gptq", "imatrix"} >= set(coarse["methods"]) >= {"imatrix"}
    assert coarse["held_out_kl"].keys() >= {"plain", "awq+gptq"}
    assert fine["methods"] == []  # 8 bits take no importances
    assert 0 < fine["mean_kl"] < coarse["mean_kl"]
    # Without --eval the text is the held-out part, on which the candidates were judged too.
    assert coarse["mean_kl"] == pytest.approx(min(coarse["held_out_kl"].values()), rel=1e-6)
    assert told["verdict"]["text"] == "held-out calibration text"
    assert told["verdict"]["recommended"] in ("Q4_0", "Q8_0")
    for figures in (coarse, fine, told["verdict"]["source"]):
        assert figures["prompt_tokens_per_s"] > 0
        assert figures["generated_tokens_per_s"] > 0
    metadata = read_model_info(folder / "tiny-Q4_0.gguf").metadata
    assert metadata["ingle.quantize.calibration.sha256"] == told["calibration"]["sha256"]
    assert metadata["quantize.imatrix.dataset"] == "text.txt"
    kept = read_imatrix(folder / "tiny-Q4_0.imatrix.gguf")
    assert len(kept.entries) == told["imatrix"]["num_entries"] == metadata["quantize.imatrix.entries_count"] == 14
    assert (folder / "drawn.svg").read_text().lstrip().startswith("<?xml")
    assert sorted(path.name for path in folder.glob("*.gguf")) == [
        "tiny-Q4_0.gguf",
        "tiny-Q4_0.imatrix.gguf",
        "tiny-Q8_0.gguf",
    ]
    assert not list(folder.glob(".*"))


def test_a_second_run_begins_where_the_first_ended(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = run(source, to=("q4_0",), gptq=False)
    wanted = (folder / "tiny-Q4_0.gguf").read_bytes()

    def refuse(*_args: object, **_flags: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(workshop, "capture", refuse)
    monkeypatch.setattr(workshop.improve, "find_scales", refuse)
    second, _ = run(source, to=("q4_0",), gptq=False, force=True)
    assert (folder / "tiny-Q4_0.gguf").read_bytes() == wanted
    assert second["files"][0]["held_out_kl"] == first["files"][0]["held_out_kl"]
    for path in (folder / "cache" / "ingle" / "quantize").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_signal_that_got_lost_ends_the_next_step_and_leaves_nothing(source: Path, folder: Path) -> None:
    def stop_judging(output: io.StringIO) -> None:
        if "comparing" in output.getvalue():  # candidates are written by then
            raise KeyboardInterrupt

    err = io.StringIO()
    flags = QuantizeFlags(model=str(source), to=("q4_0",), calib=Path("text.txt"), gptq=False)
    with pytest.raises(KeyboardInterrupt):
        quantize(flags, Output(io.StringIO(), err), lambda: stop_judging(err))
    assert sorted(path.name for path in folder.iterdir()) == ["cache", "text.txt"]
    assert not list((folder / "cache").rglob("*.tmp"))


def test_what_harms_is_left(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales whose counterparts are not folded make another model of it; nobody has to notice but the judge."""
    real = workshop.improve.find_scales

    def broken(*args: Any, **flags: Any) -> Any:
        found = real(*args, **flags)
        columns = {name: scale for name, scale in found.tensors.items() if scale.columns is not None}
        return workshop.improve.Scaling(columns, found.choices)

    monkeypatch.setattr(workshop.improve, "find_scales", broken)
    told, _ = run(source, to=("q4_0",))
    (file,) = told["files"]
    kl = file["held_out_kl"]
    assert kl.keys() == {"plain", "awq+gptq", "awq", "gptq"}
    assert min(kl["awq"], kl["awq+gptq"]) > kl["plain"]
    assert "awq" not in file["methods"]
    assert ("gptq" in file["methods"]) == (kl["gptq"] < kl["plain"])
    assert file["mean_kl"] == pytest.approx(min(kl["plain"], kl["gptq"]), rel=1e-6)


def test_without_this_and_that(source: Path, folder: Path) -> None:
    told, _ = run(source, to=("q4_0",), awq=False, gptq=False)
    assert told["files"][0]["methods"] == ["imatrix"]
    with_matrix = (folder / "tiny-Q4_0.gguf").read_bytes()
    told, _ = run(source, to=("q4_0",), no_imatrix=True, gptq=True, out=Path("without.gguf"))
    assert told["imatrix"] is None
    assert "imatrix" not in told["files"][0]["methods"]
    told, _ = run(source, to=("q4_0",), no_imatrix=True, awq=False, gptq=False, calib=None, out=Path("bare.gguf"))
    assert told["calibration"] is None
    assert told["verdict"]["text"] is None
    assert (folder / "bare.gguf").read_bytes() != with_matrix


def test_an_architecture_without_a_row_says_so(folder: Path) -> None:
    model = write_lfm2(folder / "lfm2-F32.gguf")
    told, err = run(model, to=("q4_0",))
    assert "lfm2 models cannot be scaled: the importance matrix does what it can" in err
    assert "awq" not in told["files"][0]["methods"]


def test_targets_are_kept_and_spent(source: Path, folder: Path) -> None:
    size = round(0.3 * source.stat().st_size)
    _, err = run(source, target_size=str(size), out=Path("small.gguf"), tensor_types=("attn_v=q8_0",))
    assert "measuring what each tensor needs" in err
    assert 0.93 * size < (folder / "small.gguf").stat().st_size <= size
    types = {tensor.name: tensor.type for tensor in read_model_info(folder / "small.gguf").tensors}
    assert types["blk.0.attn_v.weight"] == "Q8_0"
    told, err = run(source, target_bpw=9.0, out=Path("bits.gguf"))
    assert "measuring what each tensor needs" not in err  # the same for every target, overrides or not
    assert 8.8 < told["files"][0]["bits_per_weight"] <= 9.0
    with pytest.raises(BadRecipe, match="cannot be met"):
        run(source, target_size="1kB", out=Path("none.gguf"))


def test_int4_is_chosen_by_measuring(source: Path, folder: Path) -> None:
    told, err = run(source, to=("int4",), awq=False, gptq=False)
    (file,) = told["files"]
    assert file["type"] in ("Q4_0", "IQ4_NL", "Q4_K_S", "Q4_K_M")
    assert f"int4: {file['type']} is " in err
    assert [path.name for path in folder.glob("*.gguf")] == ["tiny-int4.gguf"]


def test_a_draft_is_judged_by_its_target(source: Path, folder: Path) -> None:
    told, err = run(source, for_draft=str(source), no_imatrix=True, awq=False, gptq=False)
    assert err.count("the target says what it would guess") == 1  # however many candidates there are
    assert told["source_same_top"] == 1.0
    whole = [one for one in told["candidates"] if not one["type"].endswith(" short")]
    assert [one["num_bytes"] for one in whole] == sorted({one["num_bytes"] for one in whole})
    assert not any(one["same_top"] >= 0.98 for one in whole[:-1])  # it stops at the first that is good
    for one in told["candidates"]:
        assert one["expected_gain"] == expected_gain(one["same_top"], one["cost"])
    best = max(told["candidates"], key=lambda one: one["expected_gain"])
    assert (told["type"], told["num_bytes"]) == (best["type"], best["num_bytes"])
    assert (folder / "tiny-draft.gguf").stat().st_size == told["num_bytes"]


@pytest.mark.parametrize("num_together", [1, 2])
def test_models_are_compared_together_as_one_by_one(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, num_together: int
) -> None:
    run(source, to=("q4_0", "q5_0"), awq=False, gptq=False)
    chunks = [np.arange(3, 67, dtype=np.int32), np.arange(80, 144, dtype=np.int32)]
    paths = [folder / "tiny-Q4_0.gguf", folder / "tiny-Q5_0.gguf"]
    monkeypatch.setattr(evaluate, "TOGETHER_BYTES", sum(path.stat().st_size for path in paths[:num_together]))
    told: list[tuple[int, int]] = []
    together = evaluate_together(paths, chunks, against=source, progress=lambda *now: told.append(now))
    assert together == [evaluate_together([path], chunks, against=source)[0] for path in paths]
    total = (3 - num_together) * len(chunks)
    assert told == sorted(told)
    assert (told[0], told[-1]) == ((0, total), (total, total))
