"""The words scheduler and executor exchange, and the only ones: what to do in one step, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CopyCells:
    """Slot `target` also gets the cells of `source` at positions [start, end); no bytes move (llama_memory_seq_cp)."""

    source: int
    target: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DropCells:
    """Slot `slot` loses its cells from position `start` on (llama_memory_seq_rm); cells no slot has left are free."""

    slot: int
    start: int


KvOp = CopyCells | DropCells


@dataclass(frozen=True, slots=True)
class CellRun:
    """Positions [start, end) of one chain, and every slot that has these very cells; the first has most of them."""

    slots: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Row:
    """Some consecutive tokens of one sequence: tokens[i] goes to position start + i of `slot`.

    Logits are wanted for the last `num_logits` of them (0 while a prompt is still being read).
    """

    slot: int
    start: int
    tokens: Tokens
    num_logits: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Block operations, in order, then the rows of one ``llama_decode``. `interruptible`: worth an abort callback."""

    ops: tuple[KvOp, ...] = ()
    rows: tuple[Row, ...] = ()
    interruptible: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def num_logits(self) -> int:
        return sum(row.num_logits for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the decode gave.

    `logits`: [wanted rows, vocab], in the order of the plan; valid until the next step. `computed` is False when the
    step was interrupted or found no cells: none of its rows then count, and their cells are gone. An interrupted step
    of a recurrent or hybrid model empties every slot.
    """

    logits: Logits
    computed: bool = True
    interrupted: bool = False
    first_positions: dict[int, int] = field(default_factory=dict)
    """Sliding-window models: the first position of each slot whose cells are all still there."""
