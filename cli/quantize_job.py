# One run of `ingle quantize`: recipes, a workshop, files, a verdict. Imports what it needs at the top: it is imported
# only when there is work.
"""``Job``: what was asked for, and the source it was asked of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ingle.cli.eval import read_text
from ingle.cli.output import Output
from ingle.cli.progress import DownloadProgress, StageProgress
from ingle.cli.quantize import QuantizeFlags, imatrix_path
from ingle.cli.quantize_report import Story, tell, tell_fallbacks, tell_plan
from ingle.cli.quantize_speed import measure
from ingle.cli.stats import number
from ingle.quant import calibrate, gguf_values, int4, pipeline, verdict
from ingle.quant.calibrate import Calibration
from ingle.quant.evaluate import text_chunks
from ingle.quant.gguf_values import EncodedValue
from ingle.quant.imatrix_file import FittedImatrix, ImatrixData, fit, read_imatrix, write_imatrix
from ingle.quant.mixes import Mix
from ingle.quant.recipe import Override, Recipe, choose_types, is_quantizable
from ingle.quant.source import Source
from ingle.quant.target import Target, check_reachable, header_size, recipe_within
from ingle.quant.verdict import MAX_CHUNKS, Speed
from ingle.quant.workshop import Methods, Stages, Workshop, needs_calibration
from ingle.runtime.config import EngineConfig
from ingle.runtime.errors import EngineError


@dataclass(frozen=True, slots=True)
class Wish:
    """One file that is to be. Of `mix` and `target` at most one; neither: the best four-bit mix here."""

    name: str
    mix: Mix | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Importances:
    """An importance matrix as given, and as it fits the model."""

    path: Path
    data: ImatrixData
    fitted: FittedImatrix


class Job:
    """One run, from what was asked for to what is told."""

    def __init__(
        self,
        flags: QuantizeFlags,
        output: Output,
        source: Source,
        overrides: Sequence[Override],
        config: EngineConfig,
        raise_if_stopped: Callable[[], None],
    ) -> None:
        """Reads what the flags name: importances, the text to judge on. Raises InputProblem, BadImatrix, BadText."""
        self.flags, self.output, self.source, self.config = flags, output, source, config
        self.overrides = overrides
        self.stages: Stages = _stoppable(StageProgress(output), raise_if_stopped)
        self.writing = DownloadProgress(output)
        self.given = _importances(flags.imatrix, source, output)
        importances = self.given.fitted.means if self.given is not None else {} if flags.no_imatrix else None
        self.methods = Methods(awq=flags.awq, gptq=flags.gptq, importances=importances)
        self.given_text = None if flags.calib is None else self._read_calibration(flags.calib)
        self.text_chunks = None
        if flags.eval_text is not None:
            text = read_text(flags.eval_text, "--eval")
            self.text_chunks = text_chunks(source.path, text, max_chunks=MAX_CHUNKS)

    def run(self, wishes: Sequence[Wish], outs: Sequence[Path]) -> int:
        """Make all files, judge them, tell."""
        story = Story(self.source, self.given, self.flags.json)
        known: dict[str, list[Recipe]] = {}
        for wish, out in zip(wishes, outs, strict=True):
            if wish.mix is not None:
                known[wish.name] = [self.recipe_of(wish.mix)]
            elif wish.target is None:
                known[wish.name] = int4.recipes(
                    self.source.info, has_imatrix=not self.flags.no_imatrix, overrides=self.overrides
                )
            self.check(out, known.get(wish.name, []))
            if wish.target is not None:
                check_reachable(self.source.info, wish.target, self.overrides, num_header_bytes=self.num_header_bytes)
            for recipe in known.get(wish.name, []):
                tell_fallbacks(recipe, self.output)
        if self.flags.keep_imatrix:
            pipeline.check_place(self.source, imatrix_path(outs[0]))
        if self.flags.dry_run:
            tell_plan(story, [known[wish.name][0] for wish in wishes], outs, self.output)
            return 0
        workshop = story.workshop = self.open_workshop(
            story, [recipe for some in known.values() for recipe in some], wishes
        )
        for wish, out in zip(wishes, outs, strict=True):
            if wish.target is not None:
                recipe = self.within(workshop, wish.target)
                tell_fallbacks(recipe, self.output)
            elif wish.mix is None:
                recipe, reason = int4.choose_int4(
                    workshop, known[wish.name], out, self.measure, config=self.config, stages=self.stages
                )
                self.output.note(f"int4: {reason}")
            else:
                (recipe,) = known[wish.name]
            story.made.append(workshop.make(recipe, out))
        if self.flags.keep_imatrix:
            story.kept = self.keep_imatrix(workshop, outs[0])
        self.judge(story, workshop)
        tell(story, self.output)
        if self.flags.plot is not None and story.rows:
            from ingle.cli.quantize_plot import plot

            plot(story.rows, self.flags.plot)
            self.output.note(f"drawn in {self.flags.plot}")
        return 0

    def recipe_of(self, mix: Mix) -> Recipe:
        return choose_types(self.source.info, mix, has_imatrix=not self.flags.no_imatrix, overrides=self.overrides)

    def check(self, out: Path, recipes: Sequence[Recipe]) -> None:
        """Raise what would otherwise be raised after minutes."""

        pipeline.check_place(self.source, out)
        known: Collection[str]
        if self.methods.importances is not None:
            known = self.methods.importances
        else:
            info = self.source.info
            known = {t.name for t in info.tensors if t.name.startswith("blk.") and is_quantizable(t, info.architecture)}
        for recipe in recipes:
            pipeline.check_importances(recipe, known)

    def open_workshop(
        self,
        story: Story,
        recipes: Sequence[Recipe],
        wishes: Sequence[Wish],
        written: Calibration | None = None,
    ) -> Workshop:
        """Hash the source, and find the text to calibrate on where any file needs one: the user's, else what was
        `written`, else what the model writes now."""
        info = self.source.info
        story.sha256 = self.sha256(self.source)
        story.calibration = self.given_text
        if story.calibration is None and (
            (self.flags.keep_imatrix and self.given is None)
            or any(wish.mix is None for wish in wishes)
            or any(needs_calibration(recipe, self.methods) for recipe in recipes)
        ):
            story.calibration = written or self._own_writing(story.sha256)
        workshop = Workshop(
            self.source,
            story.sha256,
            story.calibration,
            self.methods,
            config=self.config,
            stages=self.stages,
            writing=self.writing,
            metadata=_origin(self.source, story.sha256, self.given),
        )
        if workshop.measures_importances:
            covered, total = workshop.activations.coverage()
            if covered < total:
                self.output.warn(
                    f"{total - covered} of {total} expert matrices saw no text: their columns all weigh the same"
                )
        if self.flags.awq and story.calibration is not None and not workshop.can_scale:
            rest = ": the importance matrix does what it can" if workshop.means else ""
            self.output.note(f"{info.architecture} models cannot be scaled{rest}")
        return workshop

    def _own_writing(self, sha256: str) -> Calibration:
        stage = self.stages("the model writes the text it is calibrated on")
        return calibrate.self_written(self.source.path, sha256, config=self.config, progress=stage)

    def sha256(self, source: Source) -> str:
        """Of all of `source`, with a bar. Raises BadModelFile."""
        self.writing.start(source.info.size_bytes, f"reading {source.path.name}")
        try:
            return source.sha256(self.writing.update)
        finally:
            self.writing.finish()

    def _read_calibration(self, path: Path) -> Calibration:
        found = calibrate.from_text(read_text(path, "--calib"), path, self.source.path)
        if found.num_left:
            self.output.note(f"{path}: calibrated on the first {len(found.tokens)} tokens, {found.num_left} are left")
        return found

    def within(self, workshop: Workshop, target: Target) -> Recipe:
        """Types for a budget."""
        return recipe_within(
            self.source.info,
            target,
            workshop.sensitivities(),
            self.overrides,
            num_header_bytes=self.num_header_bytes,
        )

    @property
    def num_header_bytes(self) -> int:
        """Of a file to be, at most. Any hash is as long as any other."""
        return header_size(self.source, self.overrides, _origin(self.source, "0" * 64, self.given))

    def measure(self, path: Path) -> Speed:
        return measure(path, self.config)

    def keep_imatrix(self, workshop: Workshop, out: Path) -> Path:
        """Beside `out`. Raises StoreError."""
        data = self.given.data if self.given is not None else workshop.imatrix_data()
        kept = imatrix_path(out)
        write_imatrix(kept, data)
        return kept

    def judge(self, story: Story, workshop: Workshop) -> None:
        """Fill in the verdict. The files are there whatever becomes of it."""
        chunks = self.text_chunks
        if chunks is not None:
            story.judged_on = str(self.flags.eval_text)
        elif workshop.split is not None:
            chunks, story.judged_on = list(workshop.split.held_out), "held-out calibration text"
        story.num_chunks = len(chunks or ())
        try:
            story.rows = verdict.judge(
                self.source.path,
                [(made.recipe.mix.name, made.written.path) for made in story.made],
                chunks,
                self.measure,
                config=self.config,
                progress=self.stages("judging"),
            )
        except EngineError as error:
            self.output.warn(f"no verdict: {error}")


def _stoppable(stages: Stages, raise_if_stopped: Callable[[], None]) -> Stages:
    def begin(label: str) -> Callable[[int, int], None]:
        update = stages(label)

        def step(done: int, total: int) -> None:
            raise_if_stopped()
            update(done, total)

        return step

    return begin


def _importances(path: Path | None, source: Source, output: Output) -> Importances | None:
    if path is None:
        return None
    data = read_imatrix(path)
    fitted = fit(data, source.info, path)
    if fitted.ignored:
        output.warn(f"{path} knows {number(len(fitted.ignored), 'tensor')} that this model does not have")
    if fitted.num_unseen_experts:
        output.warn(
            f"{fitted.num_unseen_experts} of {fitted.num_experts} expert matrices saw no text:"
            " their columns all weigh the same"
        )
    return Importances(path, data, fitted)


def _origin(source: Source, sha256: str, importances: Importances | None) -> dict[str, EncodedValue]:
    """Keys that say what a file was made of."""
    metadata = {
        "ingle.quantize.version": gguf_values.string(version("ingle")),
        "ingle.quantize.source.file": gguf_values.string(source.path.name),
        "ingle.quantize.source.sha256": gguf_values.string(sha256),
    }
    if importances is not None:
        data = importances.data
        metadata |= {
            "quantize.imatrix.file": gguf_values.string(importances.path.name),
            "quantize.imatrix.dataset": gguf_values.string(", ".join(data.datasets)),
            "quantize.imatrix.entries_count": gguf_values.number("u32", len(importances.fitted.means)),
            "quantize.imatrix.chunks_count": gguf_values.number("u32", data.num_chunks),
            "ingle.quantize.imatrix.sha256": gguf_values.string(
                hashlib.sha256(importances.path.read_bytes()).hexdigest()
            ),
        }
    return metadata
