# `--draft` on a real model: the same text, what is said about it, and what is refused.
from __future__ import annotations

import json

from tests import tiny_models
from tests.e2e.conftest import Shell

LIST = "apple pear plum apple pear plum apple pear plum apple pear plum apple pear"


def test_the_text_is_the_same_with_drafts_and_they_are_counted(shell: Shell) -> None:
    command = f'ingle run --raw "{LIST}" -n 24 --temp 0 --json'
    plain = json.loads(shell(command).text)
    result = shell(f"{command} --draft ngram --draft-tokens 4 --stats")
    drafted = json.loads(result.text)
    assert drafted["text"] == plain["text"]
    assert plain["drafts"] == {"draft_tokens": 0, "accepted_tokens": 0}
    assert 0 < drafted["drafts"]["accepted_tokens"] <= drafted["drafts"]["draft_tokens"]
    assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    (line,) = [
        line for line in result.err_lines if line.startswith(f"drafts {drafted['drafts']['draft_tokens']} tokens, ")
    ]
    assert "right" in line


def test_a_model_drafts_for_itself_and_auto_goes_without_one(shell: Shell) -> None:
    command = f'ingle run --raw "{LIST}" -n 12 --temp 0.8 --seed 5 --json'
    plain = json.loads(shell(command).text)
    drafted = json.loads(shell(f'{command} --draft "$MODEL" --draft-tokens 3').text)
    assert drafted["text"] == plain["text"]
    assert drafted["drafts"]["accepted_tokens"] == drafted["drafts"]["draft_tokens"] > 0
    auto = shell(f"{command} -v", INGLE_DRAFT="auto")
    assert json.loads(auto.text)["text"] == plain["text"]
    assert "drafts     from the text, as many as pay" in auto.err_lines


def test_another_vocabulary_is_refused_with_both_facts(shell: Shell) -> None:
    tiny_models.write_llama(shell.folder / "tiny.gguf")
    result = shell("ingle run hi --draft tiny.gguf")
    assert (result.code, result.out) == (2, b"")
    first, hint = result.err_lines
    assert first.startswith("error: tiny.gguf cannot draft for ")
    assert first.endswith("its tokenizer is llama, not gpt2")
    assert hint.startswith("hint: ")
    assert "--draft ngram" in hint
