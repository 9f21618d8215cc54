# `ingle quantize MODEL --for-draft TARGET`: the file that TARGET gains most by.
"""``draft``: ever larger candidates while they may gain more, and the best with fewer tokens; judged on what the target
writes, and by their measured speed.

The target writes one text. A part of it is what the candidates are calibrated on and what says which tokens matter,
because a draft will never read anything else; the other part is what they are judged on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ingle.cli.quantize_report import JSON_VERSION, Story
from ingle.cli.quantize_speed import seconds_a_token
from ingle.cli.stats import size
from ingle.models.gguf_info import read_model_info
from ingle.quant import calibrate
from ingle.quant.draft import Agreement, agreement, choose_draft, expected_gain, gain_by_size, ladder, shorten
from ingle.quant.errors import BadRecipe
from ingle.quant.evaluate import check_same_vocabulary
from ingle.quant.likeliest import likeliest
from ingle.quant.short_file import check_can_shorten
from ingle.quant.short_rows import num_worth_keeping
from ingle.quant.source import Source
from ingle.quant.writer import candidate_path, put_in_place, remove_leftovers

if TYPE_CHECKING:
    from ingle.cli.quantize_job import Job
    from ingle.models.gguf_info import ModelInfo

NUM_TOKENS = 8192
_TARGET = "the target"  # beside the names of candidates


def draft(job: Job, target: Path, out: Path) -> int:
    """Write `out`, the best of all candidates, and tell how often each is of the target's opinion."""
    job.check(out, [])
    drafted = read_model_info(target)
    check_same_vocabulary(job.source.info, drafted)
    num_tokens = _num_tokens(job.flags.draft_vocab, job.source.info)
    story = Story(job.source, job.given, job.flags.json)
    recipes = ladder(job.source.info, has_imatrix=not job.flags.no_imatrix, overrides=job.overrides)
    with Source(target) as opened:
        sha256 = job.sha256(opened)
    writes = job.stages("the target writes the text that drafts have to guess")
    text = calibrate.self_written(target, sha256, num_tokens=NUM_TOKENS, config=job.config, progress=writes)
    text = replace(text, origin=f"written by {target.name}")
    split = calibrate.split(text, drafted)
    workshop = story.workshop = job.open_workshop(story, recipes, (), written=text)
    remove_leftovers(out)

    def judge(name: str, path: Path) -> Agreement:
        stage = job.stages(f"{name}: comparing with the target")
        return agreement(name, path, expected, split.held_out, config=job.config, progress=stage)

    def gain(one: Agreement) -> float:
        return gain_by_size(one.same_top, one.num_bytes, drafted.size_bytes)

    asking = job.stages("the target says what it would guess")
    expected = likeliest(target, split.held_out, config=job.config, progress=asking)
    source = judge("source", job.source.path)
    paths: dict[str, Path] = {}
    found: list[Agreement] = []
    try:
        for recipe in recipes:
            hoped = gain_by_size(source.same_top, recipe.num_bytes, drafted.size_bytes)
            if any(gain(one) >= hoped for one in found):
                break  # not even one that loses nothing would be worth its size, and the next ones are larger
            name = recipe.mix.name
            paths[name] = candidate_path(out, name.lower())
            workshop.make(recipe, paths[name])
            found.append(judge(name, paths[name]))
        if num_tokens is not None:
            whole = max(found, key=gain)
            name = f"{whole.name} short"
            paths[name] = candidate_path(out, f"{whole.name.lower()}_short")
            used = {int(token) for chunk in split.chunks for token in chunk}
            shorten(paths[whole.name], paths[name], used, num_tokens, progress=job.writing)
            found.append(judge(name, paths[name]))
        timing = job.stages("measuring how fast they are")
        seconds = seconds_a_token({_TARGET: target, **paths}, job.config, progress=timing)
        costs = {name: seconds[name] / seconds[_TARGET] for name in paths}
        best = choose_draft(found, costs)
        put_in_place(paths[best.name], out)
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)
    _tell(job, out, source, found, costs, best)
    return 0


def _num_tokens(wanted: object, info: ModelInfo) -> int | None:
    """Tokens of the short vocabulary to try; None: none. Raises BadRecipe where it was asked for and cannot be."""
    if wanted == "all":
        return None
    if isinstance(wanted, int):
        check_can_shorten(info)
        if wanted >= info.vocab_size:
            raise BadRecipe(
                f"there are {info.vocab_size} tokens, and {wanted} would be all", "--draft-vocab all keeps them all"
            )
        return wanted
    try:
        check_can_shorten(info)
    except BadRecipe:
        return None
    return num_worth_keeping(info.vocab_size)


def _tell(
    job: Job, out: Path, source: Agreement, found: Sequence[Agreement], costs: Mapping[str, float], best: Agreement
) -> None:
    gains = {one.name: expected_gain(one.same_top, costs[one.name]) for one in found}
    if gains[best.name] <= 1:
        job.output.warn("none of them is fast enough here for its guesses to pay")
    if job.flags.json:
        candidates = [
            {
                "type": one.name,
                "num_bytes": one.num_bytes,
                "same_top": one.same_top,
                "cost": costs[one.name],
                "expected_gain": gains[one.name],
            }
            for one in found
        ]
        job.output.json(
            {
                "version": JSON_VERSION,
                "path": str(out),
                "type": best.name,
                "num_bytes": best.num_bytes,
                "source_same_top": source.same_top,
                "candidates": candidates,
            }
        )
        return
    width = max(len(one.name) for one in (source, *found))
    for one in (source, *found):
        mark = "*" if one is best else " "
        told = f"{mark} {one.name:<{width}} {size(one.num_bytes):>8}  {one.same_top:.1%} as the target"
        if one is not source:
            told += f", a token in {costs[one.name]:.2f} of its time: {gains[one.name]:.2f} ×"
        job.output.line(told)
    job.output.line(f"{out}  {size(best.num_bytes)}  {best.name}")
