"""How an engine is opened: limits, sizes and where the layers go. Values only; checked here, before native code sees
them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingle.runtime.errors import InvalidRequest

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""ggml types the KV cache may have (llama.cpp's --cache-type-k/-v)."""

QUANTIZED_KV_TYPES = frozenset(KV_TYPES[3:])

MAX_THREADS = 512
"""ggml's GGML_MAX_N_THREADS: more end the process."""

MAX_BATCH = 65536
"""Tokens a step; far beyond it the compute buffers are all there is."""

MAX_SLOTS = 256
"""llama.cpp's LLAMA_MAX_SEQ: the most seq_ids one context can have."""


MAX_DRAFTS = 31
"""Drafts in one step, over all sequences: 32 rows with one known token."""

MAX_FIXED_DRAFTS = 64
"""The most drafts a sequence may be told to bring."""


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Who guesses the tokens that follow. `ngram`: the text itself. `model`: a smaller model with the same vocabulary.

    `num_tokens`: always so many guesses; ``None``: what is worth its cost, nothing included. `window`: tokens of a long
    text that the draft model reads. `is_required`: refuse a model that cannot be drafted for, instead of a note.
    """

    ngram: bool = True
    model: Path | None = None
    num_tokens: int | None = None
    window: int = 256
    is_required: bool = True

    def __post_init__(self) -> None:
        if self.num_tokens is not None and not 1 <= self.num_tokens <= MAX_FIXED_DRAFTS:
            raise InvalidRequest(f"num_tokens is {self.num_tokens}, which is not between 1 and {MAX_FIXED_DRAFTS}")
        if not 1 <= self.window <= 512:
            raise InvalidRequest(f"window is {self.window}, which is not between 1 and 512")
        if not self.ngram and self.model is None:
            raise InvalidRequest("drafts come from nowhere: neither ngram nor model")

    def max_rows(self, max_num_seqs: int) -> int:
        """The most drafts in one step."""
        return MAX_DRAFTS if self.num_tokens is None else self.num_tokens * max_num_seqs


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that shapes an engine.

    ``n_ctx``: the longest one request may grow, in tokens; ``None``: what the model was trained for, or what fits in
    memory. ``kv_tokens``: the most tokens the KV pool may hold for all requests together; ``None``: ``n_ctx``. Both
    are limits, not reservations: the pool starts small and grows with use.
    ``n_batch``: the token budget of a step. ``prefill_chunk``: of those, the most a prompt may take while answers are
    running, so that they stall for one chunk at most.
    """

    n_ctx: int | None = None
    kv_tokens: int | None = None
    n_batch: int = 512
    prefill_chunk: int = 128
    max_num_seqs: int = 4  # requests that run together
    max_cached_chains: int = 11  # finished conversations kept resident for reuse
    block_size: int = 32  # tokens
    initial_kv_tokens: int = 1024
    num_threads: int | None = None
    gpu_layers: int | Literal["auto", "all"] = "auto"
    flash_attn: bool | None = None  # None: llama.cpp decides
    type_k: str = "f16"
    type_v: str = "f16"
    max_queue: int = 1024
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    enable_prefix_caching: bool = True
    page_dir: Path | None = None  # KV pages in files under this directory; None: no page store
    max_host_bytes: int | None = None  # of pages in RAM; None: a tenth of the memory
    max_disk_bytes: int | None = None  # of pages in files; None: 10 GiB or a tenth of the free disk
    draft: DraftConfig | None = None  # None: no speculative decoding
    check_integrity: bool = False  # verify every invariant after every step (tests, debugging)

    def __post_init__(self) -> None:
        for name in ("n_ctx", "kv_tokens", "num_threads", "max_input_tokens", "max_output_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidRequest(f"{name} is {value}, which is not 1 or more")
        for name in ("max_host_bytes", "max_disk_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise InvalidRequest(f"{name} is {value}, which is not 0 or more")
        for name in ("n_batch", "prefill_chunk", "max_num_seqs", "block_size", "initial_kv_tokens", "max_queue"):
            if (value := getattr(self, name)) < 1:
                raise InvalidRequest(f"{name} is {value}, which is not 1 or more")
        if (self.num_threads or 1) > MAX_THREADS:
            raise InvalidRequest(f"num_threads is {self.num_threads}, which is more than llama.cpp's {MAX_THREADS}")
        if self.n_batch > MAX_BATCH:
            raise InvalidRequest(f"n_batch is {self.n_batch}, which is more than {MAX_BATCH}")
        if isinstance(self.gpu_layers, int) and self.gpu_layers >= 2**31:
            raise InvalidRequest(f"gpu_layers is {self.gpu_layers}, which is more than any model has")
        if self.max_cached_chains < 0:
            raise InvalidRequest(f"max_cached_chains is {self.max_cached_chains}, which is not 0 or more")
        if self.num_slots > MAX_SLOTS:
            raise InvalidRequest(
                f"{self.max_num_seqs} requests at once are more than llama.cpp's {MAX_SLOTS} sequences"
            )
        if isinstance(self.gpu_layers, int) and self.gpu_layers < 0:
            raise InvalidRequest(f"gpu_layers is {self.gpu_layers}, which is not 0 or more")
        for name in ("type_k", "type_v"):
            if (kv_type := getattr(self, name)) not in KV_TYPES:
                raise InvalidRequest(f"{name} is {kv_type!r}, which is not one of {', '.join(KV_TYPES)}")
        if self.type_v in QUANTIZED_KV_TYPES and self.flash_attn is False:
            raise InvalidRequest(f"a {self.type_v} V cache needs flash attention", "leave out -fa off, or use -ctv f16")

    @property
    def num_slots(self) -> int:
        """Slots (llama.cpp seq_ids) a context is made with: running, retired, and one to move blocks through."""
        return self.max_num_seqs + self.max_cached_chains + 1

    @property
    def num_outputs(self) -> int:
        """Rows of logits a step may want: one for each sequence, and one for each draft."""
        return self.num_slots + (0 if self.draft is None else self.draft.max_rows(self.max_num_seqs))

    def threads(self) -> int:
        """Threads for computing: what was asked for, else the physical cores this process may use."""
        return self.num_threads or default_num_threads()


def default_num_threads() -> int:
    """Physical cores this process may use (a second thread on a core slows matrix code down), at least 1."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as siblings:
                cores.add(siblings.read().strip())
        except OSError:
            return max(1, len(allowed))
    return max(1, len(cores))
