"""A request on its way: the tokens known so far, the table of those computed, and what turns logits into text.

There is no prefill phase and no decode phase: the work of a sequence is tokens known − tokens computed, and where one
token is left, the drafts behind it.
"""

from __future__ import annotations

import numpy as np

from ingle.runtime.blocks import BlockTable, ChainHash
from ingle.runtime.detokenizer import TextStream
from ingle.runtime.request import Request, RequestId, RequestMetrics
from ingle.runtime.sampler import Sampler
from ingle.runtime.step import Tokens


class Sequence:
    """Mutable state of one request. Belongs to the engine's thread."""

    __slots__ = (
        "_buffer", "id", "is_looked_up", "max_tokens", "metrics", "num_drafts", "num_prompt_tokens", "num_tokens",
        "request", "root", "sampler", "table", "text",
    )  # fmt: skip

    def __init__(
        self,
        id: RequestId,
        request: Request,
        root: ChainHash,
        max_tokens: int,
        metrics: RequestMetrics,
        sampler: Sampler,
        text: TextStream,
    ) -> None:
        self.id = id
        self.request = request
        self.root = root
        self.max_tokens = max_tokens  # prompt and answer together
        self.metrics = metrics
        self.sampler = sampler
        self.text = text
        self.table: BlockTable | None = None  # None: waiting
        self.is_looked_up = False  # in the page store, since it began to wait
        self.num_prompt_tokens = self.num_tokens = len(request.tokens)
        self.num_drafts = 0  # guesses behind the known tokens, to be computed with them and verified
        self._buffer: Tokens = np.empty(self.num_tokens + 64, dtype=np.int32)
        self._buffer[: self.num_tokens] = request.tokens

    @property
    def tokens(self) -> Tokens:
        """[num_tokens], a view: prompt, then answer."""
        return self._buffer[: self.num_tokens]

    @property
    def num_computed(self) -> int:
        return 0 if self.table is None else self.table.num_tokens

    @property
    def num_pending(self) -> int:
        """Tokens known and not yet computed: the work."""
        return self.num_tokens - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: lower priority value, then earlier arrival."""
        return self.request.priority, self.id

    @property
    def tokens_and_drafts(self) -> Tokens:
        """[num_tokens + num_drafts], a view."""
        return self._buffer[: self.num_tokens + self.num_drafts]

    def append(self, token: int) -> None:
        """`token` is known. Drafts stay what they are until `num_drafts` is set anew: it may be the first of them."""
        self._put(self.num_tokens, token)
        self.num_tokens += 1

    def add_draft(self, token: int) -> None:
        """`token` is guessed to follow what is known and guessed so far."""
        self._put(self.num_tokens + self.num_drafts, token)
        self.num_drafts += 1

    def _put(self, position: int, token: int) -> None:
        if position == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        self._buffer[position] = token
