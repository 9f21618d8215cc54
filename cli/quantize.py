# `ingle quantize`: a smaller file, or several, and what they are worth. What is asked for is checked before the first
# byte is written. Imported by its command alone; numpy and native code are imported when the flags make sense.
"""The command line of a quantization: what was asked for becomes recipes, recipes become files, files get a verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingle.cli import settings as settings_file
from ingle.cli.errors import InputProblem, UsageProblem
from ingle.cli.output import Output

if TYPE_CHECKING:
    from ingle.cli.quantize_job import Wish

INT4 = "int4"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeFlags:
    """The command line of `ingle quantize`."""

    model: str
    to: tuple[str, ...] = ()
    target_size: str | None = None
    target_bpw: float | None = None
    tensor_types: tuple[str, ...] = ()
    for_draft: str | None = None
    draft_vocab: object = None  # "auto", "all" or a number of tokens
    calib: Path | None = None
    awq: bool = True
    gptq: bool | None = None
    imatrix: Path | None = None
    no_imatrix: bool = False
    keep_imatrix: bool = False
    eval_text: Path | None = None
    plot: Path | None = None
    out: Path | None = None
    allow_requantize: bool = False
    force: bool = False
    dry_run: bool = False
    json: bool = False
    offline: bool | None = None
    quiet: bool | None = None


def quantize(flags: QuantizeFlags, output: Output, raise_if_stopped: Callable[[], None] = lambda: None) -> int:
    """Returns the exit code; raises what `errors.describe` turns into one. `raise_if_stopped` is called with every
    step: what a signal raises is lost where llama.cpp calls Python, as its log does."""
    # Our threads work on many small matrices at once. OpenBLAS's own would wait for one another, and spin: on two busy
    # cores a Cholesky factor of 576 columns takes 0.88 s with them and 0.01 s without. numpy reads this when imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    _refuse_contradictions(flags)
    from ingle.cli.options import ModelFlags
    from ingle.cli.progress import DownloadProgress
    from ingle.models.resolve import resolve
    from ingle.quant.recipe import parse_override

    wishes = _wishes(flags)
    overrides = [parse_override(text) for text in flags.tensor_types]
    config = ModelFlags(offline=flags.offline).engine_config(settings)
    offline, progress = bool(settings.pick("offline", flags.offline)), DownloadProgress(output)
    ref = resolve(flags.model, offline=offline, progress=progress)
    drafted = None if flags.for_draft is None else resolve(flags.for_draft, offline=offline, progress=progress).path
    outs = _outs(flags, ref.path, [wish.name for wish in wishes])

    from ingle.cli.quantize_job import Job
    from ingle.quant.source import Source

    with Source(ref.path) as source:
        if not flags.allow_requantize:
            source.refuse_if_coarse()
        elif source.coarse_types:
            output.warn(f"{ref.path.name} is quantized already: what that has lost stays lost")
        job = Job(flags, output, source, overrides, config, raise_if_stopped)
        if drafted is not None:
            from ingle.cli.quantize_draft import draft

            return draft(job, drafted, outs[0])
        return job.run(wishes, outs)


def _refuse_contradictions(flags: QuantizeFlags) -> None:
    has_target = flags.target_size is not None or flags.target_bpw is not None
    if not flags.to and not has_target and flags.for_draft is None:
        raise UsageProblem("--to is missing", "such as --to q4_k_m; it may be given several times")
    if flags.target_size is not None and flags.target_bpw is not None:
        raise UsageProblem("--target-size and --target-bpw are two targets", "leave out one of them")
    if flags.for_draft is not None and (flags.to or has_target):
        raise UsageProblem("--for-draft chooses the types itself", "leave out --to and targets")
    if flags.for_draft is not None and (flags.eval_text or flags.plot or flags.keep_imatrix or flags.dry_run):
        raise UsageProblem(
            "--for-draft judges by the target alone", "leave out --eval, --plot, --keep-imatrix and --dry-run"
        )
    if flags.draft_vocab is not None and flags.for_draft is None:
        raise UsageProblem("--draft-vocab is for drafts", "name the model they are for with --for-draft")
    if flags.imatrix is not None and flags.no_imatrix:
        raise UsageProblem("--imatrix and --no-imatrix contradict each other", "leave out one of them")
    if flags.keep_imatrix and flags.no_imatrix:
        raise UsageProblem("there is no importance matrix that --keep-imatrix could keep", "leave out --no-imatrix")
    if flags.dry_run and (has_target or any(name.lower() == INT4 for name in flags.to)):
        raise UsageProblem(
            "a dry run measures nothing, and int4 and targets are chosen by measuring", "leave out --dry-run"
        )
    if flags.plot is not None:
        from ingle.cli.bench import plots

        plots.check(flags.plot)


def _wishes(flags: QuantizeFlags) -> list[Wish]:
    """Each once, in the order given, targets last. Raises BadRecipe."""
    from ingle.cli.quantize_job import Wish
    from ingle.quant.recipe import find_mix
    from ingle.quant.target import parse_bits, parse_size

    wishes: dict[str, Wish] = {}
    for name in flags.to:
        mix = None if name.lower() == INT4 else find_mix(name)
        wish = Wish(INT4) if mix is None else Wish(mix.name, mix)
        wishes[wish.name] = wish
    targets = []
    if flags.target_size is not None:
        targets.append(parse_size(flags.target_size))
    if flags.target_bpw is not None:
        targets.append(parse_bits(flags.target_bpw))
    return [*wishes.values(), *(Wish(one.name, target=one) for one in targets)] or [Wish("draft")]


def _outs(flags: QuantizeFlags, model: Path, names: Sequence[str]) -> list[Path]:
    """Where each file goes. Raises UsageProblem and InputProblem."""
    from ingle.quant.naming import default_name

    if flags.out is None or flags.out.is_dir():
        outs = [(flags.out or Path()) / default_name(model, name) for name in names]
    elif len(names) > 1:
        raise UsageProblem(f"{flags.out} is no folder, and there are {len(names)} files to write", "name a folder")
    else:
        outs = [flags.out]
    for out in outs:
        if not out.parent.is_dir():
            raise InputProblem(f"no such folder: {out.parent}", "make it first")
        _refuse_existing(out, flags)
    if flags.keep_imatrix:
        _refuse_existing(imatrix_path(outs[0]), flags)
    return outs


def _refuse_existing(out: Path, flags: QuantizeFlags) -> None:
    if out.exists() and not out.is_file():
        raise UsageProblem(f"{out} is no file", "name one with -o")
    if out.exists() and not flags.force and not flags.dry_run:
        raise UsageProblem(f"{out} exists", "--force replaces it, -o names another")


def imatrix_path(out: Path) -> Path:
    """Where --keep-imatrix writes: beside the first file."""
    return out.with_name(f"{out.stem}.imatrix.gguf")
