# Results as pictures. matplotlib is imported when one is asked for, here and for the verdict of `ingle quantize`.
# This file may not know how anything is measured.
"""``plot``: one figure, with the panels that the rows have something for.

Serving: throughput against latency, how the waits are distributed, KV blocks over time. Engine: speed by depth (bars
where there is one depth). Resume: cold against restored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli.bench.result import Result, Row
from ingle.cli.errors import CliError, UsageProblem
from ingle.models.errors import store_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")

PANEL_INCHES = (6.4, 4.2)
MAX_COLUMNS = 2

# Okabe and Ito's colours, which most colour-blind people can tell apart; each series has a marker of its own too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "ingle",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """`draw` fills the axes."""

    title: str
    draw: Callable[[Axes], None]


def check(path: Path) -> None:
    """Raise, before anything is measured, what would otherwise be told when it is lost: a name that is no picture's, a
    folder that is not there, or that matplotlib is not."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageProblem(f"--plot {path} is neither a .png nor a .svg", "such as --plot curve.png")
    if not path.parent.is_dir():
        raise UsageProblem(f"--plot: there is no folder {path.parent}", "make it first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise CliError("--plot needs matplotlib, which is not installed", "pip install 'ingle[plot]'") from None


def plot(result: Result, path: Path) -> None:
    """Write `path`, all of it or nothing. Raises CliError where there is nothing to draw, StoreError."""
    found = panels(result)
    if not found:
        raise CliError("there is nothing to draw: nothing was measured")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    num_columns = min(MAX_COLUMNS, len(found))
    num_lines = -(-len(found) // num_columns)
    size = (PANEL_INCHES[0] * num_columns, PANEL_INCHES[1] * num_lines + 0.6)
    with matplotlib.rc_context(STYLE):
        figure, grid = pyplot.subplots(num_lines, num_columns, figsize=size, squeeze=False, layout="constrained")
        try:
            figure.suptitle(_headline(result), fontsize=11, x=0.01, ha="left", color="#333333")
            for axes, panel in zip(grid.flat, found, strict=False):
                axes.set_title(panel.title)
                panel.draw(axes)
            for axes in grid.flat[len(found) :]:
                axes.set_visible(False)
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
            temporary.replace(path)
        except OSError as error:
            raise store_error(error, f"write {path}") from None
        finally:
            pyplot.close(figure)
            temporary.unlink(missing_ok=True)


def panels(result: Result) -> list[Panel]:
    """What there is to draw."""
    serving = [row for row in result.rows if row["kind"] == "serving" and row["completed"]]
    engine = [row for row in result.rows if row["kind"] == "engine"]
    resume = [row for row in result.rows if row["kind"] == "resume"]
    drafts = [row for row in result.rows if row["kind"] == "drafts"]
    found = []
    if serving:
        found.append(Panel("Throughput against waiting", lambda axes: _throughput_latency(axes, serving)))
        for name, title in (("ttft", "Time to first token"), ("itl", "Time between tokens")):
            if any(row["samples"][name] for row in serving):
                found.append(Panel(title, partial(_distribution, rows=serving, name=name)))
        if any(row["kv_timeline"] for row in serving):
            found.append(Panel("KV blocks in use", lambda axes: _occupancy(axes, serving)))
    for key, title in (("n_prompt", "Reading a prompt"), ("n_gen", "Generating")):
        if rows := [row for row in engine if row[key]]:
            found.append(Panel(title, partial(_by_depth, rows=rows)))
    if resume:
        found.append(Panel("First token of a known text", lambda axes: _resume(axes, resume)))
    if drafts:
        found.append(Panel("Guessing ahead", lambda axes: _drafts(axes, drafts)))
    return found


def _headline(result: Result) -> str:
    names = dict.fromkeys(str(row.get("model", "")) for row in result.rows)
    parts = [", ".join(name for name in names if name), str(result.machine.get("cpu", "")), result.date[:10]]
    return " · ".join(part for part in parts if part) + ("" if result.is_complete else " · INCOMPLETE")


def _load(row: Row) -> str:
    rate = row["request_rate"]
    return f"{rate:g} requests/s" if rate is not None else f"{row['concurrency']} at once"


# -- panels ------------------------------------------------------------------------------------------------------------


def _throughput_latency(axes: Axes, rows: Sequence[Row]) -> None:
    """Each point a level of load: to the right more work is done, upward people wait longer."""
    ordered = sorted(rows, key=lambda row: row["request_rate"] or row["concurrency"])
    speeds = [row["output_throughput"] for row in ordered]
    for number, (statistic, style) in enumerate((("p50", "-"), ("p95", "--"))):
        waits = [row[f"{statistic}_ttft_ms"] for row in ordered]
        label = f"first token, {'median' if statistic == 'p50' else '95 of 100'}"
        axes.plot(speeds, waits, style, color=COLOURS[0], marker=MARKERS[number], label=label)
    for row, speed in zip(ordered, speeds, strict=True):
        axes.annotate(
            f"{row['request_rate']:g}/s" if row["request_rate"] is not None else str(row["concurrency"]),
            (speed, row["p50_ttft_ms"]),
            textcoords="offset points",
            xytext=(6, -11),
            fontsize=9,
            color="#555555",
        )
    axes.set_xlabel(f"output tokens a second (at each point: requests {_unit(rows)})")
    axes.set_ylabel("milliseconds to first token", color=COLOURS[0])
    axes.set_ylim(0, _HEADROOM * max(row["p95_ttft_ms"] for row in ordered))
    axes.set_xlim(0, 1.12 * max(speeds))
    if all(row["p50_tpot_ms"] is not None for row in ordered):
        other = axes.twinx()
        other.plot(speeds, [row["p50_tpot_ms"] for row in ordered], ":", color=COLOURS[1], marker="^")
        other.set_ylabel("milliseconds a further token", color=COLOURS[1])
        other.set_ylim(0, _HEADROOM * max(row["p50_tpot_ms"] for row in ordered) or None)
        other.grid(False)
        other.spines["right"].set_visible(True)
        axes.plot([], [], ":", color=COLOURS[1], marker="^", label="further tokens, median")
    axes.legend(loc="upper left")


_HEADROOM = 1.45
"""Above the highest point there is room for a legend of three lines."""


def _unit(rows: Sequence[Row]) -> str:
    return "a second" if rows[0]["request_rate"] is not None else "at once"


def _distribution(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """For each level the share of waits that were no longer than so many milliseconds."""
    longest = 0.0
    for number, row in enumerate(rows):
        values = sorted(row["samples"][name])
        if not values:
            continue
        shares = [(index + 1) / len(values) for index in range(len(values))]
        axes.step([values[0], *values], [0.0, *shares], where="post", color=_colour(number), label=_load(row))
        longest = max(longest, values[min(len(values) - 1, int(0.995 * len(values)))])
    for share in (0.5, 0.95):
        axes.axhline(share, color="#999999", linewidth=0.8, linestyle=":")
    if name == "itl":  # most are short, and a few, beside a prompt that is read, many times as long
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    else:
        axes.set_xlim(0, longest * 1.05 or None)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 0.95])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel(f"share of {'requests' if name == 'ttft' else 'gaps'} that waited no longer")
    axes.legend(loc="lower right")


def _occupancy(axes: Axes, rows: Sequence[Row]) -> None:
    """Shares of the KV blocks that running requests held, by level, over each level's own time."""
    highest = 0.0
    for number, row in enumerate(rows):
        moments = [moment for moment in row["kv_timeline"] if moment["num_total"]]
        times = [moment["time_s"] for moment in moments]
        shares = [moment["num_used"] / moment["num_total"] for moment in moments]
        axes.step(times, shares, where="post", color=_colour(number), label=_load(row), linewidth=1.3)
        highest = max([highest, *shares])
    axes.set_ylim(0, 1.35 * highest or 1.0)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("seconds since the level began (its rounds in a row)")
    axes.set_ylabel("of the blocks there were")
    axes.legend(loc="upper left", ncols=2)


def _by_depth(axes: Axes, rows: Sequence[Row]) -> None:
    """Tokens a second over the tokens that came before, with the interval of each median."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_context(row, rows), []).append(row)
    if len({row["n_depth"] for row in rows}) == 1:
        _bars(axes, {label: found[0] for label, found in groups.items()})
        return
    for number, (label, found) in enumerate(groups.items()):
        ordered = sorted(found, key=lambda row: row["n_depth"])
        axes.errorbar(
            [row["n_depth"] for row in ordered],
            [row["median_ts"] for row in ordered],
            yerr=_errors(ordered),
            color=_colour(number),
            marker=MARKERS[number % len(MARKERS)],
            capsize=3,
            label=label,
        )
    axes.set_xticks(sorted({row["n_depth"] for row in rows}))
    axes.set_xlabel("tokens of context before")
    axes.set_ylabel("tokens a second")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower left")


def _bars(axes: Axes, rows: dict[str, Row]) -> None:
    labels, found = list(rows), list(rows.values())
    colours = [_colour(number) for number in range(len(found))]
    bars = axes.barh(labels, [row["median_ts"] for row in found], xerr=_errors(found), color=colours, capsize=3)
    axes.bar_label(bars, [f" {row['median_ts']:.1f}" for row in found], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tokens a second")


def _resume(axes: Axes, rows: Sequence[Row]) -> None:
    keys = {"median_cold_ttft_ms": "computed", "median_restored_ttft_ms": "from pages"}
    _paired_bars(axes, rows, keys, [f"{row['n_prompt']} tokens" for row in rows], ".0f")
    axes.set_ylabel("milliseconds")


def _drafts(axes: Axes, rows: Sequence[Row]) -> None:
    keys = {"median_plain_ts": "plain", "median_draft_ts": "with drafts"}
    _paired_bars(axes, rows, keys, [str(row["test"]) for row in rows], ".1f")
    axes.set_ylabel("tokens/s")


def _paired_bars(axes: Axes, rows: Sequence[Row], keys: dict[str, str], ticks: Sequence[str], digits: str) -> None:
    """Two bars side by side for each row: `keys`, and what they are called."""
    places = list(range(len(rows)))
    for offset, colour, (key, label) in zip((-0.2, 0.2), COLOURS[1:3], keys.items(), strict=True):
        heights = [row[key] for row in rows]
        bars = axes.bar([place + offset for place in places], heights, width=0.36, color=colour, label=label)
        axes.bar_label(bars, [format(height, digits) for height in heights], padding=2)
    axes.set_xticks(places, ticks)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
    axes.set_xlim(-0.8, len(rows) - 0.2)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.2)


def _context(row: Row, rows: Sequence[Row]) -> str:
    """What tells this row from the others, but for its depth."""
    parts = [f"{row['n_prompt'] or row['n_gen']} tokens"]
    for key, text in (
        ("model", "{}"),
        ("n_threads", "threads {}"),
        ("n_batch", "batch {}"),
        ("type_k", "K {}"),
        ("type_v", "V {}"),
        ("flash_attn", "fa {}"),
    ):
        if len({other[key] for other in rows}) > 1:
            parts.append(text.format(row[key]))
    return ", ".join(parts[1:] if len(parts) > 1 and len({r["test"].split(" ")[0] for r in rows}) == 1 else parts)


def _errors(rows: Sequence[Row]) -> list[list[float]]:
    """[below, above] of each median, to the ends of its interval."""
    return [
        [max(0.0, row["median_ts"] - row["ci95_ts"][0]) for row in rows],
        [max(0.0, row["ci95_ts"][1] - row["median_ts"]) for row in rows],
    ]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
