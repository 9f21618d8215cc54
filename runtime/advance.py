"""What a step adds to one request: tokens chosen one by one until the drafts are used up or the text ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ingle.runtime.request import FinishReason, TokenLogprob
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import Logits
from ingle.runtime.verify import verify


@dataclass(frozen=True, slots=True)
class Advance:
    """`tokens`, at least one: all but the last were drafts (or the last, too, where the text ends with it)."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    reason: FinishReason | None


def advance(sequence: Sequence, logits: Logits, is_eog: Callable[[int], bool]) -> Advance:
    """Choose what follows in `sequence` from `logits` [1 + drafts, vocab], and append it; what a stop string, the end
    of the answer or the limit cuts off is not even drawn."""
    sampler = sequence.sampler
    sampling = sequence.request.sampling
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    text = ""
    reason: FinishReason | None = None
    for token in verify(logits, sequence.tokens_and_drafts, sampler):
        logprob = sampler.logprob(logits[len(tokens)], token)
        if logprob is not None:
            logprobs.append(logprob)
        tokens.append(token)
        sequence.append(token)
        ends = not sampling.ignore_eos and is_eog(token)
        text += "" if ends else sequence.text.push(token)
        if ends or sequence.text.stopped_by is not None:
            reason = FinishReason.STOP
        elif sequence.num_tokens >= sequence.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            break
    sequence.metrics.note_tokens(time.perf_counter(), len(tokens))
    return Advance(tuple(tokens), text, tuple(logprobs), reason)
