# A finished file → the same with a short vocabulary: rows gathered, everything else copied. Rounds nothing.
# This file may not know which tokens are worth keeping, nor terminals.
"""``write_short``: a draft file, which knows only some tokens and has no tokenizer (``models.short_vocabulary``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ingle.models.gguf_info import ModelInfo, TensorInfo, read_model_info
from ingle.models.gguf_rules import TOKEN_IDS_KEY
from ingle.models.progress import Progress, Silent
from ingle.models.short_vocabulary import DIGEST_KEY, NO_TOKENIZER, READS_AS_KEY
from ingle.models.vocabulary import digest
from ingle.quant import gguf_values
from ingle.quant.errors import BadRecipe
from ingle.quant.ggml import Bytes
from ingle.quant.gguf_values import EncodedValue
from ingle.quant.source import Source
from ingle.quant.writer import GgufWriter, TensorSpec

_BY_TOKEN: Final = frozenset({"token_embd.weight", "output.weight", "output.bias", "per_layer_token_embd.weight"})
_PIECE_BYTES: Final = 1 << 24


def check_can_shorten(info: ModelInfo) -> None:
    """Raise BadRecipe where a tensor that is not known here has a row for each token."""
    for tensor in info.tensors:
        is_layers = tensor.name.startswith("blk.") and ".nextn." not in tensor.name
        if tensor.shape[-1] == info.vocab_size and not is_layers and tensor.name not in _BY_TOKEN:
            raise BadRecipe(
                f"the vocabulary of this model cannot be cut: {tensor.name} belongs to it too",
                "--draft-vocab all keeps it whole",
            )


def write_short(
    source: Source,
    out: Path,
    token_ids: Sequence[int],
    reads_as: Sequence[int],
    *,
    progress: Progress | None = None,
) -> int:
    """Write `source` to `out`, which appears when it is whole, with the rows of `token_ids` (ascending) only; what is
    read in place of the others says `reads_as` [tokens of `source`]. Returns the file's bytes.

    Raises BadRecipe, BadModelFile, StoreError.
    """
    check_can_shorten(source.info)
    progress = progress or Silent()
    specs = [TensorSpec(t.name, _short_shape(t, len(token_ids)), t.type) for t in source.tensors.values()]
    with GgufWriter(out, _metadata(source, token_ids, reads_as), specs) as writer:
        progress.start(sum(spec.num_bytes for spec in specs), "shortening the vocabulary")
        try:
            done = 0
            for tensor in source.tensors.values():
                for data in _pieces(source, tensor, np.asarray(token_ids)):
                    writer.write(data)
                    done += data.nbytes
                    progress.update(done)
        finally:
            progress.finish()
        writer.finish(check=lambda path: read_model_info(path, to_draft=True))
        return writer.size_bytes


def _short_shape(tensor: TensorInfo, num_rows: int) -> tuple[int, ...]:
    return (*tensor.shape[:-1], num_rows) if tensor.name in _BY_TOKEN else tensor.shape


def _pieces(source: Source, tensor: TensorInfo, token_ids: npt.NDArray[np.int64]) -> Iterator[Bytes]:
    """The tensor's bytes in order, of those with a row for each token only the rows of `token_ids`."""
    num_rows = source.num_rows(tensor.name)
    if tensor.name in _BY_TOKEN and len(tensor.shape) == 1:  # a bias: its values are what rows are elsewhere
        row = source.raw_rows(tensor.name, 0, 1)
        yield row.reshape(tensor.shape[0], -1)[token_ids]
        return
    step = max(1, _PIECE_BYTES * num_rows // tensor.num_bytes)
    for first in range(0, num_rows, step):
        rows = source.raw_rows(tensor.name, first, min(first + step, num_rows))
        if tensor.name in _BY_TOKEN:
            start, end = np.searchsorted(token_ids, (first, first + len(rows)))
            rows = rows[token_ids[start:end] - first]
        if len(rows):
            yield rows


def _metadata(source: Source, token_ids: Sequence[int], reads_as: Sequence[int]) -> dict[str, EncodedValue]:
    metadata = {key: value for key, value in source.metadata().items() if not key.startswith("tokenizer.")}
    metadata.pop("general.alignment", None)
    return metadata | {
        "tokenizer.ggml.model": gguf_values.string(NO_TOKENIZER),
        f"{source.info.architecture}.vocab_size": gguf_values.number("u32", len(token_ids)),
        TOKEN_IDS_KEY: gguf_values.numbers("u32", token_ids),
        READS_AS_KEY: gguf_values.numbers("u32", reads_as),
        DIGEST_KEY: gguf_values.string(digest(source.info)),
    }
