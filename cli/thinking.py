# The thinking part of an answer, taken out while the answer streams. Pure: text in, text out.
"""``ThinkFilter``: what is between ``<think>`` and ``</think>`` is left out, also when a tag arrives in pieces."""

from __future__ import annotations

OPEN = "<think>"
CLOSE = "</think>"


class ThinkFilter:
    """Feed it the pieces of one answer. `inside`: the template has opened the tag, so the answer begins in it."""

    def __init__(self, *, inside: bool = False) -> None:
        self._inside = inside
        self._held = ""  # the beginning of what may become a tag
        self._at_start = True  # nothing visible yet: line breaks left over around the thinking are not the answer's

    def feed(self, text: str) -> str:
        """The visible part of what is known so far."""
        text, self._held = self._held + text, ""
        visible = ""
        while text:
            tag = CLOSE if self._inside else OPEN
            before, found, after = text.partition(tag)
            if not found:
                keep = _tag_beginning_at_end(before, tag)
                before, self._held = before[: len(before) - keep], before[len(before) - keep :]
            if not self._inside:
                visible += before
            if found:
                self._inside = not self._inside
            text = after
        return self._trim(visible)

    def finish(self) -> str:
        """What was held back and turned out to be no tag."""
        held, self._held = self._held, ""
        return "" if self._inside else self._trim(held)

    def _trim(self, visible: str) -> str:
        if self._at_start:
            visible = visible.lstrip()
            self._at_start = not visible
        return visible


def _tag_beginning_at_end(text: str, tag: str) -> int:
    """How many characters at the end of `text` are a beginning of `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:])), 0)
