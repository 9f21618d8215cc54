# Headers of draft files with a short vocabulary: what passes, what is refused and how, and that no number gets through.
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingle.models import short_vocabulary
from ingle.models.errors import BadModelFile, UnsupportedModel
from ingle.models.gguf_info import read_model_info
from ingle.models.header_summary import summarise
from ingle.models.remote_header import RemoteFile, read_remote_model_info
from tests.models.gguf_bytes import File, Tensor, tiny_model

DIGEST = "0123456789abcdef" * 4
IDS, ROWS = [0, 1, 2, 5], [0, 1, 2, 2, 1, 3, 0, 0]


def draft_file(**changes: tuple[str, Any] | None) -> File:
    """Four of the eight tokens."""
    kinds: dict[str, tuple[str, Any] | None] = {
        "ingle__draft__token_ids": ("[u32]", IDS),
        "ingle__draft__reads_as": ("[u32]", ROWS),
        "ingle__draft__vocabulary": ("str", DIGEST),
        "llama__vocab_size": ("u32", 4),
        "tokenizer__ggml__model": ("str", "none"),
    }
    for name in ("tokens", "scores", "token_type", "bos_token_id", "eos_token_id"):
        kinds[f"tokenizer__ggml__{name}"] = None
    file = tiny_model(**{name: change for name, change in (kinds | changes).items() if change is not None})
    for name in kinds | changes:
        if (kinds | changes)[name] is None:
            file.kv.pop(name.replace("__", "."), None)
    for tensor in file.tensors:
        if tensor.name in ("token_embd.weight", "output.weight"):
            tensor.shape[1] = 4
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "draft.gguf"


def test_what_it_says(path: Path) -> None:
    path.write_bytes(draft_file().to_bytes())
    info = read_model_info(path, to_draft=True)
    assert info.short_vocabulary == short_vocabulary.ShortVocabulary(4, 8, DIGEST)
    assert (info.vocab_size, info.tokenizer_model, info.bos_token) == (4, "none", None)
    assert short_vocabulary.token_ids(info) == IDS
    assert short_vocabulary.reads_as(info) == ROWS


def test_it_is_no_model_and_is_described_as_what_it_is(path: Path) -> None:
    path.write_bytes(draft_file().to_bytes())
    with pytest.raises(UnsupportedModel) as caught:
        read_model_info(path)
    assert caught.value.message == f"{path} is a draft file: it has no tokenizer; use it with --draft"
    assert caught.value.hint == "Name the model that it drafts for with -m."
    shown = "a draft file: it has no tokenizer; use it with --draft"
    assert read_model_info(path, require_generative=False).not_generative == shown
    assert summarise(path).not_generative == shown


def test_one_that_lies_elsewhere(path: Path) -> None:
    data = draft_file().to_bytes()
    remote = RemoteFile("draft.gguf", len(data), lambda start, length: data[start : start + length])
    info = read_remote_model_info([remote], to_draft=True)
    assert info.short_vocabulary == short_vocabulary.ShortVocabulary(4, 8, DIGEST)
    with pytest.raises(UnsupportedModel, match="a draft file"):
        read_remote_model_info([remote])


def test_other_files_have_none(path: Path) -> None:
    path.write_bytes(tiny_model().to_bytes())
    assert read_model_info(path, to_draft=True).short_vocabulary is None
    path.write_bytes(tiny_model(tokenizer__ggml__model=("str", "none")).to_bytes())
    with pytest.raises(UnsupportedModel, match="it has no tokenizer"):
        read_model_info(path, to_draft=True)
    path.write_bytes(draft_file(general__architecture=("str", "bert")).to_bytes())
    with pytest.raises(UnsupportedModel, match="an embedding model"):
        read_model_info(path, to_draft=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ingle__draft__token_ids": ("[u32]", [0, 2, 1, 5])}, "token_ids does not ascend"),
        ({"ingle__draft__token_ids": ("[u32]", [0, 1, 1, 5])}, "token_ids does not ascend"),
        ({"ingle__draft__token_ids": ("[u32]", [0, 1, 2, 8])}, "names token 8 in a vocabulary of 8"),
        ({"ingle__draft__token_ids": ("[u32]", [])}, "has 0 entries"),
        ({"ingle__draft__token_ids": ("[u32]", [0, 1, 2])}, r"vocab_size is 4, and .* has 3 entries"),
        ({"ingle__draft__token_ids": ("[i32]", IDS)}, "is an array of i32, not of u32"),
        ({"ingle__draft__reads_as": None}, "reads_as is missing"),
        ({"ingle__draft__reads_as": ("[u32]", [0, 1])}, "has 4 entries for a vocabulary of 2 tokens"),
        ({"ingle__draft__reads_as": ("[u32]", [*ROWS[:-1], 4])}, "names row 4 of 4"),
        ({"ingle__draft__reads_as": ("[u32]", [0, 1, 3, 2, 1, 3, 0, 0])}, "has row 3 for token 2, which is row 2"),
        ({"ingle__draft__vocabulary": None}, "vocabulary is missing"),
        ({"ingle__draft__vocabulary": ("str", "x")}, "vocabulary is no digest"),
        ({"llama__vocab_size": None}, "vocab_size is missing"),
        ({"llama__vocab_size": ("u32", 8)}, "vocab_size is 8"),
        ({"tokenizer__ggml__model": ("str", "llama")}, r"a draft file that has a tokenizer \(llama\)"),
        ({"tokenizer__ggml__tokens": ("[str]", ["a"])}, "a draft file that has a tokenizer"),
        ({"llama__block_count": ("u32", 0)}, "block_count is 0"),
    ],
)
def test_what_is_wrong_is_said(path: Path, changes: dict[str, Any], words: str) -> None:
    path.write_bytes(draft_file(**changes).to_bytes())
    for flags in ({"to_draft": True}, {"require_generative": False}):
        with pytest.raises(BadModelFile, match=words) as caught:
            read_model_info(path, **flags)
        assert str(path) in caught.value.message


def test_weights_have_a_row_for_each_token_that_is_known(path: Path) -> None:
    file = draft_file()
    file.tensors[0] = Tensor("token_embd.weight", [32, 8], 3)
    path.write_bytes(file.to_bytes())
    with pytest.raises(BadModelFile, match=r"'token_embd.weight' has shape 32×8 for 4 tokens"):
        read_model_info(path, to_draft=True)


numbers = st.lists(st.integers(0, 9), max_size=10)


@given(ids=numbers, rows=numbers)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_passes_is_within_bounds(path: Path, ids: list[int], rows: list[int]) -> None:
    file = draft_file(
        ingle__draft__token_ids=("[u32]", ids),
        ingle__draft__reads_as=("[u32]", rows),
        llama__vocab_size=("u32", len(ids)),
    )
    for tensor in file.tensors:
        if tensor.name in ("token_embd.weight", "output.weight"):
            tensor.shape[1] = max(len(ids), 1)
    path.write_bytes(file.to_bytes())
    is_good = (
        bool(ids)
        and ids == sorted(set(ids))
        and all(token < len(rows) for token in ids)
        and all(row < len(ids) for row in rows)
        and all(rows[token] == row for row, token in enumerate(ids))
    )
    try:
        read_model_info(path, to_draft=True)
    except BadModelFile:
        assert not is_good
    else:
        assert is_good
