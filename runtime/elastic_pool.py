"""The size of the KV pool: follows use, up to a limit.

llama.cpp reserves a whole context when it makes one. So contexts start small, and when blocks are short everything goes
to a larger one, equal to the last bit.
"""

from __future__ import annotations

from ingle.models.needs import CELL_STEP
from ingle.runtime.errors import EngineError
from ingle.runtime.executor import Executor
from ingle.runtime.kv_manager import KVManager


class ElasticPool:
    """Keeps the blocks of `kv` and the cells of `executor` in step.

    `whole`: slots move as they are (recurrent, hybrid).
    """

    def __init__(self, kv: KVManager, executor: Executor, max_cells: int, *, whole: bool) -> None:
        self._kv = kv
        self._executor = executor
        self._min_cells = executor.num_cells
        self._max_cells = max_cells
        self._whole = whole
        self.num_resizes = 0

    @property
    def can_grow(self) -> bool:
        return self._executor.num_cells < self._max_cells

    def grow(self, num_blocks: int) -> None:
        """Have so many more blocks at least, doubling, within the limit. If memory refuses, this is the limit now."""
        if num_blocks <= 0:
            return
        wanted = (self._kv.pool.num_total + num_blocks) * self._kv.block_size
        num_cells = min(round_up(max(wanted, 2 * self._executor.num_cells), CELL_STEP), self._max_cells)
        if not self._resize(num_cells):
            self._max_cells = self._executor.num_cells

    def shrink(self) -> bool:
        """Keep twice what is in use, or the size at the start; whether that was less."""
        wanted = round_up(2 * self._kv.pool.num_used * self._kv.block_size, CELL_STEP)
        num_cells = max(self._min_cells, wanted)
        return num_cells < self._executor.num_cells and self._resize(num_cells)

    def _resize(self, num_cells: int) -> bool:
        """Move to a context of `num_cells` cells; False, and nothing changed, where llama.cpp refuses."""
        self._executor.apply(self._kv.take_ops())
        try:
            self._executor.resize(num_cells, self._kv.runs(), whole=self._whole)
        except EngineError:
            return False
        self.num_resizes += 1
        num_blocks = self._executor.num_cells // self._kv.block_size
        if num_blocks >= self._kv.pool.num_total:
            self._kv.pool.grow(num_blocks)
        else:
            self._kv.pool.shrink(num_blocks)
        self._kv.set_first_positions(self._executor.first_positions())
        return True


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is `value` or more."""
    return -(-value // step) * step
