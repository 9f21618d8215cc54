# Calibration text: from files as users have them, and what a model writes itself, kept and taken up again.
from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingle.quant import calibrate, seeds
from ingle.quant.calibrate import Calibration, from_text, self_written
from ingle.quant.errors import BadText
from tests.tiny_models import BOS, write_llama

SHA256 = "1" * 64


def from_file(path: Path, model: Path, max_tokens: int | None = None) -> Calibration:
    return from_text(path.read_text(), path, model, max_tokens=max_tokens)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(seeds, "TEXTS", ("the cat", "a dog sat", "red fox"))
    monkeypatch.setattr(calibrate, "CONTINUATION_TOKENS", 12)
    return write_llama(tmp_path / "model.gguf")


def test_a_text_is_tokenized_as_it_stands(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat " * 20)
    found = from_file(text, model)
    assert found.tokens[0] == BOS
    assert len(found.tokens) > 100
    assert from_file(text, model, max_tokens=7).tokens.tolist() == found.tokens[:7].tolist()
    assert (found.num_left, from_file(text, model, max_tokens=7).num_left) == (0, len(found.tokens) - 7)
    assert from_file(text, model).digest == found.digest != from_file(text, model, max_tokens=7).digest


def test_conversations_go_through_the_template(model: Path, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "a dog"}]
    chats, text = tmp_path / "chats.jsonl", tmp_path / "text.txt"
    chats.write_text(json.dumps({"messages": turns}) + "\n\n" + json.dumps(turns) + "\n")
    text.write_text("User: the cat\nAssistant: a dog\n")  # this model has no template: the plain one
    once = from_file(text, model).tokens.tolist()
    assert from_file(chats, model).tokens.tolist() == once + once


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("7", "line 2: no conversation"),
        ('{"messages": []}', "line 2: no conversation"),
        ('[{"role": "user"}]', "line 2: a message needs a role and a content"),
        ('["hello"]', "line 2: a message needs a role and a content"),
    ],
)
def test_a_line_that_is_no_conversation_is_named(model: Path, tmp_path: Path, line: str, words: str) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('[{"role": "user", "content": "hello"}]\n' + line)
    with pytest.raises(BadText, match=words):
        from_file(chats, model)


def test_what_is_no_text_is_refused(model: Path, tmp_path: Path) -> None:
    for name, data, words in (
        ("b.txt", b" \n", "no text"),
        ("c.jsonl", b"", "no text"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadText, match=words):
            from_file(tmp_path / name, model)


def test_a_model_writes_the_same_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = self_written(model, SHA256, num_tokens=80)
    assert len(first.tokens) == 80
    assert first.tokens[0] == BOS
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert self_written(model, SHA256, num_tokens=80).tokens.tolist() == first.tokens.tolist()


def test_what_was_written_is_kept_and_gone_on_with(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = self_written(model, SHA256, num_tokens=130).tokens.tolist()
    rounds = sorted((calibrate.cache_dir() / "calibration").glob("*/round-*.json"))
    assert len(rounds) >= 3
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in rounds)
    written: list[int] = []
    write = calibrate._write_round

    def spy(*arguments: object) -> list[int]:
        written.append(arguments[2])  # type: ignore[arg-type]
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrate, "_write_round", spy)
    assert self_written(model, SHA256, num_tokens=130).tokens.tolist() == whole
    assert written == []
    rounds[1].write_bytes(rounds[1].read_bytes()[:-3])  # torn
    rounds[2].unlink()  # killed before it was written
    assert self_written(model, SHA256, num_tokens=130).tokens.tolist() == whole
    assert written == [1, 2]
    rounds[0].write_text(json.dumps({"format": 1, "tokens": [10**6] * 50}))  # of no model
    assert self_written(model, SHA256, num_tokens=130).tokens.tolist() == whole
    assert written == [1, 2, 0]


def test_another_model_does_not_take_what_this_one_wrote(model: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other.gguf", seed=1)
    assert self_written(model, SHA256, num_tokens=40).digest != self_written(other, "2" * 64, num_tokens=40).digest


def test_seeds_are_of_many_kinds() -> None:
    assert 55 <= len(seeds.TEXTS) <= 70 or len(seeds.TEXTS) == 3
    assert len(set(seeds.TEXTS)) == len(seeds.TEXTS)
