# What a model would say at each token of a text: the token that is likeliest to come next.
# This file may not know what it is compared with.
"""``likeliest``: by which a draft is judged, for whole files and for those with a short vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingle.models import short_vocabulary
from ingle.models.gguf_info import read_model_info
from ingle.quant.activations import Tokens, context_config
from ingle.quant.evaluate import LOGIT_ROWS, chunk_logits
from ingle.runtime.config import EngineConfig
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.loading import load_model


def likeliest(
    path: Path,
    chunks: Sequence[Tokens],
    *,
    config: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.intp]:
    """[tokens]: after each token in the second halves of `chunks` (all of one length) the likeliest next one, as the
    model at `path` has it. Ids are the whole vocabulary's, also where the file is a draft with fewer tokens.

    Raises ModelError, EngineError.
    """
    info = read_model_info(path, to_draft=True)
    is_short = info.short_vocabulary is not None
    token_ids = np.array(short_vocabulary.token_ids(info), np.intp) if is_short else None
    reads_as = np.array(short_vocabulary.reads_as(info), np.int32) if is_short else None
    chunk_tokens = len(chunks[0])
    scored = slice(chunk_tokens // 2, chunk_tokens - 1)
    config = context_config(config, chunk_tokens)
    found: list[npt.NDArray[np.intp]] = []
    with ExitStack() as stack:
        model = load_model(path, config)
        stack.callback(model.close)
        context = LlamaContext(model, chunk_tokens, config, num_outputs=LOGIT_ROWS)
        stack.callback(context.close)
        for number, chunk in enumerate(chunks):
            progress(number, len(chunks))
            read = chunk if reads_as is None else reads_as[chunk]
            found += [logits.argmax(axis=1) for logits in chunk_logits(context, read, scored, LOGIT_ROWS)]
    progress(len(chunks), len(chunks))
    tops = np.concatenate(found)
    return tops if token_ids is None else token_ids[tops]
