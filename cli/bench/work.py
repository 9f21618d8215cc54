# Requests to send: drawn from a seed, or read from the user's file. Knows no engine and no server.
"""``Work``: one request of a load, and where it comes from.

Drawn prompts are common English words behind a number that no other prompt has, so that no prefix cache can help unless
`shared_prefix` asks for it. Most tokenizers have a token for each such word; the true counts are in the result.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingle.cli import source
from ingle.cli.errors import InputProblem, UsageProblem

SAMPLING_KEYS = ("temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
_KEYS = frozenset({"id", "prompt", "messages", "system", "max_tokens", "stop", *SAMPLING_KEYS})
_ROLES = ("system", "user", "assistant")

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education "
)
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens, the same every time or drawn evenly from [low, high]."""

    low: int
    high: int

    def draw(self, generator: random.Random) -> int:
        return generator.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Message:
    """As in a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Work:
    """One request. `is_drawn`: the answer's length is to be `max_tokens` whatever the model would rather say.

    ``salt``: prompts of different salts share no cache where the target can tell them apart.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    is_drawn: bool = True
    salt: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)


def draw(
    count: int, *, prompt: Length, answer: Length, shared_prefix: int = 0, seed: int = 0, series: str = ""
) -> list[Work]:
    """`count` requests, the same for the same arguments. `series` keeps prompts of different rounds apart."""
    shared = _words(random.Random(f"{seed} shared"), shared_prefix)
    works = []
    for index in range(count):
        generator = random.Random(f"{seed} {series} {index}")
        own = [f"{generator.getrandbits(48):x}", *_words(generator, prompt.draw(generator))]
        text = " ".join([*shared, *own[: max(1, len(own) - 1)]])
        salt = "" if shared_prefix else f"{seed} {series} {index}"
        works.append(Work((Message("user", text),), answer.draw(generator), True, salt))
    return works


def _words(generator: random.Random, count: int) -> list[str]:
    return generator.choices(_WORDS, k=count)


def read_file(path: Path, default_max_tokens: int) -> list[Work]:
    """The requests of a file of JSON lines: what `ingle run --jsonl` takes, or `messages` instead of a prompt.

    Raises InputProblem for a file that cannot be read, UsageProblem for a line that makes no sense.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputProblem(f"no such file: {path}", "check the path given with --prompts") from None
    except IsADirectoryError:
        raise InputProblem(f"{path} is a folder", "name a file in it") from None
    except OSError as error:
        raise InputProblem(f"cannot read {path}: {error.strerror}", "check its permissions") from None
    lines = source.decode(data, str(path)).split("\n")
    works = [
        _parse(line, f"{path}:{number}", default_max_tokens) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not works:
        raise UsageProblem(f"{path} holds no request", 'a line such as {"prompt": "Why is the sky blue?"} is one')
    return works


def repeated(works: Sequence[Work], count: int) -> list[Work]:
    """`count` of them, from the beginning again where there are fewer."""
    return [works[index % len(works)] for index in range(count)]


def _parse(line: str, where: str, default_max_tokens: int) -> Work:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageProblem(f"{where} is not JSON", 'a line such as {"prompt": "Why?"} is wanted') from None
    if not isinstance(values, dict):
        raise UsageProblem(f"{where} is not a JSON object", '{"prompt": "…"} is the least')
    if unknown := sorted(values.keys() - _KEYS):
        raise UsageProblem(f"{where} has an unknown key {unknown[0]!r}", f"known are {', '.join(sorted(_KEYS))}")
    max_tokens = values.get("max_tokens", default_max_tokens)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not 1 <= max_tokens < 2**31:
        raise UsageProblem(f"{where}: max_tokens is {max_tokens!r}, which is not a whole number, 1 or more")
    sampling: dict[str, Any] = {
        key: _number(values[key], f"{where}: {key}") for key in SAMPLING_KEYS if values.get(key) is not None
    }
    if (stop := values.get("stop")) is not None:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
            raise UsageProblem(f"{where}: stop is neither a text nor a list of texts")
        sampling["stop"] = stops
    return Work(_messages(values, where), max_tokens, False, "", sampling)


def _number(value: Any, what: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageProblem(f"{what} is {value!r}, which is not a number")
    return value


def _messages(values: dict[str, Any], where: str) -> tuple[Message, ...]:
    prompt, messages, system = values.get("prompt"), values.get("messages"), values.get("system")
    if (prompt is None) == (messages is None):
        raise UsageProblem(f"{where} wants a prompt or messages, one of both")
    if system is not None and not isinstance(system, str):
        raise UsageProblem(f"{where}: system is not a text")
    found = [Message("system", system)] if system else []
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise UsageProblem(f"{where} has no prompt", '"prompt" is a text that is not empty')
        return (*found, Message("user", prompt))
    if not isinstance(messages, list) or not messages:
        raise UsageProblem(f"{where}: messages is not a list of messages")
    for message in messages:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in _ROLES or not isinstance(content, str):
            raise UsageProblem(
                f"{where}: a message is not of the form that is wanted",
                '{"role": "user", "content": "…"}, the role one of system, user, assistant',
            )
        found.append(Message(role, content))
    return tuple(found)
