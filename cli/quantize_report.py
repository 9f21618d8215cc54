# What `ingle quantize` says: a line a file, a table of what they are worth, or one JSON object.
# This file may not know how anything is made or measured.
"""``tell``, ``tell_plan`` and what they print; docs/cli.md says what is in the JSON."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli.bench.columns import Column
from ingle.cli.output import Output
from ingle.cli.stats import number, size
from ingle.models.ggml_types import BY_NAME
from ingle.quant.verdict import Row, recommend

if TYPE_CHECKING:
    from ingle.cli.quantize_job import Importances
    from ingle.quant.calibrate import Calibration
    from ingle.quant.recipe import Recipe
    from ingle.quant.source import Source
    from ingle.quant.workshop import Made, Workshop

JSON_VERSION = 1


@dataclass(slots=True)
class Story:
    """One run as it is told. `rows`: the source's, then one for each file; empty without a verdict."""

    source: Source
    given: Importances | None
    as_json: bool
    sha256: str | None = None
    calibration: Calibration | None = None
    workshop: Workshop | None = None
    made: list[Made] = field(default_factory=list)
    kept: Path | None = None
    rows: list[Row] = field(default_factory=list)
    judged_on: str | None = None
    num_chunks: int = 0


def tell_fallbacks(recipe: Recipe, output: Output) -> None:
    """Which tensors cannot have the type that the mix wants for them."""
    swaps = Counter((t.fell_back_from, t.type) for t in recipe.tensors if t.fell_back_from is not None)
    for (wanted, taken), count in swaps.items():
        assert wanted is not None
        output.note(
            f"{recipe.mix.name}: {number(count, 'tensor')} in {taken} instead of {wanted},"
            f" whose blocks of {BY_NAME[wanted].block_size} do not divide the rows"
        )


def tell_plan(story: Story, recipes: Sequence[Recipe], outs: Sequence[Path], output: Output) -> None:
    """`--dry-run`: sizes are of the tensors, without the header."""
    if story.as_json:
        files = [
            _recipe_json(recipe, out, recipe.num_bytes)
            | {
                "tensors": [
                    {"name": t.name, "shape": t.shape, "from": t.source_type, "to": t.type} for t in recipe.tensors
                ]
            }
            for recipe, out in zip(recipes, outs, strict=True)
        ]
        output.json(_as_json(story, files, is_dry_run=True))
        return
    for recipe, out in zip(recipes, outs, strict=True):
        output.line(_line(out, recipe.num_bytes, recipe))


def tell(story: Story, output: Output) -> None:
    """The files, and the verdict."""
    for made in story.made:
        one = made.written
        if one.size_bytes >= one.source_bytes:
            output.warn(f"{one.path} is no smaller than its source: {size(one.size_bytes)}, {size(one.source_bytes)}")
    if story.as_json:
        rows: list[Row | None] = [*story.rows[1:]] or [None] * len(story.made)
        files = [
            _recipe_json(made.recipe, made.written.path, made.written.size_bytes)
            | {"methods": list(made.methods), "held_out_kl": dict(made.held_out_kl)}
            | (_row_json(row) if row is not None else {})
            for made, row in zip(story.made, rows, strict=True)
        ]
        output.json(_as_json(story, files, is_dry_run=False))
        return
    for made in story.made:
        output.line(_line(made.written.path, made.written.size_bytes, made.recipe))
        if made.methods:
            output.line(f"  made with {_and(made.methods)}{_tried(made)}")
    if story.kept is not None:
        output.line(str(story.kept))
    if story.rows:
        _table(story, output)


def _table(story: Story, output: Output) -> None:
    from ingle.cli.bench.tables import draw

    has_quality = any(row.evaluation is not None for row in story.rows)
    columns = [
        Column("file", lambda row: row["file"], is_number=False),
        *(Column(name, itemgetter(name)) for name in ("size", "bits")),
    ]
    names = ["perplexity", "KL", "99 % KL", "same top"] if has_quality else []
    names += ["prompt t/s", "gen. t/s", "memory"]
    columns += [Column(name, itemgetter(name)) for name in names]
    output.line("")
    width = shutil.get_terminal_size().columns if output.is_terminal else 120
    output.line(draw([_cells(row, story.rows) for row in story.rows], columns, width=width))
    if has_quality:
        output.line(f"judged against the source on {story.judged_on} ({number(story.num_chunks, 'chunk')})")
    choice = recommend(story.rows)
    if choice is not None:
        output.line(f"recommended: {choice[1]}")


def _cells(row: Row, rows: Sequence[Row]) -> dict[str, str]:
    found = row.evaluation
    perplexity, others = "", dict.fromkeys(("KL", "99 % KL", "same top"), "")
    if found is not None and found.divergence is not None:
        perplexity = f"{found.perplexity.value:.3f}"
        others = {
            "KL": f"{found.divergence.mean_kl:.4f}",
            "99 % KL": f"{found.divergence.kl_99:.3f}",
            "same top": f"{found.divergence.same_top:.1%}",
        }
    elif row is rows[0]:
        first = next((one.evaluation for one in rows if one.evaluation is not None), None)
        if first is not None and first.divergence is not None:
            perplexity = f"{first.divergence.reference.value:.3f}"
    return {
        "file": row.name,
        "size": size(row.num_bytes),
        "bits": f"{row.bits_per_weight:.2f}",
        "perplexity": perplexity,
        **others,
        "prompt t/s": f"{row.speed.prompt:.0f}",
        "gen. t/s": f"{row.speed.generated:.1f}",
        "memory": size(row.memory_bytes),
    }


def _tried(made: Made) -> str:
    if not made.held_out_kl:
        return ""
    kept = "+".join(name for name in made.methods if name != "imatrix") or "plain"
    others = [f"{name} {kl:.4f}" for name, kl in made.held_out_kl.items() if name != kept]
    return f": KL {made.held_out_kl[kept]:.4f} on held-out text ({', '.join(others)})"


def _and(names: Sequence[str]) -> str:
    told = [{"imatrix": "importance matrix", "awq": "scales", "gptq": "error feedback"}[name] for name in names]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _line(out: Path, num_bytes: int, recipe: Recipe) -> str:
    types = ", ".join(f"{name} {count}" for name, count in recipe.counts.items())
    return f"{out}  {size(num_bytes)}  {recipe.bits_per_weight:.2f} bits a weight  ({types})"


# -- JSON --------------------------------------------------------------------------------------------------------------


def _recipe_json(recipe: Recipe, out: Path, num_bytes: int) -> dict[str, Any]:
    return {
        "path": str(out),
        "type": recipe.mix.name,
        "num_bytes": num_bytes,
        "bits_per_weight": round(recipe.bits_per_weight, 4),
        "num_tensors": dict(recipe.counts),
        "num_fallbacks": sum(tensor.fell_back_from is not None for tensor in recipe.tensors),
    }


def _row_json(row: Row) -> dict[str, Any]:
    found = row.evaluation
    divergence = None if found is None else found.divergence
    return {
        "perplexity": None if found is None else found.perplexity.value,
        "mean_kl": None if divergence is None else divergence.mean_kl,
        "mean_kl_interval": None if divergence is None else [divergence.low, divergence.high],
        "kl_99": None if divergence is None else divergence.kl_99,
        "same_top": None if divergence is None else divergence.same_top,
        **_speed_json(row),
    }


def _speed_json(row: Row) -> dict[str, Any]:
    return {
        "prompt_tokens_per_s": round(row.speed.prompt, 2),
        "generated_tokens_per_s": round(row.speed.generated, 2),
        "memory_bytes": row.memory_bytes,
    }


def _as_json(story: Story, files: list[dict[str, Any]], *, is_dry_run: bool) -> dict[str, Any]:
    source = story.source
    model = {"path": str(source.path), "num_bytes": source.info.size_bytes, "type": source.info.file_type}
    verdict = None
    if story.rows:
        choice = recommend(story.rows)
        reference = next((r.evaluation.divergence for r in story.rows if r.evaluation is not None), None)
        verdict = {
            "text": story.judged_on,
            "num_chunks": story.num_chunks,
            "source": {"perplexity": None if reference is None else reference.reference.value}
            | _speed_json(story.rows[0]),
            "recommended": None if choice is None else choice[0],
            "reason": None if choice is None else choice[1],
        }
    calibration = story.calibration
    return {
        "version": JSON_VERSION,
        "dry_run": is_dry_run,
        "model": {**model, "sha256": story.sha256},
        "imatrix": _imatrix_json(story),
        "calibration": None
        if calibration is None
        else {"text": calibration.origin, "sha256": calibration.digest, "num_tokens": len(calibration.tokens)},
        "files": files,
        "verdict": verdict,
    }


def _imatrix_json(story: Story) -> dict[str, Any] | None:
    kept = None if story.kept is None else str(story.kept)
    if story.given is not None:
        fitted = story.given.fitted
        return {
            "path": str(story.given.path),
            "num_entries": len(fitted.means),
            "num_missing": fitted.num_missing,
            "num_unseen_experts": fitted.num_unseen_experts,
            "kept": kept,
        }
    if story.workshop is None or not story.workshop.means:
        return None
    covered, total = story.workshop.activations.coverage()
    return {
        "path": None,
        "num_entries": len(story.workshop.means),
        "num_missing": len(story.workshop.linears) - len(story.workshop.means),
        "num_unseen_experts": total - covered,
        "kept": kept,
    }
