# `ingle quantize MODEL --for-draft TARGET`: the cheapest file that drafts as well.
"""``draft``: candidates of falling coarseness, judged on what the target writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ingle.cli.quantize_report import JSON_VERSION, Story
from ingle.cli.stats import size
from ingle.models.gguf_info import read_model_info
from ingle.quant import calibrate
from ingle.quant.draft import LADDER, agreements, choose_draft, ladder
from ingle.quant.evaluate import check_same_vocabulary
from ingle.quant.source import Source
from ingle.quant.writer import candidate_path, put_in_place, remove_leftovers

if TYPE_CHECKING:
    from ingle.cli.quantize_job import Job

NUM_TOKENS = 8192


def draft(job: Job, target: Path, out: Path) -> int:
    """Write `out`, the best of the ladder, and tell how often each is of the target's opinion."""
    job.check(out, [])
    drafted = read_model_info(target)
    check_same_vocabulary(job.source.info, drafted)
    story = Story(job.source, job.given, job.flags.json)
    recipes = ladder(job.source.info, has_imatrix=not job.flags.no_imatrix, overrides=job.overrides)
    workshop = story.workshop = job.open_workshop(story, recipes, ())
    with Source(target) as judge:
        sha256 = job.sha256(judge)
    writes = job.stages("the target writes the text that drafts are judged on")
    text = calibrate.self_written(target, sha256, num_tokens=NUM_TOKENS, config=job.config, progress=writes)
    chunks = calibrate.split(text, drafted).held_out
    remove_leftovers(out)
    files = [(mix, recipe, candidate_path(out, mix.lower())) for (mix, _), recipe in zip(LADDER, recipes, strict=True)]
    try:
        made = {mix: workshop.make(recipe, path) for mix, recipe, path in files}
        source, found = agreements(
            job.source.path,
            [(mix, path) for mix, _, path in files],
            target,
            chunks,
            config=job.config,
            progress=job.stages("comparing with the target"),
        )
        best = choose_draft(source, found)
        put_in_place(made[best.name].written.path, out)
    finally:
        for _, _, path in files:
            path.unlink(missing_ok=True)
    if job.flags.json:
        job.output.json(
            {
                "version": JSON_VERSION,
                "path": str(out),
                "type": best.name,
                "num_bytes": best.num_bytes,
                "source_same_top": source.same_top,
                "candidates": [
                    {"type": one.name, "num_bytes": one.num_bytes, "same_top": one.same_top} for one in found
                ],
            }
        )
        return 0
    for one in (source, *found):
        mark = "*" if one is best else " "
        job.output.line(f"{mark} {one.name:<8} {size(one.num_bytes):>8}  {one.same_top:.1%} as the target")
    job.output.line(f"{out}  {size(best.num_bytes)}  {best.name}")
    return 0
