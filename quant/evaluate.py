# How good a model is on a text: perplexity, and how far it is from another one. Two models at a time, in lockstep.
# This file may not know how either was made, nor terminals.
"""Perplexity and Kullback-Leibler divergence by llama-perplexity's method (tools/perplexity/perplexity.cpp).

The text is cut into chunks of `chunk_tokens`; each is computed alone, its first token replaced by BOS where the model
adds one; only tokens in the second half are scored, each from everything before it in its chunk. The reference's logits
are compared as they come, `LOGIT_ROWS` at a time: no file of logits, and memory for so many rows of each model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo, read_model_info
from ingle.quant.activations import begin_with_bos, context_config, cut
from ingle.quant.errors import BadText, DifferentVocabulary
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.loading import load_model

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int32]

CHUNK_TOKENS: Final = 512
NUM_RESAMPLES: Final = 2000
LOGIT_ROWS: Final = 64
"""Scored tokens that are computed together: their logits are still in the processor's cache when they are compared."""

TOGETHER_BYTES: Final = 800_000_000
"""Files that `evaluate_together` has open at a time, beside the reference; one that is larger is open alone."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood; `error`: its standard error, as llama-perplexity reports it."""

    value: float
    error: float
    num_tokens: int  # scored


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model is from its reference, over all scored tokens. KL in nats; `low` to `high` holds the mean with
    95 % confidence (bootstrap over chunks: tokens of one chunk are not independent)."""

    mean_kl: float
    low: float
    high: float
    kl_99: float  # 99 % of tokens are below
    max_kl: float
    same_top: float  # share of tokens with the same likeliest successor
    reference: Perplexity


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found. `chunk_kl`: mean KL of each chunk, for paired comparisons of two models."""

    perplexity: Perplexity
    divergence: Divergence | None
    num_chunks: int
    chunk_tokens: int
    chunk_kl: tuple[float, ...] = ()


class _Scorer:
    """One model with a context for one chunk. `is_mapped`: see `load_model`."""

    def __init__(
        self, path: Path, chunk_tokens: int, config: EngineConfig | None, stack: ExitStack, *, is_mapped: bool = True
    ) -> None:
        self.info = read_model_info(path)
        self._scored = slice(chunk_tokens // 2, chunk_tokens - 1)
        config = context_config(config, chunk_tokens)
        self.model = load_model(path, config, is_mapped=is_mapped)
        stack.callback(self.model.close)
        self._context = LlamaContext(self.model, chunk_tokens, config, num_outputs=LOGIT_ROWS)
        stack.callback(self._context.close)

    def logits(self, chunk: Tokens) -> Iterator[Floats]:
        """[scored tokens, vocab] in pieces."""
        return chunk_logits(self._context, chunk, self._scored, LOGIT_ROWS)


def chunk_logits(context: LlamaContext, chunk: Tokens, scored: slice, num_rows: int) -> Iterator[Floats]:
    """Of the rows `scored` of `chunk`, computed alone, `num_rows` at a time: [rows, vocab], each a view that the next
    decode overwrites. Raises EngineError."""
    context.clear()
    if scored.start:
        _decode(context, chunk, slice(0, scored.start), wanted=False)
    for start in range(scored.start, scored.stop, num_rows):
        rows = slice(start, min(start + num_rows, scored.stop))
        _decode(context, chunk, rows, wanted=True)
        yield context.logits(rows.stop - rows.start)


def _decode(context: LlamaContext, chunk: Tokens, rows: slice, *, wanted: bool) -> None:
    count = rows.stop - rows.start
    context.tokens[:count] = chunk[rows]
    context.positions[:count] = np.arange(rows.start, rows.stop)
    context.wanted[:count] = wanted
    code = context.decode(count, interruptible=False)
    if code:
        raise EngineError(f"llama.cpp gave {code} for a chunk of {len(chunk)} tokens")


def evaluate(
    path: Path,
    text: str,
    *,
    against: Path | None = None,
    max_chunks: int | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    config: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Score the model at `path` on `text`, and compare it with the one at `against`.

    Raises BadText for a text shorter than one chunk, DifferentVocabulary when the two do not have the same tokens,
    ModelError, EngineError.
    """
    if against is not None:
        check_same_vocabulary(read_model_info(path), read_model_info(against))  # before any weights are read
    with ExitStack() as stack:
        model = _Scorer(path, chunk_tokens, config, stack)
        reference = None if against is None else _Scorer(against, chunk_tokens, config, stack)
        chunks = _chunks(model.model, model.info, text, chunk_tokens)[:max_chunks]
        return _score([model], reference, chunks, progress)[0]


def evaluate_together(
    paths: Sequence[Path],
    chunks: Sequence[Tokens],
    *,
    against: Path,
    config: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Evaluation]:
    """Compare all models at `paths` with the one at `against`, on `chunks` (all of one length).

    As many are open at a time as `TOGETHER_BYTES` allow, and what the reference computes serves all of these. They are
    not mapped, for what llama.cpp repacks would be there twice. Raises as `evaluate` does.
    """
    infos = [read_model_info(path) for path in paths]
    for info in infos:
        check_same_vocabulary(info, read_model_info(against))
    found: list[Evaluation] = []
    groups = _groups([info.size_bytes for info in infos])
    for number, group in enumerate(groups):
        with ExitStack() as stack:
            reference = _Scorer(against, len(chunks[0]), config, stack)
            models = [_Scorer(path, len(chunks[0]), config, stack, is_mapped=False) for path in paths[group]]
            part = _part_of(progress, number, len(groups))
            found += _score(models, reference, chunks, part)
    return found


def _groups(sizes: Sequence[int]) -> list[slice]:
    """Neighbours that fit into TOGETHER_BYTES."""
    starts, used = [0], 0
    for number, size in enumerate(sizes):
        if used and used + size > TOGETHER_BYTES:
            starts.append(number)
            used = 0
        used += size
    return [slice(start, end) for start, end in pairwise([*starts, len(sizes)])]


def _part_of(progress: Callable[[int, int], None], number: int, num_parts: int) -> Callable[[int, int], None]:
    return lambda done, total: progress(number * total + done, num_parts * total)


def text_chunks(path: Path, text: str, *, max_chunks: int | None = None) -> list[Tokens]:
    """`text` as `evaluate` cuts it for the model at `path`; of a long one `max_chunks`, evenly spread.

    Raises BadText.
    """
    model = LlamaModel(path, 0)
    try:
        chunks = _chunks(model, read_model_info(path), text, CHUNK_TOKENS)
    finally:
        model.close()
    if max_chunks is not None and len(chunks) > max_chunks:
        chunks = [chunks[i] for i in np.linspace(0, len(chunks) - 1, max_chunks, dtype=np.int64)]
    return chunks


def _score(
    models: Sequence[_Scorer],
    reference: _Scorer | None,
    chunks: Sequence[Tokens],
    progress: Callable[[int, int], None],
) -> list[Evaluation]:
    chunk_tokens = len(chunks[0])
    found: list[list[Rows]] = [[] for _ in models]
    own: list[list[Doubles]] = [[] for _ in models]
    scorers = [*models, *([] if reference is None else [reference])]
    for number, chunk in enumerate(chunks):
        progress(number, len(chunks))
        left = chunk[chunk_tokens // 2 + 1 :]
        parts: list[list[Rows]] = [[] for _ in models]
        for pieces in zip(*(scorer.logits(chunk) for scorer in scorers), strict=True):
            targets, left = left[: len(pieces[0])], left[len(pieces[0]) :]
            for logits, rows, nlls in zip(pieces, parts, own, strict=False):
                if reference is None:
                    nlls.append(-log_likelihoods(logits, targets))
                else:
                    rows.append(compare(pieces[-1], logits, targets))
                    nlls.append(rows[-1].nll)
        for rows, of_chunk in zip(found, parts, strict=True):
            rows += [joined(of_chunk)] if of_chunk else []
    progress(len(chunks), len(chunks))
    return [
        Evaluation(
            _perplexity(nlls),
            _divergence(rows) if rows else None,
            len(chunks),
            chunk_tokens,
            tuple(float(row.kl.mean()) for row in rows),
        )
        for rows, nlls in zip(found, own, strict=True)
    ]


def _chunks(model: LlamaModel, info: ModelInfo, text: str, chunk_tokens: int) -> list[Tokens]:
    tokens = model.tokenize(text, add_special=True, parse_special=False)
    if len(tokens) < chunk_tokens:
        raise BadText(
            f"the text has {len(tokens)} tokens, and {chunk_tokens} are scored at a time", "give a longer text"
        )
    return begin_with_bos(cut(tokens, chunk_tokens), info)


def check_same_vocabulary(one: ModelInfo, other: ModelInfo) -> None:
    """Raise DifferentVocabulary unless token ids mean the same to both models."""
    if one.vocab_size != other.vocab_size:
        raise DifferentVocabulary(
            f"{one.path.name} has {one.vocab_size} tokens and {other.path.name} has {other.vocab_size}",
            "compare a model with the one it was made from",
        )
    key = "tokenizer.ggml.tokens"
    if key in one.arrays and one.read_array(key) != other.read_array(key):
        raise DifferentVocabulary(
            f"the tokens of {one.path.name} and {other.path.name} are not the same",
            "compare a model with the one it was made from",
        )


# -- arithmetic --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Scored tokens of a chunk, [rows] each."""

    nll: Doubles
    reference_nll: Doubles
    kl: Doubles
    same_top: npt.NDArray[np.bool_]


def log_likelihoods(logits: Floats, targets: Tokens) -> Doubles:
    """log p of the target token in each row: logits [rows, vocab], targets [rows]."""
    tops = logits.max(axis=1)
    sums = np.exp(logits - tops[:, None]).sum(axis=1, dtype=np.float64)
    return np.asarray(logits[np.arange(len(logits)), targets] - tops - np.log(sums), np.float64)


def compare(reference: Floats, logits: Floats, targets: Tokens) -> Rows:
    """KL(reference ‖ model) and what goes with it, row by row; logits [rows, vocab] of both."""
    index = np.arange(len(targets))
    our_top, their_top = logits.argmax(axis=1), reference.argmax(axis=1)
    our_max, their_max = logits[index, our_top], reference[index, their_top]
    p = np.exp(reference - their_max[:, None])
    their_sum = p.sum(axis=1, dtype=np.float64)
    our_log = our_max + np.log(np.exp(logits - our_max[:, None]).sum(axis=1, dtype=np.float64))
    their_log = their_max + np.log(their_sum)
    gaps = np.einsum("ij,ij->i", p, reference - logits, dtype=np.float64) / their_sum
    return Rows(
        nll=our_log - logits[index, targets],
        reference_nll=their_log - reference[index, targets],
        kl=np.maximum(gaps - their_log + our_log, 0.0),
        same_top=our_top == their_top,
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """One after the other."""
    names = ("nll", "reference_nll", "kl", "same_top")
    return Rows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _perplexity(nlls: Sequence[Doubles]) -> Perplexity:
    nll = np.concatenate(nlls)
    value = math.exp(nll.mean()) if nll.mean() < 700 else math.inf
    spread = float(nll.std()) / math.sqrt(max(len(nll) - 1, 1))
    return Perplexity(value, spread * value, len(nll))


def _divergence(rows: Sequence[Rows]) -> Divergence:
    kl = np.concatenate([row.kl for row in rows])
    low, high = interval(np.array([row.kl.mean() for row in rows]))
    return Divergence(
        mean_kl=float(kl.mean()),
        low=low,
        high=high,
        kl_99=float(np.quantile(kl, 0.99)),
        max_kl=float(kl.max()),
        same_top=float(np.concatenate([row.same_top for row in rows]).mean()),
        reference=_perplexity([row.reference_nll for row in rows]),
    )


def interval(chunk_means: Doubles) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of `chunk_means` (percentiles; the same draws every time)."""
    draws = np.random.default_rng(0).integers(0, len(chunk_means), (NUM_RESAMPLES, len(chunk_means)))
    low, high = np.quantile(chunk_means[draws].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
