"""The executor carries out a step plan on a llama.cpp context: block operations, then one decode, then the logits.

It knows slots, positions and tokens, and nothing of requests, blocks or policy.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError
from ingle.runtime.llama import LlamaModel
from ingle.runtime.llama_context import Interrupt, LlamaContext
from ingle.runtime.moving import move_cells
from ingle.runtime.page import Payload
from ingle.runtime.step import CellRun, CopyCells, DropCells, KvOp, Logits, StepPlan, StepResult

_DONE, _NO_CELLS, _INTERRUPTED = 0, 1, 2  # llama_decode


class Executor:
    """Owns the context. One thread only, except for `interrupt`."""

    def __init__(
        self, model: LlamaModel, config: EngineConfig, num_cells: int, interrupt: Interrupt | None = None
    ) -> None:
        """`interrupt`: a flag that another executor has too; whoever is at work is cut short."""
        self._model = model
        self._config = config
        self._interrupt = interrupt or Interrupt()
        self._context = LlamaContext(model, num_cells, config, self._interrupt)
        self._scratch = config.num_slots - 1  # a slot that no table gets, for moving cells through
        self._no_logits: Logits = np.empty((0, model.num_vocab), dtype=np.float32)

    @property
    def flag(self) -> Interrupt:
        return self._interrupt

    @property
    def num_cells(self) -> int:
        return self._context.num_cells

    def close(self) -> None:
        self._context.close()

    def interrupt(self) -> None:
        """Cut short a step that is under way, if it is interruptible. Safe from other threads and signal handlers."""
        self._interrupt.is_set = True

    def clear_interrupt(self) -> None:
        self._interrupt.is_set = False

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
        assert num_wanted <= self._config.num_outputs, "llama.cpp would end the process"
        code = context.decode(at, interruptible=plan.interruptible)
        if code in (_NO_CELLS, _INTERRUPTED):
            self._interrupt.is_set = False
            if self._model.is_stateful and code == _INTERRUPTED:
                context.clear()  # llama.cpp has marked states as moved that were not: none can be trusted
            return StepResult(self._no_logits, False, code == _INTERRUPTED, self.first_positions())
        if code != _DONE:
            raise EngineError(f"llama.cpp failed to compute {at} tokens (llama_decode returned {code})")
        logits = context.logits(num_wanted) if num_wanted else self._no_logits
        return StepResult(logits, first_positions=self.first_positions())

    def resize(self, num_cells: int, runs: Iterable[CellRun], *, whole: bool) -> None:
        """Move to a context of `num_cells` cells. Raises `EngineError`, and keeps the old context, if it cannot be had.

        `whole`: slots cannot be split (recurrent, hybrid), and move as they are.
        """
        old, new = self._context, LlamaContext(self._model, num_cells, self._config, self._interrupt)
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

    def save_cells(self, slot: int, start: int, end: int) -> Payload:
        """The cells of `slot` at positions [start, end), as bytes that any context made alike can restore."""
        context = self._context
        context.copy_cells(slot, self._scratch, start, end)
        payload = context.save(self._scratch)
        context.drop_cells(self._scratch, 0)
        return payload

    def restore_cells(self, slot: int, start: int, end: int, payload: Payload, num_wanted: int) -> bool:
        """Add the first `num_wanted` of saved cells, which must be those of positions [start, end), to `slot`. False,
        and nothing changed, where llama.cpp does not accept the bytes."""
        context = self._context
        try:
            context.restore(self._scratch, payload)
        except EngineError:
            context.drop_cells(self._scratch, 0)
            return False
        fits = context.num_positions(self._scratch) == end and context.first_position(self._scratch) == start
        if fits:
            context.copy_cells(self._scratch, slot, start, start + num_wanted)
        context.drop_cells(self._scratch, 0)
        return fits

    def save_slot(self, slot: int) -> Payload:
        """All of `slot`, as bytes: the only way for recurrent and hybrid models."""
        return self._context.save(slot)

    def restore_slot(self, slot: int, payload: Payload, num_tokens: int) -> bool:
        """Replace all of `slot` by what was saved of `num_tokens`. False, and the slot is empty, where that fails."""
        try:
            self._context.restore(slot, payload)
        except EngineError:
            self._context.drop_cells(slot, 0)
            return False
        if self._context.num_positions(slot) == num_tokens:
            return True
        self._context.drop_cells(slot, 0)
        return False

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
