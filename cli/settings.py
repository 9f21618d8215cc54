# Values that were not given as flags: the environment (INGLE_*), then the config file. One table says which exist.
# This file may not know what a setting does, nor Typer.
"""Settings: flag over environment over config file.

`config.toml` in the config folder holds the same names as the table below, flat. A key it does not know is an error
that names the key, because a misspelt setting that does nothing is worse than none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ingle.cli.errors import InputProblem, UsageProblem

T = TypeVar("T")

platform: str = sys.platform


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError("a whole number, 0 or more")
    return number


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("a whole number, 1 or more")
    return number


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("true or false")


def context_size(text: str) -> int | None:
    """`auto` (None) or tokens."""
    if text == "auto":
        return None
    try:
        return positive(text)
    except ValueError:
        raise ValueError("auto or a whole number of tokens, 1 or more") from None


def gpu_layers(text: str) -> int | Literal["auto", "all"]:
    if text == "auto" or text == "all":
        return "auto" if text == "auto" else "all"
    try:
        return whole(text)
    except ValueError:
        raise ValueError("auto, all or a number of layers, 0 or more") from None


MAX_DRAFT_TOKENS = 64


def draft_tokens(text: str) -> int | None:
    """`auto` (None) or so many."""
    if text == "auto":
        return None
    try:
        number = positive(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_DRAFT_TOKENS:
        raise ValueError(f"auto or a whole number from 1 to {MAX_DRAFT_TOKENS}")
    return number


def draft_vocab(text: str) -> int | Literal["auto", "all"]:
    if text == "auto" or text == "all":
        return "auto" if text == "auto" else "all"
    try:
        return positive(text)
    except ValueError:
        raise ValueError("auto, all or a number of tokens, 1 or more") from None


def on_off_auto(text: str) -> bool | None:
    """`auto` is None."""
    if text == "auto":
        return None
    try:
        return switch(text)
    except ValueError:
        raise ValueError("on, off or auto") from None


def words(text: str) -> str:
    try:
        text.encode()  # an argument or a variable that is not UTF-8 has lone surrogates, which no tokenizer can take
    except UnicodeEncodeError:
        raise ValueError("UTF-8 text") from None
    return text


def name(text: str) -> str:
    if not text.strip():
        raise ValueError("a name")
    return text


def folders(text: str) -> tuple[Path, ...]:
    """Folders, between colons (on Windows semicolons); in the config file a list of texts."""
    found = tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part)
    if not all(path.is_absolute() for path in found):
        raise ValueError("a list of folders, each from / or ~ on")
    return found


# Name in the config file → parser. In the environment: INGLE_ and the name in capitals.
TABLE: dict[str, Callable[[str], Any]] = {
    "model": name,
    "system": words,
    "ctx_size": context_size,
    "threads": positive,
    "gpu_layers": gpu_layers,
    "flash_attn": on_off_auto,
    "cache_type_k": name,
    "cache_type_v": name,
    "batch_size": positive,
    "draft": name,
    "draft_tokens": draft_tokens,
    "max_tokens": whole,
    "temp": real,
    "top_k": whole,
    "top_p": real,
    "min_p": real,
    "repeat_penalty": real,
    "seed": whole,
    "think": switch,
    "kv_store": switch,
    "offline": switch,
    "quiet": switch,
    "model_dirs": folders,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment and the config file say, parsed: name → value. `origins`: name → where it was said."""

    values: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)

    def blame(self, name: str, flag: object, spelled: str) -> str:
        """What a message calls the value that `pick` takes: the flag as `spelled`, or where else it came from."""
        return spelled if flag is not None or name not in self.origins else self.origins[name]

    def pick(self, name: str, flag: T | None) -> T | None:
        """`flag` where it was given, else what the settings say, else None."""
        assert name in TABLE, name
        return flag if flag is not None else self.values.get(name)


def load(environ: Mapping[str, str] | None = None, config_file: Path | None = None) -> Settings:
    """Read both sources. Raises UsageProblem for a value or key that makes no sense, InputProblem for a locked file."""
    environ = os.environ if environ is None else environ
    path = config_path(environ) if config_file is None else config_file
    values = _from_file(path)
    origins = {name: f"{path}: {name}" for name in values}
    for name, parse in TABLE.items():
        variable = f"INGLE_{name.upper()}"
        if text := environ.get(variable):
            values[name] = _parsed(parse, text, variable)
            origins[name] = variable
    return Settings(values, origins)


def config_path(environ: Mapping[str, str]) -> Path:
    """The config file."""
    if platform != "linux":
        from ingle.models.places import config_dir

        return config_dir() / "config.toml"
    return _xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"


def pages_path(environ: Mapping[str, str]) -> Path:
    """The folder of stored KV pages."""
    if platform != "linux":
        from ingle.models.places import cache_dir

        return cache_dir() / "kv"
    return _xdg_folder(environ, "XDG_CACHE_HOME", ".cache") / "kv"


def used_path(environ: Mapping[str, str]) -> Path:
    """The folder that says when models were last used."""
    if platform != "linux":
        from ingle.models.places import state_dir

        return state_dir() / "used"
    return _xdg_folder(environ, "XDG_STATE_HOME", ".local/state") / "used"


def _xdg_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """As models.places has it. Worked out here because platformdirs takes 10 ms, and this runs every time."""
    base = Path(environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / default) / "ingle"


def _from_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputProblem(f"cannot read {path}: {error.strerror}", "check its permissions") from None
    import tomllib

    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} is not valid TOML: {error}", "correct it, or move it away") from None
    values: dict[str, Any] = {}
    for written, value in table.items():
        name = written.replace("-", "_")
        if name not in TABLE:
            raise UsageProblem(f"{path} has an unknown setting {written!r}", f"known are {', '.join(TABLE)}")
        if name == "model_dirs" and isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = os.pathsep.join(value)
        if isinstance(value, dict | list):
            raise UsageProblem(f"{path}: {name} is not a single value")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        values[name] = _parsed(TABLE[name], text, f"{path}: {name}")
    return values


def _parsed(parse: Callable[[str], Any], text: str, source: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageProblem(f"{source} is {text!r}, which is not {error}") from None
