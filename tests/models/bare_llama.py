# llama.cpp without any of ours: logits and token ids of a GGUF file, to compare a conversion with its source.
"""``logits(path, ids)`` and ``token_ids(path, texts)``."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ingle.runtime.llama import lib  # the bare functions; importing the package itself would take the log from others


@contextmanager
def _loaded(path: Path, *, vocab_only: bool) -> Iterator[Any]:
    params = lib.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp does not load {path}"
    try:
        yield model
    finally:
        lib.llama_model_free(model)


def logits(path: Path, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """[positions, vocabulary], with a float32 cache and without flash attention; the context is as long as `ids`."""
    with _loaded(path, vocab_only=False) as model:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = len(ids)
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0  # GGML_TYPE_F32
        params.flash_attn_type = 0
        context = lib.llama_init_from_model(model, params)
        assert context
        try:
            batch = lib.llama_batch_init(len(ids), 0, 1)
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = token, i
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
            assert lib.llama_decode(context, batch) == 0
            size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
            rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (size,)) for i in range(len(ids))]
            found = np.stack(rows).astype(np.float32)
            lib.llama_batch_free(batch)
            return found
        finally:
            lib.llama_free(context)


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Each text's ids, special tokens put around it and read within it."""
    found = []
    with _loaded(path, vocab_only=True) as model:
        vocab = lib.llama_model_get_vocab(model)
        for text in texts:
            data = text.encode()
            buffer = (ctypes.c_int32 * (len(data) + 8))()
            count = lib.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, True)
            assert count >= 0
            found.append(list(buffer[:count]))
    return found
