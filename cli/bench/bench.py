# The story of a benchmark: check what was asked, measure it, tell and keep it, also when it was cut short.
# This file may not know how anything is measured or drawn.
"""``bench``: one command line of `ingle bench [MODEL]`."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ingle.cli import settings as settings_file
from ingle.cli.bench import machine, modes, saved
from ingle.cli.bench.flags import BenchFlags
from ingle.cli.bench.live import Live
from ingle.cli.bench.result import Result
from ingle.cli.bench.tell import tell
from ingle.cli.errors import FAILURE, UsageProblem, describe
from ingle.cli.output import Output
from ingle.cli.signals import Signals

# Flags that only one mode has any use for.
_ONLY_FOR = {
    "depth": ("engine",),
    "quants": ("engine",),
    "repetitions": ("engine", "resume", "drafts"),
    "draft_tokens": ("drafts",),
    "concurrency": ("serving",),
    "rate": ("serving",),
    "url": ("serving",),
    "api_key": ("serving",),
    "requests": ("serving",),
    "prompts": ("serving", "drafts"),
    "shared_prefix": ("serving",),
    "slo": ("serving",),
    "timeout_s": ("serving",),
    "ctx_size": ("serving", "resume", "drafts"),
}
_SPELLED = {"timeout_s": "--timeout", "repetitions": "-r", "depth": "-d", "ctx_size": "-c"}
_MODE_NAMES = {
    "engine": "the engine's own speed (no --concurrency, --rate, --url, --prompts, --requests or --slo)",
    "serving": "serving (--concurrency or --rate)",
    "resume": "--resume",
    "drafts": "--draft",
}


def bench(flags: BenchFlags, output: Output, signals: Signals) -> int:
    """Returns the exit code; raises what `errors.describe` turns into one, after what was measured is told and kept."""
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    _check(flags)
    path = None if flags.save is None else saved.path_of(flags.save)
    if flags.plot is not None:
        from ingle.cli.bench import plots

        plots.check(flags.plot)
    plan = modes.plan(flags, settings)
    result = Result(settings=_as_json(flags, plan.settings))
    try:
        with Live(output) as live:
            _measure(plan, result, output, signals, live)
        result.is_complete = True
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        result.stopped_by = "Ctrl-C" if interrupted else describe(error).message or type(error).__name__
        raise
    finally:
        if path is not None:
            saved.save(result, path)
        tell(result, flags, output)
        if path is not None:
            output.note(f"saved as {path}{'' if result.is_complete else ', marked incomplete'}")
        if flags.plot is not None and result.rows:
            from ingle.cli.bench import plots

            plots.plot(result, flags.plot)
            output.note(f"drawn in {flags.plot}")
    return FAILURE if any(row["kind"] == "serving" and not row["completed"] for row in result.rows) else 0


def _measure(plan: modes.Plan, result: Result, output: Output, signals: Signals, live: Live) -> None:
    before = machine.look(time.monotonic())
    result.machine = machine.describe()
    during = before

    def looking(text: str) -> None:
        """What is under way, as the moment to see how the machine bears it."""
        nonlocal during
        now_s = time.monotonic()
        if now_s - during.time_s > machine.LOOK_EVERY_S:
            during = machine.look(now_s)
        live(text)

    try:
        plan.run(result, output, signals, looking)
    finally:
        after = machine.look(time.monotonic())
        governor = result.machine.get("governor")
        result.warnings += machine.doubts(before, during, after, governor if isinstance(governor, str) else None)
        moments = (("before", before), ("during", during), ("after", after))
        result.conditions = {name: machine.as_json(moment) for name, moment in moments}


def _check(flags: BenchFlags) -> None:
    """Raise UsageProblem for flags that would do nothing, and for two that say different things."""
    for name, modes_of in _ONLY_FOR.items():
        if getattr(flags, name) is not None and flags.mode not in modes_of:
            spelled = _SPELLED.get(name, f"--{name.replace('_', '-')}")
            raise UsageProblem(f"{spelled} is for {' and '.join(_MODE_NAMES[mode] for mode in modes_of)}")
    if flags.draft is not None and flags.resume:
        raise UsageProblem("--draft and --resume measure different things", "choose one")
    if flags.draft is not None and flags.draft.lower() == "off":
        raise UsageProblem("--draft off leaves nothing to compare", "name a model, ngram or auto")
    if flags.json and flags.format != "table":
        raise UsageProblem(
            "--json and -o are two ways to print",
            "--json prints the whole result, -o json its rows as llama-bench does",
        )
    if flags.quants is not None and flags.model is not None:
        raise UsageProblem("--quants names the models", "leave out MODEL, or put it into the list")
    if flags.concurrency is not None and flags.rate is not None:
        raise UsageProblem("--concurrency sends when an answer is there, --rate at times of its own", "choose one")
    if flags.prompts is not None and (flags.shared_prefix is not None or flags.prompt is not None):
        raise UsageProblem("--prompts brings its own prompts", "leave out -p and --shared-prefix")
    if flags.api_key is not None and flags.url is None:
        raise UsageProblem("--api-key is for a server", "give its --url")
    if flags.url is not None:
        for name in ("threads", "batch_size", "cache_type_k", "cache_type_v", "flash_attn", "gpu_layers", "ctx_size"):
            if getattr(flags, name) is not None:
                raise UsageProblem(f"--{name.replace('_', '-')} is the server's affair", "leave it out with --url")


def _as_json(flags: BenchFlags, worked_out: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, and what it came to: enough to do the same again. No key of anybody's."""
    found: dict[str, Any] = {"mode": flags.mode}
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if value is None or value is False or field.name in ("api_key", "quiet", "json", "format"):
            continue
        found[field.name] = _plain(value)
    return found | worked_out


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: item for name, item in dataclasses.asdict(value).items() if item is not None}
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
