# Which of a repo's files is meant: names of quantizations in file names, shards, what lies beside a model.
# This file may not know hubs, disks or networks: names go in, names come out.
"""``choose``: the GGUF files of one model out of a repo's names.

The quantization stands in a file's name, or in its folder's (``UD-Q4_K_XL/model-00001-of-00002.gguf``). Its case does
not matter, nor do the prefixes ``UD-`` and ``i1-`` of some authors where they are the only ones to have it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ingle.models.errors import ModelNotFound, NoSuchQuant

DEFAULT_QUANT: Final = "Q4_K_M"

_LABEL: Final = re.compile(
    r"(?:^|[-._])"
    r"((?:(?:UD|i1)-)?(?:I?Q[1-8](?:_(?:[01]|K|NL|XXS|XS|S|M|L|XL|4_4|4_8|8_8))*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4"
    r"|BF16|F16|FP16|F32|FP32))"
    r"(?=$|[-._])",
    re.IGNORECASE,
)
_PREFIX: Final = re.compile(r"^(?:UD|i1)-", re.IGNORECASE)
_SHARD: Final = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_WORDS: Final = re.compile(r"[-._]+")

# What a repo keeps beside its models, by a word of the name: the eyes of a vision model, the data of a quantization, a
# small model that guesses for a large one, an adapter.
_NEVER: Final = frozenset({"mmproj", "imatrix", "lora"})
_SELDOM: Final = frozenset({"draft", "mtp", "eagle3"})

# What to take in place of the default, best first: near it in bits, then what keeps more, then what keeps less.
_NEAREST: Final = (
    *("Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "MXFP4_MOE", "Q4"),
    *("Q5_K_M", "Q5_K_S", "Q5_K_L", "Q5_K_XL", "Q5_K", "Q5_1", "Q5_0", "Q5", "Q6_K", "Q6_K_L", "Q6_K_XL", "Q6"),
    *("Q8_0", "Q8_K_XL", "Q8", "Q3_K_XL", "Q3_K_L", "Q3_K_M", "Q3_K", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS"),
    *("F16", "FP16", "BF16", "NVFP4", "Q2_K_XL", "Q2_K_L", "Q2_K", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
    *("F32", "FP32", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model, first shard first. `quant` as the name spells it; None where it says nothing.

    `note`: one line to tell the user when the default was not to be had.
    """

    names: tuple[str, ...]
    quant: str | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """One file, or the shards of one: as many of `count` as the repo has."""

    names: tuple[str, ...]
    count: int
    label: str | None

    @property
    def is_whole(self) -> bool:
        return len(self.names) == self.count

    @property
    def bare(self) -> str | None:
        return None if self.label is None else _PREFIX.sub("", self.label)


def label(name: str) -> str | None:
    """The quantization that a GGUF's path names, spelt as ggml does; None: it names none."""
    path = PurePosixPath(name)
    match = _SHARD.match(path.stem)
    for text in (match["stem"] if match else path.stem, path.parent.name):
        found = _LABEL.findall(text)
        if found:
            prefix = _PREFIX.match(found[-1])
            bare = _PREFIX.sub("", found[-1]).upper()
            return bare if prefix is None else {"ud-": "UD-", "i1-": "i1-"}[prefix[0].lower()] + bare
    return None


def is_sidecar(name: str) -> bool:
    """Whether a GGUF is no model to run but something that goes with one."""
    return bool(_words(name) & (_NEVER | _SELDOM))


def choose(names: Sequence[str], repo_id: str, *, quant: str | None = None, file: str | None = None) -> Choice:
    """The files meant by `file`, else by `quant`, else by the default, among a repo's `names`.

    Raises NoSuchQuant, and ModelNotFound: no GGUF at all, no such file, shards missing, several that fit.
    """
    models = _models(names)
    if file is not None:
        return _named(models, repo_id, file)
    candidates = [m for m in models if not is_sidecar(m.names[0])]
    if not candidates:
        candidates = [m for m in models if not _words(m.names[0]) & _NEVER]
    if not candidates:
        raise ModelNotFound(f"{repo_id} holds no GGUF model", "Look for a repository with GGUF in its name.")
    if quant is not None:
        return _one(_of_quant(candidates, repo_id, quant), repo_id, None)
    whole = [m for m in candidates if m.is_whole] or candidates
    best = min(_rank(m) for m in whole)
    nearest = [m for m in whole if _rank(m) == best]
    note = None
    if best and nearest[0].label is not None:
        has = ", ".join(_labels(candidates))
        note = f"{repo_id} has no {DEFAULT_QUANT}: taking {nearest[0].label} (it has {has})"
    return _one(nearest, repo_id, note)


def labels(names: Sequence[str]) -> list[str]:
    """The quantizations among `names`, each once, those nearest to the default first."""
    return _labels([m for m in _models(names) if not is_sidecar(m.names[0])])


def _models(names: Sequence[str]) -> list[_Model]:
    shards: dict[tuple[str, str, int], list[tuple[int, str]]] = {}
    found = []
    for name in sorted(name for name in names if name.lower().endswith(".gguf")):
        path = PurePosixPath(name)
        match = _SHARD.match(path.stem)
        if match is None:
            found.append(_Model((name,), 1, label(name)))
        else:
            key = (str(path.parent), match["stem"], int(match["count"]))
            shards.setdefault(key, []).append((int(match["number"]), name))
    for (_, _, count), members in shards.items():
        ordered = [name for number, name in sorted(members) if 1 <= number <= count]
        if ordered:
            found.append(_Model(tuple(ordered), count, label(ordered[0])))
    return found


def _named(models: list[_Model], repo_id: str, file: str) -> Choice:
    wanted = file.lower()
    for model in models:
        if wanted in (name.lower() for name in model.names):
            return _one([model], repo_id, None)
    import difflib

    names = [name for model in models for name in model.names]
    near = difflib.get_close_matches(file, names, n=1, cutoff=0.5)
    hint = f"Did you mean {repo_id}/{near[0]}?" if near else f"It has {_listed(names) or 'no GGUF'}."
    raise ModelNotFound(f"{repo_id} holds no file {file!r}", hint)


def _of_quant(models: list[_Model], repo_id: str, quant: str) -> list[_Model]:
    wanted = quant.lower()
    for spelling in ("label", "bare"):
        found = [m for m in models if (getattr(m, spelling) or "").lower() == wanted]
        if found:
            return found
    has = _labels(models)
    if not has:
        raise NoSuchQuant(
            f"no file of {repo_id} says that it is {quant}",
            f"Name one: {_listed([f'{repo_id}/{m.names[0]}' for m in models])}.",
        )
    raise NoSuchQuant(f"{repo_id} has no {quant}", f"It has {', '.join(has)}.")


def _one(models: list[_Model], repo_id: str, note: str | None) -> Choice:
    if len(models) > 1:  # the root of a repo is what its author means; folders hold variants
        rooted = [m for m in models if "/" not in m.names[0]]
        models = rooted if len(rooted) == 1 else models
    if len(models) > 1:
        listed = _listed([f"{repo_id}/{m.names[0]}" for m in models])
        raise ModelNotFound(f"{len(models)} files of {repo_id} could be meant", f"Name one: {listed}.")
    model = models[0]
    if not model.is_whole:
        raise ModelNotFound(
            f"{repo_id} holds {len(model.names)} of the {model.count} shards of {model.names[0]}",
            "It cannot be used without the others: choose another quantization.",
        )
    return Choice(model.names, model.label, note)


def _rank(model: _Model) -> int:
    """How far from the default: 0 is the default itself."""
    if model.bare is None:
        return len(_NEAREST) + 1
    place = _NEAREST.index(model.bare) if model.bare in _NEAREST else len(_NEAREST)
    return 2 * place + (model.bare != model.label)


def _labels(models: list[_Model]) -> list[str]:
    return list(dict.fromkeys(m.label for m in sorted(models, key=_rank) if m.label is not None))


def _words(name: str) -> set[str]:
    return set(_WORDS.split(PurePosixPath(name).name.lower()))


def _listed(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
