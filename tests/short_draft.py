# Draft files with a short vocabulary, made of tiny models.
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ingle.quant.short_file import write_short
from ingle.quant.short_rows import Vocabulary, choose_tokens, reads_as
from ingle.quant.source import Source


def write_draft(source: Path, out: Path, used: Iterable[int] = (), num_tokens: int = 0) -> list[int]:
    """Write `source` with the fewest tokens it can have, those `used`, and more up to `num_tokens`. Returns their
    ids."""
    with Source(source) as model:
        vocabulary = Vocabulary.of(model.info)
        token_ids = choose_tokens(vocabulary, used, num_tokens)
        write_short(model, out, token_ids, reads_as(vocabulary, token_ids))
    return token_ids
