# Where results are kept: names, the list, reading and writing. What stands in them is result.py's.
"""The folder of saved results, ``bench/NAME.json`` under the data folder."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ingle.cli.bench import result as results
from ingle.cli.bench.result import Result
from ingle.cli.errors import CliError, InputProblem, UsageProblem
from ingle.models.errors import store_error
from ingle.models.places import data_dir, ensure_private_dir

SUFFIX = ".json"
MAX_NAME_BYTES = 100
MAX_FILE_BYTES = 256 * 2**20

_NAME = re.compile(r"\w[\w .,+@=~-]*")


def folder() -> Path:
    return data_dir() / "bench"


def path_of(name: str) -> Path:
    """Where the result of that name is, or would be. Raises UsageProblem for what cannot be a name."""
    if not _NAME.fullmatch(name) or name[-1] in " .":
        raise UsageProblem(
            f"{name!r} cannot be the name of a result", "letters, digits, blanks and . , + @ = ~ - _ inside"
        )
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise UsageProblem(f"the name {name[:20]!r}… is longer than {MAX_NAME_BYTES} bytes", "take a shorter one")
    return folder() / f"{name}{SUFFIX}"


def save(result: Result, path: Path) -> None:
    """Write all of `path` or leave what was there; readable by its owner alone. Raises StoreError."""
    ensure_private_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(result.as_json(), file, ensure_ascii=False, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise store_error(error, f"write {path}") from None
    finally:
        temporary.unlink(missing_ok=True)


def load(name: str) -> Result:
    """A saved result by its name, or any file by its path. Raises InputProblem, UsageProblem."""
    path = Path(name)
    if not name.endswith(SUFFIX) and os.sep not in name:
        path = path_of(name)
        if not path.exists():
            raise InputProblem(f"there is no result {name!r}", _known())
    return _read(path)


def _read(path: Path) -> Result:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputProblem(f"{path} is too large to be a benchmark's result")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputProblem(f"no such file: {path}", "check the path, or give the name of a saved result") from None
    except OSError as error:
        raise InputProblem(f"cannot read {path}: {error.strerror}", "check its permissions") from None
    except (ValueError, RecursionError):
        raise InputProblem(f"{path} is not JSON", "it wants a file that --save or --json has written") from None
    return results.from_json(value, str(path))


@dataclass(frozen=True, slots=True)
class Entry:
    """A result in a list. `problem`: why it cannot be read."""

    name: str
    modified_s: float
    result: Result | None = None
    problem: str | None = None


def entries() -> list[Entry]:
    """All of them, the newest first."""
    found = []
    for path in folder().glob(f"[!.]*{SUFFIX}"):
        try:
            modified_s = path.stat().st_mtime
            found.append(Entry(path.stem, modified_s, _read(path)))
        except CliError as error:
            found.append(Entry(path.stem, modified_s, problem=str(error)))
        except FileNotFoundError:
            continue
    return sorted(found, key=lambda entry: (-entry.modified_s, entry.name))


def _known() -> str:
    known = sorted(path.stem for path in folder().glob(f"[!.]*{SUFFIX}"))
    if not known:
        return "there is none yet: --save NAME makes one"
    return f"there are {', '.join(known[:5])}{' and others' if len(known) > 5 else ''}"
