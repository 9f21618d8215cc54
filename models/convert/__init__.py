# The face of the conversion. Importing it imports nothing: names are looked up when they are first used.
# This package may not know hubs, llama.cpp's bindings or terminals; gguf and numpy are imported when a conversion runs.
"""A directory of safetensors, as transformers saves them → a GGUF file.

::

    is_safetensors_dir(path)    by names alone
    check(directory)            config and tokenizer → ConversionPlan, before weights are fetched (FILES_TO_CHECK)
    preview(directory)          the header of the GGUF to be, for plans
    convert(directory, out)     → the file
    converted(directory)        → the file in the cache, converted when it is not there
    kept(directory)             → the file in the cache, or None
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingle.models.convert.cache import companions, converted, kept, source_of
    from ingle.models.convert.header_only import Preview, preview
    from ingle.models.convert.plan import FILES_TO_CHECK, ConversionPlan, check, is_safetensors_dir
    from ingle.models.convert.source import repository_of
    from ingle.models.convert.weights import OutType
    from ingle.models.convert.writer import convert

__all__ = [
    "FILES_TO_CHECK",
    "ConversionPlan",
    "OutType",
    "Preview",
    "check",
    "companions",
    "convert",
    "converted",
    "is_safetensors_dir",
    "kept",
    "preview",
    "repository_of",
    "source_of",
]

_HOMES = {
    "cache": ("companions", "converted", "kept", "source_of"),
    "plan": ("FILES_TO_CHECK", "ConversionPlan", "check", "is_safetensors_dir"),
    "header_only": ("Preview", "preview"),
    "source": ("repository_of",),
    "weights": ("OutType",),
    "writer": ("convert",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
