# The commands of `ingle bench`, for Typer. Imported at every start, for its flags: nothing heavy at the top.
"""``ingle bench [MODEL]``, ``ingle bench compare BASE NEW``, ``ingle bench list``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ingle.cli import options
from ingle.cli import settings as parsing
from ingle.cli.bench import flags as bench_flags
from ingle.cli.bench.flags import BenchFlags
from ingle.cli.output import Output
from ingle.cli.signals import Signals

Job = Callable[[Output, Signals], int]
T = TypeVar("T")

MEASURE = "measure"
"""The command that is meant where no other is named; nobody has to know how it is called."""


class Group(TyperGroup):
    """`compare` and `list` are commands; whatever else comes first is for `measure`: a MODEL, or its flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] == MEASURE or args[0] not in self.commands:
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


class Measure(TyperCommand):
    """Calls itself by its group's name, in its usage and in what it complains of."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if parent is not None:
            info_name, parent = parent.info_name, parent.parent
        return super().make_context(info_name, args, parent, **extra)


app = typer.Typer(
    name="bench",
    help="How fast: the engine, many users at once, stored pages; two results compared.",
    cls=Group,
    rich_markup_mode=None,
)

ENGINE, SERVING, CONTEXT, RESULT = "Engine", "Serving", "Model", "Result"


def _parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not {error}") from None

    return parsed


def _list(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    return _parser(bench_flags.comma_list(parse))


def _slo(text: str) -> Any:
    from ingle.cli.bench.slo import parse

    return _parser(parse)(text)


@app.callback()
def root() -> None:
    """How fast: the engine, many users at once, stored pages; two results compared."""


@app.command(
    MEASURE,
    cls=Measure,
    epilog="`ingle bench compare BASE NEW` compares two results, `ingle bench list` shows those that are saved.",
)
def measure_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Alias, pypi:PACKAGE, or path to a .gguf file.", show_default=False),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="N,…", help="Prompt tokens (512). Serving: N, or N:M.")
    ] = None,
    generate: Annotated[
        str | None, typer.Option("-n", "--gen", metavar="N,…", help="Generated tokens (128). Serving: N, or N:M.")
    ] = None,
    depth: Annotated[
        Any,
        typer.Option("-d", "--depth", metavar="N,…", parser=_list(bench_flags.count), help="Tokens of context before."),
    ] = None,
    repetitions: Annotated[
        Any,
        typer.Option(
            "-r",
            "--repetitions",
            metavar="N",
            parser=_parser(bench_flags.positive_count),
            help="Runs of each test (5).",
        ),
    ] = None,
    quants: Annotated[
        Any,
        typer.Option("--quants", metavar="A,B,…", parser=_list(parsing.name), help="Several models side by side."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="First token of a known prompt: computed, and from stored pages.")
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            metavar="MODEL|ngram|auto",
            parser=_parser(parsing.name),
            help="With guesses ahead against without, on some prompts or your --prompts.",
        ),
    ] = None,
    draft_tokens: options.DraftTokens = None,
    concurrency: Annotated[
        Any,
        typer.Option(
            "--concurrency", metavar="N,…", parser=_list(bench_flags.positive_count), help="Users at once, each level."
        ),
    ] = None,
    rate: Annotated[
        Any,
        typer.Option(
            "--rate",
            metavar="X,…",
            parser=_list(bench_flags.positive_real),
            help="Requests a second (Poisson), whether or not the earlier ones are answered.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Measure an OpenAI-compatible server: http://HOST:PORT/v1."),
    ] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="What that server wants.")] = None,
    requests: Annotated[
        Any,
        typer.Option(
            "--requests", metavar="N", parser=_parser(bench_flags.positive_count), help="Requests at each level (32)."
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help='Your own requests: JSON lines with "prompt" or "messages".'),
    ] = None,
    shared_prefix: Annotated[
        Any,
        typer.Option(
            "--shared-prefix",
            metavar="N",
            parser=_parser(bench_flags.positive_count),
            help="Words that all prompts begin with; left out, none share any.",
        ),
    ] = None,
    slo: Annotated[
        Any,
        typer.Option(
            "--slo", metavar="LIMITS", parser=_slo, help="Count what keeps them: ttft=500ms,tpot=50ms,e2el=10s."
        ),
    ] = None,
    timeout: Annotated[
        Any,
        typer.Option(
            "--timeout",
            metavar="S",
            parser=_parser(bench_flags.positive_real),
            help="Longest a request may take (300).",
        ),
    ] = None,
    threads: Annotated[
        Any, typer.Option("-t", "--threads", metavar="N,…", parser=_list(parsing.positive), help="CPU threads.")
    ] = None,
    batch_size: Annotated[
        Any,
        typer.Option("-b", "--batch-size", metavar="N,…", parser=_list(parsing.positive), help="Most tokens a step."),
    ] = None,
    cache_type_k: Annotated[
        Any,
        typer.Option(
            "-ctk", "--cache-type-k", metavar="TYPE,…", parser=_list(parsing.name), help="Type of cached keys."
        ),
    ] = None,
    cache_type_v: Annotated[
        Any,
        typer.Option(
            "-ctv", "--cache-type-v", metavar="TYPE,…", parser=_list(parsing.name), help="Type of cached values."
        ),
    ] = None,
    flash_attn: Annotated[
        Any,
        typer.Option(
            "-fa",
            "--flash-attn",
            metavar="on|off|auto,…",
            parser=_list(parsing.on_off_auto),
            help="Flash attention.",
        ),
    ] = None,
    gpu_layers: options.GpuLayers = None,
    ctx_size: options.CtxSize = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", parser=_parser(parsing.whole), help="Of prompts and arrivals.")
    ] = 0,
    format: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="|".join(bench_flags.FORMATS),
            parser=_parser(bench_flags.output_format),
            help="How to print the rows; engine rows have llama-bench's columns and keys.",
        ),
    ] = "table",
    json: options.Json = False,
    save: Annotated[str | None, typer.Option("--save", metavar="NAME", help="Keep the result under that name.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png|svg", help="Draw it.")] = None,
    offline: options.Offline = None,
    quiet: options.Quiet = None,
) -> Job:
    """How fast is MODEL on this machine?

    Reading prompts and generating, measured as llama-bench does (no sampling). With --concurrency or --rate: what many
    users at once would see, of this machine's engine or of any server (--url). What is compared takes turns; nothing is
    counted before it has settled; Ctrl-C keeps what there is.
    """
    given = locals()
    from ingle.cli.bench.bench import bench

    flags = options.collect(BenchFlags, given, timeout_s=timeout)
    return lambda output, signals: bench(flags, output, signals)


@app.command("compare")
def compare_command(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Name of a saved result, or path to a .json file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same, to be compared with it.")],
    tolerance: Annotated[
        Any,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            parser=_parser(bench_flags.share),
            help="How much worse is no regression (5%).",
        ),
    ] = None,
    json: options.Json = False,
) -> Job:
    """Ratios of two results, with intervals. Exit code 1 on a regression.

    A regression is a figure that is worse by more than --tolerance, and that chance does not explain: the 95 % interval
    of its ratio lies on the worse side of 1.
    """
    from ingle.cli.bench.shelf import show_comparison

    share = bench_flags.DEFAULT_TOLERANCE if tolerance is None else tolerance
    return lambda output, _signals: show_comparison(base, new, share, output, as_json=json)


@app.command("list")
def list_command(json: options.Json = False) -> Job:
    """Results that are saved, the newest first."""
    from ingle.cli.bench.shelf import show_list

    return lambda output, _signals: show_list(output, as_json=json)
