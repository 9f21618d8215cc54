# A model that is a function: what it answers is decided by the test, and it remembers what it was asked.
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle.cli.loading import OpenModel
from ingle.models.chat_template import ChatTemplate
from ingle.models.needs import Setting
from ingle.models.resolve import ModelRef
from ingle.runtime.engine_info import EngineInfo
from ingle.runtime.explain import Miss
from ingle.runtime.request import FinishReason, Request, RequestId, RequestMetrics, RequestOutput

START, END = "<|im_start|>", "<|im_end|>"
CONTROL = {START: 1_200_001, END: 1_200_002}  # above every character's number
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class CharTokenizer:
    """A token is a character; control tokens are one token where they are recognised."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        while text:
            name = next((name for name in CONTROL if parse_special and text.startswith(name)), None)
            tokens.append(CONTROL[name] if name else ord(text[0]))
            text = text[len(name) if name else 1 :]
        return tokens

    def control_tokens(self) -> tuple[str, ...]:
        return tuple(sorted(CONTROL, key=len, reverse=True))

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> str:
        names = {number: name for name, number in CONTROL.items()}
        return "".join(names.get(token) or chr(token) for token in tokens)


@dataclass(frozen=True)
class FakePages:
    num_written: int = 7


@dataclass(frozen=True)
class FakeStats:
    num_requests_running: int = 0
    last_abort_s: float | None = None
    pages: FakePages = FakePages()
    drafts: None = None


@dataclass(frozen=True)
class FakeInfo:
    """Of a model file, what a transcript says of it."""

    size_bytes: int = 1000


class FakeEngine(CharTokenizer):
    """`answer` maps the prompt's text to the answer's. The word "forever" in the last message: until interrupted.

    Keeps the KV of everything that was asked and answered; on disk, by its own account.
    """

    def __init__(self, answer: Callable[[str], str] = lambda _prompt: "yes", n_ctx: int = 4096) -> None:
        self.answer = answer
        self.prompts: list[tuple[int, ...]] = []
        self.generated: list[tuple[int, ...]] = []
        self.seeds: list[int | None] = []
        self.num_shrunk = 0
        self._stored: list[tuple[int, ...]] = []
        self.info = EngineInfo("fake", "fake", n_ctx, n_ctx, 1_200_003, 1, 0, 1, True, (), Setting())
        self._requests: dict[RequestId, Request] = {}
        self._interrupted = False

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def interrupt(self) -> None:
        self._interrupted = True

    def abort(self, request_id: RequestId) -> None:
        self._requests.pop(request_id, None)

    def stats(self) -> FakeStats:
        return FakeStats()

    def shrink(self) -> bool:
        self.num_shrunk += 1
        return True

    def explain(self, tokens: Sequence[int], num_cached_tokens: int, cache_salt: str = "") -> Miss | None:
        cached, ours = tuple(tokens[:num_cached_tokens]), tuple(tokens[num_cached_tokens:])
        for known in self._stored:
            stored = known[num_cached_tokens:]
            if known[:num_cached_tokens] == cached and stored and stored[0] != ours[0]:
                return Miss(num_cached_tokens, "the text differs", ours, stored)
        return Miss(num_cached_tokens, "nothing further is stored", ours)

    def add(self, request: Request) -> RequestId:
        self.prompts.append(tuple(request.tokens))
        request_id = RequestId(len(self.prompts))
        self._interrupted = False
        self._requests[request_id] = request
        return request_id

    def stream(self, request_id: RequestId) -> Iterator[RequestOutput]:
        request = self._requests.pop(request_id)
        metrics = RequestMetrics(time.perf_counter(), seed=1, num_prompt_tokens=len(request.tokens))
        metrics.num_cached_tokens = metrics.num_disk_tokens = max(
            (_num_common(known, request.tokens) for known in self._stored), default=0
        )
        metrics.restore_s, metrics.saved_s = 0.012, 3.4
        metrics.first_scheduled_s = time.perf_counter()
        prompt = self.detokenize(request.tokens)
        text: Iterator[str] = iter(self.answer(prompt))
        if "forever" in prompt.rpartition(f"{START}user")[2]:
            text = endless()
        tokens: list[int] = []
        self.generated.append(())
        self.seeds.append(request.sampling.seed)

        def output(new: tuple[int, ...], piece: str, reason: FinishReason | None = None) -> RequestOutput:
            tokens.extend(new)
            self.generated[-1] = tuple(tokens)
            return RequestOutput(request_id, new, piece, metrics, reason)

        for char in text:
            if self._interrupted:
                yield output((), "", FinishReason.ABORT)
                return
            if len(tokens) == request.max_output_tokens:
                yield output((), "", FinishReason.LENGTH)
                return
            metrics.num_output_tokens += 1
            metrics.first_token_s = metrics.first_token_s or time.perf_counter()
            yield output((ord(char),), char)
        self._stored.append((*request.tokens, *tokens))
        yield output((CONTROL[END],), "", FinishReason.STOP)

    def forget(self) -> None:
        """As `ingle cache clear` does it."""
        self._stored.clear()


def _num_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b) - 1))


def endless() -> Iterator[str]:
    """Words without end, slowly enough for a terminal."""
    import threading

    pause = threading.Event()
    number = 0
    while True:
        number += 1
        yield from f"word{number} "
        pause.wait(0.005)


def open_fake(engine: FakeEngine, template: str = CHATML, name: str = "fake") -> Callable[..., Any]:
    """Stands for `loading.open_for`."""

    @contextmanager
    def opened(*_args: object, **_flags: object) -> Iterator[OpenModel]:
        ref = ModelRef(Path(f"{name}.gguf"), name, "file")
        yield OpenModel(ref, FakeInfo(), ChatTemplate(template), engine, 1.0)  # type: ignore[arg-type]

    return opened
