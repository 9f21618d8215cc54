# The choice of a token against independent implementations: softmax counts, numpy filters, llama.cpp's own penalties.
from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ingle.runtime.llama import lib
from ingle.runtime.llama_context import FilterChain
from ingle.runtime.request import SamplingParams
from ingle.runtime.sampler import SURE_LEAD, Sampler, gumbel_noise, needs_filters

Logits = npt.NDArray[np.float32]

OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # no filters

# Critical values: the 0.999 quantile of chi-square by degrees of freedom (Abramowitz & Stegun, table 26.8). A correct
# sampler exceeds it for one seed in a thousand; the seeds here are fixed, so each of these tests always gives the same.
CHI_SQUARE_999 = {7: 24.322, 15: 37.697, 19: 43.820, 99: 148.230}


def chi_square(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    assert expected.min() >= 5, "too few draws for the chi-square approximation"
    return float(((counts - expected) ** 2 / expected).sum())


def sampler(seed: int = 0, filters: FilterChain | None = None, **params: object) -> Sampler:
    return Sampler(SamplingParams(**(OPEN | params)), seed, filters)  # type: ignore[arg-type]


def tokens(*ids: int) -> npt.NDArray[np.int32]:
    return np.asarray(ids, dtype=np.int32)


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    normalized: npt.NDArray[np.float64] = weights / weights.sum()
    return normalized


logit_rows = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-20, 20, width=32))


# -- the draw ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_draws_are_distributed_as_softmax_of_logits_over_temperature(temperature: float, vary: str) -> None:
    logits = np.array([0.0, 0.3, -0.5, 1.0, 0.9, -1.0, 0.1, 0.6], dtype=np.float32)
    num_draws = 8000
    counts = np.zeros(8, dtype=np.int64)
    history = np.zeros(num_draws, dtype=np.int32)
    for i in range(num_draws):
        if vary == "seed":
            counts[sampler(i, temperature=temperature).sample(logits, history[:5])] += 1
        else:
            counts[sampler(5, temperature=temperature).sample(logits, history[:i])] += 1
    assert chi_square(counts, num_draws * softmax(logits / np.float64(temperature))) < CHI_SQUARE_999[7]


def test_filtered_draws_are_distributed_as_softmax_over_the_candidates() -> None:
    logits = np.linspace(-1.0, 1.0, 30, dtype=np.float32)
    chain = FilterChain(30, top_k=8, typical_p=1.0, top_p=1.0, min_p=0.0)
    counts = np.zeros(30, dtype=np.int64)
    for seed in range(8000):
        counts[sampler(seed, chain, temperature=1.0, top_k=8).sample(logits, tokens(1, 2))] += 1
    chain.close()
    assert counts[:22].sum() == 0
    assert chi_square(counts[22:], 8000 * softmax(logits[22:].astype(np.float64))) < CHI_SQUARE_999[7]


def test_successive_draws_are_independent() -> None:
    """Pairs of draws at neighbouring positions over 4 × 4 cells of equal probability."""
    logits = np.zeros(4, dtype=np.float32)
    counts = np.zeros((4, 4), dtype=np.int64)
    history = np.zeros(100, dtype=np.int32)
    for seed in range(40):
        drawn = [sampler(seed, temperature=1.0).sample(logits, history[:i]) for i in range(100)]
        for a, b in zip(drawn[::2], drawn[1::2], strict=True):
            counts[a, b] += 1
    assert chi_square(counts.ravel(), np.full(16, 2000 / 16)) < CHI_SQUARE_999[15]


# -- the noise ---------------------------------------------------------------------------------------------------------


def uniforms(seed: int, position: int, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """What the noise was made of: u = exp(−exp(−g))."""
    return np.exp(-np.exp(-gumbel_noise(seed, position, ids)))


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31 - 1),
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20, unique=True),
    data=st.data(),
)
def test_noise_is_a_function_of_seed_position_and_id_alone(
    seed: int, position: int, ids: list[int], data: st.DataObject
) -> None:
    together = dict(zip(ids, gumbel_noise(seed, position, tokens(*ids)), strict=True))
    shuffled = data.draw(st.permutations(ids))
    assert gumbel_noise(seed, position, tokens(*shuffled)).tolist() == [together[i] for i in shuffled]
    assert gumbel_noise(seed, position, tokens(ids[0])).tolist() == [together[ids[0]]]
    assert np.isfinite(list(together.values())).all()


IDS = np.arange(4000, dtype=np.int32)


@pytest.mark.parametrize("across", ["seed", "high seed bits", "position", "id", "distant ids"])
def test_noise_is_uniform_across_each_argument(across: str) -> None:
    match across:
        case "seed":
            u = np.array([uniforms(seed, 3, tokens(7))[0] for seed in range(4000)])
        case "high seed bits":
            u = np.array([uniforms(seed << 50, 3, tokens(7))[0] for seed in range(4000)])
        case "position":
            u = np.array([uniforms(3, position, tokens(7))[0] for position in range(4000)])
        case "id":
            u = uniforms(3, 4, IDS)
        case _:
            u = uniforms(3, 4, IDS * 65536)
    counts = np.bincount((u * 20).astype(np.int64), minlength=20)
    assert chi_square(counts, np.full(20, 200.0)) < CHI_SQUARE_999[19]


@pytest.mark.parametrize(
    ("one", "other"), [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((5, 9), (6, 9)), ((5, 9), (5, 10)), ((0, 1), (1, 0))]
)
def test_noise_of_neighbours_is_independent(one: tuple[int, int], other: tuple[int, int]) -> None:
    a, b = uniforms(*one, IDS), uniforms(*other, IDS)
    cells = (a * 10).astype(np.int64) * 10 + (b * 10).astype(np.int64)
    assert chi_square(np.bincount(cells, minlength=100), np.full(100, 40.0)) < CHI_SQUARE_999[99]


def test_noise_of_neighbouring_ids_is_independent() -> None:
    u = uniforms(1, 2, np.arange(8000, dtype=np.int32))
    cells = (u[::2] * 10).astype(np.int64) * 10 + (u[1::2] * 10).astype(np.int64)
    assert chi_square(np.bincount(cells, minlength=100), np.full(100, 40.0)) < CHI_SQUARE_999[99]


def test_noise_is_standard_gumbel() -> None:
    """Mean is Euler's constant and variance π²/6; the standard errors over 100,000 are 0.0041 and about 0.011."""
    noise = gumbel_noise(12, 34, np.arange(100_000, dtype=np.int32))
    assert noise.mean() == pytest.approx(0.57722, abs=4 * 0.0041)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=4 * 0.011)


def unmix(x: int) -> int:
    """The inverse of SplitMix64's finalizer, as the sampler uses it."""

    def unshift(x: int, by: int) -> int:
        y = x
        for _ in range(64 // by):
            y = x ^ (y >> by)
        return y

    x = unshift(x, 31)
    x = unshift(x * pow(0x94D049BB133111EB, -1, 2**64) % 2**64, 27)
    x = unshift(x * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64, 30)
    return (x - 0x9E3779B97F4A7C15) % 2**64


@pytest.mark.parametrize("bits", [0, 1, 2**11 - 1, 2**63, 2**64 - 2**12, 2**64 - 2**11, 2**64 - 1])
def test_noise_is_finite_for_the_rarest_hashes(bits: int) -> None:
    """A seed that gives token 0 at position 0 exactly these 64 bits."""
    noise = gumbel_noise(unmix(unmix(unmix(bits))), 0, tokens(0))[0]
    assert np.isfinite(noise)
    if bits < 2**12:
        assert noise == pytest.approx(-np.log(53 * np.log(2)))  # u = 2⁻⁵³
    elif bits == 2**63:
        assert noise == pytest.approx(-np.log(np.log(2)))  # u = ½
    else:
        assert 50 * np.log(2) < noise < 56 * np.log(2)  # u = 1 − (2⁻⁵⁴ … 2⁻⁵²)


# -- temperature 0, purity ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(logits=hnp.arrays(np.float32, st.integers(1, 30), elements=st.integers(-3, 3).map(float)))
def test_temperature_0_is_the_first_of_the_most_likely(logits: Logits) -> None:
    first = next(i for i, value in enumerate(logits.tolist()) if value == max(logits.tolist()))
    assert sampler(temperature=0).sample(logits, tokens(1)) == first
    assert sampler(temperature=0, logit_bias={0: 0.0}).sample(logits, tokens(1)) == first
    assert sampler(temperature=0, presence_penalty=1.0, penalty_last_n=0).sample(logits, tokens(0)) == first


@settings(deadline=None)
@given(logits=logit_rows, seed=st.integers(0, 2**64 - 1))
def test_logits_and_tokens_stay_as_they_are_and_the_choice_repeats(logits: Logits, seed: int) -> None:
    history = tokens(0, 0, len(logits) - 1)
    chain = FilterChain(len(logits), top_k=3, typical_p=1.0, top_p=0.9, min_p=0.01)
    settings_ = {"temperature": 0.7, "repeat_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {0: 2.0}}
    before, before_history = logits.copy(), history.copy()
    one = sampler(seed, chain, **settings_, logprobs=2)
    chosen = one.sample(logits, history)
    one.logprob(logits, chosen)
    sampler(seed, chain, temperature=0, logit_bias={0: 2.0}).sample(logits, history)
    assert logits.tobytes() == before.tobytes()
    assert history.tobytes() == before_history.tobytes()
    assert one.sample(logits, history) == sampler(seed, chain, **settings_).sample(logits, history) == chosen
    chain.close()


@settings(deadline=None)
@given(logits=logit_rows, seed=st.integers(0, 2**64 - 1), temperature=st.sampled_from([0.0, 0.5, 1.0]))
def test_the_lead_is_that_of_the_best_score_over_the_next(logits: Logits, seed: int, temperature: float) -> None:
    one = sampler(seed, temperature=temperature)
    token, lead = one.sample_and_lead(logits, tokens(1, 2))
    assert token == one.sample(logits, tokens(1, 2))
    assert (one.num_chosen, one.num_sure) == (0, 0)
    one.counts_sure = True
    assert token == one.sample(logits, tokens(1, 2))
    scores = logits.astype(np.float64)
    if temperature:
        scores = scores / temperature + gumbel_noise(seed, 2, np.arange(len(logits), dtype=np.int32))
    *others, best = sorted(scores.tolist())
    assert lead == pytest.approx(best - others[-1] if others else np.inf, abs=1e-4)
    assert (one.num_chosen, one.num_sure) == (1, lead >= SURE_LEAD)  # of `sample` alone: a draft is no choice


def test_a_very_low_temperature_takes_the_most_likely() -> None:
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32)
    for temperature in (1e-3, 1e-6, 1e-30, 1e-300, 5e-324):
        assert sampler(1, temperature=temperature).sample(logits, tokens(0)) == 1


# -- bias and penalties ------------------------------------------------------------------------------------------------


def llama_penalties(
    logits: Logits, history: Sequence[int], last_n: int, repeat: float, frequency: float, presence: float
) -> Logits:
    """llama_sampler_init_penalties with every token of `history` accepted, applied to `logits`."""
    candidates = np.zeros(len(logits), dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
    candidates["id"] = np.arange(len(logits))
    candidates["logit"] = logits
    pointer = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(lib.llama_token_data))
    array = lib.llama_token_data_array(data=pointer, size=len(logits), selected=-1, sorted=False)
    penalties = lib.llama_sampler_init_penalties(len(logits), last_n, repeat, frequency, presence)
    for token in history:
        lib.llama_sampler_accept(penalties, token)
    lib.llama_sampler_apply(penalties, ctypes.byref(array))
    lib.llama_sampler_free(penalties)
    assert candidates["id"].tolist() == list(range(len(logits)))
    return candidates["logit"].copy()


@settings(deadline=None)
@given(
    logits=logit_rows,
    history=st.lists(st.integers(0, 59), min_size=1, max_size=40),
    last_n=st.sampled_from([-1, 0, 1, 2, 5, 39, 40, 64]),
    repeat=st.floats(0.25, 4, width=32),
    frequency=st.floats(-2, 2, width=32),
    presence=st.floats(-2, 2, width=32),
)
def test_penalties_are_llama_cpps(
    logits: Logits, history: list[int], last_n: int, repeat: float, frequency: float, presence: float
) -> None:
    history = [token % len(logits) for token in history]
    # −1, all tokens, has no meaning for llama.cpp itself: its programs pass the context size instead
    expected = llama_penalties(logits, history, 64 if last_n < 0 else last_n, repeat, frequency, presence)
    params = SamplingParams(
        repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence, penalty_last_n=last_n
    )
    found = Sampler(params, 0, None)._adjusted(logits, tokens(*history))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    assert found.dtype == np.float32


@settings(deadline=None)
@given(logits=logit_rows, bias=st.dictionaries(st.integers(0, 59), st.floats(-50, 50, width=32), max_size=8))
def test_a_bias_is_added_before_penalties(logits: Logits, bias: dict[int, float]) -> None:
    bias = {token: value for token, value in bias.items() if token < len(logits)}
    shifted = logits.copy()
    for token, value in bias.items():
        shifted[token] += np.float32(value)
    history = [0, len(logits) - 1]
    found = sampler(logit_bias=bias, repeat_penalty=2.0)._adjusted(logits, tokens(*history))
    np.testing.assert_allclose(found, llama_penalties(shifted, history, 64, 2.0, 0.0, 0.0), rtol=1e-5, atol=1e-4)


def test_penalties_by_hand() -> None:
    """Token 0 was seen twice, token 1 once, both within the last 3; token 2 before that."""
    logits = np.array([4.0, -4.0, 4.0, 4.0], dtype=np.float32)
    params = SamplingParams(repeat_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, penalty_last_n=3)
    found = Sampler(params, 0, None)._adjusted(logits, tokens(2, 0, 1, 0))
    assert found.tolist() == [4 / 2 - 2 * 0.5 - 0.25, -4 * 2 - 0.5 - 0.25, 4.0, 4.0]


def test_a_banned_token_is_never_drawn() -> None:
    logits = np.array([9.0, 0.0, 0.0], dtype=np.float32)
    drawn = {sampler(seed, temperature=1.0, logit_bias={0: -np.inf}).sample(logits, tokens(1)) for seed in range(50)}
    assert drawn == {1, 2}


# -- filters -----------------------------------------------------------------------------------------------------------


def expected_candidates(logits: Logits, top_k: int, top_p: float, min_p: float) -> tuple[set[int], bool]:
    """Candidates after top-k, top-p and min-p as their papers define them, each on what the last one left; and whether
    some decision was too close to hold for float32 sums."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    close = False
    if top_k > 0:
        if top_k < len(order):
            close |= logits[order[top_k - 1]] == logits[order[top_k]]
        order = order[:top_k]
    if top_p < 1.0:
        cumulative = np.cumsum(softmax(logits[order].astype(np.float64)))
        close |= bool((np.abs(cumulative - top_p) < 1e-5).any())
        num_kept = int(np.searchsorted(cumulative, top_p)) + 1  # the smallest set whose sum reaches top_p
        if num_kept < len(order):
            close |= logits[order[num_kept - 1]] == logits[order[num_kept]]
        order = order[:num_kept]
    if min_p > 0.0:
        ratio = np.exp(logits[order].astype(np.float64) - float(logits.max()))
        close |= bool((np.abs(ratio - min_p) < 1e-5).any())
        order = order[ratio >= min_p]
    return set(order.tolist()), bool(close)


@settings(max_examples=300, deadline=None)
@given(
    logits=hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-6, 6, width=32)),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 199, 200, 500]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.999]),
)
def test_filters_are_top_k_then_top_p_then_min_p(logits: Logits, top_k: int, top_p: float, min_p: float) -> None:
    expected, close = expected_candidates(logits, top_k, top_p, min_p)
    assume(not close)
    chain = FilterChain(len(logits), top_k=top_k, typical_p=1.0, top_p=top_p, min_p=min_p)
    for _ in range(2):  # a second time gives the same: the chain keeps nothing
        ids, kept = chain.apply(logits)
        assert set(ids.tolist()) == expected
        assert len(ids) == len(expected)
        assert kept.tolist() == logits[ids].tolist()
    chain.close()


@settings(deadline=None)
@given(logits=hnp.arrays(np.float32, st.integers(2, 50), elements=st.floats(-6, 6, width=32), unique=True))
def test_typical_keeps_the_tokens_nearest_to_the_entropy(logits: Logits) -> None:
    """Meister et al. 2022: in order of | −log p − H |, until their sum exceeds typical_p."""
    typical_p = 0.6
    p = softmax(logits.astype(np.float64))
    distance = np.abs(-np.log(p) + (p * np.log(p)).sum())
    order = np.argsort(distance, kind="stable")
    cumulative = np.cumsum(p[order])
    num_kept = int(np.searchsorted(cumulative, typical_p, side="right")) + 1
    assume(np.abs(cumulative - typical_p).min() > 1e-4)
    assume(np.diff(distance[order]).min() > 1e-4)
    chain = FilterChain(len(logits), top_k=0, typical_p=typical_p, top_p=1.0, min_p=0.0)
    ids, _ = chain.apply(logits)
    chain.close()
    assert set(ids.tolist()) == set(order[:num_kept].tolist())


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        ({}, False),
        ({"top_k": 1}, True),
        ({"top_p": 0.99}, True),
        ({"min_p": 0.01}, True),
        ({"typical_p": 0.5}, True),
        ({"temperature": 0, "top_k": 1, "top_p": 0.5}, False),
    ],
)
def test_filters_are_needed_when_one_is_on_and_something_is_drawn(params: dict[str, float], needed: bool) -> None:
    assert needs_filters(SamplingParams(**(OPEN | {"temperature": 1.0} | params))) == needed  # type: ignore[arg-type]


def test_the_defaults_are_what_the_request_says_they_are() -> None:
    """top-k 40 on equal logits leaves 40 candidates, and only the most likely ones."""
    params = SamplingParams()
    assert needs_filters(params)
    logits = np.concatenate([np.zeros(60), np.full(60, 1.0)]).astype(np.float32)
    chain = FilterChain(120, top_k=params.top_k, typical_p=1.0, top_p=1.0, min_p=0.0)
    ids, _ = chain.apply(logits)
    chain.close()
    assert len(ids) == 40
    assert ids.min() >= 60


# -- log-probabilities -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(logits=logit_rows, count=st.integers(0, 20), token=st.integers(0, 59))
def test_logprobs_are_log_softmax_most_likely_first(logits: Logits, count: int, token: int) -> None:
    token %= len(logits)
    log_p = np.log(softmax(logits.astype(np.float64)))
    found = sampler(logprobs=count, temperature=0.1, logit_bias={0: 5.0}).logprob(logits, token)
    assert found is not None
    assert found.token == token
    assert found.logprob == pytest.approx(log_p[token], abs=1e-9)
    assert len(found.top) == min(count, len(logits))
    assert [value for _, value in found.top] == pytest.approx(np.sort(log_p)[::-1][: len(found.top)].tolist(), abs=1e-9)
    assert len({i for i, _ in found.top}) == len(found.top)
    assert all(value == pytest.approx(log_p[i], abs=1e-9) for i, value in found.top)


def test_logprobs_of_huge_logits_do_not_overflow() -> None:
    found = sampler(logprobs=2).logprob(np.array([3e38, 3e38, -3e38], dtype=np.float32), 0)
    assert found is not None
    assert found.logprob == pytest.approx(-np.log(2))


def test_no_logprobs_unless_asked_for() -> None:
    assert sampler().logprob(np.zeros(3, np.float32), 1) is None
