# `ingle run --jsonl`: many requests on stdin, answered together, results in the order of the requests.
"""JSON lines in, JSON lines out.

A request is an object with ``prompt`` and, if wanted, ``id``, ``system`` and the sampling settings of the command line
(``max_tokens``, ``temp``, ``top_k``, ``top_p``, ``min_p``, ``repeat_penalty``, ``seed``, ``stop``). Whatever a line
leaves out is as on the command line. A result is the object of ``ingle run --json`` with ``id`` (the line number where
none was given), or ``{"version", "id", "error", "hint"}``; one bad line does not stop the others, and makes the exit
code 1.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ingle.cli import source, stats
from ingle.cli.errors import FAILURE, CliError, UsageProblem, describe
from ingle.cli.loading import OpenModel, open_for
from ingle.cli.options import SamplingFlags
from ingle.cli.output import Output
from ingle.cli.run import RunFlags, make_prompt, with_stop
from ingle.cli.settings import Settings
from ingle.cli.signals import Signals
from ingle.cli.stats import JSON_VERSION
from ingle.cli.thinking import ThinkFilter

if TYPE_CHECKING:
    from ingle.runtime.request import Request, RequestId, RequestOutput

TOGETHER = 8
"""Requests computed in one batch."""

AHEAD = 64
"""Requests taken from stdin before the first of them is answered."""

_SAMPLING = ("max_tokens", "temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
_KEYS = frozenset({"id", "prompt", "system", "stop", *_SAMPLING})


@dataclass(slots=True)
class _Line:
    """A request on its way. `result` is set when it is done; results leave in the order of the lines."""

    key: Any
    thoughts: ThinkFilter | None = None
    pieces: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None


def run_lines(flags: RunFlags, settings: Settings, output: Output, signals: Signals) -> int:
    """Returns 0 when every line was answered, else 1."""
    if flags.session is not None:
        raise UsageProblem("--jsonl answers many requests, and --session is one conversation", "leave out one of them")
    if flags.prompt is not None or flags.files:
        raise UsageProblem("--jsonl reads its prompts from stdin", "leave out PROMPT and -f")
    if source.stdin_is_terminal():
        raise UsageProblem("--jsonl reads requests from stdin, and that is a terminal", "pipe a file into it")
    config = flags.model.engine_config(settings, max_num_seqs=TOGETHER)
    flags.sampling.params(settings)  # a bad flag is said before the model is loaded
    with open_for(flags, settings, config, output, signals) as model:
        batch = _Batch(flags, settings, model, output)
        with signals.answering(model.engine):
            batch.run(signals)
        if flags.stats:
            for line in stats.engine(model.engine.stats()):
                output.report(line)
    signals.raise_if_stopped()
    return FAILURE if batch.num_failed else 0


class _Batch:
    """All lines of one stdin. Reads ahead while it computes, so that a slow producer does not stall running answers."""

    def __init__(self, flags: RunFlags, settings: Settings, model: OpenModel, output: Output) -> None:
        self._flags = flags
        self._settings = settings
        self._model = model
        self._output = output
        self._waiting: deque[_Line] = deque()  # in the order of stdin; leaves at the front
        self._running: dict[RequestId, _Line] = {}
        self._texts: queue.Queue[bytes | None] = queue.Queue(maxsize=AHEAD)
        self.num_failed = 0

    def run(self, signals: Signals) -> None:
        threading.Thread(target=self._read, name="ingle-stdin", daemon=True).start()
        engine = self._model.engine
        lines = self._numbered()
        exhausted = False
        while signals.stopped_by is None:
            while not exhausted and len(self._waiting) < AHEAD and signals.stopped_by is None:
                self._deliver()  # first of all: whoever writes the lines may be waiting for it
                try:
                    item = next(lines)
                except StopIteration:
                    exhausted = True
                    break
                if item is None:
                    break  # nothing there yet
                self._accept(*item)
            self._deliver()
            if exhausted and not self._waiting:
                return
            if engine.has_work and signals.stopped_by is None:  # `add` forgets an interruption: hence the second look
                for out in engine.step():
                    self._take(out)
        for request_id in list(self._running):
            engine.abort(request_id)

    def _read(self) -> None:
        # On its own thread: a read that blocks must not keep the engine from stepping.
        if sys.stdin is not None:
            # Not sys.stdin's own buffer: its lock, held while a read waits, aborts an interpreter that ends.
            with open(sys.stdin.fileno(), "rb", closefd=False) as lines:
                for line in lines:
                    self._texts.put(line)
        self._texts.put(None)

    def _numbered(self) -> Iterator[tuple[int, bytes] | None]:
        """Lines with their numbers; None, again and again, while there is none yet."""
        number = 0
        while True:
            try:
                # With nothing running there is nothing better to do than to wait, in turns short enough for signals.
                text = self._texts.get(block=not self._running, timeout=0.1)
            except queue.Empty:
                yield None
                continue
            if text is None:
                return
            number += 1
            if text.strip():
                yield number, text

    def _accept(self, number: int, text: bytes) -> None:
        line = _Line(number)
        self._waiting.append(line)
        try:
            values = _parse(text, number, raw=self._flags.raw)
            line.key = values.get("id", number)
            request, thinking = self._request(values)
            line.thoughts = ThinkFilter(inside=thinking) if self._flags.hide_think else None
            self._running[self._model.engine.add(request)] = line
        except (KeyboardInterrupt, SystemExit, BrokenPipeError):
            raise
        except Exception as error:
            self._fail(line, error)

    def _request(self, values: dict[str, Any]) -> tuple[Request, bool]:
        from ingle.runtime.request import Request

        flags, settings, model = self._flags, self._settings, self._model
        sampling = _overridden(flags.sampling, values)
        prompt = make_prompt(
            model,
            values["prompt"],
            system=values.get("system", settings.pick("system", flags.system)),
            raw=flags.raw,
            think=settings.pick("think", flags.think),
        )
        params = with_stop(sampling.params(settings, written=values.keys()), () if flags.raw else model.template.stop)
        return Request(prompt.tokens, params, sampling.max_output_tokens(settings)), prompt.opens_thinking

    def _take(self, out: RequestOutput) -> None:
        line = self._running.get(out.request_id)
        if line is None:
            return
        line.pieces.append(line.thoughts.feed(out.text) if line.thoughts else out.text)
        if not out.finished:
            return
        del self._running[out.request_id]
        if out.error is not None:
            self._fail(line, CliError(out.error))
            return
        if line.thoughts:
            line.pieces.append(line.thoughts.finish())
        line.result = {"id": line.key, **stats.as_json(self._model.ref.name, "".join(line.pieces), out)}

    def _fail(self, line: _Line, error: Exception) -> None:
        report = describe(error)
        self.num_failed += 1
        line.result = {"version": JSON_VERSION, "id": line.key, "error": report.message, "hint": report.hint}

    def _deliver(self) -> None:
        while self._waiting and (result := self._waiting[0].result) is not None:
            self._waiting.popleft()
            self._output.json(result)


def _parse(text: bytes, number: int, *, raw: bool) -> dict[str, Any]:
    """One line as a dict whose keys are known and whose texts are text. Raises CliError."""
    try:
        values = json.loads(source.decode(text, f"line {number}"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise UsageProblem(f"line {number} is not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # NaN; a number of thousands of digits; a thousand brackets
        raise UsageProblem(f"line {number} cannot be read: {error}") from None
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UsageProblem(f"line {number} holds half a surrogate pair, which is no character") from None
    if not isinstance(values, dict):
        raise UsageProblem(f"line {number} is not a JSON object", '{"prompt": "…"} is the least')
    if unknown := sorted(values.keys() - _KEYS):
        raise UsageProblem(f"line {number} has an unknown key {unknown[0]!r}", f"known are {', '.join(sorted(_KEYS))}")
    prompt = values.get("prompt")
    if not isinstance(prompt, str) or not (prompt if raw else prompt.strip()):
        raise UsageProblem(f"line {number} has no prompt", '"prompt" is a text that is not empty')
    if not isinstance(values.get("system", ""), str | None):
        raise UsageProblem(f"line {number}: system is not a text")
    if raw and "system" in values:
        raise UsageProblem(f"line {number}: --raw continues a text, which has no system prompt", "leave out system")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _overridden(flags: SamplingFlags, values: dict[str, Any]) -> SamplingFlags:
    """`flags` with what a line says instead. Raises UsageProblem for a value of the wrong type."""
    changes: dict[str, Any] = {}
    for name in _SAMPLING:
        if (value := values.get(name)) is None:
            continue
        wants_whole = name in ("max_tokens", "top_k", "seed")
        if isinstance(value, bool) or not isinstance(value, int if wants_whole else int | float):
            raise UsageProblem(f"{name} is {value!r}, which is not a {'whole ' if wants_whole else ''}number")
        if abs(value) >= 2**64:
            raise UsageProblem(f"{name} is a number of more than 64 bits")
        changes[name] = min(value, 2**31 - 1) if name == "top_k" else value  # no vocabulary is as large
    stop = values.get("stop")
    if stop is not None:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
            raise UsageProblem("stop is neither a text nor a list of texts")
        changes["stop"] = tuple(stops)
    return replace(flags, **changes)
