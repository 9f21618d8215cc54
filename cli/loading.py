# MODEL as typed → an open engine with its chat template. Native loading runs beside the Python that prepares a prompt.
# This file may not know commands or how answers are shown.
"""``open_model``: resolve, check the header, open the engine; closes it at the end of the ``with``."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ingle.cli.drafts import DraftChoice, describe_draft, with_drafts
from ingle.cli.output import Output
from ingle.cli.progress import DownloadProgress
from ingle.cli.settings import used_path
from ingle.cli.signals import Signals

if TYPE_CHECKING:
    from ingle.cli.options import ModelFlags
    from ingle.cli.settings import Settings
    from ingle.models.chat_template import ChatTemplate
    from ingle.models.gguf_info import ModelInfo
    from ingle.models.resolve import ModelRef
    from ingle.runtime.config import EngineConfig
    from ingle.runtime.engine import Engine
    from ingle.runtime.llama import LlamaModel


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model ready to answer."""

    ref: ModelRef
    info: ModelInfo
    template: ChatTemplate
    engine: Engine
    load_ms: float


class _Loader(threading.Thread):
    """Loads the weights on its own thread: nearly all of that is native code, which lets Python run beside it."""

    def __init__(self, info: ModelInfo, config: EngineConfig) -> None:
        super().__init__(name="ingle-load", daemon=True)
        self._info = info
        self._config = config
        self.has_imported = threading.Event()  # from here on the thread is in native code
        self._model: LlamaModel | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            try:
                from ingle.runtime.loading import load_model
            finally:
                self.has_imported.set()
            self._model = load_model(self._info.path, self._config)
        except BaseException as error:
            self._error = error

    def result(self) -> LlamaModel:
        self.join()
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model


_loader: _Loader | None = None


def is_loading() -> bool:
    """True while native code is still loading: the interpreter must not be torn down under it."""
    return _loader is not None and _loader.is_alive()


@contextmanager
def open_model(
    name: str | None,
    config: EngineConfig,
    output: Output,
    signals: Signals,
    *,
    offline: bool = False,
    verbose: bool = False,
    drafts: DraftChoice | None = None,
) -> Iterator[OpenModel]:
    """Raises ModelError and EngineError as they come."""
    global _loader
    from ingle.models.gguf_info import read_model_info
    from ingle.models.resolve import resolve

    started = time.perf_counter()
    if verbose:
        _show_native_log(output)
    ref = resolve(name, offline=offline, progress=DownloadProgress(output))
    info = read_model_info(ref.path)
    if drafts is not None:
        config = with_drafts(config, drafts, ref, info, output, offline=offline)
    _loader = _Loader(info, config)
    _loader.start()
    _loader.has_imported.wait()  # two threads that import only take turns; native loading runs beside this one

    from ingle.models import last_used
    from ingle.models.chat_template import ChatTemplate
    from ingle.runtime.engine import Engine

    last_used.mark(used_path(os.environ), ref.path)
    template = ChatTemplate.from_info(info)
    _warm(template)
    with Engine.open(ref.path, config, model_info=info, model=_loader.result()) as engine:
        signals.raise_if_stopped()  # llama.cpp logs through Python, and what is raised in there is swallowed
        gc.freeze()  # what the start has made stays: nobody need look at it again
        gc.enable()
        load_ms = (time.perf_counter() - started) * 1e3
        for note in engine.info.notes:
            output.note(f"note: {note}")
        if verbose:
            _describe(output, ref, template, engine, load_ms)
        yield OpenModel(ref, info, template, engine, load_ms)
        if verbose and (stats := engine.stats()).num_pool_resizes:
            num_tokens = stats.num_blocks_total * stats.block_size
            output.report(f"KV pool    {num_tokens} tokens, moved {stats.num_pool_resizes} times")


class Asked(Protocol):
    """What the flags of every command that answers have."""

    @property
    def model(self) -> ModelFlags: ...
    @property
    def think(self) -> bool | None: ...
    @property
    def verbose(self) -> bool: ...


@contextmanager
def open_for(
    flags: Asked, settings: Settings, config: EngineConfig, output: Output, signals: Signals
) -> Iterator[OpenModel]:
    """The model that `flags` and `settings` mean, with the drafts they ask for. Raises UsageProblem for drafts that
    make no sense before anything is opened."""
    with open_model(
        flags.model.name(settings),
        config,
        output,
        signals,
        offline=flags.model.is_offline(settings),
        verbose=flags.verbose,
        drafts=flags.model.drafts(settings),
    ) as model:
        if flags.think is not None and not model.template.supports_thinking:
            output.note(
                f"note: --{'' if flags.think else 'no-'}think changes nothing: this model's template knows no thinking"
            )
        yield model


def _warm(template: ChatTemplate) -> None:
    """Load jinja2 and compile the template now, while native code is busy. Its faults are told when it is used."""
    from ingle.models.errors import ChatTemplateError

    try:
        _ = template.adds_bos
    except ChatTemplateError:
        return


def _show_native_log(output: Output) -> None:
    from ingle.runtime.llama import log_to

    log_to(lambda line: output.report(line.rstrip("\n")) if line.strip() else None)


def _describe(output: Output, ref: ModelRef, template: ChatTemplate, engine: Engine, load_ms: float) -> None:
    info = engine.info
    output.report(f"model      {info.description} ({info.architecture}) from {ref.path}")
    output.report(f"loaded in  {load_ms:.0f} ms · {info.num_threads} threads")
    output.report(f"layers     {info.num_gpu_layers} of {info.num_layers} on the GPU")
    output.report(f"context    up to {info.n_ctx} tokens a request (trained for {info.n_ctx_train})")
    output.report(f"template   {template.origin}")
    if (draft := info.draft) is not None:
        output.report(f"drafts     {describe_draft(draft)}")
