# Hidden thinking: however the text is cut into pieces, the visible part is the same.
from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from ingle.cli.thinking import ThinkFilter

text = st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "<", "/", "a", " ", "\n", "b>"]), max_size=14)


def visible(pieces: list[str], *, inside: bool = False) -> str:
    thoughts = ThinkFilter(inside=inside)
    return "".join([*map(thoughts.feed, pieces), thoughts.finish()])


def expected(whole: str, inside: bool) -> str:
    """The same by regular expression on the whole text."""
    return re.sub(r"<think>.*?(</think>|\Z)", "", ("<think>" if inside else "") + whole, flags=re.DOTALL).lstrip()


@given(text, st.booleans())
def test_pieces_do_not_matter(pieces: list[str], inside: bool) -> None:
    whole = "".join(pieces)
    assert visible(pieces, inside=inside) == expected(whole, inside)
    assert visible(list(whole), inside=inside) == expected(whole, inside)


def test_a_tag_that_comes_to_nothing_is_shown() -> None:
    assert visible(["1 <", " 2"]) == "1 < 2"
    assert visible(["a <thin"]) == "a <thin"


def test_the_template_opened_the_tag() -> None:
    assert visible(["I wonder", "</th", "ink>\n\nYes."], inside=True) == "Yes."
