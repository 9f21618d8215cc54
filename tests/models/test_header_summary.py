# Headers in short, what is remembered of them, and when a model was last used.
from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ingle.models import header_summary, last_used
from ingle.models.gguf_info import read_model_info
from ingle.models.header_summary import Summaries, summarise
from tests import tiny_models
from tests.models.hub_cache import MODEL, OTHER, put


def test_a_summary_says_what_the_whole_header_says(tmp_path: Path) -> None:
    for writer in (tiny_models.write_llama, tiny_models.write_gemma3, tiny_models.write_lfm2, tiny_models.write_bert):
        path = writer(tmp_path / "m.gguf")
        short, whole = summarise(path), read_model_info(path, require_generative=False)
        for field in ("architecture", "name", "size_label", "licence", "file_type", "num_params", "n_ctx_train"):
            assert getattr(short, field) == getattr(whole, field), field
        assert (short.not_generative, short.problem) == (whole.not_generative, None)


@pytest.mark.parametrize(("content", "words"), [(b"", "empty"), (b"PK", "not a GGUF"), (MODEL[:-9], "truncated")])
def test_a_bad_file_has_a_problem(tmp_path: Path, content: bytes, words: str) -> None:
    problem = summarise(put(tmp_path / "bad.gguf", content)).problem
    assert problem is not None
    assert words in problem
    assert str(tmp_path) not in problem


def test_summaries_are_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = put(tmp_path / "m.gguf"), tmp_path / "private" / "headers.json"
    first = Summaries(cache)
    was = first.of(path)
    first.save()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(header_summary, "summarise", lambda _path: pytest.fail("read again"))
        again = Summaries(cache)
        assert again.of(path) == was
        again.save()
    put(path, OTHER)
    assert Summaries(cache).of(path).name == "Other"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 1, "files": {"x": [1]}}', b"\xff" * 9])
def test_a_damaged_memory_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    path, cache = put(tmp_path / "m.gguf"), put(tmp_path / "headers.json", damage)
    summaries = Summaries(cache)
    assert summaries.of(path).name == "Tiny"
    summaries.save()
    row = json.loads(cache.read_text())["files"][f"{path}\n{path.name}"]
    row[2]["num_params"] = "many"
    cache.write_text(json.dumps({"version": 1, "files": {f"{path}\n{path.name}": row}}))
    assert Summaries(cache).of(path).num_params == read_model_info(path).num_params


def test_last_used(tmp_path: Path) -> None:
    folder, path = tmp_path / "state" / "used", put(tmp_path / "m.gguf")
    assert last_used.when(folder, path) is None
    last_used.mark(folder, path)
    (mark,) = folder.iterdir()
    assert (mark.stat().st_size, stat.S_IMODE(mark.stat().st_mode)) == (0, 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    os.utime(mark, (1000, 1000))
    (tmp_path / "link.gguf").symlink_to(path)
    assert last_used.when(folder, tmp_path / "link.gguf") == 1000, "by whatever name"
    last_used.mark(folder, tmp_path / "link.gguf")
    assert last_used.when(folder, path) > 1000  # type: ignore[operator]
    last_used.forget(folder, path)
    assert last_used.when(folder, path) is None
    last_used.mark(put(tmp_path / "in-the-way"), path)  # a disk that refuses is no reason to fail
