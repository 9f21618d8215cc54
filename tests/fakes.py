"""Stand-ins for llama.cpp, for tests of policy: a context made of cells that remembers everything and forgives
nothing.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import numpy as np

from ingle.runtime.blocks import root_hash
from ingle.runtime.detokenizer import Detokenizer, TextStream
from ingle.runtime.moving import move_cells
from ingle.runtime.request import Request, RequestId, RequestMetrics, SamplingParams
from ingle.runtime.sampler import Sampler
from ingle.runtime.sequence import Sequence
from ingle.runtime.step import CellRun, CopyCells, DropCells, KvOp, StepPlan, StepResult


def sequence_of(
    prompt: list[int], *, id: int = 0, num_output: int = 1000, sampling: SamplingParams | None = None
) -> Sequence:
    """A request on its way, without an engine."""
    params = sampling or SamplingParams(temperature=0)
    return Sequence(
        RequestId(id),
        Request(prompt, params),
        root_hash(b"model"),
        len(prompt) + num_output,
        RequestMetrics(0.0, 0, len(prompt)),
        Sampler(params, 0, None),
        TextStream(Detokenizer(lambda token: b"")),
    )


@dataclass
class Cell:
    position: int = -1
    token: int = -1
    slots: set[int] = field(default_factory=set)


class CellArray:
    """One layer kind's cells, with llama.cpp's rules (llama_kv_cache::find_slot, apply_ubatch, seq_cp, seq_rm).

    With a `window`, a cell that only one slot has and that lies outside its window may be overwritten, and then
    everything before it in that slot goes too.
    """

    def __init__(self, num_cells: int, window: int | None) -> None:
        self.cells = [Cell() for _ in range(num_cells)]
        self.window = window
        self.head = 0

    def of(self, slot: int) -> dict[int, int]:
        """{position: token} of a slot."""
        found = [cell for cell in self.cells if slot in cell.slots]
        assert len({cell.position for cell in found}) == len(found), f"slot {slot} has a position twice"
        return {cell.position: cell.token for cell in found}

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for cell in self.cells:
            if source in cell.slots and start <= cell.position < end:
                cell.slots.add(target)

    def drop(self, slot: int, start: int, end: int = 2**31) -> None:
        for cell in self.cells:
            if start <= cell.position < end:
                cell.slots.discard(slot)

    def clear(self) -> None:
        for cell in self.cells:
            cell.slots.clear()

    def put(self, rows: list[tuple[int, int, int]]) -> None:
        """Cells for all (slot, position, token) of a batch: found first, by what is there before it, and then
        filled.
        """
        last = {slot: max(self.of(slot)) for slot in {slot for cell in self.cells for slot in cell.slots}}
        chosen: list[Cell] = []
        for _ in range(len(self.cells)):
            if len(chosen) == len(rows):
                break
            cell = self.cells[self.head]
            self.head = (self.head + 1) % len(self.cells)
            if not cell.slots or (len(cell.slots) == 1 and self.is_past(cell, last)):
                chosen.append(cell)
        assert len(chosen) == len(rows), "no cells are free although the block manager counted them"
        for cell in chosen:
            for owner in list(cell.slots):
                self.drop(owner, 0, cell.position + 1)
        for cell, (slot, position, token) in zip(chosen, rows, strict=True):
            cell.position, cell.token, cell.slots = position, token, {slot}

    def is_past(self, cell: Cell, last: dict[int, int]) -> bool:
        """Whether its only slot's next token will not see this cell."""
        (owner,) = cell.slots
        return self.window is not None and cell.position <= last[owner] + 1 - self.window


def batch(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(slot, position, token) of every token of a plan."""
    return [(row.slot, row.start + i, token) for row in plan.rows for i, token in enumerate(row.tokens.tolist())]


class FakeContext:
    """Carries out step plans. Fails the test when a row would attend to anything but its own sequence's earlier
    tokens.
    """

    def __init__(self, num_cells: int, num_slots: int, window: int | None = None, shares: bool = True) -> None:
        self.num_slots = num_slots
        self.window = window
        self.shares = shares
        self.full = CellArray(num_cells, None)
        self.sliding = CellArray(num_cells, window) if window is not None else None

    def arrays(self) -> list[CellArray]:
        return [self.full] + ([self.sliding] if self.sliding else [])

    def apply(self, ops: tuple[KvOp, ...]) -> None:
        for op in ops:
            match op:
                case CopyCells(source, target, start, end):
                    assert self.shares, "this architecture cannot share parts of a sequence"
                    assert not self.full.of(target), f"slot {target} is copied into and not empty"
                    for array in self.arrays():
                        array.copy(source, target, start, end)
                case DropCells(slot, start):
                    assert self.shares or start == 0, "this architecture cannot drop a part of a sequence"
                    for array in self.arrays():
                        array.drop(slot, start)

    def execute(self, plan: StepPlan, sequences: dict[int, np.ndarray], *, interrupt: bool = False) -> StepResult:
        """One step. `sequences`: {slot: the tokens its sequence is meant to have}."""
        self.apply(plan.ops)
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "a slot has two rows"
        if interrupt:  # cells were found for its rows, whatever had to give way, and then dropped
            for array in self.arrays():
                array.put(batch(plan))
            for row in plan.rows if self.shares else ():
                self.drop_cells(row.slot, row.start)
            for array in () if self.shares else self.arrays():
                array.clear()
            return StepResult(np.empty((0, 0), np.float32), False, True, self.first_positions())
        for array in self.arrays():
            array.put(batch(plan))
        for row in plan.rows:
            for offset in range(len(row.tokens)):
                self.attend(row.slot, row.start + offset, sequences[row.slot].tolist())
        return StepResult(np.empty((0, 0), np.float32), first_positions=self.first_positions())

    def attend(self, slot: int, position: int, tokens: list[int]) -> None:
        seen = {p: t for p, t in self.full.of(slot).items() if p <= position}
        assert seen == dict(enumerate(tokens[: position + 1])), f"slot {slot} at {position} sees {seen}"
        if self.sliding is not None and self.window is not None:
            seen = {p: t for p, t in self.sliding.of(slot).items() if position - self.window < p <= position}
            first = max(0, position - self.window + 1)
            assert seen == {p: tokens[p] for p in range(first, position + 1)}, (
                f"slot {slot} at {position}: window {seen}"
            )

    def first_positions(self) -> dict[int, int]:
        return {slot: self.first_position(slot) for slot in range(self.num_slots)} if self.sliding else {}

    def resize(self, num_cells: int, runs: list[CellRun]) -> FakeContext:
        """A larger context with the same contents, moved run by run."""
        new = FakeContext(num_cells, self.num_slots, self.window, self.shares)
        move_cells(self, new, runs, scratch=self.num_slots, window=self.window)
        for old_array, new_array in zip(self.arrays(), new.arrays(), strict=True):
            for slot in range(self.num_slots):
                assert new_array.of(slot).items() >= old_array.of(slot).items(), f"slot {slot} was not moved whole"
        return new

    # -- the protocol of runtime.moving --

    def copy_cells(self, source: int, target: int, start: int, end: int) -> None:
        for array in self.arrays():
            array.copy(source, target, start, end)

    def drop_cells(self, slot: int, start: int) -> None:
        for array in self.arrays():
            array.drop(slot, start)

    def first_position(self, slot: int) -> int:
        return min(self.sliding.of(slot), default=0) if self.sliding else 0

    def save(self, slot: int) -> list[dict[int, int]]:
        saved = [array.of(slot) for array in self.arrays()]
        if self.window is not None and saved[1]:  # only what the slot's last position sees
            saved[1] = {p: t for p, t in saved[1].items() if p > max(saved[1]) - self.window}
        return saved

    def restore(self, slot: int, data: list[dict[int, int]]) -> None:
        for array, cells in zip(self.arrays(), data, strict=True):
            assert not array.of(slot)
            array.put([(slot, position, token) for position, token in sorted(cells.items())])

    # -- what the pager asks of an executor --

    def save_cells(self, slot: int, start: int, end: int) -> np.ndarray:
        scratch = self.num_slots
        self.copy_cells(slot, scratch, start, end)
        saved = self.save(scratch)
        self.drop_cells(scratch, 0)
        assert all(sorted(cells) == list(range(start, end)) for cells in saved), "a page is saved that lacks cells"
        return np.frombuffer(pickle.dumps(saved), dtype=np.uint8)

    def restore_cells(self, slot: int, start: int, end: int, payload: np.ndarray, num_wanted: int) -> bool:
        scratch = self.num_slots
        self.restore(scratch, pickle.loads(payload.tobytes()))
        self.copy_cells(scratch, slot, start, start + num_wanted)
        self.drop_cells(scratch, 0)
        return True

    def save_slot(self, slot: int) -> np.ndarray:
        return np.frombuffer(pickle.dumps(self.save(slot)), dtype=np.uint8)

    def restore_slot(self, slot: int, payload: np.ndarray, num_tokens: int) -> bool:
        self.drop_cells(slot, 0)
        self.restore(slot, pickle.loads(payload.tobytes()))
        return len(self.full.of(slot)) == num_tokens
