"""Same text: at temperature 0 a request's tokens do not depend on what ran beside it, before it, or instead of it.

Kernels may sum in another order when a batch has another shape, so "same" needs a yardstick: bare llama.cpp contexts,
with no code of ours in between, compute the same tokens alone, beside others and in one prompt, and the largest
difference between their logits is the noise of this machine (0 for the default model on most). Where the engine
chooses another token, the two best must be closer than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ingle.runtime.config import EngineConfig
from ingle.runtime.engine import Engine
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.request import Request, RequestId, SamplingParams

NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Europe and the seas they flow into.",
    "def fibonacci(n):",
    "The fox ran over the hill and",
    "Translate to French: good morning.",
    "1 2 3 5 8 13",
    "Write a haiku about autumn. Explain the form first, and do it briefly, so that a child would understand it.",
    "What is a KV cache?",
)


@dataclass(frozen=True)
class Reference:
    """What bare llama.cpp gives for each prompt: tokens [8][NUM_TOKENS], their logits, and the noise between batch
    shapes.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    logits: list[np.ndarray]  # [NUM_TOKENS, vocab] each
    noise: float

    def check(self, number: int, tokens: list[int]) -> None:
        """The engine's `tokens` for prompt `number` are the reference's, up to a tie within the noise."""
        assert len(tokens) == NUM_TOKENS
        for i, (ours, theirs) in enumerate(zip(tokens, self.tokens[number], strict=True)):
            if ours != theirs:
                row = self.logits[number][i]
                gap = float(row[theirs] - row[ours])
                assert gap <= self.noise, f"prompt {number}, token {i}: {ours} for {theirs}, logits {gap} apart"
                return  # another continuation from here on


def bare_rows(context: LlamaContext, rows: list[tuple[int, int, int, bool]]) -> np.ndarray:
    """Decode (slot, position, token, wanted) rows; the wanted logits, copied."""
    for i, (slot, position, token, wanted) in enumerate(rows):
        context.slots[i], context.positions[i], context.tokens[i], context.wanted[i] = slot, position, token, wanted
    assert context.decode(len(rows), interruptible=False) == 0
    return context.logits(sum(row[3] for row in rows)).copy()


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(smollm2_path, 0)
    yield model
    model.close()


@pytest.fixture(scope="module")
def reference(model: LlamaModel) -> Reference:
    prompts = [model.tokenize(text, add_special=True, parse_special=False) for text in QUESTIONS]
    config = EngineConfig(max_num_seqs=NUM_TOKENS)
    context = LlamaContext(model, 1024, config)
    tokens: list[list[int]] = []
    logits: list[np.ndarray] = []
    for prompt in prompts:  # alone, a token at a time
        rows = [(0, i, token, i == len(prompt) - 1) for i, token in enumerate(prompt)]
        found = [bare_rows(context, rows)[0]]
        answer = [int(found[0].argmax())]
        while len(answer) < NUM_TOKENS:
            found.append(bare_rows(context, [(0, len(prompt) + len(answer) - 1, answer[-1], True)])[0])
            answer.append(int(found[-1].argmax()))
        context.drop_cells(0, 0)
        tokens.append(answer)
        logits.append(np.array(found))
    noise = 0.0
    for number, prompt in enumerate(prompts):  # in one prompt
        whole = prompt + tokens[number][:-1]
        rows = [(0, i, token, i >= len(prompt) - 1) for i, token in enumerate(whole)]
        noise = max(noise, float(np.abs(bare_rows(context, rows) - logits[number]).max()))
        context.drop_cells(0, 0)
    for number, prompt in enumerate(prompts):  # beside each other
        bare_rows(context, [(number, i, token, i == len(prompt) - 1) for i, token in enumerate(prompt)])
    for i in range(NUM_TOKENS - 1):
        rows = [(number, len(prompt) + i, tokens[number][i], True) for number, prompt in enumerate(prompts)]
        together = bare_rows(context, rows)
        for number in range(len(prompts)):
            noise = max(noise, float(np.abs(together[number] - logits[number][i + 1]).max()))
    context.close()
    return Reference(prompts, tokens, logits, noise)


def run(engine: Engine, prompts: list[list[int]], num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """Run all prompts together, greedily; their answers."""
    ids = [engine.add(Request(prompt, GREEDY, max_output_tokens=num_tokens)) for prompt in prompts]
    answers: dict[RequestId, list[int]] = {rid: [] for rid in ids}
    while engine.has_work:
        for output in engine.step():
            answers[output.request_id] += output.new_tokens
    return [answers[rid] for rid in ids]


def test_alone(smollm2_path: Path, reference: Reference) -> None:
    with Engine.open(smollm2_path, EngineConfig(check_integrity=True)) as engine:
        for number, prompt in enumerate(reference.prompts):
            (answer,) = run(engine, [prompt])
            reference.check(number, answer)


def test_in_a_batch_of_eight_unrelated_requests(smollm2_path: Path, reference: Reference) -> None:
    with Engine.open(smollm2_path, EngineConfig(max_num_seqs=8, check_integrity=True)) as engine:
        for number, answer in enumerate(run(engine, reference.prompts)):
            reference.check(number, answer)
        assert engine.stats().num_preemptions == 0


def test_with_chunked_prefill_and_late_arrivals(smollm2_path: Path, reference: Reference) -> None:
    config = EngineConfig(max_num_seqs=3, n_batch=16, prefill_chunk=5, check_integrity=True)
    with Engine.open(smollm2_path, config) as engine:
        for number, answer in enumerate(run(engine, reference.prompts)):
            reference.check(number, answer)


def test_after_a_prefix_hit(smollm2_path: Path, reference: Reference) -> None:
    with Engine.open(smollm2_path, EngineConfig(check_integrity=True)) as engine:
        for number, prompt in enumerate(reference.prompts):
            run(engine, [prompt])
            for cut in (1, 7, 20, NUM_TOKENS - 1):  # continue the answer from the middle, as a next turn would
                before = engine.stats().prefix_cache_hits_tokens
                (answer,) = run(engine, [prompt + reference.tokens[number][:cut]], NUM_TOKENS - cut)
                assert engine.stats().prefix_cache_hits_tokens - before >= len(prompt) + cut - 1
                reference.check(number, reference.tokens[number][:cut] + answer)


def test_after_a_preemption(smollm2_path: Path, reference: Reference) -> None:
    config = EngineConfig(n_ctx=256, kv_tokens=256, initial_kv_tokens=256, max_num_seqs=8, check_integrity=True)
    with Engine.open(smollm2_path, config) as engine:
        for number, answer in enumerate(run(engine, reference.prompts)):
            reference.check(number, answer)
        assert engine.stats().num_preemptions > 0


def test_in_a_pool_that_grows_three_times(smollm2_path: Path, reference: Reference) -> None:
    config = EngineConfig(initial_kv_tokens=256, max_num_seqs=8, check_integrity=True)
    filler = reference.prompts[0] * 30
    with Engine.open(smollm2_path, config) as engine:
        longs = [engine.add(Request(filler[i:], GREEDY, max_output_tokens=200, cache_salt=str(i))) for i in range(3)]
        answers: list[list[int]] = []
        for number, prompt in enumerate(reference.prompts):
            rid = engine.add(Request(prompt, GREEDY, max_output_tokens=NUM_TOKENS))
            answers.append([token for output in engine.stream(rid) for token in output.new_tokens])
            reference.check(number, answers[-1])
        assert engine.stats().num_pool_resizes >= 3
        for rid in longs:
            engine.abort(rid)
        assert engine.stats().num_blocks_used == 0


def test_after_an_interrupted_prefill(smollm2_path: Path, reference: Reference) -> None:
    with Engine.open(smollm2_path, EngineConfig(check_integrity=True)) as engine:
        rid = engine.add(Request(reference.prompts[0] * 40, GREEDY, max_output_tokens=1))
        engine.interrupt()  # the next step is cut short in the middle of its decode
        first = engine.step()
        assert first == []
        engine.abort(rid)
        assert engine.stats().num_blocks_used == 0
        (answer,) = run(engine, [reference.prompts[0]])
        reference.check(0, answer)
