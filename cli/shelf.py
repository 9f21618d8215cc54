# Where conversations are kept: names, the last used, the list. What stands in them is records.py's and transcript.py's.
# This file may not know models, engines or terminals.
"""The folder of transcripts, ``conversations/NAME.jsonl`` under the data folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ingle.cli.errors import Busy, CliError, InputProblem, UsageProblem
from ingle.cli.records import replay
from ingle.cli.transcript import SUFFIX, Transcript, read
from ingle.models.places import data_dir

MAX_NAME_BYTES = 100

_GENERATED = re.compile(r"\d{4}-\d\d-\d\d-\d{4}(-\d+)?")
_NAME = re.compile(r"\w[\w .,+@=~-]*")


def folder() -> Path:
    return data_dir() / "conversations"


def path_of(name: str) -> Path:
    """Where the conversation of that name is, or would be. Raises UsageProblem for what cannot be a name."""
    if not _NAME.fullmatch(name) or name[-1] in " .":
        raise UsageProblem(
            f"{name!r} cannot be the name of a conversation", "letters, digits, blanks and . , + @ = ~ - _ inside"
        )
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise UsageProblem(f"the name {name[:20]!r}… is longer than {MAX_NAME_BYTES} bytes", "take a shorter one")
    return folder() / f"{name}{SUFFIX}"


def is_generated(name: str) -> bool:
    """Whether the name is one of `fresh`'s, and not one that somebody chose."""
    return _GENERATED.fullmatch(name) is not None


def fresh(now: datetime | None = None) -> Transcript:
    """A new one, named by date and time. Raises StoreError."""
    stem = f"{now or datetime.now():%Y-%m-%d-%H%M}"
    number = 1
    while True:
        path = path_of(stem if number == 1 else f"{stem}-{number}")
        number += 1
        if path.exists():
            continue
        try:
            return Transcript.open(path)
        except Busy:
            continue


def existing(name: str) -> Path:
    """Raises InputProblem when there is no conversation of that name, UsageProblem when there cannot be."""
    path = path_of(name)
    if not path.exists():
        raise InputProblem(f"there is no conversation {name!r}", _known())
    return path


def last_used(*, but: str | None = None) -> str:
    """Name of the conversation in which something was last said. Raises InputProblem when there is none."""
    for path, _ in _newest_first():
        if path.stem != but:
            return path.stem
    raise InputProblem("there is no conversation to resume", "ingle chat begins one")


def names() -> list[str]:
    """All of them, the last used first."""
    return [path.stem for path, _ in _newest_first()]


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in a list. `problem`: why it cannot be opened."""

    name: str
    age_s: float
    num_exchanges: int = 0
    last_line: str = ""
    problem: str | None = None


def summaries(limit: int) -> list[Summary]:
    """The `limit` last used, the newest first."""
    found: list[Summary] = []
    for path, used in _newest_first():
        if len(found) == limit:
            break
        age_s = max(time.time() - used, 0.0)
        try:
            records = read(path)
        except CliError as error:
            found.append(Summary(path.stem, age_s, problem=str(error)))
            continue
        if records:
            state = replay(records)
            found.append(Summary(path.stem, age_s, len(state.exchanges), state.last_line))
    return found


def _newest_first() -> Iterator[tuple[Path, float]]:
    found: list[tuple[float, str, Path]] = []
    with suppress(OSError):
        for entry in os.scandir(folder()):
            if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and entry.is_file():
                with suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime, entry.name, Path(entry.path)))
    for used, _, path in sorted(found, reverse=True):
        yield path, used


def _known() -> str:
    known = names()
    if not known:
        return "there is none yet"
    return f"there are {', '.join(known[:5])}{' and others' if len(known) > 5 else ''}"
