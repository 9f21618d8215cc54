# Which GGUF files are on this machine, whose they are, and what each is called after -m.
# This file may not know headers (header_summary reads them), downloads, or how lists look.
"""``shelf``: our own folders, the Hugging Face cache, and folders the user names, as one list of models.

A split model is one entry. A file that two places lead to is listed once, in the place it belongs to. Only names and
sizes are looked at, so that completion in a shell can ask too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from ingle.models import catalog, convert, hub_cache, hub_layout, hub_model, pypi, quants, resolve
from ingle.models.errors import ModelNotFound
from ingle.models.hub_places import hub_cache_dir
from ingle.models.places import cache_dir, models_dir

_SUFFIX: Final = ".gguf"
_SHARD: Final = re.compile(r"^(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_MAX_DEPTH: Final = 12  # folders below one that the user names
_MAX_ENTRIES: Final = 200_000  # looked at below it: a folder of models has some hundreds


class Place(StrEnum):
    """Whose a file is."""

    OURS = "ingle"
    HUB = "hub"
    USER = "yours"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine. `files`: what to open, the first shard first. `problem`: seen without opening it."""

    name: str  # to be typed after -m
    place: Place
    files: tuple[Path, ...]
    size_bytes: int  # of all files
    repo: str | None = None  # user/repo, of a file in the hub's cache
    commit: str | None = None
    problem: str | None = None

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def quant(self) -> str | None:
        """The quantization its file name speaks of."""
        return quants.label(self.path.name)


@dataclass(frozen=True, slots=True)
class Shelf:
    """All models found, by name. `user_files`: every file in the user's folders, those listed elsewhere too."""

    models: tuple[StoredModel, ...]
    user_files: tuple[Path, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    def find(self, text: str) -> list[StoredModel]:
        """The models that `text` may mean: one by name, alias or path; several where it names their repository."""
        wanted = text.strip()
        entry = catalog.find(wanted)
        names = {wanted.lower(), entry.alias if entry is not None else wanted.lower()}
        parsed = hub_model.parse(wanted)
        if parsed is not None and parsed.quant is not None and (alias := _hub_alias(parsed.repo_id, parsed.quant)):
            names.add(alias)
        if found := [model for model in self.models if model.name.lower() in names]:
            return found
        path = _alias_path(wanted) or Path(wanted).expanduser()
        if found := [model for model in self.models if _is_among(path, model.files)]:
            return found
        return [model for model in self.models if model.repo is not None and model.repo.lower() == wanted.lower()]


def shelf(user_folders: Sequence[Path] = ()) -> Shelf:
    """Look at every place. Folders that are missing or cannot be read hold nothing, with a note for the user's own."""
    models: list[StoredModel] = []
    for root in own_folders():
        found, _ = _scan(root)
        models += [_own(group) for group in _group(found)]
    for repo in hub_layout.repos(hub_cache_dir()):
        models += _of_repo(repo)
    known = {os.path.realpath(path) for model in models for path in model.files}
    managed = [os.path.realpath(root) for root in (*own_folders(), hub_cache_dir())]
    user_files: list[Path] = []
    notes: list[str] = []
    for folder in user_folders:
        found, note = _scan(folder)
        notes += [note] if note else []
        found = [path for path in found if not _is_below(path, managed)]  # their folder may hold ours
        user_files += found
        found.sort(key=lambda path: (not path.is_symlink(), str(path)))  # of a file and links to it the file stays
        new = {real: path for path in found if (real := os.path.realpath(path)) not in known}
        known |= new.keys()
        models += [_model(shown(group[0]), Place.USER, group) for group in _group(new.values())]
    models.sort(key=lambda model: (model.name.lower(), str(model.path)))
    return Shelf(tuple(models), tuple(user_files), tuple(notes))


def own_folders() -> tuple[Path, ...]:
    """Where files that we made or fetched lie."""
    return models_dir(), cache_dir() / "converted", cache_dir() / "quantized"


def shown(path: Path) -> str:
    """`path` as one would type it: below the home folder with ``~``."""
    with suppress(ValueError, RuntimeError):
        return f"~/{path.relative_to(Path.home())}"
    return str(path)


def card_licence(model: StoredModel) -> str | None:
    """What the model card beside a file of the hub gives as its licence."""
    if model.repo is None or model.commit is None:
        return None
    for parent in model.path.parents:
        if parent.name == model.commit:
            with suppress(OSError), (parent / "README.md").open("rb") as file:
                head = file.read(8192).decode("utf-8", "replace")
                front = head.split("\n---", 1)[0] if head.startswith("---") else ""
                match = re.search(r"^license:\s*['\"]?([\w.+-]+)", front, re.MULTILINE)
                return match[1] if match else None
    return None


# -- one place each ----------------------------------------------------------------------------------------------------


def _own(group: list[Path]) -> StoredModel:
    path = group[0]
    return _model(_alias(path) or _pypi_name(path) or _converted_name(path) or shown(path), Place.OURS, group)


def _alias(path: Path) -> str | None:
    for entry in catalog.entries():
        if _alias_path(entry.alias) == path:
            return entry.alias
    return None


def _alias_path(text: str) -> Path | None:
    """Where the model of that alias lies, if it is one that comes in a wheel."""
    entry = catalog.find(text)
    if entry is None or not isinstance(entry.source, catalog.InWheel):
        return None
    return pypi.stored(resolve.wheel_source(entry))


def _pypi_name(path: Path) -> str | None:
    """``pypi:PACKAGE==VERSION`` for a file that this would open."""
    if path.parent.parent != models_dir() / "pypi":
        return None
    package, _, version = path.parent.name.rpartition("-")
    for spec in (f"{package}=={version}", path.parent.name):
        with suppress(ModelNotFound):
            source = pypi.parse_spec(spec)
            if source.folder == path.parent and pypi.stored(source) == path:
                return f"pypi:{spec}"
    return None


def _converted_name(path: Path) -> str | None:
    """What was converted to `path`: ``user/repo`` or its folder, where naming that still means this file."""
    made_from = convert.source_of(path)
    if made_from is None:
        return None
    outtype, directory = made_from
    repo_id = convert.repository_of(directory)
    if repo_id is None:
        return shown(directory) if outtype == "auto" and directory.is_dir() else None
    if hub_cache.commit_of(repo_id) != directory.name:
        return None
    return repo_id if outtype == "auto" else f"{repo_id}:{outtype.upper()}"


def _of_repo(repo: hub_layout.Repo) -> list[StoredModel]:
    models: list[StoredModel] = []
    seen: set[Path] = set()
    for commit in dict.fromkeys(file.commit for file in repo.files):
        files = {file.path: file for file in repo.files if file.commit == commit and _is_model(file.path)}
        new = [path for path, file in files.items() if file.blob not in seen]
        seen |= {file.blob for file in files.values()}
        groups = _group(new)
        labels = [_named_quant(files[group[0]].name) for group in groups]
        for group, quant in zip(groups, labels, strict=True):
            first = files[group[0]]
            name = shown(first.path)
            if first.is_main:
                name = f"{repo.name}/{first.name}"
                if quant and labels.count(quant) == 1:
                    name = _hub_alias(repo.name, quant) or f"{repo.name}:{quant}"
            models.append(_model(name, Place.HUB, group, repo.name, commit))
    for path in repo.loose:
        problem = "an unfinished download" if hub_layout.is_unfinished(path) else "left over: no revision refers to it"
        size = _size(path) or 0
        models.append(StoredModel(shown(path), Place.HUB, (path,), size, repo.name, None, problem))
    return models


def _named_quant(name: str) -> str | None:
    return None if quants.is_sidecar(name) else quants.label(name)


def _hub_alias(repo: str, quant: str) -> str | None:
    """The catalog's name for this quantization of a repository."""
    for entry in catalog.entries():
        if isinstance(entry.source, catalog.OnHub) and entry.requirement.lower() == f"{repo}:{quant}".lower():
            return entry.alias
    return None


def _model(
    name: str, place: Place, group: list[Path], repo: str | None = None, commit: str | None = None
) -> StoredModel:
    sizes = [_size(path) for path in group]
    problem = _missing_shard(group)
    if None in sizes:
        problem = "its bytes are missing: the link leads nowhere"
    return StoredModel(name, place, tuple(group), sum(size or 0 for size in sizes), repo, commit, problem)


def _missing_shard(group: list[Path]) -> str | None:
    match = _SHARD.match(group[0].name)
    if match is None:
        return None
    there = {int(found["number"]) for path in group if (found := _SHARD.match(path.name))}
    count = int(match["count"])
    for number in range(1, count + 1):
        if number not in there:
            return f"shard {number} of {count} is missing"
    return None


def _group(paths: Iterable[Path]) -> list[list[Path]]:
    """Shards of one model together, in order; every other file alone."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in sorted(paths):
        match = _SHARD.match(path.name)
        key = (str(path.parent), match["prefix"], match["count"]) if match else (str(path),)
        groups.setdefault(key, []).append(path)
    return list(groups.values())


def _scan(root: Path) -> tuple[list[Path], str | None]:
    """GGUF files below `root`, and what to say about a search that was cut short. Loops of links end."""
    found: list[Path] = []
    entered: set[tuple[int, int]] = set()
    waiting = [(root, 0)]
    num_entries = 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            if folder == root:
                return [], f"cannot look into {root}: {error.strerror}"
            continue
        for entry in entries:
            num_entries += 1
            if num_entries > _MAX_ENTRIES:
                return found, f"looked at {_MAX_ENTRIES} files below {root} and at no more: name a smaller folder"
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            with suppress(OSError):
                if entry.is_dir():
                    if depth < _MAX_DEPTH:
                        waiting.append((path, depth + 1))
                elif _is_model(path) and (entry.is_file() or entry.is_symlink()):
                    found.append(path)
    return found, None


def _is_model(path: Path) -> bool:
    return path.suffix.lower() == _SUFFIX


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _is_below(path: Path, folders: list[str]) -> bool:
    """Whether the file itself, not what it links to, lies below one of `folders`, which are real paths."""
    real = Path(os.path.realpath(path.parent))
    return any(Path(folder) in (real, *real.parents) for folder in folders)


def _is_among(path: Path, files: tuple[Path, ...]) -> bool:
    """Whether `path` is one of `files`, by its name or by where it leads."""
    absolute = Path(os.path.normpath(Path.cwd() / path))
    return absolute in files or (absolute.exists() and any(_same(absolute, file) for file in files))


def _same(a: Path, b: Path) -> bool:
    # By name first: two links to one blob are two files to the person who types one of them.
    return os.path.realpath(a) == os.path.realpath(b) and not (a.is_symlink() and b.is_symlink())
