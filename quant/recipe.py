# Which tensor gets which type: a mix's name, the model and the user's overrides → one row a tensor. Pure.
# This file may not know files or native code.
"""``choose_types``: llama.cpp's own choice, tensor for tensor, unless the user says otherwise.

Follows ``llama_tensor_get_type``. The rules themselves are tables (mixes.py); here is how they are asked: tensors
in llama.cpp's order, since some rules count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ingle.models.ggml_types import BY_NAME, NOT_FOR_WEIGHTS, row_bytes
from ingle.models.gguf_info import ModelInfo, TensorInfo
from ingle.quant.errors import BadRecipe
from ingle.quant.mixes import (
    ALIASES,
    AT_LEAST_Q8_0,
    FALLBACK,
    KEPT,
    KEPT_BY_ARCHITECTURE,
    KEPT_WHOLE_NAMES,
    MIXES,
    NAME_PARTS,
    RULES,
    SEVENTY_B,
    TINY,
    WHOLE_NAMES,
    Mix,
    Part,
    Spot,
)

FLOAT_TYPES: Final = frozenset({"F32", "F16", "BF16"})
_WANT_IMATRIX: Final = frozenset({"IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S"})
_FFN: Final = (Part.FFN_DOWN, Part.FFN_GATE, Part.FFN_UP)
_LAYER: Final = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Override:
    """``--tensor-type REGEX=TYPE``: the type of tensors in whose name `pattern` is found. The first that fits wins."""

    pattern: re.Pattern[str]
    type_name: str


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the file to be made. `shape` in ggml's order: columns first."""

    name: str
    shape: tuple[int, ...]
    source_type: str
    type: str
    fell_back_from: str | None = None  # the type whose blocks do not divide its rows
    needs_imatrix: bool = False  # without importances it would be noise

    @property
    def num_values(self) -> int:
        total = 1
        for n in self.shape:
            total *= n
        return total

    @property
    def num_bytes(self) -> int:
        return self.num_values // self.shape[0] * row_bytes(self.type, self.shape[0])

    @property
    def is_copied(self) -> bool:
        return self.type == self.source_type


@dataclass(frozen=True, slots=True)
class Recipe:
    """What becomes of every tensor, in the order of the source."""

    mix: Mix
    tensors: Sequence[TensorPlan]
    overrides: Sequence[Override] = field(default=())

    @property
    def num_bytes(self) -> int:
        """Of all tensors, without header and padding."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.num_bytes / sum(tensor.num_values for tensor in self.tensors)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many tensors there are of each type, the most frequent first."""
        return dict(Counter(tensor.type for tensor in self.tensors).most_common())


def find_mix(name: str) -> Mix:
    """The mix of that name, in any case; aliases as llama.cpp has them, and ``int8``. Raises BadRecipe."""
    wanted = name.upper().replace("-", "_")
    mix = MIXES.get(ALIASES.get(wanted, wanted))
    if mix is None:
        import difflib

        known = [*MIXES, *ALIASES]
        near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near).lower()}?" if near else "there are " + ", ".join(known).lower()
        raise BadRecipe(f"there is no type {name!r}", hint)
    return mix


def parse_override(text: str) -> Override:
    """``REGEX=TYPE`` as typed. Raises BadRecipe."""
    pattern, equals, type_name = text.rpartition("=")
    if not equals or not pattern or not type_name:
        raise BadRecipe(f"{text!r} is not REGEX=TYPE", "such as 'ffn_down=q6_k'")
    name = type_name.upper()
    if name not in BY_NAME or name in NOT_FOR_WEIGHTS:
        known = ", ".join(n.lower() for n in BY_NAME if n not in NOT_FOR_WEIGHTS)
        raise BadRecipe(f"there is no type {type_name!r} for a tensor", f"there are {known}")
    try:
        return Override(re.compile(pattern), name)
    except re.error as error:
        raise BadRecipe(f"{pattern!r} is not a regular expression: {error}") from None


def choose_types(info: ModelInfo, mix: Mix, *, has_imatrix: bool, overrides: Sequence[Override] = ()) -> Recipe:
    """A recipe for `info`. With importances some mixes choose otherwise.

    Overrides concern the matrices that llama.cpp would quantize. Raises BadRecipe for an override that touches none.
    """
    chooser = _Chooser(info, mix, has_imatrix, overrides)
    chosen = {tensor.name: chooser.choose(tensor) for tensor in sorted(info.tensors, key=_llama_order)}
    check_overrides(info, overrides)
    return Recipe(mix, tuple(chosen[tensor.name] for tensor in info.tensors), tuple(overrides))


def check_overrides(info: ModelInfo, overrides: Sequence[Override]) -> None:
    """Raise BadRecipe for one that is about no tensor which can be quantized."""
    for override in overrides:
        if not any(is_quantizable(t, info.architecture) and override.pattern.search(t.name) for t in info.tensors):
            raise BadRecipe(
                f"no tensor that can be quantized matches {override.pattern.pattern!r}",
                "`ingle quantize MODEL --to q8_0 --dry-run --json` lists the tensors' names",
            )


def is_quantizable(tensor: TensorInfo, architecture: str) -> bool:
    """Whether llama.cpp quantizes this one at all (``tensor_allows_quantization``)."""
    num_dims = max((i + 1 for i, n in enumerate(tensor.shape) if n > 1), default=1)
    name = tensor.name
    return (
        num_dims >= 2
        and name.endswith("weight")
        and name not in KEPT_WHOLE_NAMES
        and not any(text in name for text in (*KEPT, *KEPT_BY_ARCHITECTURE.get(architecture, ())))
    )


def part_of(name: str) -> Part:
    """What the tensor of that name is to the rules."""
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name]
    return next((part for text, part in NAME_PARTS if text in name), Part.OTHER)


def _llama_order(tensor: TensorInfo) -> tuple[int, bytes]:
    """``weight_name_comparer``: by layer, then by name."""
    match = _LAYER.match(tensor.name)
    return (int(match[1]) if match else -1, tensor.name.encode())


class _Chooser:
    """Goes through the tensors in order and counts, as llama.cpp does."""

    def __init__(self, info: ModelInfo, mix: Mix, has_imatrix: bool, overrides: Sequence[Override]) -> None:
        self._mix = mix
        self._overrides = overrides
        self._arch = info.architecture
        self._num_layers = info.num_layers
        names = [tensor.name for tensor in info.tensors]
        self._is_tied = "output.weight" not in names
        self._num_attn_v = sum(part_of(name) is Part.ATTN_V for name in names)
        self._is_ordinary = mix.name not in TINY and mix.name != "MXFP4_MOE"
        self._seen: Counter[Part] = Counter()
        heads, heads_kv = _first_layer(info.n_head), _first_layer(info.n_head_kv)
        num_experts = info.metadata.get(f"{self._arch}.expert_count", 0)
        nextn = info.metadata.get(f"{self._arch}.nextn_predict_layers", 0)
        assert isinstance(num_experts, int)
        assert isinstance(nextn, int)
        self._base = Spot(
            architecture=self._arch,
            layer=0,
            num_layers=info.num_layers,
            num_heads_per_kv=heads // heads_kv if heads_kv else 0,
            num_experts=num_experts,
            is_70b=(self._arch, info.num_layers - nextn) in SEVENTY_B
            and not (self._arch == "llama" and (heads == heads_kv or num_experts == 8)),
            has_imatrix=has_imatrix,
            is_stack=False,
            fits=True,
        )

    def choose(self, tensor: TensorInfo) -> TensorPlan:
        if not is_quantizable(tensor, self._arch):
            return TensorPlan(tensor.name, tensor.shape, tensor.type, tensor.type)
        override = next((o for o in self._overrides if o.pattern.search(tensor.name)), None)
        if override is not None:
            wanted = override.type_name
        elif self._mix.default_type in FLOAT_TYPES:
            wanted = self._mix.default_type
        else:
            wanted = self._by_rules(tensor)
        chosen = fitting(tensor, wanted)
        return TensorPlan(
            tensor.name,
            tensor.shape,
            tensor.type,
            chosen,
            fell_back_from=wanted if chosen != wanted else None,
            needs_imatrix=chosen != tensor.type and self._needs_imatrix(tensor.name, chosen),
        )

    def _by_rules(self, tensor: TensorInfo) -> str:
        mix = self._mix
        if any(text in tensor.name for text in AT_LEAST_Q8_0.get(self._arch, ())):
            return "Q8_0"
        part = part_of(tensor.name)
        if part is Part.TOKEN_EMBD and self._is_tied:
            part = Part.OUTPUT
        spot = self._spot(tensor, part)
        self._seen[part] += 1
        chosen = next((kind for holds, kind in RULES.get((part, mix.name), ()) if holds(spot)), mix.default_type)
        if part in (Part.ATTN_K, Part.ATTN_V) and self._is_ordinary:
            if spot.num_experts == 8:
                return "Q8_0"
            if part is Part.ATTN_V and spot.is_70b and chosen in ("Q3_K", "Q4_K"):
                return "Q5_K"  # eight heads share one: small, and worth it
        return chosen

    def _spot(self, tensor: TensorInfo, part: Part) -> Spot:
        layer = self._seen[part]
        if part in _FFN and self._base.num_experts > 1 and self._is_ordinary:
            match = _LAYER.match(tensor.name)  # a layer of experts may have several of these
            if match is None or int(match[1]) >= self._num_layers:
                raise BadRecipe(f"tensor {tensor.name!r} is in none of the model's {self._num_layers} layers")
            layer = int(match[1])
        return self._base._replace(
            layer=layer,
            num_layers=self._num_attn_v if part is Part.ATTN_V else self._num_layers,
            is_stack=len(tensor.shape) > 2 and tensor.shape[2] > 1,
            fits=tensor.shape[0] % BY_NAME[self._mix.default_type].block_size == 0,
        )

    def _needs_imatrix(self, name: str, chosen: str) -> bool:
        if part_of(name) in (Part.TOKEN_EMBD, Part.OUTPUT):
            return False
        return chosen in _WANT_IMATRIX or (chosen == "Q2_K" and self._mix.name == "Q2_K_S")


def fitting(tensor: TensorInfo, wanted: str) -> str:
    """`wanted`, or what can be had instead where the tensor's rows are not whole blocks of it."""
    for name in (wanted, FALLBACK.get(wanted)):
        if name is not None and tensor.shape[0] % BY_NAME[name].block_size == 0:
            return name
    return "F16"


def _first_layer(value: int | tuple[int, ...]) -> int:
    return value[0] if isinstance(value, tuple) else value
