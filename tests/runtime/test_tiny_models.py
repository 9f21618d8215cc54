# The whole engine on real architectures of random weights: attention, sliding window, recurrent, hybrid.
"""Whatever ran beside it, before it or instead of it, an answer must be the model's own.

The judge is a second pass: prompt and answer through a fresh context in one piece, without engine, blocks or sharing.
Every token must be that pass's most likely one, and every reported log-probability its value, up to the noise of the
arithmetic. Judging each token after the answer's own earlier ones keeps this sound where two logits nearly tie: either
may be taken, and what follows is judged after the one that was. The noise comes from kernels that add in another order
for another number of rows. Measured over some thousand tokens, one by one, in chunks and at once, as a part of a row's
range (largest − smallest logit): mostly below 1e-6 and at most 4e-5 with plain attention and an F32 cache, 2e-3 with
flash attention, which works in F16. The limits are some times that; the judge is itself judged below, by histories with
a single other token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ingle.models.errors import UnsupportedModel
from ingle.models.gguf_info import read_model_info
from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.errors import InvalidRequest, PromptTooLong, QueueFull
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.request import FinishReason, Request, RequestId, RequestOutput, SamplingParams
from ingle.runtime.sampler import gumbel_noise
from tests import tiny_models

TOLERANCE = {"plain": 1e-4, "flash": 6e-3}  # of the range of a row of logits
NUM_OUTPUT = 12
WINDOW = 16

WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_models.write_llama,
    "gemma3": lambda path: tiny_models.write_gemma3(path, window=WINDOW),
    "mamba": tiny_models.write_mamba,
    "lfm2": tiny_models.write_lfm2,
}
SHARING = ("llama-plain", "llama-flash", "gemma3-plain", "gemma3-flash")
STATEFUL = ("mamba-plain", "lfm2-plain", "lfm2-flash")


class Judge:
    """The model alone: one sequence, one context, nothing kept."""

    def __init__(self, path: Path, attention: str) -> None:
        self.path = path
        self.attention = attention
        self._model = LlamaModel(path, 0)
        self._context = LlamaContext(self._model, 2048, self.config(n_batch=2048, max_cached_chains=27))

    def config(self, **changes: object) -> EngineConfig:
        """What the models under test are run with."""
        flash = self.attention == "flash"
        kv_type = "f16" if flash else "f32"
        settings = {"num_threads": 1, "type_k": kv_type, "type_v": kv_type, "flash_attn": flash, "gpu_layers": 0}
        return EngineConfig(**({"check_integrity": True} | settings | changes))  # type: ignore[arg-type]

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def logits(self, tokens: Sequence[int], num_last: int) -> npt.NDArray[np.float64]:
        """[num_last, vocab]: the rows of the last tokens."""
        context, count = self._context, len(tokens)
        context.drop_cells(0, 0)
        context.tokens[:count] = tokens
        context.positions[:count] = range(count)
        context.slots[:count] = 0
        context.wanted[:count] = 0
        context.wanted[count - num_last : count] = 1
        assert context.decode(count, interruptible=False) == 0
        return context.logits(num_last).astype(np.float64)

    def accepts(self, prompt: Sequence[int], outputs: Sequence[RequestOutput]) -> None:
        """Assert that `outputs` are the greedy answer to `prompt`."""
        answer = [token for output in outputs for token in output.new_tokens]
        reported = [logprob for output in outputs for logprob in output.logprobs]
        assert answer
        assert len(reported) == len(answer)
        rows = self.logits([*prompt, *answer[:-1]], len(answer))
        for step, (token, row, logprob) in enumerate(zip(answer, rows, reported, strict=True)):
            noise = TOLERANCE[self.attention] * (row.max() - row.min())
            assert row[token] >= row.max() - noise, f"token {step}: {token} instead of {row.argmax()}"
            log_p = log_softmax(row)
            assert logprob.token == token
            for candidate, value in ((token, logprob.logprob), *logprob.top):
                assert abs(value - log_p[candidate]) <= noise, f"token {step}: log p of {candidate}"


def log_softmax(row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted: npt.NDArray[np.float64] = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


@pytest.fixture(scope="module", params=[*SHARING, *STATEFUL])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    name, attention = request.param.split("-")
    judge = Judge(WRITERS[name](tmp_path_factory.mktemp(name) / "tiny.gguf"), attention)
    yield judge
    judge.close()


only_sharing = pytest.mark.parametrize("judge", SHARING, indirect=True)
only_stateful = pytest.mark.parametrize("judge", STATEFUL, indirect=True)
only_llama = pytest.mark.parametrize("judge", ["llama-plain"], indirect=True)
only_gemma3 = pytest.mark.parametrize("judge", ["gemma3-plain", "gemma3-flash"], indirect=True)


def open_engine(judge: Judge, **changes: object) -> Engine:
    return Engine.open(judge.path, judge.config(**changes))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """BOS and random tokens."""
    rng = np.random.default_rng([length, seed])
    return [tiny_models.BOS, *rng.integers(tiny_models.FIRST_BYTE, tiny_models.NUM_VOCAB, length - 1).tolist()]


def greedy(prompt: Sequence[int], num_output: int = NUM_OUTPUT, **changes: object) -> Request:
    sampling = SamplingParams(temperature=0, ignore_eos=True, logprobs=3, **changes)  # type: ignore[arg-type]
    return Request(prompt, sampling, max_output_tokens=num_output)


def run(engine: Engine, requests: Sequence[Request]) -> list[list[RequestOutput]]:
    """Add all, step until the engine is idle; the outputs of each."""
    return drain(engine, [engine.add(request) for request in requests])


def drain(engine: Engine, rids: Sequence[RequestId]) -> list[list[RequestOutput]]:
    outputs: dict[RequestId, list[RequestOutput]] = {rid: [] for rid in rids}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return [outputs[rid] for rid in rids]


def tokens_of(outputs: Sequence[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_tokens]


def text_of(outputs: Sequence[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


# -- the files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(WRITERS))
def test_the_header_says_what_was_written(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / "tiny.gguf")
    info = read_model_info(path)
    assert info.architecture == name
    assert info.vocab_size == tiny_models.NUM_VOCAB
    assert (info.bos_token, info.eos_token) == ("<s>", "</s>")
    assert info.sliding_window == (WINDOW if name == "gemma3" else None)
    assert info.size_bytes < 1_000_000


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    one, same, other = (
        tiny_models.write_llama(tmp_path / f"{name}.gguf", seed=seed).read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == same != other


def test_an_embedding_model_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tiny_models.write_bert(tmp_path / "bert.gguf")
    with pytest.raises(UnsupportedModel, match="an embedding model: it cannot generate text"):
        read_model_info(path)
    with pytest.raises(UnsupportedModel):
        Engine.open(path)


# -- the judge itself --------------------------------------------------------------------------------------------------


def test_the_judge_refuses_the_answer_to_a_prompt_with_one_other_token(judge: Judge) -> None:
    prompt = prompt_of(24)
    with open_engine(judge) as engine:
        (outputs,) = run(engine, [greedy(prompt)])
    judge.accepts(prompt, outputs)
    for position in (1, 12, 23):
        other = list(prompt)
        other[position] = tiny_models.FIRST_BYTE + (other[position] + 1) % 256
        with pytest.raises(AssertionError):
            judge.accepts(other, outputs)


# -- the same answer, whatever else happens ----------------------------------------------------------------------------


def test_alone_and_in_a_batch_of_four(judge: Judge) -> None:
    prompts = [prompt_of(length) for length in (40, 3, 90, 17)]
    with open_engine(judge) as engine:
        (alone,) = run(engine, [greedy(prompts[0])])
    with open_engine(judge) as engine:
        answers = run(engine, [greedy(prompt) for prompt in prompts])
        assert engine.stats().num_steps < 4 * NUM_OUTPUT, "they did not run together"
    judge.accepts(prompts[0], alone)
    for prompt, outputs in zip(prompts, answers, strict=True):
        judge.accepts(prompt, outputs)
        assert len(tokens_of(outputs)) == NUM_OUTPUT
        assert outputs[-1].finish_reason is FinishReason.LENGTH


@only_stateful
def test_a_state_that_cannot_be_shared_is_reused_whole_or_not_at_all_and_the_user_is_told(judge: Judge) -> None:
    prompt = prompt_of(50)
    with open_engine(judge) as engine:
        assert any("only a whole conversation is reused" in note for note in engine.info.notes)
        for _ in range(2):
            (outputs,) = run(engine, [greedy(prompt)])
            judge.accepts(prompt, outputs)
            assert outputs[-1].metrics.num_cached_tokens == 0
        turn = [*prompt, *tokens_of(outputs), *prompt_of(9)]
        (outputs,) = run(engine, [greedy(turn)])
        judge.accepts(turn, outputs)
        assert outputs[-1].metrics.num_cached_tokens == len(prompt) + NUM_OUTPUT - 1


@only_sharing
def test_an_identical_prompt_leaves_one_token_to_compute(judge: Judge) -> None:
    prompt = prompt_of(50)
    with open_engine(judge) as engine:
        for num_cached in (0, 49):
            (outputs,) = run(engine, [greedy(prompt)])
            judge.accepts(prompt, outputs)
            assert outputs[-1].metrics.num_cached_tokens == num_cached


def test_preempted(judge: Judge) -> None:
    prompts = [prompt_of(70, seed) for seed in range(4)]
    with open_engine(judge, n_ctx=256, block_size=8) as engine:
        answers = run(engine, [greedy(prompt, 15) for prompt in prompts])
        assert engine.stats().num_preemptions > 0
        assert engine.stats().num_blocks_total * 8 == 256
    for prompt, outputs in zip(prompts, answers, strict=True):
        judge.accepts(prompt, outputs)
        assert len(tokens_of(outputs)) == 15


def test_grown_three_times_while_running(judge: Judge) -> None:
    prompts = [prompt_of(length, length) for length in (150, 200, 30, 90, 250, 120, 300, 600)]
    outputs: dict[RequestId, list[RequestOutput]] = {}
    with open_engine(judge, initial_kv_tokens=256, max_num_seqs=8) as engine:
        for prompt in prompts:
            outputs[engine.add(greedy(prompt, 15))] = []
            for output in engine.step():
                outputs[output.request_id].append(output)
        while engine.has_work:
            for output in engine.step():
                outputs[output.request_id].append(output)
        assert engine.stats().num_pool_resizes >= 3
        (again,) = run(engine, [greedy(prompts[1])])
        assert again[-1].metrics.num_cached_tokens == (199 if engine.info.shares_prefixes else 0)
    for prompt, answer in zip(prompts, outputs.values(), strict=True):
        judge.accepts(prompt, answer)
    judge.accepts(prompts[1], again)


def test_beside_a_request_whose_step_was_interrupted(judge: Judge) -> None:
    prompts = [prompt_of(length) for length in (40, 21)]
    with open_engine(judge) as engine:
        rids = [engine.add(greedy(prompt)) for prompt in prompts]
        early: dict[RequestId, list[RequestOutput]] = {rid: [] for rid in rids}
        for output in [*engine.step(), *engine.step()]:
            early[output.request_id].append(output)
        third = engine.add(greedy(prompt_of(100)))
        engine.interrupt()
        for output in engine.step():
            early.setdefault(output.request_id, []).append(output)
        last = engine.abort(third)
        assert last is not None
        assert last.finish_reason is FinishReason.ABORT
        assert engine.stats().num_requests_running == 2
        late = drain(engine, rids)
        (again,) = run(engine, [greedy(prompt_of(100))])
    for prompt, rid, rest in zip(prompts, rids, late, strict=True):
        judge.accepts(prompt, early[rid] + rest)
        assert len(tokens_of(early[rid] + rest)) == NUM_OUTPUT
    judge.accepts(prompt_of(100), again)


def test_without_prefix_caching(judge: Judge) -> None:
    prompt = prompt_of(60)
    with open_engine(judge, enable_prefix_caching=False, initial_kv_tokens=256) as engine:
        (first,), (second,) = run(engine, [greedy(prompt)]), run(engine, [greedy(prompt)])
        run(engine, [greedy(prompt_of(300))])
        (third,) = run(engine, [greedy(prompt)])
    for outputs in (first, second, third):
        judge.accepts(prompt, outputs)
        assert outputs[-1].metrics.num_cached_tokens == 0


# -- prefixes ----------------------------------------------------------------------------------------------------------


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))


@only_sharing
@pytest.mark.parametrize("block_size", [1, 7, 32])
def test_a_prefix_is_reused_up_to_the_first_token_that_differs(judge: Judge, block_size: int) -> None:
    base = prompt_of(100)
    known: list[list[int]] = []
    with open_engine(judge, block_size=block_size) as engine:
        for cut in (100, 1, 6, 7, 8, 31, 32, 33, 63, 64, 65, 99):
            prompt = [*base[:cut], *prompt_of(12, seed=cut)[1:]]
            (outputs,) = run(engine, [greedy(prompt)])
            judge.accepts(prompt, outputs)
            expected = max((common_prefix(prompt, tokens) for tokens in known), default=0)
            assert outputs[-1].metrics.num_cached_tokens == expected
            assert expected == (cut if known else 0)
            known.append([*prompt, *tokens_of(outputs)])


class Traffic:
    """Three texts; prompts are random beginnings of them or of earlier answers, each with an end of its own."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.rng = np.random.default_rng(seed)
        self.texts = [prompt_of(120, number) for number in range(3)]
        self.prompts: dict[RequestId, list[int]] = {}
        self.outputs: dict[RequestId, list[RequestOutput]] = {}
        self.unfinished: list[RequestId] = []

    def add(self) -> None:
        text = self.texts[self.rng.integers(3)]
        if self.outputs and self.rng.random() < 0.3:
            rid = list(self.outputs)[self.rng.integers(len(self.outputs))]
            text = [*self.prompts[rid], *tokens_of(self.outputs[rid])]
        ending = prompt_of(int(self.rng.integers(2, 40)), len(self.prompts))[1:]
        prompt = [*text[: self.rng.integers(1, 120)], *ending]
        rid = self.engine.add(greedy(prompt, int(self.rng.integers(1, 16))))
        self.prompts[rid], self.outputs[rid] = prompt, []
        self.unfinished.append(rid)

    def note(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            self.outputs[output.request_id].append(output)
            if output.finished:
                self.unfinished.remove(output.request_id)

    def abort(self) -> None:
        last = self.engine.abort(self.unfinished[self.rng.integers(len(self.unfinished))])
        assert last is not None
        self.note([last])


@only_stateful
def test_an_interrupted_step_leaves_no_state_to_whoever_comes_next(judge: Judge) -> None:
    """llama.cpp moves and clears recurrent states as a part of the graph, and notes it as done before computing it."""
    prompts = [prompt_of(length) for length in (5, 6, 100, 20)]
    with open_engine(judge, n_batch=64, prefill_chunk=32) as engine:
        rids = [engine.add(greedy(prompt, num)) for prompt, num in zip(prompts[:3], (12, 1, 12), strict=True)]
        outputs: dict[RequestId, list[RequestOutput]] = {rid: [] for rid in rids}
        first = engine.step()
        assert [output.request_id for output in first if output.finished] == [
            rids[1]
        ]  # the state in the middle is free
        engine.interrupt()
        first += engine.step()
        rids.append(engine.add(greedy(prompts[3])))
        outputs[rids[3]] = []
        for output in first:
            outputs[output.request_id].append(output)
        for rid, rest in zip(rids, drain(engine, rids), strict=True):
            outputs[rid] += rest
    for prompt, answer in zip(prompts, outputs.values(), strict=True):
        judge.accepts(prompt, answer)


@pytest.mark.parametrize("interruptions", [False, True])
def test_random_traffic_in_a_pool_too_small_for_it(judge: Judge, interruptions: bool) -> None:
    """256 cells are overwritten many times; some requests are aborted in the middle, some steps interrupted."""
    with open_engine(judge, n_ctx=256, block_size=8, max_num_seqs=3, max_cached_chains=5) as engine:
        traffic = Traffic(engine, seed=7)
        while len(traffic.outputs) < 60 or traffic.unfinished:
            if len(traffic.unfinished) < 4 and len(traffic.outputs) < 60:
                traffic.add()
            if interruptions and traffic.rng.random() < 0.1:
                engine.interrupt()
            traffic.note(engine.step())
            if traffic.unfinished and traffic.rng.random() < 0.04:
                traffic.abort()
        stats = engine.stats()
        assert stats.num_pool_resizes == 0
        assert (stats.prefix_cache_hits_tokens > 500) == engine.info.shares_prefixes
    answers = {rid: outputs for rid, outputs in traffic.outputs.items() if tokens_of(outputs)}
    assert len(answers) > 40
    for rid, outputs in answers.items():
        judge.accepts(traffic.prompts[rid], outputs)


def chain_in_two_parts(engine: Engine) -> list[int]:
    """Finish a prompt of 150 tokens whose cells are 40 … 189 of 256, with its answer in 0 … 10; the prompt.

    llama.cpp takes cells from there on for whoever comes next, those before the end's window among them.
    """
    run(engine, [greedy(prompt_of(40, 1), 1)])
    rid = engine.add(greedy(prompt_of(150)))
    engine.step()
    engine.clear_cache()
    drain(engine, [rid])
    return prompt_of(150)


@only_gemma3
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_prefix_whose_window_cells_were_overwritten_is_not_reused(judge: Judge, interrupted: bool) -> None:
    """Being interrupted does not bring the overwritten cells back."""
    with open_engine(judge, n_ctx=256, block_size=8) as engine:
        prompt = chain_in_two_parts(engine)
        rid = engine.add(greedy(prompt_of(80, 2)))
        if interrupted:
            engine.interrupt()
            assert engine.step() == []
            last = engine.abort(rid)
            assert last is not None
            assert last.finish_reason is FinishReason.ABORT
        else:
            drain(engine, [rid])
        sharing = [*prompt[:40], *prompt_of(10, seed=2)[1:]]
        (outputs,) = run(engine, [greedy(sharing)])
        assert outputs[-1].metrics.num_cached_tokens < WINDOW
    judge.accepts(sharing, outputs)


@only_gemma3
def test_a_chain_may_lose_its_end_after_its_beginning(judge: Judge) -> None:
    """Its window cells up to a position are overwritten, then its blocks from before that position on evicted."""
    with open_engine(judge, n_ctx=256, block_size=8) as engine:
        chain_in_two_parts(engine)
        run(engine, [greedy(prompt_of(80, 2), 1)])
        (outputs,) = run(engine, [greedy(prompt_of(140, 3))])
    judge.accepts(prompt_of(140, 3), outputs)


@only_llama
def test_different_salts_never_share(judge: Judge) -> None:
    prompt = prompt_of(64)
    with open_engine(judge) as engine:
        run(engine, [greedy(prompt)])
        salted = Request(prompt, SamplingParams(temperature=0), max_output_tokens=1, cache_salt="tenant")
        (outputs,) = run(engine, [salted])
        assert outputs[-1].metrics.num_cached_tokens == 0
        (outputs,) = run(engine, [salted])
        assert outputs[-1].metrics.num_cached_tokens == 63


@only_llama
@pytest.mark.parametrize("block_size", [1, 5, 48, 100, 300])
def test_a_request_may_grow_to_the_context_whatever_the_block_size(judge: Judge, block_size: int) -> None:
    prompt = prompt_of(230)
    with open_engine(judge, n_ctx=256, block_size=block_size) as engine:
        (outputs,) = run(engine, [greedy(prompt, 100)])
    assert outputs[-1].finish_reason is FinishReason.LENGTH, outputs[-1].error
    assert len(tokens_of(outputs)) == 26


# -- several engines ---------------------------------------------------------------------------------------------------


def test_several_engines_take_turns_in_one_process(tmp_path: Path) -> None:
    judges = [Judge(writer(tmp_path / f"{name}.gguf"), "plain") for name, writer in WRITERS.items()]
    prompt = prompt_of(30)
    engines = [open_engine(judge) for judge in judges]
    rids = [engine.add(greedy(prompt)) for engine in engines]
    answers: list[list[RequestOutput]] = [[] for _ in engines]
    while any(engine.has_work for engine in engines):
        for engine, answer in zip(engines, answers, strict=True):
            answer += engine.step() if engine.has_work else []
    for judge, engine, rid, answer in zip(judges, engines, rids, answers, strict=True):
        engine.close()
        assert {output.request_id for output in answer} == {rid}
        judge.accepts(prompt, answer)
        judge.close()


# -- ends --------------------------------------------------------------------------------------------------------------


def test_abort_in_the_middle_makes_its_blocks_available_before_it_returns(judge: Judge) -> None:
    with open_engine(judge) as engine:
        rid = engine.add(greedy(prompt_of(100), 50))
        for _ in range(3):
            engine.step()
        assert engine.stats().num_blocks_used == 4  # 100 prompt tokens and up to three of answer, in blocks of 32
        last = engine.abort(rid)
        stats = engine.stats()
        assert (stats.num_blocks_used, stats.num_requests_running) == (0, 0)
        assert stats.num_blocks_cached == 4
        assert last is not None
        assert last.finish_reason is FinishReason.ABORT
        assert engine.abort(rid) is None
        engine.clear_cache()
        assert engine.stats().num_blocks_free == stats.num_blocks_total


@only_llama
def test_leaving_the_stream_early_aborts(judge: Judge) -> None:
    with open_engine(judge) as engine:
        stream = engine.stream(engine.add(greedy(prompt_of(40), 50)))
        assert len(next(stream).new_tokens) == 1
        assert engine.stats().num_requests_running == 1
        stream.close()  # type: ignore[attr-defined]
        assert engine.stats().num_requests_running == engine.stats().num_blocks_used == 0
        assert not engine.has_work


@only_llama
def test_a_deadline_that_has_passed_ends_a_request_and_nothing_else(judge: Judge) -> None:
    with open_engine(judge) as engine:
        late = engine.add(Request(prompt_of(20), deadline_s=1e-9))
        fine = engine.add(Request(prompt_of(20), SamplingParams(ignore_eos=True), max_output_tokens=3, deadline_s=3600))
        outputs = drain(engine, [late, fine])
    assert [(o.finish_reason, o.new_tokens) for o in outputs[0]] == [(FinishReason.DEADLINE, ())]
    assert outputs[1][-1].finish_reason is FinishReason.LENGTH
    assert len(tokens_of(outputs[1])) == 3


@only_llama
def test_no_output_wanted(judge: Judge) -> None:
    with open_engine(judge) as engine:
        (outputs,) = run(engine, [greedy(prompt_of(20), 0)])
        assert [(o.finish_reason, o.new_tokens, o.text) for o in outputs] == [(FinishReason.LENGTH, (), "")]
        assert outputs[0].metrics.ttft_s is None
        assert engine.stats().num_output_tokens == 0


@only_llama
def test_the_engines_output_limit_is_the_smaller_one(judge: Judge) -> None:
    with open_engine(judge, max_output_tokens=4) as engine:
        answers = run(engine, [greedy(prompt_of(9), 7), greedy(prompt_of(9), 2)])
    assert [len(tokens_of(outputs)) for outputs in answers] == [4, 2]


@only_llama
def test_an_answer_ends_where_the_context_does(judge: Judge) -> None:
    with open_engine(judge, n_ctx=50) as engine:
        (outputs,) = run(engine, [greedy(prompt_of(44), 100)])
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert len(tokens_of(outputs)) == 6


@only_llama
def test_the_end_token_stops_and_is_no_text(judge: Judge) -> None:
    end = SamplingParams(temperature=0, logit_bias={tiny_models.EOS: 1000.0})
    with open_engine(judge) as engine:
        (outputs,) = run(engine, [Request(prompt_of(10), end)])
    assert [(o.new_tokens, o.text, o.finish_reason) for o in outputs] == [((tiny_models.EOS,), "", FinishReason.STOP)]
    assert outputs[0].stop_string is None


def test_interrupt_before_the_stream_ends_it(judge: Judge) -> None:
    prompt = prompt_of(100)
    with open_engine(judge) as engine:
        rid = engine.add(greedy(prompt, 50))
        engine.interrupt()
        outputs = list(engine.stream(rid))
        assert [output.finish_reason for output in outputs if output.finished] == [FinishReason.ABORT]
        assert len(tokens_of(outputs)) <= 1  # none where the step could be cut short
        assert engine.stats().num_blocks_used == 0
        (again,) = run(engine, [greedy(prompt)])
    judge.accepts(prompt, again)


def test_interrupt_from_another_thread_ends_the_stream(judge: Judge) -> None:
    started = threading.Event()
    with open_engine(judge) as engine:

        def interrupt() -> None:
            started.wait()
            engine.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        outputs = []
        for output in engine.stream(engine.add(greedy(prompt_of(100), 1900))):
            outputs.append(output)
            started.set()
        thread.join()
        assert outputs[-1].finish_reason is FinishReason.ABORT
        assert all(output.finish_reason is None for output in outputs[:-1])
        stats = engine.stats()
        assert (stats.num_blocks_used, stats.num_requests_running) == (0, 0)
        assert stats.last_abort_s is not None
        (again,) = run(engine, [greedy(prompt_of(100))])
    judge.accepts(prompt_of(100), again)


# -- refusals ----------------------------------------------------------------------------------------------------------


@only_llama
def test_a_prompt_too_long_is_refused_with_both_numbers(judge: Judge) -> None:
    with open_engine(judge, n_ctx=64) as engine:
        with pytest.raises(PromptTooLong, match=r"64 tokens and the context holds 64") as caught:
            engine.add(greedy(prompt_of(64)))
        assert (caught.value.num_prompt_tokens, caught.value.limit_tokens) == (64, 64)
        assert len(tokens_of(run(engine, [greedy(prompt_of(63))])[0])) == 1
    with open_engine(judge, max_input_tokens=10) as engine:
        with pytest.raises(PromptTooLong, match=r"11 tokens and the input limit holds 10") as caught:
            engine.add(greedy(prompt_of(11)))
        assert (caught.value.num_prompt_tokens, caught.value.limit_tokens) == (11, 10)
        engine.add(greedy(prompt_of(10)))


@only_llama
def test_a_full_queue_refuses_with_its_length_and_takes_requests_again(judge: Judge) -> None:
    with open_engine(judge, max_queue=2, max_num_seqs=1) as engine:
        for _ in range(2):
            engine.add(greedy(prompt_of(5)))
        with pytest.raises(QueueFull, match="2 requests are waiting"):
            engine.add(greedy(prompt_of(5)))
        engine.step()
        engine.add(greedy(prompt_of(5)))
        assert engine.stats().num_requests_waiting == 2


@only_llama
@pytest.mark.parametrize("token", [-1, tiny_models.NUM_VOCAB, 2**31, 2**40])
def test_a_token_outside_the_vocabulary_is_refused_and_the_next_request_served(judge: Judge, token: int) -> None:
    prompt = prompt_of(20)
    with open_engine(judge) as engine:
        with pytest.raises(InvalidRequest, match=f"token id {token} is not in the vocabulary of 320"):
            engine.add(greedy([1, token, 5]))
        with pytest.raises(InvalidRequest, match=r"logit_bias .* vocabulary of 320"):
            engine.add(Request(prompt, SamplingParams(logit_bias={token: 1.0})))
        assert not engine.has_work
        (outputs,) = run(engine, [greedy(prompt)])
    judge.accepts(prompt, outputs)


@only_llama
@pytest.mark.parametrize("tokens", [[1.5, 2.0], ["1"], [[1, 2]], [2**70], [True, False]])
def test_a_prompt_that_is_no_list_of_ids_is_refused(judge: Judge, tokens: list[object]) -> None:
    with open_engine(judge) as engine, pytest.raises(InvalidRequest, match="not a list of token ids"):
        engine.add(Request(tokens))  # type: ignore[arg-type]


# -- sampling and text through the engine ------------------------------------------------------------------------------


@only_llama
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_forces_and_bans(judge: Judge, temperature: float) -> None:
    with open_engine(judge) as engine:
        forced = SamplingParams(temperature=temperature, logit_bias={77: 1000.0}, seed=1)
        (outputs,) = run(engine, [Request(prompt_of(10), forced, max_output_tokens=5)])
        assert tokens_of(outputs) == [77] * 5
        (outputs,) = run(engine, [greedy(prompt_of(10))])
        banned = SamplingParams(temperature=0, ignore_eos=True, logit_bias=dict.fromkeys(tokens_of(outputs), -np.inf))
        (other,) = run(engine, [Request(prompt_of(10), banned, max_output_tokens=NUM_OUTPUT)])
        assert not set(tokens_of(other)) & set(tokens_of(outputs))


@only_llama
def test_logprobs_are_the_models_own_most_likely_first(judge: Judge) -> None:
    prompt = prompt_of(20)
    sampling = SamplingParams(temperature=2.0, top_k=5, seed=3, ignore_eos=True, logprobs=20, logit_bias={9: 5.0})
    with open_engine(judge) as engine:
        (outputs,) = run(engine, [Request(prompt, sampling, max_output_tokens=8)])
    answer = tokens_of(outputs)
    rows = judge.logits([*prompt, *answer[:-1]], len(answer))
    for output, row in zip(outputs, rows, strict=True):
        ((token, logprob, top),) = ((x.token, x.logprob, x.top) for x in output.logprobs)
        log_p = log_softmax(row)
        assert (token,) == output.new_tokens
        assert logprob == pytest.approx(log_p[token], abs=1e-3)
        assert [value for _, value in top] == pytest.approx(np.sort(log_p)[::-1][:20].tolist(), abs=1e-3)
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        assert sum(np.exp(value) for _, value in top) <= 1 + 1e-9


def test_a_seed_gives_the_same_text_whatever_ran_before_or_beside(judge: Judge) -> None:
    """Every token is the arg-max of logits / temperature + noise in the judge's pass over the answer's own history."""
    prompt, seed, temperature = prompt_of(33), 11, 1.5
    sampling = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed, ignore_eos=True)
    request = Request(prompt, sampling, max_output_tokens=NUM_OUTPUT)
    ids = np.arange(tiny_models.NUM_VOCAB, dtype=np.int32)
    with open_engine(judge) as engine:
        (alone,) = run(engine, [request])
        beside, *_ = run(engine, [request, greedy(prompt_of(50)), greedy(prompt_of(7))])
    for outputs in (alone, beside):
        assert outputs[-1].metrics.seed == seed
        answer = tokens_of(outputs)
        assert len(answer) == NUM_OUTPUT
        for step, row in enumerate(judge.logits([*prompt, *answer[:-1]], NUM_OUTPUT)):
            scores = row / temperature + gumbel_noise(seed, len(prompt) + step, ids)
            assert scores[answer[step]] >= scores.max() - TOLERANCE[judge.attention] * (row.max() - row.min())


@only_llama
def test_a_drawn_seed_is_reported_and_gives_the_text_again(judge: Judge) -> None:
    with open_engine(judge) as engine:
        sampling = SamplingParams(temperature=1.5, ignore_eos=True)
        (first,) = run(engine, [Request(prompt_of(12), sampling, max_output_tokens=20)])
        seeded = SamplingParams(temperature=1.5, ignore_eos=True, seed=first[-1].metrics.seed)
        (again,) = run(engine, [Request(prompt_of(12), seeded, max_output_tokens=20)])
    assert tokens_of(first) == tokens_of(again)


def bytes_of(token: int) -> bytes:
    """What the vocabulary of the tiny models says a token is."""
    if token < tiny_models.FIRST_BYTE:
        return b""
    if token < tiny_models.FIRST_WORD:
        return bytes([token - tiny_models.FIRST_BYTE])
    return tiny_models.WORDS[token - tiny_models.FIRST_WORD].replace("▁", " ").encode()


@only_llama
@pytest.mark.parametrize("seed", range(8))
def test_the_pieces_of_an_answer_of_random_bytes_are_its_text(judge: Judge, seed: int) -> None:
    wild = SamplingParams(temperature=50.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed, ignore_eos=True)
    with open_engine(judge) as engine:
        (outputs,) = run(engine, [Request(prompt_of(5), wild, max_output_tokens=80)])
        answer = tokens_of(outputs)
        assert text_of(outputs) == b"".join(map(bytes_of, answer)).decode("utf-8", "replace")
        # llama_detokenize leaves out the space that SentencePiece puts before a text's first word.
        assert engine.detokenize([tiny_models.FIRST_BYTE + ord("x"), *answer]) == "x" + text_of(outputs)


@only_llama
def test_text_goes_to_tokens_and_back(judge: Judge) -> None:
    text = "the cat sat on the naïve 日本 mat 😀\n"
    with open_engine(judge) as engine:
        tokens = engine.tokenize(text, add_special=True, parse_special=False)
        assert tokens[0] == tiny_models.BOS
        assert b"".join(map(bytes_of, tokens)).decode() == " " + text
        assert engine.detokenize(tokens[1:]) == text
        assert engine.tokenize("</s>", add_special=False, parse_special=True) == [tiny_models.EOS]
        assert tiny_models.EOS not in engine.tokenize("</s>", add_special=False, parse_special=False)


@only_llama
def test_a_stop_string_across_a_token_border_ends_the_answer_before_it(judge: Judge) -> None:
    with open_engine(judge) as engine:
        (outputs,) = run(engine, [greedy(prompt_of(15), 40)])
        text = text_of(outputs)
        pieces = [output.text for output in outputs]
        borders = [i for i in range(5, 39) if pieces[i] and pieces[i + 1]]
        assert borders
        for border in borders[:6]:
            stop = pieces[border][-1] + pieces[border + 1][0]
            assert stop not in pieces
            (stopped,) = run(engine, [greedy(prompt_of(15), 40, stop=(stop, "never to be seen"))])
            assert text_of(stopped) == text[: text.find(stop)]
            assert (stopped[-1].finish_reason, stopped[-1].stop_string) == (FinishReason.STOP, stop)
            assert len(stopped) < len(outputs)


def test_a_character_outside_a_vocabulary_without_byte_tokens_is_refused(tmp_path: Path) -> None:
    """llama.cpp ends the process on it."""
    path = tiny_models.write_llama(tmp_path / "tiny.gguf", byte_tokens=False)
    with Engine.open(path, EngineConfig(num_threads=1)) as engine:
        assert engine.tokenize("the hill", add_special=False, parse_special=False)
        for text in ("山", "a\nb"):
            with pytest.raises(InvalidRequest, match="has no token for"):
                engine.tokenize(text, add_special=False, parse_special=False)
