# Word-wrap, checked by a little terminal that obeys its cursor moves.
from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ingle.cli.wrap import Wrapper, cell_width

words = st.lists(
    st.sampled_from(["a", "fox", "jumped", "日本", "extraordinarily-long-word", "é", "x" * 40]), max_size=30
)


def screen(text: str) -> list[str]:
    """What stands on the lines of a wide terminal after `text`."""
    lines: list[list[str]] = [[]]
    for part in re.findall(r"\x1b\[\d+D|\x1b\[K|\n|.", text):
        if part == "\n":
            lines.append([])
        elif part.endswith("D") and part.startswith("\x1b"):
            back = int(part[2:-1])
            while back > 0:
                back -= cell_width(lines[-1].pop())
            assert back == 0
        elif part != "\x1b[K":
            lines[-1].append(part)
    return ["".join(line) for line in lines]


def wrapped(pieces: list[str], columns: int) -> list[str]:
    wrapper = Wrapper(columns)
    return screen("".join(map(wrapper.feed, pieces)))


def test_words_move_whole() -> None:
    assert wrapped(["the quick brown fox jumps over"], 21) == ["the quick brown fox ", "jumps over"]
    assert wrapped(list("the quick brown foxes jump"), 21) == ["the quick brown ", "foxes jump"]


def test_code_is_left_alone() -> None:
    code = "```\n" + "word " * 20 + "\n```"
    assert wrapped([code], 30) == code.split("\n")


@given(words, st.integers(21, 60))
def test_nothing_is_lost_and_no_line_is_too_long(parts: list[str], columns: int) -> None:
    text = " ".join(parts)
    lines = wrapped(list(text), columns)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    for line in lines:
        widest_word = max((sum(map(cell_width, word)) for word in line.split(" ")), default=0)
        assert sum(map(cell_width, line)) <= columns - 1 or widest_word >= columns - 1


@given(words, st.integers(21, 60))
def test_words_that_fit_a_line_are_never_broken(parts: list[str], columns: int) -> None:
    fitting = [word for word in parts if sum(map(cell_width, word)) < columns - 1]
    lines = wrapped([" ".join(fitting)], columns)
    assert [word for line in lines for word in line.split()] == fitting
