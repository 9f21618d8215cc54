# The header of the GGUF that a conversion would give, from config and tokenizer alone.
# This file may not know weights' bytes, hubs or memory.
"""``preview``: for those who ask what a model takes before its weights are here, or converted."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ingle.models.convert.plan import ConversionPlan, check
from ingle.models.convert.refusal import naming
from ingle.models.convert.source import model_name
from ingle.models.convert.tensor_files import StoredTensor
from ingle.models.convert.weights import OutType, plan_weights
from ingle.models.convert.writer import padded, write_header
from ingle.models.errors import store_error


@dataclass(frozen=True, slots=True)
class Preview:
    """A GGUF that is not there: its name, its header, and how long it would be with its tensors."""

    name: str
    header: bytes
    size_bytes: int


def preview(directory: Path, outtype: OutType | None = None) -> Preview:
    """What ``converted(directory, outtype)`` would make; weights need not be there. None: f16, which takes as much as
    bf16 does, the other type that it may choose. Raises UnsupportedModel, BadModelFile, ModelNotFound, StoreError."""
    with naming(directory):
        plan, kind = check(directory), outtype or "f16"
        name = model_name(directory)
        planned = plan_weights(plan.hyperparameters, _as_promised(plan), kind)
        try:
            with tempfile.TemporaryDirectory(prefix="ingle-") as folder:
                path = Path(folder, "header")
                write_header(plan, planned, path, kind, name)
                header = path.read_bytes()
        except OSError as error:
            raise store_error(error, f"write to {tempfile.gettempdir()}", "TMPDIR") from None
    return Preview(name, header, padded(len(header)) + sum(padded(tensor.num_bytes) for tensor in planned))


def _as_promised(plan: ConversionPlan) -> dict[str, StoredTensor]:
    """The tensors that the config speaks of, as if they lay in a file."""
    return {
        name: StoredTensor(name, plan.directory, "F16", shape, 0, 2 * math.prod(shape))
        for name, shape in plan.hyperparameters.shapes.items()
    }
