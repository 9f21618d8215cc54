# `ingle cache`: what is stored of computed prompts, whether it is sound, and forgetting it.
# Imported at every start, for its flags: nothing heavy at the top, and no model is ever loaded here.
"""The page store's files, for people."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ingle.cli import errors, options
from ingle.cli.errors import UsageProblem
from ingle.cli.output import Output
from ingle.cli.signals import Signals

if TYPE_CHECKING:
    from pathlib import Path

    from ingle.runtime.page_files import Folder

Job = Callable[[Output, Signals], int]

JSON_VERSION = 1

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

app = typer.Typer(
    name="cache",
    help="The KV of prompts that were computed: what is stored, is it sound, forget it.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def root(context: typer.Context) -> None:
    """The KV of prompts that were computed: what is stored, is it sound, forget it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(errors.USAGE)


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an age, such as 90m, 12h, 7d or 2w")
    return float(match[1]) * _UNITS_S[match[2]]


@app.command("info")
def info_command(json: options.Json = False) -> Job:
    """What is stored, by model and cache types."""
    return lambda output, _signals: info(output, as_json=json)


@app.command("verify")
def verify_command(json: options.Json = False) -> Job:
    """Read every page; remove those that are not what they should be."""
    return lambda output, _signals: verify(output, as_json=json)


@app.command("clear")
def clear_command(
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Only of models with this in their name.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="AGE", parser=_age, help="Only what was not used for: 7d, 12h, …"),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    json: options.Json = False,
) -> Job:
    """Delete stored pages. Conversations stay; they are computed again when they are resumed."""
    return lambda output, _signals: clear(output, model=model, older_than_s=older_than, yes=yes, as_json=json)


def info(output: Output, *, as_json: bool) -> int:
    from ingle.cli.stats import age, number, size
    from ingle.runtime import page_files

    directory = _directory()
    found = page_files.folders(directory)
    num_pages, num_bytes = _totals(found)
    if as_json:
        totals = {"directory": str(directory), "num_pages": num_pages, "num_bytes": num_bytes}
        output.json({"version": JSON_VERSION, **totals, "folders": [_as_json(folder) for folder in found]})
        return 0
    for folder in found:
        about = folder.about
        types = f"{about.get('type_k', '?')}/{about.get('type_v', '?')}"
        used = age(max(time.time() - folder.last_used, 0.0)) if folder.num_pages else "never used"
        pages = number(folder.num_pages, "page")
        output.line(
            f"{about.get('model', folder.path.name):<24} {types:<10} {pages:>12} {size(folder.num_bytes):>8}  {used}"
        )
    output.line(f"{number(num_pages, 'page')}, {size(num_bytes)} in {directory}")
    return 0


def verify(output: Output, *, as_json: bool) -> int:
    from ingle.cli.progress import Counter
    from ingle.cli.stats import number, size
    from ingle.runtime import page_files

    with Counter(output, "reading pages") as counter:
        found = page_files.verify(_directory(), counter.update)
    if as_json:
        counts = {"num_good": found.num_good, "num_removed": found.num_removed, "num_bytes": found.num_bytes}
        output.json({"version": JSON_VERSION, **counts})
    else:
        removed = f"; {number(found.num_removed, 'bad one')} removed" if found.num_removed else ", none of them bad"
        output.line(f"{number(found.num_good, 'good page')}, {size(found.num_bytes)}{removed}")
    return 0


def clear(output: Output, *, model: str | None, older_than_s: float | None, yes: bool, as_json: bool) -> int:
    from ingle.cli import source
    from ingle.cli.stats import number, size
    from ingle.runtime import page_files

    directory = _directory()
    if not yes:
        if not source.stdin_is_terminal():
            raise UsageProblem(
                "this deletes stored pages, and nobody is there to be asked", "--yes deletes without asking"
            )
        num_pages, num_bytes = _totals([f for f in page_files.folders(directory) if _is_meant(f, model)])
        which = f"{number(num_pages, 'page')} ({size(num_bytes)})"
        if older_than_s is not None:
            which = f"those not used lately of {which}"
        if num_pages and not _confirmed(output, f"Delete {which}?"):
            output.note("nothing was deleted")
            return errors.FAILURE
    num_pages, num_bytes = page_files.clear(directory, model=model, unused_for_s=older_than_s)
    if as_json:
        output.json({"version": JSON_VERSION, "num_pages": num_pages, "num_bytes": num_bytes})
    else:
        output.line(f"{number(num_pages, 'page')} deleted, {size(num_bytes)}")
    return 0


def _directory() -> Path:
    import os

    from ingle.cli.settings import pages_path

    return pages_path(os.environ)


def _is_meant(folder: Folder, model: str | None) -> bool:
    return model is None or model.lower() in folder.about.get("model", "").lower()


def _totals(found: list[Folder]) -> tuple[int, int]:
    return sum(folder.num_pages for folder in found), sum(folder.num_bytes for folder in found)


def _as_json(folder: Folder) -> dict[str, object]:
    sizes = {"num_pages": folder.num_pages, "num_bytes": folder.num_bytes, "last_used": folder.last_used}
    return {**folder.about, "path": str(folder.path), **sizes}


def _confirmed(output: Output, question: str) -> bool:
    output.ask(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
