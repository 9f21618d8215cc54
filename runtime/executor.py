"""The executor carries out a step plan on a llama.cpp context: block operations, then one decode, then the logits.

It knows slots, positions and tokens, and nothing of requests, blocks or policy.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import LlamaContext
from ingle.runtime.moving import move_cells
from ingle.runtime.step import CellRun, CopyCells, DropCells, KvOp, Logits, StepPlan, StepResult

_DONE, _NO_CELLS, _INTERRUPTED = 0, 1, 2  # llama_decode


class Executor:
    """Owns the context. One thread only, except for `interrupt`."""

    def __init__(self, model: LlamaModel, config: EngineConfig, num_cells: int) -> None:
        self._model = model
        self._config = config
        self._context = LlamaContext(model, num_cells, config)
        self._scratch = config.num_slots - 1  # a slot that no table gets, for moving cells through
        self._no_logits: Logits = np.empty((0, model.num_vocab), dtype=np.float32)

    @property
    def num_cells(self) -> int:
        return self._context.num_cells

    def close(self) -> None:
        self._context.close()

    def interrupt(self) -> None:
        """Cut short a step that is under way, if it is interruptible. Safe from other threads and signal handlers."""
        self._context.interrupt()

    def clear_interrupt(self) -> None:
        self._context.clear_interrupt()

    def apply(self, ops: Iterable[KvOp]) -> None:
        """Carry out block operations, in order."""
        context = self._context
        for op in ops:
            match op:
                case CopyCells(source, target, start, end):
                    context.copy_cells(source, target, start, end)
                case DropCells(slot, start):
                    context.drop_cells(slot, start)

    def execute(self, plan: StepPlan) -> StepResult:
        """One step. Raises `EngineError` when llama.cpp fails; being interrupted or finding no cells is a result."""
        self.apply(plan.ops)
        if not plan.rows:
            return StepResult(self._no_logits)
        context = self._context
        at = num_wanted = 0
        for row in plan.rows:
            end = at + len(row.tokens)
            context.tokens[at:end] = row.tokens
            context.positions[at:end] = range(row.start, row.start + len(row.tokens)) if end - at > 1 else row.start
            context.slots[at:end] = row.slot
            context.wanted[at:end] = 0
            context.wanted[end - row.num_logits : end] = 1
            num_wanted += row.num_logits
            at = end
        code = context.decode(at, interruptible=plan.interruptible)
        if code in (_NO_CELLS, _INTERRUPTED):
            context.clear_interrupt()
            if self._model.is_stateful and code == _INTERRUPTED:
                context.clear()  # llama.cpp has marked states as moved that were not: none can be trusted
            return StepResult(self._no_logits, False, code == _INTERRUPTED, self.first_positions())
        if code != _DONE:
            raise EngineError(f"llama.cpp failed to compute {at} tokens (llama_decode returned {code})")
        logits = context.logits(num_wanted) if num_wanted else self._no_logits
        return StepResult(logits, first_positions=self.first_positions())

    def resize(self, num_cells: int, runs: Iterable[CellRun], *, whole: bool) -> None:
        """Move to a context of `num_cells` cells. Raises `OutOfMemory`, and keeps the old context, if it cannot be had.

        `whole`: slots cannot be split (recurrent, hybrid), and move as they are.
        """
        old, new = self._context, LlamaContext(self._model, num_cells, self._config)
        try:
            if whole:
                for slot in {run.slots[0] for run in runs}:
                    new.restore(slot, old.save(slot))
            else:
                move_cells(old, new, runs, scratch=self._scratch, window=self._model.window)
        except BaseException:
            new.close()
            raise
        self._context = new
        old.close()

    def first_positions(self) -> dict[int, int]:
        """Of each slot, the position from which on all its cells are there; empty for models without windows."""
        if self._model.window is None:
            return {}
        return {slot: self._context.first_position(slot) for slot in range(self._scratch)}

    def check(self, num_tokens: dict[int, int]) -> None:
        """Assert that every slot ends where its table does: llama_memory_seq_pos_max against {slot: tokens}."""
        for slot in range(self._scratch + 1):
            found, expected = self._context.num_positions(slot), num_tokens.get(slot, 0)
            assert found == expected, f"slot {slot} has {found} positions, its table {expected} tokens"
