# Where the Hugging Face cache lies, by its documented variables, without importing huggingface_hub (0.3 s).
# This file may not know the hub's protocol nor what is inside the cache.
"""``HF_HUB_CACHE``, else ``HF_HOME``/hub, else ``XDG_CACHE_HOME`` or ``~/.cache``, then ``huggingface/hub``."""

from __future__ import annotations

import os
from pathlib import Path


def hub_cache_dir() -> Path:
    """The folder of ``models--…--…`` folders, as huggingface_hub itself finds it. Not created here."""
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        value = os.environ.get(variable)
        if value:
            return Path(os.path.expandvars(value)).expanduser() / below
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "huggingface" / "hub"


def is_offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` (or ``TRANSFORMERS_OFFLINE``) says so."""
    return any(
        os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
