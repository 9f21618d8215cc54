# `ingle quantize`: a smaller file, or several. What is asked for is checked before the first byte is written.
# Imported by its command alone; numpy and native code are imported when the flags make sense.
"""The command line of a quantization, and how its results are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingle.cli import settings as settings_file
from ingle.cli.errors import InputProblem, UsageProblem
from ingle.cli.output import Output

if TYPE_CHECKING:
    from ingle.quant.imatrix_file import FittedImatrix, ImatrixData
    from ingle.quant.pipeline import Treatment, Written
    from ingle.quant.recipe import Recipe
    from ingle.quant.source import Source

JSON_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeFlags:
    """The command line of `ingle quantize`."""

    model: str
    to: tuple[str, ...]
    out: Path | None = None
    imatrix: Path | None = None
    no_imatrix: bool = False
    keep_imatrix: bool = False
    tensor_types: tuple[str, ...] = ()
    allow_requantize: bool = False
    force: bool = False
    dry_run: bool = False
    json: bool = False
    offline: bool | None = None
    quiet: bool | None = None


@dataclass(frozen=True, slots=True)
class Importances:
    """An importance matrix as given, and as it fits the model."""

    path: Path
    data: ImatrixData
    fitted: FittedImatrix


def quantize(flags: QuantizeFlags, output: Output) -> int:
    """Returns the exit code; raises what `errors.describe` turns into one."""
    settings = settings_file.load()
    output.quiet = bool(settings.pick("quiet", flags.quiet))
    _refuse_contradictions(flags)
    from ingle.cli.progress import DownloadProgress
    from ingle.models.resolve import resolve
    from ingle.quant.mixes import Mix
    from ingle.quant.recipe import choose_types, find_mix, parse_override

    mixes: dict[Mix, None] = dict.fromkeys(find_mix(name) for name in flags.to)  # each once, in the order given
    overrides = [parse_override(text) for text in flags.tensor_types]
    progress = DownloadProgress(output)
    ref = resolve(flags.model, offline=bool(settings.pick("offline", flags.offline)), progress=progress)
    outs = _outs(flags, ref.path, [mix.name for mix in mixes])

    from ingle.quant import pipeline
    from ingle.quant.source import Source

    with Source(ref.path) as source:
        if not flags.allow_requantize:
            source.refuse_if_coarse()
        elif source.coarse_types:
            output.warn(f"{ref.path.name} is quantized already: what that has lost stays lost")
        importances = _importances(flags.imatrix, source, output)
        treatment = pipeline.Treatment(imatrix=dict(importances.fitted.means) if importances is not None else {})
        recipes = [
            choose_types(source.info, mix, has_imatrix=importances is not None, overrides=overrides) for mix in mixes
        ]
        for recipe, out in zip(recipes, outs, strict=True):
            _tell_fallbacks(recipe, output)
            pipeline.check(source, out, recipe, treatment)
        if flags.dry_run:
            _tell_plan(source, importances, recipes, outs, output, as_json=flags.json)
            return 0
        progress.start(source.info.size_bytes, f"reading {ref.path.name}")
        try:
            digest = source.sha256(progress.update)
        finally:
            progress.finish()
        treatment = _with_origin(treatment, source, digest, importances)
        written = [
            pipeline.quantize(source, out, recipe, treatment, progress=progress)
            for recipe, out in zip(recipes, outs, strict=True)
        ]
        kept = _keep_imatrix(importances, outs[0]) if flags.keep_imatrix and importances is not None else None
        _tell(source, digest, importances, kept, recipes, written, output, as_json=flags.json)
    return 0


def _refuse_contradictions(flags: QuantizeFlags) -> None:
    if not flags.to:
        raise UsageProblem("--to is missing", "such as --to q4_k_m; it may be given several times")
    if flags.imatrix is not None and flags.no_imatrix:
        raise UsageProblem("--imatrix and --no-imatrix contradict each other", "leave out one of them")
    if flags.keep_imatrix and flags.imatrix is None:
        raise UsageProblem("there is no importance matrix that --keep-imatrix could keep", "give one with --imatrix")


def _outs(flags: QuantizeFlags, model: Path, names: Sequence[str]) -> list[Path]:
    """Where each file goes. Raises UsageProblem and InputProblem."""
    from ingle.quant.naming import default_name

    if flags.out is None or flags.out.is_dir():
        outs = [(flags.out or Path()) / default_name(model, name) for name in names]
    elif len(names) > 1:
        raise UsageProblem(f"{flags.out} is no folder, and there are {len(names)} files to write", "name a folder")
    else:
        outs = [flags.out]
    for out in outs:
        if not out.parent.is_dir():
            raise InputProblem(f"no such folder: {out.parent}", "make it first")
        if out.exists() and not flags.force and not flags.dry_run:
            raise UsageProblem(f"{out} exists", "--force replaces it, -o names another")
    return outs


def _importances(path: Path | None, source: Source, output: Output) -> Importances | None:
    if path is None:
        return None
    from ingle.cli.stats import number
    from ingle.quant.imatrix_file import fit, read_imatrix

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


def _with_origin(treatment: Treatment, source: Source, digest: str, importances: Importances | None) -> Treatment:
    """`treatment` with the keys that say what the file was made of."""
    import hashlib
    from dataclasses import replace
    from importlib.metadata import version

    from ingle.quant import gguf_values

    metadata = {
        "ingle.quantize.version": gguf_values.string(version("ingle")),
        "ingle.quantize.source.file": gguf_values.string(source.path.name),
        "ingle.quantize.source.sha256": gguf_values.string(digest),
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
    return replace(treatment, metadata=metadata)


def _keep_imatrix(importances: Importances, out: Path) -> Path:
    from ingle.quant.imatrix_file import write_imatrix

    kept = out.with_name(f"{out.stem}.imatrix.gguf")
    write_imatrix(kept, importances.data)
    return kept


# -- what is told ------------------------------------------------------------------------------------------------------


def _tell_fallbacks(recipe: Recipe, output: Output) -> None:
    from collections import Counter

    from ingle.cli.stats import number
    from ingle.models.ggml_types import BY_NAME

    swaps = Counter((t.fell_back_from, t.type) for t in recipe.tensors if t.fell_back_from is not None)
    for (wanted, taken), count in swaps.items():
        assert wanted is not None
        output.note(
            f"{recipe.mix.name}: {number(count, 'tensor')} in {taken} instead of {wanted},"
            f" whose blocks of {BY_NAME[wanted].block_size} do not divide the rows"
        )


def _tell_plan(
    source: Source,
    importances: Importances | None,
    recipes: Sequence[Recipe],
    outs: Sequence[Path],
    output: Output,
    *,
    as_json: bool,
) -> None:
    """`--dry-run`: sizes are of the tensors, without the header."""
    if as_json:
        files = [
            _recipe_json(recipe, out, recipe.num_bytes)
            | {
                "tensors": [
                    {"name": t.name, "shape": t.shape, "from": t.source_type, "to": t.type} for t in recipe.tensors
                ]
            }
            for recipe, out in zip(recipes, outs, strict=True)
        ]
        output.json(_as_json(source, None, importances, None, files, is_dry_run=True))
        return
    for recipe, out in zip(recipes, outs, strict=True):
        output.line(_line(out, recipe.num_bytes, recipe))


def _tell(
    source: Source,
    digest: str,
    importances: Importances | None,
    kept: Path | None,
    recipes: Sequence[Recipe],
    written: Sequence[Written],
    output: Output,
    *,
    as_json: bool,
) -> None:
    from ingle.cli.stats import size

    for one in written:
        if one.size_bytes >= one.source_bytes:
            output.warn(f"{one.path} is no smaller than its source: {size(one.size_bytes)}, {size(one.source_bytes)}")
    if as_json:
        files = [_recipe_json(recipe, one.path, one.size_bytes) for recipe, one in zip(recipes, written, strict=True)]
        output.json(_as_json(source, digest, importances, kept, files, is_dry_run=False))
        return
    for recipe, one in zip(recipes, written, strict=True):
        output.line(_line(one.path, one.size_bytes, recipe))
    if kept is not None:
        output.line(str(kept))


def _line(out: Path, num_bytes: int, recipe: Recipe) -> str:
    from ingle.cli.stats import size

    types = ", ".join(f"{name} {count}" for name, count in recipe.counts.items())
    return f"{out}  {size(num_bytes)}  {recipe.bits_per_weight:.2f} bits a weight  ({types})"


def _recipe_json(recipe: Recipe, out: Path, num_bytes: int) -> dict[str, Any]:
    return {
        "path": str(out),
        "type": recipe.mix.name,
        "num_bytes": num_bytes,
        "bits_per_weight": round(recipe.bits_per_weight, 4),
        "num_tensors": dict(recipe.counts),
        "num_fallbacks": sum(tensor.fell_back_from is not None for tensor in recipe.tensors),
    }


def _as_json(
    source: Source,
    digest: str | None,
    importances: Importances | None,
    kept: Path | None,
    files: list[dict[str, Any]],
    *,
    is_dry_run: bool,
) -> dict[str, Any]:
    about = None
    if importances is not None:
        about = {
            "path": str(importances.path),
            "num_entries": len(importances.fitted.means),
            "num_missing": importances.fitted.num_missing,
            "num_unseen_experts": importances.fitted.num_unseen_experts,
            "kept": None if kept is None else str(kept),
        }
    model = {"path": str(source.path), "num_bytes": source.info.size_bytes, "type": source.info.file_type}
    return {
        "version": JSON_VERSION,
        "dry_run": is_dry_run,
        "model": {**model, "sha256": digest},
        "imatrix": about,
        "files": files,
    }
