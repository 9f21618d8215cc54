# The verdict as a picture. matplotlib is imported when one is asked for.
"""``plot``: every file's distance from the source against its size, and against its speed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingle.cli.bench.plots import COLOURS, MARKERS, PANEL_INCHES, STYLE
from ingle.models.errors import store_error
from ingle.quant.verdict import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write `path`, all of it or nothing; `rows` begin with the source's. Raises StoreError."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    with matplotlib.rc_context(STYLE):
        size = (2 * PANEL_INCHES[0], PANEL_INCHES[1] + 0.6)
        figure, (left, right) = pyplot.subplots(1, 2, figsize=size, layout="constrained")
        try:
            source = rows[0]
            figure.suptitle(
                f"{source.path.name}: {source.num_bytes / 1e6:.0f} MB, {source.speed.generated:.1f} tokens/s",
                fontsize=11,
                x=0.01,
                ha="left",
                color="#333333",
            )
            _panel(left, "Distance by size", "MB", rows[1:], lambda row: row.num_bytes / 1e6, is_less_better=True)
            speed: Callable[[Row], float] = lambda row: row.speed.generated  # noqa: E731
            _panel(right, "Distance by speed", "generated tokens/s", rows[1:], speed, is_less_better=False)
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
            temporary.replace(path)
        except OSError as error:
            raise store_error(error, f"write {path}") from None
        finally:
            pyplot.close(figure)
            temporary.unlink(missing_ok=True)


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (cost, error), those that no other is below in both, the cheapest first."""
    best: list[tuple[float, float]] = []
    for cost, error in sorted(points):
        if not best or error < best[-1][1]:
            best.append((cost, error))
    return best


def _panel(
    axes: Axes, title: str, label: str, rows: Sequence[Row], of: Callable[[Row], float], *, is_less_better: bool
) -> None:
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_ylabel("mean KL from the source (nats)")
    points = []
    for index, row in enumerate(rows):
        if row.evaluation is None or row.evaluation.divergence is None:
            continue
        x, found = of(row), row.evaluation.divergence
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        error = [[max(found.mean_kl - found.low, 0)], [max(found.high - found.mean_kl, 0)]]
        axes.errorbar([x], [found.mean_kl], yerr=error, color=colour, marker=marker, capsize=3, label=row.name)
        points.append((x if is_less_better else -x, found.mean_kl))
    line = pareto(points)
    if len(line) > 1:
        xs = [x if is_less_better else -x for x, _ in line]
        axes.plot(xs, [y for _, y in line], color="#999999", linewidth=1, zorder=0)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.15)
    if points:
        axes.legend()
