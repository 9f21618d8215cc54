# What a request may say, and the arithmetic of its times.
from __future__ import annotations

import dataclasses
import math

import pytest

from ingle.runtime.errors import EngineError, InvalidRequest, PromptTooLong
from ingle.runtime.request import FinishReason, Request, RequestId, RequestMetrics, RequestOutput, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("typical_p", -1.0),
        ("typical_p", 2.0),
        ("typical_p", math.inf),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0),
        ("repeat_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("presence_penalty", -math.inf),
        ("presence_penalty", math.nan),
        ("penalty_last_n", -2),
        ("seed", -1),
        ("seed", 2**64),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_sampling_refuses_and_names_the_field_and_the_value(field: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{field} is {value}, which is not ")


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "top_k": 0, "top_p": 0.0, "min_p": 0.0, "typical_p": 0.0},
        {"temperature": 1e9, "top_k": 2**31, "top_p": 1.0, "min_p": 1.0, "typical_p": 1.0},
        {"penalty_last_n": -1, "repeat_penalty": 0.01, "frequency_penalty": -2.0, "presence_penalty": -2.0},
        {"seed": 0, "logprobs": 0},
        {"seed": 2**64 - 1, "logprobs": 20},
        {"logit_bias": {0: -math.inf, 1: 100.0}},
    ],
)
def test_sampling_takes_the_ends_of_every_range(params: dict[str, float]) -> None:
    made = SamplingParams(**params)  # type: ignore[arg-type]
    assert {name: getattr(made, name) for name in params} == params


@pytest.mark.parametrize("stop", [("",), ("a", "", "b")])
def test_an_empty_stop_string_is_refused(stop: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="stop string is empty"):
        SamplingParams(stop=stop)


def test_a_bias_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias.*nan"):
        SamplingParams(logit_bias={3: math.nan})


@pytest.mark.parametrize(
    ("params", "has"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"repeat_penalty": 1.1, "penalty_last_n": 0}, False),
        ({"repeat_penalty": 1.1, "penalty_last_n": -1}, True),
    ],
)
def test_penalties_count_only_where_they_change_something(params: dict[str, float], has: bool) -> None:
    assert SamplingParams(**params).has_penalties == has  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["max_output_tokens", "deadline_s"])
@pytest.mark.parametrize("value", [-1, -5])
def test_a_request_refuses_and_names_the_field_and_the_value(field: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} is {value}, which is not"):
        Request([1], **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline_s", [0.0, math.nan])
def test_a_deadline_that_is_no_time_is_refused(deadline_s: float) -> None:
    with pytest.raises(InvalidRequest, match=f"deadline_s is {deadline_s}, which is not above 0"):
        Request([1], deadline_s=deadline_s)


def test_an_empty_prompt_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty") as caught:
        Request([])
    assert caught.value.hint == "give at least one token"


def test_requests_cannot_be_changed() -> None:
    request = Request([1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.priority = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.sampling.temperature = 0  # type: ignore[misc]


def test_a_prompt_too_long_is_an_invalid_request_with_both_numbers() -> None:
    error = PromptTooLong(5000, 4096)
    assert isinstance(error, InvalidRequest)
    assert isinstance(error, EngineError)
    assert str(error) == "the prompt has 5000 tokens and the context holds 4096"
    assert (error.num_prompt_tokens, error.limit_tokens) == (5000, 4096)


# -- times -------------------------------------------------------------------------------------------------------------


def test_times_of_a_worked_example() -> None:
    """Accepted at 10.0, scheduled at 10.5, first of five tokens at 12.0, last at 14.0, finished at 14.25."""
    metrics = RequestMetrics(
        arrival_s=10.0,
        seed=1,
        num_prompt_tokens=100,
        num_output_tokens=5,
        first_scheduled_s=10.5,
        first_token_s=12.0,
        last_token_s=14.0,
        finished_s=14.25,
    )
    assert metrics.queue_s == 0.5
    assert metrics.ttft_s == 2.0
    assert metrics.prefill_s == 1.5
    assert metrics.tpot_s == 0.5
    assert metrics.e2e_s == 4.25


def test_one_token_has_no_time_between_tokens() -> None:
    metrics = RequestMetrics(0.0, 1, 3, num_output_tokens=1, first_scheduled_s=0.0, first_token_s=1.0, last_token_s=1.0)
    assert metrics.tpot_s is None
    assert (metrics.queue_s, metrics.ttft_s, metrics.prefill_s) == (0.0, 1.0, 1.0)


def test_two_tokens_have_one_gap() -> None:
    metrics = RequestMetrics(0.0, 1, 3, num_output_tokens=2, first_token_s=1.0, last_token_s=1.75)
    assert metrics.tpot_s == 0.75


def test_what_has_not_happened_has_no_time() -> None:
    metrics = RequestMetrics(5.0, 1, 3)
    assert [metrics.queue_s, metrics.ttft_s, metrics.prefill_s, metrics.tpot_s, metrics.e2e_s] == [None] * 5
    metrics.first_scheduled_s = 6.0
    assert (metrics.queue_s, metrics.prefill_s) == (1.0, None)


@pytest.mark.parametrize("reason", [None, *FinishReason])
def test_an_output_is_finished_when_it_has_a_reason(reason: FinishReason | None) -> None:
    output = RequestOutput(RequestId(0), (1,), "x", RequestMetrics(0.0, 0, 1), reason)
    assert output.finished == (reason is not None)


def test_reasons_shared_with_openai_have_its_words() -> None:
    assert (FinishReason.STOP, FinishReason.LENGTH) == ("stop", "length")
