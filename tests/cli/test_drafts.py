# `--draft auto`: which model is taken along, and what is said where none is.
from __future__ import annotations

import io
from pathlib import Path

import pytest

from ingle.cli.drafts import DraftChoice, with_drafts
from ingle.cli.output import Output
from ingle.models import draft_sibling, plan
from ingle.models.gguf_info import read_model_info
from ingle.models.resolve import resolve
from ingle.runtime import planning
from ingle.runtime.config import DraftConfig, EngineConfig
from tests.tiny_models import write_llama


def auto(folder: Path, sibling: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DraftConfig | None, str]:
    """What `--draft auto` comes to, and what it says."""
    target = write_llama(folder / "target.gguf")
    monkeypatch.setattr(draft_sibling, "find_draft", lambda _target: sibling)
    err = io.StringIO()
    ref = resolve(str(target), offline=True)
    output = Output(io.StringIO(), err)
    config = with_drafts(EngineConfig(), DraftChoice("auto", 2), ref, read_model_info(target), output, offline=True)
    return config.draft, err.getvalue()


def test_the_sibling_is_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sibling = write_llama(tmp_path / "draft.gguf", seed=5)
    assert auto(tmp_path, sibling, monkeypatch) == (DraftConfig(model=sibling, num_tokens=2, is_required=False), "")


def test_it_is_left_where_there_is_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: plan.Free(1_000_000))
    draft, said = auto(tmp_path, write_llama(tmp_path / "draft.gguf", seed=5), monkeypatch)
    assert draft == DraftConfig(num_tokens=2, is_required=False)
    assert said.startswith(
        "note: no draft model: draft.gguf: the draft model takes 0.0 GB of memory, and 0.0 GB are free"
    )


def test_it_is_left_where_its_tokens_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, said = auto(tmp_path, write_llama(tmp_path / "draft.gguf", byte_tokens=False), monkeypatch)
    assert draft is not None
    assert draft.model is None
    assert said.startswith("note: no draft model: draft.gguf has another vocabulary (token 3 is")
