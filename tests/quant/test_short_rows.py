# Which tokens a draft file keeps, and what it reads in place of the others.
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingle.quant.short_rows import NUM_TOKENS, Vocabulary, choose_tokens, num_worth_keeping, reads_as

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def test_what_is_kept() -> None:
    texts = ["<unk>", "x", "the", "cat", "<|end|>", "hats", "tool", "pad"]
    kinds = [UNKNOWN, NORMAL, NORMAL, NORMAL, CONTROL, NORMAL, USER, UNUSED]
    spm, bpe = Vocabulary(texts, kinds, False), Vocabulary(texts, kinds, True)
    assert choose_tokens(spm, [], 0) == [0, 4, 6]
    assert choose_tokens(bpe, [], 0) == [0, 1, 4, 6], "x is a byte"
    assert choose_tokens(spm, [5, 5], 0) == [0, 4, 5, 6]
    assert choose_tokens(spm, [5], 6) == [0, 1, 2, 4, 5, 6], "then the lowest"
    assert choose_tokens(spm, [], 100) == [0, 1, 2, 3, 4, 5, 6], "never padding"
    assert choose_tokens(spm, [7], 0) == [0, 4, 6, 7], "but where it is used"


def test_what_is_read_in_place_of_others() -> None:
    texts = ["<unk>", "the", "t", "hats", "at", "cats", "<0xA9>", "é", "dog", ""]
    kinds = [UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, BYTE, NORMAL, NORMAL, NORMAL]
    vocabulary = Vocabulary(texts, kinds, False)
    rows = reads_as(vocabulary, [0, 2, 4, 6])
    # the → nothing ends it; t; hats → nothing; at; cats; <0xA9>; é ends in byte A9; dog; ""
    assert rows == [0, 0, 1, 0, 2, 0, 3, 3, 0, 0]
    assert reads_as(Vocabulary(["hat", "at", "t"], [NORMAL] * 3, True), [1, 2]) == [0, 0, 1], "the longest ending"
    assert reads_as(Vocabulary(["x", "<s>", "y<s>"], [NORMAL, CONTROL, NORMAL], True), [0, 1]) == [0, 1, 0], (
        "a control token ends no text"
    )


def test_small_vocabularies_stay_whole() -> None:
    assert num_worth_keeping(2 * NUM_TOKENS - 1) is None
    assert num_worth_keeping(2 * NUM_TOKENS) == NUM_TOKENS


@given(st.data())
def test_endings_are_what_a_plain_search_finds(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text("abc", max_size=5), min_size=1, max_size=25, unique=True))
    kept = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1), min_size=1)))
    rows = reads_as(Vocabulary(texts, [NORMAL] * len(texts), False), kept)
    for token, text in enumerate(texts):
        if token in kept:
            assert kept[rows[token]] == token
            continue
        endings = [row for row, other in enumerate(kept) if texts[other] and text.endswith(texts[other])]
        assert rows[token] == max(endings, key=lambda row: len(texts[kept[row]]), default=0)
