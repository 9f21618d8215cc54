# Requests drawn and read: unique where they must be, the same for the same seed, refused when they make no sense.
from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ingle.cli.bench import work
from ingle.cli.bench.work import Length, Message, Work
from ingle.cli.errors import CliError, InputProblem, UsageProblem


def texts(works: list[Work]) -> list[str]:
    return [item.messages[0].content for item in works]


def test_drawn_prompts_share_no_beginning() -> None:
    works = work.draw(200, prompt=Length(64, 64), answer=Length(8, 8), seed=1, series="a")
    works += work.draw(200, prompt=Length(64, 64), answer=Length(8, 8), seed=1, series="b")
    assert len({text.split(" ")[0] for text in texts(works)}) == 400
    assert len({item.salt for item in works}) == 400
    assert {len(text.split(" ")) for text in texts(works)} == {64}


def test_the_same_seed_draws_the_same() -> None:
    def drawn(seed: int) -> list[Work]:
        return work.draw(5, prompt=Length(4, 40), answer=Length(1, 9), seed=seed)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_lengths_stay_in_their_range_and_use_all_of_it() -> None:
    works = work.draw(300, prompt=Length(2, 5), answer=Length(10, 12), seed=0)
    assert {len(text.split(" ")) for text in texts(works)} == {2, 3, 4, 5}
    assert {item.max_tokens for item in works} == {10, 11, 12}
    assert Length(7, 7).draw(random.Random(0)) == 7
    assert (str(Length(7, 7)), str(Length(2, 5))) == ("7", "2:5")


def test_a_shared_prefix_is_shared_and_what_follows_is_not() -> None:
    works = work.draw(20, prompt=Length(10, 10), answer=Length(1, 1), shared_prefix=32, seed=0)
    words = [text.split(" ") for text in texts(works)]
    assert len({tuple(found[:32]) for found in words}) == 1
    assert len({found[32] for found in words}) == 20
    assert {item.salt for item in works} == {""}


def test_the_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [
        {"prompt": "Why?", "system": "Be brief.", "max_tokens": 9, "temp": 0.5, "stop": "\n"},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    first, second = work.read_file(path, 64)
    assert first == Work(
        (Message("system", "Be brief."), Message("user", "Why?")), 9, False, "", {"temp": 0.5, "stop": ["\n"]}
    )
    assert second == Work((Message("user", "Hi"), Message("assistant", "Hello")), 64, False)
    assert work.repeated([first, second], 3) == [first, second, first]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no request"),
        ("nonsense", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"prompt": "a", "colour": "red"}', "unknown key 'colour'"),
        ('{"prompt": "a", "messages": []}', "a prompt or messages, one of both"),
        ("{}", "a prompt or messages, one of both"),
        ('{"prompt": "  "}', "has no prompt"),
        ('{"messages": []}', "messages is not a list of messages"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "a message is not of the form"),
        ('{"messages": ["hi"]}', "a message is not of the form"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens is True"),
        ('{"prompt": "a", "temp": "hot"}', "temp is 'hot'"),
        ('{"prompt": "a", "stop": [1]}', "stop is neither"),
        ('{"prompt": "a", "system": 1}', "system is not a text"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UsageProblem, match=complaint):
        work.read_file(path, 8)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputProblem, match="no such file"):
        work.read_file(tmp_path / "none", 8)
    with pytest.raises(InputProblem, match="is a folder"):
        work.read_file(tmp_path, 8)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(CliError, match="not UTF-8"):
        work.read_file(tmp_path / "binary", 8)
