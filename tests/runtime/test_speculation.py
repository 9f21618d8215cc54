# Drafts in the whole engine, on models of random weights: the same text with and without, alone and together.
"""The judge is `test_tiny_models.Judge`: every token must be the model's own, up to the noise of the arithmetic.

Random models repeat themselves soon, so n-gram drafts are often right; two models of different weights hardly ever
agree, and a model that drafts for itself nearly always does: both ends of acceptance.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingle.runtime.config import DraftConfig, EngineConfig
from ingle.runtime.draft_model import MAX_MODEL_DRAFTS
from ingle.runtime.engine import Engine
from ingle.runtime.errors import InvalidRequest
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.request import FinishReason, Request, RequestOutput, SamplingParams
from tests import tiny_models
from tests.runtime.test_tiny_models import Judge, drain, greedy, prompt_of, run, text_of, tokens_of

DRAFTERS = ("ngram", "self", "other", "chained")


class LongJudge(Judge):
    """One that can be asked for more rows of logits at once."""

    def __init__(self, path: Path, attention: str) -> None:
        super().__init__(path, attention)
        self._context.close()
        config = self.config(n_batch=2048, max_num_seqs=6, draft=DraftConfig(num_tokens=64))
        self._context = LlamaContext(self._model, 2048, config)


@pytest.fixture(scope="module", params=["llama-plain", "gemma3-plain"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    name, attention = request.param.split("-")
    path = tmp_path_factory.mktemp(name) / "tiny.gguf"
    judge = LongJudge(tiny_models.write_llama(path) if name == "llama" else tiny_models.write_gemma3(path), attention)
    yield judge
    judge.close()


only_llama = pytest.mark.parametrize("judge", ["llama-plain"], indirect=True)


def drafts(judge: Judge, drafter: str, num_tokens: int | None = 4) -> DraftConfig:
    """`self` drafts with the target's own weights, `other` with those of another seed."""
    if drafter == "ngram":
        return DraftConfig(num_tokens=num_tokens)
    other = judge.path.with_name("other.gguf")
    if not other.exists():
        tiny_models.write_llama(other, seed=5)
    model = judge.path if drafter == "self" else other
    return DraftConfig(ngram=drafter == "chained", model=model, num_tokens=num_tokens)


def open_engine(judge: Judge, draft: DraftConfig | None, **changes: object) -> Engine:
    return Engine.open(judge.path, judge.config(draft=draft, **changes))


def repeating(length: int, period: int = 9) -> list[int]:
    """A prompt that says the same words again and again."""
    return [*prompt_of(period), *(prompt_of(period)[1:] * length)][:length]


def ask(engine: Engine, request: Request) -> list[RequestOutput]:
    return run(engine, [request])[0]


# -- the same text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_alone_and_in_a_batch_of_four(judge: Judge, drafter: str) -> None:
    prompts = [repeating(40), prompt_of(3), repeating(90, 31), prompt_of(17)]
    with open_engine(judge, drafts(judge, drafter)) as engine:
        alone = ask(engine, greedy(prompts[0], 30))
        answers = run(engine, [greedy(prompt, 30) for prompt in prompts])
        stats = engine.stats().drafts
        assert stats is not None
        assert stats.num_draft_tokens > 0
    judge.accepts(prompts[0], alone)
    for prompt, outputs in zip(prompts, answers, strict=True):
        judge.accepts(prompt, outputs)
        assert len(tokens_of(outputs)) == 30
        assert outputs[-1].finish_reason is FinishReason.LENGTH


@only_llama
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("num_tokens", [1, 7, 40])
def test_a_seed_gives_the_same_text_with_and_without_drafts(judge: Judge, drafter: str, num_tokens: int) -> None:
    """F32 weights and cache, one thread: logits hardly depend on the batch's shape, so neither does the text."""
    requests = [
        Request(repeating(30), SamplingParams(seed=seed, ignore_eos=True, **sampling), max_output_tokens=40)
        for seed, sampling in enumerate(
            (
                {"temperature": 0.7},
                {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
                {"temperature": 1.3, "repeat_penalty": 1.1, "presence_penalty": 0.5},
                {"temperature": 0.9, "logit_bias": {300: 3.0, 301: -5.0}},
            )
        )
    ]
    with open_engine(judge, None) as engine:
        plain = [tokens_of(outputs) for outputs in run(engine, requests)]
    with open_engine(judge, drafts(judge, drafter, num_tokens)) as engine:
        drafted = [tokens_of(outputs) for outputs in run(engine, requests)]
        alone = tokens_of(ask(engine, requests[2]))
    assert drafted == plain
    assert alone == plain[2]


@only_llama
def test_a_model_that_drafts_for_itself_is_always_right(judge: Judge) -> None:
    with open_engine(judge, drafts(judge, "self", 5)) as engine:
        outputs = ask(
            engine, Request(prompt_of(20), SamplingParams(seed=1, ignore_eos=True), max_output_tokens=1 + 6 * 10)
        )
        stats = engine.stats()
        assert stats.drafts is not None
        assert stats.drafts.accepted_by_position == (10, 10, 10, 10, 10)
        assert stats.drafts.mean_accepted_tokens == 5
        assert stats.num_steps == 11
    assert [len(output.new_tokens) for output in outputs] == [1, *[6] * 10]
    metrics = outputs[-1].metrics
    assert (metrics.num_draft_tokens, metrics.num_accepted_tokens, metrics.num_output_tokens) == (50, 50, 61)
    assert len(metrics.itl_s) == 10  # gaps between deliveries


@only_llama
def test_a_length_that_was_asked_for_is_kept_by_a_model_too(judge: Judge) -> None:
    num_tokens = MAX_MODEL_DRAFTS + 5
    with open_engine(judge, drafts(judge, "self", num_tokens)) as engine:
        ask(engine, greedy(prompt_of(20), 2 + num_tokens))
        stats = engine.stats().drafts
    assert stats is not None
    assert stats.accepted_by_position == (1,) * num_tokens


@pytest.mark.parametrize("drafter", ["ngram", "self", "other"])
def test_parked_and_read_again(judge: Judge, drafter: str) -> None:
    prompts = [repeating(70, 5 + number) for number in range(4)]
    with open_engine(judge, drafts(judge, drafter), n_ctx=256, block_size=8) as engine:
        answers = run(engine, [greedy(prompt, 25) for prompt in prompts])
        assert engine.stats().num_preemptions > 0
    for prompt, outputs in zip(prompts, answers, strict=True):
        judge.accepts(prompt, outputs)
        assert len(tokens_of(outputs)) == 25


@pytest.mark.parametrize("drafter", ["ngram", "self", "chained"])
def test_while_the_pool_grows_and_prompts_come_in_chunks(judge: Judge, drafter: str) -> None:
    prompts = [repeating(length, 7) for length in (150, 200, 30, 300)]
    outputs: dict[int, list[RequestOutput]] = {}
    with open_engine(judge, drafts(judge, drafter), initial_kv_tokens=256, prefill_chunk=32) as engine:
        for prompt in prompts:
            outputs[engine.add(greedy(prompt, 40))] = []
            for _ in range(3):
                for output in engine.step():
                    outputs[output.request_id].append(output)
        while engine.has_work:
            for output in engine.step():
                outputs[output.request_id].append(output)
        assert engine.stats().num_pool_resizes >= 1
    for prompt, answer in zip(prompts, outputs.values(), strict=True):
        judge.accepts(prompt, answer)


@only_llama
@pytest.mark.parametrize("drafter", ["ngram", "self"])
def test_pages_saved_while_drafting_are_those_of_the_text(judge: Judge, drafter: str, tmp_path: Path) -> None:
    prompt = repeating(50)
    with open_engine(judge, drafts(judge, drafter, 7), block_size=8, page_dir=tmp_path) as engine:
        first = ask(engine, greedy(prompt, 40))
    turn = [*prompt, *tokens_of(first), *prompt_of(5)]
    with open_engine(judge, None, block_size=8, page_dir=tmp_path) as engine:
        second = ask(engine, greedy(turn, 10))
        assert second[-1].metrics.num_cached_tokens >= 88  # eleven full blocks of 50 + 39 computed tokens
    judge.accepts(prompt, first)
    judge.accepts(turn, second)


# -- where a text ends -------------------------------------------------------------------------------------------------


@only_llama
def test_a_stop_string_in_the_middle_of_an_accepted_run_drops_the_rest(judge: Judge) -> None:
    prompt = prompt_of(20)
    with open_engine(judge, None) as engine:
        whole = ask(engine, greedy(prompt, 24))
    text = text_of(whole)
    stop = text[len(text) // 2 :][:4]
    with open_engine(judge, None) as engine:
        plain = ask(engine, greedy(prompt, 24, stop=(stop,)))
    with open_engine(judge, drafts(judge, "self", 9)) as engine:
        outputs = ask(engine, greedy(prompt, 24, stop=(stop,)))
        turn = [*prompt, *tokens_of(outputs), *prompt_of(4)]
        again = ask(engine, greedy(turn, 8))
    assert tokens_of(outputs) == tokens_of(plain)
    assert text_of(outputs) == text_of(plain) == text[: text.index(stop)]
    assert (outputs[-1].finish_reason, outputs[-1].stop_string) == (FinishReason.STOP, stop)
    assert again[-1].metrics.num_cached_tokens == len(prompt) + len(tokens_of(outputs)) - 1
    judge.accepts(turn, again)


@only_llama
def test_the_end_of_an_answer_and_the_limit_are_kept(judge: Judge) -> None:
    sampling = SamplingParams(seed=3, temperature=1, top_k=0, min_p=0, logit_bias={tiny_models.EOS: 12.0})
    requests = [Request(prompt_of(20, seed), sampling) for seed in range(8)]
    with open_engine(judge, None) as engine:
        plain = run(engine, requests)
    with open_engine(judge, drafts(judge, "self", 9)) as engine:
        drafted = run(engine, requests)
        short = ask(engine, greedy(prompt_of(20), 3))
        none = ask(engine, greedy(prompt_of(20), 0))
    assert [tokens_of(outputs) for outputs in drafted] == [tokens_of(outputs) for outputs in plain]
    assert all(outputs[-1].finish_reason is FinishReason.STOP for outputs in drafted)
    assert (len(tokens_of(short)), len(tokens_of(none))) == (3, 0)


@only_llama
def test_logprobs_are_reported_for_every_token(judge: Judge) -> None:
    prompt = repeating(40)
    with open_engine(judge, drafts(judge, "chained")) as engine:
        outputs = ask(engine, greedy(prompt, 30))
    assert [lp.token for output in outputs for lp in output.logprobs] == tokens_of(outputs)
    judge.accepts(prompt, outputs)


# -- whatever else happens ---------------------------------------------------------------------------------------------


@only_llama
@pytest.mark.parametrize("drafter", ["ngram", "self", "other"])
def test_aborted_and_interrupted_between_drafts(judge: Judge, drafter: str) -> None:
    prompts = [repeating(40), repeating(21, 5), repeating(60, 13)]
    with open_engine(judge, drafts(judge, drafter, 20)) as engine:
        rids = [engine.add(greedy(prompt, 120)) for prompt in prompts]
        early: dict[int, list[RequestOutput]] = {rid: [] for rid in rids}
        for number in range(4):
            if number == 2:
                engine.interrupt()  # the step is cut short, or too small to be
            for output in engine.step():
                early[output.request_id].append(output)
        assert engine.abort(rids[1]) is not None
        late = drain(engine, [rids[0], rids[2]])
        again = ask(engine, greedy(prompts[1], 12))
    for which, rest in ((0, late[0]), (2, late[1])):
        judge.accepts(prompts[which], early[rids[which]] + rest)
        assert len(tokens_of(early[rids[which]] + rest)) == 120
    judge.accepts(prompts[1], again)


@only_llama
def test_the_next_turn_finds_what_the_draft_model_has_read(judge: Judge) -> None:
    prompt = prompt_of(40)
    with open_engine(judge, drafts(judge, "self")) as engine:
        first = ask(engine, greedy(prompt, 10))
        turn = [*prompt, *tokens_of(first), *prompt_of(6)]
        ask(engine, greedy(turn, 10))
        assert engine._speculation is not None
        (drafter,) = engine._speculation._drafters
        tables = drafter._kv.tables()
        assert len(tables) == 1, "the second turn did not take over the first one's"
        assert len(turn) <= tables[0].num_tokens < len(turn) + 10


@only_llama
def test_a_long_text_is_read_from_near_its_end(judge: Judge) -> None:
    prompt = prompt_of(700)
    draft = DraftConfig(ngram=False, model=judge.path, num_tokens=4, window=64)
    with open_engine(judge, draft) as engine:
        rid = engine.add(greedy(prompt, 40))
        outputs = [output for _ in range(6) for output in engine.step() if output.request_id == rid]
        assert engine._speculation is not None
        (drafter,) = engine._speculation._drafters
        assert drafter._views[rid].base == 576  # (700 − 64) rounded down to whole windows
        outputs += drain(engine, [rid])[0]
    judge.accepts(prompt, outputs)


@only_llama
def test_drafts_sized_by_cost_give_the_same_text_and_count_themselves(judge: Judge) -> None:
    prompt = repeating(200)
    with open_engine(judge, drafts(judge, "chained", None)) as engine:
        outputs = ask(engine, greedy(prompt, 300))
        stats = engine.stats().drafts
    judge.accepts(prompt, outputs)
    assert stats is not None
    assert stats.num_accepted_tokens == outputs[-1].metrics.num_accepted_tokens <= stats.num_draft_tokens
    assert sorted(stats.accepted_by_position, reverse=True) == list(stats.accepted_by_position)
    assert stats.plain_token_s is not None


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "kind"), [(tiny_models.write_mamba, "recurrent"), (tiny_models.write_lfm2, "hybrid")]
)
def test_a_state_that_cannot_be_taken_back_is_refused_or_told(tmp_path: Path, write, kind: str) -> None:
    path = write(tmp_path / "stateful.gguf")
    llama = tiny_models.write_llama(tmp_path / "llama.gguf")
    with pytest.raises(InvalidRequest, match=f"is a {kind} model: no drafts"):
        Engine.open(path, EngineConfig(num_threads=1, draft=DraftConfig()))
    with Engine.open(path, EngineConfig(num_threads=1, draft=DraftConfig(is_required=False))) as engine:
        assert any("no drafts" in note for note in engine.info.notes)
        assert engine.stats().drafts is None
    with pytest.raises(InvalidRequest, match=f"is a {kind} model"):
        Engine.open(llama, EngineConfig(num_threads=1, draft=DraftConfig(model=path)))


def test_another_vocabulary_is_refused_before_any_weights_are_read(tmp_path: Path) -> None:
    target = tiny_models.write_llama(tmp_path / "target.gguf")
    draft = tiny_models.write_llama(tmp_path / "draft.gguf", byte_tokens=False)
    with pytest.raises(InvalidRequest, match=r"draft.gguf cannot draft for target.gguf: token 3 is 'a' .* '<0x00>'"):
        Engine.open(target, EngineConfig(draft=DraftConfig(model=draft)))


@pytest.mark.parametrize(
    "wrong", [{"num_tokens": 0}, {"num_tokens": 65}, {"window": 0}, {"window": 513}, {"ngram": False}]
)
def test_nonsense_is_refused(wrong: dict) -> None:
    with pytest.raises(InvalidRequest):
        DraftConfig(**wrong)


def test_rows_that_a_step_may_want_are_counted() -> None:
    config = EngineConfig(max_num_seqs=3, max_cached_chains=4)
    assert config.num_outputs == config.num_slots == 8
    assert EngineConfig(max_num_seqs=3, max_cached_chains=4, draft=DraftConfig()).num_outputs == 8 + 31
    assert EngineConfig(max_num_seqs=3, max_cached_chains=4, draft=DraftConfig(num_tokens=40)).num_outputs == 8 + 120
    assert np.isclose(len(repeating(40)), 40)
