# Perplexity and divergence: against float64 written out, and against a token-by-token reading of the definition.
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ingle.quant.activations import context_config
from ingle.quant.errors import BadText, DifferentVocabulary
from ingle.quant.evaluate import compare, evaluate, interval, log_likelihoods
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from tests.quant.architectures import rewrite
from tests.tiny_models import BOS, WORDS, write_llama

TEXT = " ".join(word.strip("▁") for word in WORDS for _ in range(3))
CHUNK = 32


def log_softmax(logits: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    exact = logits.astype(np.float64)
    return (
        exact
        - exact.max(axis=1, keepdims=True)
        - np.log(np.exp(exact - exact.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    )


def test_arithmetic_against_float64() -> None:
    rng = np.random.default_rng(10)
    ours, theirs = (rng.normal(0, 6, (150, 997)).astype(np.float32) for _ in range(2))
    theirs[:75] = ours[:75] + rng.normal(0, 0.1, (75, 997)).astype(np.float32)
    targets = rng.integers(0, 997, 150).astype(np.int32)
    p, q = log_softmax(theirs), log_softmax(ours)
    index = np.arange(150)
    rows = compare(theirs, ours, targets)
    np.testing.assert_allclose(rows.nll, -q[index, targets], rtol=1e-5)
    np.testing.assert_allclose(rows.reference_nll, -p[index, targets], rtol=1e-5)
    np.testing.assert_allclose(rows.kl, (np.exp(p) * (p - q)).sum(axis=1), rtol=1e-4, atol=1e-6)
    assert rows.same_top.tolist() == (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
    np.testing.assert_allclose(log_likelihoods(ours, targets), q[index, targets], rtol=1e-5)


def test_perplexity_is_llama_perplexitys(tmp_path: Path) -> None:
    """Each chunk alone, BOS in place of its first token, tokens from the middle on, one decode a token."""
    path = write_llama(tmp_path / "model.gguf")
    model = LlamaModel(path, 0)
    tokens = model.tokenize(TEXT, add_special=True, parse_special=False)
    context = LlamaContext(model, 256, context_config(None, 1))
    nll = []
    for start in range(0, len(tokens) - CHUNK + 1, CHUNK):
        chunk = [BOS, *tokens[start + 1 : start + CHUNK]]
        context.clear()
        for position in range(CHUNK - 1):
            context.tokens[0], context.positions[0], context.wanted[0] = chunk[position], position, 1
            assert context.decode(1, interruptible=False) == 0
            if position >= CHUNK // 2:
                nll.append(-log_softmax(context.logits(1))[0, chunk[position + 1]])
    context.close()
    model.close()
    found = evaluate(path, TEXT, chunk_tokens=CHUNK)
    assert found.num_chunks == len(tokens) // CHUNK
    assert found.perplexity.num_tokens == len(nll) == found.num_chunks * 15
    assert found.perplexity.value == pytest.approx(math.exp(np.mean(nll)), rel=1e-3)
    assert found.divergence is None
    assert evaluate(path, TEXT, chunk_tokens=CHUNK, max_chunks=2).num_chunks == 2


def test_a_model_does_not_differ_from_itself(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    found = evaluate(path, TEXT, against=path, chunk_tokens=CHUNK)
    assert found.divergence is not None
    assert found.divergence.mean_kl < 1e-7
    assert found.divergence.same_top == 1
    assert found.divergence.reference == found.perplexity


def test_a_coarser_model_differs_more(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    means = []
    for size in (0.01, 0.1):
        rng = np.random.default_rng(11)
        other = rewrite(
            path, tmp_path / f"{size}.gguf", lambda _, v, s=size, r=rng: v + s * v.std() * r.normal(size=v.shape)
        )
        found = evaluate(other, TEXT, against=path, chunk_tokens=CHUNK).divergence
        assert found is not None
        assert 0 < found.low <= found.mean_kl <= found.high
        assert found.mean_kl <= found.max_kl
        means.append(found.mean_kl)
    assert means[1] > 20 * means[0]


def test_the_interval_holds_the_mean() -> None:
    values = np.random.default_rng(12).exponential(1, 100)
    low, high = interval(values)
    half = 1.96 * values.std() / 10
    assert low == pytest.approx(values.mean() - half, abs=0.04)
    assert high == pytest.approx(values.mean() + half, abs=0.04)
    assert interval(np.array([0.5])) == (0.5, 0.5)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "model.gguf")
    with pytest.raises(BadText, match="the text has 12 tokens, and 512 are scored at a time"):
        evaluate(path, "the cat sat")
    other = write_llama(tmp_path / "other.gguf", byte_tokens=False)
    monkeypatch.delattr("ingle.quant.evaluate.load_model")  # before any weights are read
    with pytest.raises(DifferentVocabulary, match=r"the tokens of model\.gguf and other\.gguf are not the same"):
        evaluate(path, TEXT, against=other, chunk_tokens=CHUNK)
