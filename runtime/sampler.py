"""Choosing the next token from a row of logits. A function of logits, tokens so far, settings, seed and position: no
state that a rejected draft or another sequence in the batch could disturb.

Penalties and bias touch the few logits they concern; llama.cpp's chain filters the candidates; the draw is ours, by the
Gumbel-max trick (Gumbel 1954; Maddison et al. 2014): argmax over log p_i + g(seed, position, i), with the noise g
hashed from its arguments. The same seed gives the same text whatever else ran beside it, and a draft model that draws
with the same noise agrees with the target as often as their distributions allow.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ingle.runtime.request import SamplingParams, TokenLogprob
from ingle.runtime.step import Logits, Tokens

Ids = npt.NDArray[np.int32]


class Filters(Protocol):
    """What llama.cpp's chain does (`runtime.llama.FilterChain`)."""

    def apply(self, logits: Logits) -> tuple[Ids, Logits]: ...


SURE_LEAD = 2.0
"""A choice that leads the next best by so much is a sure one."""


class Sampler:
    """The choices of one request. `filters` ``None``: every token is a candidate. Of what `sample` chose,
    `num_sure` of `num_chosen` were sure, counted while `counts_sure`."""

    def __init__(self, params: SamplingParams, seed: int, filters: Filters | None) -> None:
        self.params = params
        self.seed = seed
        self.counts_sure = False
        self.num_chosen = self.num_sure = 0
        self._filters = filters
        bias = params.logit_bias
        self._bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self._bias = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self._plain = params.temperature == 0 and not params.has_penalties and not len(bias)

    def sample(self, logits: Logits, tokens: Tokens) -> int:
        """The token that follows `tokens`, given its row of `logits` [vocab] (left as it is)."""
        if self.counts_sure:
            token, lead = self.sample_and_lead(logits, tokens)
            self.num_chosen += 1
            self.num_sure += lead >= SURE_LEAD
            return token
        ids, scores = self._scores(logits, tokens)
        best = int(scores.argmax())
        return best if ids is None else int(ids[best])

    def sample_and_lead(self, logits: Logits, tokens: Tokens) -> tuple[int, float]:
        """What `sample` gives, and by how much its score leads the next best: what another model would have to see
        otherwise to choose otherwise. Scores are logits at temperature 0, else log-probabilities with their noise."""
        ids, scores = self._scores(logits, tokens)
        best = int(scores.argmax())
        second = max(scores[:best].max(initial=-np.inf), scores[best + 1 :].max(initial=-np.inf))
        return best if ids is None else int(ids[best]), float(scores[best] - second)

    def _scores(self, logits: Logits, tokens: Tokens) -> tuple[Ids | None, npt.NDArray[np.floating]]:
        """Candidates, None for all there are, and what each has; the highest is chosen."""
        if self._plain:
            return None, logits
        logits = self._adjusted(logits, tokens)
        if self.params.temperature == 0:
            return None, logits
        if self._filters is None:
            ids = np.arange(len(logits), dtype=np.int32)
        else:
            ids, logits = self._filters.apply(logits)
        noise = gumbel_noise(self.seed, len(tokens), ids)
        # The noise is on log p; log p and (logits − max) / T differ by a constant, which an argmax does not see.
        with np.errstate(over="ignore"):  # a tiny T sends all but the best to −inf
            return ids, (logits - logits.max()).astype(np.float64) / self.params.temperature + noise

    def logprob(self, logits: Logits, token: int) -> TokenLogprob | None:
        """The log-probability of `token` under the unfiltered `logits` [vocab], if the request asked for it."""
        if self.params.logprobs is None:
            return None
        shifted = logits.astype(np.float64) - float(logits.max())
        log_p = shifted - np.log(np.exp(shifted).sum())
        count = min(self.params.logprobs, len(log_p))
        top = np.argpartition(log_p, -count)[len(log_p) - count :]
        top = top[np.argsort(-log_p[top], kind="stable")]
        return TokenLogprob(token, float(log_p[token]), tuple((int(i), float(log_p[i])) for i in top))

    def _adjusted(self, logits: Logits, tokens: Tokens) -> Logits:
        """A copy of `logits` with bias and penalties applied, by llama.cpp's rules (llama_sampler_penalties_apply)."""
        logits = logits.copy()
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        params = self.params
        if params.has_penalties:
            window = tokens if params.penalty_last_n < 0 else tokens[-params.penalty_last_n :]
            ids, counts = np.unique(window, return_counts=True)
            seen = logits[ids]
            seen = np.where(seen <= 0, seen * params.repeat_penalty, seen / params.repeat_penalty)
            logits[ids] = seen - counts * params.frequency_penalty - params.presence_penalty
        return logits


def needs_filters(params: SamplingParams) -> bool:
    """Whether any of llama.cpp's filters is on (at temperature 0 none changes the arg-max)."""
    return params.temperature > 0 and (
        params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0 or params.typical_p < 1.0
    )


def gumbel_noise(seed: int, position: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise [n] for token `ids` at `position`: −log(−log u), u uniform in (0, 1), hashed from the
    arguments.
    """
    state = _mix(np.array([seed ^ (position * 0x9E3779B97F4A7C15) & _MASK], dtype=np.uint64))
    bits = _mix(_mix(state + ids.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)))
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))


_MASK = 2**64 - 1


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
