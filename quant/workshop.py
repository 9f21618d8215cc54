# The story of a better file, top to bottom: one source, calibrated once; for every recipe candidates, of which the one
# is kept that held-out text says is best. This file may not know terminals, nor how anything is searched or measured.
"""``Workshop``: source and calibration text → activations → importances, scales, blocks → a file.

Statistics are made of one part of the calibration text and decisions are made on the other. What was meant to help is
kept only where KL from the source, on that other part, is not worse than with plain rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from ingle.models.progress import Progress
from ingle.quant import ggml, gguf_values, gptq, improve
from ingle.quant.activations import Activations, Rows, capture
from ingle.quant.calibrate import Calibration, Split, split
from ingle.quant.evaluate import evaluate_together
from ingle.quant.fold import TensorScale
from ingle.quant.ggml import Bytes, Floats
from ingle.quant.groups import groups_of
from ingle.quant.imatrix_file import ImatrixData, ImatrixEntry
from ingle.quant.kept import Kept, key_of
from ingle.quant.pipeline import Treatment, Written, quantize
from ingle.quant.recipe import FLOAT_TYPES, Recipe, is_quantizable
from ingle.quant.sensitivity import Sensitivities, measure
from ingle.quant.source import Source
from ingle.quant.writer import candidate_path, put_in_place, remove_leftovers
from ingle.runtime.config import EngineConfig

AWQ, GPTQ, IMATRIX, PLAIN = "awq", "gptq", "imatrix", "plain"

AWQ_BITS: Final = 7.0
"""Types with more bits a weight than this have nothing to gain from scales."""
GPTQ_BITS: Final = 6.3
"""Up to here error feedback is worth its time unasked: with more, as Q6_K has, KL is small whatever is done."""
WALK_BYTES: Final = 1_100_000_000
"""Beside the model, while error feedback walks through it: decides on how many tokens …"""
MIN_WALK_TOKENS, MAX_WALK_TOKENS = 2048, 6144
"""… between these: fewer say too little of a layer, and more hardly anything new."""
WALK_TOKEN_BYTES: Final = 32
"""A token's activations, for each channel of the widest layer: measured on a model of 4,864, at the most."""
SAMPLE_BYTES: Final = 256 << 20
_INDIFFERENT: Final = FLOAT_TYPES | {"Q8_0"}  # to importances

Stages = Callable[[str], Callable[[int, int], None]]
"""A stage's name → what is told how much of it is done, and of how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """What is to be tried. `gptq` None: where it is worth its time. `importances`: given ones, else they are measured;
    empty for none."""

    awq: bool = True
    gptq: bool | None = None
    importances: Mapping[str, Floats] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A file, and how it came to be what it is. `held_out_kl`: of every candidate that was tried, by its methods."""

    recipe: Recipe
    written: Written
    methods: tuple[str, ...]
    held_out_kl: Mapping[str, float]


class Workshop:
    """One source. Activations are measured when they are first needed."""

    def __init__(
        self,
        source: Source,
        source_sha256: str,
        calibration: Calibration | None,
        methods: Methods,
        *,
        config: EngineConfig,
        stages: Stages,
        writing: Progress,
        metadata: Mapping[str, gguf_values.EncodedValue],
    ) -> None:
        """Without a `calibration` there is nothing but rounding. `metadata`: keys for every file. Raises BadText."""
        self.source = source
        self._calibration = calibration
        self.split: Split | None = None if calibration is None else split(calibration, source.info)
        self._methods = methods
        self._config = config
        self._stages = stages
        self._writing = writing
        self._metadata = metadata
        self._kept = None if calibration is None else Kept(source_sha256, calibration.digest)
        self.linears = [t.name for t in source.info.tensors if _is_linear(t.name) and is_quantizable(t, self._arch)]
        self.can_scale = groups_of(source.info) is not None

    @property
    def _arch(self) -> str:
        return self.source.info.architecture

    # -- what is known of the source -----------------------------------------------------------------------------------

    @cached_property
    def activations(self) -> Activations:
        """All but the samples, which are large. Raises BadActivations, EngineError, StoreError."""
        found = self._activations_and_samples()
        for stats in found.inputs.values():
            stats.rows = Rows()
        return found

    def _activations_and_samples(self) -> Activations:
        """From the cache, else measured."""
        assert self.split is not None
        assert self._kept is not None
        found = self._kept.activations()
        if found is None:
            routers = [t.name for t in self.source.info.tensors if t.name.endswith("ffn_gate_inp.weight")]
            groups = groups_of(self.source.info)
            columns = [len(group.column_of) for group in groups or ()]
            found = capture(
                self.source.path,
                self.split.chunks,
                [*self.linears, *routers],
                config=self._config,
                sample_bytes=SAMPLE_BYTES,
                sample_cols=sum(columns) or sum(self.source.tensors[name].shape[0] for name in self.linears),
                progress=self._stages(f"calibrating on {len(self.split.chunks) * len(self.split.chunks[0])} tokens"),
            )
            self._kept.save_activations(found)
        return found

    @property
    def measures_importances(self) -> bool:
        """Whether the importance matrix is made here."""
        return self.split is not None and self._methods.importances is None

    @cached_property
    def means(self) -> Mapping[str, Floats]:
        """The importance matrix: what was given, else what was measured, else nothing."""
        if self._methods.importances is not None:
            return self._methods.importances
        if self.split is None:
            return {}
        quantized = set(self.linears)
        return {name: stats.mean() for name, stats in self.activations.squares.items() if name in quantized}

    def imatrix_data(self) -> ImatrixData:
        """What was measured, in llama.cpp's form."""
        assert self._calibration is not None
        entries = {
            name: ImatrixEntry(stats.sums.astype(np.float32), stats.counts.astype(np.float32))
            for name, stats in self.activations.squares.items()
        }
        origin = Path(self._calibration.origin).name
        return ImatrixData(entries, (origin,), self.activations.num_chunks, self.activations.chunk_tokens)

    def sensitivities(self) -> Sensitivities:
        """From the cache, else measured: they are the same for every budget."""
        assert self.split is not None
        assert self._kept is not None
        key = key_of({}, self.means)
        found = self._kept.sensitivities(key)
        if found is None:
            stage = self._stages("measuring what each tensor needs")
            found = measure(self.source, self.split.chunks, self.means, config=self._config, progress=stage)
            self._kept.save_sensitivities(key, found)
        return found

    # -- what can be done for a file -----------------------------------------------------------------------------------

    def methods_for(self, recipe: Recipe) -> tuple[str, ...]:
        """Of AWQ and GPTQ, what is to be tried for these types."""
        if self.split is None:
            return ()
        types = [plan for plan in recipe.tensors if plan.name in set(self.linears) and plan.type not in FLOAT_TYPES]
        num_values = sum(plan.num_values for plan in types)
        bits = 8 * sum(plan.num_bytes for plan in types) / num_values if num_values else 32.0
        found = []
        if self._methods.awq and self.can_scale and bits <= AWQ_BITS:
            found.append(AWQ)
        wants_gptq = bits <= GPTQ_BITS if self._methods.gptq is None else self._methods.gptq
        # Weights are replaced in memory, in the types they have there.
        can_replace = not any(ggml.requires_imatrix(self.source.tensors[name].type) for name in self.linears)
        if wants_gptq and can_replace and any(plan.type in gptq.TYPES for plan in types):
            found.append(GPTQ)
        return tuple(found)

    def scales(self, recipe: Recipe) -> Mapping[str, TensorScale]:
        """From the cache, else searched."""
        assert self._kept is not None
        types = {plan.name: plan.type for plan in recipe.tensors}
        key = key_of(types, self.means)
        found = self._kept.scales(key)
        if found is None:
            stage = self._stages(f"{recipe.mix.name}: scales")
            activations = self._activations_and_samples()
            scaling = improve.find_scales(
                self.source.info, activations, self.source.read, types, self.means, progress=stage
            )
            assert scaling is not None
            found = dict(scaling.tensors)
            self._kept.save_scales(key, found)
        return found

    def blocks(self, recipe: Recipe, scales: Mapping[str, TensorScale]) -> dict[str, Bytes]:
        """Of all matrices of the layers, with error feedback."""
        assert self.split is not None
        length = len(self.split.chunks[0])
        widest = max(max(self.source.tensors[name].shape[:2]) for name in self.linears)
        num_block_bytes = sum(plan.num_bytes for plan in recipe.tensors if plan.name in set(self.linears))
        num_bytes = WALK_BYTES - num_block_bytes - 3 * 4 * widest**2  # a Gram matrix, and room to invert it
        num_tokens = min(MAX_WALK_TOKENS, max(MIN_WALK_TOKENS, num_bytes // (WALK_TOKEN_BYTES * widest)))
        picked = np.linspace(0, len(self.split.chunks) - 1, min(len(self.split.chunks), max(1, num_tokens // length)))
        return improve.feed_back(
            self.source.path,
            [self.split.chunks[round(number)] for number in picked],
            self.activations,
            self.source.read,
            {plan.name: plan.type for plan in recipe.tensors},
            scales,
            self.means,
            config=self._config,
            progress=self._stages(f"{recipe.mix.name}: error feedback"),
        )

    def treatment(self, recipe: Recipe, methods: tuple[str, ...]) -> Treatment:
        """What is done to the weights with these methods."""
        scales = self.scales(recipe) if AWQ in methods else {}
        blocks = self.blocks(recipe, scales) if GPTQ in methods else {}
        told = self._told(recipe, methods)
        metadata = dict(self._metadata)
        if told:
            metadata["ingle.quantize.methods"] = gguf_values.strings(list(told))
        if self._calibration is not None:
            metadata["ingle.quantize.calibration.sha256"] = gguf_values.string(self._calibration.digest)
            origin = Path(self._calibration.origin).name
            metadata["ingle.quantize.calibration.text"] = gguf_values.string(origin)
            if self.means and self._methods.importances is None:
                metadata["quantize.imatrix.dataset"] = gguf_values.string(origin)
                metadata["quantize.imatrix.entries_count"] = gguf_values.number("u32", len(self.means))
                metadata["quantize.imatrix.chunks_count"] = gguf_values.number("u32", self.activations.num_chunks)
        return Treatment(
            imatrix=improve.importances(self.means, scales),
            transforms={name: scale.apply for name, scale in scales.items()},
            blocks=blocks,
            metadata=metadata,
        )

    # -- files ---------------------------------------------------------------------------------------------------------

    def make(self, recipe: Recipe, out: Path) -> Made:
        """Write `recipe` to `out`, with whatever turned out to help. Raises what `pipeline.quantize` raises."""
        wanted = self.methods_for(recipe)
        if not wanted:
            written = self.write(recipe, out, ())
            return Made(recipe=recipe, written=written, methods=self._told(recipe, ()), held_out_kl={})
        remove_leftovers(out)
        tried: dict[tuple[str, ...], Written] = {}
        try:
            for methods in ((), wanted):
                tried[methods] = self._candidate(recipe, out, methods)
            kl = self._judge(tried)
            if kl[wanted] > kl[()] and len(wanted) > 1:  # together they harm: perhaps one of them does not
                alone: tuple[tuple[str, ...], ...] = ((AWQ,), (GPTQ,))
                for methods in alone:
                    tried[methods] = self._candidate(recipe, out, methods)
                kl |= self._judge({methods: tried[methods] for methods in alone})
            best = min(tried, key=lambda methods: (kl[methods], len(methods)))
            written = tried[best]
            put_in_place(written.path, out)
        finally:
            for one in tried.values():
                one.path.unlink(missing_ok=True)
        return Made(
            recipe=recipe,
            written=replace(written, path=out),
            methods=self._told(recipe, best),
            held_out_kl={"+".join(methods) or PLAIN: kl[methods] for methods in kl},
        )

    def write(self, recipe: Recipe, out: Path, methods: tuple[str, ...]) -> Written:
        """One file, made with these methods and no others, unjudged."""
        return quantize(self.source, out, recipe, self.treatment(recipe, methods), progress=self._writing)

    def _candidate(self, recipe: Recipe, out: Path, methods: tuple[str, ...]) -> Written:
        return self.write(recipe, candidate_path(out, "_".join(methods) or PLAIN), methods)

    def _judge(self, tried: Mapping[tuple[str, ...], Written]) -> dict[tuple[str, ...], float]:
        """Mean KL of each on held-out text."""
        assert self.split is not None
        found = evaluate_together(
            [one.path for one in tried.values()],
            self.split.held_out,
            against=self.source.path,
            config=self._config,
            progress=self._stages("comparing on held-out text"),
        )
        return {
            methods: one.divergence.mean_kl
            for methods, one in zip(tried, found, strict=True)
            if one.divergence is not None
        }

    def _told(self, recipe: Recipe, methods: tuple[str, ...]) -> tuple[str, ...]:
        has_importances = any(plan.name in self.means and plan.type not in _INDIFFERENT for plan in recipe.tensors)
        return ((IMATRIX,) if has_importances else ()) + methods


def needs_calibration(recipe: Recipe, methods: Methods) -> bool:
    """Whether calibration could make a difference to these types: not to 8 bits and more, which take no importances,
    unless error feedback is asked for."""
    types = {plan.type for plan in recipe.tensors} - _INDIFFERENT
    wants_importances = methods.importances is None
    wants_gptq = bool(methods.gptq) and any(plan.type in gptq.TYPES for plan in recipe.tensors)
    return wants_gptq or (bool(types) and (wants_importances or methods.awq or methods.gptq is None))


def _is_linear(name: str) -> bool:
    return name.startswith("blk.")
