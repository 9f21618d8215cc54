# Servers of every manner: polite ones are timed, all others are failures with a reason, and none can hang us.
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ingle.cli.bench.http_target import HttpTarget
from ingle.cli.bench.target import Answer
from ingle.cli.bench.work import Message, Work
from ingle.cli.errors import Unreachable, UsageProblem
from tests.cli.bench.fake_server import Handler, polite, serving

DRAWN = Work((Message("user", "hello"),), max_tokens=4)
OWN = Work((Message("user", "hello"),), 4, False, "", {"temp": 0.5, "stop": ["\n"], "repeat_penalty": 1.1})


def ask(url: str, work: Work = DRAWN, timeout_s: float = 20.0, **flags: Any) -> Answer:
    target = HttpTarget(url, flags.pop("model", None), timeout_s, **flags)
    answer = Answer(work, time.perf_counter())
    try:
        target.ask(answer)
    finally:
        target.close()
    return answer


def test_a_polite_server() -> None:
    with serving(polite) as fake:
        answer = ask(fake.url)
    assert answer.error is None
    assert len(answer.deliveries_s) == 4, "the thinking is the first token, the empty first chunk none"
    assert (answer.num_prompt_tokens, answer.num_output_tokens, answer.num_cached_tokens) == (10, 4, 0)
    assert answer.sent_s is not None
    assert answer.intended_s <= answer.sent_s <= answer.deliveries_s[0] <= answer.deliveries_s[-1]
    assert answer.tpot_s == pytest.approx((answer.deliveries_s[-1] - answer.deliveries_s[0]) / 3)
    (body,) = fake.bodies
    assert body == {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_the_users_own_request_and_key() -> None:
    with serving(polite) as fake:
        assert ask(fake.url, OWN, model="mine", api_key="secret").error is None
    (body,) = fake.bodies
    assert {name: body.get(name) for name in ("model", "temperature", "stop", "repetition_penalty", "ignore_eos")} == {
        "model": "mine",
        "temperature": 0.5,
        "stop": ["\n"],
        "repetition_penalty": 1.1,
        "ignore_eos": None,
    }
    assert fake.headers[0]["Authorization"] == "Bearer secret"


def test_a_server_that_does_not_know_ignore_eos_is_asked_without() -> None:
    def strict(handler: Handler, body: dict[str, Any]) -> None:
        if "ignore_eos" in body:
            handler.refuse(400, "Unrecognized request argument: ignore_eos")
        else:
            polite(handler, body)

    with serving(strict) as fake:
        target = HttpTarget(fake.url, None, 20.0)
        answers = [Answer(DRAWN, time.perf_counter()) for _ in range(2)]
        for answer in answers:
            target.ask(answer)
        target.close()
    assert [answer.error for answer in answers] == [None, None]
    assert ["ignore_eos" in body for body in fake.bodies] == [True, False, False]


def closes_in_the_middle(handler: Handler, _body: dict[str, Any]) -> None:
    handler.start_stream()
    handler.token("a")


def closes_a_chunked_stream(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.send("ff\r\ndata: half of")
    handler.close_connection = True


def closes_at_once(handler: Handler, _body: dict[str, Any]) -> None:
    handler.close_connection = True


def sends_nonsense(handler: Handler, _body: dict[str, Any]) -> None:
    handler.start_stream()
    handler.send("<html>it works</html>\n")


def is_no_http(handler: Handler, _body: dict[str, Any]) -> None:
    handler.send("220 smtp ready\r\n")
    handler.close_connection = True


def never_ends_a_line(handler: Handler, _body: dict[str, Any]) -> None:
    handler.start_stream()
    for _ in range(3):
        handler.send("x" * 2**19)


def says_nothing(handler: Handler, _body: dict[str, Any]) -> None:
    handler.start_stream()
    handler.end(0)


def does_not_stream(handler: Handler, _body: dict[str, Any]) -> None:
    handler._json(200, {"choices": [{"message": {"content": "all at once"}}]})


def is_broken(handler: Handler, _body: dict[str, Any]) -> None:
    handler.refuse(500, "no")


def fails_in_the_middle(handler: Handler, _body: dict[str, Any]) -> None:
    handler.start_stream()
    handler.token("a")
    handler.event({"error": {"message": "out of memory"}})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (closes_in_the_middle, "closed the connection before the answer ended"),
        (closes_a_chunked_stream, "closed the connection before the answer ended"),
        (closes_at_once, "closed the connection before the answer ended"),
        (sends_nonsense, "sent a line that is no server-sent event"),
        (is_no_http, "sent what is not HTTP"),
        (never_ends_a_line, "sent a line of more than 1048576 bytes"),
        (says_nothing, "answered without a token"),
        (does_not_stream, "answered without streaming"),
        (is_broken, "HTTP 500 Internal Server Error"),
        (fails_in_the_middle, "sent an error: out of memory"),
    ],
)
def test_bad_manners_are_failures_with_a_reason(reply: Callable[..., None], reason: str) -> None:
    with serving(reply) as fake:
        answer = ask(fake.url)
    assert answer.error == reason
    assert answer.finished_s is not None


def test_a_server_that_drips_is_cut_off() -> None:
    """A comment now and then keeps the connection's own timeout from ever passing."""

    def drips(handler: Handler, _body: dict[str, Any]) -> None:
        handler.start_stream()
        while not handler.fake.released.wait(0.02):
            handler.send(": still here\n\n")

    with serving(drips) as fake:
        assert ask(fake.url, timeout_s=0.3).error == "timed out"


def test_stop_gives_up_what_is_under_way() -> None:
    def hangs(handler: Handler, _body: dict[str, Any]) -> None:
        target.stop()
        handler.fake.released.wait(20)

    with serving(hangs) as fake:
        target = HttpTarget(fake.url, None, 20.0)
        answer = Answer(DRAWN, time.perf_counter())
        target.ask(answer)
        target.close()
    assert answer.error == "stopped"


def test_nobody_there() -> None:
    with serving(polite) as fake:
        pass
    with pytest.raises(Unreachable, match=r"no server answers at .*: Connection refused"):
        HttpTarget(fake.url, None, 1.0)
    target = HttpTarget(fake.url, "named", 1.0)
    answer = Answer(DRAWN, time.perf_counter())
    target.ask(answer)
    target.close()
    assert answer.error == "refused the connection"


@pytest.mark.parametrize("url", ["localhost:80", "ftp://a/v1", "http://", "http://a:b/v1", "http://a:99999/v1"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UsageProblem, match="is not the URL of a server"):
        HttpTarget(url, None, 1.0)
