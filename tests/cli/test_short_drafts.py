# Draft files with a short vocabulary at the command line: made, used, shown, and refused where they are no model.
from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingle.cli import errors, listing, quantize_draft, show
from ingle.cli.drafts import DraftChoice, with_drafts
from ingle.cli.eval import EvalFlags, evaluate_command
from ingle.cli.options import ModelFlags
from ingle.cli.output import Output
from ingle.cli.plan import PlanFlags, plan
from ingle.cli.quantize import QuantizeFlags, quantize
from ingle.models import short_vocabulary
from ingle.models.gguf_info import read_model_info
from ingle.models.resolve import resolve
from ingle.quant import activations, calibrate
from ingle.quant.short_rows import NUM_TOKENS
from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.request import Request, SamplingParams
from tests.cli.shelf_of import Machine
from tests.cli.shelf_of import machine as make_machine
from tests.quant.architectures import write_model
from tests.short_draft import write_draft
from tests.tiny_models import NUM_VOCAB, write_llama


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    machine = make_machine(tmp_path, monkeypatch)
    monkeypatch.setattr(quantize_draft, "NUM_TOKENS", 1024)
    monkeypatch.setattr(calibrate, "CONTINUATION_TOKENS", 16)
    return machine


@pytest.fixture
def target(machine: Machine) -> Path:
    return write_model(machine.mine / "target-F32.gguf", "qwen2")


@pytest.fixture
def short(target: Path) -> Path:
    path = target.with_name("short.gguf")
    write_draft(target, path, num_tokens=300)
    return path


def make(target: Path, **flags: Any) -> tuple[dict[str, Any], str]:
    out, err = io.StringIO(), io.StringIO()
    flags = {"json": True, "for_draft": str(target), "awq": False, "gptq": False, "out": target.parent} | flags
    assert quantize(QuantizeFlags(model=str(target), **flags), Output(out, err)) == 0
    return json.loads(out.getvalue()), err.getvalue()


@pytest.fixture
def timed_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte takes a while, and the target is a hundred times as large as it is."""

    def seconds(paths: dict[str, Path], *_args: Any, **_flags: Any) -> dict[str, float]:
        return {name: path.stat().st_size * (100 if "F32" in path.name else 1) for name, path in paths.items()}

    monkeypatch.setattr(quantize_draft, "seconds_a_token", seconds)


def test_one_is_made_judged_and_used(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the target gains by each is told, and the best is what is written."""
    captured: list[int] = []
    real = activations.capture

    def spy(path: Path, chunks: Any, *args: Any, **flags: Any) -> Any:
        captured.extend(token for chunk in chunks for token in chunk.tolist())
        return real(path, chunks, *args, **flags)

    monkeypatch.setattr("ingle.quant.workshop.capture", spy)
    told, err = make(target, draft_vocab=NUM_VOCAB - 2)
    short = told["candidates"][-1]
    before = told["candidates"][:-1]
    assert short["type"] == f"{max(before, key=lambda one: one['same_top'])['type']} short"
    assert all(one["cost"] > 0 for one in told["candidates"])
    best = max(told["candidates"], key=lambda one: one["expected_gain"])
    assert (told["type"], told["num_bytes"]) == (best["type"], best["num_bytes"])
    path = target.with_name("target-draft.gguf")
    assert (told["path"], told["num_bytes"]) == (str(path), path.stat().st_size)
    assert "the target writes the text that drafts have to guess" in err
    assert "the model writes the text it is calibrated on" not in err
    (folder,) = (target.parent.parent / "xdg" / "cache" / "ingle" / "calibration").iterdir()
    rounds = [json.loads(path.read_text())["tokens"] for path in sorted(folder.iterdir())]
    text = [token for one in rounds for token in one][:1024]
    split = calibrate.split(calibrate.Calibration(_array(text), "written"), read_model_info(target))
    assert captured == [token for chunk in split.chunks for token in chunk.tolist()]
    assert sorted(entry.name for entry in target.parent.iterdir()) == ["target-F32.gguf", "target-draft.gguf"]


def _array(tokens: list[int]) -> Any:
    import numpy as np

    return np.array(tokens, np.int32)


@pytest.mark.usefixtures("timed_by_size")
def test_a_short_one_is_taken_where_it_agrees_and_drafts(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.cli.quantize_draft.agreement", _always_agrees)
    told, _ = make(target, draft_vocab=290, no_imatrix=True)
    assert told["type"].endswith(" short")
    assert [one["type"] for one in told["candidates"]] == ["Q4_0", "Q4_0 short"], "a larger one could not gain more"
    path = target.with_name("target-draft.gguf")
    info = read_model_info(path, to_draft=True)
    assert info.short_vocabulary is not None
    assert (info.short_vocabulary.num_rows, info.short_vocabulary.num_tokens) == (info.vocab_size, NUM_VOCAB)
    assert info.vocab_size >= 290
    assert len(short_vocabulary.reads_as(info)) == NUM_VOCAB
    config = EngineConfig(n_ctx=256, num_threads=1, gpu_layers=0, draft=DraftConfig(model=path, num_tokens=3))
    with Engine.open(target, config) as engine:
        request = Request([1, 270, 280], SamplingParams(temperature=0, ignore_eos=True), max_output_tokens=12)
        tokens = [token for output in engine.stream(engine.add(request)) for token in output.new_tokens]
    assert len(tokens) == 12


@pytest.mark.usefixtures("timed_by_size")
def test_a_short_one_is_left_where_it_agrees_too_seldom(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.cli.quantize_draft.agreement", _agrees_less_when_short)
    told, _ = make(target, draft_vocab=290, no_imatrix=True)
    assert told["candidates"][-1]["type"].endswith(" short")
    assert told["candidates"][-1]["same_top"] == 0.5 * told["source_same_top"]
    assert not told["type"].endswith(" short")
    assert read_model_info(target.with_name("target-draft.gguf")).short_vocabulary is None


def _always_agrees(name: str, path: Path, *_args: Any, **_flags: Any) -> Any:
    from ingle.quant.draft import Agreement

    return Agreement(name, path.stat().st_size, 0.9)


def _agrees_less_when_short(name: str, path: Path, *_args: Any, **_flags: Any) -> Any:
    from ingle.quant.draft import Agreement

    return Agreement(name, path.stat().st_size, 0.5 if name.endswith(" short") else 1.0)


@pytest.mark.parametrize(
    ("wanted", "vocab_size", "num_tokens"),
    [
        (None, 2 * NUM_TOKENS, NUM_TOKENS),
        ("auto", 2 * NUM_TOKENS, NUM_TOKENS),
        ("all", 2 * NUM_TOKENS, None),
        (None, 2 * NUM_TOKENS - 1, None),
        ("auto", NUM_VOCAB, None),
        (300, NUM_VOCAB, 300),
    ],
)
def test_how_many_tokens_are_tried(target: Path, wanted: object, vocab_size: int, num_tokens: int | None) -> None:
    info = replace(read_model_info(target), vocab_size=vocab_size)
    assert quantize_draft._num_tokens(wanted, info) == num_tokens


def test_small_vocabularies_stay_whole(target: Path) -> None:
    told, _ = make(target, no_imatrix=True)
    assert [one["type"] for one in told["candidates"]] == ["Q4_0", "Q4_K_M", "Q8_0"]  # the others are one of these


def test_the_list_and_show_say_what_it_is(machine: Machine, short: Path) -> None:
    _, out, _ = machine.run(listing.listing, as_json=False)
    (line,) = [line for line in out.splitlines() if "short.gguf" in line]
    assert "qwen2 (draft)" in line
    flags = {"only_template": False, "as_json": False}
    _, out, _ = machine.run(show.show, str(short), **flags)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "note it is a draft file: it has no tokenizer; use it with --draft" in lines
    assert f"tokenizer none: it knows 300 of the {NUM_VOCAB} tokens of its target" in lines
    _, out, _ = machine.run(show.show, str(short), **(flags | {"as_json": True}))
    tokenizer = json.loads(out)["tokenizer"]
    assert (tokenizer["vocab_size"], tokenizer["full_vocab_size"]) == (300, NUM_VOCAB)


def test_it_is_no_model(machine: Machine, short: Path) -> None:
    (machine.root / "text.txt").write_text("the cat")
    text = machine.root / "text.txt"
    output = Output(io.StringIO(), io.StringIO())
    for job in (
        lambda: Engine.open(resolve(str(short), offline=True)),
        lambda: quantize(QuantizeFlags(model=str(short), to=("q4_0",)), output),
        lambda: evaluate_command(eval_flags(short, text), output, lambda: None),
        lambda: plan(plan_flags(short, None), output),
    ):
        with pytest.raises(Exception, match="is a draft file") as caught:
            job()
        report = errors.describe(caught.value)
        assert report.message == f"{short} is a draft file: it has no tokenizer; use it with --draft"
        assert report.exit_code == errors.BAD_FILE


def eval_flags(model: Path, text: Path) -> EvalFlags:
    return EvalFlags(
        model=str(model), text=text, against=None, chunks=None, json=True, quiet=None, opening=ModelFlags()
    )


def plan_flags(model: Path, draft: Path | None) -> PlanFlags:
    name = None if draft is None else str(draft)
    return PlanFlags(draft=name, parallel=1, json=True, quiet=None, model=ModelFlags(model=str(model)))


def test_it_is_planned_for_and_taken_along(target: Path, short: Path) -> None:
    out = io.StringIO()
    assert plan(plan_flags(target, short), Output(out, io.StringIO())) == 0
    assert json.loads(out.getvalue())["draft"] is not None
    ref, info = resolve(str(target), offline=True), read_model_info(target)
    output = Output(io.StringIO(), io.StringIO())
    config = with_drafts(EngineConfig(), DraftChoice(str(short)), ref, info, output, offline=True)
    assert config.draft is not None
    assert config.draft.model == short
    other = write_llama(target.with_name("other.gguf"), byte_tokens=False)
    with pytest.raises(Exception, match="it belongs to a vocabulary of") as caught:
        with_drafts(
            EngineConfig(),
            DraftChoice(str(short)),
            resolve(str(other), offline=True),
            read_model_info(other),
            output,
            offline=True,
        )
    assert errors.describe(caught.value).exit_code == errors.USAGE


def test_auto_takes_a_short_sibling(target: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.models.draft_sibling.find_draft", lambda _target: short)
    ref, info = resolve(str(target), offline=True), read_model_info(target)
    err = io.StringIO()
    config = with_drafts(EngineConfig(), DraftChoice("auto"), ref, info, Output(io.StringIO(), err), offline=True)
    assert config.draft is not None
    assert (config.draft.model, err.getvalue()) == (short, "")
