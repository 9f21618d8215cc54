# What a directory of safetensors will become, decided before its weights are looked at (or fetched at all).
# This file may not know how weights are read or written, nor where they come from.
"""``check``: config and tokenizer → ConversionPlan, or an error that says what is unsupported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingle.models.convert.hyperparameters import Hyperparameters, read_hyperparameters
from ingle.models.convert.refusal import naming
from ingle.models.convert.tokenizer import read_tokenizer
from ingle.models.convert.vocabulary import Vocabulary

# What of a repository must be on disk for `check`; those that a repository lacks are simply not there.
FILES_TO_CHECK: Final[tuple[str, ...]] = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """A model that can be converted. `notes` say, a line each, where the result is not all that the source is."""

    directory: Path
    hyperparameters: Hyperparameters = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)

    @property
    def architecture(self) -> str:
        """GGUF's name of it."""
        return self.hyperparameters.architecture.name

    @property
    def num_params(self) -> int:
        """Values in all tensors; a tied output matrix counts once."""
        return sum(math.prod(shape) for shape in self.hyperparameters.shapes.values())

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.hyperparameters.notes, *self.vocabulary.notes)


def check(directory: Path) -> ConversionPlan:
    """Read config and tokenizer of `directory`; weights need not be there. Raises UnsupportedModel with what is
    unsupported, BadModelFile, ModelNotFound."""
    with naming(directory):
        hyperparameters = read_hyperparameters(directory)
        return ConversionPlan(directory, hyperparameters, read_tokenizer(directory, hyperparameters.vocab_size))


def is_safetensors_dir(path: Path) -> bool:
    """Whether `path` is a directory that holds a model as transformers saves it. Looks at names only."""
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors*"))
