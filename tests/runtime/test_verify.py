# Verification is lossless: whatever the drafts are, what comes out is what plain sampling with that seed gives.
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ingle.runtime.request import SamplingParams
from ingle.runtime.sampler import Sampler, gumbel_noise
from ingle.runtime.verify import verify

NUM_WORDS = 6
PLAIN = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)

Array = npt.NDArray[np.float32]
Drafter = Callable[[np.ndarray, int, int], list[int]]


class Toy:
    """A language model that looks at the last two tokens: a table of logits [words, words, words]."""

    def __init__(self, seed: int, spread: float = 1.5) -> None:
        self.table = (spread * np.random.default_rng(seed).standard_normal((NUM_WORDS,) * 3)).astype(np.float32)

    def row(self, tokens: np.ndarray) -> Array:
        return self.table[int(tokens[-2]), int(tokens[-1])]

    def rows(self, tokens: np.ndarray, num: int) -> Array:
        """[num, words]: after each of the last `num` prefixes."""
        return np.stack([self.row(tokens[: len(tokens) - num + 1 + number]) for number in range(num)])


def speculate(
    toy: Toy, sampler: Sampler, drafter: Drafter, prompt: list[int], num_tokens: int, num_drafts: int = 3
) -> list[int]:
    """Draft, verify, and so on, as the engine does."""
    tokens = np.asarray(prompt, np.int32)
    while len(tokens) < len(prompt) + num_tokens:
        drafts = np.asarray(drafter(tokens, sampler.seed, num_drafts), np.int32)
        both = np.concatenate([tokens, drafts])
        new = list(verify(toy.rows(both, 1 + len(drafts)), both, sampler))
        assert 1 <= len(new) <= 1 + len(drafts)
        assert new[:-1] == drafts[: len(new) - 1].tolist()
        tokens = np.concatenate([tokens, np.asarray(new, np.int32)])
    return tokens[len(prompt) : len(prompt) + num_tokens].tolist()


def plainly(toy: Toy, sampler: Sampler, prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        so_far = np.asarray(tokens, np.int32)
        tokens.append(sampler.sample(toy.row(so_far), so_far))
    return tokens[len(prompt) :]


def coupled(model: Toy) -> Drafter:
    """Draws from another model with the target's noise."""

    def draft(tokens: np.ndarray, seed: int, num: int) -> list[int]:
        return plainly(model, Sampler(PLAIN, seed, None), tokens.tolist(), num)

    return draft


def independent(tokens: np.ndarray, seed: int, num: int) -> list[int]:
    return np.random.default_rng([seed, len(tokens)]).integers(0, NUM_WORDS, num).tolist()


def stubborn(tokens: np.ndarray, seed: int, num: int) -> list[int]:
    return [0] * num


def adversary(toy: Toy) -> Drafter:
    """Drafts the least likely token, always."""

    def draft(tokens: np.ndarray, seed: int, num: int) -> list[int]:
        found: list[int] = []
        for _ in range(num):
            found.append(int(toy.row(np.asarray([*tokens, *found], np.int32)).argmin()))
        return found

    return draft


def oracle(toy: Toy, params: SamplingParams) -> Drafter:
    """Knows what is coming, and is wrong on purpose now and then."""

    def draft(tokens: np.ndarray, seed: int, num: int) -> list[int]:
        found = plainly(toy, Sampler(params, seed, None), tokens.tolist(), num)
        if seed % 3 == 0:
            found[-1] = (found[-1] + 1) % NUM_WORDS
        return found[: seed % (num + 1)]

    return draft


def drafters(toy: Toy, params: SamplingParams = PLAIN) -> dict[str, Drafter]:
    return {
        "coupled": coupled(Toy(77)),
        "close": coupled(_close(toy)),
        "independent": independent,
        "stubborn": stubborn,
        "adversary": adversary(toy),
        "oracle": oracle(toy, params),
        "none": lambda tokens, seed, num: [],
    }


def _close(toy: Toy) -> Toy:
    other = Toy(0)
    other.table = toy.table + 0.3 * Toy(5).table
    return other


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.5, "repeat_penalty": 1.3, "presence_penalty": 0.4, "penalty_last_n": 5},
        {"temperature": 1.7, "logit_bias": {2: 1.0, 3: -float("inf")}, "frequency_penalty": 0.3},
    ],
)
def test_token_for_token_what_plain_sampling_gives(sampling: dict) -> None:
    params = SamplingParams(**({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0} | sampling))
    for seed in range(12):
        toy = Toy(seed)
        expected = plainly(toy, Sampler(params, seed, None), [1, 2], 25)
        for name, drafter in drafters(toy, params).items():
            assert speculate(toy, Sampler(params, seed, None), drafter, [1, 2], 25) == expected, name


@pytest.mark.parametrize("name", ["coupled", "adversary", "oracle"])
def test_50_000_draws_are_distributed_as_the_target_says(name: str) -> None:
    """Two tokens drawn by 25,000 seeds: the first behind a fixed context, the second given the first."""
    toy = Toy(3)
    drafter = drafters(toy)[name]
    pairs = np.asarray([speculate(toy, Sampler(PLAIN, seed, None), drafter, [4, 1], 2, 1) for seed in range(25_000)])
    first = softmax(toy.row(np.asarray([4, 1])))
    assert chisquare(np.bincount(pairs[:, 0], minlength=NUM_WORDS), len(pairs) * first).pvalue > 0.001
    joint = np.concatenate([first[word] * softmax(toy.row(np.asarray([1, word]))) for word in range(NUM_WORDS)])
    found = np.bincount(pairs[:, 0] * NUM_WORDS + pairs[:, 1], minlength=NUM_WORDS**2)
    assert chisquare(found, len(pairs) * joint).pvalue > 0.001


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.5])
def test_coupled_draws_agree_as_often_as_they_must(spread: float) -> None:
    """At least (1 − d)/(1 + d) for distributions at total-variation distance d (Daliri, Musco, Suresh 2024)."""
    rng = np.random.default_rng(int(10 * spread))
    ids = np.arange(50, dtype=np.int32)
    num_draws = 4000
    for _ in range(8):
        p, q = (softmax(spread * rng.standard_normal(50)) for _ in range(2))
        distance = 0.5 * np.abs(p - q).sum()
        agreed = 0
        for seed in range(num_draws):
            noise = gumbel_noise(seed, 7, ids)
            agreed += int((np.log(p) + noise).argmax() == (np.log(q) + noise).argmax())
        least = (1 - distance) / (1 + distance)
        assert agreed / num_draws >= least - 4 * np.sqrt(least * (1 - least) / num_draws)
        assert agreed / num_draws <= 1 - distance + 0.03  # the optimum of any coupling


@given(st.lists(st.integers(0, 3), min_size=0, max_size=6), st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_accepts_up_to_the_first_difference_and_one_more(drafts: list[int], choices: list[int]) -> None:
    class Scripted:
        def sample(self, logits: Array, tokens: np.ndarray) -> int:
            assert tokens.tolist() == [9, 8, *drafts[: int(logits[0])]]
            return choices[int(logits[0])]

    rows = np.arange(1 + len(drafts), dtype=np.float32).reshape(-1, 1)
    tokens = np.asarray([9, 8, *drafts], np.int32)
    found = []
    for token in verify(rows, tokens, Scripted()):
        tokens = tokens.copy()
        found.append(token)
    num_right = next((i for i, draft in enumerate(drafts) if draft != choices[i]), len(drafts))
    assert found == choices[: num_right + 1]


def test_nothing_is_drawn_beyond_what_is_asked_for() -> None:
    drawn = []

    class Counting:
        def sample(self, logits: Array, tokens: np.ndarray) -> int:
            drawn.append(len(tokens))
            return 1

    tokens = np.asarray([5, 1, 1, 1], np.int32)
    for number, _ in enumerate(verify(np.zeros((4, 2), np.float32), tokens, Counting())):
        if number == 1:
            break
    assert drawn == [1, 2]


def softmax(logits: npt.NDArray) -> npt.NDArray[np.float64]:
    values = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return values / values.sum()
