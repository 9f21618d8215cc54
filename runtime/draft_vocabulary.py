"""What the tokens of a target are to its draft model, whose vocabulary may be short: rows to read, logits to draw from.

Everywhere else a token is the target's id. Both directions cost microseconds: one gather, one scatter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingle.models import short_vocabulary
from ingle.models.gguf_info import ModelInfo
from ingle.runtime.step import Logits, Tokens


class DraftVocabulary:
    """Of one draft model, for a target of `num_tokens` tokens. Not for two threads: the row of logits is its own."""

    def __init__(self, num_tokens: int, token_ids: npt.NDArray[np.intp], reads_as: Tokens) -> None:
        """`token_ids` [rows]: the token each row of the draft model stands for, ascending; `reads_as`: the row to read
        in place of each token, from the first on. Tokens that only one of the two has are padding."""
        self._ids = token_ids[: np.searchsorted(token_ids, num_tokens)]
        self._rows = np.zeros(num_tokens, dtype=np.int32)
        num_known = min(num_tokens, len(reads_as))
        self._rows[:num_known] = reads_as[:num_known]
        self._logits: Logits = np.full(num_tokens, -np.inf, dtype=np.float32)  # the others are never drafted

    @classmethod
    def of(cls, draft: ModelInfo, num_tokens: int) -> DraftVocabulary:
        """Raises BadModelFile when the file has changed since its header was read."""
        if draft.short_vocabulary is None:
            same = np.arange(draft.vocab_size)
            return cls(num_tokens, same, same.astype(np.int32))
        token_ids = np.array(short_vocabulary.token_ids(draft), dtype=np.intp)
        return cls(num_tokens, token_ids, np.array(short_vocabulary.reads_as(draft), dtype=np.int32))

    def rows(self, tokens: Tokens) -> Tokens:
        """What the draft model is given for `tokens`."""
        return self._rows[tokens]

    def logits(self, logits: Logits) -> Logits:
        """`logits` [rows of the draft model] as [tokens of the target]; the next call overwrites them."""
        self._logits[self._ids] = logits[: len(self._ids)]
        return self._logits
