# What stands in a transcript: records from turns, and the conversation back from records.
# Pure; this file may not know files, engines or terminals.
"""Records.

====================  ================================================================================================
header                ``ingle`` ``version`` ``created`` ``system``, and of the model ``model`` ``file`` ``bytes``
``user``              a question, when it is sent. ``tokens``: the ids of its prompt after the first ``kept``, which
                      are those of the exchange before it; ``crc`` is of all of them. ``first``: the exchange the
                      prompt begins with, where earlier ones have left the context.
``answer``            ``tokens``: the ids that were generated, if the next prompt may go on from them
``undo``              so many of the user's messages are taken back, answered or not
``system``            the system prompt from here on
``model``             the model from here on
====================  ================================================================================================

Nothing is taken out again: an undone answer is still there to read.
"""

from __future__ import annotations

import array
import itertools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ingle.cli.conversation import Exchange, Turn

Record = dict[str, Any]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelId:
    """Which model token ids are of: `name` is for people, file and size decide."""

    name: str
    file: str
    num_bytes: int

    def is_same(self, other: ModelId) -> bool:
        return (self.file, self.num_bytes) == (other.file, other.num_bytes)

    def as_record(self) -> Record:
        return {"model": self.name, "file": self.file, "bytes": self.num_bytes}


def opening(model: ModelId, system: str | None) -> Record:
    """The header, but for what says that it is one."""
    return {**model.as_record(), "created": _now(), "system": system}


def asked(turn: Turn, history: Sequence[int]) -> Record:
    """`history`: the ids of the exchange before."""
    tokens = turn.prompt.tokens
    kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, history, strict=False)))
    first = {"first": turn.first} if turn.first else {}
    numbers = {"kept": kept, "crc": _crc(tokens), "tokens": list(tokens[kept:])}
    return {"user": turn.question, "time": _now(), **first, **numbers}


def answered(answer: str, generated: Sequence[int], finish_reason: str, *, exact: bool) -> Record:
    tokens = {"tokens": list(generated)} if exact else {}
    return {"answer": answer, "time": _now(), "finish_reason": finish_reason, **tokens}


def undone(num: int) -> Record:
    return {"undo": num, "time": _now()}


def new_system(text: str | None) -> Record:
    return {"system": text, "time": _now()}


def new_model(model: ModelId) -> Record:
    return {**model.as_record(), "time": _now()}


@dataclass(slots=True)
class Replay:
    """What a transcript comes to. `pending`: the user's last message, where it has no answer."""

    model: ModelId
    system: str | None
    exchanges: list[Exchange] = field(default_factory=list)
    pending: str | None = None
    _asked: tuple[Tokens, int] = ((), 0)  # the pending message's prompt and its first exchange
    _models: list[ModelId] = field(default_factory=list)  # of each exchange

    def usable(self, model: ModelId) -> list[Exchange]:
        """The exchanges, without the token ids that are another model's."""
        pairs = zip(self.exchanges, self._models, strict=True)
        return [exchange if of.is_same(model) else replace(exchange, tokens=()) for exchange, of in pairs]

    @property
    def last_line(self) -> str:
        """The last line that was said; empty when nothing was."""
        said = self.pending if self.pending is not None else self.exchanges[-1].answer if self.exchanges else ""
        lines = said.strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _take(self, record: Record) -> None:
        match record:
            case {"user": str(question)}:
                self.pending, self._asked = question, self._prompt(record)
            case {"answer": str(answer)} if self.pending is not None:
                tokens, first = self._asked
                generated = _ids(record.get("tokens"))
                whole = (*tokens, *generated) if tokens and generated else ()
                self.exchanges.append(Exchange(self.pending, answer, whole, self.system, first))
                self._models.append(self.model)
                self.pending = None
            case {"undo": int(num)} if num > 0:
                num -= self.pending is not None
                self.pending = None
                kept = max(len(self.exchanges) - num, 0)
                del self.exchanges[kept:], self._models[kept:]
            case {"model": str()}:
                self.model = _model(record)
            case {"system": str() | None as system}:
                self.system = system
            case _:
                pass  # of a later version, or a note somebody made by hand

    def _prompt(self, record: Record) -> tuple[Tokens, int]:
        """The prompt's ids, or none when they do not add up (a line was changed by hand, say), and `first`."""
        kept, first = record.get("kept"), record.get("first", 0)
        first = first if isinstance(first, int) and 0 <= first <= len(self.exchanges) else 0
        history = self.exchanges[-1].tokens if self.exchanges else ()
        if not isinstance(kept, int) or not 0 <= kept <= len(history):
            return (), first
        tokens = (*history[:kept], *_ids(record.get("tokens")))
        return (tokens if record.get("crc") == _crc(tokens) else ()), first


def replay(records: Iterable[Record]) -> Replay:
    """The conversation that `records`, a header first, have led to."""
    head, *rest = records
    system = head.get("system")
    state = Replay(_model(head), system if isinstance(system, str) else None)
    for record in rest:
        state._take(record)
    return state


def _model(record: Record) -> ModelId:
    num_bytes = record.get("bytes")
    return ModelId(
        str(record.get("model", "?")), str(record.get("file", "")), num_bytes if isinstance(num_bytes, int) else -1
    )


def _ids(value: Any) -> Tokens:
    if isinstance(value, list) and all(isinstance(token, int) and 0 <= token < 2**31 for token in value):
        return tuple(value)
    return ()


def _crc(tokens: Tokens) -> int:
    return zlib.crc32(array.array("i", tokens).tobytes())


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
