# What a quantized file is called when nobody says. This file may not know what is in it.
"""ggml's convention, ``BaseName-SizeLabel-FineTune-Version-Encoding.gguf``: the source's name, another encoding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")
_ENCODING: Final = re.compile(r"[-._](?:F32|F16|BF16|FP16|I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*)$", re.IGNORECASE)


def default_name(source: Path, mix_name: str) -> str:
    """File name for `source` in the mix of that name: ``model.Q8_0.gguf`` → ``model-Q4_K_M.gguf``."""
    stem = source.name[: -len(source.suffix)] if source.suffix.lower() == ".gguf" else source.name
    stem = _ENCODING.sub("", _SHARD.sub("", stem))
    return f"{stem}-{mix_name}.gguf"
