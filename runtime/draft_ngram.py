"""Drafts from the text itself: what followed the last time the same few tokens were said.

Costs nothing, and is right where a model copies: edited code, quoted documents, lists, loops. Plain dictionaries:
token ids in, token ids out (compare prompt lookup decoding, Saxena 2023, and llama.cpp's common/ngram-cache).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ingle.runtime.draft import GoesOn, Offer
from ingle.runtime.request import RequestId
from ingle.runtime.sequence import Sequence

SIZES = (12, 8, 5, 3)
"""Tokens that have to agree, longest first. Longer agreement is right more often: each size is a kind of its own."""

MAX_ENTRIES = 65_536
"""Positions an index remembers at least, for each size; it forgets beyond twice as many."""


class NgramIndex:
    """Where each run of `sizes` tokens last stood in a text that only grows. O(1) a token, memory bounded."""

    def __init__(self, sizes: SequenceOf[int] = SIZES, max_entries: int = MAX_ENTRIES) -> None:
        self._sizes = tuple(sizes)
        self._max_entries = max_entries
        self._recent: list[dict[tuple[int, ...], int]] = [{} for _ in self._sizes]
        self._older: list[dict[tuple[int, ...], int]] = [{} for _ in self._sizes]
        self._tokens: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: SequenceOf[int]) -> None:
        """The text goes on with `tokens`."""
        known = self._tokens
        start = len(known)
        known.extend(tokens)
        for which, size in enumerate(self._sizes):
            first = max(start, size)  # the first new token with a whole run before it
            for begin in range(first, len(known), self._max_entries):
                end = min(begin + self._max_entries, len(known))
                columns = [known[begin - size + offset : end - size + offset] for offset in range(size)]
                recent = self._recent[which]
                recent.update(zip(zip(*columns, strict=True), range(begin, end), strict=True))  # later ones win
                if len(recent) >= self._max_entries:
                    self._older[which], self._recent[which] = recent, {}

    def find(self, num_tokens: int) -> tuple[int, list[int]] | None:
        """(size, [at most num_tokens]): what followed the last time that the end of the text stood there, by the
        longest size that did. Where the text runs out it goes on with itself."""
        known = self._tokens
        for which, size in enumerate(self._sizes):
            if len(known) >= size:
                run = tuple(known[-size:])
                at = self._recent[which].get(run)
                if at is None:
                    at = self._older[which].get(run)
                if at is not None:
                    return size, self._following(at, num_tokens)
        return None

    def _following(self, at: int, num_tokens: int) -> list[int]:
        found = self._tokens[at : at + num_tokens]
        while len(found) < num_tokens:  # the text repeats itself with a period of len(found) tokens
            found += found[: num_tokens - len(found)]
        return found


class NgramDrafter:
    """An index for each sequence, over its prompt (earlier turns are part of it) and its answer."""

    def __init__(self) -> None:
        self._indexes: dict[RequestId, NgramIndex] = {}

    def offer(self, sequence: Sequence, num_tokens: int) -> Offer | None:
        index = self._indexes.get(sequence.id)
        if index is None:
            index = self._indexes[sequence.id] = NgramIndex()
        index.extend(sequence.tokens[len(index) :].tolist())
        found = index.find(num_tokens)
        return None if found is None else Offer(f"ngram-{found[0]}", len(found[1]), tuple(found[1]))

    def draft(self, wanted: SequenceOf[tuple[Sequence, Offer, int]], goes_on: GoesOn) -> None:
        for sequence, offer, num_tokens in wanted:
            for token in offer.tokens[:num_tokens]:
                sequence.add_draft(token)

    def forget(self, id: RequestId) -> None:
        self._indexes.pop(id, None)
