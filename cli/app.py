# The door: `main` parses, installs the signals, runs one command and turns whatever happens into an exit code.
# Commands' own modules are imported by the command that was asked for.
"""``ingle``.

Typer only parses: a command function returns a job, which `main` runs afterwards. So no exception, signal or exit of a
job passes through the parser, and what the user sees of it is decided in one place (``errors.describe``).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ingle.cli import cache, errors, model_commands, options, quant_commands
from ingle.cli.bench import commands as bench_commands
from ingle.cli.options import ModelFlags, SamplingFlags, collect
from ingle.cli.output import Output
from ingle.cli.signals import Signals

Job = Callable[[Output, Signals], int]

app = typer.Typer(
    name="ingle",
    help="Run language models on this machine.",
    epilog="A flag wins over INGLE_* in the environment, which wins over config.toml (`ingle doctor` shows where).",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ingle {version('ingle')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None:
    """Run language models on this machine."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(errors.USAGE)


@app.command("run")
def run_command(
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to ask.", show_default=False)] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Text to put in front of the prompt (repeatable)."),
    ] = None,
    session: options.Session = None,
    system: options.System = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the text as it stands.")] = False,
    think: options.Think = None,
    hide_think: options.HideThink = False,
    json: options.Json = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON request a line on stdin, one result a line out, batched.")
    ] = False,
    stats: options.Stats = False,
    model: options.Model = None,
    max_tokens: options.MaxTokens = None,
    temp: options.Temp = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ctx_size: options.CtxSize = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    flash_attn: options.FlashAttn = None,
    cache_type_k: options.CacheTypeK = None,
    cache_type_v: options.CacheTypeV = None,
    batch_size: options.BatchSize = None,
    draft: options.Draft = None,
    draft_tokens: options.DraftTokens = None,
    no_kv_store: options.NoKvStore = False,
    offline: options.Offline = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = None,
) -> Job:
    """One answer, streamed to stdout.

    Standard input that is not a terminal is read first, then comes a blank line, then PROMPT. Files given with -f stand
    in front of both. With --raw they are joined byte for byte, with nothing in between.
    """
    given = locals()
    from ingle.cli.run import RunFlags, run

    flags = collect(
        RunFlags,
        given,
        files=tuple(files or ()),
        model=collect(ModelFlags, given),
        sampling=collect(SamplingFlags, given, stop=tuple(stop or ())),
    )
    return lambda output, signals: run(flags, output, signals)


@app.command("chat")
def chat_command(
    session: options.Session = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last conversation.")] = False,
    system: options.System = None,
    think: options.Think = None,
    hide_think: options.HideThink = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a turn on stdout (not on a terminal).")] = False,
    stats: options.Stats = False,
    model: options.Model = None,
    max_tokens: options.MaxTokens = None,
    temp: options.Temp = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    ctx_size: options.CtxSize = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    flash_attn: options.FlashAttn = None,
    cache_type_k: options.CacheTypeK = None,
    cache_type_v: options.CacheTypeV = None,
    batch_size: options.BatchSize = None,
    draft: options.Draft = None,
    draft_tokens: options.DraftTokens = None,
    no_kv_store: options.NoKvStore = False,
    offline: options.Offline = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = None,
) -> Job:
    """A conversation in the terminal.

    Enter sends, a paste keeps its lines, Esc Enter or \"\"\" writes many lines. Ctrl-C stops an answer, Ctrl-D leaves.
    Every turn is saved as it happens. Without a terminal every line of standard input is a turn, saved with --session.
    """
    given = locals()
    from ingle.cli.chat import ChatFlags, chat

    flags = collect(
        ChatFlags,
        given,
        model=collect(ModelFlags, given),
        sampling=collect(SamplingFlags, given, stop=tuple(stop or ())),
    )
    return lambda output, signals: chat(flags, output, signals)


model_commands.add_to(app)
quant_commands.add_to(app)
app.add_typer(cache.app)
app.add_typer(bench_commands.app)


@app.command("doctor")
def doctor_command(json: options.Json = False) -> Job:
    """This machine, what was compiled in, versions, places, and what looks wrong."""
    from ingle.cli.doctor import doctor

    return lambda output, _signals: doctor(output, as_json=json)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. Never returns: ends the process with its exit code."""
    gc.disable()  # imports make no garbage; `open_model` turns it on again, before anything long-lived runs
    output = Output()
    signals = Signals()
    try:
        signals.install()
        job = app(args=arguments, prog_name="ingle", standalone_mode=False)
        # --help and --version have done their work and give a number instead of a job.
        code = job(output, signals) if callable(job) else int(job or 0)
        output.flush()
    except BaseException as error:
        code = _failed(error, output)
    _leave(code)


def _failed(error: BaseException, output: Output) -> int:
    if isinstance(error, typer.TyperException):
        report = errors.Report(_usage_message(error), _usage_hint(error), errors.USAGE)
    elif isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else errors.FAILURE
    else:
        report = errors.describe(error)
    if os.environ.get("INGLE_DEBUG") == "1" and report.message is not None:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError | errors.Undeliverable):
        output.abandon_stdout()
    if report.message is not None:
        output.error(report.message, report.hint)
    else:
        output.close_answer()
    return report.exit_code


def _usage_message(error: typer.TyperException) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(message.split()).rstrip(".")
    return message[:1].lower() + message[1:]


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'ingle'} --help shows what there is"


def _leave(code: int) -> None:
    loading = sys.modules.get("ingle.cli.loading")
    if loading is not None and loading.is_loading():
        os._exit(code)  # native code is still at work on its own thread: do not pull the interpreter from under it
    sys.exit(code)


if __name__ == "__main__":
    main()
