# A model that is a function: what it answers is decided by the test, and it remembers what it was asked.
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle.cli.loading import OpenModel
from ingle.models.chat_template import ChatTemplate
from ingle.models.resolve import ModelRef
from ingle.runtime.engine_info import EngineInfo
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

    def detokenize(self, tokens: Iterable[int]) -> str:
        names = {number: name for name, number in CONTROL.items()}
        return "".join(names.get(token) or chr(token) for token in tokens)


@dataclass(frozen=True)
class FakeStats:
    num_requests_running: int = 0
    last_abort_s: float | None = None


class FakeEngine(CharTokenizer):
    """`answer` maps the prompt's text to the answer's. The word "forever" in the last message: until interrupted."""

    def __init__(self, answer: Callable[[str], str] = lambda _prompt: "yes", n_ctx: int = 4096) -> None:
        self.answer = answer
        self.prompts: list[tuple[int, ...]] = []
        self.generated: list[tuple[int, ...]] = []
        self.info = EngineInfo("fake", "fake", n_ctx, n_ctx, 1_200_003, 1, 0, 1, True, ())
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

    def add(self, request: Request) -> RequestId:
        self.prompts.append(tuple(request.tokens))
        request_id = RequestId(len(self.prompts))
        self._requests[request_id] = request
        return request_id

    def stream(self, request_id: RequestId) -> Iterator[RequestOutput]:
        self._interrupted = False
        request = self._requests.pop(request_id)
        metrics = RequestMetrics(time.perf_counter(), seed=1, num_prompt_tokens=len(request.tokens))
        prompt = self.detokenize(request.tokens)
        text: Iterator[str] = iter(self.answer(prompt))
        if "forever" in prompt.rpartition(f"{START}user")[2]:
            text = endless()
        tokens: list[int] = []
        self.generated.append(())

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
            yield output((ord(char),), char)
        yield output((CONTROL[END],), "", FinishReason.STOP)


def endless() -> Iterator[str]:
    """Words without end, slowly enough for a terminal."""
    import threading

    pause = threading.Event()
    number = 0
    while True:
        number += 1
        yield from f"word{number} "
        pause.wait(0.005)


def open_fake(engine: FakeEngine, template: str = CHATML) -> Callable[..., Any]:
    """Stands for `loading.open_model`."""

    @contextmanager
    def opened(*_args: object, **_flags: object) -> Iterator[OpenModel]:
        ref = ModelRef(Path("fake.gguf"), "fake", "file")
        yield OpenModel(ref, None, ChatTemplate(template), engine, 1.0)  # type: ignore[arg-type]

    return opened
