# What the user gives as a prompt: standard input, files, the argument. Read as bytes, refused when they are not text.
# This file may not know models.
"""``read_prompt``: files first, then stdin where it is not a terminal, then a blank line and the argument.

The document goes in front so that the next question about it finds its beginning computed. With `--raw` every part is
taken byte for byte, and nothing comes between them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ingle.cli.errors import InputProblem, UsageProblem

_NO_PROMPT_HINT = 'give it as an argument (ingle run "Why?"), in a file (-f FILE) or through a pipe'


def read_prompt(argument: str | None, files: Sequence[Path], *, raw: bool = False) -> str:
    """Raises UsageProblem when there is nothing to say, InputProblem when something is not text."""
    parts = [_read_file(path, raw=raw) for path in files]
    if not stdin_is_terminal():
        parts.append(read_stdin(raw=raw))
    elif argument is None and not files:
        raise UsageProblem("no prompt", _NO_PROMPT_HINT)
    if raw:
        text = "".join([*parts, argument or ""])
    else:
        documents = [part.rstrip("\n") for part in parts if part.strip()]
        if argument is not None and argument.strip():
            documents.append(argument)
        text = "\n\n".join(documents)
    if not text:
        raise UsageProblem("the prompt is empty", _NO_PROMPT_HINT)
    _refuse_surrogates(text)
    return text


def stdin_is_terminal() -> bool:
    # A process started with stdin closed (`<&-`) has None: there is nothing to read, and nobody to ask either.
    return sys.stdin is not None and sys.stdin.isatty()


def read_stdin(*, raw: bool = False) -> str:
    """All of standard input as text."""
    if sys.stdin is None:
        return ""
    return decode(sys.stdin.buffer.read(), "standard input", raw=raw)


def decode(data: bytes, name: str, *, raw: bool = False) -> str:
    """`data` as UTF-8 text, line endings as they are; `raw`: a byte order mark too. Raises InputProblem."""
    try:
        text = data.decode("utf-8" if raw else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputProblem(
            f"{name} is not UTF-8 text (byte {error.start} is 0x{data[error.start]:02x})",
            "convert it first, for example with iconv -t UTF-8",
        ) from None
    if "\0" in text:
        raise InputProblem(f"{name} is binary (it holds a zero byte), not text", "give it text")
    return text


def _read_file(path: Path, *, raw: bool) -> str:
    if str(path) == "-":
        return read_stdin(raw=raw)
    try:
        return decode(path.read_bytes(), str(path), raw=raw)
    except IsADirectoryError:
        raise InputProblem(f"{path} is a folder", "name a file in it") from None
    except FileNotFoundError:
        raise InputProblem(f"no such file: {path}", "check the path given with -f") from None
    except OSError as error:
        raise InputProblem(f"cannot read {path}: {error.strerror}", "check its permissions") from None


def _refuse_surrogates(text: str) -> None:
    # Arguments that are not UTF-8 reach Python as lone surrogates, which no tokenizer can take.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputProblem("the prompt is not UTF-8 text", "check the terminal's encoding") from None
