# Word-wrap for text that arrives in pieces, on a terminal. Pure: text in, text with line breaks and cursor moves out.
"""Streaming word-wrap.

A word is shown as soon as its first letters are there. When it turns out not to fit, the letters shown so far are
taken back and the word begins the next line; so nothing waits for a space that has not come yet.
"""

from __future__ import annotations

import unicodedata


def cell_width(char: str) -> int:
    """Terminal cells `char` takes: 0 (combining), 1, or 2 (East Asian wide, most emoji)."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


class Wrapper:
    """Breaks lines of at most `columns` cells between words. Lines of a ``` block are left alone."""

    def __init__(self, columns: int) -> None:
        self._columns = max(columns - 1, 20)  # the last one is left free: a cursor there is in two places at once
        self._column = 0  # cells used on this line
        self._word = ""  # letters since the last space or line break
        self._word_width = 0
        self._line_start = ""  # the first three characters of this line
        self._in_code = False

    def feed(self, text: str) -> str:
        return "".join(self._char(char) for char in text)

    def _char(self, char: str) -> str:
        if char == "\n":
            if self._line_start == "```":
                self._in_code = not self._in_code
            self._line_start = ""
            self._start_line()
            return char
        if len(self._line_start) < 3:
            self._line_start += char
        width = 4 if char == "\t" else 1 if char < "\x7f" else cell_width(char)
        if self._in_code or self._line_start == "```":
            self._column += width
            return char
        fits = self._column + width <= self._columns
        if char.isspace():
            self._word, self._word_width = "", 0
            if not fits:  # the line break stands for the space
                self._start_line()
                return "\n"
            self._column += width
            return char
        if fits:
            self._word += char
            self._word_width += width
            self._column += width
            return char
        if width == 0 or self._word_width == self._column:  # the word fills the line: let the terminal break it
            if width:
                self._start_line()
                self._column = width
            return char
        moved, self._word = self._word, self._word + char
        back = f"\x1b[{self._word_width}D\x1b[K" if moved else ""
        self._word_width += width
        self._column = self._word_width
        return f"{back}\n{moved}{char}"

    def _start_line(self) -> None:
        self._column = 0
        self._word, self._word_width = "", 0
