# Tables on a terminal. The only file of the benchmark that imports rich, when the first table is drawn.
"""``draw``: rows and columns → lines for a terminal of that width."""

from __future__ import annotations

import io
from collections.abc import Sequence

from ingle.cli.bench.columns import Column
from ingle.cli.bench.result import Row


def draw(rows: Sequence[Row], columns: Sequence[Column], *, width: int) -> str:
    """Without colour: what stands in a cell says it. Columns that do not fit beside the others go into a second table
    below, which begins with the first column again."""
    tables: list[list[Column]] = [[columns[0]]]
    for column in columns[1:]:
        if len(tables[-1]) > 1 and _width(rows, [*tables[-1], column]) > width:
            tables.append([columns[0]])
        tables[-1].append(column)
    return "\n\n".join(_draw_one(rows, chosen, width) for chosen in tables)


def _width(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    """Characters a line takes: every cell has two blanks beside it, and those at the borders one."""
    widest = [max(len(column.name), *(len(column.cell(row)) for row in rows)) for column in columns]
    return sum(widest) + 3 * len(widest)


def _draw_one(rows: Sequence[Row], columns: Sequence[Column], width: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column.name), justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
