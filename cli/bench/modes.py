# What a command line measures: flags and settings → a plan that opens what it needs and runs one of the benchmarks.
# This file may not know how a result is shown or kept.
"""``plan`` raises for whatever makes no sense, before anything is downloaded or loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingle.cli.bench import flags as parsing
from ingle.cli.bench import opened
from ingle.cli.bench.case import Setup, Sweep, expand
from ingle.cli.bench.decode import Stopped
from ingle.cli.bench.energy import EnergyCounters
from ingle.cli.bench.engine import EngineBench
from ingle.cli.bench.flags import BenchFlags
from ingle.cli.bench.load import Stop
from ingle.cli.bench.result import Result
from ingle.cli.bench.serving import Level, ServingBench
from ingle.cli.bench.target import Target
from ingle.cli.bench.work import Length, Work, draw, read_file, repeated
from ingle.cli.errors import UsageProblem
from ingle.cli.options import ModelFlags
from ingle.cli.output import Output
from ingle.cli.settings import Settings
from ingle.cli.signals import Signals
from ingle.runtime.config import EngineConfig, default_num_threads
from ingle.runtime.llama_context import Interrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

Live = Callable[[str], None]
Run = Callable[[Result, Output, Signals, Live], None]

PROMPT, GENERATE, DEPTH, REPETITIONS = "512", "128", (0,), 5
RESUME_PROMPT, RESUME_REPETITIONS = "2048", 3
REQUESTS = 32
TIMEOUT_S = 300.0
LEVELS = (1,)

RATE_SEQUENCES = 8
"""Requests computed together where they come at a rate: the others wait, and their waiting counts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`settings`: what was left out and is now decided, for the result."""

    run: Run
    settings: dict[str, Any]


def plan(flags: BenchFlags, settings: Settings) -> Plan:
    """Raises UsageProblem, InvalidRequest, InputProblem."""
    if flags.mode == "engine":
        return _engine(flags, settings)
    if flags.mode == "drafts":
        return _drafts(flags, settings)
    return _resume(flags, settings) if flags.mode == "resume" else _serving(flags, settings)


# -- the engine --------------------------------------------------------------------------------------------------------


def _engine(flags: BenchFlags, settings: Settings) -> Plan:
    sweep = Sweep(
        prompts=_counts(flags.prompt or PROMPT, "-p"),
        generations=_counts(flags.generate or GENERATE, "-n"),
        depths=flags.depth or DEPTH,
        threads=flags.threads or (settings.pick("threads", None) or default_num_threads(),),
        batches=flags.batch_size or (settings.pick("batch_size", None) or EngineConfig().n_batch,),
        types_k=flags.cache_type_k or (settings.pick("cache_type_k", None) or "f16",),
        types_v=flags.cache_type_v or (settings.pick("cache_type_v", None) or "f16",),
        flash_attns=flags.flash_attn or (settings.pick("flash_attn", None),),
    )
    names = flags.quants or (flags.model if flags.model is not None else settings.pick("model", None),)
    cases = expand(sweep, len(names))
    if not cases:
        raise UsageProblem("-p 0 and -n 0 leave nothing to measure", "give one of them some tokens")
    config, *_ = [_config(flags, settings, setup) for setup in dict.fromkeys(case.setup for case in cases)]
    num_repetitions = flags.repetitions or REPETITIONS

    def run(result: Result, output: Output, signals: Signals, live: Live) -> None:
        interrupt = _Flag()
        with opened.open_models(names, config, output, offline=_is_offline(flags, settings)) as models:
            signals.raise_if_stopped()
            result.models = [opened.as_json(model.ref, model.info) for model in models]
            _note_windows(models, output)
            bench = EngineBench(
                models,
                cases,
                gpu_layers=config.gpu_layers,
                num_repetitions=num_repetitions,
                seed=flags.seed,
                interrupt=interrupt.flag,
                counters=EnergyCounters.find(),
                live=live,
            )
            with signals.answering(interrupt), suppress(Stopped):
                bench.run(result)
        signals.raise_if_stopped()

    return Plan(run, {"repetitions": num_repetitions, **_sweep_settings(sweep)})


class _Flag:
    """What a signal sets."""

    def __init__(self) -> None:
        self.flag = Interrupt()

    def interrupt(self) -> None:
        self.flag.is_set = True


def _note_windows(models: Sequence[opened.OpenedModel], output: Output) -> None:
    if any(model.weights.window is not None for model in models):
        output.note("note: sliding windows are kept as llama-bench keeps them; Ingle keeps more, to share prefixes")


def _sweep_settings(sweep: Sweep) -> dict[str, Any]:
    return {
        "prompt": list(sweep.prompts),
        "generate": list(sweep.generations),
        "depth": list(sweep.depths),
        "threads": list(sweep.threads),
        "batch_size": list(sweep.batches),
    }


# -- serving -----------------------------------------------------------------------------------------------------------


def _serving(flags: BenchFlags, settings: Settings) -> Plan:
    levels = [Level(rate=rate) for rate in flags.rate or ()]
    levels = levels or [Level(concurrency=number) for number in flags.concurrency or LEVELS]
    prompt, answer = _length(flags.prompt or PROMPT, "-p"), _length(flags.generate or GENERATE, "-n")
    num_requests = flags.requests or REQUESTS
    timeout_s = flags.timeout_s or TIMEOUT_S
    own = None if flags.prompts is None else read_file(flags.prompts, answer.high)

    def make_works(count: int, series: str) -> list[Work]:
        if own is not None:
            return repeated(own, count)
        shared = flags.shared_prefix or 0
        return draw(count, prompt=prompt, answer=answer, shared_prefix=shared, seed=flags.seed, series=series)

    num_sequences = max(level.concurrency or RATE_SEQUENCES for level in levels)
    config = None
    if flags.url is None:
        config = _single(flags, settings, num_sequences)
        config = replace(config, max_queue=max(config.max_queue, num_requests))

    def run(result: Result, output: Output, signals: Signals, live: Live) -> None:
        with _open_target(flags, settings, config, timeout_s, result, output, signals) as (target, about):
            stop = Stop(target)
            bench = ServingBench(
                target,
                levels,
                make_works,
                num_requests=num_requests,
                seed=flags.seed,
                slo=flags.slo,
                about=about,
                stop=stop,
                live=live,
            )
            with signals.answering(stop):
                bench.run(result)
        signals.raise_if_stopped()

    worked_out: dict[str, Any] = {"requests": num_requests, "timeout_s": timeout_s, "generate": str(answer)}
    if own is None:
        worked_out["prompt"] = str(prompt)
    if config is not None:
        worked_out |= {"max_num_seqs": config.max_num_seqs, "threads": [config.threads()]}
    return Plan(run, worked_out)


@contextmanager
def _open_target(
    flags: BenchFlags,
    settings: Settings,
    config: EngineConfig | None,
    timeout_s: float,
    result: Result,
    output: Output,
    signals: Signals,
) -> Iterator[tuple[Target, dict[str, Any]]]:
    """The target, and what a row says of it."""
    if config is None:
        from ingle.cli.bench.http_target import HttpTarget

        assert flags.url is not None
        server = HttpTarget(flags.url, flags.model, timeout_s, flags.api_key)
        result.models = [{"name": server.model, "url": flags.url}]
        try:
            yield server, {"target": flags.url, "model": server.model}
        finally:
            server.close()
        return
    from ingle.cli.bench.engine_target import EngineTarget
    from ingle.cli.loading import open_model

    name = flags.model if flags.model is not None else settings.pick("model", None)
    with open_model(name, config, output, signals, offline=_is_offline(flags, settings)) as model:
        result.models = [opened.as_json(model.ref, model.info)]
        about = {
            "target": "engine",
            "model": model.ref.name,
            "n_threads": config.threads(),
            "n_batch": config.n_batch,
            "type_k": config.type_k,
            "type_v": config.type_v,
        }
        target = EngineTarget(model.engine, model.template, timeout_s)
        try:
            yield target, about
        finally:
            target.close()


# -- resuming ----------------------------------------------------------------------------------------------------------


def _resume(flags: BenchFlags, settings: Settings) -> Plan:
    prompts = _counts(flags.prompt or RESUME_PROMPT, "-p")
    if 0 in prompts:
        raise UsageProblem("-p 0 leaves nothing to resume", "give the document some tokens")
    if flags.generate is not None:
        raise UsageProblem("--resume measures the first token alone", "leave out -n")
    config = _single(flags, settings, 1)
    num_repetitions = flags.repetitions or RESUME_REPETITIONS

    def run(result: Result, output: Output, signals: Signals, live: Live) -> None:
        from ingle.cli.bench.resume import ResumeBench
        from ingle.cli.progress import DownloadProgress
        from ingle.models.gguf_info import read_model_info
        from ingle.models.resolve import resolve

        name = flags.model if flags.model is not None else settings.pick("model", None)
        ref = resolve(name, offline=_is_offline(flags, settings), progress=DownloadProgress(output))
        info = read_model_info(ref.path)
        result.models = [opened.as_json(ref, info)]
        bench = ResumeBench(ref, info, config, prompts, num_repetitions=num_repetitions, seed=flags.seed, live=live)
        with signals.answering(bench.interruption):
            bench.run(result)
        signals.raise_if_stopped()

    return Plan(run, {"repetitions": num_repetitions, "prompt": list(prompts), "threads": [config.threads()]})


# -- drafts ------------------------------------------------------------------------------------------------------------


def _drafts(flags: BenchFlags, settings: Settings) -> Plan:
    from ingle.cli.bench.drafts import DraftBench, own_works
    from ingle.cli.drafts import DraftChoice, with_drafts

    if flags.prompt is not None:
        raise UsageProblem("-p draws words, which nobody could guess", "leave it out, or give your own --prompts")
    assert flags.draft is not None
    answer = _length(flags.generate or GENERATE, "-n")
    if answer.low != answer.high:
        raise UsageProblem("-n is a range, and both sides of a pair answer the same", "give one number")
    works = own_works(answer.high)
    if flags.prompts is not None:
        works = [(f"prompt {number}", work) for number, work in enumerate(read_file(flags.prompts, answer.high), 1)]
    plain = _single(flags, settings, 1)
    choice = DraftChoice(flags.draft, flags.draft_tokens if isinstance(flags.draft_tokens, int) else None)
    num_repetitions = flags.repetitions or REPETITIONS

    def run(result: Result, output: Output, signals: Signals, live: Live) -> None:
        from ingle.cli.progress import DownloadProgress
        from ingle.models.gguf_info import read_model_info
        from ingle.models.resolve import resolve

        name = flags.model if flags.model is not None else settings.pick("model", None)
        is_offline = _is_offline(flags, settings)
        ref = resolve(name, offline=is_offline, progress=DownloadProgress(output))
        info = read_model_info(ref.path)
        config = with_drafts(plain, choice, ref, info, output, offline=is_offline)
        assert config.draft is not None
        config = replace(config, draft=replace(config.draft, is_required=True))
        result.models = [opened.as_json(ref, info)]
        bench = DraftBench(ref, info, config, works, num_repetitions=num_repetitions, seed=flags.seed, live=live)
        with signals.answering(bench.interruption):
            bench.run(result)
        signals.raise_if_stopped()

    return Plan(run, {"repetitions": num_repetitions, "generate": str(answer), "threads": [plain.threads()]})


# -- flags -------------------------------------------------------------------------------------------------------------


def _single(flags: BenchFlags, settings: Settings, num_sequences: int) -> EngineConfig:
    """The one context that serving and resuming have; raises UsageProblem where a flag lists several."""
    for name in ("threads", "batch_size", "cache_type_k", "cache_type_v", "flash_attn"):
        if len(getattr(flags, name) or ()) > 1:
            spelled = f"--{name.replace('_', '-')}"
            raise UsageProblem(f"{spelled} lists several values, which only the engine's own speed is measured for")
    first = {
        name: (getattr(flags, name) or (None,))[0] for name in ("threads", "batch_size", "cache_type_k", "cache_type_v")
    }
    flash = None if flags.flash_attn is None else ("auto" if flags.flash_attn[0] is None else flags.flash_attn[0])
    given = ModelFlags(
        **first,
        flash_attn=flash,
        ctx_size=flags.ctx_size,
        gpu_layers=flags.gpu_layers,
        no_kv_store=True,
    )
    return given.engine_config(settings, max_num_seqs=num_sequences)


def _config(flags: BenchFlags, settings: Settings, setup: Setup) -> EngineConfig:
    """Raises, in the words of the flags, for a context there cannot be."""
    return ModelFlags(
        threads=setup.num_threads,
        batch_size=setup.n_batch,
        cache_type_k=setup.type_k,
        cache_type_v=setup.type_v,
        flash_attn="auto" if setup.flash_attn is None else setup.flash_attn,
        gpu_layers=flags.gpu_layers,
        no_kv_store=True,
    ).engine_config(settings)


def _counts(text: str, flag: str) -> tuple[int, ...]:
    try:
        return parsing.comma_list(parsing.count)(text)
    except ValueError as error:
        raise UsageProblem(f"{flag} is {text!r}, which is not {error}", f"such as {flag} 128,512") from None


def _length(text: str, flag: str) -> Length:
    try:
        return Length(*parsing.length(text))
    except ValueError as error:
        raise UsageProblem(f"{flag} is {text!r}, which is not {error}") from None


def _is_offline(flags: BenchFlags, settings: Settings) -> bool:
    return bool(settings.pick("offline", flags.offline))
