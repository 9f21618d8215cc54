# How often a draft file with a short vocabulary guesses what its target would say.
# This file may not know how drafting works, nor how such a file is made.
"""``same_top``: the measure of ``evaluate`` for a file whose rows are not its target's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ingle.models import short_vocabulary
from ingle.models.gguf_info import read_model_info
from ingle.quant.activations import Tokens, context_config
from ingle.quant.evaluate import LOGIT_ROWS, chunk_logits
from ingle.runtime.config import EngineConfig
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.loading import load_model


def same_top(
    path: Path,
    target: Path,
    chunks: Sequence[Tokens],
    *,
    config: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> float:
    """Share of the tokens in the second halves of `chunks`, of the target's ids and all of one length, whose likeliest
    successor is the same token for the draft file at `path` and for the model at `target`.

    Raises ModelError, EngineError.
    """
    info = read_model_info(path, to_draft=True)
    token_ids, reads_as = (np.array(part(info)) for part in (short_vocabulary.token_ids, short_vocabulary.reads_as))
    chunk_tokens = len(chunks[0])
    scored = slice(chunk_tokens // 2, chunk_tokens - 1)
    config = context_config(config, chunk_tokens)
    num_right = 0
    with ExitStack() as stack:
        contexts = []
        for each in (path, target):
            model = load_model(each, config)
            stack.callback(model.close)
            contexts.append(LlamaContext(model, chunk_tokens, config, num_outputs=LOGIT_ROWS))
            stack.callback(contexts[-1].close)
        draft, judge = contexts
        for number, chunk in enumerate(chunks):
            progress(number, len(chunks))
            said = chunk_logits(judge, chunk, scored, LOGIT_ROWS)
            drafted = chunk_logits(draft, reads_as[chunk].astype(np.int32), scored, LOGIT_ROWS)
            for expected, guessed in zip(said, drafted, strict=True):
                num_right += int((token_ids[guessed.argmax(axis=1)] == expected.argmax(axis=1)).sum())
    progress(len(chunks), len(chunks))
    return num_right / (len(chunks) * (scored.stop - scored.start))
