# `ingle eval`: perplexity of a model on the user's text, and with --against how far it is from another.
# Scores come from quant/evaluate.py; here they are asked for and shown.
"""One table on stdout, or one JSON object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli import settings as settings_file
from ingle.cli import source
from ingle.cli.errors import InputProblem, UsageProblem
from ingle.cli.options import ModelFlags
from ingle.cli.output import Output
from ingle.cli.progress import Counter, DownloadProgress
from ingle.cli.stats import number

if TYPE_CHECKING:
    from ingle.quant.evaluate import Evaluation

JSON_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFlags:
    """The command line of `ingle eval`."""

    model: str
    text: Path
    against: str | None
    chunks: int | None
    json: bool
    quiet: bool | None
    opening: ModelFlags


def evaluate_command(flags: EvalFlags, output: Output, raise_if_stopped: Callable[[], None]) -> int:
    """Raises what resolving, loading and scoring raise, each with its reason. `raise_if_stopped` is called with each
    chunk: what a signal raises is lost where llama.cpp calls Python, as its log does."""
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    text = read_text(flags.text, "--text")
    config = flags.opening.engine_config(settings)
    from ingle.models.resolve import resolve
    from ingle.quant.evaluate import evaluate

    offline = flags.opening.is_offline(settings)
    model = resolve(flags.model, offline=offline, progress=DownloadProgress(output))
    reference = None
    if flags.against is not None:
        reference = resolve(flags.against, offline=offline, progress=DownloadProgress(output))
        if reference.path.exists() and model.path.exists() and reference.path.samefile(model.path):
            raise UsageProblem("MODEL and --against are the same file", "name what it is to be compared with")
    with Counter(output, "chunks") as counter:

        def progress(done: int, total: int) -> None:
            raise_if_stopped()
            counter.update(done, total)

        found = evaluate(
            model.path,
            text,
            against=reference.path if reference else None,
            max_chunks=flags.chunks,
            config=config,
            progress=progress,
        )
    reference_name = reference.name if reference else None
    if flags.json:
        output.json(as_json(found, model.name, reference_name))
    else:
        for line in table(found, model.name, reference_name):
            output.line(line)
    return 0


def as_json(found: Evaluation, model: str, reference: str | None) -> dict[str, Any]:
    """The object that --json prints; docs/cli.md says what is in it."""
    value: dict[str, Any] = {
        "version": JSON_VERSION,
        "model": model,
        "num_chunks": found.num_chunks,
        "chunk_tokens": found.chunk_tokens,
        "num_scored_tokens": found.perplexity.num_tokens,
        "perplexity": found.perplexity.value,
        "perplexity_error": found.perplexity.error,
        "against": None,
    }
    if (divergence := found.divergence) is not None:
        value["against"] = {
            "model": reference,
            "perplexity": divergence.reference.value,
            "perplexity_error": divergence.reference.error,
            "mean_kl": divergence.mean_kl,
            "mean_kl_interval": [divergence.low, divergence.high],
            "kl_99": divergence.kl_99,
            "max_kl": divergence.max_kl,
            "same_top": divergence.same_top,
        }
    return value


def table(found: Evaluation, model: str, reference: str | None) -> list[str]:
    """Lines for people."""
    own = found.perplexity
    rows = [
        ("perplexity", f"{own.value:.4f} ± {own.error:.4f}  {model}"),
    ]
    if (divergence := found.divergence) is not None:
        theirs = divergence.reference
        rows += [
            ("", f"{theirs.value:.4f} ± {theirs.error:.4f}  {reference}"),
            ("mean KL", f"{divergence.mean_kl:.5f}  (95 %: {divergence.low:.5f} to {divergence.high:.5f})"),
            ("99 % KL", f"{divergence.kl_99:.4f}"),
            ("same top", f"{divergence.same_top:.2%}"),
        ]
    rows.append(
        ("scored", f"{number(own.num_tokens, 'token')} in {number(found.num_chunks, 'chunk')} of {found.chunk_tokens}")
    )
    return [f"{name:<11}{value}" for name, value in rows]


def read_text(path: Path, flag: str) -> str:
    """The file that `flag` names. Raises InputProblem."""
    try:
        return source.decode(path.read_bytes(), str(path))
    except IsADirectoryError:
        raise InputProblem(f"{path} is a folder", "name a file in it") from None
    except FileNotFoundError:
        raise InputProblem(f"no such file: {path}", f"check the path given with {flag}") from None
    except OSError as error:
        raise InputProblem(f"cannot read {path}: {error.strerror}", "check its permissions") from None
