# The commands that make and judge files, for Typer. Imported at every start, for their flags: nothing heavy at the top.
"""``ingle quantize`` and ``ingle eval``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ingle.cli import options
from ingle.cli.options import ModelFlags, collect
from ingle.cli.output import Output
from ingle.cli.signals import Signals

Job = Callable[[Output, Signals], int]


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    app.command("eval")(eval_command)
    app.command("quantize")(quantize_command)


def eval_command(
    model: options.ModelArgument,
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="The text to score the model on.")],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="REF", help="What it was made from: how far is it from that?"),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option("--chunks", metavar="N", min=1, help="Score only the first N chunks of 512 tokens."),
    ] = None,
    json: options.Json = False,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    flash_attn: options.FlashAttn = None,
    offline: options.Offline = None,
    quiet: options.Quiet = None,
) -> Job:
    """Perplexity on a text of yours; with --against also KL divergence and how often the likeliest token is the same.

    Chunks of 512 tokens, the second half of each scored, as llama-perplexity does. Both models run side by side, and
    nothing is written to disk.
    """
    given = locals()
    from ingle.cli.eval import EvalFlags, evaluate_command

    flags = collect(EvalFlags, given, opening=collect(ModelFlags, given, model=None))
    return lambda output, signals: evaluate_command(flags, output, signals.raise_if_stopped)


def quantize_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="What is made smaller: F16, BF16, F32, Q8_0, or safetensors.")
    ],
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="TYPE",
            help="int4, int8, q4_0, q4_k_m, …: a wish, or a type or mix of llama.cpp (repeatable).",
        ),
    ] = None,
    target_size: Annotated[
        str | None,
        typer.Option("--target-size", metavar="SIZE", help="The best file of at most 300MB, say."),
    ] = None,
    target_bpw: Annotated[
        float | None,
        typer.Option("--target-bpw", metavar="BITS", help="The same, by bits a weight."),
    ] = None,
    tensor_types: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="REGEX=TYPE",
            help="Another type for tensors of such names (repeatable).",
        ),
    ] = None,
    for_draft: Annotated[
        str | None,
        typer.Option(
            "--for-draft",
            metavar="TARGET",
            help="The file that makes TARGET fastest here as its draft: small, and right nearly as often as MODEL.",
        ),
    ] = None,
    draft_vocab: options.DraftVocab = None,
    calib: Annotated[
        Path | None,
        typer.Option(
            "--calib",
            metavar="FILE",
            help="Text, or conversations as JSON lines, to calibrate on: the first 16,384 tokens."
            " Left out: what the model writes itself; for a draft what TARGET writes.",
        ),
    ] = None,
    no_awq: Annotated[bool, typer.Option("--no-awq", help="Without scales for input channels.")] = False,
    gptq: Annotated[
        bool | None,
        typer.Option(
            "--gptq/--no-gptq",
            help="Error feedback. Left out: where it is worth its time, to six bits.",
            show_default=False,
        ),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(
            "--imatrix",
            metavar="FILE",
            help="An importance matrix (llama.cpp's .gguf or .dat) instead of one measured here.",
        ),
    ] = None,
    no_imatrix: Annotated[bool, typer.Option("--no-imatrix", help="Without an importance matrix.")] = False,
    keep_imatrix: Annotated[
        bool,
        typer.Option(
            "--keep-imatrix",
            help="Write the importance matrix beside the file, as .imatrix.gguf.",
        ),
    ] = False,
    eval_text: Annotated[
        Path | None,
        typer.Option("--eval", metavar="FILE", help="The text the files are judged on."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw size and speed against KL, as .png or .svg.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="PATH",
            help="File, or folder. Left out: here, the source's name with TYPE.",
        ),
    ] = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Even from a file that has few bits already."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written.")] = False,
    json: options.Json = False,
    offline: options.Offline = None,
    quiet: options.Quiet = None,
) -> Job:
    """A smaller file of the same model, as near to it as can be, and a verdict on it.

    Which tensor gets which type is llama.cpp's own choice for the TYPE; --tensor-type changes it, a target chooses
    anew. The model is calibrated once; what was found is kept for the next time. Scales and error feedback stay in the
    file only where they help on text that they have not seen. A file appears when it is whole.
    """
    given = locals()
    from ingle.cli.quantize import QuantizeFlags, quantize

    flags = collect(QuantizeFlags, given, to=tuple(to or ()), tensor_types=tuple(tensor_types or ()), awq=not no_awq)
    return lambda output, signals: quantize(flags, output, signals.raise_if_stopped)
