"""From token ids to text that can be shown: whole characters only, and nothing that may yet turn out to be a stop
string.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """The bytes of each token, asked of the model once (`piece`: token → bytes)."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        if (piece := self._known.get(token)) is None:
            piece = self._known[token] = self._piece(token)
        return piece


class TextStream:
    """The text of one answer, as it becomes certain.

    `push` and `finish` give pieces whose concatenation is the whole: the bytes of all tokens as UTF-8, bytes that are
    no character replaced by U+FFFD, cut before the first stop string.
    """

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = stop
        self._held = ""  # decoded, and perhaps the beginning of a stop string
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """The text that `token` makes certain. After a stop string: nothing more, and `stopped_by` says which."""
        if self.stopped_by is not None:
            return ""
        return self._release(self._decoder.decode(self._detokenizer[token]))

    def finish(self) -> str:
        """What was held back; half a character becomes U+FFFD."""
        if self.stopped_by is not None:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if not self._stop:
            return text
        self._held += text
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda item: item[0])
            text, self._held = self._held[:at], ""
            return text
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
