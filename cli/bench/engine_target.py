# The engine of this process as a target: one thread owns it and batches whatever has been handed in.
# This file may not know load or statistics.
"""``EngineTarget``: requests from any thread, steps on its own."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingle.cli.bench.target import Answer, Occupancy
from ingle.cli.bench.work import Work
from ingle.cli.errors import CliError, describe
from ingle.cli.prompt import PromptBuilder
from ingle.models.chat_template import ChatTemplate, Message
from ingle.models.errors import ModelError
from ingle.runtime.errors import EngineError, PromptTooLong
from ingle.runtime.request import FinishReason, Request, RequestId, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from ingle.runtime.engine import Engine

IDLE_S = 0.05
"""How long the thread waits for a request before it looks whether it is to stop."""

OCCUPANCY_EVERY_S = 0.02

_NAMES = {"temp": "temperature"}


class EngineTarget:
    """Owns the thread, not the engine: `close` ends the one and leaves the other open."""

    def __init__(self, engine: Engine, template: ChatTemplate, timeout_s: float) -> None:
        self._engine = engine
        self._template = template
        self._timeout_s = timeout_s
        self._inbox: queue.SimpleQueue[tuple[Answer, Request | None, threading.Event]] = queue.SimpleQueue()
        self._running: dict[RequestId, tuple[Answer, threading.Event]] = {}
        self._occupancy: list[Occupancy] = []
        self._is_stopped = False
        self._is_closing = False
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="ingle-bench-engine", daemon=True)
        self._thread.start()

    # -- any thread ----------------------------------------------------------------------------------------------------

    def ask(self, answer: Answer) -> None:
        try:
            # A builder of its own: they remember texts, and threads come here at once.
            request = replace(request_of(self._engine, self._template, answer.work), deadline_s=self._timeout_s)
        except (ModelError, EngineError) as error:
            answer.sent_s = time.perf_counter()
            answer.fail(reason_of(error))
            return
        done = threading.Event()
        answer.sent_s = time.perf_counter()
        self._inbox.put((answer, request, done))
        while not done.wait(1.0):
            if not self._thread.is_alive():
                answer.fail("the engine has failed")
                return

    def stop(self) -> None:
        self._is_stopped = True
        self._engine.interrupt()

    def occupancy(self) -> list[Occupancy]:
        taken, self._occupancy = self._occupancy, []
        return taken

    def forget(self) -> None:
        """Nothing is under way, so the engine's thread is waiting and does not touch it."""
        assert not self._running
        self._engine.clear_cache()

    def close(self) -> None:
        """Raises what ended the engine's thread early, where something did."""
        self._is_closing = True
        self._thread.join()
        if self._crash is not None:
            raise self._crash

    # -- the engine's thread -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not (self._is_closing and not self._running):
                self._accept()
                if self._is_stopped:
                    self._abort_all()
                elif self._engine.has_work:
                    outputs = self._engine.step()
                    now = time.perf_counter()
                    for output in outputs:
                        self._take(output, now)
                    self._note_occupancy(now)
        except BaseException as error:  # told by `close`, on the thread that can do something about it
            self._crash = error
        finally:
            self._abort_all("the engine has failed" if self._crash is not None else "stopped")

    def _accept(self) -> None:
        """Take in what has been handed in; wait a little where there is nothing else to do."""
        timeout_s = None if self._running else IDLE_S
        while True:
            try:
                item = self._inbox.get(block=timeout_s is not None, timeout=timeout_s)
            except queue.Empty:
                return
            timeout_s = None
            answer, request, done = item
            try:
                if self._is_stopped:
                    raise CliError("stopped")
                assert request is not None
                self._running[self._engine.add(request)] = answer, done
            except (EngineError, CliError) as error:
                answer.fail(reason_of(error))
                done.set()

    def _take(self, output: RequestOutput, now: float) -> None:
        found = self._running.get(output.request_id)
        if found is None:
            return
        answer, done = found
        if output.new_tokens:
            answer.deliveries_s.append(now)
        if not output.finished:
            return
        del self._running[output.request_id]
        metrics = output.metrics
        answer.finished_s = now
        answer.num_prompt_tokens = metrics.num_prompt_tokens
        answer.num_output_tokens = metrics.num_output_tokens
        answer.num_cached_tokens = metrics.num_cached_tokens
        answer.num_preemptions = metrics.num_preemptions
        answer.queue_s = metrics.queue_s
        if output.finish_reason == FinishReason.DEADLINE:
            answer.fail("timed out")
        elif output.finish_reason == FinishReason.ABORT:
            answer.fail("stopped")
        elif output.error is not None:
            answer.fail(output.error)
        elif not metrics.num_output_tokens:
            answer.fail("answered without a token")
        done.set()

    def _abort_all(self, reason: str = "stopped") -> None:
        for request_id, (answer, done) in list(self._running.items()):
            self._engine.abort(request_id)
            answer.fail(reason)
            done.set()
        self._running.clear()

    def _note_occupancy(self, now: float) -> None:
        if self._occupancy and now - self._occupancy[-1].time_s < OCCUPANCY_EVERY_S:
            return
        stats = self._engine.stats()
        self._occupancy.append(
            Occupancy(
                now,
                stats.num_blocks_used,
                stats.num_blocks_cached,
                stats.num_blocks_total,
                stats.num_requests_running,
                stats.num_requests_waiting,
            )
        )


def request_of(engine: Engine, template: ChatTemplate, work: Work) -> Request:
    """Raises ChatTemplateError, InvalidRequest."""
    messages = [Message(message.role, message.content) for message in work.messages]
    tokens = PromptBuilder(engine, template).build(messages).tokens
    given: dict[str, Any] = {_NAMES.get(name, name): value for name, value in work.sampling.items()}
    given["stop"] = (*given.get("stop", ()), *(() if work.is_drawn else template.stop))
    params = replace(SamplingParams(temperature=0.0, ignore_eos=work.is_drawn), **given)
    return Request(tokens, params, work.max_tokens, cache_salt=work.salt)


def reason_of(error: Exception) -> str:
    """Few words, the same for the same kind of failure, so that they can be counted."""
    if isinstance(error, PromptTooLong):
        return "the prompt is longer than the context"
    report = describe(error)
    return report.message or type(error).__name__
