# Tables on a terminal. The only file of the benchmark that imports rich, when the first table is drawn.
"""``draw``: rows and columns → lines for a terminal of that width."""

from __future__ import annotations

import io
from collections.abc import Sequence

from ingle.cli.bench.columns import Column
from ingle.cli.bench.result import Row


def draw(rows: Sequence[Row], columns: Sequence[Column], *, width: int, title: str | None = None) -> str:
    """Without colour: what stands in a cell says it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column in columns:
        table.add_column(Text(column.name), justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
