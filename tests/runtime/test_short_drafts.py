# Draft files with a short vocabulary in the whole engine: the same text, and guesses where the words are known.
"""See `test_speculation`: the target drafts for itself with a part of its words left out, so that all that is wrong
with a guess is what the short vocabulary does to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingle.models.errors import UnsupportedModel
from ingle.models.gguf_info import read_model_info
from ingle.runtime.config import DraftConfig
from ingle.runtime.draft_model import draft_config
from ingle.runtime.draft_vocabulary import DraftVocabulary
from ingle.runtime.engine import Engine
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.planning import draft_needs
from ingle.runtime.request import Request, SamplingParams
from tests import tiny_models
from tests.runtime.test_speculation import LongJudge, repeating
from tests.runtime.test_tiny_models import Judge, greedy, prompt_of, run, tokens_of
from tests.short_draft import write_draft

LEFT_OUT = range(tiny_models.FIRST_WORD + 30, tiny_models.NUM_VOCAB)
"""Words that the draft does not know."""


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    path = tmp_path_factory.mktemp(request.param) / "tiny.gguf"
    write = tiny_models.write_llama if request.param == "llama" else tiny_models.write_gemma3
    judge = LongJudge(write(path), "plain")
    write_draft(path, path.with_name("short.gguf"), num_tokens=LEFT_OUT.start)
    yield judge
    judge.close()


def open_engine(judge: Judge, num_tokens: int | None = 4) -> Engine:
    draft = DraftConfig(ngram=False, model=judge.path.with_name("short.gguf"), num_tokens=num_tokens)
    return Engine.open(judge.path, judge.config(draft=draft))


def test_greedy_text_is_the_same(judge: Judge) -> None:
    prompts = [repeating(40), prompt_of(3), repeating(400, 31), prompt_of(17)]
    assert any(token in LEFT_OUT for token in prompts[3])
    with open_engine(judge) as engine:
        answers = run(engine, [greedy(prompt, 30) for prompt in prompts])
        again = run(engine, [greedy([*prompts[0], *tokens_of(answers[0])], 20)])[0]
        stats = engine.stats().drafts
    assert stats is not None
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    for prompt, outputs in zip(prompts, answers, strict=True):
        judge.accepts(prompt, outputs)
        assert len(tokens_of(outputs)) == 30
    judge.accepts([*prompts[0], *tokens_of(answers[0])], again)


@pytest.mark.parametrize("judge", ["llama"], indirect=True)
@pytest.mark.parametrize("num_tokens", [1, 6])
def test_a_seed_gives_the_same_text(judge: Judge, num_tokens: int) -> None:
    requests = [
        Request(repeating(30), SamplingParams(seed=seed, ignore_eos=True, **sampling), max_output_tokens=40)
        for seed, sampling in enumerate(
            (
                {"temperature": 0.7},
                {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
                {"temperature": 1.3, "repeat_penalty": 1.1, "presence_penalty": 0.5},
                {"temperature": 1.0, "logit_bias": {LEFT_OUT[3]: 9.0}},
            )
        )
    ]
    with Engine.open(judge.path, judge.config()) as engine:
        plain = [tokens_of(outputs) for outputs in run(engine, requests)]
    with open_engine(judge, num_tokens) as engine:
        drafted = [tokens_of(outputs) for outputs in run(engine, requests)]
        stats = engine.stats().drafts
    assert drafted == plain
    assert any(token in LEFT_OUT for token in plain[3]), "the answer has words that cannot be drafted"
    assert stats is not None
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize("judge", ["llama"], indirect=True)
def test_a_draft_ends_where_the_target_says_that_texts_end(judge: Judge) -> None:
    sampling = SamplingParams(temperature=0, ignore_eos=True, logit_bias={tiny_models.EOS: 1000.0})
    with open_engine(judge, 5) as engine:
        (outputs,) = run(engine, [Request(prompt_of(9), sampling, max_output_tokens=9)])
        stats = engine.stats().drafts
    assert tokens_of(outputs) == [tiny_models.EOS] * 9
    assert stats is not None
    assert stats.num_draft_tokens == stats.num_drafts == stats.num_accepted_tokens > 0


@pytest.mark.parametrize("judge", ["llama"], indirect=True)
def test_it_drafts_for_its_own_vocabulary_only_and_is_no_target(judge: Judge, tmp_path: Path) -> None:
    short = judge.path.with_name("short.gguf")
    other = tiny_models.write_llama(tmp_path / "other.gguf", byte_tokens=False)
    with pytest.raises(InvalidRequest, match=r"short.gguf cannot draft for other.gguf: it belongs to a vocabulary of"):
        Engine.open(other, judge.config(draft=DraftConfig(model=short)))
    with pytest.raises(UnsupportedModel, match="it has no tokenizer; use it with --draft"):
        Engine.open(short, judge.config())


@pytest.mark.parametrize("judge", ["llama"], indirect=True)
def test_its_memory_is_counted_by_its_rows(judge: Judge) -> None:
    config = judge.config(draft=DraftConfig(model=judge.path))
    whole = draft_needs(read_model_info(judge.path), config).full
    short = draft_needs(read_model_info(judge.path.with_name("short.gguf"), to_draft=True), config).full
    rows = len(LEFT_OUT)
    assert whole.weights_bytes - short.weights_bytes == 2 * rows * tiny_models.N_EMBD * 4
    assert whole.output_bytes - short.output_bytes == draft_config(config).num_outputs * rows * 4


# -- the map alone -----------------------------------------------------------------------------------------------------


def vocabulary(num_tokens: int, token_ids: list[int], reads_as: list[int]) -> DraftVocabulary:
    return DraftVocabulary(num_tokens, np.array(token_ids, np.intp), np.array(reads_as, np.int32))


def test_rows_are_read_and_logits_are_put_where_they_belong() -> None:
    short = vocabulary(5, [1, 4], [0, 0, 1, 1, 1])
    assert short.rows(np.array([0, 1, 4, 3], np.int32)).tolist() == [0, 0, 1, 1]
    assert short.rows(np.array([0], np.int32)).dtype == np.int32
    inf = float("inf")
    assert short.logits(np.array([2.0, 3.0], np.float32)).tolist() == [-inf, 2.0, -inf, -inf, 3.0]
    assert short.logits(np.array([5.0, 4.0], np.float32)).tolist() == [-inf, 5.0, -inf, -inf, 4.0]


@pytest.mark.parametrize("num_tokens", [3, 4, 6])
def test_padding_of_either_is_never_drafted_and_can_be_read(num_tokens: int) -> None:
    """Two rows of a vocabulary of four, whose last is padding, for a target that has less of it or more."""
    short = vocabulary(num_tokens, [0, 2, 3], [0, 1, 1, 2])
    logits = short.logits(np.array([1.0, 2.0, 9.0], np.float32))
    assert logits[:3].tolist() == [1.0, -float("inf"), 2.0]
    assert logits[3:].tolist() == [9.0, *[-float("inf")] * (num_tokens - 4)][: num_tokens - 3]
    rows = short.rows(np.arange(num_tokens, dtype=np.int32))
    assert rows.tolist() == [0, 1, 1, 2, 0, 0][:num_tokens]


def test_a_whole_vocabulary_is_what_it_is(tmp_path: Path) -> None:
    info = read_model_info(tiny_models.write_llama(tmp_path / "tiny.gguf"))
    same = DraftVocabulary.of(info, info.vocab_size)
    tokens = np.array([5, 0, info.vocab_size - 1], np.int32)
    assert same.rows(tokens).tolist() == tokens.tolist()
    row = np.arange(info.vocab_size, dtype=np.float32)
    np.testing.assert_array_equal(same.logits(row), row)
