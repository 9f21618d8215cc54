# Text out of token bytes, against decoding and searching the whole at once.
from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ingle.runtime.detokenizer import Detokenizer, TextStream


def stream_of(pieces: list[bytes], stop: tuple[str, ...] = ()) -> TextStream:
    """A stream whose token i is `pieces[i]`."""
    return TextStream(Detokenizer(pieces.__getitem__), stop)


def streamed(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    """What each token gives, and `finish` at the end; and the stop string that was met."""
    stream = stream_of(pieces, stop)
    parts = [stream.push(i) for i in range(len(pieces))]
    return [*parts, stream.finish()], stream.stopped_by


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(borders)]


CHARACTERS = st.text(st.sampled_from("aé日本語😀👩‍👩‍👧\u0301\n \ufffd"), max_size=12)
DATA = st.one_of(
    CHARACTERS.map(str.encode),
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=24),
    st.lists(st.one_of(CHARACTERS.map(str.encode), st.binary(max_size=3)), max_size=6).map(b"".join),
)
CUTS = st.lists(st.integers(0, 200), max_size=30)

# Few letters, so that stop strings begin, break off and overlap all the time.
TEXTS = st.text(st.sampled_from("ab😀"), max_size=16)
STOPS = st.lists(st.text(st.sampled_from("ab😀"), min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(data=DATA, cuts=CUTS)
@example(data="😀".encode(), cuts=[1, 2, 3])
@example(data=b"\xf0\x9f\x98", cuts=[1])
@example(data=b"\xe6\x97a\xff\xc3", cuts=[1, 2, 3, 4])
def test_joined_pieces_are_the_bytes_decoded_at_once(data: bytes, cuts: list[int]) -> None:
    parts, stopped_by = streamed(split(data, cuts))
    assert "".join(parts) == data.decode("utf-8", "replace")
    assert stopped_by is None


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=12), cuts=CUTS)
def test_half_a_character_is_never_shown(text: str, cuts: list[int]) -> None:
    """After every token exactly the characters that are complete have been given."""
    pieces = split(text.encode(), cuts)
    parts, _ = streamed(pieces)
    for count in range(len(pieces) + 1):
        known = b"".join(pieces[:count])
        assert "".join(parts[:count]) == known.decode("utf-8", "ignore")


def first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    return min((at for one in stop if (at := text.find(one)) >= 0), default=None)


def reference(pieces: list[bytes], stop: tuple[str, ...]) -> str:
    """Tokens come one by one; at the first after which the text holds a stop string, it is cut before the earliest."""
    known = b""
    for piece in pieces:
        known += piece
        text = known.decode("utf-8", "ignore")
        if (at := first_stop(text, stop)) is not None:
            return text[:at]
    return known.decode("utf-8")


@settings(deadline=None)
@given(text=TEXTS, cuts=CUTS, stop=STOPS)
@example(text="aab", cuts=[1, 2], stop=("ab",))
@example(text="abab😀", cuts=[1, 2, 3, 4, 5, 6, 7], stop=("aba😀", "bab😀"))
def test_text_ends_before_the_earliest_stop_string(text: str, cuts: list[int], stop: tuple[str, ...]) -> None:
    pieces = split(text.encode(), cuts)
    parts, stopped_by = streamed(pieces, stop)
    whole = "".join(parts)
    assert whole == reference(pieces, stop)
    if stopped_by is None:
        assert first_stop(text, stop) is None
        assert whole == text
    else:
        assert stopped_by in stop
        assert text.startswith(whole + stopped_by)


@settings(deadline=None)
@given(text=TEXTS, cuts=CUTS, stop=STOPS)
def test_how_text_was_split_into_tokens_does_not_matter(text: str, cuts: list[int], stop: tuple[str, ...]) -> None:
    """Unless one stop string lies inside another: then what a token completes first decides."""
    assume(not any(inner in outer[1:-1] for outer in stop for inner in stop))
    parts, _ = streamed(split(text.encode(), cuts), stop)
    at = first_stop(text, stop)
    assert "".join(parts) == (text if at is None else text[:at])


@settings(deadline=None)
@given(text=TEXTS, cuts=CUTS, stop=STOPS, later=TEXTS)
def test_nothing_shown_turns_out_to_belong_to_a_stop_string(
    text: str, cuts: list[int], stop: tuple[str, ...], later: str
) -> None:
    """However the answer goes on, what was given is a beginning of what the whole answer is."""
    pieces = split(text.encode(), cuts)
    stream = stream_of([*pieces, *(char.encode() for char in later)], stop)
    shown = "".join(stream.push(i) for i in range(len(pieces)))
    if stream.stopped_by is None:
        at = first_stop(text + later, stop)
        assert (text + later)[:at].startswith(shown)


@settings(deadline=None)
@given(text=TEXTS, stop=STOPS)
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stop: tuple[str, ...]) -> None:
    stream = stream_of([char.encode() for char in text], stop)
    shown = ""
    for i in range(len(text)):
        shown += stream.push(i)
        if stream.stopped_by is not None:
            return
        held = text[len(shown) : i + 1]
        assert not held or any(one.startswith(held) for one in stop)


def test_after_a_stop_string_there_is_nothing_more() -> None:
    stream = stream_of([b"one", b" two END three", b" four"], ("END",))
    assert [stream.push(0), stream.push(1), stream.push(2), stream.finish()] == ["one", " two ", "", ""]
    assert stream.stopped_by == "END"


def test_a_beginning_of_a_stop_string_is_given_when_the_answer_ends_there() -> None:
    stream = stream_of([b"a\nUs", b"e"], ("\nUser:",))
    assert [stream.push(0), stream.push(1), stream.finish()] == ["a", "", "\nUse"]
    assert stream.stopped_by is None


def test_a_stop_string_may_be_what_a_broken_character_becomes() -> None:
    stream = stream_of([b"ok", b"\xe6\x97"], ("\ufffd",))
    assert [stream.push(0), stream.push(1), stream.finish()] == ["ok", "", ""]
    assert stream.stopped_by == "\ufffd"


@pytest.mark.parametrize(("stop", "shown", "stopped_by"), [(("ab", "abc"), "x", "ab"), (("b", "ab"), "x", "ab")])
def test_of_two_stop_strings_in_one_token_the_earlier_wins(stop: tuple[str, ...], shown: str, stopped_by: str) -> None:
    stream = stream_of([b"xabc"], stop)
    assert (stream.push(0), stream.stopped_by) == (shown, stopped_by)


def test_a_token_is_asked_of_the_model_once() -> None:
    asked: Counter[int] = Counter()

    def piece(token: int) -> bytes:
        asked[token] += 1
        return b"" if token == 0 else b"x"

    detokenizer = Detokenizer(piece)
    assert [detokenizer[token] for token in (0, 5, 0, 5)] == [b"", b"x", b"", b"x"]
    assert asked == {0: 1, 5: 1}
