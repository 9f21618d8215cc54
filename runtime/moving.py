"""Moving KV cells from one context to another, shared cells staying shared. Works on anything that has slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from ingle.runtime.step import CellRun

Saved = TypeVar("Saved")

PIECE_TOKENS = 128
"""Cells moved at once: the bytes of so few stay near the processor between being saved and being restored."""


class Cells(Protocol[Saved]):
    """The cells of a context (`runtime.llama.LlamaContext`); `Saved` is what it saves a slot as."""

    def copy_cells(self, source: int, target: int, start: int, end: int) -> None: ...
    def drop_cells(self, slot: int, start: int) -> None: ...
    def save(self, slot: int) -> Saved: ...
    def restore(self, slot: int, data: Saved) -> None: ...


def move_cells(
    old: Cells[Saved], new: Cells[Saved], runs: Iterable[CellRun], *, scratch: int, window: int | None
) -> None:
    """Copy `runs` from `old` to the empty `new`, each once, through slot `scratch` on either side; `old` stays as it
    is.

    The bytes are the same, and so are all logits to come. llama.cpp saves of a slot only what its own last position can
    see in sliding-window layers, so no piece is longer than the `window`. Every slot of a run gets what the first has,
    which may be more than it had: cells before a gap look as if nothing were missing, and their owner must remember.
    """
    size = min(window or PIECE_TOKENS, PIECE_TOKENS)
    for run in runs:
        for start in range(run.start, run.end, size):
            end = min(start + size, run.end)
            old.copy_cells(run.slots[0], scratch, start, end)
            new.restore(scratch, old.save(scratch))
            old.drop_cells(scratch, 0)
            for slot in run.slots:
                new.copy_cells(scratch, slot, start, end)
            new.drop_cells(scratch, 0)
