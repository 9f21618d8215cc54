# Streams as servers send them: what counts as a token, what ends an answer, what is nonsense.
from __future__ import annotations

import json
from typing import Any

import pytest

from ingle.cli.bench.sse import BadStream, ChunkReader


def event(value: Any) -> list[bytes]:
    return [b"data: " + json.dumps(value).encode() + b"\r\n", b"\r\n"]


def delta(**fields: Any) -> list[bytes]:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def read(*events: list[bytes]) -> tuple[ChunkReader, list[bool]]:
    reader = ChunkReader()
    return reader, [sum(reader.feed(line) for line in lines) > 0 for lines in events]


def test_an_answer_from_its_empty_first_chunk_to_done() -> None:
    reader, brought = read(
        delta(role="assistant", content=""),
        [b": keep-alive\n", b"\n"],
        delta(reasoning_content="Hm"),
        delta(content="Hi"),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}),
        [b"data: [DONE]\n", b"\n"],
    )
    assert brought == [False, False, True, True, False, False, False]
    assert (reader.num_chunks, reader.finish_reason, reader.is_done) == (2, "stop", True)
    assert (reader.count("prompt_tokens", 0), reader.count("completion_tokens", 2)) == (7, 3)
    assert reader.num_cached_tokens is None


def test_a_tool_call_is_an_answer_too() -> None:
    _, brought = read(delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]))
    assert brought == [True]


def test_an_event_over_several_lines_and_one_without_its_end() -> None:
    reader = ChunkReader()
    for line in (b"event: message\n", b'data: {"choices": [\n', b'data: {"delta": {"content": "a"}}]}\n'):
        assert not reader.feed(line)
    assert reader.flush()
    assert reader.num_chunks == 1


def test_usage_is_taken_where_it_makes_sense() -> None:
    usage = {"completion_tokens": "many", "prompt_tokens": -1, "prompt_tokens_details": {"cached_tokens": 5}}
    reader, _ = read(event({"choices": [], "usage": usage}))
    assert (reader.count("completion_tokens", 4), reader.count("prompt_tokens", 0)) == (4, 0)
    assert reader.num_cached_tokens == 5


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([b"data: {broken\n", b"\n"], "not JSON"),
        ([b"data: 3\n", b"\n"], "no chunk"),
        ([b'data: {"choices": ["a"]}\n', b"\n"], "no chunk"),
        ([b"<html>\n"], "no server-sent event"),
        ([b"\xff\xfe\n"], "not UTF-8"),
        (event({"error": {"message": "out of\nmemory\x1b[2J"}}), r"sent an error: out of memory\[2J$"),
    ],
)
def test_nonsense_is_named(lines: list[bytes], complaint: str) -> None:
    with pytest.raises(BadStream, match=complaint):
        read(lines)
