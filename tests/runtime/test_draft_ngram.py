# The n-gram index against a search by brute force, and what the drafter makes of a sequence that grows.
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingle.runtime.draft_ngram import SIZES, NgramDrafter, NgramIndex
from tests.fakes import sequence_of

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def brute_force(tokens: list[int], sizes: tuple[int, ...], num_tokens: int) -> tuple[int, list[int]] | None:
    """The longest size whose run at the end stood somewhere before, there the latest place, and what followed."""
    for size in sizes:
        for at in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[at - size : at] == tokens[len(tokens) - size :]:
                text = list(tokens)
                while len(text) < at + num_tokens:
                    text.append(text[len(text) - (len(tokens) - at)])
                return size, text[at : at + num_tokens]
    return None


@given(st.lists(TEXTS, max_size=8), st.integers(1, 12))
def test_finds_what_a_search_through_the_whole_text_finds(pieces: list[list[int]], num_tokens: int) -> None:
    index = NgramIndex((4, 3, 2))
    text: list[int] = []
    for piece in pieces:
        index.extend(piece)
        text += piece
        assert len(index) == len(text)
        assert index.find(num_tokens) == brute_force(text, (4, 3, 2), num_tokens)


@given(TEXTS)
def test_token_by_token_is_the_same_as_at_once(text: list[int]) -> None:
    once, slowly = NgramIndex((3, 2)), NgramIndex((3, 2))
    once.extend(text)
    for token in text:
        slowly.extend([token])
    assert once.find(5) == slowly.find(5)


@given(st.lists(TEXTS, max_size=12), st.integers(1, 9))
def test_memory_is_bounded_and_what_is_found_stood_there(pieces: list[list[int]], max_entries: int) -> None:
    index = NgramIndex((3, 2), max_entries)
    text: list[int] = []
    for piece in pieces:
        index.extend(piece)
        text += piece
        assert all(len(table) < 2 * max_entries for table in index._recent + index._older)
        found = index.find(1)
        if found is not None:
            size, (token,) = found
            run = [*text[-size:], token]
            assert any(text[at : at + size + 1] == run for at in range(len(text) - size))


def test_recent_runs_are_found_although_older_ones_were_forgotten() -> None:
    index = NgramIndex((2,), max_entries=4)
    index.extend(range(100))
    index.extend([1, 2])
    assert index.find(2) is None  # forgotten
    index.extend([97, 98])
    assert index.find(2) == (2, [99, 1])
    index.extend([50, 97, 98])
    assert index.find(2) == (2, [50, 97])


def test_a_loop_is_drafted_on_and_on() -> None:
    index = NgramIndex((3,))
    index.extend([1, 2, 3, 1, 2, 3])
    assert index.find(8) == (3, [1, 2, 3, 1, 2, 3, 1, 2])


def test_a_sequence_is_read_as_it_grows_and_forgotten() -> None:
    drafter = NgramDrafter()
    text = [10, 11, 12, 13, 14, 15, 16]
    sequence = sequence_of([*text, 1, 2, 10, 11])
    assert drafter.offer(sequence, 4) is None
    sequence.append(12)
    offer = drafter.offer(sequence, 4)
    assert offer is not None
    assert (offer.kind, offer.tokens, offer.token_s) == ("ngram-3", (13, 14, 15, 16), 0.0)
    drafter.draft([(sequence, offer, 2)], lambda sequence, lead: True)
    assert sequence.num_drafts == 2
    assert sequence.tokens_and_drafts.tolist() == [*text, 1, 2, 10, 11, 12, 13, 14]
    for token in (13, 14):
        sequence.append(token)
    sequence.num_drafts = 0
    longer = drafter.offer(sequence, 1)
    assert longer is not None
    assert (longer.kind, longer.tokens) == ("ngram-5", (15,))
    drafter.forget(sequence.id)
    assert drafter._indexes == {}


def test_sizes_go_from_the_longest_down() -> None:
    assert sorted(SIZES, reverse=True) == list(SIZES)
