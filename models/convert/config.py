# The config.json of a model directory, typed: every value is checked for its kind when it is asked for.
# This file may not know architectures nor GGUF keys.
"""``Config``: what a model's config.json says, with the defaults that transformers would fill in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ingle.models.errors import BadModelFile, ModelNotFound

_MAX_JSON_BYTES: Final = 256 * 2**20  # the largest tokenizer.json known is below 40 MB
_MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
_HINT: Final = "The directory is damaged or incomplete: fetch it again."


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelNotFound when there is none, BadModelFile when it is not one."""
    try:
        if not path.is_file():
            raise FileNotFoundError
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise BadModelFile(f"{path} is too large to be a description of a model", _HINT)
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotFound(f"there is no {path.name} in {path.parent}", _HINT) from None
    except OSError as error:
        raise BadModelFile(f"cannot read {path}: {error.strerror}", "Check the file's permissions.") from None
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{path} is not JSON: {error}", _HINT) from None
    if not isinstance(value, dict):
        raise BadModelFile(f"{path} is not a JSON object", _HINT)
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when there is no such file."""
    return read_json(path) if path.is_file() else {}


class Config:
    """A config.json over the defaults of its architecture. An explicit null counts as not said."""

    def __init__(self, said: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = {**defaults, **{key: value for key, value in said.items() if value is not None}}
        self._said = said

    def raw(self, key: str) -> Any:
        """The value as it stands; None when neither the file nor the defaults have it."""
        return self._values.get(key)

    def explicitly_none(self, key: str) -> bool:
        """Whether the file says null, which for some keys differs from saying nothing."""
        return key in self._said and self._said[key] is None

    def count(self, key: str) -> int:
        """A required whole number above zero."""
        value = self.count_or_none(key)
        if value is None:
            raise self._bad(key, "is missing")
        return value

    def count_or_none(self, key: str) -> int | None:
        """A whole number above zero, or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise self._bad(key, f"is {value!r}, not a whole number above zero")
        return value

    def number(self, key: str) -> float:
        """A required finite number."""
        value = self.number_or_none(key)
        if value is None:
            raise self._bad(key, "is missing")
        return value

    def number_or_none(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._bad(key, f"is {value!r}, not a number")
        return float(value)

    def flag(self, key: str) -> bool:
        """A truth value; absent is false."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self._bad(key, f"is {value!r}, neither true nor false")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """An object; absent is empty."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            raise self._bad(key, "is not an object")
        return value

    def per_layer(self, key: str, num_layers: int) -> list[Any] | None:
        """A list with an entry for every layer, or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < num_layers:
            raise self._bad(key, f"is not a list of {num_layers} entries, one a layer")
        return value[:num_layers]

    def _bad(self, key: str, what: str) -> BadModelFile:
        return BadModelFile(f"config.json: {key} {what}", _HINT)

    # The sizes that every architecture here has.

    @property
    def num_layers(self) -> int:
        value = self.count("num_hidden_layers")
        if value > _MAX_LAYERS:
            raise self._bad("num_hidden_layers", f"is {value}; at most {_MAX_LAYERS} layers are supported")
        return value

    @property
    def num_heads(self) -> int:
        return self.count("num_attention_heads")

    @property
    def num_kv_heads(self) -> int:
        value = self.count_or_none("num_key_value_heads") or self.num_heads
        if self.num_heads % value:
            raise self._bad("num_key_value_heads", f"is {value}, which does not divide {self.num_heads} heads")
        return value

    @property
    def hidden_size(self) -> int:
        return self.count("hidden_size")

    @property
    def head_dim(self) -> int:
        """Values a head: said, or the hidden size shared out."""
        said = self.count_or_none("head_dim")
        if said is None and self.hidden_size % self.num_heads:
            raise self._bad("hidden_size", f"{self.hidden_size} is not a multiple of {self.num_heads} heads")
        value = said or self.hidden_size // self.num_heads
        if value % 2:
            raise self._bad("head_dim", f"is {value}, an odd number")
        return value
